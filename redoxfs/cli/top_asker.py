"""Asks one mount for its statistics, from a process of its own.

A mount that hangs blocks whoever looks at it, in the kernel, where not even SIGKILL ends the wait. So the screen never
looks: for each mount it has a child, which it asks over a socket, and which answers when it can. The child asks the
daemon over its control socket. Only if nobody answers there does it look at the mount, to say why. Every few seconds it
also tells the verdict, by itself, so that the figures never wait for it. Make these before the process has a second
thread.
"""

import json
import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Self

from redoxfs.cli.status import read_stats
from redoxfs.cli.top_view import State
from redoxfs.doctor.histories import received_verdict, verdict_at
from redoxfs.doctor.result import Result
from redoxfs.launch.control import send_control
from redoxfs.launch.errors import CommandError, DaemonError, MountpointError
from redoxfs.launch.forks import forked
from redoxfs.launch.path_status import path_status
from redoxfs.launch.runtime_paths import control_path, control_path_of_daemon
from redoxfs.linux.parent import signal_at_the_parents_end

VERDICT_EVERY_S = 5.0
"""A verdict speaks of a lap or of the time since one, so it changes slowly. A history is longer than statistics."""

Told = dict[str, Any] | str
"""The statistics of a mount, or why there are none."""


class Asker:
    """The child that asks one mount.

    Args:
        path: the mountpoint, or the socket that `redoxfs serve` received its mount from.
        is_socket: which of them.
        timeout_s: how long the child waits for an answer.

    ``asked_at_s`` since when an answer is due; None if none is
    """

    def __init__(self, path: Path, *, is_socket: bool, timeout_s: float) -> None:
        self._path, self._is_socket, self._timeout_s = path, is_socket, timeout_s
        self.asked_at_s: float | None = None
        parent = os.getpid()
        self._connection, theirs = Pipe()

        def work() -> int:
            self._connection.close()
            self._answer(parent, theirs)
            return 0

        with theirs, forked(work, signal.SIGKILL) as self._pid:
            pass

    def fileno(self) -> int:
        """Readable when there is something for `answer`."""
        return self._connection.fileno()

    def ask(self) -> None:
        """Ask for an answer, unless one is due."""
        if self.asked_at_s is None:
            self.asked_at_s = time.monotonic()
            with suppress(OSError):
                self._connection.send(None)

    def answer(self) -> tuple[float, State, Told] | Result:
        """What came, and when it was so, by the monotonic clock; or a verdict. Raises EOFError, OSError: the child has
        ended."""
        answer: tuple[float, State, Told] | Result = self._connection.recv()
        if not isinstance(answer, Result):
            self.asked_at_s = None
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the child. One that the kernel holds ends when the kernel lets it go."""
        self._connection.close()
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, os.WNOHANG)

    # In the child

    def _answer(self, parent: int, connection: Connection) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        # Keys of the terminal are for the screen. It ends this process by closing the socket, or by its own end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal_at_the_parents_end(signal.SIGKILL)
        judge, judge_at_s = received_verdict if self._is_socket else verdict_at, 0.0
        with suppress(EOFError, OSError):
            while os.getppid() == parent:
                connection.recv()
                state, told = self._ask()
                connection.send((time.monotonic(), state, told))
                if state is State.SERVES and time.monotonic() >= judge_at_s:
                    connection.send(judge(self._path, self._timeout_s))
                    judge_at_s = time.monotonic() + VERDICT_EVERY_S

    def _ask(self) -> tuple[State, Told]:
        find = control_path if self._is_socket else control_path_of_daemon
        with suppress(OSError, ValueError, CommandError):
            answer = send_control(find(self._path), "stats", timeout_s=self._timeout_s)
            answer.pop("ok", None)
            return State.SERVES, answer
        # Nobody listens: it is another user's mount, one without a daemon, or none.
        path = os.fspath(self._path)
        try:
            return State.SERVES, dict(json.loads(read_stats(path, self._timeout_s)[1]))
        except DaemonError as failure:
            return State.ENDED if self._is_socket else State.SILENT, str(failure)
        except MountpointError as failure:
            found = path_status(path, self._timeout_s)
            state = State.DEAD if found.is_stale else State.REFUSED
            return state if found.is_our_root else State.ENDED, str(failure)
        except (RecursionError, TypeError, ValueError):
            # The daemon ended while it answered; the next look tells how.
            return State.REFUSED, f"{path}: its statistics are no JSON object"
