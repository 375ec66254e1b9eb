"""What a node asks a peer for, and what the peer answers."""

from typing import NamedTuple


class Take(NamedTuple):
    """A node asks ``home`` for ``max_samples`` samples, or fewer, of a class, in ``lap``.

    ``number`` counts the messages between the two, ``acked_below``: the answers to all lower numbers have arrived.
    ``room_bytes``: what the samples after the first may take. ``attempt``: so many times in a row every peer was asked
    for this class and had nothing; from 1 on it is better to wait a little before this one is sent. ``done``: how many
    samples the requester has handed to readers in ``lap``.
    """

    requester: int
    home: int
    number: int
    acked_below: int
    cls: int
    lap: int
    max_samples: int
    room_bytes: int
    attempt: int
    done: int


class Given(NamedTuple):
    """The answer: ``samples``, and the home's news of the class in ``lap``.

    ``left``: what it has and is not reserved; ``done``: what it has handed to readers.
    """

    home: int
    number: int
    cls: int
    lap: int
    samples: tuple[int, ...]
    left: int
    done: int
