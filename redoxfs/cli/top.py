"""`redoxfs top`: one screen with what mounts do, updated every second; lines where stdout is no terminal.

The screen never waits for a mount: each has a process that asks it (`top_asker`). What they answer becomes figures in
`top_view`, and lines in `top_screen`.
"""

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.cli.metrics import own_mounts
from redoxfs.cli.options.watching import TopOptions
from redoxfs.cli.stats import COLUMNS, LINES_TO_A_HEADER, cells_of, joined
from redoxfs.cli.top_asker import Answer, Asker
from redoxfs.cli.top_screen import Size, screen, shown_at_once, time_left
from redoxfs.cli.top_view import MountView, State
from redoxfs.launch.control_files import WRONG
from redoxfs.launch.deadline import look
from redoxfs.launch.errors import MountpointError
from redoxfs.launch.path_status import our_mount_at
from redoxfs.launch.say import show
from redoxfs.launch.sizes import counted

if TYPE_CHECKING:
    from redoxfs.cli.top_terminal import Terminal

PATIENCE_S = 0.25
"""How long a screen waits for the answers of all mounts before it is drawn without them."""

SILENCE_S = 1.5
"""After this time without an answer a mount is shown as one that does not answer."""

_ANY_SIZE = Size(80, 24)

_QUITS = frozenset("qQ")


def run(options: TopOptions) -> int:
    """Show the mounts until a key, a signal, or as many updates as asked."""
    with ExitStack() as held:
        mounts = _Mounts(options, held)
        if not _has_screen():
            return _lines(mounts, options)
        from redoxfs.cli.top_terminal import EndedBySignal

        try:
            _show(mounts, options)
        except EndedBySignal as ended:
            if ended.number != signal.SIGINT:
                # As if it had no handler; the terminal is as it was.
                signal.signal(ended.number, signal.SIG_DFL)
                signal.raise_signal(ended.number)
        return 0


def _has_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


class _Mounts:
    """The mounts that are shown, and their askers.

    Args:
        held: what is closed at the end.
    """

    def __init__(self, options: TopOptions, held: ExitStack) -> None:
        self._options = options
        self._held = held
        self._askers: dict[Path, Asker] = {}
        self.views: list[MountView] = []
        self._by_fd: dict[int, tuple[MountView, Asker]] = {}
        for asked in options.mountpoints:
            self._add(*_located(asked, options.timeout_s))
        self.find()
        if not self.views:
            raise MountpointError("this user has no redoxfs mount here; name a MOUNTPOINT, or mount one first")

    @property
    def fds(self) -> Iterable[int]:
        return self._by_fd

    @property
    def is_any_due(self) -> bool:
        """Whether an answer is due."""
        return any(asker.asked_at_s is not None for _, asker in self._by_fd.values())

    def find(self) -> None:
        """Add the mounts that have come, if none were named."""
        if not self._options.mountpoints:
            for mount in own_mounts():
                self._add(Path(mount.mountpoint), is_socket=False)

    def ask(self) -> None:
        """Ask all mounts; note those that have not answered for long."""
        self.find()
        now_s = time.monotonic()
        for view, asker in self._by_fd.values():
            asker.ask()
            assert asker.asked_at_s is not None
            silent_s = now_s - asker.asked_at_s
            if silent_s >= SILENCE_S:
                view.missed(State.SILENT, f"the daemon has not answered for {counted(round(silent_s), 'second')}")

    def take(self, fds: Iterable[int]) -> None:
        """Take in the answers that came at ``fds``."""
        for fd in fds:
            if fd in self._by_fd:
                view, asker = self._by_fd[fd]
                try:
                    answer = asker.answer()
                except ChildProcessError as failure:
                    del self._by_fd[fd]
                    answer = Answer(time.monotonic(), State.REFUSED, str(failure))
                if answer is not None:
                    _took(view, answer)

    def _add(self, path: Path, is_socket: bool) -> None:
        if path in self._askers:
            return
        asker = self._held.enter_context(Asker(path, is_socket=is_socket, timeout_s=self._options.timeout_s))
        view = MountView(str(path))
        self._askers[path] = asker
        self._by_fd[asker.fd] = (view, asker)
        self.views.append(view)


def _took(view: MountView, answer: Answer) -> None:
    if answer.stats is None:
        view.missed(answer.state, answer.reason)
        return
    try:
        view.saw(answer.at_s, answer.stats)
        # Whoever serves the mount may report anything: if it cannot be shown, that is found here, and not in between.
        screen([view], _ANY_SIZE, head="")
        screen([view, view], _ANY_SIZE, head="")
        list(_line_cells(view))
    except WRONG:
        view.forget()
        view.missed(State.REFUSED, "its statistics are not those of a redoxfs mount")


def _located(asked: str, timeout_s: float) -> tuple[Path, bool]:
    """Where a mount is, and whether that is the socket of `redoxfs serve`. Raises MountpointError."""
    seen = look(asked, timeout_s)
    if stat.S_ISSOCK(seen.mode):
        return seen.path, True
    return our_mount_at(asked, timeout_s).path, False


def _ticks(options: TopOptions) -> Iterator[float]:
    """When each update is due, by the monotonic clock: no drift, and none twice after a pause."""
    due_s = time.monotonic()
    count = 0
    while options.count is None or count <= options.count:
        # The first update has no rates yet.
        yield due_s
        count += 1
        due_s = max(due_s + options.interval_s, time.monotonic())


# On a terminal


def _show(mounts: _Mounts, options: TopOptions) -> None:
    from redoxfs.cli.top_terminal import Terminal

    with Terminal() as terminal:
        shown = _Shown(mounts, options, terminal)
        for due_s in _ticks(options):
            # What comes meanwhile: a key, another size of the terminal, a late answer.
            while (wait_s := due_s - time.monotonic()) > 0:
                if not shown.take(wait_s):
                    return
                shown.draw()
            mounts.ask()
            patience_s = time.monotonic() + min(PATIENCE_S, options.interval_s)
            while mounts.is_any_due and (wait_s := patience_s - time.monotonic()) > 0:
                if not shown.take(wait_s):
                    return
            shown.draw()


class _Shown:
    """What the screen shows of the mounts, which keys choose."""

    def __init__(self, mounts: _Mounts, options: TopOptions, terminal: "Terminal") -> None:
        from rich.console import Console

        self._mounts = mounts
        self._interval_s = options.interval_s
        self._terminal = terminal
        self._console = Console(highlight=False, force_terminal=True)
        self._encoding = sys.stdout.encoding or "ascii"
        self._is_utf8 = self._encoding.lower().replace("-", "") == "utf8"
        self._chosen: int | None = None
        self._first = 0

    def take(self, timeout_s: float) -> bool:
        """Take in answers and keys; returns after the first, at the latest after ``timeout_s``. False: quit."""
        readable, keys = self._terminal.wait(self._mounts.fds, timeout_s)
        self._mounts.take(readable)
        for key in keys:
            if key in _QUITS:
                return False
            if key in ("0", "escape"):
                self._chosen = None
            elif key.isdigit() and int(key) <= len(self._mounts.views):
                self._chosen = int(key) - 1
            elif key in ("left", "right"):
                self._first += 1 if key == "right" else -1
        return True

    def draw(self) -> None:
        """Draw the screen, at the present size of the terminal."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        # A terminal that has no size yet says 0.
        size = Size(columns or 80, lines or 24, self._is_utf8)
        views = self._mounts.views
        self._first = max(0, min(self._first, len(views) - shown_at_once(len(views), size.columns)))
        keys = "q quits" if len(views) == 1 else "1-9 one  0 all  q quits"
        head = f"{time.strftime('%H:%M:%S')}  every {self._interval_s:g} s  {keys}"
        shown = screen(views, size, head=head, chosen=self._chosen, first=self._first)
        self._console.width = size.columns + 1
        with self._console.capture() as drawn:
            for line in shown:
                self._console.print(line, no_wrap=True, overflow="ignore", crop=False)
        # A path may have bytes that are no text.
        text = drawn.get().encode(self._encoding, "replace").decode(self._encoding)
        self._terminal.draw(text.splitlines(), size.lines)


# Elsewhere


def _lines(mounts: _Mounts, options: TopOptions) -> int:
    """A line for each mount and interval, as `redoxfs stats` prints them, with the laps."""
    number = 0
    with _silent_interrupt():
        for update, due_s in enumerate(_ticks(options)):
            time.sleep(max(0.0, due_s - time.monotonic()))
            mounts.ask()
            patience_s = time.monotonic() + min(SILENCE_S, options.interval_s)
            while mounts.is_any_due and (wait_s := patience_s - time.monotonic()) > 0:
                mounts.take(select.select([*mounts.fds], (), (), wait_s)[0])
            for view in mounts.views:
                if update == 0 or (view.serves and view.rates is None):
                    # There are no rates before the second answer.
                    continue
                if number == 0 or (sys.stdout.isatty() and number % LINES_TO_A_HEADER == 0):
                    print(joined(name for name, _ in COLUMNS) + "  lap, mount")
                number += 1
                if view.rates is None:
                    show(f"{time.strftime('%H:%M:%S')}  {view.name}: {view.reason or view.state.value}")
                    continue
                laps = _line_cells(view)
                show(f"{joined(cells_of(view.rates))}  {', '.join(laps)}  {view.name}")
            if all(view.state is State.ENDED for view in mounts.views):
                raise MountpointError("the mount has ended" if len(mounts.views) == 1 else "all mounts have ended")
    return 0


def _line_cells(view: MountView) -> list[str]:
    return [
        f"{lap.tree} {lap.number} {lap.share:.1%}"
        + (f" {time_left(lap.left_s)} left" if lap.left_s is not None else "")
        for lap in view.laps()
    ]


@contextmanager
def _silent_interrupt() -> Iterator[None]:
    """Ctrl-C is the usual end of a view that goes on by itself."""
    try:
        yield
    except KeyboardInterrupt:
        return
