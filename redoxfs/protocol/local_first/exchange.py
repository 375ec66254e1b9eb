"""How many samples each class takes from peers on purpose."""

from typing import cast

import numpy as np


class Exchange:
    """An account for each class: it grows by ``share`` with each turn, and falls with each sample that comes.

    Args:
        classes: how many there are.
        share: the share of samples to take from peers.
        seed: of the generator that spreads over time when each class is exchanged first.
    """

    def __init__(self, classes: int, *, share: float, seed: int) -> None:
        self.share = share
        account = np.random.default_rng(seed).random(classes)
        self._account = cast("memoryview[float]", account.data)

    def count_turn(self, cls: int) -> int:
        """Count a turn of a class; returns how many samples to take now, 0 or less for none."""
        self._account[cls] += self.share
        return int(self._account[cls])

    def count_taken(self, cls: int, samples: int) -> None:
        """Samples of a class came from a peer."""
        self._account[cls] -= samples
