"""`redoxfs top`: one screen with what mounts do, updated every second.

The screen never waits for a mount: each has a process that asks it (`top_asker`). What they answer becomes figures in
`top_view`, and a screen in `top_screen`.
"""

import os
import signal
import stat
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import ConsoleDimensions

from redoxfs.cli.metrics import own_mounts
from redoxfs.cli.options.watching import TopOptions
from redoxfs.cli.top_asker import Asker
from redoxfs.cli.top_screen import console, screen, shown_at_once, take_in
from redoxfs.cli.top_terminal import EndedBySignal, Terminal
from redoxfs.cli.top_view import MountView, State
from redoxfs.doctor.result import Result
from redoxfs.launch.deadline import look
from redoxfs.launch.errors import MountpointError, UsageError
from redoxfs.launch.path_status import our_mount_at
from redoxfs.launch.sizes import counted

PATIENCE_S = 0.25
"""How long a screen waits for the answers of all mounts before it is drawn without them."""

SILENCE_S = 1.5
"""After this time without an answer a mount is shown as one that does not answer."""


def run(options: TopOptions) -> int:
    """Show the mounts until a key, a signal, or as many updates as asked."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        raise UsageError("top needs a terminal; for lines type, for each mount: redoxfs stats MOUNTPOINT")
    with ExitStack() as held:
        shown = _Shown(options, held)
        try:
            shown.show()
        except EndedBySignal as ended:
            (number,) = ended.args
            if number != signal.SIGINT:
                # As if it had no handler; the terminal is as it was.
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
    return 0


class _Shown:
    """The mounts, and what the screen shows of them.

    Args:
        held: ends the askers.
    """

    def __init__(self, options: TopOptions, held: ExitStack) -> None:
        self._options, self._held = options, held
        self._views: dict[Path, MountView] = {}
        self._asked: dict[Asker, MountView] = {}
        for asked in options.mountpoints:
            self._add(*_located(asked, options.timeout_s))
        self._find()
        if not self._views:
            raise MountpointError("this user has no redoxfs mount here; name a MOUNTPOINT, or mount one first")
        self._chosen: int | None = None
        self._first = 0
        self._console = console(sys.stdout)
        self._terminal = Terminal(self._console)

    def show(self) -> None:
        """Show the mounts until the updates are counted. Raises EndedBySignal."""
        try:
            self._terminal.take()
            self._update()
        finally:
            self._terminal.give_back()

    def _update(self) -> None:
        due_s, late_s, updates = time.monotonic(), 0.0, 0
        while True:
            now_s = time.monotonic()
            if now_s >= due_s:
                self._ask(now_s)
                updates += 1
                # No drift, and none twice after a pause.
                due_s = max(due_s + self._options.interval_s, now_s)
                late_s = now_s + min(PATIENCE_S, self._options.interval_s / 2)
            if now_s < late_s and any(asker.asked_at_s is not None for asker in self._asked):
                self._take(late_s - now_s)
                continue
            self._draw()
            # The first update has no rates yet.
            if self._options.count is not None and updates > self._options.count:
                return
            self._take(due_s - time.monotonic())

    def _ask(self, now_s: float) -> None:
        """Ask all mounts; note those that have not answered for long."""
        self._find()
        for asker, view in self._asked.items():
            asker.ask()
            silent_s = now_s - (asker.asked_at_s or now_s)
            if silent_s >= SILENCE_S:
                since = counted(round(silent_s), "second")
                view.missed(State.SILENT, f"{view.name}: the daemon has not answered for {since}")

    def _find(self) -> None:
        """Add the mounts that have come, if none were named."""
        if not self._options.mountpoints:
            for mount in own_mounts():
                self._add(Path(mount.mountpoint), is_socket=False)

    def _add(self, path: Path, is_socket: bool) -> None:
        if path not in self._views:
            asker = Asker(path, is_socket=is_socket, timeout_s=self._options.timeout_s)
            self._views[path] = self._asked[self._held.enter_context(asker)] = MountView(str(path))

    def _take(self, timeout_s: float) -> None:
        """Take in answers and keys; returns after the first, at the latest after ``timeout_s``."""
        askers, keys = self._terminal.wait(self._asked, timeout_s)
        for asker in askers:
            self._answered(asker, self._asked[asker])
        for key in keys:
            if key in ("0", "escape"):
                self._chosen = None
            elif key.isdigit() and int(key) <= len(self._views):
                self._chosen = int(key) - 1
            elif key in ("left", "right"):
                self._first += 1 if key == "right" else -1

    def _answered(self, asker: Asker, view: MountView) -> None:
        try:
            answer = asker.answer()
        except (EOFError, OSError):
            del self._asked[asker]
            view.missed(State.REFUSED, f"{view.name}: the process that asks it has ended")
            return
        if isinstance(answer, Result):
            view.judged(answer)
            return
        at_s, state, told = answer
        if isinstance(told, str):
            view.missed(state, told)
        else:
            take_in(view, at_s, told, self._console)

    def _draw(self) -> None:
        """Draw the screen, at the present size of the terminal."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        # A terminal that has no size yet says 0.
        self._console.size = ConsoleDimensions(columns or 80, lines or 24)
        views = [*self._views.values()]
        self._first = max(0, min(self._first, len(views) - shown_at_once(len(views), self._console.width)))
        keys = "1-9 one  0 all  q quits" if len(views) > 1 else "q quits"
        head = f"{time.strftime('%H:%M:%S')}  every {self._options.interval_s:g} s  {keys}"
        self._terminal.draw(screen(views, self._console, head=head, chosen=self._chosen, first=self._first))


def _located(asked: str, timeout_s: float) -> tuple[Path, bool]:
    """Where a mount is, and whether that is the socket of `redoxfs serve`. Raises MountpointError."""
    seen = look(asked, timeout_s)
    if stat.S_ISSOCK(seen.mode):
        return seen.path, True
    return our_mount_at(asked, timeout_s).path, False
