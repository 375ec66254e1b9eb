"""Messages and answers as lists of numbers, for a record of events that another process repeats.

A list begins with its kind and ends with what it has any number of. On the wire they have another form
(`redoxfs.peers`).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from redoxfs.protocol.events import Answer, Message
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.slot_nodes.messages import Hit, RemoteAnswer, RemoteRead

TAKE, GIVEN, REMOTE_READ, REMOTE_ANSWER = range(1, 5)
"""The kinds."""

NONE = -1
"""In place of a sample: none."""

T = TypeVar("T")


def numbers_of(sent: Message | Answer) -> list[int]:
    """A message or an answer as numbers of at most 64 bits."""
    match sent:
        case Take():
            return [TAKE, *sent]
        case Given():
            home, number, cls, lap, samples, *news = sent
            return [GIVEN, home, number, cls, lap, *news, *samples]
        case RemoteRead():
            *numbers, hits, passed = sent
            return [REMOTE_READ, *numbers, len(hits), *[n for hit in hits for n in hit], *passed]
        case RemoteAnswer(home, number, sample, _, laps):
            return [REMOTE_ANSWER, home, number, NONE if sample is None else 0, len(laps), *sent.samples, *laps]
    raise TypeError(f"{type(sent).__name__} is no message or answer of a shared policy")


def message_of(numbers: Sequence[int]) -> Message:
    """The inverse of `numbers_of`. Raises ValueError."""
    kinds: dict[int, Callable[[list[int]], Message]] = {TAKE: Take.of, REMOTE_READ: _remote_read}
    return _read(numbers, kinds, "message")


def answer_of(numbers: Sequence[int]) -> Answer:
    """The inverse of `numbers_of`. Raises ValueError."""
    kinds: dict[int, Callable[[list[int]], Answer]] = {GIVEN: _given, REMOTE_ANSWER: _remote_answer}
    return _read(numbers, kinds, "answer")


def _read(numbers: Sequence[int], kinds: dict[int, Callable[[list[int]], T]], name: str) -> T:
    kind, *fields = [int(number) for number in numbers] or [0]
    if kind not in kinds:
        raise ValueError(f"{len(numbers)} numbers, kind {kind}, are no {name}")
    try:
        return kinds[kind](fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{len(numbers)} numbers, kind {kind}, are no {name}") from error


def _given(fields: list[int]) -> Given:
    home, number, cls, lap, *rest = fields
    return Given.of(home, number, cls, lap, rest)


def _remote_read(fields: list[int]) -> RemoteRead:
    requester, home, number, acked_below, sample, epoch, position, room_bytes, hits, *rest = fields
    if not 0 <= 2 * hits <= len(rest):
        raise ValueError("too few numbers")
    claims = tuple(Hit(*rest[at : at + 2]) for at in range(0, 2 * hits, 2))
    passed = tuple(rest[2 * hits :])
    return RemoteRead(requester, home, number, acked_below, sample, epoch, position, room_bytes, claims, passed)


def _remote_answer(fields: list[int]) -> RemoteAnswer:
    home, number, asked, count, *rest = fields
    if len(rest) != 2 * count or not asked <= count:
        raise ValueError("too few numbers")
    samples, laps = rest[:count], rest[count:]
    first = samples.pop(0) if asked != NONE else None
    return RemoteAnswer(home, number, first, tuple(samples), tuple(laps))
