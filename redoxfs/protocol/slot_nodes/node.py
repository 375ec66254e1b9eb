"""One node of the distributed slot protocol: a requester of other homes' samples, and the home of its own."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import Answer, ChooseVictim, Delivered, Handled, Message, Pending, Served
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.slot_nodes.home import Home
from redoxfs.protocol.slot_nodes.messages import RemoteAnswer, RemoteRead
from redoxfs.protocol.slot_nodes.requester import Requester
from redoxfs.protocol.turns import Ledger, Turns, merged

Ints = npt.NDArray[np.integer]


class SlotNode:
    """One node of the distributed protocol: Alg. 1 for its own requests, a home for those of others.

    A `SharedPolicy`. Where the next sample of a (VC, O) at another home may be one that is reserved here already,
    `reserve` returns None.

    Args:
        node: the number of this node.
        policy: decides about the VCs that live here; it knows the whole layout, and is asked for its own part alone.
        home_of: int[S], the node at which each sample lives: the same for all samples of a VC.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of this node's remote VCs and stash.
        window: P, the prefetch window in requests; one means no prefetch.
        reads_alone: whether samples that another home does not give can be read here, as on shared storage.
    """

    def __init__(
        self,
        node: int,
        policy: SlotPolicy,
        home_of: Ints,
        sample_bytes: Ints,
        *,
        remote_memory_bytes: int,
        window: int,
        reads_alone: bool = True,
    ) -> None:
        self.outbox: list[Message] = []
        # Always empty: no other node takes a sample out of a slot or revokes a reservation.
        self.unloaded: list[int] = []
        self.revoked: list[int] = []
        self._node = node
        self._policy = policy
        self._home_of: memoryview[int] = home_of.data
        self.home_of = home_of
        self._homes = int(home_of.max(initial=-1)) + 1
        self._home = Home(node, policy, home_of, sample_bytes, window=window)
        self._ledger = Ledger(policy.columns, policy.column_count, policy.members)
        self._requester = Requester(
            node,
            policy.columns,
            home_of,
            sample_bytes,
            remote_memory_bytes=remote_memory_bytes,
            reads_alone=reads_alone,
            send=lambda message: self.outbox.append(message),
            note=self._ledger.note,
        )

    def follow(self, requester: int, epoch: int, order: Ints) -> None:
        """The trace of ``requester``, this node or another, for ``epoch``."""
        if requester == self._node:
            self._requester.follow(epoch, order)
        else:
            self._home.follow(requester, epoch, order)

    def request(self, sample: int) -> Served | Pending:
        """Alg. 1, ReadFile: a turn for a sample that may stand in for ``sample``."""
        if self._home_of[sample] == self._node:
            return self._note(self._policy.request(sample))
        return self._requester.request(sample)

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve a sample that may stand in for ``sample``. A sample of another home is claimed there at once."""
        if self._home_of[sample] == self._node:
            return self._policy.reserve(sample)
        return self._requester.reserve(sample)

    def take(self, reserved: int) -> Served:
        """The turn of a sample that was reserved."""
        if self._home_of[reserved] == self._node:
            return self._note(self._policy.take(reserved))
        return self._requester.take(reserved)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. A sample of another home stays here for the next request, with its bytes if they fit."""
        if self._home_of[reserved] == self._node:
            return self._policy.put_back(reserved)
        return self._requester.put_back(reserved)

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples that may stand in for ``sample``, oldest first."""
        if self._home_of[sample] == self._node:
            return self._policy.reserved(sample)
        return self._requester.reserved(sample)

    @property
    def choose_victim(self) -> ChooseVictim:
        """Picks the own reserved sample that a turn preempts. Samples of other homes are not preempted."""
        return self._policy.choose_victim

    @choose_victim.setter
    def choose_victim(self, choose: ChooseVictim) -> None:
        self._policy.choose_victim = choose

    def handle(self, message: Message) -> Handled:
        """Another node asks this one: see `Home.handle`."""
        assert isinstance(message, RemoteRead)
        return self._home.handle(message)

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """An answer came; None where it came before. Samples that `keeps` then denies answered no request and did not
        fit.
        """
        assert isinstance(answer, RemoteAnswer)
        return self._requester.receive(answer)

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` does not answer. Where samples can be read here, its waiting requests get the very samples they
        asked for.
        """
        return self._requester.lost(peer) if peer < self._homes else ()

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` answers again. Samples that it was asked for come now, as answers to the earlier messages."""
        self._requester.found(peer)
        return ()

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process is ``peer`` now. Requests that wait for the peer wait for the answers of that process."""
        self._home.restarted(peer)
        if peer < self._homes:
            self._requester.restarted(peer)
            self._ledger.begin_anew(self.home_of == peer)
        return ()

    @property
    def given(self) -> int:
        """How many turns this node gave its readers since the first lap began, `degraded` ones excluded."""
        return self._ledger.given

    def turns(self) -> Turns:
        """The turns that this node gave its readers. A copy."""
        return self._ledger.turns()

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        """The turns of several nodes together. Raises ValueError where one has other samples."""
        return merged(of_nodes, self._policy.columns)

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Resume where all nodes together were. Call it before anything else, and at all of them alike. Raises
        ValueError.
        """
        self._policy.restore(turns)
        if own is None:
            self._ledger.restore_part(turns, self.home_of == self._node)
        else:
            self._ledger.restore(own)

    @property
    def missed(self) -> int:
        """How many samples were sent ahead to nodes that were restarted before they used them."""
        return self._home.missed

    @property
    def degraded(self) -> int:
        """How many requests got the very sample they asked for, as its home was lost."""
        return self._requester.degraded

    def cancel(self, ticket: int) -> None:
        """Nobody waits for ``ticket`` any more. No effect once it was answered."""
        self._requester.cancel(ticket)

    def laps(self, samples: Ints) -> npt.NDArray[np.int32]:
        """The lap, counted from 1, that the column of each of ``samples`` is in; 1 for those of another home."""
        return self._policy.laps(samples)

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""
        return self._policy.chunk_of(sample)

    def is_taken(self, reserved: int) -> bool:
        """Whether ``reserved`` is of another home."""
        return self._home_of[reserved] != self._node

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample``, of another home, count in the remote memory. If not, they may go."""
        return self._requester.keeps(sample)

    def held(self) -> int:
        """How many samples of other homes lie here for later requests, with and without their bytes."""
        return self._requester.held()

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._requester.used_bytes()

    def _note(self, turn: Served) -> Served:
        self._ledger.note(turn.sample, self._policy.lap_of(turn.sample))
        return turn

    @property
    def prefetched(self) -> int:
        """How many samples came into the remote VCs ahead of their request."""
        return self._requester.prefetched

    @property
    def conflicts(self) -> int:
        """How often this home skipped a request of a prefetch window though it had a sample for it in memory, because
        one was sent for its (VC, O) already. A request counts in every window that skips it.
        """
        return self._home.conflicts


def homes_by_vc(columns: npt.NDArray[np.int64], chunk_size: int, nodes: int) -> npt.NDArray[np.int8]:
    """int8[S]: the home of each sample where VCs are dealt to the nodes in turn."""
    homes: npt.NDArray[np.int8] = (columns // chunk_size % nodes).astype(np.int8)
    return homes
