"""What several nodes report is what the registry of metrics declares, and what their readers did."""

import json
import random
from pathlib import Path

import pytest
from declared import missing, undeclared
from images import make_images
from machine import Machine
from ports import reserve_addresses, reserve_two
from scrapes import series_of, text_of, value_of

from redoxfs.telemetry import METRICS, When
from redoxfs.telemetry.history_form import read

# No node is lost in these tests, and a slow one must not be taken for lost.
PATIENT = ("--peer-timeout", "3600")


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_stats_of_three_nodes_has_every_declared_field_and_no_other(
    machine: Machine, source: Path, policy: str
) -> None:
    machine.mount_nodes(source, reserve_addresses(3), *PATIENT, "--policy", policy, "--chunk-size", "2")
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
    machine.ok("cluster", "up", "--nodes", "2", source, machine.mnt, *PATIENT, "--metrics", str(port))
    for node in range(2):
        found = series_of(text_of(port + node))
        labels = {"mount": str(machine.mnt / str(node)), "node": str(node)}
        assert value_of(found, "redoxfs_nodes", **labels) == 2
        (peer,) = machine.stats(machine.mnt / str(node))["peers"]
        assert value_of(found, "redoxfs_peer_retries_total", peer=peer["address"], **labels) == peer["retries"]
    machine.ok("cluster", "down", machine.mnt)


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_laps_of_a_node_are_its_share_of_the_epochs(machine: Machine, tmp_path: Path, policy: str) -> None:
    source = tmp_path / "data"
    make_images(source, {"n00000001": 100, "n00000002": 100})
    machine.mount_nodes(source, reserve_addresses(2), *PATIENT, "--classes", "dir", "--policy", policy)
    names = sorted(path.relative_to(source) for path in source.rglob("*.png"))
    for epoch in range(3):
        random.Random(epoch).shuffle(names)
        for number, name in enumerate(names):
            (machine.mnt / str(number % 2) / name).read_bytes()
    for node in range(2):
        found = read(json.loads((machine.mnt / str(node) / ".redoxfs/history.json").read_text()))
        assert found.points[-1].stats["opens"] == 300
        assert (found.laps[0].first, found.laps[-1].last) == (1, 3)
        assert sum(lap.grown["opens"] for lap in found.laps) == pytest.approx(300, abs=16)
        assert all(lap.whole for lap in found.laps)
    machine.ok("cluster", "down", machine.mnt)
