"""Several processes of one machine that ask for the same mount, as the ranks of a job do: it is mounted once."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import PATIENCE_S, Machine, has_ended
from ports import reserve

from redoxfs.launch.runtime_paths import control_path

RANKS = 4

Rank = subprocess.Popen[str]


@pytest.fixture(autouse=True)
def same_sockets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.sockets))


def rank(machine: Machine, *arguments: str | Path) -> Rank:
    command = machine.command("mount", *arguments)
    return subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)


def outcome(rank: Rank) -> tuple[int, str]:
    with rank:
        _, err = rank.communicate(timeout=2 * PATIENCE_S)
        return rank.returncode, err


@contextmanager
def turn_is_taken(mountpoint: Path) -> Iterator[None]:
    """While this test has the turn, all others wait."""
    with open(control_path(mountpoint).with_suffix(".lock"), "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def line_of(rank: Rank, words: str) -> str:
    """The next line of a rank that begins with words."""
    assert rank.stderr is not None
    for line in rank.stderr:
        if line.startswith(words):
            return line
    raise AssertionError(f"ended without {words!r}")


@pytest.mark.parametrize("over", [False, True], ids=["beside", "over"])
def test_ranks_that_ask_at_once_get_one_mount(machine: Machine, source: Path, over: bool) -> None:
    paths = [source] if over else [source, machine.mnt]
    with turn_is_taken(paths[-1]):
        ranks = [rank(machine, *paths, "--memory", "64MiB") for _ in range(RANKS)]
        for each in ranks:
            line_of(each, "waiting for another redoxfs mount")
    ended = [outcome(each) for each in ranks]
    assert [code for code, _ in ended] == [0] * RANKS, ended
    assert sum("the daemon is pid" in err for _, err in ended) == 1
    assert sum("as another process of this machine asked for" in err for _, err in ended) == RANKS - 1
    assert machine.mounts() == [str(paths[-1])]
    assert machine.daemons() == machine.processes_of(paths[-1])
    machine.umount(paths[-1])


def test_a_rank_that_began_before_the_mount_answered_gets_it(machine: Machine, source: Path) -> None:
    command = ["sh", "-c", 'read line; exec "$@"', "sh", *machine.command("mount", source, machine.mnt)]
    slow = subprocess.Popen(command, env=machine.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    machine.ok("mount", source, machine.mnt)
    with slow:
        _, err = slow.communicate("\n", timeout=PATIENCE_S)
    assert slow.returncode == 0, err
    assert machine.daemons() == machine.processes_of()
    machine.ok("umount", machine.mnt)


def test_later_only_a_process_of_the_same_job_gets_the_mount(machine: Machine, source: Path) -> None:
    words: list[str | Path] = ["mount", source, machine.mnt, "--memory", "64MiB"]
    machine.ok(*words)
    assert "a live redoxfs mount is there already; to end it" in machine.refused(4, *words)
    machine.ok("umount", machine.mnt)
    machine.ok(*words, "--job", "7", "-o", "noatime,nosuid")
    # Equal options in other words, and options of the command alone.
    same: list[str | Path] = [source / "../data/.", machine.mnt, "--memory=64MiB", "--log", machine.folder / "log"]
    machine.environment["SLURM_JOB_ID"] = "7"
    done = machine.ok("mount", *same, "-o", "noatime", "-f")
    assert "is served at" in done.stderr
    machine.environment["SLURM_JOB_ID"] = "8"
    assert "with other options: --job=7 there, --job=8 here;" in machine.refused(4, "mount", *same, "-o", "noatime")
    assert machine.daemons() == machine.processes_of()
    machine.umount()


def test_ranks_with_other_options_are_refused_in_one_line(machine: Machine, source: Path) -> None:
    with turn_is_taken(machine.mnt):
        first, second = ranks = [
            rank(machine, source, machine.mnt, "--memory", size, *more)
            for size, *more in (["64MiB"], ["65MiB", "--seed", "1"])
        ]
        for each in ranks:
            line_of(each, "waiting for another redoxfs mount")
    (_, won), (code, err) = sorted([outcome(first), outcome(second)])
    assert "the daemon is pid" in won
    assert (code, err.count("\n")) == (4, 1)
    assert ", with other options: " in err
    assert all(words in err for words in ("--memory=64MiB", "--memory=65MiB --seed=1", f"redoxfs umount {machine.mnt}"))
    machine.umount()


def test_if_the_first_fails_each_reports_the_error(machine: Machine, source: Path) -> None:
    with turn_is_taken(machine.mnt):
        ranks = [rank(machine, source, machine.mnt, "--memory", "1kB") for _ in range(3)]
        for each in ranks:
            line_of(each, "waiting for another redoxfs mount")
    for each in ranks:
        code, err = outcome(each)
        assert code == 5
        assert "needs at least --memory" in err
    assert machine.nothing_is_left()


def test_processes_that_cannot_see_each_other_stack_no_mounts(machine: Machine, source: Path) -> None:
    """As those of two users, or of sessions with other runtime folders. The first waits for another node meanwhile."""
    ports = reserve(2)
    other, elsewhere = machine.folder / "other", machine.sockets / "elsewhere"
    other.mkdir()
    elsewhere.mkdir(mode=0o700)
    words = ["--nodes", ",".join(f"127.0.0.1:{port}" for port in ports)]
    first = rank(machine, source, machine.mnt, *words, "--node-rank", "0")
    line_of(first, f"waiting for 127.0.0.1:{ports[1]}")
    machine.environment["XDG_RUNTIME_DIR"] = str(elsewhere)
    machine.ok("mount", source, machine.mnt)
    second = rank(machine, source, other, *words, "--node-rank", "1")
    code, err = outcome(first)
    assert code == 4
    assert f"{machine.mnt}: another process has made a redoxfs mount there meanwhile" in err
    assert machine.mounts().count(str(machine.mnt)) == 1
    machine.ok("umount", machine.mnt)
    if outcome(second)[0] == 0:
        machine.umount(other)


@pytest.mark.parametrize(("how", "count"), [(signal.SIGKILL, RANKS), (signal.SIGTERM, 3), (signal.SIGINT, 3)])
def test_if_the_first_is_killed_the_next_one_mounts(
    machine: Machine, source: Path, how: signal.Signals, count: int
) -> None:
    """The first is killed while its daemon waits for another node, which comes up only then."""
    ports = reserve(2)
    other = machine.folder / "other"
    other.mkdir()
    words = ["--nodes", ",".join(f"127.0.0.1:{port}" for port in ports)]
    first = rank(machine, source, machine.mnt, *words, "--node-rank", "0")
    line_of(first, f"waiting for 127.0.0.1:{ports[1]}")
    ranks = [rank(machine, source, machine.mnt, *words, "--node-rank", "0") for _ in range(count - 1)]
    for each in ranks:
        line_of(each, "waiting for another redoxfs mount")
    # The commands, the daemon, and its keeper to be.
    assert len(machine.daemons()) == count + 2
    first.send_signal(how)
    assert outcome(first)[0] != 0
    machine.ok("mount", source, other, *words, "--node-rank", "1")
    ended = [outcome(each) for each in ranks]
    assert [code for code, _ in ended] == [0] * (count - 1), ended
    assert sum("the daemon is pid" in err for _, err in ended) == 1
    assert machine.daemons() == machine.processes_of(machine.mnt, other)
    machine.ok("umount", machine.mnt)
    machine.umount(other)


def test_a_killed_command_leaves_no_daemon(machine: Machine, source: Path) -> None:
    ports = reserve(2)
    words = ["--nodes", ",".join(f"127.0.0.1:{port}" for port in ports), "--node-rank", "0"]
    first = rank(machine, source, machine.mnt, *words)
    line_of(first, "waiting for 127.0.0.1")
    others = set(machine.daemons()) - {first.pid}
    assert len(others) == 2, "a daemon, and its keeper to be"
    pidfds = [os.pidfd_open(pid) for pid in others]
    first.kill()
    outcome(first)
    assert {has_ended(pidfd) for pidfd in pidfds} == {True}
    assert machine.nothing_is_left()
