"""Progress bars on stderr, if that is a terminal; elsewhere the line at the end is enough."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Shown = Callable[[int, int, int], None]
"""Called with files and bytes done, and all bytes."""


@contextmanager
def showing(what: str) -> Iterator[Shown]:
    """A bar with the files and bytes done, the rate, and the time left."""
    if not sys.stderr.isatty():
        yield lambda _files, _size, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]:,} files, time left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, files=0)
        yield lambda files, size, total: bar.update(task, completed=size, total=total, files=files)
