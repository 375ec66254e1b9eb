"""`redoxfs verify`: check every byte of a packed dataset against its index, and names against WebDataset's rules."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from redoxfs.dataset import Catalog, show
from redoxfs.packed.index import Index, load_index
from redoxfs.packed.positions import files_in_order
from redoxfs.packed.shard import ShardMap, check_shard
from redoxfs.packed.workers import Done, Tally, Work, each_shard

NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """The result. ``problems`` are lines, each naming a shard and a file; none means that the dataset is intact.

    ``not_for_webdataset`` has the first NAMES_SHOWN of the ``not_for_webdataset_count`` files that WebDataset would
    merge, mangle or miss. Its key ends at the first dot of a name, so a name needs exactly one dot, and not in front.
    """

    shards: int
    files: int
    size: int
    problems: tuple[str, ...]
    not_for_webdataset: tuple[str, ...]
    not_for_webdataset_count: int


def verify(
    folder: Path, *, jobs: int, on_progress: Callable[[Done, int], None] = lambda _done, _size: None
) -> Verified:
    """Read all shards. ``on_progress`` is called now and then with the work done and the total bytes.

    Raises:
        DamagedDatasetError: the index is damaged, so the shards cannot be checked against it.
    """
    index = load_index(folder)
    tree, positions = index.catalog.tree, index.positions
    size = int(tree.size[tree.kind_mask(0o100000)].sum())
    work = Work(_prepare, folder, _carry_out)
    problems = dict(each_shard(work, range(len(positions.shard_names)), jobs, lambda done: on_progress(done, size)))
    return verified(index, problems, _tars(folder))


def verified(index: Index, problems: Mapping[int, list[str]], tars: Sequence[str]) -> Verified:
    """The result, from the problems of each shard, and the names of the tar files that lie beside the index."""
    tree, positions = index.catalog.tree, index.positions
    strays = sorted(set(tars) - set(positions.shard_names))
    count, names = _not_for_webdataset(index.catalog)
    return Verified(
        shards=len(positions.shard_names),
        files=int(tree.kind_mask(0o100000).sum()),
        size=int(tree.size[tree.kind_mask(0o100000)].sum()),
        problems=(
            *(line for shard in sorted(problems) for line in problems[shard]),
            *(f"{name}: not a shard of this dataset" for name in strays),
        ),
        not_for_webdataset=names,
        not_for_webdataset_count=count,
    )


def _tars(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".tar")]


def _prepare(folder: Path) -> tuple[Index, ShardMap, Path]:
    index = load_index(folder)
    return index, ShardMap.of(index.catalog.tree, index.positions), folder


def _carry_out(state: tuple[Index, ShardMap, Path], shard: int, tally: Tally) -> list[str]:
    index, shards, folder = state
    name = index.positions.shard_names[shard]
    sums = index.sums[shards.blocks(shard)]
    try:
        return check_shard(shards, shard, folder / name, sums, progress=tally.add, stopping=tally.stopping)
    except OSError as error:
        return [f"{name}: {error.strerror}"]


def _not_for_webdataset(catalog: Catalog) -> tuple[int, tuple[str, ...]]:
    tree = catalog.tree
    files = files_in_order(catalog, np.arange(len(catalog.class_of)))
    dots = np.concatenate([[0], np.cumsum(tree.names == ord("."))])
    begin, end = tree.name_at[files], tree.name_at[files + 1]
    bad = files[(dots[end] - dots[begin] != 1) | (tree.names[begin] == ord("."))]
    return len(bad), tuple(show(tree.path(entry)) for entry in bad[:NAMES_SHOWN].tolist())
