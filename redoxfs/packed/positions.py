"""The shard and offset of each entry, computed from the scan and the layout before the first byte is read.

The order of a dataset's entries in its shards:

- ``samples-NNNNNN.tar``: chunk after chunk, slot after slot, the files of a sample side by side. A chunk never spans
  two shards: a shard ends with the chunk that reaches the requested size. WebDataset reads these shards.
- ``tree-NNNNNN.tar``: files of no class, then symlinks, in the order of the tree, then directories, the deepest
  first. Directories come last because a read-only directory, extracted first, would block its own content.

As every position is known beforehand, a pack reads the files of a shard in the order that suits the storage, and a
resumed pack finds the shards that the killed one had finished.
"""

import stat
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import ranges
from redoxfs.chunks import Cells
from redoxfs.dataset import Catalog
from redoxfs.packed.headers import BLOCK_BYTES, RECORD_BYTES, header_bytes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """The positions of N tree entries in the shards.

    ``shard``        int32[N]: the number of the shard
    ``data_at``      int64[N]: the offset in the shard of the entry's bytes (or of its header's end, if it has none)
    ``shard_names``  the names of all shards, in order
    ``shard_bytes``  the length of each shard
    """

    shard: Int32
    data_at: Int64
    shard_names: tuple[str, ...]
    shard_bytes: tuple[int, ...]


def assign_positions(catalog: Catalog, cells: Cells, *, shard_bytes: int) -> Positions:
    """Give every entry its position. A shard ends as soon as it holds ``shard_bytes``."""
    tree = catalog.tree
    headers = header_bytes(tree)
    sizes = np.where(tree.kind_mask(stat.S_IFREG), tree.size, 0)
    extent = headers + -(-sizes // BLOCK_BYTES) * BLOCK_BYTES
    shard = np.zeros(len(tree), np.int32)
    data_at = np.zeros(len(tree), np.int64)
    names: list[str] = []
    ends: list[int] = []
    for kind, (order, units) in {"samples": _samples(catalog, cells), "tree": _rest(catalog)}.items():
        if not len(order):
            continue
        after = np.cumsum(extent[order])
        starts = _cut(after, units, shard_bytes)
        number = np.searchsorted(starts, np.arange(len(order)), side="right") - 1
        before = np.concatenate([[0], after])[starts]
        shard[order] = number + len(names)
        data_at[order] = after - extent[order] - before[number] + headers[order]
        closed = np.append(before[1:], after[-1]) - before
        names += [f"{kind}-{n:06d}.tar" for n in range(len(starts))]
        ends += [_whole_records(int(end)) for end in closed]
    return Positions(shard, data_at, tuple(names), tuple(ends))


def files_in_order(catalog: Catalog, samples: npt.NDArray[np.integer]) -> Int64:
    """The files of ``samples``, sample after sample."""
    first = catalog.member_at[:-1][samples]
    return catalog.members[ranges(first, catalog.member_at[1:][samples] - first)].astype(np.int64)


def _samples(catalog: Catalog, cells: Cells) -> tuple[Int64, Int64]:
    """The entries in order, and the end of each chunk in that order."""
    exists = cells.cells >= 0
    in_order = cells.cells[exists]
    files = np.diff(catalog.member_at)[in_order]
    samples_until = np.cumsum(exists.sum(axis=1))
    return files_in_order(catalog, in_order), np.concatenate([[0], np.cumsum(files)])[samples_until]


def _rest(catalog: Catalog) -> tuple[Int64, Int64]:
    """The entries in order. A shard may end after any of them."""
    tree = catalog.tree
    files = np.flatnonzero(tree.kind_mask(stat.S_IFREG) & (catalog.sample_of < 0))
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))[::-1]
    order = np.concatenate([files, tree.link_entry, directories]).astype(np.int64)
    return order, np.arange(1, len(order) + 1)


def _cut(after: Int64, units: Int64, limit: int) -> Int64:
    """The first entry of each shard, as an index in the order. Cuts only where a unit ends."""
    ends = after[units - 1]
    starts = [0]
    begun = 0
    while True:
        unit = int(np.searchsorted(ends, begun + limit))
        if unit + 1 >= len(units):
            return np.array(starts, np.int64)
        starts.append(int(units[unit]))
        begun = int(ends[unit])


def _whole_records(data_bytes: int) -> int:
    """The length of a tar file with ``data_bytes`` of members and two blocks of zeros at its end."""
    return -(-(data_bytes + 2 * BLOCK_BYTES) // RECORD_BYTES) * RECORD_BYTES
