"""What scripts/bench/loaders.py draws, counts and shows. t4_benchmarks runs it."""

import io
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

import jpegs
import loader_mounts
import loader_scripts
import loaders
import loaders_page

JOBS = Path(loaders_page.__file__).with_name("loader_jobs")


def test_an_image_tells_its_number_by_its_bytes_and_by_its_pixels() -> None:
    textures = jpegs.textures(0)[:2]
    numbers = [0, 1, 2, 1023, 20_000, 65_535]
    files = [jpegs.draw(number, 0, textures) for number in numbers]
    assert [jpegs.number_in(file) for file in files] == numbers
    size = (jpegs.SCALED_PIXELS, jpegs.SCALED_PIXELS)
    scaled = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize(size)) for file in files]
    assert jpegs.numbers_in(np.stack(scaled)).tolist() == numbers
    assert len({file[100:] for file in files}) == len(files)
    assert all(30_000 < len(file) < 150_000 for file in files)


def test_a_data_set_has_each_number_once_below_its_class(tmp_path: Path) -> None:
    total = jpegs.make_images(tmp_path / "images", 24, 3)
    samples = jpegs.in_order(tmp_path / "images")
    assert sorted(jpegs.number_of(path) for path, _ in samples) == list(range(24))
    for path, label in samples:
        number = jpegs.number_in(path.read_bytes())
        assert (jpegs.number_of(path), number % 3) == (number, label)
    assert total == sum(path.stat().st_size for path, _ in samples)
    mixed = jpegs.in_random_order(tmp_path / "images")
    assert mixed != samples
    assert sorted(mixed) == samples
    with pytest.raises(ValueError, match="16 bits"):
        jpegs.make_images(tmp_path / "more", 1 << 17, 3)


BEFORE = '''"""Plain."""
import a

PACKAGES = ("a",)


def loader(job):
    x = a.b(job)
    return x
'''

AFTER = '''"""Other."""
import c
from job import Job

PACKAGES = ("c",)


def loader(job):
    """Doc."""
    # why
    x = c.d(job)
    x = x.shuffle()
    return x


def prepare(job):
    """Doc."""
    c.write(job)
'''


def test_changed_lines_are_those_of_code(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(BEFORE)
    after.write_text(AFTER)
    assert loader_scripts.changed_lines(before, before) == 0
    # The import, the call, and one more line.
    assert loader_scripts.changed_lines(before, after) == 3
    assert loader_scripts.preparation_lines(before) == 0
    assert loader_scripts.preparation_lines(after) == 2


def test_each_script_of_a_loader_differs_from_the_plain_one_and_cites_a_page() -> None:
    scripts = [path for path in JOBS.glob("*.py") if path.name not in ("job.py", "plain.py")]
    assert len(scripts) >= 8
    for path in scripts:
        assert loader_scripts.changed_lines(JOBS / "plain.py", path) > 0, path
        assert "https://" in path.read_text().partition("import")[0], path


def row(loader: str, title: str, **more: Any) -> dict[str, Any]:
    cell = {"cold_per_s": 100.0, "warm_per_s": 5000.0, "first_batch_s": 1.25, "mount_s": 0.0}
    return {
        "loader": loader,
        "title": title,
        "left_out": None,
        "run": 0,
        "cap_mb": 768,
        "bytes_4": cell,
        "bytes_2": None,
        "decoded_4": {"cold_per_s": 50.0, "first_batch_s": 2.0, "mount_s": 0.0},
        "decoded_2": None,
        "prepare_s": 0.0,
        "prepared_bytes": 0,
        "lines_changed": 0,
        "prepare_lines": 0,
        "exactly_once": True,
        "missing": 0,
        "repeated": 0,
        "wrong_labels": 0,
        "displacement": 0.3331,
        "rank_correlation": -0.004,
        "mate_pairs": 1.0,
        **more,
    }


def report(*rows: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "some", "cores": 2, "kernel": "6.1", "python": "3.11"}
    settings = {"files": 2000, "classes": 10, "bytes": 150_000_000, "cap_mb": 768, "memory": 0.2, "batch": 64}
    return {"machine": machine, **settings, "seconds": 15, "storage": "a disk with 500 reads", "rows": list(rows)}


FAST = {"cold_per_s": 400.0, "warm_per_s": 800.0, "first_batch_s": 1.0, "mount_s": 12.0}


def test_the_page_has_all_rows_and_what_is_faster() -> None:
    text = loaders_page.page(
        report(
            row("plain", "plain files"),
            row("packed", "redoxfs, packed", bytes_4=FAST, prepare_s=3.5, prepared_bytes=150_000_000),
            row("webdataset", "WebDataset", bytes_4=FAST | {"cold_per_s": 600.0}, repeated=2, missing=1, cap_mb=2048),
            row("ffcv", "FFCV") | {"left_out": "No module named 'ffcv'", "bytes_4": None, "decoded_4": None},
        )
    )
    assert "| plain files | 21 s | nothing | 100 | 50 | 5,000 | 1.2 s |" in text
    assert "| redoxfs, packed | 18 s | 3.5 s | 400 | 50 | 800 | 12 s + 1.0 s |" in text
    assert "| redoxfs, packed | 3.5 s | 0.15 GB | 0 | - | yes | 0.333 | -0.004 | 1.00 |" in text
    assert "1 missing, 2 twice" in text
    assert [line for line in text.splitlines() if "of memory: " in line] == [
        "WebDataset has 2,048 MiB of memory: its recipe keeps 1,000 decoded images of 600,000 bytes in a buffer, "
        "beside those of its workers. With so much memory, it can read ahead before its first batch, when the rate"
        " does not count, and find files in the page cache in the second epoch. From its start to its end, the "
        "first epoch takes 4.2 s; that of redoxfs, packed takes 5.8 s after the mount."
    ]
    assert "redoxfs, packed reads 4.0 times the samples of plain files; faster are WebDataset (1.50 x)." in text
    assert "- FFCV is left out: No module named 'ffcv'" in text


def test_rows_of_an_earlier_run_are_kept_beside_new_ones() -> None:
    earlier = report(row("plain", "plain files"), row("litdata", "LitData"), row("ffcv", "FFCV", left_out="gone"))
    now = report(row("ffcv", "FFCV"), row("plain", "plain files"))
    found = loaders.beside(now, earlier)
    assert [(row["loader"], row["run"], row["left_out"]) for row in found["rows"]] == [
        ("plain", 1, None),
        ("litdata", 0, None),
        ("ffcv", 1, None),
    ]
    assert "These rows are of the last run: plain files; FFCV. The others are of an earlier run." in loaders_page.page(
        found
    )
    assert "an earlier run" not in loaders_page.page(now)
    again = loaders.beside(report(row("litdata", "LitData")), found)
    assert [row["run"] for row in again["rows"]] == [1, 2, 1]
    with pytest.raises(SystemExit, match="--beside: seconds was 15, and is 6 here"):
        loaders.check_same({"batch": 64, "seconds": 6}, earlier)


def test_a_page_without_any_loader_says_why() -> None:
    text = loaders_page.page(report(row("plain", "plain files") | {"left_out": "not ready after 120 s"}))
    assert "plain files is left out: not ready after 120 s" in text
    assert "samples/s" not in text


def test_a_page_of_cut_epochs_alone_has_no_warm_rates() -> None:
    text = loaders_page.page(report(row("plain", "plain files", bytes_4=None)))
    assert "| plain files | - | nothing | 50 | - | 2.0 s |" in text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("s3fs", "s3fs is not installed: Debian's s3fs"),
        ("squashfuse", "squashfuse_ll is not installed: Debian's squashfuse"),
    ],
)
def test_a_mount_without_its_program_is_left_out_before_its_preparation(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    convert = loader_mounts.SERVERS[name].convert
    assert convert is not None
    with pytest.raises(loader_mounts.LeftOutError, match=line):
        convert(loader_mounts.Place(tmp_path, Namespace(), 0))


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loaders_page.plot(report(row("plain", "plain files"), row("packed", "redoxfs, packed")), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
