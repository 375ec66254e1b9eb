"""A job reads while other programs list the mount: the sizes that its readers received stay true."""

import os
import random
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from images import image, make_images, path_in
from machine import Machine
from patience import PATIENCE_S, until

CLASSES = {"ant": 55, "bee": 55, "cow": 55}
LISTINGS = (["ls", "-lR"], ["du", "-a"], ["find", ".", "-size", "+1k"])
OPTIONS = ("--classes", "dir", "--chunk-size", "4")
MODES = {"page cache": (), "direct_io": ("-o", "direct_io")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of different sizes, so that a size identifies its sample."""
    root = tmp_path_factory.mktemp("images")
    make_images(root, CLASSES)
    for at, path in enumerate(sorted(root.glob("train/*/*.png"))):
        name = str(path.relative_to(root))
        path.write_bytes(image(name, 0, at, 2_000 + 100 * at))
    return root


def list_twice(root: Path) -> list[subprocess.Popen[bytes]]:
    """Start two of each program that lists ``root``."""
    return [subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL) for command in LISTINGS * 2]


def read_by_stat(path: Path) -> bytes:
    """As TensorFlow does: ask for the size, open, read exactly that many bytes."""
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        data = file.read(size)
        assert len(data) == size, f"{path}: shorter than stat said"
        assert file.read(1) == b"", f"{path}: longer than stat said"
    return data


def epoch(paths: list[Path], at: int, listed: Path, *, wait: bool) -> Counter[str]:
    """Read all ``paths`` once, in a new thread, while other programs list ``listed``, or between two listings."""
    paths = random.Random(at).sample(paths, len(paths))

    def read_all() -> Counter[str]:
        served: Counter[str] = Counter()
        listings: list[subprocess.Popen[bytes]] = []
        for number, path in enumerate(paths):
            if number in (len(paths) // 4, len(paths) // 2, len(paths) - 12):
                started = list_twice(listed)
                if wait:
                    assert all(listing.wait(PATIENCE_S) == 0 for listing in started)
                listings += started
            data = read_by_stat(path)
            name = path_in(data)
            assert Path(name).parent.name == path.parent.name
            served[name] += 1
        assert all(listing.wait(PATIENCE_S) == 0 for listing in listings)
        return served

    with ThreadPoolExecutor(1) as reader:
        return reader.submit(read_all).result()


# Each pair of a policy, a share of the samples in memory, and a mode.
@pytest.mark.parametrize(
    ("policy", "share", "mode"),
    [
        ("pool", "10%", "page cache"),
        ("pool", "25%", "direct_io"),
        ("pool", "all", "page cache"),
        ("slot", "10%", "direct_io"),
        ("slot", "25%", "page cache"),
        ("slot", "all", "direct_io"),
    ],
)
def test_a_reader_reads_the_size_from_its_stat_despite_listings(
    machine: Machine, source: Path, policy: str, share: str, mode: str
) -> None:
    options = (*OPTIONS, "--policy", policy)
    memory = str(machine.inspect(source, *options)["memory_for"][share])
    machine.ok("mount", source, machine.mnt, *options, *MODES[mode], "--memory", memory)
    paths = sorted(machine.mnt.glob("train/*/*.png"))
    for at in range(2):
        served = epoch(paths, at, machine.mnt, wait=at % 2 == 0)
        assert len(served) == served.total() == len(paths)
    assert machine.stats()["errors"] == 0
    machine.umount()
    assert machine.log() == ""


def by_sendfile(file: int, size: int, out: int) -> int:
    return os.sendfile(out, file, 0, size)


def by_splice(file: int, size: int, out: int) -> int:
    return os.splice(file, out, size, offset_src=0)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_sent_but_not_received_stay_whole_when_rebound(machine: Machine, source: Path, mode: str) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS, *MODES[mode], "--memory", "200KiB")
    for send in (by_sendfile, by_splice):
        shrunk = 0
        with ThreadPoolExecutor(1) as other:
            for path in sorted(machine.mnt.glob("train/*/*.png"))[::3]:
                # A pipe holds the pages themselves, unlike a socket, which copies small ones.
                received, out = os.pipe()
                try:
                    with path.open("rb") as file:
                        size = os.fstat(file.fileno()).st_size
                        assert send(file.fileno(), size, out) == size
                    # The kernel reports a close a little later.
                    until(lambda: not machine.stats()["bound"], "a close")
                    shrunk += len(other.submit(read_by_stat, path).result()) < size
                    path_in(os.read(received, size))
                finally:
                    os.close(received)
                    os.close(out)
        assert shrunk > 12
    machine.umount()
