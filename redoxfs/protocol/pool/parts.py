"""Which samples of a class each of its laps covers.

Where nodes share a dataset, a lap of a class covers one part of its samples; otherwise all samples are one part.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Ints: TypeAlias = "memoryview[int]"


class Parts:
    """The part that each lap covers, and the part that each class's next lap covers.

    ``of_sample``  int8[S], the part of each sample; None where all are of part 0
    ``of_lap``     int32[laps, C]: for each place in ``by_lap``, how many samples of each class that lap has
    ``following``  int8[C]: the part of each class's next lap; -1 where the class has no sample in any lap

    Args:
        class_of: int32[S], the class of each sample.
        part_of: int8[S], as ``of_sample``.
        by_lap: lap L, from 1, of every class covers its samples of part by_lap[(L - 1) % their number].

    Raises:
        ValueError: ``by_lap`` is empty.
    """

    def __init__(self, class_of: Int32, part_of: Int8 | None, by_lap: Sequence[int]) -> None:
        if not by_lap:
            raise ValueError("parts_by_lap is empty")
        self._by_lap = tuple(by_lap)
        self.of_sample = None if part_of is None else np.asarray(part_of)
        self._part_of: Ints | None = None if part_of is None else part_of.data
        if part_of is None:
            self.of_lap = np.array([np.bincount(class_of, minlength=1)])
        else:
            self.of_lap = _of_laps(class_of, part_of, by_lap)
        self.following = np.zeros(self.of_lap.shape[1], np.int8)
        self._following: Ints = self.following.data

    def of_classes_in(self, laps: Int32) -> Int8:
        """int8[C]: the part of each class's lap; -1 for a class that has no samples in any.

        Raises:
            ValueError: a class has samples, but none in its lap of ``laps``.
        """
        place = (laps - 1) % len(self._by_lap)
        parts = np.array(self._by_lap, np.int8)[place]
        has_any = self.of_lap.any(axis=0)
        if not self.of_lap[place, np.arange(len(laps))][has_any].all():
            raise ValueError("a class is in a lap that has none of its samples")
        parts[~has_any] = -1
        return parts

    def first_laps(self) -> Int32:
        """int32[C]: each class's first lap, from 0, that has any of its samples."""
        first: Int32 = (self.of_lap > 0).argmax(axis=0).astype(np.int32)
        return first

    def lap_after(self, cls: int, lap: int) -> int:
        """The first lap after ``lap`` that has any sample of a class."""
        after = lap + 1
        if self._part_of is not None:
            count = len(self._by_lap)
            while not self.of_lap[(after - 1) % count, cls] and after <= lap + count:
                after += 1
        return after

    def enter(self, cls: int, lap: int) -> None:
        """A class is in ``lap`` now."""
        if self._part_of is not None:
            self._following[cls] = self._by_lap[(self.lap_after(cls, lap) - 1) % len(self._by_lap)]

    def enter_all(self, laps: Int32) -> Int8:
        """Classes are in ``laps``, int32[C]; returns the part of each, as `of_classes_in`."""
        parts = self.of_classes_in(laps)
        if self._part_of is not None:
            for cls in np.flatnonzero(parts >= 0).tolist():
                self.enter(cls, int(laps[cls]))
            self.following[parts < 0] = -1
        return parts

    def is_of_next_lap(self, cls: int, sample: int) -> bool:
        """Whether a sample belongs to the part of its class's next lap."""
        return self._part_of is None or self._part_of[sample] == self._following[cls]

    def has_any(self, cls: int) -> bool:
        """Whether any lap has a sample of a class."""
        return self._following[cls] >= 0


def _of_laps(class_of: Int32, part_of: Int8, by_lap: Sequence[int]) -> Int32:
    """int32[laps, classes]: how many samples of each class have the part of each of ``by_lap``."""
    classes = int(class_of.max(initial=0)) + 1
    of_part = {part: np.bincount(class_of[part_of == part], minlength=classes) for part in set(by_lap)}
    return np.stack([of_part[part] for part in by_lap]).astype(np.int32)
