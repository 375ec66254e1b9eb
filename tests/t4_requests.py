"""The number of requests for each file, by opcode, in both open modes: the minimum that the contract allows."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from images import make_images
from machine import Machine
from patience import completed, until
from PIL import Image

from redoxfs.fs.page_cache import BETWEEN_PROBES, WINDOW

CLASSES = {"cat": 12, "dog": 12}
HERE = Path(__file__).parent


@contextmanager
def counted(machine: Machine, source: Path, what: str, *options: str) -> Iterator[Path]:
    """A mount that writes its requests, or its collections, to a file, and that file."""
    log = machine.folder / "counts"
    log.touch()
    done = completed(
        [sys.executable, HERE / "counted.py", what, log, "mount", source, machine.mnt, "--classes", "dir", *options],
        env=machine.environment,
    )
    assert done.returncode == 0, done.stderr
    yield log
    machine.ok("umount", machine.mnt)


def settled(log: Path, start: int) -> Counter[str]:
    """The requests since ``start``, once each OPEN has its RELEASE, which is sent in the background."""

    def counted() -> Counter[str]:
        return Counter(log.read_bytes()[start:].decode().split())

    def are_released() -> bool:
        counts = counted()
        return counts["open"] == counts["release"]

    until(are_released, lambda: f"opens without a release: {counted()}")
    return counted()


def requests(log: Path, action: Callable[[], object]) -> Counter[str]:
    """The requests of ``action``."""
    settled(log, 0)
    before = log.stat().st_size
    action()
    return settled(log, before)


def read_whole(path: Path) -> None:
    path.read_bytes()


def decode(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def read_by_numpy(path: Path) -> None:
    np.fromfile(path, np.uint8)


# The files have 1 to 4 kB. With direct_io the last READ finds the end of the file.
EXPECTED: dict[tuple[str, Callable[[Path], None]], dict[str, int]] = {
    ("page_cache", read_whole): {"open": 1, "getattr": 1, "read": 1, "release": 1},
    ("direct_io", read_whole): {"open": 1, "getattr": 1, "read": 2, "release": 1},
    ("page_cache", decode): {"open": 1, "getattr": 1, "read": 1, "release": 1},
    ("direct_io", decode): {"open": 1, "getattr": 1, "read": 1, "release": 1},
    ("page_cache", read_by_numpy): {"open": 1, "getattr": 1, "read": 1, "release": 1},
    ("direct_io", read_by_numpy): {"open": 1, "getattr": 1, "read": 1, "release": 1},
}


@pytest.mark.parametrize(("mode", "reader"), EXPECTED, ids=lambda value: getattr(value, "__name__", value))
def test_requests_for_each_file_read(
    machine: Machine, tmp_path: Path, mode: str, reader: Callable[[Path], None]
) -> None:
    source = tmp_path / "data"
    make_images(source, CLASSES)
    for empty in source.glob("train/*/*-0.png"):
        empty.unlink()
    with counted(machine, source, "requests", "-o", mode) as log:
        # Like a job: list, then read. One more file, for requests that the kernel sends only once (FLUSH).
        paths = sorted(machine.mnt.glob("train/*/*.png"))
        reader(paths.pop())

        def read_all() -> None:
            for path in paths:
                reader(path)

        counts = requests(log, read_all)
        assert counts == {name: count * len(paths) for name, count in EXPECTED[mode, reader].items()}


def test_a_long_read_through_the_page_cache_is_one_request(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "data"
    for label in ("cat", "dog"):
        (source / label).mkdir(parents=True)
        for number in range(2):
            (source / label / f"{number}.jpg").write_bytes(bytes(1 << 20))
    with counted(machine, source, "requests", "-o", "page_cache") as log:
        paths = list(machine.mnt.glob("*/*.jpg"))

        def read_all() -> None:
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                assert len(os.read(fd, 1 << 20)) == 1 << 20
                os.close(fd)

        assert requests(log, read_all)["read"] == len(paths)


def test_small_reads_go_through_the_page_cache_after_a_while(machine: Machine, tmp_path: Path) -> None:
    pieces = 10
    source = tmp_path / "data"
    for label in ("cat", "dog"):
        (source / label).mkdir(parents=True)
        for number in range(WINDOW):
            (source / label / f"{number}.jpg").write_bytes(bytes(pieces * 4096))
    with counted(machine, source, "requests") as log:
        paths = list(machine.mnt.glob("*/*.jpg"))

        def read_in_pieces() -> None:
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                while os.read(fd, 4096):
                    pass
                os.close(fd)

        before, after = requests(log, read_in_pieces)["read"], requests(log, read_in_pieces)["read"]
    probes = len(paths) // BETWEEN_PROBES
    # The kernel's readahead asks for such a file once or twice.
    assert after <= 2 * (len(paths) - probes) + probes * (pieces + 1)
    assert before > WINDOW * pieces


def test_requests_of_a_long_listing(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "data"
    make_images(source, CLASSES)
    with counted(machine, source, "requests") as log:
        folder = machine.mnt / "train/cat"
        counts = requests(log, lambda: subprocess.run(["ls", "-l", folder], check=True, stdout=subprocess.DEVNULL))
        # One GETATTR for each file, a LOOKUP for the folder only, and at most two for xattrs, which fail forever.
        assert counts["getattr"] <= CLASSES["cat"] + 1
        assert counts["lookup"] <= 2
        assert counts["getxattr"] + counts["listxattr"] <= 2
        again = requests(log, lambda: subprocess.run(["ls", "-l", folder], check=True, stdout=subprocess.DEVNULL))
        assert again["getxattr"] + again["listxattr"] == again["lookup"] == 0


def test_the_collector_never_scans_samples_in_memory(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "data"
    for label in ("cat", "dog"):
        (source / label).mkdir(parents=True)
    for number in range(5000):
        (source / ("cat", "dog")[number % 2] / f"{number}.jpg").write_bytes(b"x")
    with counted(machine, source, "collections", "--memory", "4MiB") as log:
        paths = list(machine.mnt.glob("*/*"))

        before = log.read_text()
        for path in paths:
            path.read_bytes()
        assert machine.stats()["opens"] == machine.stats()["in_slots"] == len(paths)
        assert log.read_text() == before
