"""The benchmarks that check what they read: tiny runs are complete, and their results have all rows. Never how fast."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from machine import PATIENCE_S, Machine

BENCH = Path(__file__).parents[1] / "scripts/bench"


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH / name, *arguments], capture_output=True, text=True, check=False)


def result(name: str, *arguments: str | Path) -> dict[str, Any]:
    done = run(name, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_full_path_reads_complete_epochs_in_all_ways(tmp_path: Path) -> None:
    found = result(
        "full_path.py", "--files", "1024", "--sizes", "2000", "--readers", "1,3", "--rounds", "2", "--folder", tmp_path
    )
    assert found["wrong"] == []
    assert set(found["machine"]) >= {"cores", "kernel", "python"}
    assert [(row["way"], row["readers"]) for row in found["rows"]] == [
        (way, readers) for way in ("plain", "stock", "directory", "packed") for readers in (1, 3)
    ]
    for row in found["rows"]:
        assert len(row["all_files_per_s"]) == 2
        assert row["files_per_s"] > 0
        assert (row["server_us_per_file"] > 0) == (row["way"] != "plain")
    assert list(tmp_path.iterdir()) == []


def test_full_path_names_a_checkout_that_it_cannot_run(tmp_path: Path) -> None:
    done = run("full_path.py", "--files", "256", "--against", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} has no redoxfs that runs" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_epoch_reads_complete_epochs_from_storage_with_latency(tmp_path: Path) -> None:
    found = result(
        "epoch.py",
        "--profiles",
        "latency",
        "--files",
        "256",
        "--readers",
        "4",
        "--memory-mb",
        "16",
        "--folder",
        tmp_path,
    )
    assert [row["way"] for row in found["rows"]] == ["plain", "directory", "packed"]
    for row in found["rows"]:
        assert (row["readers"], row["wrong_labels"], row["not_once"]) == (4, 0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_restarts_counts_what_readers_notice_without_a_keeper(tmp_path: Path) -> None:
    """With a keeper they notice nothing: t4_restarts."""
    path = tmp_path / "result.json"
    done = run("restarts.py", "--no-keeper", "--kills", "2", "--files", "320", "--classes", "2", "--json", path)
    assert done.returncode == 1, done.stderr
    found = json.loads(path.read_text())
    assert [(row["setting"], row["deaths"]) for row in found["rows"]] == [
        ("pool, directory, default", 1),
        ("slot, directory, default", 1),
    ]
    for row in found["rows"]:
        assert row["opens"] > 0
        assert row["errors"] > 0
        assert row["samples_not_once"] > 0
        assert row["wrong_bytes"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_estimates_are_compared_with_complete_epochs(tmp_path: Path) -> None:
    found = result(
        "estimates.py",
        "--profiles",
        "latency",
        "--files",
        "256",
        "--memory-mb",
        "16",
        "--probe-seconds",
        "2",
        "--folder",
        tmp_path,
    )
    (profile,) = found["profiles"]
    assert profile["profile"] == "latency"
    rows = {row["way"]: row for row in profile["rows"]}
    assert list(rows) == ["plain_1_s", "plain_8_s", "directory_s", "packed_s"]
    for row in rows.values():
        assert row["complete"]
        assert row["estimated_s"] > 0
        assert row["measured_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_telemetry_compares_every_way_to_look_with_nothing(tmp_path: Path) -> None:
    found = result("telemetry.py", "--files", "200", "--rounds", "1", "--seconds", "1.5", "--folder", tmp_path)
    rows = {row["setting"]: row for row in found["rows"]}
    assert set(rows) | set(found["left_out"]) >= {"nothing", "scrapes", "access log", "top", "nothing again"}
    assert found["errors"] == 0
    for row in rows.values():
        assert row["opens"] > 0
        assert row["us_per_open"] > 0
        assert row["cpu_ratio"]["low"] <= row["cpu_ratio"]["median"] <= row["cpu_ratio"]["high"]
    assert rows["nothing"]["cpu_ratio"]["median"] == 1
    for name, row in rows.items():
        assert (row["scrapes"] > 0) == (name in ("scrapes", "everything"))
        assert (row["log_lines"] > 0) == (name in ("access log", "everything") and "access log" in rows)
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_that_is_terminated_leaves_nothing_behind(machine: Machine) -> None:
    folder = machine.folder / "bench"
    folder.mkdir()
    command = [sys.executable, str(BENCH / "telemetry.py"), "--files", "200", "--folder", str(folder)]
    bench = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not machine.mounts():
            assert bench.poll() is None, bench.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        bench.terminate()
        bench.communicate(timeout=PATIENCE_S)
        assert bench.returncode == 128 + signal.SIGTERM
        assert machine.nothing_is_left()
        assert list(folder.iterdir()) == []
        # Its session has no process left.
        with pytest.raises(ProcessLookupError):
            os.killpg(bench.pid, 0)
    finally:
        bench.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_scan_lists_again_only_what_changed(tmp_path: Path) -> None:
    found = result("scan.py", "--files", "3000", "--delayed-files", "1000", "--delay-ms", "0.1", "--folder", tmp_path)
    for part, names, entries in (("local", (", cold", ", warm"), 3004), ("delayed", ("",), 1002)):
        rows = found[part]
        for name in names:
            assert rows[f"first{name}"]["listed"] == entries - (3000 if part == "local" else 1000)
            assert rows[f"unchanged{name}"]["listed"] == 0
            assert rows[f"one directory changed{name}"]["listed"] == 1
            assert rows[f"first{name}"]["entries"] == entries
        assert rows["imported"]["entries"] == entries + len(names)
        assert rows["export"]["bytes"] > 0
    assert list(tmp_path.iterdir()) == []
