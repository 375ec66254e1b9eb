"""A slot policy that tells a test what it gave out."""

from collections import Counter

import numpy as np

from redoxfs.protocol import Served, SlotPolicy


class Watched(SlotPolicy):
    """Notes the lap in which each sample is given out, wherever it goes."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)  # type: ignore[arg-type]
        self.gave: Counter[tuple[int, int]] = Counter()

    def request(self, sample: int) -> Served:
        return self._noted(super().request(sample))

    def take(self, reserved: int) -> Served:
        return self._noted(super().take(reserved))

    def _noted(self, served: Served) -> Served:
        self.gave[served.sample, int(self.laps(np.array([served.sample]))[0])] += 1
        return served
