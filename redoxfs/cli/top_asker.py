"""Asks one mount for its statistics, from a process of its own.

A mount that hangs blocks whoever looks at it, in the kernel, where not even SIGKILL ends the wait. So the screen never
looks: for each mount it has a child, which it asks by a byte on a pipe, and which answers with a line of JSON when it
can. The child asks the daemon over its control socket. Only if nobody answers there does it look at the mount, to say
why. Make these before the process has a second thread.
"""

import errno
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from redoxfs.cli.top_view import State
from redoxfs.launch.control import send_control
from redoxfs.launch.control_files import WRONG, parsed_stats, plain_stats, read_control_at
from redoxfs.launch.errors import CommandError
from redoxfs.launch.forks import forked
from redoxfs.launch.path_status import path_status
from redoxfs.launch.runtime_paths import control_path, control_path_of_daemon
from redoxfs.linux.parent import signal_at_the_parents_end

_ASK = b"?"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a mount answered, ``at_s`` by the monotonic clock. ``stats`` None: nothing, for a ``reason``."""

    at_s: float
    state: State
    reason: str = ""
    stats: dict[str, Any] | None = None


class Asker:
    """The child that asks one mount.

    Args:
        path: the mountpoint, or the socket that `redoxfs serve` received its mount from.
        is_socket: which of them.
        timeout_s: how long the child waits for an answer.

    ``fd``         readable when there is something for `answers`
    ``asked_at_s`` since when an answer is due; None if none is
    """

    def __init__(self, path: Path, *, is_socket: bool, timeout_s: float) -> None:
        self.path = path
        self._is_socket = is_socket
        self._timeout_s = timeout_s
        self.asked_at_s: float | None = None
        self._text = b""
        self._pid, self.fd, self._asks = self._start()

    def ask(self) -> None:
        """Ask for an answer, unless one is due."""
        if self.asked_at_s is not None:
            return
        self.asked_at_s = time.monotonic()
        with suppress(BrokenPipeError):
            os.write(self._asks, _ASK)

    def answer(self) -> Answer | None:
        """What came, if it is a whole answer."""
        part = os.read(self.fd, 1 << 20)
        if not part:
            raise ChildProcessError(f"{self.path}: the process that asks it has ended")
        self._text += part
        line, end, rest = self._text.partition(b"\n")
        if not end:
            return None
        self._text, self.asked_at_s = rest, None
        told = json.loads(line)
        return Answer(told["at_s"], State[told["state"]], told["reason"], told["stats"])

    def close(self) -> None:
        """End the child. One that the kernel holds ends when the kernel lets it go."""
        os.close(self._asks)
        os.close(self.fd)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> tuple[int, int, int]:
        """The child, where its answers come from, and where to ask."""
        asks, ask = os.pipe()
        answers, answer = os.pipe()
        parent = os.getpid()

        def work() -> int:
            os.close(ask)
            os.close(answers)
            self._child(parent, asks, answer)
            return 0

        try:
            with forked(work, signal.SIGKILL) as child:
                return child, answers, ask
        except BaseException:
            os.close(ask)
            os.close(answers)
            raise
        finally:
            os.close(asks)
            os.close(answer)

    def _child(self, parent: int, asks: int, answer: int) -> None:
        signal.set_wakeup_fd(-1)
        # Keys of the terminal are for the screen. It ends this process by closing the pipe, or by its own end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal_at_the_parents_end(signal.SIGKILL)
        while os.getppid() == parent and os.read(asks, 1):
            told = self._ask()
            text = json.dumps(
                {"at_s": told.at_s, "state": told.state.name, "reason": told.reason, "stats": told.stats}
            ).encode()
            _write_all(answer, text + b"\n")

    def _ask(self) -> Answer:
        find = control_path if self._is_socket else control_path_of_daemon
        try:
            answer = send_control(find(self.path), "stats", timeout_s=self._timeout_s)
            del answer["ok"]
            return Answer(time.monotonic(), State.SERVES, stats=plain_stats(answer))
        except TimeoutError:
            return self._silent()
        except (OSError, CommandError, *WRONG) as failure:
            if self._is_socket:
                return Answer(time.monotonic(), State.ENDED, f"no redoxfs serves the mount of this socket ({failure})")
        return self._look()

    def _look(self) -> Answer:
        """The mount itself, where nobody listens: another user's, one without a daemon, or none."""
        seen = path_status(os.fspath(self.path), self._timeout_s)
        if not seen.is_our_root:
            return Answer(time.monotonic(), State.ENDED, "the mount has ended")
        if seen.is_stale:
            return Answer(time.monotonic(), State.DEAD, f"its daemon was killed; to clear: redoxfs umount {self.path}")
        if seen.seen.error == errno.ETIMEDOUT:
            return self._silent()
        try:
            text = read_control_at(self.path, "stats.json", self._timeout_s)
            return Answer(time.monotonic(), State.SERVES, stats=parsed_stats(text))
        except TimeoutError:
            return self._silent()
        except OSError as failure:
            return Answer(time.monotonic(), State.REFUSED, failure.strerror or str(failure))
        except WRONG:
            # The daemon ended while it answered, and the next look tells how; or it is none.
            return Answer(time.monotonic(), State.REFUSED, "its statistics are not those of a redoxfs mount")

    def _silent(self) -> Answer:
        return Answer(time.monotonic(), State.SILENT, f"the daemon did not answer within {self._timeout_s:g} s")


def _write_all(fd: int, text: bytes) -> None:
    while text:
        text = text[os.write(fd, text) :]
