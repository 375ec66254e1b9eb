"""What real mounts report is what the registry of metrics declares."""

from pathlib import Path

import pytest
from machine import Machine

from redoxfs.telemetry import METRICS, When, missing, undeclared


def read_all(root: Path) -> int:
    """Read every file below ``root``; returns the bytes."""
    return sum(len(path.read_bytes()) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "present"),
    [
        ((), frozenset()),
        (("--policy", "slot", "--chunk-size", "4", "--memory", "1MiB"), frozenset({When.SLOT})),
        (("--keeper",), frozenset({When.KEEPER})),
    ],
    ids=["pool", "slot", "keeper"],
)
def test_stats_has_every_declared_field_and_no_other(
    machine: Machine, source: Path, options: tuple[str, ...], present: frozenset[When]
) -> None:
    machine.ok("mount", source, machine.mnt, *options)
    read_all(machine.mnt)
    stats = machine.stats()
    assert undeclared(stats, METRICS) == []
    assert missing(stats, METRICS, present | {When.ALWAYS}) == []
    machine.ok("umount", machine.mnt)


def test_each_open_is_in_one_histogram(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    read_all(machine.mnt)
    read_all(machine.mnt / ".redoxfs/exact")
    with pytest.raises(FileNotFoundError):
        (machine.mnt / "missing").read_bytes()
    (source / "README").unlink()
    with pytest.raises(FileNotFoundError):
        (machine.mnt / "README").read_bytes()
    stats = machine.stats()
    counts = {outcome: times["count"] for outcome, times in stats["open_seconds"].items()}
    assert sum(counts.values()) == stats["opens"]
    assert counts["direct"] == 1 + 41
    assert counts["failed"] == stats["errors"] == 1
    assert counts["demand"] == stats["demand_loads"] + stats["samples_reread"]
    assert stats["load_seconds"]["count"] == stats["chunk_loads"]
    assert stats["loads_in_flight"] == 0
    machine.ok("umount", machine.mnt)
