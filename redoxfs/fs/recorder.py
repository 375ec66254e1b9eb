"""Records the history of a mount: a timer adds a point, and each look at the samples that were served finds laps' ends.

An open costs an append to each of two lists, of the samples that were served and of the paths that were asked for. They
are looked at after a few thousand samples, and sooner where a lap may end. The paths show whether the job keeps a set
of them apart, and counts of opens whether it keeps what it read of some files; a line in the log says so.
All of this happens in the node's task, but for the text of history.json, which a thread makes.
"""

import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.dataset import Catalog, show
from redoxfs.node import Node
from redoxfs.node.threads import in_thread
from redoxfs.telemetry.history import TREES, History, memory_bytes
from redoxfs.telemetry.lap_watch import Finished, LapWatch
from redoxfs.telemetry.member_watch import MemberWatch
from redoxfs.telemetry.split_line import HINT, split_line
from redoxfs.telemetry.split_watch import SplitWatch

log = logging.getLogger(__name__)

Int32 = npt.NDArray[np.int32]

WATCH_S = 1.0
"""Between two looks for progress. A look takes less than a millisecond."""

LATE_S = 2.0
"""A snapshot that is older is not of the moment when a lap began."""


class Recorder:
    """The history of one mount.

    Args:
        stats: makes a snapshot of stats.json.
        memory_fd: of a memfd that outlives this process, empty or with the history of a former daemon; None: the
            history ends with this process.
    """

    def __init__(
        self, node: Node, catalog: Catalog, stats: Callable[[], Mapping[str, Any]], memory_fd: int | None = None
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._stats = stats
        self._memory_fd = memory_fd
        self._trees = list(catalog.class_trees)
        self._class_sizes = np.bincount(catalog.class_of, minlength=len(catalog.tree_of_class))
        of_all = np.bincount(catalog.tree_of_class, weights=self._class_sizes, minlength=len(self._trees))
        self._samples_of_tree = of_all.astype(np.int64)[:TREES]
        about = node.plan.about
        self._watch = LapWatch(
            self._samples_of_tree.tolist(),
            everything=len(catalog.class_of),
            tree_of=self._tree_of,
            chunk_of=lambda sample: node.plan.policy.chunk_of(sample),
            chunk_samples=len(catalog.class_of) / max(1, about.get("chunks", 1)),
            class_of=lambda samples: catalog.class_of[samples],
            class_sizes=self._class_sizes_of,
        )
        self._history = History()
        self._turns = 0
        self._splits = SplitWatch(catalog.class_of, catalog.tree_of_class, len(self._samples_of_tree))
        self._split_paths = dict.fromkeys(self._trees, 0)
        self._members = MemberWatch(len(catalog.class_of), len(node.opens_of_files))
        self._asked: list[int] = []
        self.served: list[int] = []
        self.due = 0

    def start(self) -> None:
        """Begin, or continue after a former daemon; before the first request, once the node has recovered."""
        if self._memory_fd is not None:
            self._history = History(_mapped(self._memory_fd))
        self._node.note_served, self._node.note_asked = self.served.append, self._asked.append
        self._follow()
        self._history.add(self._stats())

    async def run(self) -> None:
        """Add a point at each interval, and look for progress each second, until cancelled."""
        due = trio.current_time()
        while True:
            due = max(due + self._history.interval_s, trio.current_time())
            while due - trio.current_time() > WATCH_S:
                await trio.sleep(WATCH_S)
                self._history.take_in(self._stats())
            await trio.sleep_until(due)
            self.add()

    def add(self) -> None:
        """Add a point of now."""
        self.look()
        self._history.add(self._stats())

    def look(self) -> None:
        """Look at the samples that were served since the last look."""
        served = self.served
        if served and self._node.turns_of_readers - len(served) != self._turns:
            # The laps went on from a state, or begin anew with a view.
            self._follow()
        elif served:
            self._turns += len(served)
            before = [self._watch.progress(tree) for tree in range(len(self._samples_of_tree))]
            ended = self._watch.look(served)
            # A lap that ended began before, if only in these turns. What begins now does so after the end of another.
            self._begin(sorted({finished.tree for finished in ended}))
            if ended:
                # At once, for the next turns may be of another tree. It takes 0.2 ms to 1 ms.
                self._history.take_in(self._stats())
                self._record(ended)
            now = [self._watch.progress(tree) for tree in range(len(before))]
            self._begin([tree for tree, (_, turns) in enumerate(now) if turns and now[tree] != before[tree]])
        served.clear()
        self._look_at_opens()
        self.due = self._watch.due

    def split_paths(self) -> dict[str, int]:
        """By tree: about how many paths the job keeps apart from the others; 0 if none was seen to be."""
        self._look_at_opens()
        return dict(self._split_paths)

    def _look_at_opens(self) -> None:
        for apart in self._splits.look(self._asked, alone=self._node.plan.nodes == 1):
            tree = self._trees[apart.tree]
            self._split_paths[tree] = apart.paths
            log.warning("%s; %s", split_line(tree, apart.paths, apart.of), HINT)
        self._asked.clear()
        opens, catalog = self._node.opens_of_files, self._catalog
        found = self._members.look(opens) if opens else None
        if found is not None:
            first = catalog.member_at[int(np.argmax(np.diff(catalog.member_at)))]
            again, once = (catalog.tree.name(int(catalog.members[first + file])) for file in found)
            log.warning(
                "the job opens files such as %s again and again, and such as %s no longer: what it kept of those"
                " belongs to other samples; mount with --classes sampler",
                show(again),
                show(once),
            )

    def _begin(self, trees: list[int]) -> None:
        # The last snapshot has all that was counted before, if no other tree was read since. It is old if there was a
        # pause.
        now_s = time.time()
        taken_s = self._history.taken_s
        for tree in trees:
            self._history.begin_lap(tree, taken_s if now_s - taken_s < LATE_S else now_s)

    def _record(self, ended: Sequence[Finished]) -> None:
        """Record laps that are over. The snapshot is of now. Laps of one tree share a record."""
        now_s = time.time()
        for tree in sorted({lap.tree for lap in ended}):
            laps = [lap for lap in ended if lap.tree == tree]
            first, last = laps[0], laps[-1]
            is_whole = all(lap.whole for lap in laps)
            self._history.end_lap(tree, first.lap, last.lap, last.quality, now_s, whole=is_whole)
            if self._watch.progress(tree)[1]:
                self._begin([tree])

    def _follow(self) -> None:
        """Find how far the laps are, as somebody else counted."""
        node, catalog = self._node, self._catalog
        self._turns = node.turns_of_readers
        nodes = node.plan.nodes
        turns: npt.NDArray[Any] = np.zeros(len(self._trees))
        if self._turns and nodes == 1:
            state, samples = node.turns(), np.arange(len(catalog.class_of))
            of_sample = node.plan.policy.laps(samples) - 1 + np.unpackbits(state.had, count=len(samples))
            turns = np.bincount(self._tree_of_all(samples), weights=of_sample, minlength=len(self._trees))
        elif self._turns:
            turns = np.array([(lap - 1) * samples / nodes + had for lap, had, samples in node.plan.policy.tree_laps()])
        for tree in range(len(self._samples_of_tree)):
            began = turns[tree] == 0
            self._watch.resume(tree, turns=round(turns[tree]), nodes=nodes, whole=bool(began))
        self.due = self._watch.due

    def _class_sizes_of(self, tree: int) -> npt.NDArray[np.int64]:
        """int64[classes]: how many samples each class of a tree has; 0 of other classes."""
        return np.where(self._catalog.tree_of_class == tree, self._class_sizes, 0)

    def _tree_of_all(self, samples: npt.NDArray[np.integer]) -> Int32:
        return self._catalog.tree_of_class[self._catalog.class_of[samples]]

    def _tree_of(self, samples: Int32) -> Int32:
        trees = self._tree_of_all(samples)
        return np.where(trees < TREES, trees, -1).astype(np.int32)

    async def text(self) -> bytes:
        """The content of history.json."""
        self.look()
        stats = self._stats()
        self._history.take_in(stats)
        copy = self._history.copy()
        return await in_thread(lambda: "".join(copy.pieces(stats, self._trees)).encode())


def _mapped(fd: int) -> memoryview:
    size = memory_bytes()
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size)
    return memoryview(mmap.mmap(fd, size))
