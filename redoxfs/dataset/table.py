"""A label table: a csv with a header and the columns `path` (relative to the source) and `class`.

Any mistake in the table is an error that names the line: a row that names no file, a file with two classes, a short
row. Skipping such rows would silently train on a part of the data, or on wrong labels.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.groups import Groups
from redoxfs.dataset.tree import Tree

COLUMNS = ("path", "class")
# Names held unpacked, about 60 bytes each. Rows come in any order, and most trees fit whole.
NAMES_HELD_MAX = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The label of each tree entry, and the line of the table with it."""

    where: str  # the table's path, for messages
    label: NDArray[np.int32]  # [N] into names; -1: not in the table
    line: NDArray[np.int32]  # [N]; 0: not in the table
    names: list[str]
    saw: tuple[str, ...]


def check_table(where: str) -> None:
    """Refuse what is no table by its first lines, before a scan that may take long. Raises ClassesError."""
    for _ in _rows(where):
        return


def read_table(tree: Tree, where: str) -> Table:
    """Read the csv at `where`. A ClassesError names the file and line of a mistake."""
    label = np.full(len(tree), -1, np.int32)
    line = np.zeros(len(tree), np.int32)
    ids: dict[str, int] = {}
    finder = _Finder(tree)
    rows = 0
    for number, path, name in _rows(where):
        rows += 1
        if not name:
            raise ClassesError(f"{where}, line {number}: no class for {show_text(path)}; remove the row or fill it in")
        entry = finder.find(path.encode("utf-8", "surrogateescape"))
        if entry < 0:
            hint = "; paths are relative to the source" if path.startswith("/") else ""
            raise ClassesError(f"{where}, line {number}: no such file in the source: {show_text(path)}{hint}")
        if not tree.is_file(entry):
            kind = "directory" if tree.is_dir(entry) else "symlink"
            raise ClassesError(
                f"{where}, line {number}: {show_text(path)} is a {kind}; each row names one regular file"
            )
        said = ids.setdefault(name, len(ids))
        if label[entry] >= 0 and label[entry] != said:
            before = list(ids)[int(label[entry])]
            raise ClassesError(
                f"{where}, line {number}: {show_text(path)} is {name!r} here and {before!r} in line"
                f" {int(line[entry])}; a file has one class"
            )
        if label[entry] < 0:
            label[entry], line[entry] = said, number
    _refuse_inodes(tree, where, label, line, list(ids))
    return Table(where, label, line, list(ids), (f"{rows:,} rows in {where}",))


def label_groups(tree: Tree, table: Table, groups: Groups) -> NDArray[np.int64]:
    """The label of each sample: int64[S], -1 where the table names none of its files.

    Raises ClassesError if two files of one sample have different classes.
    """
    lengths = np.diff(groups.member_at)
    of_sample = np.repeat(np.arange(len(groups)), lengths)
    said = table.label[groups.members].astype(np.int64)
    named = np.flatnonzero(said >= 0)
    label = np.full(len(groups), -1, np.int64)
    # Written backwards, so that the first named member of each sample decides.
    label[of_sample[named[::-1]]] = said[named[::-1]]
    clash = named[label[of_sample[named]] != said[named]]
    if len(clash):
        entry = int(groups.members[clash[0]])
        sample = of_sample[clash[0]]
        members = groups.members[groups.member_at[sample] : groups.member_at[sample + 1]]
        other = int(members[table.label[members] == label[sample]][0])
        raise ClassesError(
            f"{table.where}, line {int(table.line[entry])}: {show(tree.path(entry))} is"
            f" {table.names[int(table.label[entry])]!r}, but {show(tree.path(other))} of the same group is"
            f" {table.names[int(table.label[other])]!r} in line {int(table.line[other])}"
        )
    return label


def show_text(path: str) -> str:
    return show(path.encode("utf-8", "surrogateescape"))


def _rows(where: str) -> Iterator[tuple[int, str, str]]:
    """(line number, path, class) of each row that is not blank."""
    try:
        file = open(where, newline="", encoding="utf-8-sig", errors="surrogateescape")  # noqa: SIM115
    except FileNotFoundError:
        raise ClassesError(
            f"--classes {where}: no such file; write auto, dir, any, sampler, none, or the path of a csv with the"
            " columns path,class"
        ) from None
    except OSError as error:
        raise ClassesError(f"--classes {where}: cannot read it: {error.strerror}") from None
    with file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            columns = [name.strip() for name in header]
            for column in COLUMNS:
                if columns.count(column) != 1:
                    fault = "no" if column not in columns else "more than one"
                    raise ClassesError(
                        f"{where}, line 1: {fault} column {column!r}; the header must have the columns path,class"
                    )
            path_at, class_at = (columns.index(column) for column in COLUMNS)
            last = max(path_at, class_at)
            begins = reader.line_num + 1
            for row in reader:
                if row and len(row) <= last:
                    raise ClassesError(
                        f"{where}, line {begins}: {len(row)} of at least {last + 1} fields; each row needs path and"
                        " class"
                    )
                if row:
                    yield begins, row[path_at], row[class_at]
                begins = reader.line_num + 1
        except csv.Error as error:
            raise ClassesError(f"{where}, line {reader.line_num}: not a csv: {error}") from None
        except OSError as error:
            raise ClassesError(f"--classes {where}: cannot read it: {error.strerror}") from None


class _Finder:
    """Tree.find for a million paths: looks a directory up and unpacks its names once for many rows."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._directories: dict[bytes, int] = {b"": 0}
        self._names: dict[int, list[bytes]] = {}
        self._held = 0

    def find(self, path: bytes) -> int:
        above, _, name = path.rpartition(b"/")
        directory = self._directories.get(above)
        if directory is None:
            directory = self._directories[above] = self._tree.find(above) if not above.startswith(b"/") else -1
        if directory < 0 or path.startswith(b"/") or name in (b"", b"."):
            return -1
        children = self._tree.children_of(directory)
        names = self._names.get(directory)
        if names is None:
            if self._held > NAMES_HELD_MAX:
                self._names.clear()
                self._held = 0
            names = self._names[directory] = self._tree.names_of(children)
            self._held += len(names)
        at = bisect_left(names, name)
        return children[at] if at < len(names) and names[at] == name else -1


def _refuse_inodes(tree: Tree, where: str, label: NDArray[np.int32], line: NDArray[np.int32], names: list[str]) -> None:
    """Raise ClassesError if two names of one file (hard links) have different classes."""
    entries = np.flatnonzero((label >= 0) & (tree.nlink > 1))
    entries = entries[np.lexsort((line[entries], tree.inode[entries], tree.device[entries]))]
    one, other = entries[:-1], entries[1:]
    same = (tree.inode[one] == tree.inode[other]) & (tree.device[one] == tree.device[other])
    clash = np.flatnonzero(same & (label[one] != label[other]))
    if len(clash):
        a, b = int(one[clash[0]]), int(other[clash[0]])
        raise ClassesError(
            f"{where}, line {int(line[b])}: {show(tree.path(b))} is {names[int(label[b])]!r}, and"
            f" {show(tree.path(a))} of line {int(line[a])} is the same file (a hard link) as {names[int(label[a])]!r}"
        )
