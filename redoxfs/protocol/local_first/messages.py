"""The message by which a node asks a peer for samples, and the answer."""

from collections.abc import Sequence
from typing import NamedTuple


class Take(NamedTuple):
    """A node asks ``home`` for up to ``max_samples`` samples of a class, in ``lap``.

    ``number`` counts the messages between the two. ``acked_below``: the requester has the answers to all lower numbers.
    ``room_bytes``: the room for the samples after the first. ``attempt``: how many times in a row every peer was asked
    for this class and had nothing; from 1 on the sender should wait a little before it sends. ``done``: how many
    samples the requester has handed to readers in ``lap``. Where passes are kept (`passing`): ``epoch``: how many
    epochs of the class's tree the requester was told of, and one; 0 where that is unknown. ``turn``: how many opens of
    the tree it had; ``since``: its run has those after this one. ``anyway``: nobody has a sample that passes allow;
    give the one that left longest ago. ``holds``: what a pass was given is held back; do so, too.
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
    epoch: int = 0
    turn: int = 0
    since: int = 0
    anyway: bool = False
    holds: bool = False

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Take":
        """A message whose fields were stored as numbers. Raises ValueError."""
        *others, anyway, holds = numbers
        if len(numbers) != len(cls._fields) or not {anyway, holds} <= {0, 1}:
            raise ValueError("too few or too many numbers, or a flag that is none")
        return cls._make([*others, anyway == 1, holds == 1])


class Given(NamedTuple):
    """The answer: ``samples``, and the home's news of the class in ``lap``.

    ``left``: how many samples it has that are not reserved; ``done``: how many it has handed to readers. Where passes
    are kept: ``epoch``, ``since`` and ``holds``: as in Take. ``again``: how many samples that had their turn in ``lap``
    passes allow; ``oldest``: how many opens of its own were since the first of those that are held back left; 0 where
    none is.
    """

    home: int
    number: int
    cls: int
    lap: int
    samples: tuple[int, ...]
    left: int
    done: int
    epoch: int = 0
    again: int = 0
    oldest: int = 0
    since: int = 0
    holds: bool = False

    @classmethod
    def of(cls, home: int, number: int, unit: int, lap: int, numbers: Sequence[int]) -> "Given":
        """An answer of which the rest was stored as numbers: first the news, then the samples. Raises ValueError."""
        left, done, epoch, again, oldest, since, holds, *samples = numbers
        if holds not in (0, 1):
            raise ValueError("a flag that is none")
        return cls(home, number, unit, lap, tuple(samples), left, done, epoch, again, oldest, since, holds == 1)
