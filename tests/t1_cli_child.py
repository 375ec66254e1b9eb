"""What a command forks: a Ctrl-C at that very moment is not lost, what was forked ends, and is waited for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S, completed

# What is raised in a hook around a fork Python can only print.
INTERRUPTED = """
import ctypes, os, signal, sys, time
from pathlib import Path
from redoxfs.launch.background import start
from redoxfs.launch.deadline import run_in_child
from redoxfs.cli.exits import described, line_of
from redoxfs.cli.jobs import end_as_by_ctrl_c

# A thread that does not block signals, as BLAS has, gets what the main thread blocks. Python does not know of this one.
ended = ctypes.CDLL(None).pause
thread = ctypes.c_ulong()
assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, ended, None) == 0

def interrupt():
    os.kill(os.getpid(), getattr(signal, sys.argv[4]))
    # Only for the signal to arrive here, where it does in most runs; a later one must have the same end.
    time.sleep(0.1)

os.register_at_fork(**{sys.argv[1]: interrupt})
pid = Path(sys.argv[2])

def work(*_):
    pid.write_text(str(os.getpid()))
    while True:
        signal.pause()

def say(line):
    raise AssertionError(line)

log = os.open(os.devnull, os.O_WRONLY)
end_as_by_ctrl_c()
try:
    if sys.argv[3] == "ask":
        run_in_child(work, 600)
    else:
        start(work, log_fd=log, log_path=Path("log"), timeout_s=600, say=say, describe=described)
except KeyboardInterrupt as stop:
    print(line_of(stop))
"""


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
@pytest.mark.parametrize(("how", "end"), [("ask", "SIGINT"), ("start", "SIGINT"), ("ask", "SIGTERM")])
def test_an_interrupt_at_a_fork_ends_parent_and_child(tmp_path: Path, hook: str, how: str, end: str) -> None:
    pid = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, hook, str(pid), how, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # A child that stays holds the pipes open.
            told, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            child = pid.read_text() if pid.exists() else ""
            if child and Path(f"/proc/{child}").exists():
                os.kill(int(child), signal.SIGKILL)
    assert (told, errors, process.returncode) == ("redoxfs: interrupted\n", "", 0)


def test_a_command_waits_for_its_children_where_its_parent_ignores_the_ends_of_children(tmp_path: Path) -> None:
    asked = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", asked, sys.executable, "-m", "redoxfs", "status", str(tmp_path)]
    done = completed(command)
    assert f"{tmp_path}: no redoxfs mount is there" in done.stderr


ENDED = """
import os, signal, sys
from functools import partial
from redoxfs.launch.deadline import Child, run_in_child

def work():
    print(os.getpid(), flush=True)
    signal.pause()

run_in_child(work, 600) if sys.argv[1] == "one" else Child().call(partial(work), 600)
"""


@pytest.mark.parametrize("calls", ["one", "several"])
def test_a_call_that_hangs_ends_with_a_command_that_is_killed(calls: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ENDED, calls], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = process.stdout.readline()
        process.kill()
        try:
            # A child that stays holds the pipe open.
            told, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.kill(int(child), signal.SIGKILL)
            raise
    assert child
    assert told == b""
