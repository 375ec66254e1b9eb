"""Storage with every Nth read failing: below a node, below the stores, and below a mount.

Only the opens whose turn it was fail, once each. Samples that are readable again are served again.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from disks import BLOCK_BYTES, Disk
from images import identity, make_full_images
from machine import Machine
from packs import catalog_of, opened, pack_here, store_of
from patience import PATIENCE_S, until_in_trio
from stores import (
    FaultyCalls,
    FaultyStore,
    HeldStore,
    NoKernel,
    call_ends,
    call_fails,
    call_flips_bits,
    call_is_short,
    fails,
    is_short,
    is_slow,
    lacks_files,
    raises,
    read_from,
)

from redoxfs.chunks import ChunkStore, DirectoryStore, Payload, Read, build_cells
from redoxfs.dataset import Catalog
from redoxfs.node import ExpectedOpen, Node, OpenFile, plan_pool, plan_slot, pool_memory_for, slot_memory_for
from redoxfs.packed import PackedStore, load_index

POLICIES = ("pool", "slot")
READERS = 4

# Below a node


PER_CLASS = 24
SAMPLES = 4 * PER_CLASS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files filled with their own name."""
    root = tmp_path_factory.mktemp("tree") / "data"
    for label in range(4):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(PER_CLASS):
            name = f"class{label}/{number}.jpg"
            (root / name).write_bytes(f"{name} ".encode() * (20 + number))
    return root


@pytest.fixture(scope="module")
def catalog(tree: Path) -> Catalog:
    return catalog_of(tree)


TIMEOUT_S = PATIENCE_S / 10
"""The deadline of an open. A test that lets it pass has ten of them."""


@asynccontextmanager
async def serving(catalog: Catalog, store: ChunkStore, policy: str) -> AsyncIterator[Node]:
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=8, seed=0)
    memory_for, plan_for = (pool_memory_for, plan_pool) if policy == "pool" else (slot_memory_for, plan_slot)
    plan = plan_for(catalog, cells, memory_bytes=memory_for(catalog, cells, 0.25), seed=0)
    node = Node(catalog, plan, store, timeout_s=TIMEOUT_S, kernel=NoKernel())
    node.start()
    try:
        with trio.fail_after(PATIENCE_S):
            yield node
    finally:
        node.stop()


class Epochs:
    """Epochs of a job with a few readers that continue after errors."""

    def __init__(self, catalog: Catalog, node: Node) -> None:
        self._catalog = catalog
        self._node = node
        self._epoch = 0
        self._reading = 0
        self._waits_for: dict[int, int] = {}

    async def one(self) -> tuple[Counter[int], list[Exception]]:
        """The served samples, each whole, and the errors."""
        self._epoch += 1
        order = np.random.default_rng(self._epoch).permutation(self._catalog.members).tolist()
        served: Counter[int] = Counter()
        raised: list[Exception] = []

        async def read(entries: Sequence[int], thread: int) -> None:
            self._reading += 1
            for entry in entries:
                try:
                    served[await self._whole(entry, thread)] += 1
                except Exception as error:
                    raised.append(error)
            self._reading -= 1

        async with trio.open_nursery() as nursery:
            for reader in range(READERS):
                nursery.start_soon(read, order[reader::READERS], 1000 * self._epoch + reader)
        return served, raised

    async def _whole(self, entry: int, thread: int) -> int:
        """Open, read, close. Return the number of the served sample."""
        node, catalog = self._node, self._catalog
        opening = node.open(entry, thread)
        if isinstance(opening, ExpectedOpen):
            self._waits_for[thread] = opening.content.sample
        try:
            file = opening if isinstance(opening, OpenFile) else await opening
        finally:
            self._waits_for.pop(thread, None)
        try:
            data = await read_from(node, file.handle)
            name = node.served(entry)
        finally:
            node.close(file.handle)
        answer = catalog.tree.find(name)
        if data[:1].isdigit():
            assert data == HeldStore(catalog).content(int(catalog.sample_of[answer]))
        else:
            assert data == (name + b" ") * (20 + int(name.split(b"/")[1].split(b".")[0]))
        sample = int(catalog.sample_of[answer])
        assert catalog.class_of[sample] == catalog.class_of[catalog.sample_of[entry]]
        return sample

    def waits_only_for(self, samples: Collection[int]) -> bool:
        """Whether every reader of an epoch that has begun waits for the bytes of one of these."""
        return 0 < self._reading == len(self._waits_for) and set(self._waits_for.values()) <= set(samples)

    async def exact(self) -> None:
        """An epoch without errors."""
        served, raised = await self.one()
        assert not raised
        assert served == dict.fromkeys(range(SAMPLES), 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", [fails, is_short, lacks_files, raises], ids=lambda fault: fault.__name__)
async def test_with_every_nth_read_failing_only_twice_failed_opens_fail(
    catalog: Catalog, fault: Callable[[Read], Sequence[Payload]], policy: str
) -> None:
    for every in (1, 3, 10):
        store = FaultyStore(HeldStore(catalog), fault)
        async with serving(catalog, store, policy) as node:
            epochs = Epochs(catalog, node)
            await epochs.exact()
            assert node.counters.samples_reread == 0
            failed = 0
            store.every = every
            for epoch in range(4):
                if epoch == 3:
                    # Samples whose read-ahead failed have their turn in this epoch.
                    store.every = 0
                served, raised = await epochs.one()
                missing = set(range(SAMPLES)) - set(served)
                assert served == dict.fromkeys(served, 1)
                assert len(missing) == len(raised)
                assert missing <= set(store.hit)
                assert {error.errno for error in raised if isinstance(error, OSError)} <= {errno.EIO}
                failed += len(raised)
            # An open that fails has failed its second read.
            assert failed == len(store.hit) - node.counters.samples_reread
            assert node.counters.errors == failed
            assert failed >= 2 * SAMPLES or every > 1
            for _ in range(2):
                await epochs.exact()
            assert node.counters.errors == failed


@pytest.mark.parametrize("policy", POLICIES)
async def test_with_every_nth_read_slow_only_time_is_lost(catalog: Catalog, policy: str) -> None:
    store = FaultyStore(HeldStore(catalog), is_slow)
    store.every = 7
    async with serving(catalog, store, policy) as node:
        epochs = Epochs(catalog, node)
        for _ in range(3):
            await epochs.exact()
        # What the memory holds at a turn, a quarter at most, need not be read again.
        assert len(store.hit) >= (SAMPLES + 2 * (SAMPLES - SAMPLES // 4)) // 7
        assert node.counters.errors == 0


@pytest.mark.parametrize("policy", POLICIES)
async def test_with_every_nth_read_hanging_only_its_opens_time_out(
    catalog: Catalog, policy: str, clock: trio.testing.MockClock
) -> None:
    released = threading.Event()

    def hangs(read: Read) -> Sequence[Payload]:
        released.wait()
        return read.run()

    store = FaultyStore(HeldStore(catalog), hangs)
    async with serving(catalog, store, policy) as node, trio.open_nursery() as nursery:
        epochs = Epochs(catalog, node)

        async def let_deadlines_pass() -> None:
            """No deadline passes before all other reads have ended, however long they take."""
            while True:
                await until_in_trio(lambda: released.is_set() or epochs.waits_only_for(store.hit), store.hit)
                if released.is_set():
                    return
                clock.jump(TIMEOUT_S)
                await trio.testing.wait_all_tasks_blocked()

        try:
            await epochs.exact()
            store.every = 30
            nursery.start_soon(let_deadlines_pass)
            served, raised = await epochs.one()
            missing = set(range(SAMPLES)) - set(served)
            assert served == dict.fromkeys(served, 1)
            assert 0 < len(raised) == len(missing)
            assert missing <= set(store.hit)
            assert all(isinstance(error, trio.TooSlowError) for error in raised)
            store.every = 0
        finally:
            released.set()
        for _ in range(3):
            await epochs.exact()
        assert node.counters.errors == len(raised)


# Below the stores


@contextmanager
def store_over(kind: str, tree: Path, folder: Path) -> Iterator[tuple[Catalog, ChunkStore]]:
    """A store with one thread, so that a failed read is retried before the next read."""
    store: DirectoryStore | PackedStore
    if kind == "packed":
        pack_here(tree, folder / "dst")
        with store_of(folder / "dst") as (index, store):
            store.depth = 1
            yield index.catalog, store
    else:
        catalog = catalog_of(tree)
        with opened(tree) as fd:
            store = DirectoryStore(catalog, fd)
            store.depth, store.most_depth = 1, None
            yield catalog, store


CALL_FAULTS = [
    *((kind, fault) for kind in ("directory", "packed") for fault in (call_fails, call_is_short, call_ends)),
    ("packed", call_flips_bits),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "fault"), CALL_FAULTS, ids=lambda what: getattr(what, "__name__", what))
async def test_with_every_nth_call_failing_retries_hide_it(
    tree: Path, tmp_path: Path, kind: str, fault: Callable[[memoryview, int], int], policy: str
) -> None:
    with store_over(kind, tree, tmp_path) as (catalog, store):
        # A failed sweep over a chunk is followed by a read of each of its eight files.
        for every in (11, 17) if kind == "packed" else (2, 3, 7):
            calls = FaultyCalls(fault, every)
            async with serving(catalog, store, policy) as node:
                epochs = Epochs(catalog, node)
                with calls.made():
                    for _ in range(3):
                        await epochs.exact()
                assert calls.hit > 0
                assert node.counters.errors == node.counters.samples_reread == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [each for each in CALL_FAULTS if each[1] is not call_is_short],
    ids=lambda what: getattr(what, "__name__", what),
)
async def test_with_every_call_failing_all_opens_fail_and_then_recover(
    tree: Path, tmp_path: Path, kind: str, fault: Callable[[memoryview, int], int], policy: str
) -> None:
    with store_over(kind, tree, tmp_path) as (catalog, store):
        async with serving(catalog, store, policy) as node:
            epochs = Epochs(catalog, node)
            with FaultyCalls(fault, 1).made():
                for _ in range(2):
                    served, raised = await epochs.one()
                    assert not served
                    assert len(raised) == SAMPLES
            # In this epoch, read-aheads that failed and are still under way may fail.
            await epochs.one()
            for _ in range(2):
                await epochs.exact()


# Below a mount, with one of the policies for each fault: above, each fault meets both.


CLASSES = {"cat": 60, "dog": 60}
IMAGES = sum(CLASSES.values())
CHUNKS = ["--classes", "dir", "--chunk-size", "4"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_full_images(tmp_path / "data", CLASSES)


def mount(
    machine: Machine, source: Path, policy: str, *options: str, share: str = "25%", without: Sequence[str] = ()
) -> None:
    options = (*options, "--policy", policy)
    memory = machine.inspect(source, *options)["memory_for"][share]
    command = machine.command("mount", source, machine.mnt, *options, "--memory", str(memory))
    subprocess.run([*without, *command], env=machine.environment, check=True, capture_output=True)


def epoch(root: Path) -> tuple[Counter[str], Counter[int]]:
    """Open every file once, and continue after errors. Return the samples and the errnos."""
    return read_all(root, lambda data: identity(data, "train", CLASSES))


def read_all(root: Path, known: Callable[[bytes], tuple[str, str]]) -> tuple[Counter[str], Counter[int]]:
    served: Counter[str] = Counter()
    errors: Counter[int] = Counter()

    def read(path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            errors[error.errno or 0] += 1
        else:
            label, sample = known(data)
            assert label == path.parent.name
            served[sample] += 1

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, sorted(root.glob("train/*/*.png"))))
    return served, errors


def assert_lost(machine: Machine, lost: set[str], *, epochs: int = 2) -> None:
    """Epochs in which each of ``lost`` is EIO once, and all others are served."""
    before = machine.stats()["errors"]
    for number in range(1, epochs + 1):
        served, errors = epoch(machine.mnt)
        assert served == dict.fromkeys(served, 1)
        assert not lost & set(served)
        assert len(served) == IMAGES - len(lost)
        assert errors == {errno.EIO: len(lost)}
        assert machine.stats()["errors"] - before == number * len(lost)


def assert_recovers(machine: Machine) -> None:
    """One epoch in which failed reads may still be under way, then one in which none fails."""
    epoch(machine.mnt)
    served, errors = epoch(machine.mnt)
    assert not errors
    assert served == dict.fromkeys(served, 1)
    assert len(served) == IMAGES


def names_in(source: Path) -> list[str]:
    return sorted(path.relative_to(source).as_posix() for path in source.glob("train/*/*.png"))


def every_seventh(source: Path) -> set[str]:
    return set(names_in(source)[::7])


WITHOUT_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""Root may read everything. Without these capabilities a file's mode applies to root too."""


def test_truncated_replaced_or_unreadable_files_are_current_or_eio(machine: Machine, source: Path) -> None:
    mount(machine, source, "slot", *CHUNKS, without=WITHOUT_OVERRIDE)
    names = sorted(every_seventh(source))
    cut, replaced, shut = names[::3], names[1::3], set(names[2::3])
    for name in cut:
        os.truncate(source / name, (source / name).stat().st_size // 2)
    for name in replaced:
        (source / "new").write_bytes(b"another " * 300 + name.encode())
        (source / "new").rename(source / name)
    for name in shut:
        (source / name).chmod(0)
    found = source.glob("train/*/*.png")
    known = {path.read_bytes(): (path.parent.name, path.relative_to(source).as_posix()) for path in found}
    for lap in (1, 2):
        served, errors = read_all(machine.mnt, known.__getitem__)
        assert served == dict.fromkeys({name for _, name in known.values()} - shut, 1)
        assert errors == {errno.EIO: len(shut)}
        assert machine.stats()["errors"] == lap * len(shut)
    assert machine.stats()["changed"] == len(cut) + len(replaced)
    for name in shut:
        (source / name).chmod(0o644)
        assert name in machine.log()
    read_all(machine.mnt, known.__getitem__)
    served, errors = read_all(machine.mnt, known.__getitem__)
    assert not errors
    assert served == dict.fromkeys({name for _, name in known.values()}, 1)


def test_flipped_bytes_of_a_mounted_shard_are_eio_until_restored(
    machine: Machine, source: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "packed"
    machine.ok("pack", source, dst, "--classes", "dir")
    mount(machine, dst, "slot")
    lost = every_seventh(source)

    def flip() -> None:
        for shard, at in places_in(dst, lost).values():
            with open(shard, "r+b", buffering=0) as file:
                byte = os.pread(file.fileno(), 1, at + 50)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 1]), at + 50)

    flip()
    assert_lost(machine, lost)
    assert "wrong checksum" in machine.log()
    flip()
    assert_recovers(machine)


def test_a_truncated_mounted_shard_loses_only_the_truncated_files(
    machine: Machine, source: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "packed"
    machine.ok("pack", source, dst, "--classes", "dir")
    mount(machine, dst, "pool")
    places = places_in(dst, names_in(source))
    (shard,) = {shard for shard, _ in places.values()}
    whole = shard.read_bytes()
    end = len(whole) * 3 // 4
    os.truncate(shard, end)
    lost = {name for name, (_, at) in places.items() if at + (source / name).stat().st_size > end}
    assert 0 < len(lost) < IMAGES / 2
    assert_lost(machine, lost)
    shard.write_bytes(whole)
    assert_recovers(machine)


def places_in(dst: Path, names: Iterable[str]) -> dict[str, tuple[Path, int]]:
    """The shard of each file, and the offset of its bytes."""
    index = load_index(dst)
    tree, positions = index.catalog.tree, index.positions
    entries = {name: tree.find(name.encode()) for name in names}
    return {
        name: (dst / positions.shard_names[positions.shard[e]], int(positions.data_at[e]))
        for name, e in entries.items()
    }


# Below a mount: a filesystem, and a disk


FAULTY_STORAGE = """
import errno, json, os, stat, sys, trio, pyfuse3
source, mountpoint, orders = sys.argv[1:]

class StorageSpeed(pyfuse3.Operations):
    paths = {pyfuse3.ROOT_INODE: ""}

    async def getattr(self, inode, ctx=None):
        found, told = os.lstat(os.path.join(source, self.paths[inode])), pyfuse3.EntryAttributes()
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns"):
            setattr(told, name, getattr(found, name))
        told.st_ino = inode
        return told

    async def lookup(self, parent, name, ctx=None):
        path = os.path.join(self.paths[parent], os.fsdecode(name))
        try:
            inode = os.lstat(os.path.join(source, path)).st_ino + 1
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno)
        self.paths[inode] = path
        return await self.getattr(inode)

    async def opendir(self, inode, ctx):
        return inode

    async def readdir(self, inode, start, token):
        names = sorted(os.listdir(os.path.join(source, self.paths[inode])))
        for position, name in enumerate(names[start:], start + 1):
            told = await self.lookup(inode, os.fsencode(name))
            if not pyfuse3.readdir_reply(token, os.fsencode(name), told, position):
                return

    async def releasedir(self, inode):
        pass

    async def release(self, inode):
        pass

    async def statfs(self, ctx):
        return pyfuse3.StatvfsData()

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, inode, offset, size):
        path = self.paths[inode]
        with open(os.path.join(source, path), "rb") as file:
            data = os.pread(file.fileno(), size, offset)
        with open(orders) as file:
            ordered = json.load(file)
        if path in ordered["paths"]:
            if ordered["fault"] == "fails":
                raise pyfuse3.FUSEError(errno.EIO)
            if ordered["fault"] == "is short":
                return data[: len(data) // 2] if not offset else b""
            await trio.sleep(0.05)
        return data

pyfuse3.init(StorageSpeed(), mountpoint, {"fsname=faulty"})
print("mounted", flush=True)
trio.run(pyfuse3.main)
pyfuse3.close()
"""
"""The filesystem receives every read. A file tells it which files to fail, and how."""


def order(folder: Path, fault: str, paths: set[str]) -> None:
    (folder / "next").write_text(json.dumps({"fault": fault, "paths": sorted(paths)}))
    (folder / "next").rename(folder / "orders")


@pytest.fixture
def faulty(machine: Machine, source: Path, tmp_path: Path) -> Iterator[Path]:
    """A filesystem over ``source`` that fails on demand."""
    place = tmp_path / "faulty"
    place.mkdir()
    order(tmp_path, "", set())
    command = [sys.executable, "-c", FAULTY_STORAGE, *map(str, (source, place, tmp_path / "orders"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as storage:
        try:
            assert storage.stdout is not None
            assert storage.stdout.readline() == "mounted\n"
            yield place
        finally:
            machine.clear()
            storage.wait(PATIENCE_S)


def test_with_every_nth_file_failing_only_those_fail_and_recover(
    machine: Machine, source: Path, faulty: Path, tmp_path: Path
) -> None:
    # A retained sample is not read again, so it would be served for as long as the fault lasts.
    mount(machine, faulty, "pool", *CHUNKS, share="least")
    lost = every_seventh(source)
    for fault in ("fails", "is short"):
        order(tmp_path, fault, lost)
        # One in which reads may still be on their way that went well.
        epoch(machine.mnt)
        assert_lost(machine, lost, epochs=1)
        order(tmp_path, "", set())
        assert_recovers(machine)
    before = machine.stats()["errors"]
    order(tmp_path, "is slow", lost)
    served, errors = epoch(machine.mnt)
    assert served == dict.fromkeys(served, 1)
    assert (len(served), errors) == (IMAGES, {})
    assert machine.stats()["errors"] == before


@pytest.fixture
def disk(machine: Machine, tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    try:
        yield made
    finally:
        machine.clear()


@pytest.mark.parametrize(("policy", "kind"), [("slot", "directory"), ("pool", "packed")])
def test_lost_sectors_lose_only_the_files_on_them(
    machine: Machine, source: Path, disk: Disk, policy: str, kind: str
) -> None:
    names = names_in(source)
    served_from = disk.place / "data"
    if kind == "packed":
        machine.ok("pack", source, served_from, "--classes", "dir")
    else:
        shutil.copytree(source, served_from)
    os.sync()
    # Then none of it is in the page cache.
    disk.detach()
    disk.attach("ro").check_returncode()
    mount(machine, served_from, policy, *(CHUNKS if kind == "directory" else ()))
    packed_at = places_in(served_from, names) if kind == "packed" else {}
    where = {}
    for name in names:
        path, begin = packed_at.get(name, (served_from / name, 0))
        where[name] = disk.blocks_of(path, begin, (source / name).stat().st_size)
    first_lost = sorted(block for blocks in where.values() for block in blocks)[-30]
    lost = {name for name, blocks in where.items() if max(blocks) >= first_lost}
    assert 0 < len(lost) < IMAGES
    disk.lose(first_lost * BLOCK_BYTES)
    # One in which reads may still be on their way that went well.
    epoch(machine.mnt)
    assert_lost(machine, lost)
    disk.restore()
    assert_recovers(machine)


# The scan cache


KEPT = "cannot cache the scan of"


@pytest.fixture
def cache(machine: Machine) -> Iterator[Path]:
    """The scan cache's folder. The test unmounts whatever it mounts there."""
    yield machine.folder / "cache"
    machine.clear()


def no_space(cache: Path) -> None:
    mount_small(cache)
    with suppress(OSError), open(cache / "filling", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def nearly_no_space(cache: Path) -> None:
    """The disk has room for the folder and a part of the scan."""
    no_space(cache)
    os.truncate(cache / "filling", (cache / "filling").stat().st_size - 40_000)


def read_only(cache: Path) -> None:
    mount_small(cache, "-o", "ro")


def a_file(cache: Path) -> None:
    (cache / "redoxfs").write_text("in the way")


def mount_small(place: Path, *options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", *options, "small", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk takes the right to mount")


@pytest.mark.parametrize("fault", [no_space, nearly_no_space, read_only, a_file], ids=lambda fault: fault.__name__)
def test_a_scan_cache_that_cannot_be_written_is_one_line(
    machine: Machine, source: Path, cache: Path, fault: Callable[[Path], None]
) -> None:
    fault(cache)
    before = sorted(cache.rglob("*"))
    for _ in range(2):
        done = machine.ok("mount", source, machine.mnt, *CHUNKS)
        assert sum(KEPT in line for line in done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr
        served, errors = epoch(machine.mnt)
        assert (len(served), errors) == (IMAGES, {})
        machine.ok("umount", machine.mnt)
    assert [path for path in sorted(cache.rglob("*")) if path.name != "redoxfs"] == before or fault is a_file


def test_a_scan_cache_on_a_lost_disk_is_one_line(machine: Machine, source: Path, disk: Disk) -> None:
    machine.environment["XDG_CACHE_HOME"] = str(disk.place)
    machine.ok("mount", source, machine.mnt, *CHUNKS)
    machine.ok("umount", machine.mnt)
    assert (disk.place / "redoxfs").is_dir()
    disk.detach()
    disk.attach("ro").check_returncode()
    disk.lose(0)
    done = machine.ok("mount", source, machine.mnt, *CHUNKS)
    assert sum(KEPT in line for line in done.stderr.splitlines()) == 1
    served, errors = epoch(machine.mnt)
    assert (len(served), errors) == (IMAGES, {})


def test_a_scan_cache_lost_while_mounted_does_not_matter(machine: Machine, source: Path, cache: Path) -> None:
    machine.ok("mount", source, machine.mnt, *CHUNKS)
    machine.ok("umount", machine.mnt)
    # As if the source had been unchanged for long before the scan.
    (manifest,) = cache.rglob("manifest.json")
    known = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(known | {"scanned_at_ns": known["scanned_at_ns"] + 10_000_000_000}))
    done = machine.ok("mount", source, machine.mnt, *CHUNKS)
    assert "unchanged since the last scan" in done.stderr + done.stdout
    for path in manifest.parent.glob("*.npy"):
        os.truncate(path, 0)
    served, errors = epoch(machine.mnt)
    assert (len(served), errors) == (IMAGES, {})
    assert machine.log() == ""
