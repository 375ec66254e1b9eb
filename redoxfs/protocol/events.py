"""The decisions that the core hands out, and what a policy offers to the binding.

Nobody changes a record: whoever receives one acts on it and gives nothing back through it. They are named tuples,
which are made three times as fast as frozen dataclasses. Those that an open makes are dataclasses that are not frozen:
made and read faster still, which is 3 % of what a file costs the daemon. Samples, chunks and virtual chunks are plain
integers, the row numbers of the arrays that the layout built.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Load(NamedTuple):
    """Read these samples of one physical chunk; from now on the core counts them as in memory.

    ``samples`` are those that found their slot empty (the useful refills of Alg. 3), the one that is waited
    for first. The chunk's other samples need not be read.
    """

    chunk: int
    samples: tuple[int, ...]


@dataclass(slots=True)
class Served:
    """A turn: ``sample`` is the answer, ``loads`` what is to be read from now on.

    Where the answer itself has to be read, the first load begins with it and is waited for; all others are ahead
    of demand. Otherwise the answer is in memory, or on its way there by a load that was handed out before.
    ``stolen`` is true where the sample had been reserved for another path and was the last that could answer.
    """

    sample: int
    loads: tuple[Load, ...] = ()
    stolen: bool = False

    @property
    def is_demanded(self) -> bool:
        """Whether the answer has to be read for this turn."""
        return bool(self.loads) and self.loads[0].samples[0] == self.sample


@dataclass(slots=True)
class Opened:
    """What an open of a path of sample A means.

    ``sample``    the sample whose bytes the handle serves.
    ``turn``      the Served that this open caused, or None where it joined a binding or was a second look.
    ``fresh``     the first open of this file under this binding: what the kernel cached of it is void.
    ``released``  samples A whose last answer nobody can ask for again; their bytes may go.
    """

    sample: int
    turn: Served | None
    fresh: bool
    released: tuple[int, ...]


class Told(NamedTuple):
    """What a stat of a path of sample A may say: the size under ``sample``, or A's own where it is None.

    ``bound`` is true while a handle is open: only then is the answer good until the path is freed.
    ``reserved``: ``sample`` was put aside for A by this stat.
    ``unloaded``: samples that had been put aside for others and are in no slot any more; their bytes may go.
    """

    sample: int | None
    bound: bool
    reserved: bool = False
    unloaded: tuple[int, ...] = ()


class Ended(NamedTuple):
    """What a thread's death left: paths ``released`` as in Opened, samples ``unloaded`` as in Told."""

    released: tuple[int, ...]
    unloaded: tuple[int, ...]


class Closed(NamedTuple):
    """What a close left: ``last``: no handle on any file of A remains; ``released``: as in Opened."""

    last: bool
    released: tuple[int, ...]


class Policy(Protocol):
    """Decides which sample has the next turn among those that may stand in for the one asked for.

    Every method is a function of the calls before it and of the seed: never of time, never of bytes that
    have or have not arrived.
    """

    def request(self, sample: int) -> Served:
        """Give a turn to a sample that may stand in for ``sample``."""

    def reserve(self, sample: int) -> int | None:
        """Put a sample aside that may stand in for ``sample``; loads nothing; None where none is left."""

    def take(self, reserved: int) -> Served:
        """Give ``reserved``, put aside before, its turn."""

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. True: the sample's bytes stay in memory for another; False: they may go."""
