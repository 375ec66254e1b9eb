"""`redoxfs.epoch`: tells a mount that an epoch begins.

A mount counts opens, and cannot know that a job left out its last batch, looked at a few files first, or broke an epoch
off. Who begins an epoch knows. One process of the job tells it, while no other one reads: with several ranks, rank 0
between two barriers. On several nodes, each mount is told so, and other nodes may read meanwhile. Or each rank tells it
before it reads, with its number (`tell_epoch`, for `redoxfs.torch`).

This module stands above the rooms, as any program that uses redoxfs does.
"""

import json
import os
from pathlib import Path

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


def tree_of(mount: PathStatus, folder: str) -> str | None:
    """The class tree that the files in ``folder`` are of; None: it is not known, or has no passes.

    Raises CommandError.
    """
    tree: str | None = ask_daemon(mount, "epoch-tree", os.fsencode(os.path.relpath(folder, mount.path)), TIMEOUT_S)[
        "tree"
    ]
    return tree


def tell_epoch(mount: PathStatus, tree: str, number: int | None, ranks: int, rank: int) -> None:
    """An epoch of ``tree`` begins, of one of so many ranks. The first of them begins the pass.

    ``number``: of the epoch, if the job counts. Raises CommandError.
    """
    ask_daemon(mount, "epoch-of-rank", json.dumps([tree, number, ranks, rank]).encode(), TIMEOUT_S)
