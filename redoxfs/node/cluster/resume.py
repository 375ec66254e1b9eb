"""How far the laps of all nodes are, and where they start.

Nodes that are started with ``--resume`` send each other what they kept, and each comes to the same laps by itself. No
node answers for samples before it has. A node that takes the place of another process resumes nothing: it takes part
from the next lap of each class.

Laps that began at different times have different *lineages*. A lineage is a text, greater for later laps. Where all
begin anew, it is the greatest of what the nodes propose, and each view derives its own from the one before. Of kept
files only those of the latest lineage count.

All methods are called in the node's task.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from redoxfs.node.cluster.prefetch import Prefetch
from redoxfs.node.node import Node
from redoxfs.node.state import WRITE_EVERY_S, State, StateError, StateWriter, line_of, name_of, summary
from redoxfs.node.threads import in_thread
from redoxfs.peers.bounds import LAST_PEER_LAP, check_laps
from redoxfs.protocol import SharedServingPolicy
from redoxfs.protocol.turns import Turns

log = logging.getLogger(__name__)


class Laps:
    """Where this node's laps start: a `redoxfs.peers.LapService`.

    Args:
        own: this node's address.
        kept: with ``--resume`` this node's file, empty where there is none; None without.
        samples: how many there are.
        flush: sends what the policy asks of other nodes.
        say: prints a line for the user who started the node.
    """

    def __init__(
        self,
        node: Node,
        state: StateWriter,
        prefetch: Prefetch,
        *,
        own: str,
        kept: bytes | None,
        samples: int,
        flush: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._state = state
        self._prefetch = prefetch
        self._own = own
        self._resumes = kept is not None
        # The file that the laps of the view start from.
        self._kept = kept or b""
        self._samples = samples
        self._flush = flush
        self._say = say
        self.lineage = ""

    def begin(self, kept: bytes) -> None:
        """The laps start from ``kept`` now: the file of a state, or empty to count from one."""
        self._kept = kept

    # For peers

    def kept(self) -> bytes:
        return self._kept

    def turns(self) -> bytes:
        return self._state.encoded()

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        of_all = {self._own: self._kept, **kept}
        states = await self._decoded({address: data for address, data in of_all.items() if data})
        if not states:
            self._say("there is nothing to resume at any node")
            return ""
        # Files of an earlier lineage are left over, as of a node that gave nothing in the latest laps.
        lineage = max(state.lap_lineage for state in states.values())
        decoded = {address: state.turns for address, state in states.items() if state.lap_lineage == lineage}
        turns = self._policy.merged(list(decoded.values()))
        nothing = turns._replace(had=np.zeros_like(turns.had), given=0)
        self._policy.restore(turns, decoded.get(self._own, nothing))
        line = line_of(summary(turns, self._samples))
        self._say(
            f"resumed: {line} at all nodes; "
            f"samples that a killed node served in its last {WRITE_EVERY_S:g} s may be served again"
        )
        lacking = [address for address in of_all if address not in decoded]
        if lacking:
            self._say(f"no state from {', '.join(lacking)}: what it served in these laps is served again")
        await self._prefetch.follow_from(turns)
        return lineage

    async def follow_state(self, data: bytes) -> None:
        try:
            turns = await in_thread(self._state.decoded_whole, data)
            _check_laps(turns)
        except StateError as error:
            raise ValueError(f"cannot use the state that the other nodes loaded: {error}") from error
        self._kept = data
        share = self._node.share
        self._policy.restore(part_of(turns, share.node, share.nodes))
        self._say(f"the other nodes continue from {name_of(data)}, and so does this node")
        await self._prefetch.follow_from(turns)

    def set_lap_lineage(self, lap_lineage: str) -> None:
        self.lineage = lap_lineage

    def begun(self) -> npt.NDArray[np.int32]:
        return self._policy.begun()

    def rejoin(self, begun: npt.NDArray[np.int32]) -> None:
        if self._resumes:
            self._say("the other nodes continued without this node, so it joins them and resumes nothing")
        policy = self._policy
        if len(policy.begun()):
            log.info("this process replaces another: it takes part from the next lap of each class")
            policy.rejoin(begun)
            self._node.checkpoint()
            self._flush()

    # For this node

    async def merged(self, of_peers: Mapping[str, bytes]) -> Turns:
        """The turns of all nodes; ``of_peers`` has the files of the peers, by address. Raises ValueError."""
        states = await self._decoded(of_peers)
        return self._policy.merged([self._node.turns(), *(state.turns for state in states.values())])

    @property
    def _policy(self) -> SharedServingPolicy:
        return self._node.shared_policy

    async def _decoded(self, of_nodes: Mapping[str, bytes]) -> dict[str, State]:
        """The states of the nodes at these addresses. Raises ValueError."""
        decoded = {}
        for address, data in of_nodes.items():
            try:
                decoded[address] = await in_thread(self._state.decoded, data)
                if address != self._own:
                    _check_laps(decoded[address].turns)
            except StateError as error:
                raise ValueError(f"{address}: cannot use its state: {error}") from error
        return decoded


def new_lineage(node: int, before: str) -> str:
    """What a node proposes where all begin anew, if the file that it has is of the laps ``before``; empty: it has none.

    Node 0 proposes the time. Clocks are set back, and hosts differ, so each node proposes at least what is greater than
    the lineage of its file.
    """
    digits = before.partition("-")[0]
    least = int(digits) + 1 if digits.isdigit() else 0
    return f"{max(least, 0 if node else time.time_ns()):020}-{secrets.token_hex(4)}.{0:08}."


def lineage_after(lineage: str, start_point: str) -> str:
    """The lineage of laps that start after those of ``lineage``: the same wherever these began alike."""
    first, number, _ = lineage.split(".")
    digest = hashlib.sha256(f"{lineage} {start_point}".encode()).hexdigest()[:8]
    return f"{first}.{int(number) + 1:08}.{digest}"


def part_of(turns: Turns, node: int, nodes: int) -> Turns:
    """The start of one node where all start from ``turns``: its part of the turns given is counted as its own."""
    each, rest = divmod(turns.given, nodes)
    return turns._replace(given=each + (node < rest))


def _check_laps(turns: Turns) -> None:
    """Raises StateError if another node reports laps that it cannot be in."""
    try:
        check_laps(turns.laps[turns.laps > LAST_PEER_LAP][:1].tolist())
    except ValueError as error:
        raise StateError(str(error)) from error
