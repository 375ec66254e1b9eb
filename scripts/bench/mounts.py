"""Mounts of every kind that the benchmarks compare; each is a context manager that leaves nothing behind.

A benchmark that imports this module ends on SIGTERM and SIGHUP as on Ctrl-C: its mounts and folders are removed.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = 60
HERE = Path(__file__).parent

ENDS = (signal.SIGTERM, signal.SIGHUP)

_main = os.getpid()


def _end(number: int, _: object) -> None:
    """End what the benchmark forked, and leave each of its `with` blocks, once. A process that it forked just ends."""
    if os.getpid() != _main:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.Signals(number))
    for each in ENDS:
        signal.signal(each, signal.SIG_IGN)
    # Python would wait for them at its end, and they may wait for this process.
    for child in multiprocessing.active_children():
        child.kill()
    raise SystemExit(128 + number)


for _each in ENDS:
    signal.signal(_each, _end)


def last_line(said: str) -> str:
    """The last line of what a program that failed has said."""
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it failed without a word"


class Served(NamedTuple):
    """A server in the foreground at ``mountpoint``. ``enter`` runs in its process before the command."""

    command: list[str]
    mountpoint: Path
    enter: Callable[[], None] | None = None


@contextmanager
def served_together(
    asked: Sequence[Served], environment: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run servers that may wait for each other."""
    with ExitStack() as ends:
        servers = []
        for command, mountpoint, enter in asked:
            mountpoint.mkdir(parents=True, exist_ok=True)
            # Not a pipe, which nobody would read while it serves: a server that says much would wait for that.
            said = ends.enter_context(tempfile.TemporaryFile())
            server = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=said, preexec_fn=enter, env=environment
            )
            ends.callback(_end_server, server, mountpoint)
            servers.append((server, said))
        deadline = time.monotonic() + patience_s
        while not all(os.path.ismount(each.mountpoint) for each in asked):
            for (server, said), each in zip(servers, asked, strict=True):
                if server.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise SystemExit(f"{each.command[0]} did not mount: {said.read().decode(errors='replace')}")
            time.sleep(0.02)
        yield [server for server, _ in servers]


def _end_server(server: subprocess.Popen[bytes], mountpoint: Path) -> None:
    ended = subprocess.run(["umount", "-l", mountpoint], check=False, stderr=subprocess.DEVNULL)
    if ended.returncode:
        # It is not mounted yet.
        server.terminate()
    try:
        server.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def served_by(
    command: list[str],
    mountpoint: Path,
    enter: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one server."""
    with served_together([Served(command, mountpoint, enter)], environment, patience_s) as (server,):
        yield server


@contextmanager
def background(command: list[str], mountpoint: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run `redoxfs mount` without -f. Yields the pid of the daemon, which must not change."""
    mountpoint.mkdir(exist_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{command[0]} did not mount: {done.stderr}")
        pid = stats(mountpoint)["pid"]
        yield pid
        if stats(mountpoint)["pid"] != pid:
            raise SystemExit("the daemon died")
    finally:
        subprocess.run([*command[:4], "umount", mountpoint], env=environment, check=False, stderr=subprocess.DEVNULL)


@contextmanager
def work_folder(below: Path | None = None) -> Iterator[Path]:
    """A folder for the files of a benchmark, and for what redoxfs keeps of them. None: in the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-", dir=below) as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder
        yield Path(folder)


def pack(source: Path, target: Path | str, *options: str, classes: str = "dir") -> None:
    command = [sys.executable, "-P", "-m", "redoxfs", "pack", "--classes", classes, *options, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pack: {done.stderr.strip()}")


def redoxfs(source: Path | str, mountpoint: Path, *options: str, python: str = sys.executable) -> list[str]:
    # -P: the installed redoxfs, not one that lies in the current directory
    return [python, "-P", "-m", "redoxfs", "mount", "-f", *options, str(source), str(mountpoint)]


def stock_pyfuse3(source: Path, mountpoint: Path, *options: str) -> list[str]:
    return [sys.executable, str(HERE / "stock_pyfuse3.py"), str(source), str(mountpoint), *options]


def stats(mountpoint: Path) -> dict[str, Any]:
    """The counters of a redoxfs mount."""
    return json.loads((mountpoint / ".redoxfs/stats.json").read_bytes())


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settle(pid: int) -> None:
    """Wait until a server is idle."""
    before = -1.0
    while before != (before := cpu_s(pid)):
        time.sleep(0.1)


def compiled(source: Path, folder: Path) -> Path:
    """The program of a C file that uses libfuse, built in ``folder``. Needs gcc, pkg-config and libfuse3-dev."""
    program = folder / source.stem
    if not program.exists():
        flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "fuse3"], text=True)
        subprocess.run(["gcc", "-O2", "-o", program, source, *flags.split()], check=True)
    return program


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process, in user space and in the kernel, also of threads that have ended."""
    # clock_getcpuclockid(3): the clock of another process, which counts nanoseconds.
    return time.clock_gettime(~pid << 3 | 2)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def machine() -> dict[str, str | int]:
    """The machine that a figure was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
    }
