"""What scripts/bench/mlperf.py computes from times, and how it searches. t4_benchmarks runs all of it."""

import importlib
import os
import random
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "scripts/bench"


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("accelerators")


def test_utilisation_does_not_count_the_first_batch(accelerators: ModuleType) -> None:
    # 5 s until the first batch, then three batches of 1 s each, the second of which was late by 1 s.
    assert accelerators.utilisation([5.0, 1.0, 0.0], [1.0, 1.0, 1.0], 9.0) == pytest.approx(2 / 3)
    # A second of waiting for the other accelerators is time, too.
    assert accelerators.utilisation([5.0, 1.0, 0.0], [1.0, 1.0, 1.0], 10.0) == pytest.approx(2 / 4)


@pytest.mark.parametrize("fed", range(7))
@pytest.mark.parametrize("guess", [0, 1, 3, 6, 50])
def test_the_search_ends_between_what_passes_and_what_fails(accelerators: ModuleType, fed: int, guess: int) -> None:
    tried = []

    def passes(number: int) -> bool:
        tried.append(number)
        return number <= fed

    assert accelerators.highest(passes, guess, 6) == fed
    # Both sides of the answer were tried, and nothing twice.
    assert {number for number in (fed, fed + 1) if 1 <= number <= 6} <= set(tried)
    assert len(tried) == len(set(tried))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """96 small files of 64 classes that hold their names."""
    monkeypatch.syspath_prepend(str(BENCH))
    random.seed(0)
    importlib.import_module("labelled").make_files(tmp_path / "data", 96, 100, 200)
    return tmp_path / "data"


def load(accelerators: ModuleType, number: int, **more: float) -> Any:
    settings = {"batch": 16, "compute_s": 0.001, "limit_s": 60.0, "seed": 0, **more}
    return accelerators.Load(accelerators=number, **settings)


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 3])
def test_accelerators_share_an_epoch(accelerators: ModuleType, folder: Path, number: int) -> None:
    found = accelerators.feed(folder, load(accelerators, number))
    assert (found.steps, found.wrong_labels, found.not_once) == (6 // number, 0, 0)
    assert 0 < found.utilisation < 1
    assert found.samples_per_s == pytest.approx(96 / found.seconds)


@pytest.mark.long
def test_samples_left_over_are_not_read(accelerators: ModuleType, folder: Path) -> None:
    found = accelerators.feed(folder, load(accelerators, 1, batch=40))
    assert (found.steps, found.wrong_labels, found.not_once) == (2, 0, None)
    with pytest.raises(SystemExit, match="96 files are too few for 3 accelerators"):
        accelerators.feed(folder, load(accelerators, 3, batch=40))


@pytest.mark.long
def test_a_try_ends_at_its_limit(accelerators: ModuleType, folder: Path) -> None:
    # Two batches, as the first is not counted.
    found = accelerators.feed(folder, load(accelerators, 2, limit_s=0.0))
    assert (found.steps, found.not_once) == (2, None)


@pytest.mark.long
def test_a_wrong_sample_is_counted(accelerators: ModuleType, folder: Path) -> None:
    first, second, *_ = sorted(folder.glob("class*/*"))
    second.write_bytes(first.read_bytes())
    found = accelerators.feed(folder, load(accelerators, 1))
    # One came twice, and another never; they were of one class, or of neighbours.
    assert (found.wrong_labels, found.not_once) == (int(first.parent != second.parent), 2)
    other = folder / "class63" / first.name
    other.write_bytes(first.read_bytes())
    assert accelerators.feed(folder, load(accelerators, 1, batch=48)).wrong_labels >= 1


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 3])
def test_a_read_that_fails_ends_all(accelerators: ModuleType, folder: Path, number: int) -> None:
    broken = sorted(folder.glob("class*/*"))[50]
    broken.unlink()
    broken.symlink_to("nothing")
    with pytest.raises(SystemExit, match="No such file or directory"):
        accelerators.feed(folder, load(accelerators, number))


def kill_reader_of(fifo: Path) -> None:
    """Kill the process that opens ``fifo`` to read it."""
    # This waits until it does, and the other one waits in its read until this is closed.
    with fifo.open("wb"):
        while not (found := [pid for pid in others() if has_open(pid, fifo)]):
            pass
        os.kill(found[0], signal.SIGKILL)


def others() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if path.name != str(os.getpid())]


def has_open(pid: int, wanted: Path) -> bool:
    with suppress(OSError):
        return any(os.readlink(fd) == str(wanted) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.long
@pytest.mark.parametrize("by_accelerators", [False, True])
def test_a_reader_that_is_killed_ends_all(accelerators: ModuleType, folder: Path, *, by_accelerators: bool) -> None:
    """As the kernel does where a cap on memory is too low."""
    stuck = sorted(folder.glob("class*/*"))[50]
    stuck.unlink()
    os.mkfifo(stuck)
    killer = threading.Thread(target=kill_reader_of, args=(stuck,))
    killer.start()
    paths = {str(path.relative_to(folder)): str(path) for path in folder.glob("class*/*")}
    labelled = importlib.import_module("labelled")
    feed = partial(accelerators.feed, folder, load(accelerators, 2))
    read = feed if by_accelerators else partial(labelled.read_epoch, paths, 3)
    with pytest.raises(SystemExit, match="a child process ended with -9"):
        read()
    killer.join()
