"""Generated datasets: how many samples each class has."""

import numpy as np

from redoxfs.arrays import Int32


def class_table(files: int, classes: int, skew: float) -> Int32:
    """int32[files]: the class of each sample, samples of a class side by side.

    Args:
        skew: the exponent of Zipf's law, by which class r of 1, 2, … has a share of r ** -skew; 0 means equal classes.
            Every class has at least one sample.
    """
    share = np.arange(1, classes + 1, dtype=np.float64) ** -skew
    sizes = 1 + np.floor(share / share.sum() * (files - classes)).astype(np.int64)
    sizes[: files - int(sizes.sum())] += 1
    return np.repeat(np.arange(classes, dtype=np.int32), sizes)
