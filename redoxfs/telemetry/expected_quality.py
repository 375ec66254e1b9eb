"""What the measures of `redoxfs.telemetry.quality` are for a true permutation, and about what they are for the pool.

All of it is arithmetic on how many samples there are of each chunk or class. Nothing is served or simulated, so it
takes a tenth of a second for 13 million samples.

The model of the pool: retained samples come at random places of a lap. Streamed ones come from memory at random: the
samples of a chunk arrive together, and each then stays for a time that is distributed exponentially, whose mean follows
from the size of the stream. Where memory has six samples of each class or more, mates are within a tenth of those that
the policy has. With fewer, the policy has fewer mates than the model, as it then reads chunks in parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from redoxfs.telemetry.quality import BATCH, entropy_terms, places_among_equals

Int = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

CHUNKS_LOOKED_AT = 4096
"""The most chunks whose classes are counted. Of 200,000 chunks, the error is then about one in a hundred."""

IN_FLIGHT_SHARE, IN_FLIGHT_SAMPLES = 1 / 8, 2_048
"""The part of the stream that is being read, from which nothing is drawn, and the most samples of it."""

TIMES, LONGEST = 256, 12
"""At how many moments a chunk may have arrived, and the earliest, in mean times that a sample stays: nothing is left of
a chunk that arrived earlier."""

SIZES = 8
"""As how many sizes of chunks the pool's are counted. Most layouts have two or three."""

SIZES_AT_A_TIME = 1_024
"""Of groups: so many rows of 257 numbers are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Expected:
    """``mates``: pairs of chunk mates in a batch, as a multiple of a permutation's; ``chunk_entropy``: in bits."""

    mates: float
    chunk_entropy: float


def entropy_of_permutation(sizes: Int, *, batch: int = BATCH) -> float:
    """The mean entropy of a batch of a random permutation, in bits. Exact.

    Args:
        sizes: int[groups], how many samples each chunk, or class, has; together at least ``batch``.
    """
    samples = int(sizes.sum())
    if samples < batch:
        raise ValueError(f"{samples} samples have no batch of {batch}")
    terms, bits = entropy_terms(batch), 0.0
    distinct, times = np.unique(sizes[sizes > 0], return_counts=True)
    for first in range(0, len(distinct), SIZES_AT_A_TIME):
        part = slice(first, first + SIZES_AT_A_TIME)
        bits += float(times[part] @ (_hypergeometric(distinct[part], samples, batch) @ terms))
    return float(np.log2(batch)) - bits / batch


def expected_of_pool(chunk_sizes: Int, *, read_share: float, held_share: float, batch: int = BATCH) -> Expected:
    """About what a lap of the pool has after the first.

    Args:
        chunk_sizes: int[chunks], how many samples each chunk has.
        read_share: the share of the samples that a lap reads: those that are not retained.
        held_share: the share of the samples that memory holds at a time.
    """
    samples, largest = int(chunk_sizes.sum()), int(chunk_sizes.max())
    random = entropy_of_permutation(chunk_sizes, batch=batch)
    stream = max(float(largest), (held_share - (1 - read_share)) * samples)
    if read_share * samples <= stream or largest == 1:
        # All that is streamed is in memory at a time, or no sample has mates.
        return Expected(1.0, random)
    stay = (stream - min(stream * IN_FLIGHT_SHARE, IN_FLIGHT_SAMPLES)) / read_share
    # Two mates leave memory at times whose distance is exponential again.
    meet = 1 + stay / batch * np.expm1(-batch / stay)
    mates = max(1.0, 1 - read_share + read_share * meet * (samples - 1) / (batch - 1))
    # The part of a chunk that leaves in the batch: of one that arrived before it, and of one that arrives in it.
    before = np.linspace(0, LONGEST, TIMES)
    within = np.linspace(0, batch / stay, TIMES)
    arrived = np.concatenate([-before[::-1], within]) * stay
    parts = np.concatenate([(np.exp(-before) * -np.expm1(-batch / stay))[::-1], -np.expm1(within - batch / stay)])
    terms, streamed = entropy_terms(batch), 0.0
    for size, share in _sizes(chunk_sizes):
        bits = _binomial(size, parts) @ terms[np.minimum(np.arange(size + 1), batch)]
        # So many chunks of the size arrive for each sample that is served.
        streamed += float((bits[1:] + bits[:-1]) / 2 @ np.diff(arrived)) * read_share * share / size
    retained = (1 - read_share) * (float(np.log2(batch)) - random) * batch
    entropy = float(np.log2(batch)) - (streamed + retained) / batch
    return Expected(float(mates), float(min(random, max(0.0, entropy))))


def block_variance(cells: Int, class_of: Int, class_sizes: Int) -> tuple[float, float] | None:
    """How uneven the classes of chunks are: h_D of CorgiPile (SIGMOD 2022), and that of chunks drawn at random.

    It is the variance of a chunk's mean over that of the mean of as many samples drawn at random: about 1 if chunks are
    drawn at random, less if each class is spread over all chunks, and the size of a chunk if each has one class. A
    sample counts as its class, since gradients are not known. Of many chunks, `CHUNKS_LOOKED_AT` are looked at.

    Args:
        cells: int[chunks, K], the samples of each chunk, -1 for none.
        class_of: int[S], the class of each sample.
        class_sizes: int[classes], how many samples each class has.

    Returns:
        Both, or None where there is one class only.
    """
    samples = int(class_sizes.sum())
    shares = class_sizes / max(1, samples)
    spread = float(1 - shares @ shares)
    # The part of a packed chunk may have no sample.
    cells = cells[(cells >= 0).any(axis=1)]
    if samples < 2 or spread <= 0 or not len(cells):
        return None
    if len(cells) > CHUNKS_LOOKED_AT:
        cells = cells[np.random.default_rng(0).permutation(len(cells))[:CHUNKS_LOOKED_AT]]
    is_there = cells >= 0
    of_chunk = is_there.sum(axis=1)
    classes = class_of[np.where(is_there, cells, 0)]
    # Of each class in each chunk: its square is the number of ordered pairs. -1 - i for a hole, which equals nothing.
    equal_before = places_among_equals(np.where(is_there, classes, -1 - np.arange(cells.shape[1])))
    squares = (of_chunk + 2 * equal_before.sum(axis=1)) / of_chunk**2
    along = (shares[classes] * is_there).sum(axis=1) / of_chunk
    variances = squares - 2 * along + float(shares @ shares)
    at_random = (samples - of_chunk) / (samples - 1)
    return float((of_chunk * variances).mean() / spread), float(at_random.mean())


def _sizes(chunk_sizes: Int) -> Iterator[tuple[int, float]]:
    """Sizes of chunks, and the share of the samples in chunks of about each."""
    distinct, times = np.unique(chunk_sizes[chunk_sizes > 0], return_counts=True)
    held = distinct * times
    for part in np.array_split(np.arange(len(distinct)), min(len(distinct), SIZES)):
        yield round(float(distinct[part] @ held[part] / held[part].sum())), float(held[part].sum() / held.sum())


def _hypergeometric(sizes: Int, samples: int, batch: int) -> Floats:
    """float64[groups, batch + 1]: the chance that a batch has n samples of a group of such a size."""
    in_group = _log_choose(sizes, batch)
    beside = _log_choose(samples - sizes, batch)[:, ::-1]
    logs = in_group + beside
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _log_choose(of: Int, most: int) -> Floats:
    """float64[len(of), most + 1]: the logarithm of each ``of`` choose n; minus infinity where n is more."""
    n = np.arange(most)
    left = of[:, None] - n
    with np.errstate(divide="ignore"):
        steps = np.log(np.maximum(left, 0)) - np.log(n + 1)
    return np.concatenate([np.zeros((len(of), 1)), np.cumsum(steps, axis=1)], axis=1)


def _binomial(count: int, chances: Floats) -> Floats:
    """float64[len(chances), count + 1]: the chance of n of ``count``."""
    n = np.arange(count + 1)
    p = np.clip(chances, 1e-300, 1 - 1e-16)[:, None]
    return np.exp(_log_choose(np.array([count]), count) + n * np.log(p) + (count - n) * np.log1p(-p))
