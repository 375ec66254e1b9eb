"""Messages between nodes, and the bytes of their answers: between the core and `redoxfs.peers`.

Messages and answers are the core's; here their samples get their bytes. A sample that is given to another node leaves
the slots with its bytes, which are kept until they were sent. If the sample is asked for again after that, its bytes
are read again. A sample that another node gives exists for the core as soon as the answer is here, and for an open once
its last byte is here.

All methods are called in the node's task.
"""

import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.chunks.store import Payload
from redoxfs.node.memory import Content
from redoxfs.node.node import Node
from redoxfs.node.supply import all_here
from redoxfs.peers import Peers, Reply
from redoxfs.protocol import Answer, Delivered, Message, SharedServingPolicy, Take

PAUSE_S = 0.005
"""Before peers are asked again for samples that none of them had, doubled each time up to `LONGEST_PAUSE_S`: the
missing sample is on its way between two of them, or waits for a reader at one."""

LONGEST_PAUSE_S = 0.2

log = logging.getLogger(__name__)


class Messages:
    """Answers peers for a node, and takes in their answers: a `redoxfs.peers.PeerService`.

    Args:
        timeout_s: the deadline for reading the samples of an answer.
    """

    def __init__(self, node: Node, nursery: trio.Nursery, *, timeout_s: float) -> None:
        self._node = node
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._contents: dict[int, Sequence[Content]] = {}
        self._peers: Peers | None = None
        self._attached = trio.Event()
        self._is_between = False
        node.supply.fetch = lambda content: nursery.start_soon(self._fetch, content)

    def attach(self, peers: Peers | None) -> None:
        """Send to ``peers`` from now on."""
        self._peers = peers
        self._is_between = False
        self._attached.set()
        self._attached = trio.Event()
        if peers is not None:
            self._node.flush = self.flush

    def detach(self) -> None:
        """The peers are about to be closed, and `attach` follows with others."""
        self._is_between = True

    def drop_replies(self) -> None:
        """No reply that was prepared is sent any more."""
        for contents in self._contents.values():
            self._sent(contents)
        self._contents.clear()

    # From peers

    def handle(self, message: Message) -> Reply | Awaitable[Reply] | None:
        if self._node.is_frozen:
            raise OSError(errno.EAGAIN, "this node's process ends")
        handled = self._policy.handle(message)
        if handled.answer is not None and not handled.repeated:
            self._node.handled(message, handled.answer)
        # Also while nothing can be sent: a checkpoint has to find the same reservations here and at the policy.
        self._node.void_dropped()
        self.flush()
        for sample in handled.preempted:
            self._node.binding.revoke(sample)
        self._node.checkpoint_if_due()
        answer = handled.answer
        if answer is None:
            return None
        return self._reply(answer, self._node.supply.give(handled))

    def reread(self, sample: int) -> Reply | Awaitable[Reply]:
        supply = self._node.supply
        if self._node.is_frozen or supply.owner(sample) is not None:
            raise OSError(errno.EAGAIN, "this node's process ends, or its list of nodes is another")
        return self._reply(None, (supply.give_again(sample),))

    def _reply(self, answer: Answer | None, contents: Sequence[Content]) -> Reply | Awaitable[Reply]:
        """``answer`` with the bytes of its samples: at once if all are here."""
        if all(content.arrived for content in contents):
            return self._complete(answer, contents)
        return self._reply_late(answer, contents)

    async def _reply_late(self, answer: Answer | None, contents: Sequence[Content]) -> Reply:
        try:
            await all_here(contents, self._timeout_s)
        except BaseException:
            self._sent(contents)
            raise
        return self._complete(answer, contents)

    def _complete(self, answer: Answer | None, contents: Sequence[Content]) -> Reply:
        reply = Reply(answer, tuple([content.payload for content in contents]))
        self._contents[id(reply)] = contents
        return reply

    def release(self, reply: Reply) -> None:
        self._sent(self._contents.pop(id(reply), ()))

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        # The core keeps account of the sizes that the samples should have.
        policy, node = self._policy, self._node
        if node.is_frozen:
            # The next process asks again.
            return None
        delivered = policy.receive(answer)
        node.received(answer)
        self.flush()
        if delivered is None:
            return None
        contents = node.memory.expect_from_peer(answer.samples)
        node.counters.remote_samples += len(contents)
        self._take_in(delivered)
        self.flush()
        node.checkpoint_if_due()
        # The policy has no memory for some of them: they are read again when they are needed, if this node can.
        for sample in answer.samples:
            if node.memory.holds_remote(sample) and not policy.keeps(sample) and node.plan.owner(sample) is None:
                node.memory.forget(sample, remote=True)
        return [partial(self._came, content) for content in contents]

    def _came(self, content: Content, payload: Payload) -> None:
        """The bytes of a sample of an answer are here, or errors in their place."""
        is_given_up = self._is_between and any(isinstance(file, OSError) for file in payload)
        if is_given_up and not self._node.plan.reads_any:
            # An open may wait for it, and the next list of nodes has it as well.
            self._node.supply.read(content)
        else:
            self._node.supply.came(content, payload)

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        policy = self._policy
        if policy.needs_order:
            policy.follow(requester, epoch, order)
            # An order has no entry in the journal, and is not sent again.
            self._node.checkpoint()

    def lost(self, node: int) -> None:
        self._changed(self._policy.lost(node))
        alone = self._policy.classes_alone()
        if alone:
            log.warning(
                "classes whose samples are all at lost nodes: %d; each of their opens reads the file it names", alone
            )

    def found(self, node: int) -> None:
        self._changed(self._policy.found(node))

    def restarted(self, node: int) -> None:
        self._changed(self._policy.restarted(node))

    # To peers

    async def _fetch(self, content: Content) -> None:
        """Let the node that can read a sample send it once more."""
        supply, sample = self._node.supply, content.sample
        while True:
            peers, owner = self._peers, self._node.plan.owner(sample)
            if owner is None:
                # By a later list of nodes.
                supply.read(content)
                return
            try:
                if peers is None:
                    raise OSError(errno.EIO, "this node has left the others")
                payload = await peers.reread(owner, sample)
                files = len(supply.files_of(sample))
                if len(payload) != files:
                    raise OSError(errno.EIO, f"node {owner} sent {len(payload)} files of a sample of {files}")
            except OSError as error:
                if peers is not None and not peers.is_running:
                    # Another list of nodes is coming, or the end.
                    if self._peers is peers:
                        await self._attached.wait()
                    if not content.is_wanted:
                        return
                    continue
                log.warning("a sample was not sent again", extra={"fields": {"error": error.strerror}})
                payload = tuple(error for _ in supply.files_of(sample))
            supply.came(content, payload)
            return

    def send_again(self) -> None:
        """This process continues another, whose messages may not have left it."""
        for node in range(self._node.share.nodes):
            if node != self._node.share.node:
                # A node that is lost will be found to be so again.
                self._take_in(self._policy.found(node))
        self._node.checkpoint()
        self._policy.outbox[:] = self._policy.unanswered()
        self.flush()

    def _changed(self, delivered: Sequence[Delivered]) -> None:
        """What the policy was told has no entry in the journal."""
        self._take_in(delivered)
        self._node.checkpoint()
        self.flush()

    def _take_in(self, delivered: Sequence[Delivered]) -> None:
        """These tickets are answered."""
        self._node.void_dropped()
        self._node.pending.delivered(delivered)

    def flush(self) -> None:
        """Send the messages in the policy's outbox."""
        if self._peers is None or self._node.is_frozen:
            return
        self._node.void_dropped()
        outbox = self._policy.outbox
        if not outbox:
            return
        messages = outbox.copy()
        outbox.clear()
        for message in messages:
            self._node.counters.remote_requests += 1
            attempt = message.attempt if isinstance(message, Take) else 0
            if attempt:
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(attempt, 8))
                self._nursery.start_soon(self._send_late, self._peers, message, pause_s)
            else:
                self._peers.send(message)

    async def _send_late(self, peers: Peers, message: Message, pause_s: float) -> None:
        await trio.sleep(pause_s)
        peers.send(message)

    @property
    def _policy(self) -> SharedServingPolicy:
        return self._node.shared_policy

    def _sent(self, contents: Sequence[Content]) -> None:
        for content in contents:
            self._node.memory.sent(content)
