"""What scripts/bench/retinanet.py reads, checks and shows. Running DLIO itself needs a venv of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

import dlio
import retinanet
import retinanet_page
from patience import completed

STATS = {
    "opens": 96,
    "errors": 0,
    "passes_given_twice": 0,
    "passes": {"train": {"opens": 0, "complete": 2, "early": 0}},
}


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, retinanet.__file__, *words]
    inherited = {name: value for name, value in os.environ.items() if name != "REDOXFS_DLIO"}
    return completed(command, env=inherited | environment)


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"cores": 2, "cpu": "a processor", "kernel": "6.1"},
        "dlio": dlio.VERSION,
        "files": 48,
        "bytes": 48 * 326_000,
        "epochs": 2,
        "batch": 24,
        "step_s": 0.04755,
        "threads": 4,
        "fed": 0.85,
        "cap_mb": 48,
        "memory_mb": 32,
        "dlio_mb": 900,
        "leeway_mb": 64,
        "rows": [row("none", "plain", 1, 0.7, 300.0), *rows],
    }


def row(profile: str, way: str, times: int, utilisation: float, files_per_s: float, **counted: int) -> dict[str, Any]:
    figures = {"utilisation": utilisation, "files_per_s": files_per_s, "mean_files_per_s": files_per_s, "load": 5.0}
    read = {"storage_requests": 192, "storage_bytes": 96 * 326_000}
    counters = {} if way == "plain" else {**retinanet.counters(STATS), **counted}
    return {"profile": profile, "way": way, "times": times, **figures, **read, **counters}


def test_the_figures_of_a_run_are_those_of_dlios_summary(tmp_path: Path) -> None:
    metric = {"train_au_percentage": [50.0, 87.5], "train_throughput_samples_per_second": [200.0, 350.0]}
    (tmp_path / "summary.json").write_text(json.dumps({"metric": metric}))
    assert dlio.reported(tmp_path) == dlio.Report([0.5, 0.875], [200.0, 350.0])


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"metric": {}}', '{"metric": {"train_au_percentage": 3}}'])
def test_a_summary_without_figures_is_a_failure_of_dlio(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(dlio.DlioError, match=r"summary\.json has no metric"):
        dlio.reported(tmp_path)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("echo 1.0.0", r"has DLIO 1\.0\.0: install 2\.0\.0"),
        ("echo 'SomeError: it is not there' >&2; echo advice >&2; exit 1", "SomeError: it is not there"),
    ],
)
def test_another_dlio_or_none_is_refused(tmp_path: Path, script: str, line: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(dlio.DlioError, match=line):
        dlio.Dlio(str(python)).__enter__()


def test_quick_without_dlio_says_so_and_runs_nothing(tmp_path: Path) -> None:
    done = run("--quick", "--json", tmp_path / "found.json", "--dir", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing is run without DLIO" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "--dlio PYTHON is missing"),
        (("--dlio", "python", "--files", "100"), "--files 100 is not two or more batches of 24"),
        (("--dlio", "python", "--profiles", "filer,nas"), "'nas' is none of latency, filer, "),
        (("--dlio", "python", "--ways", "plain,sweep"), "'sweep' is none of plain, directory, "),
        (("--dlio", "python", "--ways", "packed"), "--ways needs plain"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(words: tuple[str, ...], line: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert line in done.stderr


def test_a_python_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("--quick", "--dir", tmp_path, REDOXFS_DLIO=str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("DLIO: [Errno 2]")


@pytest.mark.parametrize(
    "wrong", [{"opens": 95}, {"epochs_complete": 1}, {"epochs_early": 1}, {"given_twice": 1}, {"errors": 1}]
)
def test_a_sample_that_did_not_come_once_in_an_epoch_is_found(wrong: dict[str, int]) -> None:
    good = [row("disk", way, 1, 0.1, 60.0) for way in retinanet_page.WAYS]
    assert not retinanet.is_wrong(result(*good))
    assert retinanet.is_wrong(result(*good, row("filer", "packed", 1, 0.1, 60.0, **wrong)))


@pytest.fixture
def page() -> Callable[[str], str]:
    """The line of the page of a result that begins with a text."""
    found = result(
        row("disk", "plain", 1, 0.08, 50.0),
        row("disk", "directory", 1, 0.07, 40.0),
        row("disk", "packed", 1, 0.6, 250.0),
        row("disk", "plain", 4, 0.3, 52.0),
        row("disk", "directory", 4, 0.28, 41.0),
        row("disk", "packed", 4, 0.99, 124.0),
        row("disk", "plain", 16, 0.99, 31.0),
    )
    lines = [*retinanet_page.page(found).splitlines(), retinanet_page.when_not(found)]
    lines.append(retinanet_page.page_short(found))
    return lambda start: next(line for line in lines if line.startswith(start))


def test_the_page_shows_utilisation_and_rate_for_each_time_of_a_step(page: Callable[[str], str]) -> None:
    assert page("| storage | 0").endswith("| 0.04755 s | 0.1902 s | 0.7608 s |")
    assert page("| disk: plain directory").endswith("| 8 % (50) | 30 % (52) | 99 % (31) |")
    # It was fed with steps of four times the time.
    assert page("| disk: redoxfs, packed").endswith("| 60 % (250) | 99 % (124) | - |")


def test_the_page_says_what_is_scaled_down_and_where_redoxfs_is_slower(page: Callable[[str], str]) -> None:
    assert "48 files instead of 1,170,301, 2 of 8 epochs" in page("It is scaled down")
    assert page("DLIO was slower").endswith("at once, 150 MB/s): 0.80 times.")
    assert "0.80 (redoxfs, directory), 5.00 (redoxfs, packed)" in page("Samples a second that DLIO reports")


def test_the_page_has_files_a_second_and_core_beside_published_ones(page: Callable[[str], str]) -> None:
    assert page("| redoxfs, packed, best").endswith("| 250 | 2 | 125 |")
    assert page("| Alluxio over FUSE").endswith("| 14,558 | 192 | 76 |")
    assert page("| XFS").endswith("| 31,447 | 144 | 218 |")


def test_the_page_counts_what_the_mounts_counted(page: Callable[[str], str]) -> None:
    line = page("The counters of the 4 mounts")
    assert "384 opens for 384 samples; 8 of 8 epochs complete; 0 samples given twice" in line
