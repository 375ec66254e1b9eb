"""What a node offers to its peers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from redoxfs.chunks.store import Payload
from redoxfs.protocol.events import Answer, Message


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """An answer, and the bytes of its samples in their order."""

    answer: Answer
    payloads: Sequence[Payload]


class PeerService(Protocol):
    """Called in the trio task alone."""

    async def handle(self, message: Message) -> Reply | None:
        """Another node asks; None where it has the answer. Not called for a message while it is busy with it.

        A message comes again where its answer was lost, or if this raised. That may be at any time before the
        requester said that it has the answer.
        """

    def release(self, reply: Reply) -> None:
        """The bytes of ``reply`` have been sent, or nobody wants them any more. Called once, but not after `close`."""

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        """An answer came whose samples have ``sizes`` bytes; what to call with each of them when it is here.

        Each is called once: with the sample's files, or with an OSError in place of each where they cannot be had,
        which includes `close`. None: the answer came before, and nothing of it is wanted.
        """

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        """``requester`` will ask in ``order`` in ``epoch``."""

    def lost(self, node: int) -> None:
        """``node`` has not answered anything for a while. What was sent to it goes on being repeated."""

    def found(self, node: int) -> None:
        """``node``, which was lost, answers again: the same process, or one that `restarted` was told of."""

    def restarted(self, node: int) -> None:
        """Another process has taken the place of ``node``: it knows nothing of what was sent before."""


class LapService(Protocol):
    """Where the laps of a node start. Called in the trio task alone."""

    def kept(self) -> bytes:
        """What the laps of the view go on from, as a file; empty where that is nothing. With --resume it is this node's
        part of it; of a state that was loaded the whole."""

    def turns(self) -> bytes:
        """How far they are now, as a file. The longest that a peer may say is `Peers`' ``max_turns_bytes``."""

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        """All nodes begin, and go on from what each kept; ``kept`` has that of the peers, by address.

        Before any message. Raises ValueError: one line. Returns the origin of the laps, empty where nothing was kept.
        """

    async def follow_state(self, data: bytes) -> None:
        """The others have loaded a state, and so does this node. Before any message. Raises ValueError: one line."""

    def set_lap_lineage(self, lap_lineage: str) -> None:
        """What tells these laps from those that began at another time; before any turn."""

    def begun(self) -> npt.NDArray[np.int32]:
        """int32[C]: how many laps of each class have begun; for whoever takes the place of another process."""

    def rejoin(self, begun: npt.NDArray[np.int32]) -> None:
        """This process has taken the place of another, and the others went on; ``begun`` is the most that a peer said.
        Before any message."""
