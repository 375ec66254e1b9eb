"""How well shuffled the orders are in which samples come out.

Measured on the samples served in successive epochs, each a permutation of all of them:

- *displacement*: how far a sample moves from one epoch to the next, as a share of the epoch. 1/3 where both are random.
- *rank correlation* (Spearman) of two successive epochs: 0 where they are independent, 1 where the second repeats the
  first.
- *mate pairs*: how many pairs of samples of one chunk meet in a batch, on average. A sample has K - 1 mates among the
  S - 1 others, so a random permutation has C(batch, 2) * (K - 1) / (S - 1).
- the same in the *last 5 %* of an epoch, where few samples are left to choose from.
- *entropy* of the chunks, or of the classes, in a batch, in bits: that of the shares of the batch that they have, as
  scDataset measures it (ICML 2025). At most log2(batch), where no two samples are of one chunk.

`redoxfs.telemetry.expected_quality` has what they are for a permutation.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

BATCH = 256
LAST = 0.05


def pairs_and_entropies(labels: Int32, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Of each whole batch: how many pairs of samples have one label, and the entropy of the labels in bits.

    Args:
        labels: int32[S], such as chunks or classes, of the samples in the order of serving.

    Returns:
        int64[batches] and float64[batches].

    Raises:
        ValueError: there is no whole batch.
    """
    batches = len(labels) // batch
    if not batches:
        raise ValueError(f"an epoch of {len(labels)} samples has no batch of {batch}")
    places = places_among_equals(labels[: batches * batch].reshape(batches, batch))
    # The j-th of equal labels makes j pairs with those before it.
    pairs: npt.NDArray[np.int64] = places.sum(axis=1)
    # So that the sum of what a label's samples add is the term of their number.
    bits: npt.NDArray[np.float64] = _added_terms(batch)[places].sum(axis=1)
    return pairs, float(np.log2(batch)) - bits / batch


def entropy_terms(most: int) -> npt.NDArray[np.float64]:
    """float64[most + 1]: n * log2(n).

    A batch's entropy is log2(batch) - total / batch, where total is the sum of the terms of how many it has of a label.
    """
    counts = np.arange(most + 1, dtype=np.float64)
    return counts * np.log2(np.maximum(counts, 1))


@cache
def _added_terms(batch: int) -> npt.NDArray[np.float64]:
    """float64[batch]: by how much the term of a label grows with its j-th sample."""
    return np.diff(entropy_terms(batch))


def places_among_equals(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """int64[rows, n]: for each label of a row, in ascending order, how many before it are equal.

    Args:
        labels: int[rows, n].
    """
    rows = np.sort(labels, axis=1)
    starts = np.ones_like(rows, np.bool_)
    starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
    at = np.arange(rows.shape[1])
    return at - np.maximum.accumulate(np.where(starts, at, 0), axis=1)
