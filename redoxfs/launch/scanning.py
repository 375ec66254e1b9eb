"""What a scan shows while it runs: a line that changes on a terminal, and elsewhere a line now and then.

`answering` ends a scan of storage that answers nothing. Nothing can end the threads that wait for the storage, and the
kernel may keep the process because of them; but the user is told.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redoxfs.launch.errors import SourceUnusableError
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted

FIRST_S, EVERY_S = 10.0, 30.0
"""Where no terminal shows it, nobody waits for the first line of a scan that takes a few seconds."""

CALLED_S = 1.0
"""Between calls that are further apart, redoxfs did something else than wait for storage, or was stopped."""

Shown = Callable[[int, int], None]
"""Called with entries and directories so far, ten times a second while storage is awaited."""


@contextmanager
def showing_scan(holder: str = "directory") -> Iterator[Shown]:
    """Show entries, directories and entries a second; or what else holds the entries."""
    holders = "directories" if holder == "directory" else f"{holder}s"
    if not sys.stderr.isatty():
        yield lines(say, time.monotonic, (holder, holders))
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("scanning: {task.completed:,} entries in {task.fields[directories]:,} " + holders),
        TextColumn("{task.fields[rate]:,}/s"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("scan", total=None, directories=0, rate=0)
        begin = time.monotonic()

        def found(entries: int, directories: int) -> None:
            bar.update(task, completed=entries, directories=directories, rate=_rate(entries, time.monotonic() - begin))

        yield found


def answering(shown: Shown, asked: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> Shown:
    """``shown``; it raises SourceUnusableError once the storage of ``asked`` has answered nothing for ``timeout_s``."""
    before = (0, 0)
    called_s, waited_s = clock(), 0.0

    def found(entries: int, directories: int) -> None:
        nonlocal before, called_s, waited_s
        now = clock()
        waited_s = waited_s + min(now - called_s, CALLED_S) if before == (entries, directories) else 0.0
        before, called_s = (entries, directories), now
        if waited_s >= timeout_s:
            raise SourceUnusableError(
                f"{asked}: the storage has not answered for {timeout_s:g} s during the scan (--timeout)"
            )
        shown(entries, directories)

    return found


def lines(
    printer: Callable[[str], None], clock: Callable[[], float], holder: tuple[str, str] = ("directory", "directories")
) -> Shown:
    """Print a line after ten seconds, and another one every half minute."""
    begin = clock()
    due = begin + FIRST_S

    def found(entries: int, directories: int) -> None:
        nonlocal due
        now = clock()
        if now >= due:
            due = now + EVERY_S
            where = f"{counted(entries, 'entry', 'entries')} in {counted(directories, *holder)}"
            printer(f"scanning: {where}, {_rate(entries, now - begin):,}/s")

    return found


def _rate(entries: int, seconds: float) -> int:
    return int(entries / max(seconds, 1e-3))
