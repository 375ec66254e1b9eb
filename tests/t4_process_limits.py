"""A daemon and its keeper at a limit of processes, which the workers of a job may fill."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from machine import Machine, has_ended
from patience import PATIENCE_S, until
from process_limits import FOLDER, limited

pytestmark = pytest.mark.skipif(FOLDER is None, reason="this process may not limit the processes of a control group")


def ends_all_threads_of_trio(machine: Machine) -> None:
    """trio ends a thread that was idle for some seconds. Then the next call needs a new one."""
    tasks = Path("/proc") / str(machine.pid()) / "task"

    def is_without() -> bool:
        names = [(task / "comm").read_text().strip() for task in tasks.iterdir()]
        return not any(name.startswith("Trio thread") for name in names)

    until(is_without, lambda: [(task / "comm").read_text() for task in tasks.iterdir()])


def read_all(root: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in root.glob("train/*/*.jpg"))


@pytest.fixture
def kept(machine: Machine, source: Path) -> Machine:
    machine.ok("mount", "--keeper", source, machine.mnt)
    return machine


def test_a_daemon_at_a_limit_of_processes_serves_and_keeps_its_turns(kept: Machine, source: Path) -> None:
    whole = read_all(source)
    pid = kept.pid()
    ends_all_threads_of_trio(kept)
    with limited(kept.processes_of()) as limit:
        limit.reach()
        assert read_all(kept.mnt) == whole
        exact = kept.mnt / ".redoxfs/exact/train"
        assert sorted(path.read_bytes() for path in exact.glob("*/*.jpg")) == whole
        until(lambda: kept.stats()["turns_kept"] == len(whole), kept.stats)
        assert limit.refused() > 0
        next((kept.mnt / "train").glob("*/*.jpg")).read_bytes()
        assert kept.pid() == pid
        kept.ok("umount", kept.mnt)
    assert "a bug in redoxfs" not in kept.log()
    # The last turn was written as well.
    kept.ok("mount", "--resume", source, kept.mnt)
    assert kept.stats()["turns"] == len(whole) + 1


def test_the_keeper_tries_again_where_it_cannot_fork(kept: Machine, source: Path) -> None:
    whole = read_all(source)
    first = kept.pid()
    with limited(kept.processes_of()) as limit:
        process = os.pidfd_open(first)
        threads = len(list(Path(f"/proc/{first}/task").iterdir()))
        os.kill(first, signal.SIGSTOP)
        limit.reach()
        # What the daemon leaves is taken: nothing may start in its place.
        limit.allow(-threads)
        os.kill(first, signal.SIGKILL)
        assert has_ended(process)
        served: list[list[bytes]] = []
        reader = threading.Thread(target=lambda: served.append(read_all(kept.mnt)))
        reader.start()
        until(lambda: kept.log().count("no daemon serves; trying again in") >= 2, kept.log)
        assert not served
        limit.lift()
        reader.join()
        assert served == [whole]
    stats = kept.stats()
    assert (stats["pid"] != first, stats["keeper"]["restarts"], stats["keeper"]["last_death"]["how"]) == (
        True,
        1,
        "SIGKILL",
    )
    kept.umount()


def test_a_keeper_that_cannot_fork_ends_with_the_mount(kept: Machine) -> None:
    keeper, daemon = kept.stats()["keeper"]["pid"], kept.pid()
    with limited([keeper, daemon]) as limit:
        process = os.pidfd_open(keeper)
        threads = len(list(Path(f"/proc/{daemon}/task").iterdir()))
        limit.reach()
        limit.allow(-threads)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: "no daemon serves; trying again in" in kept.log(), kept.log)
        # Nobody answers a look at the mountpoint, and such a look would have longer than the test.
        kept.ok("umount", "--timeout", "3600", kept.mnt)
        assert has_ended(process)
    assert kept.nothing_is_left()


def test_a_successor_without_threads_is_no_death(kept: Machine, source: Path) -> None:
    whole = read_all(source)
    daemon = kept.pid()
    with limited(kept.processes_of()) as limit:
        threads = len(list(Path(f"/proc/{daemon}/task").iterdir()))
        limit.reach()
        # Room for one process, and for no thread in it.
        limit.allow(1 - threads)
        os.kill(daemon, signal.SIGKILL)
        # Three deaths within a minute would end the mount.
        until(lambda: kept.log().count("no thread can be started") >= 3, kept.log)
        limit.lift()
        assert read_all(kept.mnt) == whole


WHEN_TOLD = 'read -r _; exec "$@"'
"""For a shell: becomes a command once it reads a line."""


def at_the_limit(machine: Machine, more: int, *words: str | Path) -> tuple[int, str]:
    """The exit code, and the last line of stderr, of a command that may start so many processes and threads."""
    command = ["sh", "-c", WHEN_TOLD, "sh", *machine.command(*words)]
    with (
        subprocess.Popen(
            command, env=machine.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running,
        limited([running.pid]) as limit,
    ):
        limit.reach()
        limit.allow(more)
        _, told = running.communicate("\n", timeout=PATIENCE_S)
    return running.returncode, told.splitlines()[-1]


@pytest.mark.parametrize("more", [0, 1])
def test_a_mount_for_which_no_process_can_be_started_says_so(machine: Machine, source: Path, more: int) -> None:
    """The first that it starts looks at paths; the second is the keeper, whose daemon is the third."""
    code, line = at_the_limit(machine, more, "mount", "--keeper", source, machine.mnt)
    assert "no process can be started; raise the limit of processes" in line
    assert code != 0
    assert machine.nothing_is_left()
