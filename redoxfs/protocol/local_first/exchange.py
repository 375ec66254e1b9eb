"""How many samples each class takes from peers on purpose."""

from typing import cast

import numpy as np
import numpy.typing as npt


class Exchange:
    """An account for each class: it grows by ``share`` with each turn, and falls with each sample that comes.

    Args:
        classes: how many there are.
        share: the share of samples to take from peers.
        seed: of the generator that spreads over time when each class is exchanged first.
    """

    def __init__(self, classes: int, *, share: float, seed: int) -> None:
        self.share = share
        self._accounts = np.random.default_rng(seed).random(classes)
        self._account = cast("memoryview[float]", self._accounts.data)

    def count_turn(self, cls: int) -> int:
        """Count a turn of a class; returns how many samples to take now, 0 or less for none."""
        self._account[cls] += self.share
        return int(self._account[cls])

    def count_taken(self, cls: int, samples: int) -> None:
        """Samples of a class came from a peer."""
        self._account[cls] -= samples

    def bits(self) -> npt.NDArray[np.int64]:
        """int64[C]: the bits of the accounts. A copy."""
        return self._accounts.view(np.int64).copy()

    def resume(self, bits: npt.NDArray[np.integer]) -> None:
        """Continue where `bits` were taken. Raises ValueError where one is no number."""
        accounts = bits.view(np.float64)
        if not np.isfinite(accounts).all():
            raise ValueError("an account is no number")
        self._accounts[:] = accounts
