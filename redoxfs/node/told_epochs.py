"""Epochs that a script tells: verbs of the control socket.

    epoch          an epoch of a class tree begins now, of that with the name in the data; without data: of all
    epoch-of-rank  an epoch of a rank begins; JSON of the tree, the number of the epoch or null, how many ranks, and
                   which rank
    epoch-tree     the tree to tell of, for a loader of the files in a directory

A policy that has passes begins one, so the epoch has each sample once, whatever was opened before. Laps of other
policies go on as they are; the answer says which it is. `redoxfs.epoch` and `redoxfs.torch` are the clients.

The ranks of a job need not agree. Each tells its epochs, and an epoch has each rank once: the first rank that comes
again begins the next. So does one whose process is of a job that was started again: it was born after another rank told
the epoch, and that one has ended. Rejected: the number of the epoch alone. Many loaders have none, and a job that
resumes has the same one again. Who came is in the checkpoint, so that a daemon which takes over between two ranks
begins no other pass.

Called in the node's task, between two requests.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from redoxfs.linux.pids import born_s, exists
from redoxfs.node.control import CLIENT

if TYPE_CHECKING:
    from redoxfs.node.node import Node


_since_boot_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Processes:
    """What the machine says of processes by their numbers; 0 is one that cannot be seen from here."""

    def has_ended(self, process: int) -> bool:
        """Not if that is not known."""
        return process > 0 and not exists(process)

    def born_s(self, process: int) -> float:
        """In s since boot; 0 if it is not known."""
        try:
            return born_s(process) if process else 0.0
        except (OSError, ValueError):
            return 0.0


class ToldEpochs:
    """The verbs, and how often they began passes."""

    def __init__(
        self,
        node: "Node",
        trees: Sequence[str],
        processes: Processes | None = None,
        clock_s: Callable[[], float] = _since_boot_s,
    ) -> None:
        self._node = node
        self._processes = processes or Processes()
        self._clock_s = clock_s
        self._trees = trees
        self.told = 0

    async def begin(self, data: bytes) -> Mapping[str, Any]:
        """Begin a pass. ``begun`` is False if the policy has none. Raises ValueError for a tree that is not there."""
        return self._begin(self._tree_in(data))

    async def begin_of_rank(self, data: bytes) -> Mapping[str, Any]:
        """Begin a pass, or join that of the other ranks. Raises ValueError."""
        name, *epoch, rank = _parsed(data)
        tree = self._tree_in(os.fsencode(name))
        ranks, process = self._node.ranks, CLIENT.get()
        told = process, self._clock_s()
        of_epoch, came = ranks.get(tree, (None, {}))
        if of_epoch == epoch and rank not in came and not self._is_of_later_job(process, came.values()):
            came[rank] = told
            self._node.checkpoint()
            return {"begun": True}
        if self._node.plan.policy.has_passes:
            ranks[tree] = epoch, {rank: told}
        return self._begin(tree)

    def _is_of_later_job(self, process: int, came: Iterable[tuple[int, float]]) -> bool:
        """Whether a process began after one had told an epoch that has ended since."""
        began_s = self._processes.born_s(process)
        return any(began_s > told_s and self._processes.has_ended(other) for other, told_s in came)

    async def tree_of(self, data: bytes) -> Mapping[str, Any]:
        """``tree``: that which the directory ``data``, from the mountpoint on, lies in; else the only one in it.

        None: there are several or none, or no passes to begin.
        """
        path = os.fsdecode(data)
        around = [tree for tree in self._trees if tree == "." or f"{path}/".startswith(f"{tree}/")]
        within = [tree for tree in self._trees if path == "." or tree.startswith(f"{path}/")]
        if around and path != ".":
            within = [max(around, key=lambda tree: 0 if tree == "." else len(tree))]
        if len(within) != 1 or not self._node.plan.policy.has_passes:
            return {"tree": None}
        return {"tree": within[0]}

    def _begin(self, tree: int | None) -> Mapping[str, Any]:
        plan = self._node.plan
        if not plan.policy.begin_pass(tree):
            return {"begun": False}
        self.told += 1
        if plan.sharing is not None:
            # What it had taken from other nodes was for the epoch before.
            self._node.void_dropped()
        # It has no entry in the journal, and a daemon that takes over must go on in this pass.
        self._node.checkpoint()
        return {"begun": True}

    def _tree_in(self, data: bytes) -> int | None:
        if not data:
            return None
        name = os.fsdecode(data)
        if name not in self._trees:
            known = ", ".join(self._trees[:8]) or "none"
            raise ValueError(f"{name!r:.200} is not a class tree of this mount; its class trees: {known}")
        return self._trees.index(name)

    def stats(self) -> dict[str, int]:
        """``epochs_told``: since the daemon began."""
        return {"epochs_told": self.told}


def _parsed(data: bytes) -> tuple[str, int | None, int, int]:
    """Raises ValueError."""
    try:
        tree, epoch, ranks, rank = json.loads(data)
        numbers = (ranks, rank) if epoch is None else (epoch, ranks, rank)
        if type(tree) is not str or not all(type(each) is int for each in numbers) or not 0 <= rank < ranks:
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "expected a class tree, the number of an epoch or null, the number of ranks, and a rank"
        ) from None
    return tree, epoch, ranks, rank
