"""A job's position in its epochs, derived from the turns of each sample."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio
from patience import PATIENCE_S, until_in_trio

from redoxfs.node.cluster.epochs import EpochTracker, Orders, orders_of, place_in_epochs, requests_of
from redoxfs.protocol import SlotNode, SlotPolicy, homes_by_vc
from redoxfs.protocol.turns import Turns

SAMPLES = 40
# What is told of orders, and to whom.
NOBODY: tuple[Any, ...] = (lambda _epoch, _order: None, lambda: None, lambda: None)


@dataclass(frozen=True, slots=True)
class Sampler:
    kind: str = "torch-distributed"
    seed: int = 7
    ranks: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    persistent_workers: bool = False
    tree: str | None = None


class Following(SlotNode):
    """Records the orders that it gets."""

    def __init__(self) -> None:
        cells = np.arange(SAMPLES, dtype=np.int32).reshape(-1, 4)
        own = SlotPolicy(cells, np.array([0, 5, 10], np.int32), samples=SAMPLES, seed=0)
        homes = homes_by_vc(own.columns, 4, 2)
        super().__init__(0, own, homes, np.ones(SAMPLES, np.int64), remote_memory_bytes=9, window=5)
        self.followed: list[tuple[int, int]] = []

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.integer]) -> None:
        self.followed.append((requester, epoch))
        super().follow(requester, epoch, order)


@pytest.mark.parametrize(
    ("sampler", "nodes", "requests"),
    [
        (Sampler(), 3, 42),
        (Sampler(drop_last=True), 3, 39),
        (Sampler(ranks=8), 2, 40),
        (Sampler("torch-random"), 3, 120),
    ],
)
def test_the_number_of_requests_in_an_epoch(sampler: Sampler, nodes: int, requests: int) -> None:
    samples = np.arange(SAMPLES, dtype=np.int32)
    assert requests_of(sampler, SAMPLES, nodes) == requests
    assert sum(map(len, orders_of(sampler, samples, nodes)(0))) == requests


@pytest.mark.parametrize(
    ("laps", "had", "requests", "place"),
    [
        (1, 0, 40, (0, 0.0)),
        (1, 10, 40, (0, 0.25)),
        (3, 20, 40, (2, 0.5)),
        (2, 40, 40, (2, 0.0)),
        (2, 2, 42, (1, 0.0)),  # the sampler pads
        (3, 0, 120, (0, 80 / 120)),  # each of three nodes requests every sample
    ],
)
def test_the_epoch_follows_from_the_turns(laps: int, had: int, requests: int, place: tuple[int, float]) -> None:
    samples = np.arange(SAMPLES, dtype=np.int32)
    turns = Turns(np.full(4, laps, np.int32), np.packbits(samples < had), 0)
    assert place_in_epochs(turns, np.full(SAMPLES, laps, np.int32), samples, requests) == place


@pytest.mark.parametrize(("share", "left"), [(0.0, 20), (0.5, 10), (0.96, 1), (0.99, 20)])
async def test_orders_continue_within_and_after_an_epoch(share: float, left: int) -> None:
    samples = np.arange(SAMPLES, dtype=np.int32)

    async def check(nursery: trio.Nursery, traces: EpochTracker, policy: Following, begun: int) -> None:
        await traces.start(nursery, 5, share)
        for epoch in (begun, begun + 1, begun + 2):
            await policy_has(policy, (0, epoch), (1, epoch + 1))
            assert max(e for node, e in policy.followed if node == 0) == epoch
            for sample in range(left if epoch == begun else 20):
                assert max(e for node, e in policy.followed if node == 0) == epoch
                traces.note(sample)

    orders: Orders = orders_of(Sampler(), samples, 2)
    policy = Following()
    traces = EpochTracker(0, policy, samples, SAMPLES, orders, *NOBODY)
    begun = 5 + (share == 0.99)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await check(nursery, traces, policy, begun)


@pytest.mark.parametrize("made", [0, 7, 19])
@pytest.mark.parametrize("later", [0, 1])
async def test_another_process_continues_within_an_epoch(made: int, later: int) -> None:
    """``made`` requests were made when the place was kept, and ``later`` after that."""
    samples = np.arange(SAMPLES, dtype=np.int32)
    orders: Orders = orders_of(Sampler(), samples, 2)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            before = EpochTracker(0, Following(), samples, SAMPLES, orders, *NOBODY)
            await before.start(nursery, 3)
            for sample in range(made):
                before.note(sample)
            place = before.place
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            policy = Following()
            after = EpochTracker(0, policy, samples, SAMPLES, orders, *NOBODY)
            after.go_on(nursery, place, range(later))
            left = 20 - made - later
            if left:
                await policy_has(policy, (1, 4))
                assert not any(node == 0 for node, _ in policy.followed)
                for sample in range(left):
                    assert (0, 4) not in policy.followed
                    after.note(sample)
            await policy_has(policy, (0, 4), (1, 5))
            for sample in range(20):
                assert (0, 5) not in policy.followed
                after.note(sample)
            await policy_has(policy, (0, 5), (1, 6))


async def policy_has(policy: Following, *followed: tuple[int, int]) -> None:
    await until_in_trio(lambda: all(each in policy.followed for each in followed))


async def test_requests_before_an_order_is_known_count_in_its_epoch() -> None:
    samples = np.arange(SAMPLES, dtype=np.int32)
    policy = Following()
    tracker = EpochTracker(0, policy, samples, SAMPLES, orders_of(Sampler(), samples, 2), *NOBODY)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            # Its last request was made, and the next epoch did not begin.
            tracker.go_on(nursery, (3, 1, 20), [0])
            for sample in range(3):
                tracker.note(sample)
            await policy_has(policy, (0, 4))
            assert tracker.place == (4, 17, 20)


def test_sequential_orders_are_drawn_up_to_the_epoch() -> None:
    samples = np.arange(SAMPLES, dtype=np.int32)
    one, other = (orders_of(Sampler("torch-random"), samples, 2) for _ in range(2))
    in_turn = [one(epoch)[0].tolist() for epoch in range(5)]
    assert other(3)[1].tolist() == in_turn[3]
    assert other(4)[0].tolist() == in_turn[4]
