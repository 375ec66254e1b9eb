"""What real mounts report is what the registry of metrics declares."""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from declared import missing, undeclared
from machine import PATIENCE_S, Machine
from ports import reserve
from scrapes import Series, series_of, text_of, value_of

from redoxfs.telemetry import METRICS, When


def read_all(root: Path) -> int:
    """Read every file below ``root``; returns the bytes."""
    return sum(len(path.read_bytes()) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "present"),
    [
        ((), frozenset({When.PASSES})),
        (("--policy", "slot", "--chunk-size", "4", "--memory", "1MiB"), frozenset({When.SLOT})),
        (("--keeper",), frozenset({When.KEEPER, When.PASSES})),
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


@pytest.mark.parametrize(
    "options", [(), ("--policy", "slot", "--chunk-size", "4", "--memory", "1MiB")], ids=["pool", "slot"]
)
def test_laps_count_what_a_reader_opened(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    shutil.copytree(source / "train", source / "val")
    machine.ok("mount", "--keeper", source, machine.mnt, *options, "--state", machine.folder / "laps")
    train = sorted((machine.mnt / "train").rglob("*.jpg"))
    val = sorted((machine.mnt / "val").rglob("*.jpg"))

    def read(paths: list[Path]) -> dict[str, dict[str, int]]:
        for path in paths:
            path.read_bytes()
        return machine.stats()["laps"]

    assert read([]) == {
        "train": {"number": 1, "turns": 0, "samples": 40},
        "val": {"number": 1, "turns": 0, "samples": 40},
    }
    assert read(train[:7])["train"] == {"number": 1, "turns": 7, "samples": 40}
    laps = read(train[7:])
    assert laps["train"] == {"number": 1, "turns": 40, "samples": 40}, "a lap that is over lasts until the next begins"
    laps = read([*train[30:], *val[::8]])
    assert laps["train"] == {"number": 2, "turns": 10, "samples": 40}
    assert laps["val"] == {"number": 1, "turns": 5, "samples": 40}
    machine.kill(signal.SIGKILL)
    assert read([]) == laps, "another daemon has the same count"
    assert read(train[:5])["train"] == {"number": 2, "turns": 15, "samples": 40}
    shown = machine.ok("status", machine.mnt).stdout
    assert "train is in lap 2, 15 of 40 samples" in shown
    machine.ok("umount", machine.mnt)
    machine.ok("mount", source, machine.mnt, *options, "--state", machine.folder / "laps", "--resume")
    assert read([])["train"] == {"number": 2, "turns": 15, "samples": 40}
    assert read(train[5:6])["train"] == {"number": 2, "turns": 16, "samples": 40}
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
        ended_s = time.time()
        # One more: the snapshot of a line was made before its time.
        while lines[-1]["time"] <= ended_s:
            lines.append(json.loads(first_line(process)))
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
        # As other programs end.
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (141, "")
    machine.ok("umount", machine.mnt)


def scraped(port: int) -> Series:
    return series_of(text_of(port))


def test_metrics_agree_with_what_a_reader_read(machine: Machine, source: Path) -> None:
    (port,) = reserve(1)
    machine.ok("mount", source, machine.mnt, "--metrics", str(port), "--metrics-label", "job=digits")
    size = read_all(machine.mnt)
    found = scraped(port)
    labels = {"mount": str(machine.mnt), "node": "0", "job": "digits"}
    assert value_of(found, "redoxfs_up", mount=str(machine.mnt), job="digits") == 1
    assert value_of(found, "redoxfs_opens_total", **labels) == 41
    assert value_of(found, "redoxfs_served_bytes_total", **labels) == size
    assert value_of(found, "redoxfs_storage_read_bytes_total", **labels) == size
    assert value_of(found, "redoxfs_open_duration_seconds_count", **labels) == 41
    assert all(labels.items() <= dict(of).items() for name, of in found if name != "redoxfs_up")
    assert machine.stats()["metrics"] == f"127.0.0.1:{port}"
    machine.ok("umount", machine.mnt)
    with pytest.raises(OSError, match="refused"):
        text_of(port)


def test_a_port_that_is_taken_is_refused_before_the_mount(machine: Machine, source: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = machine.run("mount", source, machine.mnt, "--metrics", str(port))
    assert refused.returncode == 2
    assert refused.stderr == f"redoxfs: --metrics 127.0.0.1:{port}: cannot listen there: Address already in use\n"
    assert machine.nothing_is_left()


def test_another_daemon_of_a_keeper_listens_at_the_same_port(machine: Machine, source: Path) -> None:
    (port,) = reserve(1)
    address = f"localhost:{port}"
    machine.ok("mount", "--keeper", source, machine.mnt, "--metrics", address, "--metrics-label", "job=digits")
    text_of(port)
    # No other daemon asks a resolver again.
    assert machine.stats()["metrics"] == f"127.0.0.1:{port}"
    machine.kill(signal.SIGKILL)
    # It answers once another daemon serves.
    stats = machine.stats()
    assert (stats["keeper"]["restarts"], stats["metrics"]) == (1, f"127.0.0.1:{port}")
    assert value_of(scraped(port), "redoxfs_restarts_total", job="digits") == 1
    machine.ok("restart", machine.mnt)
    assert value_of(scraped(port), "redoxfs_restarts_total", job="digits") == 2
    machine.ok("umount", machine.mnt)


@contextmanager
def collector(machine: Machine) -> Iterator[int]:
    """`redoxfs metrics`; yields its port. It ends silently on SIGTERM."""
    (port,) = reserve(1)
    process = subprocess.Popen(
        machine.command("metrics", "--listen", str(port), "--metrics-label", "job=digits"),
        env=machine.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().endswith(f"http://127.0.0.1:{port}/metrics\n")
        yield port
        process.terminate()
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_a_collector_has_all_mounts_without_metrics_of_their_own(machine: Machine, source: Path) -> None:
    first, second, third = (machine.folder / name for name in ("one", "two", "three"))
    for mountpoint in (first, second, third):
        mountpoint.mkdir()
    (port,) = reserve(1)
    machine.ok("mount", source, first)
    machine.ok("mount", source, second, "--no-keeper")
    machine.ok("mount", source, third, "--metrics", str(port))
    read_all(first)
    with collector(machine) as at:

        def ups(text: str) -> dict[str, float]:
            """Of the mounts of this test; this machine may have others."""
            return {
                mount: value
                for (name, labels), value in series_of(text).items()
                if name == "redoxfs_up" and (mount := dict(labels)["mount"]).startswith(str(machine.folder))
            }

        text = text_of(at)
        assert ups(text) == {str(first): 1, str(second): 1}
        opens = value_of(series_of(text), "redoxfs_opens_total", mount=str(first), job="digits")
        assert opens == 41
        machine.kill(signal.SIGKILL, second)
        assert ups(text_of(at)) == {str(first): 1, str(second): 0}
    for mountpoint in (first, second, third):
        machine.ok("umount", mountpoint)
