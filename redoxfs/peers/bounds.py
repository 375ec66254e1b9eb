"""Limits of messages: numbers that exist, and counts that are possible.

They are checked right after protobuf has parsed a message, before it becomes Python objects, which take many times the
memory.
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
"""Files in an answer. Each takes 16 bytes of a header on the wire, and many times that in memory."""

MOST_FAILED_FILES = 1 << 20
"""Files in an answer that cannot be sent: all share one error."""

MOST_HITS = 1 << 17
"""Hits, and passed positions, in one message: 20 times a whole window of the usual size. A requester sends fewer of the
latter (`MOST_PASSED` of `slot_nodes`)."""

MOST_SETTINGS = 64
"""Settings in an introduction, and differences between two introductions."""

LONGEST_TEXT = 4096

SIGNED = 1 << 63
"""Numbers below this fit in numpy arrays and memoryviews."""

SIGNED_32 = 1 << 31

LAST_PEER_LAP = LAST_LAP // 2
"""The latest lap that a peer may be in. A node that follows it has as many laps left before its state file would be
refused."""

LONGEST_BYTES: dict[type[Proto], int] = {
    pb.HelloRequest: 64 << 10,
    pb.PartRequest: 1 << 10,
    pb.FollowRequest: 1 << 10,  # without its payload
    pb.FollowReply: 1 << 10,
    pb.TurnsRequest: 1 << 10,
    pb.TurnsReply: 1 << 10,  # without its payload
    pb.RereadRequest: 1 << 10,
}
"""Bytes of a message, far more than a node sends. One byte on the wire may take a hundred in memory."""


Ints = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What exists: messages about anything else are refused.

    Args:
        samples: their number.
        classes: their number.
        kinds: the messages that the policy knows.
        home_of: int[S], the home of each sample, where the policy has homes.
        class_of: int[S], the class of each sample.
        lies_at: int[S], the only node that can read each sample; None where storage is shared.
    """

    samples: int
    classes: int
    kinds: tuple[type[Message], ...] = (RemoteRead, Take)
    home_of: Ints | None = None
    class_of: Ints | None = None
    lies_at: Ints | None = None

    def check_samples(self, samples: Iterable[int], home: int) -> None:
        """Raises ValueError if one does not exist, or has a home other than ``home``."""
        for sample in samples:
            if sample >= self.samples:
                raise ValueError(f"sample {sample} of {self.samples}")
            if self.home_of is not None and self.home_of[sample] != home:
                raise ValueError(f"sample {sample} lives at node {self.home_of[sample]}, not at node {home}")

    def check_reread(self, sample: int, node: int) -> None:
        """Raises ValueError unless ``node`` is the only one that can read ``sample``."""
        if sample >= self.samples:
            raise ValueError(f"sample {sample} of {self.samples}")
        if self.lies_at is None:
            raise ValueError("every node can read every sample")
        if self.lies_at[sample] != node:
            raise ValueError(f"sample {sample} lies at node {self.lies_at[sample]}, not at node {node}")

    def check_class(self, cls: int) -> None:
        if cls >= self.classes:
            raise ValueError(f"class {cls} of {self.classes}")

    def check_given(self, asked: int, cls: int, samples: Iterable[int]) -> None:
        """Raises ValueError unless ``cls`` and the classes of ``samples`` are the class ``asked``."""
        if cls != asked:
            raise ValueError(f"class {cls}, where class {asked} was asked for")
        if self.class_of is not None:
            for sample in samples:
                if self.class_of[sample] != cls:
                    raise ValueError(f"sample {sample}, which is not of class {cls}")


def check_introduction(introduction: pb.Introduction) -> None:
    """Raises ValueError if a value is impossible, or too long for a line."""
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
    """Raises ValueError if one of them is impossible."""
    for lap in laps:
        if not 1 <= lap <= LAST_PEER_LAP:
            raise ValueError(f"lap {lap}, where laps are 1 to {LAST_PEER_LAP}")


def check_hello_reply(reply: pb.HelloReply) -> None:
    """Raises ValueError; see `check_introduction`."""
    check_introduction(reply.callee)
    if len(reply.differences) > MOST_SETTINGS:
        raise ValueError(f"{len(reply.differences)} differences")
    for difference in reply.differences:
        _check_texts(difference.field, difference.caller, difference.callee)
    if len(reply.begun) % 4:
        raise ValueError(f"laps of classes in {len(reply.begun)} bytes")
    begun = np.frombuffer(reply.begun, "<i4")
    if begun.min(initial=0) < 0 or begun.max(initial=0) > LAST_PEER_LAP:
        raise ValueError(f"{begun.min()} to {begun.max()} laps begun, where laps are 1 to {LAST_PEER_LAP}")
