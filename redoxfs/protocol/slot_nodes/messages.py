"""The messages of a requester to a home, and the home's answers."""

from typing import NamedTuple


class Hit(NamedTuple):
    """A claim that the remote VC answered: the sample handed out, and the claim's position in the trace."""

    sample: int
    position: int


class RemoteRead(NamedTuple):
    """A requester's message to a home.

    ``number``               counts the messages from this requester to this home, from 0.
    ``acked_below``          the requester has the answers to all lower numbers.
    ``sample``               the sample that is asked for.
    ``epoch``, ``position``  its place in the requester's trace among the samples of the home, or OFF_TRACE.
    ``room_bytes``           how much remote memory the answer's prefetched samples may take.
    ``hits``                 claims since the last message that needed none.
    ``passed``               positions of ``epoch`` for which no claim will come: samples given before answered them.
    """

    requester: int
    home: int
    number: int
    acked_below: int
    sample: int
    epoch: int
    position: int
    room_bytes: int
    hits: tuple[Hit, ...]
    passed: tuple[int, ...] = ()


class RemoteAnswer(NamedTuple):
    """A home's answer to RemoteRead ``number``.

    ``sample`` is for the claim, None where a prefetched one is under way for it. ``prefetched`` go into the remote VC,
    in the order in which the trace needs them. ``laps``: for each of `samples`, the lap it is given in.
    """

    home: int
    number: int
    sample: int | None
    prefetched: tuple[int, ...]
    laps: tuple[int, ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """All samples, the one that is waited for first."""
        return self.prefetched if self.sample is None else (self.sample, *self.prefetched)
