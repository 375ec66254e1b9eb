"""What an open of a sample in memory and its close cost the daemon beside the kernel, with a keeper and without one.

    scripts/bench/open_cost.py [--files 2000] [--epochs 15] [--memory 200%] [--json FILE]

Two threads take turns to open and close all files of ten classes, each epoch in another random order, by the code that
serves a mount: the request loop's handlers, the binding, the pool with passes, and the memory. In place of the session
there is one that takes every answer and asks the kernel nothing. With less --memory than the dataset, opens whose bytes
are not here yet are left out; what it costs to take in what was read is not in the figures.

How to read the result: "us" is the time of one open with its close, the median over the epochs; "least us" that of the
fastest epoch. Compare figures of one machine. With PYTHONPATH=CHECKOUT the script measures another checkout.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import mounts
import trio
from results import Row, options_of, tell

from redoxfs.chunks import build_cells
from redoxfs.chunks.directory import DirectoryStore
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.fs.open_times import OpenTimes
from redoxfs.fs.page_cache import PageCache
from redoxfs.fs.requests import KernelCaches, Requests
from redoxfs.native import OPEN, RELEASE, Session, Shared
from redoxfs.node import Journal, Node
from redoxfs.node.callers import Callers
from redoxfs.node.plan import plan_pool
from redoxfs.node.recent import RecentTurns

CLASSES = 10
FIRST_BYTES = 1000
"""The size of a class's smallest file; each further one has a byte more."""

UNMEASURED = 3
"""Epochs before those that are measured: the first fills memory."""

CHECKPOINT_BYTES = 1 << 22
DELIVERED_EVERY = 50


class Answered:
    """In place of a session: the handle of the last open, and everything else for nothing."""

    handle: int | None = None

    def __init__(self) -> None:
        # Some for each request.
        self.deciding = self.released = _taken

    def opened(self, _unique: int, _inode: int, _thread: int, handle: int, *_: object) -> bool:
        self.handle = handle
        return True

    def __getattr__(self, name: str) -> Any:
        return _taken


def _taken(*_: object) -> None:
    pass


def made(folder: Path, files: int) -> None:
    for number in range(files):
        file = folder / f"class{number % CLASSES}" / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(FIRST_BYTES + number // CLASSES))


async def measured(catalog: Catalog, root: int, memory: float, epochs: int, *, keeper: bool) -> Row:
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=64, seed=0)
    memory_bytes = int(memory * int(catalog.sample_bytes.sum()))
    journal = None
    if keeper:
        journal = Journal(Shared(os.memfd_create("journal"), checkpoint_bytes=CHECKPOINT_BYTES))
    caches, session = KernelCaches(), Answered()
    node = Node(
        catalog,
        plan_pool(catalog, cells, memory_bytes=memory_bytes, seed=0),
        DirectoryStore(catalog, root),
        timeout_s=60.0,
        kernel=caches,
        callers=Callers(),
        journal=journal,
        recent=RecentTurns(),
    )
    node.start()
    node.checkpoint()
    caches.attach(cast("Session", session))
    requests = Requests(node, cast("Session", session), _taken, PageCache(), journal, OpenTimes())
    entries = [entry for entry in range(len(catalog.tree)) if node.is_redirected(entry)]
    order = random.Random(0)
    costs_us = []
    for _ in range(UNMEASURED + epochs):
        order.shuffle(entries)
        costs_us.append(epoch_us(node, requests, session, journal, entries))
    node.stop()
    costs_us = costs_us[UNMEASURED:]
    return {"keeper": keeper, "us": statistics.median(costs_us), "least_us": min(costs_us)}


def epoch_us(
    node: Node, requests: Requests, session: Answered, journal: Journal | None, entries: Sequence[int]
) -> float:
    """The mean time of an open from memory and its close."""
    handle, deliver, clock = requests._handle, node.supply.loader.deliver_some, time.perf_counter
    threads = os.getpid(), os.getppid()
    spent_s, opens = 0.0, 0
    for number, entry in enumerate(entries):
        session.handle = None
        thread = threads[number % 2]
        began = clock()
        handle([(OPEN, 2 * number + 1, entry + 1, thread, 0, 1)])
        opened = clock()
        was_here = session.handle is not None
        while session.handle is None:
            deliver()
        closing = clock()
        handle([(RELEASE, 2 * number + 2, session.handle, thread, 0, 2)])
        if was_here:
            spent_s += opened - began + clock() - closing
            opens += 1
        if journal is not None:
            journal.checkpoint_if_due()
        if not number % DELIVERED_EVERY:
            deliver()
    return spent_s / opens * 1e6


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--memory", type=lambda text: float(text.rstrip("%")) / 100, default=2.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-") as name:
        made(Path(name), arguments.files)
        root = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        catalog = build_catalog(read_tree(root), classes="dir", groups=None)

        async def both() -> list[Row]:
            ways = (False, True)
            return [await measured(catalog, root, arguments.memory, arguments.epochs, keeper=way) for way in ways]

        rows = trio.run(both)
        os.close(root)
    result = {"machine": mounts.machine(), "files": arguments.files, "memory": arguments.memory, "rows": rows}
    tell(result, arguments.json)


if __name__ == "__main__":
    main()
