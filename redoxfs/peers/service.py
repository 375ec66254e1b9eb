"""The interfaces that a node implements for its peers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from redoxfs.chunks.store import Payload
from redoxfs.protocol.events import Answer, Message


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """An answer, and the bytes of its samples in their order. Without an answer: bytes that were sent before."""

    answer: Answer | None
    payloads: Sequence[Payload]


class PeerService(Protocol):
    """Messages of peers, and answers to this node's messages. Called in the trio task alone."""

    def handle(self, message: Message) -> Reply | Awaitable[Reply | None] | None:
        """The answer to another node's message, at once if its bytes are here; None if that node has it. Not called
        twice at once for a message.

        A message comes again if its answer was lost, or if this raised: at any time before the requester acknowledges
        the answer.
        """

    def reread(self, sample: int) -> Reply | Awaitable[Reply]:
        """The bytes of a sample that lies at this node, again and outside of any turn. Changes no decision."""

    def release(self, reply: Reply) -> None:
        """The bytes of ``reply`` were sent, or are not needed any more. Called once, but not after `close`."""

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        """An answer came, whose samples have ``sizes`` bytes. Returns a callback for each of them.

        Each callback is called once: with the sample's files, or with an OSError for each file if they cannot be
        fetched, as after `close`. None: the answer came before, and none of it is needed.
        """

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        """``requester`` will request samples in ``order`` in ``epoch``."""

    def lost(self, node: int) -> None:
        """``node`` has not answered anything for a while. Messages to it are still repeated."""

    def found(self, node: int) -> None:
        """``node``, which was lost, answers again: the same process, or one that `restarted` announced."""

    def restarted(self, node: int) -> None:
        """Another process has taken the place of ``node``. It knows nothing of earlier messages."""


class LapService(Protocol):
    """Where the laps of a node start. Called in the trio task alone."""

    def kept(self) -> bytes:
        """The file that the laps of the view start from; empty if they start anew. With --resume it is this node's own
        file; of a loaded state it is the whole."""

    def turns(self) -> bytes:
        """The file of the turns so far. Its size is limited by the peers' ``max_turns_bytes`` (`Peers`)."""

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        """All nodes start from the files that each kept. ``kept`` has those of the peers, by address.

        Before any message. Raises ValueError: one line. Returns the lineage of the laps, empty if no file was kept.
        """

    async def follow_state(self, data: bytes) -> None:
        """Start from a state that the others have loaded. Before any message. Raises ValueError: one line."""

    def set_lap_lineage(self, lap_lineage: str) -> None:
        """Set the text that identifies these laps among those of other times. Before any turn."""

    def begun(self) -> npt.NDArray[np.int32]:
        """int32[n]: how many laps have begun, for a process that replaces another (`SharedServingPolicy.begun`)."""

    def rejoin(self, begun: npt.NDArray[np.int32]) -> None:
        """This process replaces another, and the others have continued. ``begun`` is the maximum over the peers.
        Before any message."""
