"""`redoxfs.epoch`: tells a mount that an epoch begins.

A mount counts opens, and cannot know that a job left out its last batch, looked at a few files first, or broke an epoch
off. Who begins an epoch knows. One process of the job tells it, while no other one reads: with several ranks, rank 0
between two barriers. On several nodes, each mount is told so, and other nodes may read meanwhile. Or each rank tells it
before it reads, with its number (`tell_epoch`, for `redoxfs.torch`).

Several nodes count the epochs that each is told of. If a job dies between two nodes, they are apart, and a node cannot
know whether another one is ahead or was told once too often. The ranks of a job can: they agree in a store that they
share, such as PyTorch's, on the number that an epoch has at all nodes (`JobCounts`). It is above all counts that a rank
has said. Rejected: a collective call, which a rank that reads nothing would never join.

This module stands above the rooms, as any program that uses redoxfs does.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redoxfs.launch.control import ask_daemon
from redoxfs.launch.errors import CommandError
from redoxfs.launch.path_status import PathStatus, our_mount_of
from redoxfs.linux.mount_table import read_mounts

TIMEOUT_S = 30.0


class EpochError(Exception):
    """A mount could not be told: one line."""


def epoch(path: str | os.PathLike[str], tree: str | None = None) -> bool:
    """Tell the mount that ``path`` lies in: an epoch begins.

    ``tree`` is a class tree, such as "train", by its name in `redoxfs inspect`; None: all of them. Returns whether the
    mount began a pass: False on a plain directory, and where the policy has none, so a script may always call it.

    Raises:
        EpochError: the daemon does not answer, is another user's, or has no such tree.
    """
    mount = our_mount_of(Path(os.path.realpath(path)), read_mounts())
    if mount is None:
        return False
    try:
        answer = ask_daemon(mount, "epoch", b"" if tree is None else os.fsencode(tree), TIMEOUT_S)
    except CommandError as error:
        raise EpochError(str(error)) from None
    return bool(answer["begun"])


@dataclass(frozen=True)
class ToldTree:
    """A class tree of a mount, of which epochs are told.

    ``count``    the number of its epoch at this node; None: nodes do not count them, or the daemon is older
    ``dataset``  the same at all nodes that count together
    """

    name: str
    count: int | None
    dataset: str


def tree_of(mount: PathStatus, folder: str) -> ToldTree | None:
    """The class tree that the files in ``folder`` are of, a path from the mount's root on; None: it is not known, or
    has no passes.

    Raises CommandError.
    """
    answer = ask_daemon(mount, "epoch-tree", os.fsencode(folder), TIMEOUT_S)
    # A daemon that is older than this package says the tree alone.
    return None if answer["tree"] is None else ToldTree(answer["tree"], answer.get("count"), answer.get("dataset", ""))


def tell_epoch(mount: PathStatus, tree: str, number: int | None, ranks: int, rank: int, least: int = 0) -> int | None:
    """An epoch of ``tree`` begins, of one of so many ranks. The first of them begins the pass.

    ``number``: of the epoch, if the job counts. ``least``: what the node is to count it by, if it has not begun that
    one yet. Returns what it counts it by, if it counts. Raises CommandError.
    """
    told: list[Any] = [tree, number, ranks, rank]
    answer = ask_daemon(mount, "epoch-of-rank", json.dumps([*told, least] if least else told).encode(), TIMEOUT_S)
    return answer.get("count")


class Store(Protocol):
    """What the ranks of a job share, such as a store of torch.distributed. No call waits for another rank."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a value if it was ``expected``, or if there was none and that is empty. Returns what is there now."""


class JobCounts:
    """What the ranks of a job agree on: by which number all nodes count an epoch of a tree.

    In the ``store`` are the highest count that a rank has said, and the number of each epoch, which the first rank that
    comes to it has made one more. Without a store that answers, each node counts for itself.

    Args:
        told: the epochs that this process has told, of a job with this store. Of those that have no number, only the
            first one is the same at all ranks.
    """

    def __init__(self, store: Store, tree: ToldTree, told: set[int | None]) -> None:
        self._store = store
        self._of = f"redoxfs/{tree.dataset}/{tree.name}"
        self._told = told

    def say(self, count: int | None) -> None:
        """A node counts its epoch by this number."""
        if count is None:
            return
        # Stores raise errors of any kind.
        with suppress(Exception):
            highest = self._highest(count)
            while highest < count:
                highest = int(self._store.compare_set(f"{self._of}/highest", str(highest), str(count)))

    def number_of(self, epoch: int | None) -> int:
        """By which number all nodes count an epoch, if it is told for the first time; else 0."""
        if epoch in self._told:
            return 0
        self._told.add(epoch)
        with suppress(Exception):
            return int(self._store.compare_set(f"{self._of}/{epoch}", "", str(self._highest(0) + 1)))
        return 0

    def _highest(self, if_none: int) -> int:
        return int(self._store.compare_set(f"{self._of}/highest", "", str(if_none)))
