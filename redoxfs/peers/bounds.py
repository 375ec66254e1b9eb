"""What a message can say at most: numbers that exist, and as much of each thing as there can be.

Checked before anything is made of a message, as protobuf has read it: Python makes many times as much of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message as Proto

from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol import RemoteRead, Take
from redoxfs.protocol.events import Message
from redoxfs.protocol.turns import LAST_LAP

MOST_FILES = 1 << 17
"""Of an answer. What a header has of each takes 16 bytes on the wire, and many times that here."""

MOST_FAILED_FILES = 1 << 20
"""Of an answer that cannot be sent: all have one error."""

MOST_HITS = 1 << 17
"""Hits, and positions passed, in one message: 20 times a whole window of the usual size."""

MOST_SETTINGS = 64
"""Of an introduction, and differences between two."""

LONGEST_TEXT = 4096

SIGNED = 1 << 63
"""What is below it is a number wherever it goes here: in numpy, in a memoryview."""

SIGNED_32 = 1 << 31

LAST_LAP_TOLD = LAST_LAP // 2
"""That a peer may be in. A node that follows it there has as many laps to go before a file of its turns is refused."""

LONGEST_BYTES: dict[type[Proto], int] = {
    pb.HelloRequest: 64 << 10,
    pb.PartRequest: 1 << 10,
    pb.FollowRequest: 1 << 10,  # without its payload
    pb.FollowReply: 1 << 10,
    pb.TurnsRequest: 1 << 10,
    pb.TurnsReply: 1 << 10,  # without its payload
}
"""Bytes of a message, far more than a node says: what protobuf makes of a byte may take a hundred."""


Ints = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there is that a message can be about.

    Args:
        samples: they are numbered from 0.
        classes: likewise.
        kinds: the messages that the policy knows.
        home_of: int[S], the node at which each sample lives, where each has one.
        class_of: int[S], the class of each sample.
    """

    samples: int
    classes: int
    kinds: tuple[type[Message], ...] = (RemoteRead, Take)
    home_of: Ints | None = None
    class_of: Ints | None = None

    def check_samples(self, samples: Iterable[int], home: int) -> None:
        """Raises ValueError if one does not exist, or does not live at ``home``."""
        for sample in samples:
            if sample >= self.samples:
                raise ValueError(f"sample {sample} of {self.samples}")
            if self.home_of is not None and self.home_of[sample] != home:
                raise ValueError(f"sample {sample} lives at node {self.home_of[sample]}, not at node {home}")

    def check_class(self, cls: int) -> None:
        if cls >= self.classes:
            raise ValueError(f"class {cls} of {self.classes}")

    def check_given(self, asked: int, cls: int, samples: Iterable[int]) -> None:
        """Raises ValueError if class ``asked`` is not what ``samples`` are of, and said to be of."""
        if cls != asked:
            raise ValueError(f"class {cls}, where class {asked} was asked for")
        if self.class_of is not None:
            for sample in samples:
                if self.class_of[sample] != cls:
                    raise ValueError(f"sample {sample}, which is not of class {cls}")


def check_introduction(introduction: pb.Introduction) -> None:
    """Raises ValueError if no node would say that of itself, or no line would hold it."""
    if len(introduction.settings) > MOST_SETTINGS:
        raise ValueError(f"{len(introduction.settings)} settings")
    check_below(SIGNED, incarnation=introduction.incarnation, view=introduction.view)
    _check_texts(introduction.view_digest, introduction.dataset, introduction.beginning, introduction.origin)
    for name, value in introduction.settings.items():
        _check_texts(name, value)


def _check_texts(*texts: str) -> None:
    for text in texts:
        if len(text) > LONGEST_TEXT or not text.isprintable():
            raise ValueError(f"a text of {len(text)} characters that is no line")


def check_below(limit: int, **fields: int) -> None:
    for name, number in fields.items():
        if not 0 <= number < limit:
            raise ValueError(f"{name} is {number}")


def check_laps(laps: Iterable[int]) -> None:
    """Raises ValueError if nobody is in one of them."""
    for lap in laps:
        if not 1 <= lap <= LAST_LAP_TOLD:
            raise ValueError(f"lap {lap}, where laps are 1 to {LAST_LAP_TOLD}")


def check_hello_reply(reply: pb.HelloReply) -> None:
    """Raises ValueError, as `check_introduction`."""
    check_introduction(reply.callee)
    if len(reply.differences) > MOST_SETTINGS:
        raise ValueError(f"{len(reply.differences)} differences")
    for difference in reply.differences:
        _check_texts(difference.field, difference.caller, difference.callee)
    if len(reply.begun) % 4:
        raise ValueError(f"laps of classes in {len(reply.begun)} bytes")
    begun = np.frombuffer(reply.begun, "<i4")
    if begun.min(initial=0) < 0 or begun.max(initial=0) > LAST_LAP_TOLD:
        raise ValueError(f"{begun.min()} to {begun.max()} laps begun, where laps are 1 to {LAST_LAP_TOLD}")
