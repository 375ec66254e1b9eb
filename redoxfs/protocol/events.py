"""The decisions that the core hands out, and the interface that a policy offers to the binding.

Records are not modified: the receiver acts on them and returns nothing through them. Most are named tuples, which are
created three times as fast as frozen dataclasses. The records of an open are dataclasses that are not frozen: these are
created and read faster still, which saves 3 % of the daemon's time for a file. Samples, chunks and virtual chunks are
plain integers: row numbers of the layout's arrays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from redoxfs.arrays import Numbers
from redoxfs.protocol.turns import Turns


class _Load(NamedTuple):
    chunk: int
    samples: tuple[int, ...]


class Load(_Load):
    """Read these samples of one physical chunk. From now on the core counts them as in memory.

    ``samples`` are the samples that found their slot empty (the useful refills of Alg. 3), the one that a request waits
    for first. The chunk's other samples need not be read.

    Raises:
        ValueError: there are no samples. The runtime looks at the first one.
    """

    __slots__ = ()

    def __new__(cls, chunk: int, samples: tuple[int, ...]) -> Self:
        if not samples:
            raise ValueError(f"a load of chunk {chunk} must have samples")
        return super().__new__(cls, chunk, samples)


@dataclass(slots=True)
class Served:
    """A turn: ``sample`` is the answer, ``loads`` are the reads to start.

    If the answer itself has to be read, the first load begins with it and the request waits for it; all other loads are
    ahead of demand. Otherwise the answer is in memory, or a load that was handed out before brings it.
    ``preempted``: the sample was reserved for another path, and no other sample could answer.
    ``remote``: another node read the sample; its bytes came, or will come, with an answer.
    ``kept``: the sample stays in memory for its next turn.
    ``gone``: samples that stayed in memory, and leave it now; only where there are loads.
    """

    sample: int
    loads: tuple[Load, ...] = ()
    preempted: bool = False
    remote: bool = False
    kept: bool = False
    gone: tuple[int, ...] = ()

    @property
    def is_demanded(self) -> bool:
        """Whether the answer has to be read for this turn."""
        return bool(self.loads) and self.loads[0].samples[0] == self.sample


class Pending(NamedTuple):
    """Another node has to provide the sample: the caller waits for the `Delivered` with this ticket."""

    ticket: int


@dataclass(slots=True)
class Opened:
    """What an open of a path of sample A means.

    ``sample``    the sample whose bytes the handle serves; UNDECIDED until `Binding.decide`.
    ``turn``      what the policy returned for the turn that this open took; None where the open joined a binding or was
                  a second look.
    ``fresh``     the first open of this file under this binding: what the kernel cached of it is void.
    ``released``  samples A whose last answer no open can get again; their bytes may go.
    """

    sample: int
    turn: Served | Pending | None
    fresh: bool
    released: tuple[int, ...]


class StatResult(NamedTuple):
    """What a stat of a path of sample A may report: the size of ``sample``, or A's own size where it is None.

    ``bound``     a handle is open, so the answer stays valid until the path is freed. Without one it may change before.
    ``reserved``  this stat reserved ``sample`` for A.
    ``unloaded``  samples that had been reserved for others and are in no slot any more; their bytes may go.
    ``pending``   another node has to provide a sample to reserve; stat again after `Binding.promise`.
    """

    sample: int | None
    bound: bool
    reserved: bool = False
    unloaded: tuple[int, ...] = ()
    pending: Pending | None = None


class ThreadEnded(NamedTuple):
    """What a thread's death frees: ``released`` paths as in Opened, ``unloaded`` samples as in StatResult."""

    released: tuple[int, ...]
    unloaded: tuple[int, ...]


class Closed(NamedTuple):
    """The result of a close. ``last``: no handle on any file of A remains; ``released``: as in Opened."""

    last: bool
    released: tuple[int, ...]


ChooseVictim: TypeAlias = Callable[[Iterable[int]], int]
"""Chooses the reservation to end, from the reserved samples: at least one, the oldest first."""


def oldest(reserved: Iterable[int]) -> int:
    """The `ChooseVictim` of a policy that does not know who asks."""
    return next(iter(reserved))


class Policy(Protocol):
    """Decides which sample has the next turn among those that may stand in for the one asked for.

    Every method is a function of the calls before it and of the seed: never of time, and never of which bytes have
    arrived.

    ``choose_victim`` picks the reserved sample that another turn preempts. By default it is the oldest.
    """

    choose_victim: ChooseVictim

    def request(self, sample: int) -> Served:
        """Give a turn to a sample that may stand in for ``sample``."""

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample that may stand in for ``sample``. Loads nothing; returns None where none is left."""

    def take(self, reserved: int, path: int = -1) -> Served:
        """Give ``reserved`` its turn, for an open of ``path``."""

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. True: the sample's bytes stay in memory for another turn; False: they may go."""

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples that may stand in for ``sample``, oldest first."""


class Message(Protocol):
    """A request of one node to another, its ``home``.

    ``number`` counts the messages from this requester to this home, from 0. ``acked_below``: the requester has received
    the answers to all lower numbers.
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
    """A home's answer to a message. The bytes of ``samples`` go with it, the sample that is waited for first."""

    @property
    def home(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def samples(self) -> tuple[int, ...]: ...


class Handled(NamedTuple):
    """How a home handles a message.

    ``answer``     to send; None for a message whose answer the requester has.
    ``loads``      reads to start, each beginning with a sample of the answer or ahead of demand.
    ``preempted``  samples of the answer that stats of this node had reserved: those reservations are over.
    ``repeated``   the message came before, and so the answer was given before.
    ``kept``       own samples of the answer that also stay in this node's memory, or that ``loads`` bring again.
    ``remote``     samples of the answer that other nodes had given.
    """

    answer: Answer | None
    loads: tuple[Load, ...] = ()
    preempted: tuple[int, ...] = ()
    repeated: bool = False
    kept: tuple[int, ...] = ()
    remote: tuple[int, ...] = ()


class Delivered(NamedTuple):
    """The turn, or the reserved sample, that ``ticket`` waited for.

    ``served`` is None for a stat that no other node can answer any more: repeat it, as one that comes now.
    """

    ticket: int
    served: Served | None


class SharedState(NamedTuple):
    """All that decides what a shared policy does later, for another process that continues as the same node.

    ``values``  numbers, texts and lists of them, as JSON has them
    ``arrays``  of int64, int32 or uint8
    """

    values: dict[str, Any]
    arrays: dict[str, Numbers]


class SharedPolicy(Protocol):
    """A policy whose samples lie at several nodes. Messages and answers may come any number of times, in any order.

    The methods that it shares with `Policy` work the same, except that another node may have to answer.

    ``outbox`` collects the messages to send. The caller of any method takes them out and sends them. The policy does
    not resend: the sender repeats the very same message until it is answered.

    The caller likewise takes out ``unloaded`` and ``revoked`` before it acts on what the method returned. ``unloaded``
    are samples that were dropped unserved, including those that other nodes gave; their bytes may go. ``revoked`` are
    samples whose reservation is void. ``missed``: how many samples, as far as this node knows, laps ended without.

    `Delivered` come several at a time. The caller ends all reservations that they preempt before it acts on any of them
    (`Binding.revoke_preempted`): to act on one may put samples back.

    A new process continues as the same node from a `state` and a record of the events since: `resume`, then each event
    again, with what was ``chosen`` in it, then `settle`. ``chosen`` has the samples that the policy beneath, which
    decides about this node's own samples, chose in the last event, in order. Its choices depend on what was in memory,
    and so the new process cannot repeat them.
    """

    choose_victim: ChooseVictim
    outbox: list[Message]
    unloaded: list[int]
    revoked: list[int]
    chosen: list[int]

    @property
    def missed(self) -> int: ...

    def request(self, sample: int) -> Served | Pending: ...
    def reserve(self, sample: int) -> int | Pending | None: ...
    def take(self, reserved: int, path: int = -1) -> Served: ...
    def put_back(self, reserved: int) -> bool: ...
    def reserved(self, sample: int) -> Iterable[int]: ...

    def handle(self, message: Message) -> Handled:
        """Another node asks this one."""

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """An answer came. None where its bytes are not wanted: it came before, or belongs to a lap that is over."""

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """Another node does not answer: requests that can do without it stop waiting. Its answers may still come."""

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """The node answers again, as the same process."""

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process, which knows nothing, has taken the node's place, and answers.

        Call this before handing in anything from that process; from then on hand in nothing of the one before it.
        """

    @property
    def given(self) -> int:
        """How many turns this node gave its readers since the first lap began."""

    def turns(self) -> Turns:
        """The turns that this node gave its readers. A copy."""

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        """The turns of several nodes together. Raises ValueError where one has other samples."""

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Resume where all nodes together were. Call it before anything else, and at all of them alike.

        ``own`` is this node's part of ``turns``, where it is known. Otherwise each node has what lies at it, and
        ``turns.given`` is its part. Raises ValueError; nothing was changed.
        """

    def cancel(self, ticket: int) -> None:
        """Nobody waits for ``ticket`` any more. A sample that comes for it is kept for the next request."""

    def is_taken(self, reserved: int) -> bool:
        """Whether the reserved sample ``reserved`` came from another node."""

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample``, which another node gave and nobody took yet, have a place in memory."""

    def state(self) -> SharedState:
        """A copy of all that decides what later events mean."""

    def resume(self, state: SharedState) -> None:
        """Continue where another process of this node was; repeat events from now on, until `settle`.

        On a new policy, before anything else. Raises ValueError where the state is damaged or of other samples; the
        policy is of no use then.
        """

    def expect(self, chosen: Sequence[int]) -> None:
        """Before an event is repeated: what the policy beneath chose in it."""

    def handle_again(self, message: Message, answer: Answer | None, chosen: Sequence[int]) -> Handled:
        """`handle`, as it was answered. Raises ReplayError."""

    def settle(self) -> None:
        """All events were repeated: decide from now on, with nothing in memory. Raises ValueError."""

    def unanswered(self) -> tuple[Message, ...]:
        """The messages without an answer, oldest first, to send again."""
