"""A network for tests of the core: from one seed, it delays, reorders, repeats and loses what nodes send.

A test has nodes, `Worker`s that ask them, and a `Network` for the messages. It draws what happens next: a worker's
step, the arrival of any letter, or the repetition of a message that is not answered, as the transport repeats it. So
messages overtake each other as they may between threads.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from redoxfs.protocol import Answer, LocalFirst, Message, PoolPolicy, Served, SharedPolicy
from redoxfs.protocol.local_first.passes import HomePass

CHUNK_SIZE = 4

REPEATED = 0.2
"""Share of the letters that arrive once more, at any later time."""

LOST = 0.2
"""Share of the letters that do not arrive."""

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """A thread of a job: it makes one request at a time, or stats a file and opens it a while later.

    ``todo``      the paths that it opens one after the other
    ``asked``     the path that it opens or stats now; -1 where none
    ``ticket``    the ticket that it waits for; ``reserves``: for a stat
    ``reserved``  the sample that is reserved for ``asked``
    ``sleeps``    it neither opens what it has stat'ed, nor undoes that, before all others are through
    """

    node: int
    todo: list[int]
    asked: int = -1
    ticket: int | None = None
    reserves: bool = False
    reserved: int | None = None
    sleeps: bool = False

    @property
    def is_through(self) -> bool:
        return not self.todo and self.ticket is None and self.reserved is None and self.asked < 0


@dataclass(frozen=True, slots=True)
class Letter:
    """A message or, with ``answer``, the answer to it; from process ``sender`` of the requester to ``home`` of the
    home, in tests that distinguish processes."""

    message: Message
    answer: Answer | None = None
    sender: int = 0
    home: int = 0


@dataclass(slots=True)
class Network:
    """The letters between nodes: they arrive in any order, ``repeated`` of them twice and ``lost`` of them not at all.

    ``unanswered`` has the messages that were sent and not answered, by requester, home and number.
    """

    draw: random.Random
    repeated: float = REPEATED
    lost: float = LOST
    under_way: list[Letter] = field(default_factory=list)
    unanswered: dict[tuple[int, int, int], Message] = field(default_factory=dict)

    def send(self, number: int, node: SharedPolicy) -> None:
        """Send what node ``number`` has in its outbox."""
        for message in self.collect(number, node):
            self.post(Letter(message))

    def collect(self, number: int, node: SharedPolicy) -> list[Message]:
        """Take the messages out of a node's outbox; from now on they are unanswered."""
        messages = node.outbox.copy()
        node.outbox.clear()
        for message in messages:
            assert message.requester == number != message.home
            self.unanswered[key(message)] = message
        return messages

    def post(self, letter: Letter) -> None:
        self.under_way.append(letter)

    def send_again(self) -> None:
        """Send one of the unanswered messages once more."""
        self.post(Letter(self.draw.choice(list(self.unanswered.values()))))

    def take(self, at: int) -> Letter | None:
        """The letter at a place of ``under_way`` arrives; None where it is lost."""
        letter = self.under_way[at]
        fate = self.draw.random() if self.repeated or self.lost else 0.5
        if fate > self.repeated:
            self.under_way.pop(at)
            if fate > 1 - self.lost:
                return None
        return letter

    def is_unanswered(self, message: Message) -> bool:
        return key(message) in self.unanswered

    def note_answered(self, message: Message) -> bool:
        """An answer to a message was handed in. False where one was before."""
        return self.unanswered.pop(key(message), None) is not None


def answered(nodes: Sequence[SharedPolicy], node: SharedPolicy) -> dict[int, Served]:
    """Answer every message of ``node`` at once; returns the turns by ticket."""
    delivered: dict[int, Served] = {}
    while node.outbox:
        message = node.outbox.pop()
        answer = nodes[message.home].handle(message).answer
        assert answer is not None
        for ticket, turn in node.receive(answer) or ():
            assert turn is not None
            delivered[ticket] = turn
    return delivered


def key(message: Message) -> tuple[int, int, int]:
    return message.requester, message.home, message.number


def random_cells(draw: random.Random, samples: int) -> Int32:
    """int32[chunks, CHUNK_SIZE]: samples in random order, holes at the end."""
    in_order = draw.sample(range(samples), samples) + [-1] * (-samples % CHUNK_SIZE)
    return np.array(in_order, np.int32).reshape(-1, CHUNK_SIZE)


def parts_of_chunks(cells: Int32, parts: Sequence[int]) -> Int8:
    """int8[S]: the part of each sample, where ``parts`` has that of each chunk."""
    part_of = np.empty(int((cells >= 0).sum()), np.int8)
    for chunk, part in zip(cells, parts, strict=True):
        part_of[chunk[chunk >= 0]] = part
    return part_of


class DrawnPool:
    """Samples in random order in chunks, each of a random class and size, and each chunk at a random node.

    ``class_of``  int32[S];  ``part_of``: int8[S], the node that has each sample;  ``cells``: int32[chunks, CHUNK_SIZE]
    ``sizes``     int64[S], from 1 to ``largest``
    ``reads_alone``  nodes can read the samples of others
    """

    made: type[LocalFirst]
    retained: float
    remote_memory_bytes: int
    exchange: float
    reads_alone: bool

    def draw(self, seed: int, *, nodes: int, samples: int, classes: int, largest: int) -> None:
        draw = random.Random(seed)
        self.class_of = np.array([draw.randrange(classes) for _ in range(samples)], np.int32)
        self.cells = random_cells(draw, samples)
        self.part_of = parts_of_chunks(self.cells, [draw.randrange(nodes) for _ in self.cells])
        self.sizes = np.array([draw.randint(1, largest) for _ in range(samples)], np.int64)

    def pool_of(self, node: int, nodes: int, *, resident: int, seed: int) -> LocalFirst:
        return pool_node(
            node,
            nodes,
            cells=self.cells,
            class_of=self.class_of,
            part_of=self.part_of,
            sample_bytes=self.sizes,
            resident=resident,
            retained=self.retained,
            remote_memory_bytes=self.remote_memory_bytes,
            exchange=self.exchange,
            seed=seed,
            reads_alone=self.reads_alone,
            made=self.made,
        )


class ByLaps(LocalFirst):
    """Laps alone decide: nothing is held back, whatever its readers open. So no sample comes twice in a lap."""

    def _hold(self, tree: HomePass) -> None:
        pass


def pool_node(
    node: int,
    nodes: int,
    *,
    cells: Int32,
    class_of: Int32,
    part_of: Int8,
    sample_bytes: Int64,
    resident: int,
    retained: float = 0,
    remote_memory_bytes: int,
    exchange: float = 0,
    seed: int = 0,
    pool_seed: int | None = None,
    reads_alone: bool = False,
    made: type[LocalFirst] = ByLaps,
) -> LocalFirst:
    """A node with a pool that holds one of ``resident`` samples, at least one byte. It retains the share ``retained``
    of them.
    """
    capacity_bytes = max(1, int(sample_bytes.sum()) // resident)
    policy = PoolPolicy(
        cells,
        class_of,
        sample_bytes,
        capacity_bytes=capacity_bytes,
        retained_bytes=int(retained * capacity_bytes),
        seed=seed if pool_seed is None else pool_seed,
        covered=part_of == node,
    )
    return made(
        node,
        policy,
        class_of,
        part_of,
        sample_bytes,
        nodes=nodes,
        remote_memory_bytes=remote_memory_bytes,
        exchange=exchange,
        seed=seed,
        reads_alone=reads_alone,
    )
