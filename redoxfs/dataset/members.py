"""Labels that are the content of one file of each sample, as WebDataset's KEY.cls: `--classes member:cls`.

The files of a sample are bound together, so a label that is read beside its image is right in any case. Here samples
stand in only for those of the same label, so it is right too if a script reads all labels first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.groups import Groups
from redoxfs.dataset.tree import Tree

MEMBER = "member:"

LABEL_MAX_BYTES = 256
"""A label is a number or a name. What is longer is a caption or an image."""

LABELLED = 2
"""The files of a sample of an image and its label."""

Contents = Callable[[NDArray[np.int32]], list[bytes]]
"""The content of each of some files."""


def role_of(classes: str) -> bytes | None:
    """The role of the files that have the labels; None if labels are elsewhere. Raises ClassesError."""
    if not classes.startswith(MEMBER):
        return None
    suffix = classes.removeprefix(MEMBER).removeprefix(".").lower()
    if not suffix or "/" in suffix:
        raise ClassesError(f"--classes {classes}: behind {MEMBER} comes a suffix, as in {MEMBER}cls")
    return b"." + suffix.encode("utf-8", "surrogateescape")


def read_labels(tree: Tree, groups: Groups, classes: str, contents: Contents) -> tuple[NDArray[np.int64], list[str]]:
    """The label of each sample, int64[S] into the labels. Raises ClassesError."""
    role = role_of(classes)
    place = np.array([kind.index(role) if role in kind else -1 for kind in groups.kinds], np.int64)[groups.kind]
    lacking = np.flatnonzero(place < 0)
    if len(lacking):
        raise ClassesError(
            f"--classes {classes}: {len(lacking):,} of {len(groups):,} samples have no file with this suffix, such as "
            f"{show(tree.path(int(groups.first[lacking[0]])))}; name the others with --samples, or leave --classes out"
        )
    files = groups.members[groups.member_at[:-1] + place]
    large = np.flatnonzero(tree.size[files] > LABEL_MAX_BYTES)
    if len(large):
        raise _wrong(classes, tree, files[large[0]], f"is longer than {LABEL_MAX_BYTES} bytes, and a label is short")
    labels: dict[bytes, int] = {}
    found = [labels.setdefault(text.strip(), len(labels)) for text in contents(files)]
    names = []
    for label, number in labels.items():
        name = label.decode("utf-8", "replace")
        if not name or not name.isprintable() or name.encode() != label:
            what = "is not a text in one line" if label else "is empty"
            raise _wrong(classes, tree, files[found.index(number)], what)
        names.append(name)
    return np.array(found, np.int64), names


def _wrong(classes: str, tree: Tree, file: np.int32, what: str) -> ClassesError:
    return ClassesError(f"--classes {classes}: {show(tree.path(int(file)))} {what}; correct it, or leave --classes out")
