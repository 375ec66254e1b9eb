"""A fork of the server is what a new process of the same command would be."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forks import EXECUTED

from redoxfs.cli import main

SHOW = """
import fcntl, json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path[0], "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "cmdline": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"), "comm": open("/proc/self/comm").read(),
    "exe": os.readlink("/proc/self/exe"),
    "cwd": os.getcwd(), "environment": dict(os.environ), "umask": os.umask(0),
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
    "descriptors": [number for number in range(3, 200) if os.path.exists(f"/proc/self/fd/{number}")],
    "interrupt": repr(signal.getsignal(signal.SIGINT)), "pipe": repr(signal.getsignal(signal.SIGPIPE)),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "leader": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpid(), "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
    "streams": [(each.encoding, each.errors, each.line_buffering, each.newlines) for each in (sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
}))
"""


def shown(*before: str, command: list[str], **how: object) -> dict[str, object]:
    done = subprocess.run([*before, *command], capture_output=True, text=True, check=True, **how)  # type: ignore[call-overload]
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["code", "file"])
def test_a_fork_is_as_a_new_process_of_the_same_command(tmp_path: Path, form: str) -> None:
    file = tmp_path / "shown.py"
    file.write_text(SHOW)
    command = [sys.executable, *(["-c", SHOW] if form == "code" else [str(file)]), "an argument", ""]
    read, write = os.pipe()
    before_mask, before_limit = os.umask(0o27), resource.getrlimit(resource.RLIMIT_NOFILE)
    before_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before_limit[0] - 1, before_limit[1]))
        how = {
            "cwd": tmp_path,
            "env": {**os.environ, "OWN": "ä"},
            "input": "words",
            "pass_fds": [read],
            "start_new_session": True,
        }
        assert shown(command=command, **how) == shown(*EXECUTED, command=command, **how)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before_blocked)
        resource.setrlimit(resource.RLIMIT_NOFILE, before_limit)
        os.umask(before_mask)
        os.close(read)
        os.close(write)


def test_commands_are_forks_after_the_program_ran_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sets in the environment stays for all tests after it."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    show = "import sys; print('redoxfs.cli' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", show], text=True) == "True\n"
    assert main(["status", "/nowhere"]) != 0
    assert "OPENBLAS_NUM_THREADS" in os.environ
    assert subprocess.check_output([sys.executable, "-c", show], text=True) == "True\n"
    changed = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    assert subprocess.check_output([sys.executable, "-c", show], text=True, env=changed) == "False\n"


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import sys; print(end='half a line', file=sys.stderr); raise SystemExit", 0, "half a line"),
        ("import atexit, sys; atexit.register(lambda: print('late', file=sys.stderr))", 0, "late\n"),
        (
            "import sys, threading\nthreading.Thread(target=lambda: print('other', file=sys.stderr)).start()",
            0,
            "other\n",
        ),
        ("import os; os._exit(7)", 7, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_a_fork_ends_as_a_new_process(code: str, ends: int, says: str) -> None:
    for before in ((), EXECUTED):
        done = subprocess.run([*before, sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (ends, says)


@pytest.mark.parametrize(("code", "ends"), [("1 / 0", 1), ("raise KeyboardInterrupt", -signal.SIGINT)])
def test_an_uncaught_exception_ends_a_fork_with_its_traceback(code: str, ends: int) -> None:
    for before in ((), EXECUTED):
        done = subprocess.run([*before, sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == ends
        assert done.stderr.startswith("Traceback")


def test_a_fork_can_be_waited_for_and_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.terminate()
        assert process.wait() == process.poll() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_fork_starts_with_no_module_that_a_program_may_want_to_change() -> None:
    """It would be too late: what imports it has been imported."""
    code = "import sys; before = set(sys.modules); import redoxfs.node.loader; print('redoxfs.node' in before)"
    for before in ((), EXECUTED):
        assert subprocess.check_output([*before, sys.executable, "-c", code], text=True) == "False\n"


def test_workers_that_are_spawned_find_the_main_module_of_their_command(tmp_path: Path) -> None:
    file = tmp_path / "spawns.py"
    file.write_text(
        "import multiprocessing\n"
        "def name(): print(__name__, __file__)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=name)\n"
        "    process.start(), process.join()\n"
    )
    for before in ((), EXECUTED):
        assert subprocess.check_output([*before, sys.executable, file], text=True) == f"__mp_main__ {file}\n"
