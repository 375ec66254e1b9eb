"""How often each class is asked lately, and how much of memory that is worth."""

from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Floats: TypeAlias = "memoryview[float]"

AMPLE_TIMES = 3
AMPLE_SAMPLES = 16
"""A class with more residents than its part of memory, by how often it is asked, so many times over and so many more,
gets no others. Otherwise classes that are hardly ever asked fill memory, which nothing is evicted from: with a sampler
whose weights are exponentially distributed 16 % of opens would wait, where 2 % do once the pace is known. Less would
bind where all are asked alike, at the end of an epoch: with twice, or with only 4 more where classes are as unequal as
Zipf's, each chunk costs a tenth of a load more."""

PACE_NOTES = 16
"""How often, in as many requests as a lap has samples, it is looked at how often each class is asked."""


class Pace:
    """How often each class is asked, over a window of a lap's samples; older requests count for less and less.

    The owner adds one to ``asked[cls]`` for each request, and calls `note` after as many as it last returned.

    ``of_class``  float32[C], how often each is asked, 1 on average
    ``ample``     int32[C], a class with more residents gets no others

    Args:
        of_lap: int32[laps, C], how many samples of each class a lap has. Until requests are known, these are the pace.
        capacity_samples: how many samples fit in memory.
        ample_samples: see `AMPLE_SAMPLES`.
    """

    def __init__(self, of_lap: Int32, *, capacity_samples: float, ample_samples: int) -> None:
        classes = of_lap.shape[1]
        self._asked_array = of_lap.mean(axis=0).astype(np.float32)
        self.asked = cast("Floats", self._asked_array.data)
        self.of_class = np.empty(classes, np.float32)
        self.ample = np.empty(classes, np.int32)
        self._window = round(float(of_lap.sum()) / len(of_lap))
        self._capacity_samples = capacity_samples
        self._ample_samples = ample_samples

    def note(self) -> int:
        """Look at how often classes are asked; returns after how many requests to look again."""
        share = self._asked_array / max(1.0, float(self._asked_array.sum()))
        self._asked_array[:] = share * self._window
        self.of_class[:] = share * len(share)
        self.ample[:] = AMPLE_TIMES * self._capacity_samples * share + self._ample_samples
        return self._window // PACE_NOTES
