"""Drives the protocol core through epochs, without data, and counts.

Nodes ask in step, one request each in turn, and a message is answered before the next request. The paper's clusters
tend to this, since the ranks of a data-parallel job advance batch by batch. All counts are decisions of the core, so
nothing here depends on how long a load or a message takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from redoxfs.arrays import Int32
from redoxfs.protocol import Load, LocalFirst, Pending, Policy, Served, SlotNode, SlotPolicy, homes_by_vc

N = TypeVar("N", SlotNode, LocalFirst)

GAP_SAMPLES = 3
"""400 kB of ImageNet's 105 kB samples. The packed store reads through such a gap rather than seek, on a middling
network store (chunks.storage_speed.UNKNOWN_SPEED)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a simulated cluster.

    ``window``                  P, in requests at one home
    ``remote_memory_samples``   the limit of a node's remote VCs
    """

    files: int = 1_281_167
    chunk_size: int = 64
    chunks_per_vc: int = 10
    nodes: int = 3
    window: int = 6_000
    remote_memory_samples: int = 14_000

    def shrunk_to(self, files: int) -> "Scale":
        """The same cluster with fewer files: window and remote memory shrink in proportion.

        VCs do not depend on each other, so loads shrink in proportion too, and so do messages without prefetch. With
        prefetch messages shrink less: a home with fewer VCs is asked less often, and finds more to send each time.
        """
        return replace(
            self,
            files=files,
            window=max(1, round(self.window * files / self.files)),
            remote_memory_samples=round(self.remote_memory_samples * files / self.files),
        )


PAPER = Scale()


@dataclass(slots=True)
class Counts:
    """What happened in one epoch or several.

    ``loads``            chunk reads; ``demand_loads``: those that an open waited for
    ``samples_kept``     samples that loads brought into memory: a store that reads single files reads these
    ``samples_swept``    samples that the packed store reads for them, including gaps of up to `GAP_SAMPLES`
    ``sweeps``           reads of the packed store: a longer gap begins another
    ``samples_read``     samples of whole chunks, which the paper reads
    ``remote_requests``  messages to another node; ``remote_samples``: samples that the answers brought
    """

    requests: int = 0
    loads: int = 0
    demand_loads: int = 0
    samples_kept: int = 0
    samples_swept: int = 0
    sweeps: int = 0
    samples_read: int = 0
    remote_requests: int = 0
    remote_samples: int = 0


class Reads:
    """Counts what loads read from storage. Samples lie there in the order of their chunk's slots.

    Args:
        gap_samples: a longer gap begins another read.
    """

    def __init__(self, cells: Int32, gap_samples: int = GAP_SAMPLES) -> None:
        self._gap_samples = gap_samples
        chunks, slots = np.nonzero(cells >= 0)
        self._chunk_sizes: Sequence[int] = np.bincount(chunks, minlength=len(cells)).tolist()
        slot_of = np.empty(len(slots), np.int32)
        slot_of[cells[chunks, slots]] = slots
        self._slot_of: memoryview[int] = slot_of.data

    def count(self, loads: Sequence[Load], counts: Counts) -> None:
        for chunk, samples in loads:
            kept, size = len(samples), self._chunk_sizes[chunk]
            counts.loads += 1
            counts.samples_kept += kept
            counts.samples_read += size
            sweeps, swept = (1, size) if kept == size else self._swept(samples)
            counts.sweeps += sweeps
            counts.samples_swept += swept

    def _swept(self, samples: Sequence[int]) -> tuple[int, int]:
        slots = sorted([self._slot_of[sample] for sample in samples])
        gaps = [after - before - 1 for before, after in pairwise(slots)]
        short = [gap for gap in gaps if gap <= self._gap_samples]
        return 1 + len(gaps) - len(short), len(slots) + sum(short)


class OneNode:
    """A policy by itself, as in one mount."""

    def __init__(self, policy: Policy, cells: Int32) -> None:
        self._policy = policy
        self._reads = Reads(cells)

    def epoch(self, order: Int32) -> tuple[Counts, Int32]:
        """The counts, and int32[n]: the sample that answered each request."""
        counts = Counts(requests=len(order))
        request = self._policy.request
        served = np.empty(len(order), np.int32)
        answers: memoryview[int] = served.data
        for at, sample in enumerate(order.data):
            turn = request(sample)
            assert isinstance(turn, Served)
            answers[at] = turn.sample
            if turn.loads:
                counts.demand_loads += turn.is_demanded
                self._reads.count(turn.loads, counts)
        return counts, served


class Cluster(Generic[N]):
    """Nodes that share a dataset. ``nodes``: the policy of each."""

    def __init__(self, nodes: Sequence[N], cells: Int32) -> None:
        self.nodes: Sequence[N] = nodes
        self._reads = Reads(cells)

    def epoch(self, orders: Sequence[Int32], watch: Callable[[int], None] | None = None) -> tuple[Counts, Int32]:
        """An epoch in which node i asks for ``orders[i]``, all equally long.

        Args:
            watch: called with the number of samples in a node's remote memory after each answer.

        Returns:
            The counts, and int32[n]: the sample that answered each request, in the order of the requests.
        """
        in_step = np.stack(orders, axis=1)
        served = np.empty(in_step.size, np.int32)
        answers: memoryview[int] = served.data
        counts = Counts(requests=in_step.size)
        at = 0
        for row in in_step.tolist():
            for node, sample in zip(self.nodes, row, strict=True):
                turn = node.request(sample)
                delivered = self._exchange(node, counts) if node.outbox else {}
                if delivered and watch is not None:
                    watch(node.used_bytes())
                if isinstance(turn, Pending):
                    turn = delivered[turn.ticket]
                answers[at] = turn.sample
                if turn.loads:
                    counts.demand_loads += turn.is_demanded
                    self._reads.count(turn.loads, counts)
                at += 1
        return counts, served

    def _exchange(self, node: N, counts: Counts) -> dict[int, Served]:
        """Answer the messages of ``node`` until it sends no more; returns the turns by ticket. A message counts even if
        the other node had nothing left."""
        delivered: dict[int, Served] = {}
        while node.outbox:
            message = node.outbox.pop(0)
            handled = self.nodes[message.home].handle(message)
            assert handled.answer is not None
            samples = handled.answer.samples
            counts.remote_requests += 1
            counts.remote_samples += len(samples)
            counts.demand_loads += any(load.samples[0] in samples for load in handled.loads)
            self._reads.count(handled.loads, counts)
            for ticket, turn in node.receive(handled.answer) or ():
                assert turn is not None
                delivered[ticket] = turn
        return delivered


class SlotCluster(Cluster[SlotNode]):
    """Nodes that share a dataset under the slot policy, VCs dealt to them in turn.

    Args:
        cells, vc_start: the layout.
        policies: one for each node.
        remote_memory_samples: the limit of each node's remote VCs, in samples.
        window: P of §3.6; one means no prefetch.
    """

    def __init__(
        self, cells: Int32, policies: Sequence[SlotPolicy], *, remote_memory_samples: int, window: int
    ) -> None:
        columns = policies[0].columns
        homes = homes_by_vc(columns, cells.shape[1], len(policies))
        # Bytes are counted in samples: every sample is one of them.
        sizes = np.ones(len(columns), np.int32)
        super().__init__(
            [
                SlotNode(i, policy, homes, sizes, remote_memory_bytes=remote_memory_samples, window=window)
                for i, policy in enumerate(policies)
            ],
            cells,
        )
        self._epoch = 0

    def epoch(self, orders: Sequence[Int32], watch: Callable[[int], None] | None = None) -> tuple[Counts, Int32]:
        self.follow(orders)
        return super().epoch(orders, watch)

    def follow(self, orders: Sequence[Int32]) -> None:
        """All nodes learn the orders of the next epoch, in which they prefetch."""
        for node in self.nodes:
            for requester, order in enumerate(orders):
                node.follow(requester, self._epoch, order)
        self._epoch += 1
