"""Sidecars of several pods that share one dataset, found by the name of a Service as in an Indexed Job."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kube
import netspaces
import pytest
from kube import Node, Pod, running_node
from netspaces import Network

NODES = 3

WHY_NOT = kube.why_not() or netspaces.why_not()

pytestmark = [pytest.mark.mount, pytest.mark.nodes, pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT))]


@pytest.fixture
def network() -> Iterator[Network]:
    """An address for each pod."""
    with Network(NODES).up() as network:
        yield network


@pytest.fixture
def node(network: Network) -> Iterator[Node]:
    """One node with all pods: what differs between pods is their network."""
    del network  # made before, so that the node sees its namespaces
    with running_node() as node:
        yield node


def test_sidecars_that_meet_by_dns_serve_every_sample_once(node: Node, network: Network) -> None:
    # In place of the Service's records.
    hosts = node.outer / "hosts"
    hosts.write_text("".join(f"{address.partition(':')[0]} train-nodes\n" for address in network.addresses))
    assert node.run("mount", "--bind", hosts, "/etc/hosts").returncode == 0
    pods = [Pod(node) for _ in range(NODES)]
    for pod in pods:
        # No node is lost, and a slow one must not be taken for lost.
        pod.publish(nodes="dns:train-nodes", node_count=str(NODES), insecure="true", peer_timeout="3600")
    with ThreadPoolExecutor(NODES) as pool:
        # Each waits for all others.
        list(pool.map(lambda rank: pods[rank].serving(within=network.inside(rank)), range(NODES)))
        for _ in range(2):
            read = list(pool.map(lambda rank: pods[rank].samples(rank, NODES), range(NODES)))
            assert sorted(sample for samples in read for sample in samples) == list(range(40))
    for pod in pods:
        pod.unpublish()
    assert not node.leftovers()
