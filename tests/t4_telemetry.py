"""What real mounts report is what the registry of metrics declares."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import PATIENCE_S, Machine

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


@contextmanager
def stats_command(machine: Machine, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`redoxfs stats` of the machine's mount, with a short interval."""
    command = machine.command("stats", machine.mnt, "--interval", "0.05", *options)
    process = subprocess.Popen(
        command, env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_stats_lines_add_up_to_what_a_reader_read(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    with stats_command(machine, "--json") as process:
        lines = [json.loads(first_line(process))]
        size = read_all(machine.mnt)
        while not any(line["opens_per_s"] for line in lines) or lines[-1]["opens_per_s"]:
            lines.append(json.loads(first_line(process)))
    assert round(sum(line["opens_per_s"] * line["seconds"] for line in lines)) == 41
    assert round(sum(line["served_bytes_per_s"] * line["seconds"] for line in lines)) == size
    assert lines[-1]["laps"] == 1
    machine.ok("umount", machine.mnt)


def test_stats_prints_a_header_and_as_many_lines_as_asked(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    lines = machine.ok("stats", machine.mnt, "--interval", "0.05", "--count", "3").stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:2] == ["time", "opens/s"]
    assert {len(line) for line in lines} == {len(lines[0])}
    machine.ok("umount", machine.mnt)


def test_stats_ends_with_one_line_when_the_mount_ends(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    with stats_command(machine) as process:
        first_line(process)
        machine.ok("umount", "--lazy", machine.mnt)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4
    assert len(error.splitlines()) == 1
    assert "the mount has ended" in error


def test_stats_ends_silently_on_an_interrupt_and_a_closed_pipe(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    with stats_command(machine) as process:
        first_line(process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, error) == (0, "")
    with stats_command(machine) as process:
        first_line(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, "")
    machine.ok("umount", machine.mnt)
