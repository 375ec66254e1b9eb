"""A slot policy that records which samples it gave out."""

from collections import Counter

import numpy as np

from redoxfs.protocol import Served, SlotPolicy


class Watched(SlotPolicy):
    """Counts in ``gave`` how often each sample was given out in each lap, to readers and to other nodes."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)  # type: ignore[arg-type]
        self.gave: Counter[tuple[int, int]] = Counter()

    def request(self, sample: int) -> Served:
        return self._record(super().request(sample))

    def take(self, reserved: int, path: int = -1) -> Served:
        return self._record(super().take(reserved, path))

    def _record(self, served: Served) -> Served:
        self.gave[served.sample, int(self.laps(np.array([served.sample]))[0])] += 1
        return served
