"""The queue of each class: its samples, in sections that show where each is in its lap.

The samples of each class are one stretch of `Queues.queue_array`, cut in seven by ``begun``, ``kept`` to ``loaded`` and
the next class's ``begun``. `Queues.at_array` has the place of each sample:

    begun      kept       next       served      stream     arrived    loaded      the next class's
      | for the next lap  | had its  | resident: | resident, | resident, | fresh: not |
      | retained | others | turn     | retained  | arrived   | younger   | loaded     |

Every step of a sample is one swap across each border that it passes, so each step is O(1) and the youngest stay in
order of age:

    fresh → younger                                  loaded
    younger → arrived                                enough requests went by
    arrived, or retained → had its turn              served, or reserved
    had its turn → for the next lap                  loaded, or kept

When the four sections on the right are empty the lap is over. The retained samples that were kept become its retained
section, those loaded for the next lap its younger section, and the others its fresh section. Nothing has to move for
that.
"""

import numpy as np

from redoxfs.arrays import Flags, Int32, Int64, Ints
from redoxfs.native import Sections

NOT_YET, HAD_TURN, RESERVED = 0, 1, 2
"""The values of `Queues.had`."""

NOWHERE = -1
"""The place of a sample that no lap covers."""

_PASSED = 4
"""Twice the number of the section of those that had their turn, from the left."""

_INTO = np.array([6, 0, 9, 0, 12], np.uint8)
"""Twice the section into which a sample comes, by twice that in which it is. Those that were loaded for the next lap
come before the younger ones."""


class Queues:
    """The sections of all classes.

    ``had`` marks the samples that are neither resident nor fresh: HAD_TURN or RESERVED.
    They lie left of ``served``. It is kept beside `at_array` for two reasons: the turns are saved every second, which
    would otherwise look at every sample; and a look at chunks must tell the two values apart at once.

    ``stock`` counts the residents of each class, for this lap and the next, without the retained ones.

    ``stays`` marks samples that are to have their turn yet, and are then kept for the next lap.

    Four moves come with each turn and each load, and are made in C (`redoxfs.native.Sections`):

    ``take_out``  of a class and the place of a resident: moves it over to those that had their turn, and returns it
    ``keep``      of a sample that had its turn, and whether it is retained: it stays for the next lap
    ``let_go``    of a sample: undoes `keep`, and returns whether it was in the retained section
    ``load``      of samples: makes them residents, of this lap if fresh, else of the next. Returns how many are for
                  this lap, and the classes that have no fresh samples any more

    Args:
        class_of: int32[S], the class of each sample.
        covered: bool[S], the samples that laps cover; None: all. The others are in no section.
    """

    def __init__(self, class_of: Int32, covered: Flags | None) -> None:
        samples = len(class_of)
        members = np.arange(samples) if covered is None else np.flatnonzero(covered)
        of_class = np.bincount(class_of[members], minlength=int(class_of.max(initial=0)) + 1)
        self._class_array = class_of
        self._begun_array = np.concatenate([[0], np.cumsum(of_class)]).astype(np.int32)
        self.begun: Ints = self._begun_array.data
        (
            self._kept_array,
            self.next_array,
            self.served_array,
            self._stream_array,
            self._arrived_array,
            self.loaded_array,
        ) = (self._begun_array[:-1].copy() for _ in range(6))
        self.kept: Ints = self._kept_array.data
        self.next: Ints = self.next_array.data
        self.served: Ints = self.served_array.data
        self.stream: Ints = self._stream_array.data
        self.arrived: Ints = self._arrived_array.data
        self.loaded: Ints = self.loaded_array.data
        self.queue_array = members[np.argsort(class_of[members], kind="stable")].astype(np.int32)
        self.queue: Ints = self.queue_array.data
        self.at_array = np.full(samples, NOWHERE, np.int32)
        self.at_array[self.queue_array] = np.arange(len(members), dtype=np.int32)
        self._at: Ints = self.at_array.data
        self.stock_array = np.zeros(len(of_class), np.int32)
        self.stock: Ints = self.stock_array.data
        self.had_array = np.zeros(samples, np.uint8)
        self.had: Ints = self.had_array.data
        stays = np.zeros(samples, np.uint8)
        self.stays_array: Flags = stays.view(np.bool_)
        self.stays: Ints = stays.data
        sections = Sections(
            queue=self.queue_array,
            at=self.at_array,
            class_of=class_of,
            begun=self._begun_array,
            kept=self._kept_array,
            for_next=self.next_array,
            served=self.served_array,
            stream=self._stream_array,
            arrived=self._arrived_array,
            loaded=self.loaded_array,
            stock=self.stock_array,
            had=self.had_array,
            stays=stays,
        )
        self.take_out, self.keep = sections.take_out, sections.keep
        self.let_go, self.load = sections.let_go, sections.load

    def is_member(self) -> Flags:
        """bool[S]: the samples that are in any section."""
        return self.at_array != NOWHERE

    def sizes(self) -> Int32:
        """int32[C]: how many samples each class has in its sections."""
        return np.diff(self._begun_array)

    def members(self, cls: int) -> Int32:
        """The samples of a class that are in any section, in some order. A view, valid until the next request."""
        return self.queue_array[self.begun[cls] : self.begun[cls + 1]]

    def is_resident(self, cls: int, sample: int) -> bool:
        """Whether a sample is loaded, for this lap or the next, and neither served nor reserved."""
        place = self._at[sample]
        return self.begun[cls] <= place < self.next[cls] or self.served[cls] <= place < self.loaded[cls]

    def is_for_next_lap(self, cls: int, sample: int) -> bool:
        """Whether a sample that is not retained is loaded for the next lap."""
        return self.kept[cls] <= self._at[sample] < self.next[cls]

    def is_retained(self, cls: int, sample: int) -> bool:
        """Whether a sample is in one of the retained sections."""
        place = self._at[sample]
        return self.begun[cls] <= place < self.kept[cls] or self.served[cls] <= place < self.stream[cls]

    def retained(self) -> int:
        """How many samples are in the retained sections."""
        kept, had_none = self._kept_array - self._begun_array[:-1], self._stream_array - self.served_array
        return int(kept.sum() + had_none.sum())

    def is_over(self, cls: int) -> bool:
        """Whether nothing is left in a class's lap, but for what is reserved."""
        return self.served[cls] == self.begun[cls + 1]

    def is_all_loaded(self, cls: int) -> bool:
        """Whether a class has no fresh samples left."""
        return self.loaded[cls] == self.begun[cls + 1]

    def all_loaded(self) -> Flags:
        """bool[C]: `is_all_loaded`, of those that have any samples."""
        begun = self._begun_array
        return (self.loaded_array == begun[1:]) & (begun[:-1] < begun[1:])

    def fresh(self, cls: int) -> Int32:
        """The fresh samples of a class; a view."""
        return self.queue_array[self.loaded[cls] : self.begun[cls + 1]]

    def not_for_next(self, cls: int) -> Int32:
        """The samples of a class that are not loaded for the next lap; a view."""
        return self.queue_array[self.next[cls] : self.begun[cls + 1]]

    def reserve_fresh(self, cls: int, sample: int) -> None:
        """Reserve a fresh sample of a class that has no residents for this lap, other than retained ones."""
        place, served = self.loaded[cls], self.served[cls]
        self._swap(self._at[sample], place)
        self._swap(place, served)
        self.had[sample] = RESERVED
        self.served[cls] = served + 1
        self.stream[cls] = self.arrived[cls] = self.loaded[cls] = place + 1

    def make_resident_again(self, cls: int, sample: int, *, retained: bool) -> None:
        """A reserved sample becomes the oldest resident, or one of the retained ones."""
        place = self.served[cls] = self._move_last(cls, sample)
        if not retained:
            stream = self.stream[cls] = self.stream[cls] - 1
            self._swap(place, stream)
            self.stock[cls] += 1

    def make_fresh_again(self, cls: int, sample: int) -> None:
        """Move a reserved sample over all residents."""
        self.served[cls] = self._move_last(cls, sample)
        self.make_fresh(cls, sample)

    def make_fresh(self, cls: int, sample: int) -> None:
        """Move a sample of the retained section over all residents."""
        place = self.stream[cls] - 1
        self._swap(self._at[sample], place)
        arrived, last = self.arrived[cls] - 1, self.loaded[cls] - 1
        if arrived > place:
            self._swap(place, arrived)
        if last > arrived:
            between = slice(arrived, last)
            self.queue_array[between] = self.queue_array[arrived + 1 : last + 1].copy()
            self.at_array[self.queue_array[between]] = np.arange(arrived, last, dtype=np.int32)
            self.queue[last] = sample
            self._at[sample] = last
        self.stream[cls], self.arrived[cls], self.loaded[cls] = place, arrived, last

    def reset(self, fresh: Flags) -> None:
        """Empty the memory: samples are ``fresh``, bool[S], or had their turn."""
        self.stock_array[:] = 0
        self._kept_array[:] = self.next_array[:] = self._begun_array[:-1]
        self.served_array[:] = self._begun_array[:-1]
        passed = self._class_array[~fresh & self.is_member()]
        if len(passed):
            self.served_array += np.bincount(passed, minlength=len(self.stock_array)).astype(np.int32)
            self._put_last(fresh)
        self._stream_array[:] = self._arrived_array[:] = self.loaded_array[:] = self.served_array

    def skip(self, cls: int, *, next_lap: bool) -> list[int]:
        """End a class's lap as if all its samples had their turn; with ``next_lap`` also those loaded for the next lap.

        Returns:
            The samples that were residents.
        """
        self.stays_array[self.members(cls)] = False
        let_go: list[int] = self.queue_array[self.served[cls] : self.loaded[cls]].tolist()
        self.stock[cls] -= self.loaded[cls] - self.stream[cls]
        if next_lap:
            let_go += self.queue_array[self.begun[cls] : self.next[cls]].tolist()
            self.stock[cls] -= self.next[cls] - self.kept[cls]
            self.kept[cls] = self.next[cls] = self.begun[cls]
        self.served[cls] = self.stream[cls] = self.arrived[cls] = self.loaded[cls] = self.begun[cls + 1]
        return let_go

    def begin_lap(self, cls: int) -> None:
        """Begin a class's next lap: samples loaded for it may be served, and the others are fresh."""
        begun = self.begun[cls]
        self.had_array[self.members(cls)] = NOT_YET
        self.stream[cls] = self.arrived[cls] = self.kept[cls]
        self.loaded[cls] = self.next[cls]
        self.kept[cls] = self.next[cls] = self.served[cls] = begun

    def rearrange(self, cls: int, stays_out: Flags) -> None:
        """Samples that had their turn come into the lap, but for those that stay out, bool[n] of the class's members,
        and those that are reserved. What is in memory for the next lap is in memory for this one then.
        """
        begun, end = self.begun[cls], self.begun[cls + 1]
        borders = (begun, self.kept[cls], self.next[cls], self.served[cls], self.stream[cls], self.arrived[cls])
        sizes = np.diff((*borders, self.loaded[cls], end))
        section = np.repeat(np.arange(0, 2 * len(sizes), 2, dtype=np.uint8), sizes)
        stretch = self.members(cls)
        comes: Flags = (section <= _PASSED) & ~stays_out & (self.had_array[stretch] != RESERVED)
        section[comes] = _INTO[section[comes]]
        in_order = stretch[np.argsort(section, kind="stable")]
        stretch[:] = in_order
        self.at_array[in_order] = np.arange(begun, end, dtype=np.int32)
        ends = np.cumsum(np.bincount(section, minlength=2 * len(sizes))) + begun
        self.kept[cls], self.next[cls], served = int(ends[0]), int(ends[2]), int(ends[_PASSED])
        self.served[cls], self.stream[cls], self.arrived[cls] = served, int(ends[6]), int(ends[8])
        self.loaded[cls] = int(ends[10])
        self.had_array[in_order[served - begun :]] = NOT_YET

    def come_into_lap(self, cls: int, sample: int) -> bool:
        """As `rearrange`, for one sample that had its turn. Returns whether it is in memory."""
        place, served = self._at[sample], self.served[cls] - 1
        is_kept, is_resident = place < self.kept[cls], place < self.next[cls]
        if is_kept:
            kept = self.kept[cls] = self.kept[cls] - 1
            self._swap(place, kept)
            place = kept
        if is_resident:
            border = self.next[cls] = self.next[cls] - 1
            self._swap(place, border)
            place = border
        self._swap(place, served)
        self.served[cls] = served
        self.had[sample] = NOT_YET
        if not is_resident:
            self.make_fresh(cls, sample)
        elif not is_kept:
            stream = self.stream[cls] = self.stream[cls] - 1
            self._swap(served, stream)
        return is_resident

    def _put_last(self, fresh: Flags) -> None:
        """Sort each class's stretch: the others, then the ``fresh``; each group keeps its order."""
        is_fresh = fresh[self.queue_array]
        of_queue = self._class_array[self.queue_array]
        fresh_before: Int64 = np.cumsum(is_fresh) - is_fresh
        others_before = np.arange(len(is_fresh)) - fresh_before
        first = self._begun_array[of_queue]
        # The counts before a class's stretch are those before its first place.
        place = np.where(
            is_fresh,
            self.served_array[of_queue] + fresh_before - fresh_before[first],
            first + others_before - others_before[first],
        )
        self.at_array[self.queue_array] = place
        self.queue_array[place] = self.queue_array.copy()

    def _move_last(self, cls: int, sample: int) -> int:
        """Move a reserved sample to the last place before the residents; returns that place."""
        place = self.served[cls] - 1
        self._swap(self._at[sample], place)
        self.had[sample] = NOT_YET
        return place

    def _swap(self, place: int, other: int) -> None:
        queue, at = self.queue, self._at
        queue[place], queue[other] = queue[other], queue[place]
        at[queue[place]] = place
        at[queue[other]] = other
