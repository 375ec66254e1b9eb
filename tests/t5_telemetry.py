"""What several nodes report is what the registry of metrics declares."""

from pathlib import Path

import pytest
from machine import Machine
from ports import reserve_two
from scrapes import series_of, text_of, value_of

from redoxfs.telemetry import METRICS, When, missing, undeclared


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_stats_of_three_nodes_has_every_declared_field_and_no_other(
    machine: Machine, source: Path, policy: str
) -> None:
    machine.ok("cluster", "up", "--nodes", "3", source, machine.mnt, "--policy", policy, "--chunk-size", "2")
    present = {When.ALWAYS, When.NODES} | ({When.SLOT, When.SLOT_NODES} if policy == "slot" else set())
    for node in range(3):
        for path in (machine.mnt / str(node)).rglob("*.jpg"):
            path.read_bytes()
        stats = machine.stats(machine.mnt / str(node))
        assert undeclared(stats, METRICS) == []
        assert missing(stats, METRICS, frozenset(present)) == []
    machine.ok("cluster", "down", machine.mnt)


def test_each_node_serves_its_metrics_at_a_port_of_its_own(machine: Machine, source: Path) -> None:
    port = reserve_two()
    machine.ok("cluster", "up", "--nodes", "2", source, machine.mnt, "--metrics", str(port))
    for node in range(2):
        found = series_of(text_of(port + node))
        labels = {"mount": str(machine.mnt / str(node)), "node": str(node)}
        assert value_of(found, "redoxfs_nodes", **labels) == 2
        (peer,) = machine.stats(machine.mnt / str(node))["peers"]
        assert value_of(found, "redoxfs_peer_retries_total", peer=peer["address"], **labels) == peer["retries"]
    machine.ok("cluster", "down", machine.mnt)
