"""Programs of the tests that start as forks of a Python that has imported what they import.

Most of what a short command costs is the start of its interpreter: a mount imports some 600 modules, and the tests
start a thousand of them. So `subprocess.Popen` is `Popen` in the tests. It hands a command of this Python to a
`fork_server`, and everything else to the operating system. What only a new process can show is started with `EXECUTED`
before it.

Each process that runs tests has servers of its own. They end with it.
"""

import array
import atexit
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr

from fork_server import HEARD, REAPED

EXECUTED = ("env",)
"""Before a command: starts a new process of it."""

OWN_MOUNTS = ("unshare", "--mount", "--propagation", "unchanged")
"""Before a command: gives it a copy of the mounts of its namespace, in which those that are shared there are too."""

SERVER = Path(__file__).with_name("fork_server.py")

MODULES = "redoxfs.*,PIL.Image"
MODULES_OF_TORCH = f"{MODULES},torch,torch.utils.data,redoxfs.torch"

ROOM_BYTES = 16 << 10
"""For a command line: what is longer is cut in /proc."""

CHANGES_REDOXFS = re.compile(rb"(import|from) +redoxfs(?!\.(torch|sampler|served)\b)")
"""In a program that imports more than the public modules: it may change them, before others import them."""

NEEDS_TORCH = re.compile(rb"(import|from) +(redoxfs\.)?torch\b")

STARTS_OTHERWISE = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "OMP_", "MKL_", "OPENBLAS_", "TZ")
"""Variables that a process looks at when it starts, or at its first import."""

SET_BY_ALL = {"OPENBLAS_NUM_THREADS": "1"}
"""Variables that redoxfs and the server set if they are not there."""

LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]


class Server:
    """A running fork server that has imported ``modules`` (as `fork_server.load` reads them)."""

    def __init__(self, modules: str) -> None:
        self._owner = os.getpid()
        self._environment = dict(os.environ)
        self._limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = REAL_POPEN(
                [sys.executable, SERVER, str(theirs.fileno()), modules, "." * ROOM_BYTES],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self.end)

    def end(self) -> None:
        # Forks run this too.
        if os.getpid() != self._owner:
            return
        # They have the socket as well: workers of a loader live on where a failed test's traceback keeps it.
        self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._process.wait()

    def starts_alike(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment would start as the server did."""
        return self._of_start(environment) == self._of_start(self._environment)

    def fork(self, asked: dict[str, Any], descriptors: list[int]) -> tuple[int, socket.socket]:
        """The pid, and the socket that tells the end."""
        limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        asked["limits"] = [(limit, values) for limit, values in limits.items() if values != self._limits[limit]]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            passed = array.array("i", [theirs.fileno(), *descriptors])
            self._control.sendmsg([json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        told = ours.recv(4)
        assert told, "the fork server has ended; its last words are on stderr"
        return int.from_bytes(told, "little"), ours

    @staticmethod
    def _of_start(environment: Mapping[str, str]) -> dict[str, str]:
        """``environment`` may have what the program sets itself, since it ran in this process before."""
        found = {name: value for name, value in environment.items() if name.startswith(STARTS_OTHERWISE)}
        return SET_BY_ALL | found


_servers: dict[str, Server] = {}


def server(modules: str) -> Server:
    """The one of this process; the first request for it starts it."""
    if modules not in _servers:
        _servers[modules] = Server(modules)
    return _servers[modules]


def program(command: list[str]) -> bytes | None:
    """The text of the Python program that a fork can be; None if it must be a new process."""
    if command[:1] != [sys.executable]:
        return None
    match command[1:]:
        case ["-m", "redoxfs", *_]:
            return b""
        case ["-c", code, *_]:
            text = os.fsencode(code)
        case [file, *_] if file.endswith(".py"):
            text = Path(file).read_bytes()
        case _:
            return None
    return None if CHANGES_REDOXFS.search(text) else text


def entered(command: list[str]) -> tuple[str | None, bool, list[str]]:
    """The namespace that a command enters, whether it makes one of mounts, and the command that it runs there."""
    namespace, own_mounts = None, False
    match command:
        case ["nsenter", word, *rest] if word.startswith(("--net=", "--mount=")):
            namespace, command = word.partition("=")[2], rest[1:] if rest[:1] == ["--"] else rest
    if command[: len(OWN_MOUNTS)] == [*OWN_MOUNTS]:
        own_mounts, command = True, command[len(OWN_MOUNTS) :]
    return namespace, own_mounts, command


class Popen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen`, which forks a command of this Python if it can.

    It overrides how a process starts and how its end is learned. Both are private in the base class, and the same from
    Python 3.11 to 3.14.
    """

    _end: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        close_fds, cwd, env, shell = others[0], others[2], others[3], others[6]
        pass_fds: Sequence[int] = others[1]
        pipes: Sequence[int] = others[7:13]
        restore_signals, gid, gids, uid, umask, new_session, group = others[13:]
        command: list[str] = []
        if not shell and not isinstance(args, (str, bytes, os.PathLike)):
            command = [os.fsdecode(word) for word in args]
        namespace, own_mounts, command = entered(command)
        variables = os.environ if env is None else env
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
        text = program(command)
        plain = (executable, preexec_fn, gid, gids, uid, umask, group) == (None, None, None, None, None, -1, -1)
        forks = None
        if text is not None and plain and close_fds and restore_signals:
            forks = server(MODULES_OF_TORCH if NEEDS_TORCH.search(text) else MODULES)
        if forks is None or not forks.starts_alike(environment):
            super()._execute_child(args, executable, preexec_fn, *others)  # type: ignore[misc]
            return
        # What is not redirected is this process's own.
        streams: list[int] = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        directory = os.open(cwd or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            self.pid, self._end = forks.fork(
                {
                    "command": command,
                    "namespace": namespace,
                    "own_mounts": own_mounts,
                    "new_session": new_session,
                    "targets": [0, 1, 2, *pass_fds],
                    "umask": own_umask(),
                    "environment": environment,
                    "ignores_interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
                    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
                },
                [directory, *streams, *pass_fds],
            )
        finally:
            os.close(directory)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        try:
            told = self._end.recv(4, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        assert told, "the fork server has ended; its last words are on stderr"
        with self._end:
            self._end.send(HEARD)
            self._end.recv(len(REAPED))
        return self.pid, int.from_bytes(told, "little")

    def _internal_poll(self, *arguments: Any, **names: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*arguments, **names)  # type: ignore[misc]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def own_umask() -> int:
    """Read without a change of it, which other threads would see."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)[1], 8)  # type: ignore[index]


REAL_POPEN = subprocess.Popen


def take_over() -> None:
    """From now on `subprocess.Popen` and `subprocess.run` of this process fork."""
    subprocess.Popen = Popen  # type: ignore[misc]
