"""How far laps are: the state that is saved, for one policy and for nodes that share a dataset.

Nodes share their laps, and each knows only what it handed to its own readers. Each keeps a `Ledger` of that. The
`merged` ledgers are the turns of all: the latest lap of each column or class in which any node had a turn, and every
sample that any of them handed out in it. An old ledger lacks the turns since, and these samples come again. It never
marks a sample that had no turn, since turns of an earlier lap do not count. That holds for laps that began together,
which `redoxfs.node` checks. Samples that lie at a node unserved, or are under way between two, are in no ledger, and
come again from storage.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from redoxfs.arrays import Bytes, Flags, Int32, Ints, Numbers, distinct

if TYPE_CHECKING:
    from redoxfs.protocol.lap_progress import LapProgress
    from redoxfs.protocol.pool.passes import PassState


LAST_LAP = 1 << 30
"""More laps than any job begins. The laps after it still fit in 32 bits."""

MOST_GIVEN = (1 << 63) - 1


class Turns(NamedTuple):
    """How far a policy's laps are: all that another policy needs to resume them.

    Samples that were loaded or reserved and had no turn are fresh for the other policy, so they are not recorded.

    ``laps``   int32[...], the lap, from 1, of each column or class
    ``had``    uint8[ceil(S / 8)], a bit for each sample, the highest of a byte first: whether it had its turn in the
               lap that its column or class is in
    ``given``  how many turns were given since the first lap began
    ``passes`` which paths were opened and which samples served in the passes; None where they are not kept, or unknown
    """

    laps: Int32
    had: Bytes
    given: int
    passes: "PassState | None" = None

    def flags(self, laps: int, samples: int) -> Flags:
        """bool[S]: ``had``, of so many samples. Raises ValueError where these turns belong to other samples."""
        if len(self.laps) != laps or len(self.had) != (samples + 7) // 8:
            raise ValueError(f"{len(self.laps)} laps and {len(self.had)} bytes, not those of {laps} and {samples}")
        if self.laps.min(initial=1) < 1 or self.laps.max(initial=1) > LAST_LAP:
            raise ValueError(f"laps are counted from 1 to {LAST_LAP}")
        return np.unpackbits(self.had, count=samples).view(np.bool_)


def merged(of_nodes: Sequence[Turns], unit_of: Numbers) -> Turns:
    """The turns of several nodes together, given the column or class int[S] of each sample.

    Raises:
        ValueError: the turns are not of the same samples.
    """
    units = len(of_nodes[0].laps)
    flags = [turns.flags(units, len(unit_of)) for turns in of_nodes]
    laps: Int32 = np.maximum.reduce([turns.laps for turns in of_nodes])
    had = np.zeros(len(unit_of), np.bool_)
    for turns, own in zip(of_nodes, flags, strict=True):
        had |= own & (turns.laps == laps)[unit_of]
    return Turns(laps, np.packbits(had), min(MOST_GIVEN, sum(turns.given for turns in of_nodes)))


def taken_back(turns: Turns, unit_of: Numbers, samples: Numbers, laps: Numbers) -> tuple[Turns, int]:
    """Take back the turns of ``samples``, int[n], in ``laps``, int[n], from ``turns``: the samples come again.

    A class or column may have begun another lap since one of these turns. Then it returns to the lap of that turn, and
    samples that had their turn in the later lap come again as well. The second result counts these additional samples.

    Args:
        unit_of: int[S], the class or column of each sample.

    Raises:
        ValueError: the turns are not of these samples.
    """
    had = turns.flags(len(turns.laps), len(unit_of)).copy()
    if samples.size and not 0 <= samples.min() <= samples.max() < len(unit_of):
        raise ValueError(f"the turns to take back are not of {len(unit_of)} samples")
    units = unit_of[samples]
    # Ignore turns that came after ``turns`` was recorded.
    known = (laps < turns.laps[units]) | ((laps == turns.laps[units]) & had[samples])
    samples, laps, units = samples[known], laps[known], units[known]
    back_to = turns.laps.copy()
    np.minimum.at(back_to, units, laps.astype(back_to.dtype))
    is_back = back_to < turns.laps
    again = 0
    if is_back.any():
        of_back = is_back[unit_of]
        skipped = np.bincount(unit_of, minlength=len(turns.laps)) * np.maximum(turns.laps - back_to - 1, 0)
        later = laps > back_to[units]
        again = int(np.count_nonzero(had & of_back) + skipped.sum() - np.count_nonzero(later))
        had |= of_back
    had[samples[laps == back_to[units]]] = False
    given = max(0, turns.given - len(samples) - again)
    passes = None if turns.passes is None else turns.passes.without(samples, units, laps == turns.laps[units])
    return Turns(back_to, np.packbits(had), given, passes), again


class Ledger:
    """The samples that one node handed to its readers, in the last lap of each column or class that it had any in.

    Args:
        unit_of: int[S], the column or class of each sample.
        units: how many there are.
        members: the samples of one, int[n].

    ``progress``  is told of each turn, if there is one
    """

    def __init__(self, unit_of: Numbers, units: int, members: Callable[[int], Numbers]) -> None:
        self.progress: LapProgress | None = None
        self._unit_array = unit_of
        self._unit_of: Ints = unit_of.data
        self._members = members
        self._laps = np.ones(units, np.int32)
        self._lap: Ints = self._laps.data
        self._had_array = np.zeros(len(unit_of), np.uint8)
        self._had: Ints = self._had_array.data
        self.given = 0

    def note(self, sample: int, lap: int) -> None:
        """A turn of ``sample``, which has it in ``lap``. That lap may be over elsewhere."""
        self.given += 1
        unit = self._unit_of[sample]
        if self.progress is not None:
            self.progress.note(unit, lap)
        known = self._lap[unit]
        if lap != known:
            if lap < known:
                return
            self._had_array[self._members(unit)] = 0
            self._lap[unit] = lap
        self._had[sample] = 1

    def turns(self) -> Turns:
        """A copy."""
        return Turns(self._laps.copy(), np.packbits(self._had_array), self.given)

    def restore(self, turns: Turns) -> None:
        """Resume from this node's own turns. Raises ValueError; nothing was changed."""
        self._had_array[:] = turns.flags(len(self._laps), len(self._had_array))
        self._laps[:] = turns.laps
        self.given = turns.given
        self._replaced()

    def restore_part(self, turns: Turns, samples: Flags) -> None:
        """Resume from the turns of all nodes; this node records ``samples``, bool[S], of them from now on."""
        had = turns.flags(len(self._laps), len(samples))
        self.restore(turns._replace(had=np.packbits(had & samples)))

    def begin_anew(self, samples: Flags) -> None:
        """The laps of ``samples``, bool[S], begin again with the first."""
        self._had_array[samples] = 0
        self._laps[distinct(self._unit_array[samples])] = 1
        self._replaced()

    def _replaced(self) -> None:
        if self.progress is not None:
            self.progress.count_again()
