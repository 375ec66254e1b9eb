"""The samples that stats of a node reserved: its own, and those taken from peers."""

from collections.abc import Collection, Iterator, Sequence

from redoxfs.arrays import Int64
from redoxfs.protocol.tables import rows


class Reservations:
    """Reserved samples by class, where there are any, oldest first."""

    def __init__(self) -> None:
        self._own: dict[int, dict[int, None]] = {}
        self._taken: dict[int, dict[int, None]] = {}

    def __contains__(self, cls: int) -> bool:
        """Whether any sample of a class is reserved."""
        return cls in self._own or cls in self._taken

    def of_class(self, cls: int) -> Iterator[int]:
        """Own samples first, then those taken."""
        yield from self._own.get(cls, ())
        yield from self._taken.get(cls, ())

    def count(self, cls: int) -> int:
        """How many samples of a class are reserved."""
        return len(self._own.get(cls, ())) + len(self._taken.get(cls, ()))

    def count_own(self, cls: int) -> int:
        """How many of these are the node's own."""
        return len(self._own.get(cls, ()))

    def own_of(self, cls: int) -> Collection[int]:
        """The node's own samples of a class that are reserved, oldest first."""
        return self._own.get(cls, ())

    def is_taken(self, cls: int, sample: int) -> bool:
        """Whether a sample is reserved that came from a peer."""
        return sample in self._taken.get(cls, ())

    def add(self, cls: int, sample: int, *, is_taken: bool) -> None:
        """Reserve a sample."""
        (self._taken if is_taken else self._own).setdefault(cls, {})[sample] = None

    def remove_own(self, cls: int, sample: int) -> bool:
        """End the reservation of an own sample. False where there is none."""
        return _remove(self._own, cls, sample)

    def remove_taken(self, cls: int, sample: int) -> bool:
        """End the reservation of a sample that came from a peer. False where there is none."""
        return _remove(self._taken, cls, sample)

    def let_go(self, cls: int) -> tuple[list[int], int]:
        """End all reservations of a class: the samples, and how many of them were taken from peers."""
        samples = list(self.of_class(cls))
        self._own.pop(cls, None)
        return samples, len(self._taken.pop(cls, ()))

    def own(self) -> Iterator[int]:
        """All own samples that are reserved, those of a class oldest first."""
        for of_class in self._own.values():
            yield from of_class

    def table(self) -> Int64:
        """int64[n, 3]: the class of each sample, the sample, and whether it came from a peer."""
        kinds = enumerate((self._own, self._taken))
        return rows(
            ((cls, sample, taken) for taken, kind in kinds for cls, samples in kind.items() for sample in samples), 3
        )

    def resume(self, table: Sequence[Sequence[int]]) -> None:
        """Continue where a `table` was taken."""
        for cls, sample, is_taken in table:
            self.add(cls, sample, is_taken=bool(is_taken))


def _remove(reserved: dict[int, dict[int, None]], cls: int, sample: int) -> bool:
    of_class = reserved.get(cls)
    if of_class is None or sample not in of_class:
        return False
    del of_class[sample]
    if not of_class:
        del reserved[cls]
    return True
