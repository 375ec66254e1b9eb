"""A mount that ends with another process, its owner, however that one ends.

`Supervised` starts a supervisor, which runs `redoxfs mount --foreground` as its child:

- If the owner ends or is killed, the supervisor finds its stdin at the end of file, and ends the daemon.
- If the daemon is killed, the supervisor clears the dead mount that it left, and tells the owner.
- If the supervisor is killed, the kernel sends the daemon SIGTERM (PR_SET_PDEATHSIG), which ends it cleanly.

So a mount stays behind only if the supervisor and the daemon are killed together with SIGKILL; the next mount there
clears it. The supervisor is not a child of its owner and has a session of its own, because an engine may kill the
children and the process group of a worker that ends, with SIGKILL. It imports nothing but the standard library and
what it needs to clear a mount, and has a single thread.

It writes JSON lines to stdout: ``{"say": line}``; ``{"ready": true}`` when the mount answers; and last ``{"code",
"line"}``, when the daemon has ended and nothing of the mount is left. ``code`` is 0 if the daemon ended as asked.
"""

import errno
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from redoxfs.launch.errors import CommandError, MountpointError
from redoxfs.launch.path_status import STALE_ERRORS, clear_stale, path_status
from redoxfs.launch.runtime_paths import control_path, remove_dead_sockets
from redoxfs.linux.detach import detach
from redoxfs.linux.ends import end_of
from redoxfs.linux.parent import signal_at_the_parents_end

# The prefixes of two lines of `redoxfs mount`: the reason why it ended, and the line that says that the mount answers.
_REASON = "redoxfs: "
_ANSWERS = "to end it: "

# A daemon gives waiting requests a second and then ends. One that takes longer than this hangs.
_END_WAIT_S = 10.0

# After SIGKILL, unless the kernel holds the process.
_KILLED_WAIT_S = 5.0

# For a look at the mountpoint of a daemon that has ended.
_LOOK_WAIT_S = 5.0

# For the supervisor of an owner that has died: to notice that, and to finish, which takes all of the waits above.
_ALIVE_WAIT_S = 2.0
_BEFORE_WAIT_S = 25.0
_RETRY_S = 0.1

Say = Callable[[str], None]


class Supervised:
    """The owner's side. Any thread may call it."""

    def __init__(self, words: Sequence[str], mountpoint: str, say: Say) -> None:
        """Start `redoxfs mount` with ``words``, its arguments, in the background. ``say`` gets its lines.

        Folders that are missing on the way to ``mountpoint`` are made.
        """
        self.code: int | None = None  # of the daemon, once nothing of the mount is left
        self.line = ""
        self.is_ready = False
        self._say = say
        self._changed = threading.Condition()
        process = subprocess.Popen(
            [sys.executable, "-m", "redoxfs.launch.supervisor", mountpoint, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._alive, self._told = process.stdin, process.stdout
        # Its first process ends at once.
        process.wait()
        threading.Thread(target=self._listen, daemon=True, name="redoxfs supervisor").start()

    def wait_ready(self) -> None:
        """Wait until the mount answers, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_ready or self.code is not None)

    def wait_end(self) -> None:
        """Wait until nothing of the mount is left."""
        with self._changed:
            self._changed.wait_for(lambda: self.code is not None)

    def end(self) -> None:
        """Have the mount ended, also if programs use it. Returns at once."""
        with suppress(OSError):
            self._alive.close()

    def _listen(self) -> None:
        code, line = 1, "its supervisor has ended"
        with self._told:
            for text in self._told:
                message = json.loads(text)
                if "say" in message:
                    self._say(message["say"])
                elif "code" in message:
                    code, line = message["code"], message["line"]
                else:
                    with self._changed:
                        self.is_ready = True
                        self._changed.notify_all()
        # At the end of the file the supervisor is gone too.
        with self._changed:
            self.code, self.line = code, line
            self._changed.notify_all()


# The supervisor's side


def main() -> None:
    """Be the supervisor: MOUNTPOINT and the arguments of `redoxfs mount` are this process's arguments."""
    mountpoint, *words = sys.argv[1:]
    if os.fork():
        # The owner gets the second process as no child.
        os._exit(0)
    os.chdir("/")
    try:
        code, line = _supervise(Path(mountpoint), words)
    except CommandError as error:
        # As in `redoxfs.cli.exits`: whatever cannot be prepared here is about MOUNTPOINT.
        code, line = 4, str(error)
    _tell({"code": code, "line": line})


def _supervise(mountpoint: Path, words: Sequence[str]) -> tuple[int, str]:
    """Run the daemon to its end and remove what it leaves; its exit code and last reason."""
    is_answering = False

    def on_ready() -> None:
        nonlocal is_answering
        is_answering = True
        _tell({"ready": True})

    with _only_one(mountpoint) as lock:
        _make(mountpoint)
        process = subprocess.Popen(
            [sys.executable, "-m", "redoxfs", "mount", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # That of a service that started the engine is no business of one mount.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid()),  # sound, as there is a single thread
        )
        try:
            return _watch(process, on_ready)
        finally:
            if lock >= 0:
                os.write(lock, b"ending")
            _end(process)
            # Else another owner was alive, and what is there is that one's.
            if lock >= 0 or is_answering:
                _clear(mountpoint, is_own=is_answering)


def _end_with_parent(parent: int) -> Callable[[], None]:
    def setting() -> None:
        signal_at_the_parents_end(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return setting


def _watch(process: "subprocess.Popen[bytes]", on_ready: Callable[[], None]) -> tuple[int, str]:
    """Pass its lines on until it has ended, or is asked to, or the owner has ended."""
    assert process.stderr is not None
    ended = end_of(process.pid)
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    reason = ""
    with selectors.DefaultSelector() as ready:
        for fd in (0, asked, ended, process.stderr.fileno()):
            ready.register(fd, selectors.EVENT_READ)
        heard = b""
        while True:
            fds = {key.fd for key, _ in ready.select()}
            if process.stderr.fileno() in fds:
                part = os.read(process.stderr.fileno(), 1 << 16)
                if not part:
                    ready.unregister(process.stderr)
                *lines, heard = (heard + part).split(b"\n")
                for text in (line.decode(errors="backslashreplace") for line in lines):
                    if text.startswith(_REASON):
                        reason = text.removeprefix(_REASON)
                    elif text.startswith(_ANSWERS):
                        on_ready()
                    else:
                        _tell({"say": text})
            elif ended in fds:
                return _ending(process.wait(), reason)
            elif 0 in fds or asked in fds:
                # The owner never writes, so this is the end of file.
                return 0, "ended with its owner"


def _ending(status: int, reason: str) -> tuple[int, str]:
    if status < 0:
        return 128 - status, f"its daemon was killed ({signal.Signals(-status).name})"
    return status, reason or f"its daemon ended with {status}" if status else "it was unmounted"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the daemon, also one that hangs."""
    for end, wait_s in ((process.terminate, _END_WAIT_S), (process.kill, _KILLED_WAIT_S)):
        end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


def _clear(mountpoint: Path, *, is_own: bool) -> None:
    """Remove the mount and the socket of a daemon that was killed. A live mount is another's, and stays.

    So does one that does not answer, unless the daemon here has served it (``is_own``): another's may be paused.
    """
    found = path_status(str(mountpoint), _LOOK_WAIT_S)
    with suppress(CommandError, OSError):
        if found.is_stale and found.is_our_root:
            clear_stale(found.path)
        elif is_own and found.is_our_root and found.seen.error == errno.ETIMEDOUT:
            detach(found.path)
    remove_dead_sockets(found.path)


def _make(mountpoint: Path) -> None:
    """Make the folders that are missing. Raises MountpointError.

    They stay. On a filesystem that nodes share, removing the folder would end the mounts of other nodes on it.
    """
    try:
        # Path.mkdir would ask the mount that is there whether it is a directory, and wait for a daemon that hangs.
        os.makedirs(mountpoint)
    except OSError as failure:
        if failure.errno in (errno.EEXIST, *STALE_ERRORS):
            return  # `redoxfs mount` clears a dead mount, and reports what else is there
        raise MountpointError(f"MOUNTPOINT {mountpoint}: cannot be made: {failure.strerror}") from None


@contextmanager
def _only_one(mountpoint: Path) -> Iterator[int]:
    """Wait for the supervisor of an owner that has died, which may still be ending its mount there.

    An engine restarts such an owner at once. Yields the descriptor of a file that is locked, and not empty once the
    mount is being ended. It is negative if another owner is alive: `redoxfs mount` will refuse the mount.
    """
    path = control_path(path_status(str(mountpoint), _LOOK_WAIT_S).path).with_suffix(".owner")
    start = time.monotonic()
    while (lock := _locked(path, time.monotonic() - start)) is None:
        time.sleep(_RETRY_S)
    try:
        yield lock
    finally:
        if lock >= 0:
            path.unlink(missing_ok=True)
            os.close(lock)


def _locked(path: Path, waited_s: float) -> int | None:
    """A descriptor of the locked file; None: try again; negative: another owner is alive."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(lock)):
            return lock
    except BlockingIOError:
        if waited_s > (_BEFORE_WAIT_S if os.fstat(lock).st_size else _ALIVE_WAIT_S):
            os.close(lock)
            return -1
    os.close(lock)
    return None


def _tell(message: dict[str, object]) -> None:
    with suppress(OSError):  # the owner has ended
        os.write(1, json.dumps(message).encode("ascii") + b"\n")


if __name__ == "__main__":
    main()
