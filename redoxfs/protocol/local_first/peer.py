"""What a node knows of a peer, and the unfinished messages between the two."""

from typing import NamedTuple

import numpy as np

from redoxfs.arrays import Flags, Int32
from redoxfs.protocol.local_first.messages import Given, Take


class Sent(NamedTuple):
    """An unanswered Take, and the remote memory granted to its answer."""

    room_bytes: int
    message: Take


class Peer:
    """What a node knows of a peer.

    ``left``, ``done``  int32[C], the peer's last news
    ``before``          int32[C], how many samples the process before it had done, by its last news
    ``again``, ``oldest``  int32[C], the peer's last news, where passes are kept
    ``unanswered``      messages to it, oldest first
    ``answers``         to its messages, by their number, from ``acked_below``
    ``first``           the number of the first message that no process before it can answer
    """

    __slots__ = (
        "acked_below",
        "again",
        "answers",
        "before",
        "done",
        "first",
        "left",
        "number",
        "oldest",
        "unanswered",
    )

    def __init__(self, left: Int32) -> None:
        self.left: memoryview[int] = left.data
        self.done: memoryview[int] = np.zeros_like(left).data
        self.before: memoryview[int] = np.zeros_like(left).data
        self.again: memoryview[int] = np.zeros_like(left).data
        self.oldest: memoryview[int] = np.zeros_like(left).data
        self.number = self.first = 0
        self.unanswered: dict[int, Sent] = {}
        self.answers: dict[int, Given] = {}
        self.acked_below = 0

    def of_classes(self) -> list[Int32]:
        """What is known of each class, int32[C] each; not copies."""
        return [np.asarray(view) for view in (self.left, self.done, self.before, self.again, self.oldest)]

    def acknowledge(self, below: int) -> None:
        """Forget the answers below a number: the peer has them."""
        if below > self.acked_below:
            self.acked_below = below
            for number in [n for n in self.answers if n < below]:
                del self.answers[number]

    def end_rooms(self) -> int:
        """End the rooms granted to answers under way; returns their bytes."""
        granted_bytes = 0
        for number, sent in self.unanswered.items():
            granted_bytes += sent.room_bytes
            self.unanswered[number] = sent._replace(room_bytes=0)
        return granted_bytes

    def restarted(self, has_begun: Flags) -> None:
        """Another process is the peer now, without own samples in the laps that ``has_begun``, bool[C], marks."""
        self.answers.clear()
        self.acked_below = 0
        self.first = self.number
        before, done, left = np.asarray(self.before), np.asarray(self.done), np.asarray(self.left)
        np.maximum(before, done, out=before)
        done[:] = 0
        left[has_begun] = 0
