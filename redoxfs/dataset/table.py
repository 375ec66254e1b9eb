"""A label table: a csv with a header, whose columns give the path (relative to the source), the class, and the split.

If the first row's path is not there, and one folder alone has it, all paths are relative to that folder: a table beside
`img` usually says `7.jpg`. If one image, sound or video alone has it with a suffix, all paths lack that suffix: many
tables say `7`.

Headers are those that people have: `file_name,label` is as good as `path,class` (see HEADERS). Where two columns may
both be the class, guessing would give wrong labels, so that is an error. Columns for a split are all used: a sample
stands in only for samples with the same value in each of them. So no choice between `split` and `fold` can be wrong.

Rejected: to take the other column of two for the path or the class, whatever its header. It may be a split (`set`), a
second path (`query,positive`), a number of the row, or the first row of a table without a header.

Any mistake in the table is an error that names the line: a row that names no file, a file with two classes, a short
row. Skipping such rows would silently train on a part of the data, or on wrong labels.
"""

from __future__ import annotations

import csv
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.classes import hard_links_apart
from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.groups import Groups
from redoxfs.dataset.samples import COMPRESSED_IMAGE, DATA_EXTENSIONS
from redoxfs.dataset.tree import Tree

# fmt: off
HEADERS = {
    "path": (
        "path", "file", "file_name", "file_path", "image", "image_name", "image_path", "image_file", "img", "img_name",
        "img_path", "image_id", "img_id", "audio", "audio_path", "audio_file", "video", "video_path", "slice_file_name",
        "relative_path",
    ),
    "class": (
        "class", "classes", "class_name", "class_label", "class_id", "label", "label_name", "label_id", "target",
        "category", "category_name", "category_id",
    ),
}
# fmt: on
"""The headers of a column, the documented name first. Case, separators and the s of a plural do not count."""

SPLIT_HEADERS = ("split", "fold", "subset", "partition", "kfold")
"""Each column with such a header keeps the splits apart."""

# Headers and values shown in a line before it says "…".
SHOWN_MAX = 8
# Names held unpacked, about 60 bytes each. Rows come in any order, and most trees fit whole.
NAMES_HELD_MAX = 2_000_000

Said = tuple[str, tuple[str, ...]]
"""A class, and the value of each column for a split."""


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a table, as indices of fields."""

    path: int
    label: int
    splits: tuple[int, ...]
    names: tuple[str, ...]  # of all columns, for messages

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(self.names[at] for at in self.splits)

    @property
    def unread(self) -> tuple[str, ...]:
        read = {self.path, self.label, *self.splits}
        return tuple(name for at, name in enumerate(self.names) if name and at not in read)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What the table says of each tree entry: one of R different pairs of a class and a split, and its line."""

    where: str  # the table's path, for messages
    label: NDArray[np.int32]  # [N] into pairs; -1: not in the table
    line: NDArray[np.int32]  # [N]; 0: not in the table
    pairs: list[str]  # in words
    class_of: NDArray[np.int64]  # [R] into classes
    split_of: NDArray[np.int64]  # [R] into splits
    classes: list[str]
    splits: list[str]  # in words; [""] without a column
    split_values: tuple[frozenset[str], ...]  # of each column for a split
    saw: tuple[str, ...]


def check_table(where: str) -> None:
    """Refuse what is no table by its first lines, before a scan that may take long. Raises ClassesError."""
    _, rows = _open(where)
    for _ in rows:
        return


def read_table(tree: Tree, where: str) -> Table:
    """Read the csv at `where`. A ClassesError names the file and line of a mistake."""
    label = np.full(len(tree), -1, np.int32)
    line = np.zeros(len(tree), np.int32)
    ids: dict[Said, int] = {}
    pairs: list[str] = []
    finder, folder, suffix = _Finder(tree), b"", b""
    count = 0
    first: list[tuple[int, bytes]] = []
    header, rows = _open(where)
    one = "a file has one class" + (" and one split" if header.splits else "")
    for number, path, pair in rows:
        count += 1
        if not pair[0]:
            raise ClassesError(f"{where}, line {number}: no class for {show_text(path)}; remove the row or fill it in")
        name = path.encode("utf-8", "surrogateescape")
        entry = finder.find(folder + name + suffix)
        if entry < 0 and count == 1:
            folder, suffix, entry = finder.only(name)
        if entry < 0:
            without = f" (without {show(suffix)} in the table)" if suffix else ""
            raise ClassesError(
                f"{where}, line {number}: no such file in the source: {show(name + suffix)}{without}; paths are"
                f" relative to the source{finder.or_a_folder()}{finder.with_suffix(folder + name)}"
            )
        if suffix and count <= ROWS_LOOKED_AT:
            first.append((number, name))
        if not tree.is_file(entry):
            kind = "directory" if tree.is_dir(entry) else "symlink"
            raise ClassesError(
                f"{where}, line {number}: {show_text(path)} is a {kind}; each row names one regular file"
            )
        said = ids.setdefault(pair, len(ids))
        if said == len(pairs):
            split = _split_in_words(header, pair[1])
            pairs.append(f"{pair[0]!r} ({split})" if split else f"{pair[0]!r}")
        if label[entry] >= 0 and label[entry] != said:
            raise ClassesError(
                f"{where}, line {number}: {show_text(path)} is {pairs[said]} here and {pairs[int(label[entry])]} in"
                f" line {int(line[entry])}; {one}"
            )
        if label[entry] < 0:
            label[entry], line[entry] = said, number
    for (number, name), several in zip(first, finder.with_suffixes([name for _, name in first]), strict=True):
        if len(several) > 1:
            # The first row's other file may just be missing.
            one, other = (show(start + name + end) for start, end, _ in several[:2])
            raise ClassesError(f"{where}, line {number}: {one} and {other} are there: write each path with its suffix")
    _refuse_inodes(tree, where, label, line, pairs)
    classes = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in ids))}
    splits = {values: at for at, values in enumerate(dict.fromkeys(values for _, values in ids))}
    return Table(
        where,
        label,
        line,
        pairs,
        np.array([classes[name] for name, _ in ids], np.int64),
        np.array([splits[values] for _, values in ids], np.int64),
        list(classes),
        [_split_in_words(header, values) for values in splits],
        tuple(map(frozenset, zip(*splits, strict=True))),
        tuple(_saw(where, count, header, len(splits), folder, suffix)),
    )


def _saw(where: str, rows: int, header: Header, splits: int, folder: bytes, suffix: bytes) -> Iterator[str]:
    apart = ""
    if header.splits:
        columns = " and ".join(map(show_text, header.split_names))
        apart = f"; no sample crosses between the {splits:,} values of {columns}" if splits > 1 else ""
    paths = [f"are relative to {show(folder)}"] if folder else []
    if suffix:
        paths.append(f"lack {show(suffix)}")
    whose = f", whose paths {' and '.join(paths)}" if paths else ""
    yield f"{rows:,} rows in {where}{whose}{apart}"
    if header.unread:
        yield (
            f"not read from {where}: {_listed(header.unread)}; a script that looks these up by file name gets those of"
            " another file"
        )


def _split_in_words(header: Header, values: tuple[str, ...]) -> str:
    """`split val`, `split train/fold 3`, `no fold`. Different values have different words, also beside a path."""
    words = []
    for name, value in zip(header.split_names, values, strict=True):
        shown = value if re.fullmatch(r"[\w .+-]+", value, re.ASCII) else ascii(value)
        words.append(f"{show_text(name)} {shown}" if value else f"no {show_text(name)}")
    return "/".join(words)


def label_groups(tree: Tree, table: Table, groups: Groups) -> NDArray[np.int64]:
    """The pair of each sample: int64[S] into `table.pairs`, -1 where the table names none of its files.

    Raises ClassesError if two files of one sample have different classes or splits.
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
            f" {table.pairs[int(table.label[entry])]}, but {show(tree.path(other))} of the same group is"
            f" {table.pairs[int(table.label[other])]} in line {int(table.line[other])}"
        )
    return label


def show_text(path: str) -> str:
    return show(path.encode("utf-8", "surrogateescape"))


def _open(where: str) -> tuple[Header, Iterator[tuple[int, str, Said]]]:
    """The header, and (line number, path, class and splits) of each row that is not blank."""
    lines = _lines(where)
    _, names = next(lines)
    header = _header(where, [name.strip() for name in names])
    last = max(header.path, header.label, *header.splits)

    def rows() -> Iterator[tuple[int, str, Said]]:
        for begin, row in lines:
            if row and len(row) <= last:
                raise ClassesError(
                    f"{where}, line {begin}: {len(row)} of at least {last + 1} fields; each row needs"
                    f" {_listed(tuple(header.names[at] for at in (header.path, header.label, *header.splits)))}"
                )
            if row:
                yield begin, row[header.path], (row[header.label], tuple(row[at] for at in header.splits))

    return header, rows()


def _lines(where: str) -> Iterator[tuple[int, list[str]]]:
    """(number, fields) of each line, a blank one included. The header is the first, of no fields in an empty file."""
    try:
        if not stat.S_ISREG(os.stat(where).st_mode):
            raise ClassesError(f"--classes {where}: not a regular file, and a table is read more than once")
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
            if "\0" in "".join(header):
                raise ClassesError(f"--classes {where}: not UTF-8 but perhaps UTF-16; save it as a csv in UTF-8")
            yield 1, header
            begins = reader.line_num + 1
            for row in reader:
                yield begins, row
                begins = reader.line_num + 1
        except csv.Error as error:
            raise ClassesError(f"{where}, line {reader.line_num}: not a csv: {error}") from None
        except OSError as error:
            raise ClassesError(f"--classes {where}: cannot read it: {error.strerror}") from None


def _header(where: str, names: list[str]) -> Header:
    keys = [_key(name) for name in names]
    path, label = (_column(where, names, keys, what) for what in HEADERS)
    known = set(map(_key, SPLIT_HEADERS))
    return Header(path, label, tuple(at for at, key in enumerate(keys) if key in known), tuple(names))


def _column(where: str, names: list[str], keys: list[str], what: str) -> int:
    """The column for `what`: the one with that header, or the only one with another header for it."""
    found = [at for at, key in enumerate(keys) if key == _key(what)]
    if not found:
        known = set(map(_key, HEADERS[what]))
        found = [at for at, key in enumerate(keys) if key in known]
    if len(found) == 1:
        return found[0]
    if not found:
        semicolons = "; its fields must have commas between them" if re.search(r"[;\t]", " ".join(names)) else ""
        raise ClassesError(
            f"{where}, line 1: no column {what!r} among {_listed(tuple(names)) or 'none'}{semicolons}; rename the right"
            f" one to {what}; understood are {', '.join(HEADERS[what])}"
        )
    several = tuple(names[at] for at in found)
    if len(set(several)) == 1:
        raise ClassesError(f"{where}, line 1: more than one column {several[0]!r}; keep one of them")
    raise ClassesError(
        f"{where}, line 1: each of the columns {_listed(several)} may be the {what}; rename the right one to {what}"
    )


def _key(header: str) -> str:
    """What counts of a header: `File Names` is `file_name`."""
    return re.sub(r"(?<=[^s])s$", "", re.sub(r"[\W_]+", "", header.lower()))


def _listed(names: tuple[str, ...]) -> str:
    named = [show_text(name) for name in names if name]
    return ", ".join([*named[:SHOWN_MAX], *["…"] * (len(named) > SHOWN_MAX)])


FOLDERS_MAX = 1000
"""Folders in which the first row of a table is looked for."""

ROWS_LOOKED_AT = 100
"""Rows of a table without suffixes that may mean one file alone."""


class _Finder:
    """Tree.find for a million paths: looks a directory up and unpacks its names once for many rows."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._directories: dict[bytes, int] = {b"": 0}
        self._names: dict[int, list[bytes]] = {}
        self._slashed: list[bytes] | None = None
        self._held = 0

    def find(self, path: bytes) -> int:
        at, names, children = self._place(path)
        return children[at] if at < len(names) and names[at] == path.rpartition(b"/")[2] else -1

    def _place(self, path: bytes) -> tuple[int, list[bytes], range]:
        """Where ``path`` belongs among the sorted names of its directory; those, and their entries. None without it."""
        above, _, name = path.rpartition(b"/")
        directory = self._directories.get(above)
        if directory is None:
            directory = self._directories[above] = self._tree.find(above) if not above.startswith(b"/") else -1
        if directory < 0 or path.startswith(b"/") or name in (b"", b"."):
            return 0, [], range(0)
        children = self._tree.children_of(directory)
        names = self._names.get(directory)
        if names is None:
            if self._held > NAMES_HELD_MAX:
                self._names.clear()
                self._held = 0
            names = self._names[directory] = self._tree.names_of(children)
            self._held += len(names)
        return bisect_left(names, name), names, children

    def _folders(self) -> list[int]:
        return np.flatnonzero(self._tree.kind_mask(stat.S_IFDIR)).tolist()[1:]

    def _starts(self, path: bytes) -> list[bytes]:
        """The folders that the first row's path may be relative to, each with a slash."""
        if path.startswith(b"/"):
            return []
        if self._slashed is None:
            folders = self._folders()
            self._slashed = [self._tree.path(each) + b"/" for each in folders] if len(folders) <= FOLDERS_MAX else []
        return self._slashed

    def or_a_folder(self) -> str:
        """What else paths may be relative to, for an error."""
        if len(self._folders()) > FOLDERS_MAX:
            return f"; for the one folder that has the first, redoxfs looks among {FOLDERS_MAX:,} folders at most"
        return ", or to the one folder that has the first"

    def with_suffix(self, path: bytes) -> str:
        """For an error: that ``path`` and a suffix is there, in the source or in a folder of it; else nothing."""
        found = self.with_suffixes([path])[0] or self.with_suffixes([path], of_data=False)[0]
        if not found:
            return ""
        start, suffix, _ = found[0]
        what = "folder and suffix" if start else "suffix"
        return f"; {show(start + path + suffix)} is there: write each path with its {what}"

    def only(self, path: bytes) -> tuple[bytes, bytes, int]:
        """The folder with a slash, the suffix and the entry of the only file that a first row's ``path`` may mean.

        The folder is empty for SOURCE. Files that have the path as it is come first. (b"", b"", -1) if not one.
        """
        starts = self._starts(path)
        there = [(start, self.find(start + path)) for start in starts]
        found = [(start, b"", entry) for start, entry in there if entry >= 0 and self._tree.is_file(entry)]
        found = found or self.with_suffixes([path])[0]
        return found[0] if len(found) == 1 else (b"", b"", -1)

    def with_suffixes(self, paths: Sequence[bytes], *, of_data: bool = True) -> list[list[tuple[bytes, bytes, int]]]:
        """The folder, the suffix and the entry of each file that each of ``paths`` may mean without suffix, if
        ``of_data`` of each image, sound, video or array. Each folder is unpacked once for all of them."""
        known = {*DATA_EXTENSIONS, COMPRESSED_IMAGE}
        found: list[list[tuple[bytes, bytes, int]]] = [[] for _ in paths]
        for start in [b"", *self._starts(b"")] if paths else []:
            for path, of_path in zip(paths, found, strict=True):
                # No path of SOURCE begins with a slash.
                for suffix, entry in self._suffixes(start + path) if not path.startswith(b"/") else ():
                    if self._tree.is_file(entry) and (suffix.lower() in known or not of_data):
                        of_path.append((start, suffix, entry))
        return found

    def _suffixes(self, path: bytes) -> Iterator[tuple[bytes, int]]:
        """The suffixes with which ``path`` is there, and the entries."""
        stem = path + b"."
        name = stem.rpartition(b"/")[2]
        at, names, children = self._place(stem)
        while at < len(names) and names[at].startswith(name):
            yield names[at][len(name) - 1 :], children[at]
            at += 1


def _refuse_inodes(tree: Tree, where: str, label: NDArray[np.int32], line: NDArray[np.int32], names: list[str]) -> None:
    """Raise ClassesError if two names of one file (hard links) have different classes."""
    named = np.flatnonzero(label >= 0)
    apart = hard_links_apart(tree, named, label[named])
    if apart is not None:
        a, b = sorted(apart, key=line.__getitem__)
        raise ClassesError(
            f"{where}, line {int(line[b])}: {show(tree.path(b))} is {names[int(label[b])]}, and"
            f" {show(tree.path(a))} of line {int(line[a])} is the same file (a hard link) as {names[int(label[a])]}"
        )
