"""The types of `redoxfs.native` that need no thread: Buffer, and Tree against `redoxfs.dataset.Tree`."""

import errno
import gc
import os
import random
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stores import bytes_in_buffers

from redoxfs import dataset, native
from redoxfs.native import Buffer

MIB = 1 << 20

# Buffers ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300_000))
def test_a_buffer_is_a_read_only_copy(data: bytes) -> None:
    source = bytearray(data)
    buffer = Buffer(source)
    source[:] = bytes(len(data))
    view = memoryview(buffer)
    assert (bytes(view), len(buffer), view.readonly, view.format) == (data, len(data), True, "B")


def test_a_view_keeps_the_bytes_of_a_buffer_that_is_gone() -> None:
    before = bytes_in_buffers()
    data = os.urandom(100_000)
    view = memoryview(Buffer(data))[10:]
    assert Buffer.total_bytes() == before + len(data)
    assert view == data[10:]
    view.release()
    gc.collect()
    assert Buffer.total_bytes() == before


def test_a_buffer_of_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        Buffer("text")  # type: ignore[arg-type]


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


KEPT_BYTES = 8 * MIB
"""What may be kept for the next buffers beside a sixteenth of what is needed, as buffer.c has it."""


@pytest.mark.parametrize("most", [10_000, 300_000, 20_000_000])
def test_buffers_take_little_more_memory_than_their_bytes(most: int) -> None:
    own = random.Random(most)
    # A buffer's average is half of the most.
    count = max(8, 2 * 48 * MIB // most)
    data = memoryview(b"x" * most)
    before_bytes, before_rss_bytes = bytes_in_buffers(), rss_bytes()
    held = [Buffer(data[: own.randrange(most)]) for _ in range(count)]
    for turn in range(2 * count):
        held[own.randrange(count)] = Buffer(data[: own.randrange(most)])
        if turn % 100 == 0:
            used_bytes = Buffer.total_bytes() - before_bytes
            # Rounding adds 6 % on average, a sixteenth is kept; Python and its objects take a little.
            assert rss_bytes() - before_rss_bytes <= 1.15 * used_bytes + KEPT_BYTES + most + 4 * MIB
    del held
    assert rss_bytes() - before_rss_bytes <= KEPT_BYTES + 4 * MIB


# Trees ------------------------------------------------------------------------------------------------------------

Nested = dict[bytes, "Nested | None"]
"""A directory: names to directories, or to None for files."""

NAMES = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
TREES = st.dictionaries(
    NAMES,
    st.recursive(st.none(), lambda below: st.dictionaries(NAMES, below, max_size=6), max_leaves=30),
    max_size=6,
)
# What `native.Tree` reads.
COLUMNS = (
    *("names", "name_at", "parent", "first_child", "children", "mode", "nlink", "uid", "gid", "size"),
    *("mtime_ns", "ctime_ns"),
)
Columns = dict[str, NDArray[Any]]


def tree_of(root: Nested) -> dataset.Tree:
    """The tree of nested names, as a scan would return it."""
    names, parent, first_child = [b""], [0], [0]
    below: list[Nested | None] = [root]
    for entry, found in enumerate(below):
        if found is not None and entry:
            first_child[entry] = len(below) if found else 0
        elif not entry:
            first_child[0] = 1
        for name, what in sorted((found or {}).items()):
            names.append(name)
            parent.append(entry)
            first_child.append(0)
            below.append(what)
    count = len(names)
    numbers = np.arange(count)
    modes = [stat.S_IFREG | 0o644 if found is None else stat.S_IFDIR | 0o755 for found in below]
    no_links = np.zeros(0, np.int32)
    return dataset.Tree(
        names=np.frombuffer(b"".join(names), np.uint8),
        name_at=np.cumsum([0, *map(len, names)], dtype=np.int64),
        parent=np.array(parent, np.int32),
        first_child=np.array(first_child, np.int32),
        children=np.array([len(found or {}) for found in below], np.int32),
        mode=np.array(modes, np.uint32),
        uid=numbers.astype(np.uint32),
        gid=numbers.astype(np.uint32),
        nlink=np.ones(count, np.uint32),
        size=numbers * 1000,
        mtime_ns=numbers + 5,
        ctime_ns=numbers + 6,
        inode=numbers.astype(np.uint64),
        device=np.ones(count, np.uint64),
        extension=np.zeros(count, np.int32),
        link_entry=no_links,
        link_names=np.zeros(0, np.uint8),
        link_at=np.zeros(1, np.int64),
        link_device=no_links.astype(np.uint64),
        link_inode=no_links.astype(np.uint64),
        extensions=(b"",),
        roots=(),
        skipped=0,
    )


def columns_of(tree: dataset.Tree) -> Columns:
    columns: Columns = {name: getattr(tree, name) for name in COLUMNS}
    return columns | {"sample_of": np.full(len(tree), -1, np.int32)}


def native_tree(columns: Columns) -> native.Tree:
    return native.Tree(**columns)


@given(TREES)
def test_paths_are_those_of_the_dataset_tree(nested: Nested) -> None:
    tree = tree_of(nested)
    here = native_tree(columns_of(tree))
    assert len(here) == len(tree)
    for entry in range(len(tree)):
        assert here.path(entry) == tree.path(entry)
        assert tree.find(here.path(entry)) == entry


def test_a_tree_keeps_its_arrays() -> None:
    here = native_tree({name: column.copy() for name, column in columns_of(tree_of({b"a": {b"b": None}})).items()})
    gc.collect()
    assert here.path(2) == b"a/b"


def test_numbers_that_no_entry_has_are_refused() -> None:
    here = native_tree(columns_of(tree_of({b"a": None})))
    for entry in (-1, 2, 1 << 40):
        with pytest.raises(IndexError):
            here.path(entry)
    with pytest.raises(IndexError):
        here.path(1 << 70)


class Triple(NamedTuple):
    one: object
    two: object
    three: object


def test_a_list_may_change_while_it_is_read() -> None:
    class Number:
        def __index__(self) -> int:
            # Any code may run here, which may also empty the list.
            entries[1:] = [1 << 40, 1 << 40]
            return 1

    entries: list[Any] = [Number(), 1, 1]
    tree = native_tree(columns_of(tree_of({b"a": None})))
    failed = native.Files(tree, -1, stamp=Triple, file=Triple, guards=False).read(entries)
    assert [error for error, _ in failed] == [errno.EBADF] * 3


@pytest.mark.parametrize("name", [*COLUMNS, "sample_of"])
def test_an_array_of_another_length_or_type_is_named(name: str) -> None:
    columns = columns_of(tree_of({b"a": None, b"b": {b"c": None}}))
    column = columns[name]
    wrong: list[Any] = [
        column.astype(np.uint16),
        column.astype(np.complex128),
        np.stack([column, column], axis=1)[:, 0],  # not contiguous
        np.frombuffer(b"x" + column.tobytes(), np.uint8)[1:].view(column.dtype),  # not aligned
    ]
    if name != "names":
        wrong += [column[:-1], np.append(column, column[:1])]
    else:
        wrong.pop()  # bytes are always aligned
    for array in wrong:
        # A parent that is too short or too long makes every other column wrong: the next one is named.
        with pytest.raises(ValueError, match="name_at" if name == "parent" and len(array) != len(column) else name):
            native_tree({**columns, name: array})
    with pytest.raises(TypeError):
        native.Tree(**{**columns, name: None})  # type: ignore[arg-type]


SECTIONS = ("queue", "at", "class_of", "begun", "kept", "for_next", "served", "stream", "arrived", "loaded", "stock")


def sections_columns() -> dict[str, np.ndarray[Any, Any]]:
    """Two classes of two samples each, all fresh, and a sample that is in no section."""
    columns = {name: np.array([0, 2], np.int32) for name in SECTIONS}
    columns |= {"queue": np.arange(4, dtype=np.int32), "at": np.array([0, 1, 2, 3, -1], np.int32)}
    columns |= {"class_of": np.array([0, 0, 1, 1, 1], np.int32), "begun": np.array([0, 2, 4], np.int32)}
    return {**columns, "had": np.zeros(5, np.uint8), "stays": np.zeros(5, np.uint8)}


@pytest.mark.parametrize("name", [*SECTIONS, "had", "stays"])
def test_a_column_of_sections_that_is_unfit_is_named(name: str) -> None:
    columns = sections_columns()
    column = columns[name]
    wrong = [(column.astype(np.int64), name)]
    if name != "queue":
        # One that says how long the others are makes another one wrong.
        wrong.append((np.append(column, column[:1]), r"\w+"))
    if name not in {"class_of", "begun"}:
        wrong.append((np.frombuffer(column.tobytes(), column.dtype), name))
    for array, named in wrong:
        with pytest.raises(ValueError, match=f"^{named}: "):
            native.Sections(**{**columns, name: array})


def test_sections_refuse_what_names_no_sample_there() -> None:
    columns = sections_columns()
    sections = native.Sections(**columns)
    before = {name: column.tobytes() for name, column in columns.items()}
    calls: list[Callable[[], object]] = [
        *(partial(sections.take_out, *where) for where in [(0, 0), (-1, 0), (2, 0), (0, -1), (0, 4), (0, 1 << 40)]),
        *(partial(sections.keep, sample, False) for sample in [-1, 0, 4, 5]),
        *(partial(sections.let_go, sample) for sample in [-1, 0, 4, 5]),
        *(partial(sections.load, [sample]) for sample in [-1, 4, 5]),
    ]
    for call in calls:
        with pytest.raises(IndexError):
            call()
    wrong: list[Callable[[], object]] = [partial(sections.load, ["0"]), partial(sections.take_out, 0)]  # type: ignore[list-item]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    assert {name: column.tobytes() for name, column in columns.items()} == before
    assert sections.load([1, 0, 2]) == (3, [0])
    with pytest.raises(IndexError, match="sample 1 is a resident"):
        sections.load([1])
    assert (sections.take_out(0, 1), columns["had"].tolist()) == (0, [1, 0, 0, 0, 0])
    sections.keep(0, True)
    with pytest.raises(IndexError, match="sample 0 had no turn"):
        sections.keep(0, True)
    assert sections.let_go(0)


def test_an_empty_tree_is_refused() -> None:
    columns = {name: column[:0] for name, column in columns_of(tree_of({})).items()}
    with pytest.raises(ValueError, match="parent"):
        native_tree(columns)


def test_a_path_longer_than_the_kernel_takes_is_an_error() -> None:
    nested: Nested = {b"f": None}
    for _ in range(17):
        nested = {b"d" * 240: nested}
    tree = tree_of(nested)
    here = native_tree(columns_of(tree))
    with pytest.raises(ValueError, match="no path"):
        here.path(len(tree) - 1)
    assert here.path(16) == tree.path(16)


NUMBERS = st.one_of(st.integers(-5, 40), st.sampled_from([-(1 << 31), (1 << 31) - 1]))
OFFSETS = st.one_of(NUMBERS, st.sampled_from([-(1 << 63), (1 << 63) - 1]))


@given(nested=TREES, data=st.data())
def test_damaged_columns_never_lead_outside(nested: Nested, data: st.DataObject) -> None:
    tree = tree_of(nested)
    columns = {name: column.copy() for name, column in columns_of(tree).items()}
    for name, numbers in (("name_at", OFFSETS), ("parent", NUMBERS), ("first_child", NUMBERS), ("children", NUMBERS)):
        for at in data.draw(st.lists(st.integers(0, len(columns[name]) - 1), max_size=3)):
            columns[name][at] = data.draw(numbers)
    here = native_tree(columns)
    for entry in range(len(tree)):
        try:
            assert len(here.path(entry)) < 4096
        except ValueError as error:
            assert str(error).startswith(f"entry {entry} has no path")  # noqa: PT017 - either is right
