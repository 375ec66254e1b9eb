"""The session loop on a real mount under load: it ends cleanly, and starves nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from images import make_images
from machine import Machine
from patience import PATIENCE_S, until

from redoxfs.launch.control import send_control
from redoxfs.linux.detach import detach

HAMMER = """
import os, random, sys
readers, *paths = sys.argv[1:]
for _ in range(int(readers)):
    if os.fork() == 0:
        os.write(1, b"reading\\n")
        while True:
            try:
                with open(random.choice(paths), "rb") as file:
                    file.read()
            except OSError as error:
                sys.exit(f"ended: {error.errno}")
sys.exit(min(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(int(readers))))
"""
"""So many readers, and their parent, whose exit code is the least of theirs."""


@pytest.fixture
def root(machine: Machine, tmp_path: Path) -> Path:
    source = tmp_path / "data"
    make_images(source, {"cat": 100, "dog": 100})
    machine.ok("mount", source, machine.mnt, "--classes", "dir", "--chunk-size", "4", "-o", "direct_io")
    return machine.mnt


@contextmanager
def hammered(root: Path, readers: int = 4) -> Iterator[subprocess.Popen[str]]:
    """Processes that read without a pause, and end with the block. Their parent ends when the last of them does."""
    command = [sys.executable, "-c", HAMMER, str(readers), *map(str, root.glob("train/*/*.png"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        try:
            for _ in range(readers):
                assert parent.stdout.readline() == "reading\n"
            yield parent
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            # It ends with the last process that has the other end.
            parent.stdout.read()


def has_more_opens(machine: Machine, before: int) -> bool:
    return int(machine.stats()["opens"]) > before


def test_other_tasks_run_under_load(machine: Machine, root: Path) -> None:
    with hammered(root):
        for _ in range(20):
            before = machine.stats()["opens"]
            assert len(os.listdir(root / "train/cat")) == 100
            until(partial(has_more_opens, machine, before), "no program opens a file")
        (socket,) = machine.sockets.rglob("*.sock")
        send_control(socket, "stop", timeout_s=PATIENCE_S)
        until(lambda: not machine.daemons(), machine.daemons)
    assert machine.nothing_is_left()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_the_mount_cleanly(machine: Machine, root: Path, how: signal.Signals) -> None:
    with hammered(root) as readers:
        machine.kill(how)
        assert readers.wait(PATIENCE_S) != 0
    assert machine.nothing_is_left()
    assert "Traceback" not in machine.log()


def test_a_lazy_unmount_ends_with_the_last_reader(machine: Machine, root: Path) -> None:
    with hammered(root):
        detach(root)
    until(lambda: not machine.daemons(), machine.daemons)
    assert machine.nothing_is_left()
    assert machine.log() == ""


def waiting_opens(machine: Machine) -> int:
    status = machine.ok("status", "--json", "--timeout", str(PATIENCE_S), machine.mnt)
    return int(json.loads(status.stdout)["waiting_opens"])


def test_readers_killed_in_a_request_delay_no_other(machine: Machine, root: Path) -> None:
    for _ in range(15):
        with hammered(root, readers=6):
            pass
        # The daemon finds out a moment later that nobody waits for an answer. The command fails if none comes.
        until(lambda: waiting_opens(machine) == 0, "opens that nobody waits for")
    machine.umount(root)


def test_mounts_come_and_go_many_times(machine: Machine, root: Path) -> None:
    source = root.parent / "data"
    for _ in range(10):
        with hammered(root):
            pass
        machine.umount(root)
        machine.ok("mount", source, root, "--classes", "dir", "--chunk-size", "4")
