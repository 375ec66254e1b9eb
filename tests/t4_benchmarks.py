"""The benchmarks that check what they read: tiny runs are complete, and their results have all rows. Never how fast."""

import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import seaweed
from machine import PATIENCE_S, Machine
from patience import completed

from redoxfs.report import Figures, recognized

BENCH = Path(__file__).parents[1] / "scripts/bench"


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, BENCH / name, *arguments])


def result(name: str, *arguments: str | Path) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as file:
        done = run(name, *arguments, "--json", file.name)
        assert done.returncode == 0, done.stderr
        return json.load(file)


@pytest.mark.long
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
def test_a_cache_survives_deaths_of_the_daemon(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    options = ("--kills", "2", "--files", "300", "--memory-mb", "8", "--seed", "1", "--folder", work)
    done = run("cache_kills.py", *options, "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["kill"] for row in found["rows"]] == [1, 2]
    assert list(work.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_epoch_reads_complete_epochs_from_storage_with_latency(tmp_path: Path) -> None:
    ways = ["plain", "directory", "packed", "cache"]
    small = ("--files", "256", "--readers", "4", "--memory-mb", "16", "--epochs", "2", "--cold", "--folder", tmp_path)
    found = result("epoch.py", "--profiles", "latency", "--ways", ",".join(ways), *small)
    assert [(row["way"], row["epoch"]) for row in found["rows"]] == [(way, epoch) for way in ways for epoch in (1, 2)]
    for row in found["rows"]:
        assert (row["readers"], row["wrong_labels"], row["not_once"]) == (4, 0, 0)
    kept = [row["kept"] for row in found["rows"] if row["way"] == "cache"]
    assert 0 < kept[0] <= kept[1] <= 1
    figures = recognized("found.json", found)
    assert isinstance(figures, Figures)
    assert len(figures.table.rows) == len(found["rows"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("shape", "storage"),
    [
        ("imagenet", "filer"),
        pytest.param(
            "shards", "s3", marks=pytest.mark.skipif(seaweed.program() is None, reason="SeaweedFS is not installed")
        ),
    ],
)
def test_archives_and_a_packed_copy_of_them_give_complete_epochs(tmp_path: Path, shape: str, storage: str) -> None:
    small = ("--archives", "8", "--members", "16", "--bytes", "2000", "--memory", "1", "--folder", tmp_path)
    found = result("archive_epochs.py", "--shape", shape, "--storages", storage, "--rounds", "2", *small)
    assert [(row["way"], row["round"]) for row in found["rows"]] == [
        ("archive", 1),
        ("packed", 1),
        ("packed", 2),
        ("archive", 2),
    ]
    for row in found["rows"]:
        assert (row["wrong_labels"], row["not_once"]) == (0, 0)
        assert row["amplification"] > 0.9
    (share,) = found["shares"]
    assert len(share["all"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices")
def test_overall_trains_complete_epochs_on_three_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, path = tmp_path / "files", tmp_path / "result.json"
    folder.mkdir()
    small = ("--quick", "--only", "1k-3xp100", "--files", "480", "--reads", "1000", "--ways", "coordl,packed")
    done = run("overall.py", *small, "--dir", folder, "--json", path)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    (setting,) = found["settings"]
    assert (setting["nodes"], setting["files"]) == (3, 480)
    cached, packed = found["rows"]
    assert (cached["way"], packed["way"]) == ("coordl", "packed")
    for row in found["rows"]:
        assert (row["wrong_labels"], row["not_once"]) == (0, 0)
        assert row["seconds"] > row["compute_s"] > 0
    # The three caches together hold everything, and two thirds of it lie on other nodes.
    assert cached["cache"]["storage"] == 0
    assert cached["cache"]["peer"] > cached["cache"]["cache"] > 0
    assert packed["errors"] == 0
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_restarts_counts_what_readers_notice_without_a_keeper(tmp_path: Path) -> None:
    """With a keeper they notice nothing: t4_restarts."""
    path = tmp_path / "result.json"
    # One that dies at the first open may answer none.
    few = ("--kills", "2", "--before", "20", "--files", "320", "--classes", "2")
    done = run("restarts.py", "--no-keeper", *few, "--json", path)
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


@pytest.mark.long
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
    assert {row["profile"] for row in found["rows"]} == {"latency"}
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == ["plain_1_s", "plain_8_s", "directory_s", "packed_s"]
    for row in rows.values():
        assert row["complete"]
        assert row["estimated_s"] > 0
        assert row["measured_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_telemetry_compares_every_way_to_look_with_nothing(tmp_path: Path) -> None:
    found = result("telemetry.py", "--files", "200", "--rounds", "1", "--seconds", "1.5", "--folder", tmp_path)
    rows = {row["setting"]: row for row in found["rows"]}
    assert set(rows) == {"nothing", "scrapes", "access log", "top", "everything", "nothing again"}
    assert found["errors"] == 0
    for row in rows.values():
        assert row["opens"] > 0
        assert row["us_per_open"] > 0
        assert row["cpu_ratio"]["low"] <= row["cpu_ratio"]["median"] <= row["cpu_ratio"]["high"]
    assert rows["nothing"]["cpu_ratio"]["median"] == 1
    for name, row in rows.items():
        assert (row["scrapes"] > 0) == (name in ("scrapes", "everything"))
        assert (row["log_lines"] > 0) == (name in ("access log", "everything"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_latency_times_opens_while_other_samples_are_loaded() -> None:
    found = result("latency.py", "--files", "1000", "--rounds", "2")
    assert [row["load"] for row in found["rows"]] == ["idle", "find", "loads", "both"]
    for row in found["rows"]:
        assert row["opens"] == 200
        assert 0 <= row["waited"] < 200
        assert row["median_us"] > 0
        both = [each for each in found["all"] if each["load"] == row["load"]]
        assert row["longest_us"] == max(each["longest_us"] for each in both)
    assert all(row["loads"] > 0 for row in found["rows"][2:])


@pytest.fixture
def control_groups() -> None:
    """Skips a test that throttles storage where it may not."""
    groups = Path("/sys/fs/cgroup")
    folder = groups if (groups / "cgroup.controllers").exists() else groups / "blkio"
    if os.geteuid() != 0 or not os.access(folder, os.W_OK):
        pytest.skip("throttling storage needs root and control groups")


@pytest.mark.long
@pytest.mark.usefixtures("control_groups")
def test_loaders_reads_complete_epochs_and_says_what_is_left_out(tmp_path: Path) -> None:
    for name in ("torch", "torchvision", "webdataset"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed; scripts/setup installs it")
    squashed = ["squashfuse"] if shutil.which("squashfuse_ll") and shutil.which("mksquashfs") else []
    path, work = tmp_path / "result.json", tmp_path / "work"
    work.mkdir()
    settings = ["--quick", "--profile", "none", "--files", "512", "--classes", "8", "--seconds", "0.5"]
    only = [
        "--cells",
        "bytes_2",
        "--only",
        ",".join(["packed", "webdataset", "mosaicml", *squashed]),
        "--peers",
        str(broken_peers(tmp_path, "mosaicml")),
    ]
    done = run("loaders.py", *settings, *only, "--json", path, "--folder", work)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    rows = {row["loader"]: row for row in found["rows"]}
    for name in ("packed", "webdataset", *squashed):
        row = rows[name]
        assert (row["left_out"], row["missing"], row["repeated"], row["wrong_labels"]) == (None, 0, 0, 0)
        assert row["exactly_once"]
        assert row["bytes_2"]["cold_per_s"] > 0
        assert row["bytes_2"]["warm_per_s"] > 0
        assert row["decoded_2"] is None
        assert row["prepared_bytes"] > 0.9 * found["bytes"]
    # Its buffer has room for all images. The pool has room for few chunks of so few, so its order varies more.
    assert 0.25 < rows["webdataset"]["displacement"] < 0.41
    assert 0 < rows["packed"]["displacement"] < 0.67
    assert rows["webdataset"]["mate_pairs"] < 1.2 < rows["packed"]["mate_pairs"]
    assert rows["packed"]["lines_changed"] == 0
    assert rows["packed"]["bytes_2"]["mount_s"] > 0
    assert rows["webdataset"]["lines_changed"] > 0
    assert rows["mosaicml"]["left_out"] == "ImportError: not for this Python"
    assert "MosaicML Streaming is left out: ImportError: not for this Python" in " ".join(done.stdout.split())
    assert list(work.iterdir()) == []


def broken_peers(folder: Path, name: str) -> Path:
    """A folder of packages for one loader, whose package cannot be imported."""
    package = folder / "peers" / name / "streaming.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ImportError('not for this Python')")
    return folder / "peers"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("retinanet.py", "--files 0 is not two or more batches of 24"),
        ("overall.py", "--files must be at least 30, --rounds 1, --reads 10"),
        ("loaders.py", "--files: at least 512, to measure how they are shuffled"),
    ],
)
def test_what_is_given_beside_quick_counts(name: str, line: str) -> None:
    done = run(name, "--quick", "--files", "0")
    assert done.returncode == 2
    assert line in done.stderr


def test_loaders_names_a_loader_that_it_does_not_know() -> None:
    done = run("loaders.py", "--only", "plain,dalli")
    assert done.returncode == 2
    assert "no loader is called dalli" in done.stderr


SERVE = """
import sys
from pathlib import Path
import mounts
root, words = Path(sys.argv[1]), sys.argv[2]
with mounts.served_by(["sh", "-c", words, "sh", *mounts.redoxfs(root / "data", root / "mnt")], root / "mnt"):
    print((root / "mnt/file").read_text())
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param('head -c 1000000 /dev/zero >&2; exec "$@"', 0, "it serves", id="says much"),
        pytest.param("echo why not >&2", 1, "sh did not mount: why not", id="ends"),
    ],
)
def test_a_server_may_say_as_much_as_it_likes(tmp_path: Path, words: str, code: int, told: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("it serves")
    own = {name: str(tmp_path) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
    done = completed(
        [sys.executable, "-c", SERVE, tmp_path, words], env={**os.environ, **own, "PYTHONPATH": str(BENCH)}
    )
    assert (done.returncode, (done.stdout + done.stderr).strip()) == (code, told)


def has_process(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("telemetry.py", ["--files", "200"]),
        pytest.param(
            "objects.py",
            ["--files", "200", "--bytes", "1000", "--nodes", "1"],
            marks=pytest.mark.skipif(seaweed.program() is None, reason="SeaweedFS is not installed"),
        ),
    ],
)
def test_a_benchmark_that_is_terminated_leaves_nothing_behind(machine: Machine, name: str, options: list[str]) -> None:
    folder = machine.folder / "bench"
    folder.mkdir()
    command = [sys.executable, str(BENCH / name), *options, "--folder", str(folder)]
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
        # Its session has no process left, once init has reaped the dead children of commands that have ended.
        deadline = time.monotonic() + PATIENCE_S
        while has_process(bench.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        bench.kill()


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_scan_lists_again_only_what_changed(tmp_path: Path) -> None:
    found = result("scan.py", "--files", "3000", "--delayed-files", "1000", "--delay-ms", "0.1", "--folder", tmp_path)
    for part, names, entries in (("local", (", cold", ", warm"), 3004), ("delayed", ("",), 1002)):
        rows = {row["what"]: row for row in found["rows"] if row["part"] == part}
        for name in names:
            assert rows[f"first{name}"]["listed"] == entries - (3000 if part == "local" else 1000)
            assert rows[f"unchanged{name}"]["listed"] == 0
            assert rows[f"one directory changed{name}"]["listed"] == 1
            assert rows[f"first{name}"]["entries"] == entries
        assert rows["imported"]["entries"] == entries + len(names)
        assert rows["export"]["bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_reader_that_is_killed_ends_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does where a cap on memory is too low."""
    monkeypatch.syspath_prepend(str(BENCH))
    os.mkfifo(tmp_path / "stuck")

    def kill_the_reader() -> None:
        # Opening it waits for the reader, which waits in its read until this is closed.
        with (tmp_path / "stuck").open("wb"):
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_reader)
    killer.start()
    with pytest.raises(SystemExit, match="a child process ended with -9"):
        importlib.import_module("labelled").read_epoch({"stuck": str(tmp_path / "stuck")}, 1)
    killer.join()
