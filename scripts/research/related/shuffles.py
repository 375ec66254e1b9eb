"""Systems that change the shuffle so that reads are sequential or local.

DIESEL+, DeepIO, partial shuffle, WebDataset, and MosaicML Streaming's py1e and py1br. All of them serve each sample
once an epoch. Nothing here looks at labels, so the order in which samples are stored does not matter.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import numpy.typing as npt
from chunk_size import SAMPLE_BYTES
from randomness import SHARD_SAMPLES

from related.epoch import Epoch, Int8, Int32, Orders, Setting, in_step, side_by_side

Int64 = npt.NDArray[np.int64]

EXCHANGED = 0.1
"""Partial shuffle: Q, the share of a node's samples that it exchanges before an epoch."""

WEBDATASET_BUFFER = 1_000
"""`shuffle(1000)`, as in WebDataset's documentation, and the default of its filter."""

WEBDATASET_INITIAL = 100
"""Samples in the buffer before the first is drawn."""

WEBDATASET_SHARDS = 100
"""`shardshuffle=100`: the buffer of shard names."""

STREAMING_SHARD = (1 << 26) // SAMPLE_BYTES
"""Samples in a shard of MDSWriter's default ``size_limit``, 64 MiB."""

Block = tuple[int, int]
"""The first sample of a shard, or of the part of it that a node has, and the sample after the last."""


def diesel(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """DIESEL+ (Wang et al., TPDS 2022): chunk-wise shuffle. As many chunks at a time as memory holds."""
    return _by_groups(setting, setting.node_capacity * setting.nodes, 1)


def diesel_chunk(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """DIESEL+ as the Redox paper describes it (§2.2): the files of a chunk in succession, a chunk on each node."""
    return _by_groups(setting, setting.chunk_size * setting.nodes, 1)


def deepio(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """DeepIO (Zhu et al., MASCOTS 2018): in-situ shuffling and entropy-aware opportunistic ordering.

    Batches have only elements that the memory of some node has already. RDMA fetches those of other nodes. Half of the
    memory is served while storage fills the other half (the hybrid pipeline).
    """
    return _by_groups(setting, setting.node_capacity * setting.nodes // 2, 2)


def _by_groups(setting: Setting, held: int, buffers: int) -> Iterator[Epoch]:
    """Shuffle all chunks, take groups of as many as ``held`` samples fill, and shuffle each group.

    A group's chunks are dealt to the nodes, and so are its samples, without regard to where they are.
    """
    size = setting.chunk_size
    stored = side_by_side(setting)
    at_a_time = max(1, held // size)
    node: Int8 = (np.arange(setting.files) % setting.nodes).astype(np.int8)
    for epoch in count():
        random = setting.random(epoch)
        chunks = random.permutation(-(-setting.files // size)).astype(np.int32)
        served: list[Int32] = []
        holders: list[Int8] = []
        for first in range(0, len(chunks), at_a_time):
            group = chunks[first : first + at_a_time]
            samples = (group[:, None] * size + np.arange(size, dtype=np.int32)).ravel()
            holder = np.repeat(np.arange(len(group)) % setting.nodes, size).astype(np.int8)
            turn = random.permutation(np.flatnonzero(samples < setting.files))
            served.append(samples[turn])
            holders.append(holder[turn])
        remote = int(np.count_nonzero(np.concatenate(holders) != node))
        yield Epoch(
            np.concatenate(served),
            node,
            stored,
            chunk_reads=len(chunks),
            chunk_samples=setting.files,
            messages=remote,
            remote_samples=remote,
            peak=min(setting.files, buffers * at_a_time * size),
        )


def partial_shuffle(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """Partial local shuffling (Nguyen et al., IPDPS 2022, §3).

    The samples are split among the nodes, which store them. Before an epoch each node sends the share `EXCHANGED` of
    its samples to others: the k-th of all nodes change places by a random permutation of the nodes. Then each node
    shuffles what it has. Memory keeps a part of each node's samples; the node's own storage has the rest.
    """
    stored = side_by_side(setting)
    nodes = np.arange(setting.nodes)
    parts = np.stack(orders(0))
    in_memory = np.zeros(setting.files, np.bool_)
    in_memory[parts[:, : setting.node_capacity]] = True
    for epoch in count():
        random = setting.random(epoch)
        sent = read_to_send = 0
        parts = random.permuted(parts, axis=1)
        if epoch:
            exchanged = round(EXCHANGED * parts.shape[1])
            leaving = parts[:, :exchanged].copy()
            target = random.permuted(np.repeat(nodes[:, None], exchanged, axis=1), axis=0)
            moved = target != nodes[:, None]
            was_in_memory = in_memory[leaving]
            sent = int(np.count_nonzero(moved))
            read_to_send = int(np.count_nonzero(moved & ~was_in_memory))
            arriving, has_moved = np.empty_like(leaving), np.empty_like(moved)
            arriving[target, np.arange(exchanged)] = leaving
            has_moved[target, np.arange(exchanged)] = moved
            parts[:, :exchanged] = arriving
            # What arrives takes the places in memory of what left.
            in_memory[leaving[moved]] = False
            for node, freed in enumerate((moved & was_in_memory).sum(axis=1)):
                in_memory[arriving[node][has_moved[node]][:freed]] = True
            parts = random.permuted(parts, axis=1)
        served, node_of = in_step(list(parts))
        yield Epoch(
            served,
            node_of,
            stored,
            file_reads=int(np.count_nonzero(~in_memory)) + read_to_send,
            messages=sent,
            remote_samples=sent,
            peak=int(np.count_nonzero(in_memory)),
        )


def webdataset(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """WebDataset with the buffer of its documentation (`_shuffle` in its filters.py)."""
    return _webdataset(setting, WEBDATASET_BUFFER)


def webdataset_memory(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """WebDataset with a buffer that fills the memory."""
    return _webdataset(setting, setting.node_capacity)


def _webdataset(setting: Setting, held: int) -> Iterator[Epoch]:
    """Each node has every n-th shard (`split_by_node`), in the same way each epoch, and one buffer of ``held`` samples.

    A DataLoader with several workers has a buffer and a part of the shards in each of them.
    """
    stored = side_by_side(setting, SHARD_SAMPLES)
    shards = np.arange(-(-setting.files // SHARD_SAMPLES), dtype=np.int32)
    held = max(1, held)
    for epoch in count():
        by_node = []
        for node in range(setting.nodes):
            random = setting.random(epoch, node)
            names = buffered(shards[node :: setting.nodes], WEBDATASET_SHARDS, random)
            stream = (names[:, None] * SHARD_SAMPLES + np.arange(SHARD_SAMPLES)).ravel()
            by_node.append(buffered(stream[stream < setting.files].astype(np.int32), held, random))
        served, node_of = in_step(by_node)
        peak = sum(min(held, len(samples)) for samples in by_node)
        yield Epoch(served, node_of, stored, chunk_reads=len(shards), chunk_samples=setting.files, peak=peak)


def buffered(stream: Int32, held: int, random: np.random.Generator, *, initial: int = WEBDATASET_INITIAL) -> Int32:
    """The output of a buffer of ``held`` samples that returns a random sample for each that enters.

    It first fills up to ``initial``. Until it holds ``held``, two samples enter for each that it returns.
    """
    draws = iter(random.random(len(stream)).tolist())
    source = iter(stream.tolist())
    buffer: list[int] = []
    served: list[int] = []
    initial = min(initial, held)

    def draw() -> None:
        drawn = int(next(draws) * len(buffer))
        served.append(buffer[drawn])
        buffer[drawn] = buffer[-1]
        buffer.pop()

    for sample in source:
        buffer.append(sample)
        if len(buffer) < held:
            buffer += [following for following in (next(source, None),) if following is not None]
        if len(buffer) >= initial:
            draw()
    while buffer:
        draw()
    return np.array(served, np.int32)


def py1e(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """MosaicML Streaming's default shuffle: each sample moves by a random distance within the shuffle block.

    The documentation's formula for the cache limit (performance_tuning.md) gives the block that fits the memory.
    """
    return _streaming(setting, shuffled_py1e, setting.node_capacity)


def py1br(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """MosaicML Streaming's py1br: blocks of about equal size, each shuffled; the formula counts two of them."""
    return _streaming(setting, shuffled_py1br, setting.node_capacity // 2)


def py1e_default(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """py1e with the default block, max(4,000,000 / nodes, 2 ** 18) samples, and no limit on disk space."""
    return _streaming(setting, shuffled_py1e, max(4_000_000 // setting.nodes, 1 << 18))


_Shuffle = Callable[[list[Block], int, np.random.Generator], Int32]


def _streaming(setting: Setting, shuffle: _Shuffle, block: int) -> Iterator[Epoch]:
    """The order of shards is drawn once, and cut into one part for each node: the canonical nodes.

    In each epoch a node shuffles its shards, then its samples. A shard is downloaded whole, and deleted after its last
    sample, or kept where all fit.
    """
    stored = side_by_side(setting, STREAMING_SHARD)
    shard_parts = canonical_nodes(setting, STREAMING_SHARD)
    whole = np.bincount(stored)
    for epoch in count():
        by_node, peak, reads, samples_read = [], 0, 0, 0
        for node, part in enumerate(shard_parts):
            random = setting.random(epoch, node)
            turn = random.permutation(len(part)).tolist()
            served = shuffle([part[at] for at in turn], max(1, block), random)
            by_node.append(served)
            peak += most_in_use(stored[served], whole)
            reads += len(part)
            samples_read += int(sum(whole[stored[begin]] for begin, _ in part))
        served, node_of = in_step(by_node)
        yield Epoch(served, node_of, stored, chunk_reads=reads, chunk_samples=samples_read, peak=peak)


def canonical_nodes(setting: Setting, shard: int) -> list[list[Block]]:
    """For each node, the shards and parts of shards that it has in every epoch."""
    firsts = setting.random(0, setting.nodes).permutation(np.arange(0, setting.files, shard)).tolist()
    left = deque((first, min(first + shard, setting.files)) for first in firsts)
    parts: list[list[Block]] = []
    for node in range(setting.nodes):
        room = setting.files * (node + 1) // setting.nodes - setting.files * node // setting.nodes
        part: list[Block] = []
        while room:
            begin, end = left.popleft()
            cut = min(end, begin + room)
            part.append((begin, cut))
            room -= cut - begin
            if cut < end:
                left.appendleft((cut, end))
        parts.append(part)
    return parts


def shuffled_py1e(part: list[Block], block: int, random: np.random.Generator) -> Int32:
    total = sum(end - begin for begin, end in part)
    samples = np.empty(total, np.int32)
    places = np.arange(total, dtype=np.float64)
    at = 0
    for begin, end in part:
        length = end - begin
        samples[at : at + length] = random.permutation(np.arange(begin, end, dtype=np.int32))
        reach = max(0.0, (_about(block, random) - length) / 2)
        back, forth = min(reach, at), min(reach, total - at - length)
        places[at : at + length] += random.uniform(-back, forth, length)
        at += length
    return samples[np.argsort(places, kind="stable")]


def shuffled_py1br(part: list[Block], block: int, random: np.random.Generator) -> Int32:
    samples = np.concatenate([np.arange(begin, end, dtype=np.int32) for begin, end in part])
    # The first block is shorter by a random length, so that nodes do not begin blocks at the same time.
    at = -int(random.integers(0, max(1, block * 3 // 4)))
    while at < len(samples):
        end = at + _about(block, random)
        of_block = slice(max(0, at), max(0, end))
        samples[of_block] = random.permutation(samples[of_block])
        at = end
    return samples


def _about(block: int, random: np.random.Generator) -> int:
    """A length from 3/4 to 5/4 of ``block``."""
    shortest, beyond = block * 3 // 4, block * 5 // 4
    return max(1, int(random.integers(shortest, max(beyond, shortest + 1))))


def most_in_use(shards: Int32, whole: Int64) -> int:
    """Samples of the shards that are in use at the same time, at most: from the first of a shard to its last."""
    used, first = np.unique(shards, return_index=True)
    _, from_end = np.unique(shards[::-1], return_index=True)
    change = np.zeros(len(shards) + 1, np.int64)
    np.add.at(change, first, whole[used])
    np.add.at(change, len(shards) - from_end, -whole[used])
    return int(np.cumsum(change).max())
