"""The aligned layout: the slot and the physical chunk of each sample, and the virtual chunk (VC) of each chunk.

The paper lets slot o of a virtual chunk answer with whichever chunk is in memory. Labels stay right only if all
chunks of the VC hold the same class in slot o. So each class is cut into *columns* of up to g samples, and K columns
side by side make a group of g chunks: row r of the group is one physical chunk. Every VC takes its chunks from one
group.

Choices, and their reasons:

- Columns of similar length lie side by side, because a short column leaves holes in the last rows. They are of
  different classes where possible, so that a chunk mixes classes.
- A class is cut along the sizes of its samples. A VC needs memory for each slot's largest sample; in a column of
  similar sizes the largest is hardly larger than the mean. The cut does not influence the order in which samples are
  served: requests and the random rows decide that.
- Chunks do not mix trees: samples of a validation set would take up memory while training.
- g is 64, unless the dataset is so small that its last, partly filled group matters. Then g shrinks, so that chunks
  stay near K samples.
- The memory decides how many chunks a VC has: as few as fit. One chunk for each VC means that all samples are in
  memory at once and nothing needs to be redirected.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from redoxfs.arrays import Int8, Int32, Int64, Numbers, distinct

ROWS = 64
"""g: the most samples in a column. The least memory is therefore about 1/64 of the samples."""

LEAST_ROWS = 4
"""With fewer rows, a dataset of a few chunks would have nothing to redirect to."""

GOOD_FILL = 0.75
"""The mean share of filled slots in a chunk above which a larger g is worth more than fuller chunks."""

RESIDENT_SHARE = 0.75
"""The share of --memory for the slots. The rest holds the bytes of open files (node.memory)."""

OPEN_SAMPLES = 4
"""The rest has room for at least this many of the largest samples, so that one large open evicts neither itself nor
the few files open beside it."""


class MemoryTooSmallError(Exception):
    """The dataset needs at least ``needed_bytes`` of memory, and --memory is ``given_bytes``."""

    def __init__(self, needed_bytes: int, given_bytes: int) -> None:
        super().__init__(f"--memory is {given_bytes} bytes, and this dataset needs at least {needed_bytes}")
        self.needed_bytes = needed_bytes
        self.given_bytes = given_bytes


def divisors(chunk_size: int) -> list[int]:
    """The sizes that chunks of this size can be split into, the smallest first."""
    return [size for size in range(1, chunk_size + 1) if chunk_size % size == 0]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Samples in chunks. A packed dataset fixes them for good; each mount of a directory computes them.

    ``cells``        int32[chunks, K]: the sample in each slot, -1 for a hole
    ``group_start``  int32[groups + 1]: group i has the chunks group_start[i] to group_start[i + 1]; within a group,
                     a slot holds samples of one class
    """

    cells: Int32
    group_start: Int32

    @property
    def chunk_size(self) -> int:
        return int(self.cells.shape[1])

    def split(self, chunk_size: int) -> "Cells":
        """The same samples in the same places, in chunks of ``chunk_size`` slots, one of the `divisors` of K.

        Consecutive slots of a chunk lie side by side, so a part of a chunk is a chunk. The parts of a group's chunks
        that have the same slots form a group.
        """
        parts, rest = divmod(self.chunk_size, chunk_size)
        if rest:
            raise ValueError(f"{chunk_size} does not divide {self.chunk_size}")
        rows = np.diff(self.group_start)
        group = np.repeat(np.arange(len(rows)), rows)
        order = np.lexsort(
            (
                np.repeat(np.arange(len(self.cells)), parts),
                np.tile(np.arange(parts), len(self.cells)),
                np.repeat(group, parts),
            )
        )
        cells = self.cells.reshape(-1, chunk_size)[order]
        starts = np.concatenate([[0], np.cumsum(np.repeat(rows, parts))])
        return Cells(cells, starts.astype(np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Samples in chunks, chunks in VCs.

    ``cells``           int32[chunks, K]: the sample in each slot, -1 for a hole
    ``vc_start``        int32[M + 1]: VC v owns chunks vc_start[v] to vc_start[v + 1]
    ``chunks_per_vc``   the largest PCS size, F/(KM) in the paper
    ``resident_bytes``  the most bytes that the slots of a node hold
    """

    cells: Int32
    vc_start: Int32
    chunks_per_vc: int
    resident_bytes: int

    @property
    def chunk_count(self) -> int:
        return int(self.cells.shape[0])

    @property
    def chunk_size(self) -> int:
        return int(self.cells.shape[1])

    @property
    def vc_count(self) -> int:
        return len(self.vc_start) - 1


def fit(cells: Cells, sample_bytes: Numbers, memory_bytes: int, *, nodes: int = 1) -> Layout:
    """The layout of S samples with the fewest chunks per VC that fits in ``memory_bytes``.

    Args:
        sample_bytes: int[S], size of each sample.
        memory_bytes: of each node.
        nodes: VC v is in the memory of node v % nodes.

    Raises:
        MemoryTooSmallError: it does not fit even with the most chunks that a VC can have.
    """
    cell_bytes = _cell_bytes(cells.cells, sample_bytes)
    most = int(np.diff(cells.group_start).max(initial=1))
    open_bytes = room_for_open(sample_bytes)

    def cost(chunks_per_vc: int) -> int:
        return _resident_bytes(cell_bytes, _vc_start(cells.group_start, chunks_per_vc), nodes)

    needed = _memory(cost(most), open_bytes)
    if memory_bytes < needed:
        raise MemoryTooSmallError(needed, memory_bytes)
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _memory(cost(middle), open_bytes) <= memory_bytes:
            high = middle
        else:
            low = middle + 1
    return Layout(cells.cells, _vc_start(cells.group_start, high), high, cost(high))


def memory_for_share(cells: Cells, sample_bytes: Numbers, share: float) -> int:
    """The --memory, in bytes, that holds ``share`` of the samples at once (0: the least possible)."""
    most = int(np.diff(cells.group_start).max(initial=1))
    chunks_per_vc = most if share * most < 1 else int(np.ceil(1 / share))
    held = _resident_bytes(_cell_bytes(cells.cells, sample_bytes), _vc_start(cells.group_start, chunks_per_vc))
    return _memory(held, room_for_open(sample_bytes))


def room_for_open(sample_bytes: Numbers) -> int:
    """The least room for open files, in bytes: the sum of the largest `OPEN_SAMPLES` samples.

    So a single sample that is much larger than all others counts once, not OPEN_SAMPLES times.
    """
    if len(sample_bytes) > OPEN_SAMPLES:
        sample_bytes = np.partition(sample_bytes, -OPEN_SAMPLES)[-OPEN_SAMPLES:]
    return int(sample_bytes.sum())


def deal(cells: Cells, nodes: int, *, seed: int) -> Int8:
    """int8[S]: the part, from 0, of each sample: the part of its chunk. There is one part for each of ``nodes``.

    The chunks of a group, which have the same classes, are dealt in turn, so that each column is spread evenly. Chunks
    left over go to the parts with the fewest samples so far; a seeded draw decides among equals. So parts differ by a
    chunk or two at most.

    Raises:
        ValueError: there are fewer than 1 or more than 127 nodes.
    """
    if not 1 <= nodes <= np.iinfo(np.int8).max:
        raise ValueError(f"chunks can be dealt to 1 to 127 nodes, not to {nodes}")
    random = np.random.default_rng(seed)
    exists = cells.cells >= 0
    of_chunk = exists.sum(axis=1)
    part_of_chunk = np.empty(len(of_chunk), np.int8)
    dealt = np.zeros(nodes, np.int64)
    for first, last in pairwise(cells.group_start.tolist()):
        in_order = np.lexsort((random.random(nodes), dealt))
        turns = in_order[np.arange(last - first) % nodes]
        part_of_chunk[first:last] = turns
        dealt += np.bincount(turns, of_chunk[first:last], minlength=nodes).astype(np.int64)
    part_of = np.empty(int(of_chunk.sum()), np.int8)
    part_of[cells.cells[exists]] = np.repeat(part_of_chunk, of_chunk)
    return part_of


def _memory(resident_bytes: int, open_bytes: int) -> int:
    return max(int(np.ceil(resident_bytes / RESIDENT_SHARE)), resident_bytes + open_bytes)


def _rows(of_class: Numbers, chunk_size: int) -> int:
    """g for classes of these sizes: the largest g with well filled chunks, else the g that fills chunks best."""
    best, best_fill = LEAST_ROWS, 0.0
    for rows in range(ROWS, LEAST_ROWS - 1, -1):
        columns = int((-(-of_class // rows)).sum())
        chunks = -(-columns // chunk_size) * rows
        fill = float(of_class.sum()) / (chunks * chunk_size)
        if fill >= GOOD_FILL:
            return rows
        if fill > best_fill:
            best, best_fill = rows, fill
    return best


def build_cells(
    class_of: Numbers, sample_bytes: Numbers, *, chunk_size: int, seed: int, tree_of_class: Numbers | None = None
) -> Cells:
    """Lay S samples out in chunks.

    Args:
        class_of: int[S], class of each sample, 0 and up.
        sample_bytes: int[S], size of each sample.
        chunk_size: K, samples in a physical chunk.
        tree_of_class: int[C], if some classes are read at other times, such as a validation set: a chunk then has
            samples of one tree only.
    """
    random = np.random.default_rng(seed)
    tree_of = np.zeros(len(class_of), np.int32) if tree_of_class is None else tree_of_class[class_of]
    cells, starts = [np.empty((0, chunk_size), np.int32)], [np.zeros(1, np.int64)]
    for tree in distinct(tree_of).tolist():
        samples = np.flatnonzero(tree_of == tree).astype(np.int32)
        of_tree, start = _cells_of_tree(class_of[samples], sample_bytes[samples], chunk_size, random)
        cells.append(np.where(of_tree < 0, np.int32(-1), samples[of_tree]))
        starts.append(start[1:] + starts[-1][-1])
    return Cells(np.concatenate(cells), np.concatenate(starts).astype(np.int32))


def _cells_of_tree(
    class_of: Numbers, sample_bytes: Numbers, chunk_size: int, random: np.random.Generator
) -> tuple[Int32, Int64]:
    """The cells of samples that may share a chunk, and the first chunk of each group."""
    samples = len(class_of)
    class_of = np.unique(class_of, return_inverse=True)[1]
    # Cut: samples in order of class and size, each class in equal parts of at most `rows`.
    in_order = np.lexsort((random.random(samples), sample_bytes, class_of)).astype(np.int32)
    of_class = np.bincount(class_of)
    columns_of_class = -(-of_class // _rows(of_class, chunk_size))
    sorted_class = class_of[in_order]
    place = np.arange(samples) - (np.cumsum(of_class) - of_class)[sorted_class]
    part = place * columns_of_class[sorted_class] // of_class[sorted_class]
    column = (np.cumsum(columns_of_class) - columns_of_class)[sorted_class] + part
    length = np.bincount(column)

    # Side by side: longest first. Among equals, one column of every class comes before the second of any class, in a
    # new order each time; otherwise the same classes would share all their chunks and run short together.
    class_of_column = np.repeat(np.arange(len(of_class)), columns_of_class)
    round_of_column = _rank_within(class_of_column, random)
    turn = np.lexsort((random.random(len(class_of_column)), round_of_column, -length))
    position = np.empty_like(turn)
    position[turn] = np.arange(len(turn))
    group, slot = np.divmod(position, chunk_size)
    rows_of_group = np.zeros(group.max() + 1, np.int64)
    np.maximum.at(rows_of_group, group, length)
    group_start = np.concatenate([[0], np.cumsum(rows_of_group)])

    cells = np.full((int(group_start[-1]), chunk_size), -1, np.int32)
    cells[group_start[group[column]] + _rank_within(column, random), slot[column]] = in_order
    return cells, group_start


def _rank_within(key: Numbers, random: np.random.Generator) -> Numbers:
    """int[n]: a random ranking, from 0, of the elements of each value of ``key``."""
    shuffled = np.lexsort((random.random(len(key)), key))
    counts = np.bincount(key)
    rank = np.empty(len(key), np.int64)
    rank[shuffled] = np.arange(len(key)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


def _vc_start(group_start: Int32, chunks_per_vc: int) -> Int32:
    """Divide each group's chunks into as few VCs as ``chunks_per_vc`` allows, of nearly equal size."""
    rows = np.diff(group_start).astype(np.int64)
    vcs = -(-rows // chunks_per_vc)
    group = np.repeat(np.arange(len(rows)), vcs)
    number = np.arange(len(group)) - (np.cumsum(vcs) - vcs)[group]
    starts = group_start[group] + number * rows[group] // vcs[group]
    return np.append(starts, group_start[-1]).astype(np.int32)


def _cell_bytes(cells: Int32, sample_bytes: Numbers) -> Int64:
    """int64[chunks, K]: the size of the sample in each cell, 0 in a hole."""
    return np.append(sample_bytes, 0).astype(np.int64)[cells]


def _resident_bytes(cell_bytes: Int64, vc_start: Int32, nodes: int = 1) -> int:
    """The sum, over all slots of a node's VCs, of the largest sample that the slot may hold; of the largest node."""
    if not len(cell_bytes):
        return 0
    of_vc = np.maximum.reduceat(cell_bytes, vc_start[:-1], axis=0).sum(axis=1)
    return int(np.bincount(np.arange(len(of_vc)) % nodes, of_vc).max())
