"""The history of real mounts: laps have what a reader counted, and it survives the daemon."""

import json
import random
import signal
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from images import make_images
from machine import Machine

from redoxfs.telemetry import METRICS, Kind
from redoxfs.telemetry.history_form import Read, has_history, read

TRAIN, VALIDATION = 600, 300


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    make_images(root, {"n00000001": TRAIN // 2, "n00000002": TRAIN // 2})
    for label in ("n00000001", "n00000002"):
        folder = root / "val" / label
        folder.mkdir(parents=True)
        for number in range(VALIDATION // 2):
            (folder / f"{number}.png").write_bytes(f"{label} {number}".encode() * 50)
    return root


def value_of(mountpoint: Path) -> dict[str, Any]:
    return json.loads((mountpoint / ".redoxfs/history.json").read_text())


def history(machine: Machine) -> Read:
    return read(value_of(machine.mnt))


def epoch(root: Path) -> tuple[int, int]:
    """Read each file below ``root`` once, in random order; returns how many there are, and their bytes."""
    paths = list(root.rglob("*.png"))
    random.shuffle(paths)

    def read_all() -> int:
        return sum(len(path.read_bytes()) for path in paths)

    # A thread that opened a file last in one epoch and first in the next takes no turn for it.
    with ThreadPoolExecutor(1) as thread:
        return len(paths), thread.submit(read_all).result()


def test_laps_have_what_a_reader_counted(machine: Machine, splits: Path) -> None:
    machine.ok("mount", splits, machine.mnt, "--classes", "dir", "--memory", "4MiB", "-o", "direct_io")
    train, val = (machine.mnt / name for name in ("train", "val"))
    counted = [(name, *epoch(root)) for _ in range(3) for name, root in (("train", train), ("val", val))]
    found = history(machine)
    opens = found.points[-1].stats["opens"]
    assert opens == sum(files for _, files, _ in counted) == found.stats["opens"]
    assert found.points[-1].stats["bytes_served"] == sum(size for _, _, size in counted)
    for name, samples in (("train", TRAIN), ("val", VALIDATION)):
        laps = [lap for lap in found.laps if lap.tree == name]
        assert (laps[0].first, laps[-1].last) == (1, 3)
        assert all(lap.whole for lap in laps)
        # The loop takes some requests at a time, so a lap may have a few opens of the next, or lack some of its first.
        expected = [samples * (lap.last - lap.first + 1) for lap in laps]
        assert [lap.grown["opens"] for lap in laps] == pytest.approx(expected, abs=16)
    laps = [lap for lap in found.laps if lap.tree == "train"]
    assert laps[-1].quality.followed == TRAIN
    assert laps[-1].quality.displacement is not None
    assert 0.2 < laps[-1].quality.displacement < 0.45
    quality = laps[-1].quality
    assert quality.batches > 0
    assert quality.class_entropy == pytest.approx(quality.class_entropy_if_random, abs=0.1), "as it asked for them"
    assert quality.chunk_entropy is not None
    assert quality.chunk_entropy_if_random is not None
    assert 0 < quality.chunk_entropy < quality.chunk_entropy_if_random + 0.1
    machine.ok("umount", machine.mnt)


def test_the_history_has_each_metric_that_it_should(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    (machine.mnt / "README").read_bytes()
    value = value_of(machine.mnt)
    places = {name.partition(":")[0] for name in value["points"]["values"]}
    for metric in METRICS:
        if has_history(metric) and metric.kind is not Kind.HISTOGRAM:
            assert metric.place in places
    assert {"open_seconds.resident", "open_seconds.direct", "load_seconds"} <= places
    assert "open_seconds.direct:count" in value["points"]["values"]
    machine.ok("umount", machine.mnt)


def test_it_is_not_listed_and_cannot_be_written(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    path = machine.mnt / ".redoxfs/history.json"
    assert path.name in [each.name for each in path.parent.iterdir()]
    assert ".redoxfs" not in [each.name for each in machine.mnt.iterdir()]
    assert path.stat().st_size == 0
    with pytest.raises(OSError, match="Read-only"):
        path.write_text("x")
    machine.ok("umount", machine.mnt)


def test_it_goes_on_over_a_restart_and_a_death(machine: Machine, splits: Path) -> None:
    machine.ok("mount", splits, machine.mnt, "--classes", "dir", "--keeper")
    first, _ = epoch(machine.mnt / "train")
    began_s = history(machine).points[0].time_s
    machine.ok("restart", machine.mnt)
    second, _ = epoch(machine.mnt / "train")
    after_restart = history(machine)
    assert after_restart.points[0].time_s == began_s
    assert after_restart.points[-1].stats["opens"] == first + second
    assert after_restart.points[-1].stats["keeper"]["restarts"] == 1
    machine.kill(signal.SIGKILL)
    third, _ = epoch(machine.mnt / "train")
    found = history(machine)
    assert found.points[0].time_s == began_s
    assert found.points[-1].stats["keeper"]["restarts"] == 2
    # What came between the last point and the death is lost, and nothing is counted twice.
    assert first + third <= found.points[-1].stats["opens"] <= first + second + third
    opens = [point.stats["opens"] for point in found.points]
    assert opens == sorted(opens)
    assert [(lap.first, lap.last) for lap in found.laps if lap.tree == "train"][-1][1] == 3
    machine.ok("umount", machine.mnt)


def test_a_bundle_has_it_and_a_report_shows_it(machine: Machine, splits: Path) -> None:
    machine.ok("mount", splits, machine.mnt)
    files, _ = epoch(machine.mnt)
    machine.ok("debug", machine.mnt, "-o", machine.folder / "bundle.tar.gz", "--interval", "0.1")
    with tarfile.open(machine.folder / "bundle.tar.gz") as archive:
        file = archive.extractfile("redoxfs-debug/history.json")
        assert file is not None
        saved = machine.folder / "history.json"
        saved.write_bytes(file.read())
    assert read(json.loads(saved.read_text())).points[-1].stats["opens"] == files
    page = machine.folder / "report.html"
    *verdicts, said = machine.ok("report", machine.mnt, saved, "-o", page).stdout.splitlines()
    # The copy has what the mount had.
    assert [line.partition(": ")[0] for line in verdicts] == [str(machine.mnt), str(saved)]
    assert len({line.partition(": ")[2] for line in verdicts}) == 1
    assert said.startswith(f"{page}: 2 mounts; ")
    assert page.read_text().count(f"Programs opened {files} files") == 2
    machine.ok("umount", machine.mnt)


def test_a_report_of_no_mount_is_one_line(machine: Machine, source: Path) -> None:
    page = machine.folder / "report.html"
    machine.refused(4, "report", machine.folder, "-o", page)
    machine.ok("mount", source, machine.mnt, "--no-keeper")
    machine.refused(2, "report", machine.mnt, "-o", machine.mnt / "report.html")
    machine.kill(signal.SIGKILL)
    machine.refused(4, "report", machine.mnt, "-o", page)
    assert not page.exists()
    machine.ok("umount", machine.mnt)
