"""The terminal while `redoxfs top` has it: the alternate screen, keys one by one, and signals as events.

Whatever ends the program, the terminal is left as it was: its settings, its cursor and its screen.
"""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALS = (*_ENDS, signal.SIGWINCH, signal.SIGTSTP)

_KEYS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1b": "escape"}

_Source = TypeVar("_Source")


class EndedBySignal(BaseException):
    """A signal asks the program to end, or a key that stands for it. The argument is its number."""


class Terminal:
    """The terminal of stdout, from `take` to `give_back`. Keys come from stdin, if that is a terminal.

    In the main thread: it handles signals until the program ends.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._former: list[Any] | None = None
        self._wakes, wake = os.pipe()
        for fd in (self._wakes, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            # The number comes through the pipe.
            signal.signal(number, lambda *_: None)

    def take(self) -> None:
        if self._keys is not None:
            self._former = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._live.start()

    def give_back(self) -> None:
        """Leave it as it was, as far as `take` has come."""
        # Each step whatever became of those before; the terminal may be gone.
        with suppress(OSError, ValueError):
            self._live.stop()
        if self._keys is not None and self._former is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._former)

    def draw(self, screen: RenderableType) -> None:
        """Replace the screen in one write: it does not flicker."""
        self._live.update(screen, refresh=True)

    def wait(self, sources: Iterable[_Source], timeout_s: float) -> tuple[list[_Source], list[str]]:
        """Which of ``sources`` can be read, and the keys that were pressed: a character, or left, right, escape.

        It returns early at a key, and when the terminal has another size. Raises EndedBySignal.
        """
        sources = [*sources]
        watched: list[Any] = [*sources, self._wakes, *([] if self._keys is None else [self._keys])]
        readable, _, _ = select.select(watched, (), (), max(0.0, timeout_s))
        if self._wakes in readable:
            self._handle(os.read(self._wakes, 1 << 10))
        pressed: list[str] = []
        if self._keys in readable and self._keys is not None:
            text = os.read(self._keys, 1 << 10)
            if not text:
                # Nobody is at the other end.
                raise EndedBySignal(signal.SIGHUP)
            pressed = [_KEYS[text]] if text in _KEYS else list(text.decode("ascii", "ignore").partition("\x1b")[0])
            if "q" in pressed or "Q" in pressed:
                raise EndedBySignal(signal.SIGINT)
        return [source for source in sources if source in readable], pressed

    def _handle(self, numbers: bytes) -> None:
        for number in numbers:
            if number in _ENDS:
                raise EndedBySignal(number)
        if signal.SIGTSTP in numbers:
            self.give_back()
            # Stopped here, until the shell continues it.
            os.kill(os.getpid(), signal.SIGSTOP)
            self.take()
