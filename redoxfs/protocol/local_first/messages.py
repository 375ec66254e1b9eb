"""The message by which a node asks a peer for samples, and the answer."""

from typing import NamedTuple


class Take(NamedTuple):
    """A node asks ``home`` for up to ``max_samples`` samples of a class, in ``lap``.

    ``number`` counts the messages between the two. ``acked_below``: the requester has the answers to all lower numbers.
    ``room_bytes``: the room for the samples after the first. ``attempt``: how many times in a row every peer was asked
    for this class and had nothing; from 1 on the sender should wait a little before it sends. ``done``: how many
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

    ``left``: how many samples it has that are not reserved; ``done``: how many it has handed to readers.
    """

    home: int
    number: int
    cls: int
    lap: int
    samples: tuple[int, ...]
    left: int
    done: int
