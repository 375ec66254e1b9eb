"""The ways in which programs read files, each on a real mount, in all open modes."""

import errno
import mmap
import os
import random
import re
import resource
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from images import identity, image, make_full_images, make_images, path_in, pixels_in
from machine import Machine
from PIL import Image

CLASSES = {"cat": 60, "dog": 45, "eel": 7}
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]
SAMPLES = sum(CLASSES.values())
MAPS_DIRECT_IO = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 6)


@pytest.fixture(scope="module", params=["default", "page_cache", "direct_io"])
def mode(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "default" else ["-o", request.param]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, which nothing changes."""
    root = tmp_path_factory.mktemp("images")
    make_images(root, CLASSES, typical_bytes=30_000)
    (root / "train/dog/train-dog-9.png").write_bytes(image("train/dog/train-dog-9.png", 1, 9, 3_000_000))
    (root / "train/notes").write_text("served as it is\n")
    return root


@pytest.fixture(scope="module")
def memory(source: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The memory for a quarter of the samples, as the program prints it."""
    told = Machine(tmp_path_factory.mktemp("machine")).inspect(source, *OPTIONS)
    return int(told["memory_for"]["25%"])


@contextmanager
def mounted(machine: Machine, source: Path, memory: int, mode: list[str]) -> Iterator[Path]:
    """The class tree, mounted with memory for a quarter of the samples; after the block the log must be clean."""
    machine.ok("mount", source, machine.mnt, *OPTIONS, *mode, "--memory", str(memory))
    yield machine.mnt / "train"
    assert machine.stats()["errors"] == 0
    machine.umount()
    assert machine.log() == ""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, source: Path, memory: int, mode: list[str]) -> Iterator[Machine]:
    """One mount for all tests that read whole laps."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        with mounted(machine, source, memory, mode):
            yield machine
    finally:
        machine.clear()


@pytest.fixture
def root(shared: Machine) -> Iterator[Path]:
    """The class tree of the shared mount, at the beginning of a lap."""
    yield shared.mnt / "train"
    stats = shared.stats()
    assert stats["errors"] == 0
    assert stats["turns"] % SAMPLES == 0, "the next test begins with a lap"


def images_of(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.png"))


def read_all_but(root: Path, opened: set[Path]) -> None:
    """Read to the end of a lap in which these were ``opened``."""
    for path in images_of(root):
        if path not in opened:
            path.read_bytes()


def read_by_stat(path: Path) -> bytes:
    """Stat the size, allocate, open, and read exactly that many bytes."""
    size = path.stat().st_size
    buffer = bytearray(size)
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(buffer) == size
        assert file.read(1) == b""
    return bytes(buffer)


def read_by_fstat(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, os.fstat(fd).st_size + 1)
    finally:
        os.close(fd)


def read_by_seeking_from_the_end(path: Path) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-size, os.SEEK_END)
        return file.read(size)


def read_in_small_pieces(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1000), b""))


def read_backwards(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        pieces = [os.pread(file.fileno(), 4096, at) for at in reversed(range(0, size, 4096))]
    return b"".join(reversed(pieces))


def read_by_numpy(path: Path) -> bytes:
    return np.fromfile(path, np.uint8).tobytes()


def read_by_private_mmap(path: Path) -> bytes:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            return bytes(mapped[:])


def read_by_shared_mmap(path: Path) -> bytes:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped:
            return bytes(mapped[:])


def read_through_a_thread_pool(path: Path) -> bytes:
    """Two handles at once read the same sample."""
    with ThreadPoolExecutor(2) as pool, open(path, "rb") as first, open(path, "rb") as second:
        one: bytes
        one, other = pool.map(lambda file: file.read(), (first, second))
    assert one == other
    return one


def read_twice(path: Path) -> bytes:
    """A second look by the same thread: decoders that sniff the header first do this."""
    with open(path, "rb") as file:
        head = file.read(16)
    whole = path.read_bytes()
    assert whole[:16] == head
    return whole


READERS: list[Callable[[Path], bytes]] = [
    Path.read_bytes,
    read_by_stat,
    read_by_fstat,
    read_by_seeking_from_the_end,
    read_in_small_pieces,
    read_backwards,
    read_by_numpy,
    read_by_private_mmap,
    read_through_a_thread_pool,
    read_twice,
]


def two_epochs(root: Path, reader: Callable[[Path], bytes]) -> None:
    paths = images_of(root)
    for epoch in range(2):
        random.Random(epoch).shuffle(paths)
        served: Counter[str] = Counter()
        for path in paths:
            label, sample = identity(reader(path), "train", CLASSES)
            assert label == path.parent.name
            served[sample] += 1
        assert served == dict.fromkeys(served, 1)
        assert len(served) == len(paths)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_way_of_reading_gives_whole_samples_once_each(
    root: Path, shared: Machine, reader: Callable[[Path], bytes]
) -> None:
    before = shared.stats()
    two_epochs(root, reader)
    stats = shared.stats()
    assert stats["turns"] - before["turns"] == 2 * SAMPLES
    assert stats["redirected"] - before["redirected"] > stats["exact"] - before["exact"]


def test_shared_mmap_works_but_for_direct_io_on_an_old_kernel(root: Path, mode: list[str]) -> None:
    if "direct_io" in mode and not MAPS_DIRECT_IO:
        with pytest.raises(OSError, match="No such device"):
            read_by_shared_mmap(root / "cat/train-cat-1.png")
        read_all_but(root, {root / "cat/train-cat-1.png"})
    else:
        two_epochs(root, read_by_shared_mmap)


def test_pillow_decodes_a_sample_of_the_class(root: Path) -> None:
    seen = set()
    for path in images_of(root):
        if path.stat().st_size:
            with Image.open(path) as opened:
                opened.load()
            label, number = pixels_in(path.read_bytes())
            assert sorted(CLASSES)[label] == path.parent.name
            seen.add((label, number))
        else:
            assert path.read_bytes() == b""
    assert len(seen) >= sum(CLASSES.values()) - 2


def test_an_open_never_overtakes_the_closes_before_it(root: Path, shared: Machine) -> None:
    """Many files are closed at once, and another thread opens them at once: each open is a turn of its own."""
    paths = images_of(root)
    before = shared.stats()

    def open_all() -> None:
        with ExitStack() as stack:
            for path in paths:
                stack.enter_context(open(path, "rb", buffering=0))

    for _ in range(10):
        thread = threading.Thread(target=open_all)
        thread.start()
        thread.join()
    stats = shared.stats()
    assert stats["joined"] == before["joined"]
    assert stats["turns"] - before["turns"] == 10 * SAMPLES
    assert stats["lap"] == {"train": stats["turns"] // SAMPLES}


def test_64_files_open_at_once(root: Path) -> None:
    paths = images_of(root)[:64]
    with ExitStack() as stack:
        opened = [stack.enter_context(open(path, "rb")) for path in paths]
        random.Random(1).shuffle(opened)
        contents = [identity(file.read(), "train", CLASSES) for file in opened]
        assert [label for label, _ in contents] == [Path(file.name).parent.name for file in opened]
        assert len({sample for _, sample in contents}) == 64
    read_all_but(root, {*paths})


def test_a_handle_keeps_its_bytes_to_the_end_of_the_lap(root: Path) -> None:
    path = root / "eel/train-eel-1.png"
    with path.open("rb") as held:
        first = held.read(20)
        for _ in range(3):
            read_all_but(root, {path})
        for number in (2, 3):
            path.with_name(f"train-eel-{number}.png").read_bytes()
        rest = held.read()
    assert identity(first + rest, "train", CLASSES)[0] == "eel"


def test_walking_the_tree_with_stats_loads_nothing(
    machine: Machine, source: Path, memory: int, mode: list[str]
) -> None:
    with mounted(machine, source, memory, mode) as root:
        walked = [os.path.join(folder, name) for folder, _, names in os.walk(machine.mnt) for name in names]
        assert len([os.stat(path).st_size for path in walked]) == SAMPLES + 1
        stats = machine.stats()
        assert (stats["chunk_loads"], stats["samples_loaded"], stats["bytes_read"]) == (0, 0, 0)
        two_epochs(root, Path.read_bytes)


def test_a_copy_of_exact_equals_the_source(shared: Machine, source: Path, root: Path, tmp_path: Path) -> None:
    path = root / "cat/train-cat-3.png"
    path.read_bytes()
    subprocess.run(["cp", "-r", shared.mnt / ".redoxfs/exact", tmp_path / "copy"], check=True)
    subprocess.run(["diff", "-r", source, tmp_path / "copy"], check=True)
    assert shutil.disk_usage(shared.mnt).total > 0
    read_all_but(root, {path})


def test_served_names_the_file_whose_bytes_came(shared: Machine, root: Path) -> None:
    for path in images_of(root):
        _, sample = identity(path.read_bytes(), "train", CLASSES)
        served = shared.mnt / ".redoxfs/served" / path.relative_to(shared.mnt)
        assert served.read_text() == sample + "\n"
    assert (shared.mnt / ".redoxfs/served/train/notes").read_text() == "train/notes\n"


def test_the_control_folder_exists_and_is_never_listed(shared: Machine, root: Path) -> None:
    assert ".redoxfs" not in os.listdir(shared.mnt)
    assert sorted(os.listdir(shared.mnt / ".redoxfs")) == [
        "accesslog",
        "batches",
        "exact",
        "history.json",
        "served",
        "served-by-inode",
        "stats.json",
    ]
    assert sorted(os.listdir(shared.mnt / ".redoxfs/exact/train")) == sorted([*CLASSES, "notes"])
    assert not (root / ".redoxfs").exists()


MUTATIONS: dict[str, Callable[[Path], object]] = {
    "open to write": lambda p: os.open(p, os.O_WRONLY),
    "open to append": lambda p: os.open(p, os.O_RDWR | os.O_APPEND),
    "create": lambda p: os.open(p.with_name("new"), os.O_CREAT | os.O_WRONLY),
    "truncate": lambda p: os.truncate(p, 0),
    "unlink": os.unlink,
    "mkdir": lambda p: os.mkdir(p.with_name("new")),
    "rmdir": lambda p: os.rmdir(p.parent),
    "rename": lambda p: os.rename(p, p.with_name("new")),
    "link": lambda p: os.link(p, p.with_name("new")),
    "symlink": lambda p: os.symlink("x", p.with_name("new")),
    "mknod": lambda p: os.mkfifo(p.with_name("new")),
    "chmod": lambda p: os.chmod(p, 0o777),
    "chown": lambda p: os.chown(p, 1, 1),
    "utime": os.utime,
    "setxattr": lambda p: os.setxattr(p, "user.a", b"b"),
    "removexattr": lambda p: os.removexattr(p, "user.a"),
}


def test_every_mutation_is_erofs(root: Path) -> None:
    told = {}
    for name, mutate in MUTATIONS.items():
        with pytest.raises(OSError) as raised:
            mutate(root / "cat/train-cat-1.png")
        told[name] = raised.value.errno
    assert told == dict.fromkeys(MUTATIONS, errno.EROFS)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_full_images(tmp_path_factory.mktemp("many"), {"cat": 450, "dog": 425, "eel": 375})


def test_thousands_of_handles_under_a_small_budget(machine: Machine, many: Path, mode: list[str]) -> None:
    # What an open file takes does not depend on its mode, so one has all.
    count = 2500 if mode else 5_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1000), hard))
    memory = machine.inspect(many, "--classes", "dir")["memory_for"]["least"]
    machine.ok("mount", many, machine.mnt, "--classes", "dir", *mode, "--memory", str(memory))
    paths = images_of(machine.mnt / "train")
    handles = []
    try:
        for _ in range(count // len(paths)):
            handles += [os.open(path, os.O_RDONLY) for path in paths]
        assert len(handles) == count
        stats = machine.stats()
        assert stats["open_files"] == count
        assert stats["memory_used_bytes"] <= memory < stats["bytes_read"]
        served = [path_in(os.pread(fd, 1 << 16, 0)) for fd in handles]
        assert Counter(served) == dict.fromkeys(served, count // len(paths))
        assert len(set(served)) == len(paths)
    finally:
        for fd in handles:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, soft_before)
    machine.umount()


# Groups: an image and its caption are one sample


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("pairs")
    make_images(source, CLASSES)
    for path in source.glob("*/*/*.png"):
        path.with_suffix(".txt").write_text(path.relative_to(source).as_posix() if path.stat().st_size else "empty")
    return source


@pytest.fixture
def captioned(machine: Machine, pairs: Path, mode: list[str]) -> Path:
    options = ["--classes", "dir", "--groups", "stem", "--chunk-size", "4"]
    memory = machine.inspect(pairs, *options)["memory_for"]["25%"]
    machine.ok("mount", pairs, machine.mnt, *options, *mode, "--memory", str(memory))
    return machine.mnt / "train"


def name_in(data: bytes) -> str:
    return path_in(data) if data else "empty"


def test_image_and_caption_are_of_one_sample_in_any_order(captioned: Path) -> None:
    paths = images_of(captioned)
    for epoch in range(4):
        order = random.Random(epoch)
        order.shuffle(paths)
        seen = []
        for start in range(0, len(paths), 16):
            batch = paths[start : start + 16]
            if epoch % 4 == 0:  # item by item
                pairs = [(path.read_bytes(), path.with_suffix(".txt").read_text()) for path in batch]
            elif epoch % 4 == 1:  # the other way round
                pairs = [(path.read_bytes(), text) for path in batch for text in [path.with_suffix(".txt").read_text()]]
            elif epoch % 4 == 2:  # all images of a batch, then all captions
                images = [path.read_bytes() for path in batch]
                pairs = list(zip(images, [path.with_suffix(".txt").read_text() for path in batch], strict=True))
            else:  # captions by another thread, all at once
                with ThreadPoolExecutor(4) as pool:
                    images = list(pool.map(Path.read_bytes, batch))
                    texts = list(pool.map(lambda path: path.with_suffix(".txt").read_text(), reversed(batch)))[::-1]
                pairs = list(zip(images, texts, strict=True))
            assert [name_in(data) for data, _ in pairs] == [text for _, text in pairs]
            seen += [text for _, text in pairs]
        assert len(set(seen)) == len(seen) == len(paths)
