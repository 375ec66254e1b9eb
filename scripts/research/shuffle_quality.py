"""The measures of `redoxfs.telemetry.quality`, of epochs whose whole order is known. A mount only estimates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from redoxfs.telemetry.quality import BATCH, LAST, pairs_and_entropies

Int32 = npt.NDArray[np.int32]


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
    return pairs_and_entropies(chunks, batch)[0]


def entropies(labels: Int32, batch: int) -> npt.NDArray[np.float64]:
    """float64[batches]: the entropy of the labels, such as chunks or classes, in each whole batch, in bits.

    Args:
        labels: int32[S], of the samples in the order of serving.
    """
    return pairs_and_entropies(labels, batch)[1]
