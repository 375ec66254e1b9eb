"""`redoxfs simulate` and scripts/research/simulate.py: shapes of what they print, and what they refuse."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import simulate

from redoxfs import cli

pytestmark = pytest.mark.slow


def run(line: str, *more: str) -> int:
    """The exit code of a table: `policies` is a command of redoxfs, the others are the script's."""
    words = [*line.split(), *more]
    return cli.main(["simulate", *words]) if line.startswith("policies") else simulate.main(words)


def told(line: str, capfd: pytest.CaptureFixture[str]) -> Any:
    assert run(line, "--json") == 0
    out, err = capfd.readouterr()
    assert err == ""
    return json.loads(out)


def test_breakdown_has_a_row_for_each_variant(capfd: pytest.CaptureFixture[str]) -> None:
    rows = told("breakdown --files 3000", capfd)
    assert [row["variant"] for row in rows] == ["Redox", "random selection", "no prefetching", "no optimization"]
    for row in rows:
        assert {"loads", "remote_requests", "paper_loads", "paper_remote_requests"} <= row.keys()
    assert (rows[0]["paper_loads"], rows[0]["paper_remote_requests"]) == (126_000, 41_000)


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_the_largest_chunks_that_the_grammar_takes_are_simulated(
    policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    row = told(f"policies --files 100 --classes 2 --chunk-size 65535 --policy {policy}", capfd)
    assert row["chunk_size"] == 65_535
    assert run(f"policies --files 100 --classes 2 --chunk-size 65536 --policy {policy}") == 2
    assert "from 1 to 65535" in capfd.readouterr().err


@pytest.mark.parametrize("more", ["", "--nodes 3", "--skew 1", "--policy slot --chunk-size 16"])
def test_policies_has_the_cost_of_a_policy(more: str, capfd: pytest.CaptureFixture[str]) -> None:
    policy = "" if "--policy" in more else "--policy slot"
    row = told(f"policies --files 4000 --classes 20 --resident 25% {policy} {more}", capfd)
    assert row["policy"] == "slot"
    assert row["nodes"] == (3 if "nodes" in more else 1)
    assert row["loads_per_chunk"] >= 1
    assert row["read_amplification"] >= 1
    assert 0 < row["demand_load_share"] < 1
    assert (row["remote_share"] > 0) == (row["nodes"] > 1)


def test_one_of_a_kind_is_singular(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("policies --files 1 --classes 1") == 0
    assert capfd.readouterr().out.startswith("1 file of 1 class, 1 chunk of 64, 1 node\n")


def test_chunk_size_has_loads_bytes_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    rows = told("chunk-size --files 2000 --seek-time 0.01 --bandwidth 100MB", capfd)
    assert [row["chunk_size"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for row in rows:
        assert {"loads_per_chunk", "bytes_read", "epoch_seconds"} <= row.keys()


def test_remote_memory_has_use_and_savings(capfd: pytest.CaptureFixture[str]) -> None:
    rows = told("remote-memory --files 3000", capfd)
    assert len(rows) == 6
    for row in rows:
        assert row["mean_used_bytes"] <= row["peak_used_bytes"] <= row["limit_bytes"]
        assert {"remote_requests", "loads"} <= row.keys()


def test_randomness_has_the_bound_and_measurements(capfd: pytest.CaptureFixture[str]) -> None:
    found = told("randomness --files 3000 --classes 10 --policy slot --chunk-size 8 --resident 20%", capfd)
    assert (found["bound"]["most_mapped_to_one"], found["bound"]["randomness_at_least"]) == ("2.16e88", "3.98e418")
    assert [row["policy"] for row in found["quality"]] == ["permutation", "shuffle buffer", "slot"]


def test_related_has_the_setting_and_a_row_for_each_system(capfd: pytest.CaptureFixture[str]) -> None:
    found = told("related --files 3001 --classes 10 --system coordl --system shade --system pool --nodes 2", capfd)
    assert (found["files"], found["nodes"], found["resident"]) == (3000, 2, 0.25)
    assert [row["system"] for row in found["rows"]] == ["coordl", "shade", "pool"]
    assert [row["exactly_once"] for row in found["rows"]] == [True, False, True]
    assert found["rows"][0]["file_reads"] == 2250
    assert found["rows"][1]["displacement"] is None


def test_passes_read_each_chunk_about_once_whatever_jobs_leave_out(capfd: pytest.CaptureFixture[str]) -> None:
    jobs = ["whole", "drop_last", "10 % left out", "the same order", "broken off"]
    words = [word for job in jobs for word in ("--job", job)]
    assert run("passes --files 8000 --classes 10 --chunk-size 16 --json", *words) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["job"] for row in rows] == jobs
    assert all(row["twice"] == 0 and 9 < row["bytes_a_sample"] < 10 for row in rows)
    assert all(row["single_reads"] < 0.005 for row in rows)
    assert [row["opens_share"] for row in rows] == [1, 0.99225, 0.9, 1, 1.5]
    *read, broken_off = (row["loads_per_chunk"] for row in rows)
    assert read == pytest.approx([1] * 4, abs=0.05)
    assert 1.5 < broken_off < 1.65


def test_epoch_times_has_each_way_and_what_limits_it(capfd: pytest.CaptureFixture[str]) -> None:
    rows = told("epoch-times --files 3000 --setting 1k-3xp100", capfd)
    of = {(row["model"], row["way"]): row for row in rows}
    ways = ["No-I/O", "PyTorch", "CoorDL", "slot", "slot, no prefetch", "pool"]
    assert list(of) == [(model, way) for way in ways for model in ("SqueezeNet", "MobileNetV3", "ResNet50")]
    for model in ("SqueezeNet", "MobileNetV3", "ResNet50"):
        fastest = min(of[model, way]["seconds"] for way in ways)
        assert fastest == of[model, "No-I/O"]["seconds"]
    # Three nodes hold everything, so that CoorDL reads nothing. Page caches of a third of the samples miss 78 %.
    assert of["ResNet50", "CoorDL"]["read"] == 0
    assert 0.7 < of["ResNet50", "PyTorch"]["read"] < 0.85
    assert of["ResNet50", "PyTorch"]["limit"] == "storage"
    assert of["ResNet50", "No-I/O"]["limit"] == "compute"
    slower = told("epoch-times --files 3000 --setting 1k-3xp100 --way PyTorch --vary latency_s=1.25", capfd)
    assert all(row["seconds"] > 1.1 * of[row["model"], "PyTorch"]["seconds"] for row in slower)


def test_each_figure_is_varied_one_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    rows = told("epoch-times --files 3000 --setting 1k-3xp100 --way PyTorch --way pool --vary each", capfd)
    assert [(row["model"], row["way"]) for row in rows] == [("SqueezeNet", "PyTorch"), ("SqueezeNet", "pool")]
    pytorch, pool = (row["seconds"] for row in rows)
    figures = ("latency_s", "bytes_per_s", "link_bytes_per_s", "file_s", "memory_bytes", "sample_s")
    labels = ["as it is", *(f"{figure} x {factor}" for figure in figures for factor in (0.75, 1.25))]
    assert sorted(pytorch) == sorted(pool) == sorted(labels)
    assert pytorch["latency_s x 0.75"] < pytorch["as it is"] < pytorch["latency_s x 1.25"]
    assert pytorch["memory_bytes x 1.25"] < pytorch["as it is"] < pytorch["memory_bytes x 0.75"]
    assert pool["sample_s x 0.75"] < pool["as it is"] < pool["sample_s x 1.25"]


def test_a_figure_that_is_none_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("epoch-times --files 3000 --setting 1k-p100 --vary latency=2") == 2
    assert "latency_s" in capfd.readouterr().err


def test_quick_simulates_fewer_files(capfd: pytest.CaptureFixture[str]) -> None:
    assert told("related --quick --system coordl --nodes 1", capfd)["files"] == 32_000


@pytest.mark.parametrize(
    "line",
    [
        "related --files 3000 --classes 10 --system coordl --system shade --system slot",
        "passes --files 2000 --classes 10 --job drop_last",
        "breakdown --files 3000",
        "policies --files 2000 --classes 10 --policy slot",
        "chunk-size --files 300 --classes 2",
        "remote-memory --files 3000",
        "randomness --files 3000 --classes 10 --policy slot --chunk-size 8 --resident 20%",
    ],
)
def test_without_json_there_is_a_table(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "─" in out
    assert all(shown == shown.rstrip() for shown in out.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "breakdown --files 0",
        "breakdown --files x",
        "breakdown --seed -1",
        "policies --resident 10",
        "policies --resident 0%",
        "policies --resident 101%",
        "policies --resident nan%",
        "policies --skew -1",
        "policies --skew nan",
        "policies --policy best",
        "policies --nodes 0",
        "policies --files 10 --classes 11",
        "chunk-size --seek-time 0",
        "chunk-size --bandwidth fast",
        "chunk-size --bandwidth 0",
        "randomness --files 200 --classes 10",
        "related --files 200 --classes 10",
        "related --files 300 --classes 10 --nodes 5",
        "related --system best",
        "related --quick --system coordl --plot /nonexistent/x.svg",
        "remote-memory --files 2000 --plot /nonexistent/x.png",
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(("redoxfs: ", "simulate.py: "))
    assert err.count("\n") == 1


def test_more_files_than_memory_has_room_for_are_refused_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Were they not, the kernel would end the program, or another one."""
    assert run("policies --files 2147483647 --nodes 127") == 2
    assert "--files 2147483647: their simulation takes about 5.7 TiB, more than is free" in capfd.readouterr().err


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # None stands for a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("chunk-size --plot x.png") == 2
    assert "pip install 'redoxfs[plot]'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "remote-memory --files 2000",
        "chunk-size --files 300 --classes 2",
        "related --quick --system coordl --system shade --system diesel",
    ],
)
def test_a_plot_is_a_picture(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert run(line, "--plot", str(tmp_path / "x.png")) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert run(line, "--plot", str(tmp_path / "x.nonsense")) == 2
    assert capfd.readouterr().err.count("\n") == 1
