"""Which chunks stay in memory from lap to lap, and how much of memory that takes.

Memory has two uses. The *stream* is what shuffling needs: chunks come, are mixed, and leave. What is above it is
*retained*. So a lap reads what is not retained, and how much memory the stream has is a choice between reads and how
well samples are mixed. `streamed_share` makes it, by the wait that a class can afford and by the mixing.
"""

import numpy as np

from redoxfs.arrays import Int32, Int64

STREAM_SHARE = 1 / 8
"""The part of the streamed samples that the stream has room for. So a streamed sample passes an eighth of a lap in
memory, whatever part of the dataset is streamed: chunks are mixed as with memory for an eighth of the dataset and
nothing retained."""

STREAM_PER_CLASS = 6
"""How many samples of each class the stream has room for. With fewer, a class often has none in memory when it is the
turn of a streamed sample, and that sample is read alone (`PoolPolicy.request`)."""

STREAM_CHUNKS = 4
"""How many whole chunks the stream has room for: one is served while the next ones are read."""

STEPS = 40
"""Of the search for the share, which halves each time."""


def streamed_share(of_class: Int64, capacity_samples: float, chunk_samples: float) -> float:
    """The least share of a dataset's samples that can be streamed if the rest is retained, 0 to 1.

    Args:
        of_class: int64[C], how many samples each class has.
        capacity_samples: how many fit in memory.
        chunk_samples: how many a chunk has.
    """
    samples = int(of_class.sum())
    if capacity_samples >= samples:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        share = (low + high) / 2
        streamed = of_class * share
        room = float(np.minimum(streamed, np.maximum(streamed * STREAM_SHARE, STREAM_PER_CLASS)).sum())
        room = max(room, min(STREAM_CHUNKS * chunk_samples, share * samples))
        if (1 - share) * samples + room <= capacity_samples:
            high = share
        else:
            low = share
    return high


def retained_bytes_for(class_of: Int32, sample_bytes: Int64, chunk_size: int, capacity_bytes: int) -> int:
    """How many of ``capacity_bytes`` are for retained samples; all samples' bytes if all fit.

    Args:
        class_of: int32[S], the class of each sample.
        sample_bytes: int64[S], what each takes in memory.
        chunk_size: how many samples a chunk has, at most.
    """
    total_bytes = int(sample_bytes.sum())
    if capacity_bytes >= total_bytes:
        return total_bytes
    mean_bytes = total_bytes / len(sample_bytes)
    share = streamed_share(np.bincount(class_of), capacity_bytes / mean_bytes, chunk_size)
    return int((1 - share) * total_bytes)


def draw_chunks(chunk_bytes: Int64, limit_bytes: int, random: np.random.Generator) -> Int32:
    """Chunks to retain, drawn uniformly: those of a random order that come before the first that does not fit.

    Were that one passed over for a smaller one, small chunks would be retained more often.

    Args:
        chunk_bytes: int64[chunks], what each takes in memory.
    """
    if limit_bytes >= int(chunk_bytes.sum()):
        return np.arange(len(chunk_bytes), dtype=np.int32)
    order = random.permutation(len(chunk_bytes)).astype(np.int32)
    fitting = np.cumsum(chunk_bytes[order]) <= limit_bytes
    return order[: int(np.count_nonzero(fitting))]
