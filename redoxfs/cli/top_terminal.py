"""The terminal while `redoxfs top` has it: the alternate screen, keys one by one, and signals as events.

Whatever ends the program, `Terminal.__exit__` leaves the terminal as it was: its settings, its cursor and its screen.
"""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Self

ALTERNATE, USUAL = "\x1b[?1049h", "\x1b[?1049l"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
HOME, TO_END_OF_LINE = "\x1b[H", "\x1b[K"

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALS = (*_ENDS, signal.SIGWINCH, signal.SIGTSTP)

_KEYS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1b": "escape"}


class EndedBySignal(BaseException):
    """A signal asks the program to end. ``number``: which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """The terminal of stdout, from `__enter__` to `__exit__`. Keys come from stdin, if that is a terminal.

    In the main thread, since it handles signals.
    """

    def __init__(self) -> None:
        self._keys: int | None = None
        self._former: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wakes, self._wake = os.pipe()
        for fd in (self._wakes, self._wake):
            os.set_blocking(fd, False)
        self._former_wake = -1

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, _note)
        self._former_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._give_back()
        finally:
            signal.set_wakeup_fd(self._former_wake)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            os.close(self._wakes)
            os.close(self._wake)

    def draw(self, lines: Sequence[str], height: int) -> None:
        """Replace the screen, of ``height`` lines, by these, in one write: it does not flicker.

        Each line is cleared before it is written. To clear behind one that is full would clear its last character.
        """
        rest = [""] * (height - len(lines))
        text = "\r\n".join(f"{TO_END_OF_LINE}{line}" for line in (*lines, *rest))
        sys.stdout.write(HOME + text)
        sys.stdout.flush()

    def wait(self, fds: Iterable[int], timeout_s: float) -> tuple[set[int], list[str]]:
        """Which of ``fds`` can be read, and the keys that were pressed: a character, or up, down, left, right, escape.

        It returns early at a key, and when the terminal has another size. Raises EndedBySignal.
        """
        keys = [] if self._keys is None else [self._keys]
        readable, _, _ = select.select([*fds, *keys, self._wakes], (), (), max(0.0, timeout_s))
        if self._wakes in readable:
            self._handle(os.read(self._wakes, 1 << 10))
        pressed = _pressed(os.read(self._keys, 1 << 10)) if self._keys in readable and self._keys is not None else []
        if pressed is None:
            # Nobody is at the other end.
            raise EndedBySignal(signal.SIGHUP)
        return set(readable), pressed

    def _handle(self, numbers: bytes) -> None:
        for number in numbers:
            if number in _ENDS:
                raise EndedBySignal(number)
        if signal.SIGTSTP in numbers:
            self._give_back()
            # Stopped here, until the shell continues it.
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()

    def _take(self) -> None:
        if sys.stdin.isatty():
            self._keys = sys.stdin.fileno()
            self._former = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        sys.stdout.write(ALTERNATE + HIDDEN)
        sys.stdout.flush()

    def _give_back(self) -> None:
        # Each step whatever became of those before; the terminal may be gone.
        with suppress(OSError, ValueError):
            sys.stdout.write(SHOWN + USUAL)
            sys.stdout.flush()
        if self._keys is not None and self._former is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._former)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The number comes through the pipe."""


def _pressed(text: bytes) -> list[str] | None:
    """The keys in what a terminal sent; None if it is gone."""
    if not text:
        return None
    if text in _KEYS:
        return [_KEYS[text]]
    return [chr(byte) for byte in text if byte < 0x80] if not text.startswith(b"\x1b") else []
