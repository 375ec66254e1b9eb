"""The cache of scripts/bench/coordl.py, which redoxfs is compared with, does what its paper says."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import reserve

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

from coordl import MinIO, Node, fork

SAMPLES = 10


def sample(number: int) -> bytes:
    return bytes([number]) * (100 + number)


def read(node: Node, numbers: range) -> list[int]:
    """Read samples, and check them. The numbers of those that came from storage."""
    from_storage = []

    def storage(number: int) -> Callable[[], bytes]:
        def read() -> bytes:
            from_storage.append(number)
            return sample(number)

        return read

    for number in numbers:
        assert node.read(number, storage(number)) == sample(number)
    return from_storage


def test_nothing_that_is_cached_is_ever_replaced() -> None:
    node = Node(SAMPLES, sum(len(sample(number)) for number in range(4)))
    assert read(node, range(SAMPLES)) == list(range(SAMPLES))
    for _ in range(3):
        assert read(node, range(SAMPLES)) == list(range(4, SAMPLES))
    assert node.counts() == {"cache": 3 * 4, "peer": 0, "storage": SAMPLES + 3 * 6}


def test_a_sample_that_does_not_fit_leaves_room_for_a_smaller_one() -> None:
    cache = MinIO(2, 150)
    cache.offer(0, bytes(151))
    cache.offer(1, bytes(150))
    assert cache.held().tolist() == [False, True]
    assert cache.used_bytes == 150


def test_forked_workers_share_one_cache() -> None:
    node = Node(SAMPLES, 1 << 20)
    workers = [fork.Process(target=read, args=(node, range(first, SAMPLES, 2))) for first in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert read(node, range(SAMPLES)) == []
    assert node.counts() == {"cache": SAMPLES, "peer": 0, "storage": SAMPLES}


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    """Two nodes, each with room for four samples or so."""
    addresses = [f"127.0.0.1:{port}" for port in reserve(2)]
    made = [Node(SAMPLES, 430, addresses, rank) for rank in range(2)]
    for node in made:
        node.serve()
    yield made
    for node in made:
        node.close()


def test_a_node_gets_what_another_has_cached(nodes: list[Node]) -> None:
    one, other = nodes
    assert read(one, range(5)) == list(range(5))
    assert read(other, range(5, SAMPLES)) == list(range(5, SAMPLES))
    for node in nodes:
        node.refresh()
    in_one, in_other = (set(node.cache.held().nonzero()[0].tolist()) for node in nodes)
    assert len(in_one) == len(in_other) == 4
    nowhere = sorted(set(range(SAMPLES)) - in_one - in_other)
    for node in nodes:
        assert read(node, range(SAMPLES)) == nowhere
        assert node.counts() == {"cache": 4, "peer": len(in_one | in_other) - 4, "storage": 5 + len(nowhere)}
