"""The benchmark of convergence: tiny runs are complete, resume, and leave nothing behind. Never how well they train."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

import convergence
from convergence import claimed, halves, holm, paired, row_of, together
from convergence_page import findings, page
from patience import completed
from recorded_orders import BUFFER, ONE, PLAIN, SORTED, Recorded, Setting, class_mix, draw, faults, shuffles
from small_resnet import Images

SETTINGS = ("slot, K=4, 25%", "pool, K=16, 10%, labels in files", "one shuffle", "by class")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, convergence.__file__, *arguments]
    return completed(command)


def mnist(folder: Path, part: str, count: int) -> None:
    """Images of two classes, dark and bright, in the format of MNIST."""
    labels = bytes(number % 2 for number in range(count))
    pixels = b"".join(bytes([40 + 160 * label]) * 64 for label in labels)
    for kind, lengths, data in (("images-idx3", (count, 8, 8), pixels), ("labels-idx1", (count,), labels)):
        head = bytes([0, 0, 8, len(lengths)]) + b"".join(length.to_bytes(4, "big") for length in lengths)
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb") as file:
            file.write(head + data)


@pytest.mark.long
def test_orders_from_mounts_are_replayed_and_kept(tmp_path: Path) -> None:
    data, runs, work = (tmp_path / name for name in ("data", "runs", "work"))
    data.mkdir()
    work.mkdir()
    mnist(data, "train", 512)
    mnist(data, "t10k", 64)
    path, figure = tmp_path / "result.json", tmp_path / "figure.svg"
    options: list[str | Path] = ["--quick", "--images", "512", "--settings", ";".join(SETTINGS), "--json", path]
    options += ["--data", data, "--resume", runs, "--folder", work]

    done = run(*options)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    rows = {row["setting"]: row for row in found["rows"]}
    assert list(rows) == ["plain", *SETTINGS]
    for row in rows.values():
        assert (row["seeds"], row["wrong_labels"], row["not_once"]) == (2, 0, 0)
        assert len(row["accuracy_by_epoch"]) == 2
        assert (row["redirected"] is None) == (row["chunk_size"] == 0)
    for name in SETTINGS[:2]:
        assert rows[name]["redirected"] > 0
    assert rows["one shuffle"]["rank_correlation"] == 1
    assert rows["by class"]["class_mix"] > 10 * rows["plain"]["class_mix"]
    assert list(work.iterdir()) == []

    # A mount answers with other samples of the class that the loader asked for.
    plain, slot = (Recorded.load(runs / f"{name}-seed-1.npz").orders for name in ("plain", "slot-K-4-25"))
    assert (slot != plain).mean() > 0.5
    assert (slot % 2 == plain % 2).all()

    before = {each: each.stat().st_mtime_ns for each in runs.iterdir()}
    again = run(*options, "--plot", figure)
    assert again.returncode == 0, again.stderr
    assert json.loads(path.read_text()) == found
    assert {each: each.stat().st_mtime_ns for each in runs.iterdir()} == before
    assert "<svg" in figure.read_text()


def test_a_folder_without_images_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"no images in {tmp_path}: .*; try: apt-get install dataset-fashion-mnist$"
    assert_ends_with(line, monkeypatch, "--data", tmp_path, "--quick", "--folder", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_setting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_ends_with("--settings: no 'pool, K=5'; there are: plain; ", monkeypatch, "--settings", "pool, K=5")


def test_the_settings_of_another_run_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made-with").write_text("fashion-mnist, --images 60000, --epochs 6")
    line = (
        "was made with fashion-mnist, --images 60000, --epochs 6, and this is fashion-mnist, --images 60000, --epochs 7"
    )
    assert_ends_with(line, monkeypatch, "--so-far", "--resume", tmp_path, "--epochs", "7")


def assert_ends_with(line: str, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    """The benchmark ends with one line, which matches ``line``."""
    monkeypatch.setattr(sys, "argv", ["convergence.py", *map(str, arguments)])
    with pytest.raises(SystemExit, match=line) as ended:
        convergence.main()
    assert len(str(ended.value).splitlines()) == 1


def runs(last: list[float]) -> list[dict[str, object]]:
    """Results of two epochs, which end with these accuracies."""
    others = dict.fromkeys(("displacement", "redirected", "memory_bytes"), 0.5)
    zero = dict.fromkeys(("wrong_labels", "not_once", "record_s", "train_s"), 0)
    each = {"loss": [2.0, 1.0], "rank_correlation": 0.2, "class_mix": 1.0, **others, **zero}
    return [{"accuracy": [0.1, value], **each} for value in last]


def test_the_paired_test_is_that_of_student() -> None:
    found = paired([3.0, 5.0, 7.0], [2.0, 3.0, 4.0])
    # 2 ± 4.3027 / sqrt(3), by a table of t with two degrees of freedom.
    assert found["mean"] == 2
    assert found["low"] == pytest.approx(2 - 2.4841, abs=1e-3)
    assert found["high"] == pytest.approx(2 + 2.4841, abs=1e-3)
    assert found["t_p"] == pytest.approx(0.0742, abs=1e-3)
    assert found["wilcoxon_p"] == 0.25


def test_a_single_seed_has_no_interval() -> None:
    assert paired([3.0], [2.0]) == {"mean": 1, "low": None, "high": None, "t_p": None, "wilcoxon_p": None}


def test_holm_corrects_for_the_number_of_tests() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]


def test_orders_without_a_mount_are_what_their_names_say() -> None:
    labels = (np.arange(1280) % 10).astype(np.uint8)
    images = Images(np.zeros((1280, 1, 1), np.uint8), labels)
    plain, one, buffered, by_class = (draw(setting, 7, images, 3).orders for setting in (PLAIN, ONE, BUFFER, SORTED))
    for orders in (plain, one, buffered, by_class):
        assert (np.sort(orders, axis=1) == np.arange(1280)).all()
    assert (plain == shuffles(1280, 3, 7)).all()
    assert (plain[0] != plain[1]).any()
    assert (one == plain[0]).all()
    assert (np.diff(labels[by_class[0]].astype(int)) >= 0).all()
    assert 0.6 < class_mix(plain, labels) < 1.4 < class_mix(buffered, labels)
    assert (buffered[0] != buffered[1]).any()
    # One class in each batch: (128 - 12.8)² / 12.8 and nine times 12.8, over nine degrees of freedom.
    assert class_mix(by_class, labels) == pytest.approx(128)


def test_a_sample_that_comes_twice_or_with_another_label_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    labels = np.array([0, 0, 1], np.uint8)
    asked = np.array([[2, 0, 1], [0, 1, 2]])
    assert faults(np.array([[2, 1, 0], [1, 0, 2]]), asked, labels) == (0, 0)
    assert faults(np.array([[2, 1, 0], [1, 0, 1]]), asked, labels) == (1, 1)

    pool = Setting("pool", 16, "10%")
    folder = tmp_path / "runs"
    folder.mkdir()
    for setting, not_once in ((PLAIN, 0), (pool, 3)):
        (told,) = runs([0.9])
        (folder / f"{setting.file_name}-seed-0.json").write_text(json.dumps({**told, "not_once": not_once}))
    mnist(tmp_path, "t10k", 8)
    options = ("--so-far", "--resume", folder, "--data", tmp_path, "--settings", pool.name)
    monkeypatch.setattr(sys, "argv", ["convergence.py", *map(str, options)])
    assert convergence.main() == 1
    assert "pool, K=16, 10%: 0 wrong labels, 3 samples not once." in capfd.readouterr().out


def test_later_seeds_are_told_apart_from_the_first() -> None:
    plain = runs([0.90, 0.91, 0.92, 0.90, 0.91])
    rows = [
        row_of(PLAIN, plain, plain),
        row_of(Setting("pool", 4, "10%"), runs([0.89, 0.91, 0.91, 0.905, 0.917]), plain),
        row_of(Setting("pool", 16, "10%"), runs([0.90, 0.91, 0.925]), plain[:3]),
        row_of(Setting("slot", 16, "10%"), runs([0.90, 0.91, 0.925]), plain[:3]),
    ]
    for row in rows[1:]:
        row["accuracy_less_plain"]["holm_p"] = row["accuracy_less_plain"]["t_p"]
    halves(rows)
    assert [[half["seeds"] for half in row["halves"]] for row in rows[1:]] == [[3, 2], [3], [3]]
    first, others = (half["accuracy_less_plain"]["mean"] for half in rows[1]["halves"])
    assert (first, others) == (pytest.approx(-0.02 / 3), pytest.approx(0.006))
    both = together(rows, "pool")
    assert both is not None
    # The means of the first three seeds of both: 0.895, 0.91, 0.9175.
    assert (both["seeds"], both["accuracy_less_plain"]["mean"]) == (3, pytest.approx(-0.0075 / 3))
    assert together(rows, "slot") is None
    told = findings({"rows": rows, "together": [both], "images": 1000})
    assert "pool, K=4, 10% has more seeds than other settings. The first 3 differ" in told[2]
    assert "the other 2 by +0.60 points (p 0.105)" in told[2]
    assert "in 3 seeds" in told[3]


def test_the_page_says_what_was_found_and_what_is_not_ruled_out() -> None:
    plain = runs([0.90, 0.91, 0.92])
    alike, worse = Setting("pool", 16, "10%"), Setting("slot", 64, "5%")
    rows = [
        row_of(PLAIN, plain, plain),
        row_of(alike, runs([0.905, 0.908, 0.921]), plain),
        row_of(worse, runs([0.800, 0.811, 0.821]), plain),
    ]
    for row in rows[1:]:
        row["accuracy_less_plain"]["holm_p"] = row["accuracy_less_plain"]["t_p"]
    halves(rows)
    machine = {"cores": 2, "cpu": "CPU", "kernel": "6", "python": "3", "torch": "2"}
    numbers = {"images": 1000, "test_images": 100, "epochs": 2, "seeds": 3}
    report = {
        "machine": machine,
        "commits": {"redoxfs": "abc"},
        "data": "images",
        **numbers,
        "rows": rows,
        "together": [],
    }
    told = findings(report)
    assert told[0].startswith("1 setting of a mount differs from plain reading with p < 0.05: slot, K=64, 5% (-9.93)")
    assert "slot, K=64, 5%: -10." in told[1]
    assert "Successive epochs of the slot have a rank correlation of 0.200; two" in " ".join(told)
    text = page(report)
    assert text.startswith("# Convergence")
    for sentence in told:
        assert sentence in text


def test_a_task_is_done_by_one_process_at_a_time(tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    with claimed(claim) as first:
        with claimed(claim) as second:
            assert (first, second) == (True, False)
        # As by one that was done while this one opened it.
        claim.unlink()
    with claimed(claim) as again:
        assert again
    assert not claim.exists()
