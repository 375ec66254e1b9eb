"""The decisions that the core hands out, and what a policy offers to the binding.

Nobody changes a record: whoever receives one acts on it and gives nothing back through it. They are named tuples,
which are made three times as fast as frozen dataclasses. Those that an open makes are dataclasses that are not frozen:
made and read faster still, which is 3 % of what a file costs the daemon. Samples, chunks and virtual chunks are plain
integers, the row numbers of the arrays that the layout built.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

from redoxfs.protocol.turns import Turns


class _Load(NamedTuple):
    chunk: int
    samples: tuple[int, ...]


class Load(_Load):
    """Read these samples of one physical chunk; from now on the core counts them as in memory.

    ``samples`` are those that found their slot empty (the useful refills of Alg. 3), the one that is waited
    for first. The chunk's other samples need not be read.

    Raises:
        ValueError: there are no samples. Whoever carries a load out looks at its first one.
    """

    __slots__ = ()

    def __new__(cls, chunk: int, samples: tuple[int, ...]) -> Self:
        if not samples:
            raise ValueError(f"a load of chunk {chunk} must have samples")
        return super().__new__(cls, chunk, samples)


@dataclass(slots=True)
class Served:
    """A turn: ``sample`` is the answer, ``loads`` what is to be read from now on.

    Where the answer itself has to be read, the first load begins with it and is waited for; all others are ahead
    of demand. Otherwise the answer is in memory, or on its way there by a load that was handed out before.
    ``preempted`` is true where the sample was reserved for another path and was the last that could answer.
    ``remote``: another node read it; its bytes came, or come, with an answer.
    ``kept``: it stays in memory all the same, for its next turn.
    """

    sample: int
    loads: tuple[Load, ...] = ()
    preempted: bool = False
    remote: bool = False
    kept: bool = False

    @property
    def is_demanded(self) -> bool:
        """Whether the answer has to be read for this turn."""
        return bool(self.loads) and self.loads[0].samples[0] == self.sample


class Pending(NamedTuple):
    """Another node has to give the sample: whoever asked waits for the `Delivered` with this ticket."""

    ticket: int


@dataclass(slots=True)
class Opened:
    """What an open of a path of sample A means.

    ``sample``    the sample whose bytes the handle serves; UNDECIDED until `Binding.decide` says which.
    ``turn``      what the policy said of the turn that this open caused, or None where it joined a binding or was a
                  second look.
    ``fresh``     the first open of this file under this binding: what the kernel cached of it is void.
    ``released``  samples A whose last answer nobody can ask for again; their bytes may go.
    """

    sample: int
    turn: Served | Pending | None
    fresh: bool
    released: tuple[int, ...]


class StatResult(NamedTuple):
    """What a stat of a path of sample A may say: the size under ``sample``, or A's own where it is None.

    ``bound`` is true while a handle is open: only then is the answer good until the path is freed.
    ``reserved``: ``sample`` was reserved for A by this stat.
    ``unloaded``: samples that had been reserved for others and are in no slot any more; their bytes may go.
    ``pending``: another node was asked for a sample to reserve; to be asked again after `Binding.promise`.
    """

    sample: int | None
    bound: bool
    reserved: bool = False
    unloaded: tuple[int, ...] = ()
    pending: Pending | None = None


class ThreadEnded(NamedTuple):
    """What a thread's death left: paths ``released`` as in Opened, samples ``unloaded`` as in StatResult."""

    released: tuple[int, ...]
    unloaded: tuple[int, ...]


class Closed(NamedTuple):
    """What a close left: ``last``: no handle on any file of A remains; ``released``: as in Opened."""

    last: bool
    released: tuple[int, ...]


ChooseVictim: TypeAlias = Callable[[Iterable[int]], int]
"""From samples that are reserved, at least one and the oldest first, the one whose reservation goes."""


def oldest(reserved: Iterable[int]) -> int:
    """The `ChooseVictim` of a policy that knows nothing of who asks."""
    return next(iter(reserved))


class Policy(Protocol):
    """Decides which sample has the next turn among those that may stand in for the one asked for.

    Every method is a function of the calls before it and of the seed: never of time, never of bytes that
    have or have not arrived.

    ``choose_victim`` picks which of several samples that are reserved is taken for another turn. Without it the
    oldest is.
    """

    choose_victim: ChooseVictim

    def request(self, sample: int) -> Served:
        """Give a turn to a sample that may stand in for ``sample``."""

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample that may stand in for ``sample``; loads nothing; None where none is left."""

    def take(self, reserved: int) -> Served:
        """Give ``reserved`` its turn."""

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. True: the sample's bytes stay in memory for another; False: they may go."""

    def reserved(self, sample: int) -> Iterable[int]:
        """What is reserved and may stand in for ``sample``, oldest first."""


class Message(Protocol):
    """What one node asks another, its ``home``.

    ``number`` counts the messages from this requester to this home, from 0; ``acked_below``: the answers to all lower
    numbers have arrived.
    """

    @property
    def requester(self) -> int: ...
    @property
    def home(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def acked_below(self) -> int: ...


class Answer(Protocol):
    """A home's answer to a message; the bytes of ``samples`` go with it, the one waited for first."""

    @property
    def home(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def samples(self) -> tuple[int, ...]: ...


class Handled(NamedTuple):
    """What a home does about a message.

    ``answer``    to be sent; None for a message whose answer the requester has.
    ``loads``     what to read, each beginning with a sample of the answer or ahead of demand.
    ``preempted`` samples of the answer that stats of this node had reserved: those reservations are over.
    ``repeated``  the message came before, and so the answer was given before.
    """

    answer: Answer | None
    loads: tuple[Load, ...] = ()
    preempted: tuple[int, ...] = ()
    repeated: bool = False


class Delivered(NamedTuple):
    """The turn, or the sample reserved, that ``ticket`` waited for."""

    ticket: int
    served: Served


class SharedPolicy(Protocol):
    """A policy whose samples lie at several nodes. Messages and answers may come any number of times, in any order.

    What it has in common with a `Policy` is as there, but that another node may have to answer.

    ``outbox`` has what is to be sent; whoever called any method takes it out and sends it. Nothing more is done about
    a message that was lost: whoever sends it sends it again, the very same, until it is answered.

    ``unloaded`` and ``revoked`` are taken out likewise, before anything else is done about what the method returned:
    samples that were dropped unserved, those that other nodes gave among them, whose bytes may go; and samples whose
    reservation is void. ``missed``: how many samples, as far as this node knows, laps ended without.
    """

    choose_victim: ChooseVictim
    outbox: list[Message]
    unloaded: list[int]
    revoked: list[int]

    @property
    def missed(self) -> int: ...

    def request(self, sample: int) -> Served | Pending: ...
    def reserve(self, sample: int) -> int | Pending | None: ...
    def take(self, reserved: int) -> Served: ...
    def put_back(self, reserved: int) -> bool: ...
    def reserved(self, sample: int) -> Iterable[int]: ...

    def handle(self, message: Message) -> Handled:
        """Another node asks this one."""

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """An answer came; None where its bytes are not wanted: it came before, or is of a lap that is over."""

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """Another node does not answer: nobody waits for it who need not. What it was asked for may still come."""

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """It answers again, the same process."""

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process, which knows nothing, has taken its place, and answers.

        To be told before anything of that process is handed in; from then on nothing of the one before it is.
        """

    @property
    def given(self) -> int:
        """How many turns this node gave its readers since the first lap began."""

    def turns(self) -> Turns:
        """What this node handed to its readers. A copy."""

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        """What nodes handed to theirs together. Raises ValueError where one is of something else."""

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Go on where all nodes together were: before anything else, and at all of them alike.

        ``own`` is what this node had of ``turns``, where that is known; else each has what lies at it, and
        ``turns.given`` is its part. Raises ValueError; nothing was changed.
        """

    def cancel(self, ticket: int) -> None:
        """Nobody waits for ``ticket`` any more; what comes for it is kept for whoever asks next."""

    def is_taken(self, reserved: int) -> bool:
        """Whether ``reserved`` came from another node."""

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample``, which another node gave and nobody took yet, have their place in memory."""
