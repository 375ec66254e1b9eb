"""Epochs that a script tells: verbs of the control socket.

    epoch          an epoch of a class tree begins now, of that with the name in the data; without data: of all
    epoch-of-rank  an epoch of a rank begins; JSON of the tree, the number of the epoch or null, how many ranks, which
                   rank, and the number that it has at all nodes or 0
    epoch-tree     the tree to tell of, for a loader of the files in a directory

A policy that has passes begins one, so the epoch has each sample once, whatever was opened before. Laps of other
policies go on as they are; the answer says which it is. `redoxfs.epoch` and `redoxfs.torch` are the clients.

The ranks of a job need not agree. Each tells its epochs, and an epoch has each rank once: the first rank that comes
again begins the next. So does one whose process is of a job that was started again: it was born after another rank told
the epoch, and that one has ended. Rejected: the number of the epoch alone. Many loaders have none, and a job that
resumes has the same one again. Who came is in the checkpoint, so that a daemon which takes over between two ranks
begins no other pass.

No second look goes back to before an epoch that is told. So holds on the tree's paths end: with `epoch` those of all
threads, as nobody reads meanwhile; with `epoch-of-rank` those of the process that tells, and of its descendants.

Several nodes count their epochs, and the ranks of a job agree which number one has at all nodes (`redoxfs.epochs`). The
number says which epoch begins, and never whether one does.

Called in the node's task, between two requests.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from redoxfs.linux.pids import ENDED, STATE, born_s, exists, parent_of, process_of, stat_of
from redoxfs.node.control import CLIENT

if TYPE_CHECKING:
    from redoxfs.node.node import Node


MOST_GENERATIONS = 8
"""From a process that reads to the one that tells. A fork server stands between them, and perhaps a wrapper."""

MOST_NUMBER = 1 << 30
"""The highest that an epoch is told to have. Messages have 32 bits for it."""

_since_boot_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Processes:
    """What the machine says of processes by their numbers; 0 is one that cannot be seen from here."""

    def has_ended(self, process: int) -> bool:
        """Not if that is not known. A process that nobody has waited for has ended too: in a container without an init,
        it stays in the list of processes."""
        if process <= 0 or not exists(process):
            return process > 0
        with suppress(OSError, IndexError):
            return stat_of(process)[STATE] in ENDED
        return False

    def born_s(self, process: int) -> float:
        """In s since boot; 0 if it is not known."""
        try:
            return born_s(process) if process else 0.0
        except (OSError, ValueError):
            return 0.0

    def is_within(self, thread: int, process: int) -> bool:
        """Whether a thread is of a process, or of one that descends from it. Not if that is not known."""
        try:
            number = process_of(thread)
            for _ in range(MOST_GENERATIONS):
                if number == process or number <= 1:
                    break
                number = parent_of(number)
        except (OSError, ValueError):
            return False
        return number == process > 0


class ToldEpochs:
    """The verbs, and how often they began passes."""

    def __init__(
        self,
        node: "Node",
        trees: Sequence[str],
        processes: Processes | None = None,
        clock_s: Callable[[], float] = _since_boot_s,
        *,
        dataset: str = "",
    ) -> None:
        self._node = node
        self._processes = processes or Processes()
        self._clock_s = clock_s
        self._trees = trees
        self._dataset = dataset
        self.told = 0

    async def begin(self, data: bytes) -> Mapping[str, Any]:
        """Begin a pass. ``begun`` is False if the policy has none. Raises ValueError for a tree that is not there."""
        return self._begin(self._tree_in(data), lambda _: True)

    async def begin_of_rank(self, data: bytes) -> Mapping[str, Any]:
        """Begin a pass, or join that of the other ranks. ``count``: its number here, if there is one. Raises
        ValueError."""
        name, *epoch, rank, least = _parsed(data)
        tree = self._tree_in(os.fsencode(name))
        ranks, process = self._node.ranks, CLIENT.get()
        told = process, self._clock_s()

        def is_of_rank(thread: int) -> bool:
            return self._processes.is_within(thread, process)

        of_epoch, came = ranks.get(tree, (None, {}))
        if of_epoch == epoch and rank not in came and not self._is_of_later_job(process, came.values()):
            came[rank] = told
            self._node.end_holds(is_of_rank, tree)
            self._node.checkpoint()
            return {"begun": True, "count": self._count(tree)}
        if self._node.plan.policy.has_passes:
            ranks[tree] = epoch, {rank: told}
        return {**self._begin(tree, is_of_rank, least), "count": self._count(tree)}

    def _is_of_later_job(self, process: int, came: Iterable[tuple[int, float]]) -> bool:
        """Whether a process began after one had told an epoch that has ended since."""
        began_s = self._processes.born_s(process)
        return any(began_s > told_s and self._processes.has_ended(other) for other, told_s in came)

    async def tree_of(self, data: bytes) -> Mapping[str, Any]:
        """``tree``: that which the directory ``data``, from the mountpoint on, lies in; else the only one in it.

        None: there are several or none, or no passes to begin. ``count``: the number of its epoch, if there is one;
        ``dataset``: the same at all nodes that count together.
        """
        path = os.fsdecode(data)
        around = [tree for tree in self._trees if tree == "." or f"{path}/".startswith(f"{tree}/")]
        within = [tree for tree in self._trees if path == "." or tree.startswith(f"{path}/")]
        if around and path != ".":
            within = [max(around, key=lambda tree: 0 if tree == "." else len(tree))]
        if len(within) != 1 or not self._node.plan.policy.has_passes:
            return {"tree": None}
        return {"tree": within[0], "count": self._count(self._trees.index(within[0])), "dataset": self._dataset}

    def _count(self, tree: int | None) -> int | None:
        return None if tree is None else self._node.plan.policy.pass_number(tree)

    def _begin(self, tree: int | None, reads: Callable[[int], bool], number: int = 0) -> Mapping[str, Any]:
        """``reads``: whether a thread begins to read the epoch now."""
        plan = self._node.plan
        if not plan.policy.begin_pass(tree, number):
            return {"begun": False}
        self.told += 1
        self._node.end_holds(reads, tree)
        if plan.sharing is not None:
            # What it had taken from other nodes was for the epoch before.
            self._node.void_dropped()
        # It has no entry in the journal, and a daemon that takes over must go on in this pass.
        self._node.checkpoint()
        return {"begun": True}

    def _tree_in(self, data: bytes) -> int | None:
        # Nothing is redirected, and a script need not know.
        if not data or not self._trees:
            return None
        name = os.fsdecode(data)
        if name not in self._trees:
            known = ", ".join(self._trees[:8]) or "none"
            raise ValueError(f"{name!r:.200} is not a class tree of this mount; its class trees: {known}")
        return self._trees.index(name)

    def stats(self) -> dict[str, int]:
        """``epochs_told``: since the daemon began."""
        return {"epochs_told": self.told}


def _parsed(data: bytes) -> tuple[str, int | None, int, int, int]:
    """Raises ValueError."""
    try:
        tree, epoch, ranks, rank, *more = json.loads(data)
        # Packages of before this version know no number of all nodes.
        (least,) = more or (0,)
        numbers = (ranks, rank, least) if epoch is None else (epoch, ranks, rank, least)
        if type(tree) is not str or not all(type(each) is int for each in numbers):
            raise ValueError
        if not (0 <= rank < ranks and 0 <= least <= MOST_NUMBER):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "expected a class tree, the number of an epoch or null, the number of ranks, a rank, and a number or 0"
        ) from None
    return tree, epoch, ranks, rank, least
