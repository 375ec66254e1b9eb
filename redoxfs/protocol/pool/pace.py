"""How often each class is asked, and how many residents it may have for that."""

from typing import TypeAlias, cast

import numpy as np

from redoxfs.arrays import Int32

Floats: TypeAlias = "memoryview[float]"

AMPLE_TIMES = 3
AMPLE_SAMPLES = 16
"""A class gets no more residents once it has AMPLE_TIMES its part of memory, by how often it is asked, and
AMPLE_SAMPLES more. Otherwise classes that are hardly ever asked would fill memory, as nothing is evicted: with a
sampler whose weights are exponentially distributed 16 % of opens would wait, where 2 % do once the pace is known.
Lower values would bind where all classes are asked alike, at the end of an epoch: with 2 times, or with 4 samples
where class sizes follow Zipf's law, each chunk costs a tenth of a load more."""

PACE_NOTES = 16
"""How many times the pace is updated in as many requests as a lap has samples."""


class Pace:
    """How often each class is asked, over a window of a lap's samples. Older requests count for less and less.

    The owner adds one to ``asked[cls]`` for each request, and calls `note` again after as many requests as it returned.

    ``of_class``  float32[C], how often each class is asked, 1 on average
    ``ample``     int32[C], a class with more residents gets no others
    ``window``    how many requests it remembers

    Args:
        of_lap: int32[C], how many samples of each class a lap has: the pace until requests are known.
        ample_samples: see `AMPLE_SAMPLES`.
    """

    def __init__(self, of_lap: Int32, *, ample_samples: int) -> None:
        classes = len(of_lap)
        self._asked_array = of_lap.astype(np.float32)
        self.asked = cast("Floats", self._asked_array.data)
        self.of_class = np.empty(classes, np.float32)
        self.ample = np.empty(classes, np.int32)
        self.window = int(of_lap.sum())
        self._ample_samples = ample_samples

    def note(self, room_samples: float) -> int:
        """Update the pace; returns after how many requests to call again.

        Args:
            room_samples: how many samples fit in memory beside those that are retained.
        """
        share = self._asked_array / max(1.0, float(self._asked_array.sum()))
        self._asked_array[:] = share * self.window
        self.of_class[:] = share * len(share)
        # Memory may have room for more samples than an int32 counts. Half of its range: its maximum is no float32.
        ample = AMPLE_TIMES * room_samples * share + self._ample_samples
        self.ample[:] = np.minimum(ample, np.iinfo(np.int32).max // 2)
        return self.window // PACE_NOTES
