"""How well shuffled the orders are in which samples come out.

Measured on the samples served in successive epochs, each a permutation of all of them:

- *displacement*: how far a sample moves from one epoch to the next, as a share of the epoch. 1/3 where both are random.
- *rank correlation* (Spearman) of two successive epochs: 0 where they are independent, 1 where the second repeats the
  first.
- *mate pairs*: how many pairs of samples of one chunk meet in a batch, on average. A sample has K - 1 mates among the
  S - 1 others, so a random permutation has C(batch, 2) * (K - 1) / (S - 1).
- the same in the *last 5 %* of an epoch, where few samples are left to choose from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

BATCH = 256
LAST = 0.05


@dataclass(frozen=True, slots=True)
class Quality:
    displacement: float
    rank_correlation: float
    mate_pairs: float
    mate_pairs_at_end: float
    mate_pairs_if_random: float


def quality(epochs: Sequence[Int32], chunk_of: Int32, *, batch: int = BATCH) -> Quality:
    """The quality of two epochs or more.

    Args:
        epochs: int32[S] each, all samples in the order in which they were served.
        chunk_of: int32[S], the chunk of each sample.
    """
    places = [np.argsort(served) for served in epochs]
    samples = len(chunk_of)
    pairs = [
        (np.abs(after - before).mean() / samples, np.corrcoef(before, after)[0, 1])
        for before, after in pairwise(places)
    ]
    return Quality(
        float(np.mean([moved for moved, _ in pairs])),
        float(np.mean([alike for _, alike in pairs])),
        *mean_mate_pairs(epochs, chunk_of, batch=batch),
    )


def mean_mate_pairs(epochs: Sequence[Int32], chunk_of: Int32, *, batch: int = BATCH) -> tuple[float, float, float]:
    """Mate pairs of a batch, those at the end of an epoch, and those of a random permutation.

    The epochs may repeat samples and lack others.
    """
    mates = np.array([mate_pairs(chunk_of[served], batch) for served in epochs])
    last = max(1, round(mates.shape[1] * LAST))
    samples = len(chunk_of)
    of_chunk = np.bincount(chunk_of).astype(np.float64)
    chance = (of_chunk * (of_chunk - 1)).sum() / (samples * (samples - 1))
    return float(mates.mean()), float(mates[:, -last:].mean()), batch * (batch - 1) / 2 * float(chance)


def mate_pairs(chunks: Int32, batch: int) -> npt.NDArray[np.int64]:
    """int64[batches]: pairs of one chunk in each whole batch of ``chunks``, int32[S] in the order of serving."""
    batches = len(chunks) // batch
    if not batches:
        raise ValueError(f"an epoch of {len(chunks)} samples has no batch of {batch}")
    rows = np.sort(chunks[: batches * batch].reshape(batches, batch), axis=1)
    # In a sorted row, the j-th of a run of equal chunks makes j pairs with those before it.
    starts = np.ones_like(rows, np.bool_)
    starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
    at = np.arange(batch)
    run_start = np.maximum.accumulate(np.where(starts, at, 0), axis=1)
    pairs: npt.NDArray[np.int64] = (at - run_start).sum(axis=1)
    return pairs
