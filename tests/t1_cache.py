"""The cache: what is kept is found again, and whatever happens to it, a reader gets the bytes of the source."""

import errno
import fcntl
import logging
import os
import random
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from caches import Cached, cached
from packs import flip, opened

from redoxfs.cache import CacheStore, InUseError, Root, key_of, verify
from redoxfs.cache import writer as writer_module
from redoxfs.cache.segments import KEPT, encoded, encoded_bytes, read_batches, seed_of
from redoxfs.cache.store import LEAST_FAILURES
from redoxfs.cache.writer import Disk
from redoxfs.chunks import DirectoryStore
from redoxfs.cli import warmup
from redoxfs.dataset import fingerprint, read_catalog, write_catalog
from redoxfs.launch.cache import open_cache
from redoxfs.launch.errors import DestinationError
from redoxfs.launch.options import CacheOptions
from redoxfs.launch.source import Dataset
from redoxfs.testing import CHUNK_SIZE, GROUPS, StoreTests, Subject, make_source

SAMPLES = 120


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("grouped"))


class TestCacheStore(StoreTests):
    @pytest.fixture(params=[0, 2, 1], ids=["empty", "some chunks", "whole"])
    def subject(self, grouped: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        with cached(grouped, tmp_path / "cache", chunk_size=CHUNK_SIZE, groups=GROUPS) as here:
            if request.param:
                here.fill(every=request.param)

            @contextmanager
            def unreadable(sample: int) -> Iterator[None]:
                entry = here.entries(sample)[0]
                if here.store.has(sample):
                    flip(*here.place(entry))
                path = here.path_of(entry)
                path.rename(path.with_name("away"))
                try:
                    yield
                finally:
                    path.with_name("away").rename(path)

            yield Subject(here.store, here.catalog, here.cells, lambda e: here.path_of(e).read_bytes(), unreadable)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes of files of up to 3 kB, some of them empty, and one of 2.5 MiB."""
    at_random = random.Random(1)
    for label in ("cat", "dog"):
        (tmp_path / "source" / label).mkdir(parents=True)
        for number in range(SAMPLES // 2):
            data = at_random.randbytes(at_random.choice((0, 1, 700, 3000)))
            (tmp_path / "source" / label / f"{number}.jpg").write_bytes(data)
    (tmp_path / "source/cat/0.jpg").write_bytes(at_random.randbytes(5 << 19))
    return tmp_path / "source"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 20_000)


def all_samples(here: Cached) -> list[int]:
    return [sample for _, samples in here.chunks() for sample in samples]


def test_what_was_read_is_served_by_later_mounts_without_the_source(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        assert here.copies.number == SAMPLES
    with cached(source, cache) as here:
        contents = {entry: here.path_of(entry).read_bytes() for entry in here.catalog.members.tolist()}
        source.rename(source.with_name("away"))
        (source / "empty").mkdir(parents=True)
        for chunk, samples in here.chunks():
            for read in here.store.reads(chunk, samples):
                for sample, (file,) in zip(read.samples, read.run(), strict=True):
                    assert not isinstance(file, OSError)
                    assert bytes(file.data) == contents[here.entries(sample)[0]]


def test_a_chunk_that_was_kept_is_one_read(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        for chunk, samples in here.chunks():
            assert len(here.store.reads(chunk, samples)) == 1


def test_reads_of_a_load_are_kept_when_all_have_come(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        chunk, samples = next(here.chunks())
        reads = here.store.reads(chunk, samples)
        for read in reads[:-1]:
            read.run()
        here.store.flush()
        assert here.copies.number == 0
        reads[-1].run()
        here.store.flush()
        assert all(map(here.store.has, samples))


def test_a_dataset_whose_files_have_other_times_has_another_cache(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
    os.utime(source / "dog/3.jpg", (1, 1))
    with cached(source, cache) as here:
        assert here.copies.number == 0


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "replaced"])
def test_a_file_with_other_content_and_the_times_of_the_former_is_not_served_from_its_copy(
    source: Path, cache: Path, in_place: bool
) -> None:
    with cached(source, cache) as here:
        here.fill()
        path = here.path_of(int(here.catalog.tree.size.argmax()))
    # As tar and rsync --checksum write it.
    before = path.stat()
    other = path if in_place else path.with_name("new")
    other.write_bytes(bytes(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    os.utime(path.parent, ns=(before.st_atime_ns, here.catalog.tree.mtime_ns[here.catalog.tree.find(b"cat")]))
    with cached(source, cache) as here:
        here.check_epoch()


def test_a_dataset_that_gets_another_path_has_the_same_cache(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
    with cached(source.rename(source.with_name("renamed")), cache) as here:
        assert here.copies.number == SAMPLES


def test_a_catalog_in_a_file_has_the_cache_of_before_a_snapshot_by_hard_links(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        write_catalog(source.with_name("catalog"), here.catalog, asked={}, about={})
        before = here.copies._folder.key
        path, other = here.path_of(int(here.catalog.members[0])), source.with_name("snapshot")
        # Until the clock of the filesystem has ticked.
        while path.stat().st_ctime_ns == here.catalog.tree.ctime_ns[here.catalog.members[0]]:
            other.unlink(missing_ok=True)
            os.link(path, other)
    catalog = read_catalog(source.with_name("catalog")).catalog
    assert key_of(catalog, fingerprint(catalog), None) == before
    with cached(source, cache) as here:
        assert here.copies._folder.key != before


def test_a_file_that_changed_since_the_scan_is_not_kept(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        entry = here.catalog.tree.find(b"dog/3.jpg")
        sample = int(here.catalog.sample_of[entry])
        data = here.path_of(entry).read_bytes()
        here.path_of(entry).write_bytes(bytes(len(data)))
        here.fill()
        assert not here.store.has(sample)
        assert here.copies.number == SAMPLES - 1
        here.check_epoch()


class Dies(Disk):
    """Ends the process at a call that changes the disk, which it has carried out in part."""

    def __init__(self, at: int, share: float) -> None:
        self._left = at
        self._share = share

    def write(self, fd: int, parts: Sequence[memoryview], at: int) -> int:
        if self._is_the_last():
            whole = b"".join(parts)
            os.pwrite(fd, whole[: int(len(whole) * self._share)], at)
            os._exit(9)
        return super().write(fd, parts, at)

    def sync(self, fd: int) -> None:  # as the other one
        if self._is_the_last():
            os._exit(9)

    def resize(self, fd: int, size: int) -> None:
        if self._is_the_last():
            os._exit(9)
        super().resize(fd, size)

    def _is_the_last(self) -> bool:
        self._left -= 1
        return self._left < 0


def in_child(call: Callable[[], None]) -> int:
    """Call in a child, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# Nothing of a write is what all of the one before it leaves.
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_death_at_any_write_leaves_only_right_bytes(
    source: Path, cache: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 4000)
    (source / "cat/0.jpg").write_bytes(b"not so large")
    paths = sorted(source.glob("*/*"))
    samples = len(paths[::3])
    for path in {*paths} - {*paths[::3]}:
        path.unlink()
    died = counts = 0

    def work(at: int) -> None:
        with cached(source, cache, disk=Dies(at, share)) as here:
            here.fill()

    # The next one goes on with what the one before has left. The last one dies nowhere.
    while (code := in_child(partial(work, died % 13))) == 9:
        died += 1
        with cached(source, cache) as here:
            # Nothing more, so that the next one has something to write.
            here.writer.failure = OSError()
            assert here.copies.number >= counts
            counts = here.copies.number
            here.check_epoch()
            assert here.store.cache_stats()["failures"] == 0
    assert code == 0
    assert died > 20
    with cached(source, cache) as here:
        assert here.copies.number == samples
        here.check_epoch()
        assert here.store.cache_stats()["read_bytes"] == here.catalog.sample_bytes.sum()
        assert here.store.cache_stats()["read_samples"] == samples
        # Nobody else had written a segment meanwhile.
        assert len(here.files(".data")) == 1
        size = sum(path.stat().st_size for path in here.files(".data"))
        assert size == sum(max(1, size) for size in here.catalog.sample_bytes.tolist())


@pytest.mark.usefixtures("small_batches")
def test_a_flipped_bit_anywhere_never_reaches_a_reader(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        data, index = here.files(".data")[0], here.files(".index")[0]
    at_random = random.Random(2)
    places = [(data, 0), (data, data.stat().st_size - 1), (index, index.stat().st_size - 1)]
    places += [(path, at_random.randrange(path.stat().st_size)) for path in (data, index) for _ in range(20)]
    # Of the first batch: magic, counts, checksum, and a file.
    places += [(index, at) for at in (0, 8, 12, 16, 24, 32, 40, 48)]
    noticed = 0
    for path, at in places:
        flip(path, at)
        with cached(source, cache) as here:
            lacks = here.copies.number < SAMPLES
            here.check_epoch()
            noticed += lacks or here.copies.damaged_bytes > 0 or here.store.cache_stats()["failures"] > 0
            here.store.flush()
        with cached(source, cache) as here:
            # What was damaged was taken back and is kept again.
            here.fill()
            assert here.copies.number == SAMPLES
            here.check_epoch()
            assert here.store.cache_stats()["failures"] == 0
    # Some bits are of copies that had been taken back.
    assert noticed > len(places) * 3 // 4


def test_a_damaged_file_of_a_group_is_kept_again_with_the_others(grouped: Path, cache: Path) -> None:
    def opened() -> AbstractContextManager[Cached]:
        return cached(grouped, cache, chunk_size=CHUNK_SIZE, groups=GROUPS)

    with opened() as here:
        here.fill()
        several = [sample for sample in all_samples(here) if len(here.entries(sample)) > 1]
        places = [here.place(here.entries(sample)[number % 2]) for number, sample in enumerate(several[:6])]
        samples = len(all_samples(here))
    for place in places:
        flip(*place)
    with opened() as here:
        here.check_epoch()
        # Empty files have no byte that could flip, and what stands in the place is of another file then.
        damaged = here.store.cache_stats()["failures"]
        assert 3 <= damaged <= 6
        here.store.flush()
        here.fill()
    for _ in range(2):
        with opened() as here:
            assert here.copies.number == samples
            here.check_epoch()
            assert here.store.cache_stats()["failures"] == 0


def test_a_sample_that_ends_with_an_empty_file_is_here_though_the_next_one_was_damaged(
    tmp_path: Path, cache: Path
) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "source" / label).mkdir(parents=True)
        for number in range(8):
            (tmp_path / "source" / label / f"{number}.jpg").write_bytes(b"image")
            (tmp_path / "source" / label / f"{number}.txt").touch()

    def opened() -> AbstractContextManager[Cached]:
        return cached(tmp_path / "source", cache, groups="stem")

    with opened() as here:
        here.fill()
        firsts, ends = ({here.place(here.entries(each)[file]) for each in all_samples(here)} for file in (0, 1))
    damaged = min(firsts & ends)
    flip(*damaged)
    with opened() as here:
        here.check_epoch()
        assert here.store.cache_stats()["failures"] == 1
        here.store.flush()
        here.fill()
    with opened() as here:
        assert here.copies.number == len(firsts)


def test_damage_does_not_hide_what_follows_in_the_index(tmp_path: Path) -> None:
    seed = seed_of("a key")
    batches = [encoded(KEPT, [(number, 5, 7)], [number], seed) for number in range(3)]
    path = tmp_path / "index"
    path.write_bytes(b"".join(batches))
    flip(path, encoded_bytes(1, 1) + 3)
    with open(path, "rb") as file:
        found = read_batches(file.fileno(), 0, seed)
        assert [batch.files[0, 0] for batch in found.batches] == [0, 2]
        assert found.damaged_bytes == encoded_bytes(1, 1)
        assert found.end == path.stat().st_size
        assert read_batches(file.fileno(), 0, seed_of("another")).batches == []


def test_a_segment_that_was_cut_gives_way_to_the_source(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        path = here.files(".data")[0]
        os.truncate(path, 0)
        here.check_epoch()
        # Then it is not asked any more: no chunk after that of the last failure.
        failures = here.store.cache_stats()["failures"]
        assert LEAST_FAILURES <= failures < LEAST_FAILURES + 8
        here.check_epoch()
        assert here.store.cache_stats()["failures"] == failures


class Fails(Disk):
    """A disk on which every call fails after some."""

    def __init__(self, after: int, error: int) -> None:
        self._left = after
        self._error = error

    def write(self, fd: int, parts: Sequence[memoryview], at: int) -> int:
        self._left -= 1
        if self._left < 0:
            raise OSError(self._error, os.strerror(self._error))
        return super().write(fd, parts, at)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("error", "line"), [(errno.ENOSPC, "its disk is full"), (errno.EIO, "Input/output error")], ids=["full", "failing"]
)
def test_a_failed_write_gives_up_with_one_line(
    source: Path, cache: Path, caplog: pytest.LogCaptureFixture, error: int, line: str
) -> None:
    (source / "cat/0.jpg").write_bytes(b"not so large")
    caplog.set_level(logging.WARNING)
    with cached(source, cache, disk=Fails(5, error)) as here:
        here.fill()
        assert not here.store.is_writing
        kept = here.copies.number
        assert 0 < kept < SAMPLES
        here.check_epoch()
    assert [record.getMessage() for record in caplog.records] == [
        f"{cache}: {line}: nothing more is kept in this cache"
    ]
    with cached(source, cache) as here:
        assert here.copies.number == kept
        here.check_epoch()


@pytest.mark.usefixtures("small_batches")
def test_the_size_is_a_bound_for_all_datasets_together(source: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "other/cat").mkdir(parents=True)
    for number in range(30):
        (tmp_path / f"other/cat/{number}.jpg").write_bytes(b"%d" % number * 1000)
    with cached(tmp_path / "other", cache) as other:
        other.fill()
        used = other.root.used_bytes()
    most = used + 50_000
    (source / "cat/0.jpg").write_bytes(b"not so large")
    with cached(source, cache, most_bytes=most) as here:
        here.fill()
        assert here.writer.is_full
        assert 0 < here.copies.number < SAMPLES
        assert most - 10_000 < here.root.used_bytes() <= most
        here.check_epoch()
    with cached(source, cache, most_bytes=most) as here:
        here.fill()
        assert here.root.used_bytes() <= most


def test_readers_do_not_wait_for_a_slow_disk(source: Path, cache: Path) -> None:
    with cached(source, cache, most_waiting_bytes=4 << 20) as here:
        reached, goes_on = os.pipe(), os.pipe()

        class Held(Disk):
            def sync(self, fd: int) -> None:  # as the other one
                os.write(reached[1], b"1")
                os.read(goes_on[0], 1)

        here.writer._disk = Held()
        chunks = [*here.chunks()]
        large = int(here.catalog.sample_of[here.catalog.tree.find(b"cat/0.jpg")])
        first = next(samples for _, samples in chunks if large in samples)
        for read in here.store.reads(0, first):
            read.run()
        os.read(reached[0], 1)
        # The large one again and again: only as much waits as may.
        for _ in range(5):
            here.store.reads(0, [large])[0].run()
        assert here.writer.left_out == 4
        os.write(goes_on[1], b"1" * 20)
        here.store.flush()
        assert here.store.has(large)
        for fd in (*reached, *goes_on):
            os.close(fd)


def test_of_a_load_larger_than_what_may_wait_only_a_part_waits(source: Path, cache: Path) -> None:
    with cached(source, cache, chunk_size=SAMPLES, most_waiting_bytes=50_000) as here:
        (source / "cat/0.jpg").write_bytes(b"")
        chunk, samples = max(here.chunks(), key=lambda each: len(each[1]))
        for read in here.store.reads(chunk, samples):
            read.run()
        here.store.flush()
        assert 5 < here.copies.number < 50
        assert here.copies.number + here.writer.left_out in (len(samples), len(samples) - 1)
        here.check_epoch()


@pytest.mark.usefixtures("small_batches")
def test_processes_that_fill_a_cache_at_once_share_it(source: Path, cache: Path) -> None:
    def work(seed: int) -> None:
        with cached(source, cache) as here:
            chunks = [*here.chunks()]
            random.Random(seed).shuffle(chunks)
            for chunk, samples in chunks:
                here.store.copy(chunk, samples)
            here.store.flush()
            assert here.copies.number == SAMPLES

    pids = []
    for seed in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                work(seed)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    with cached(source, cache) as here:
        assert here.copies.number == SAMPLES
        here.check_epoch()
        assert here.store.cache_stats()["failures"] == 0


def test_a_mount_learns_what_another_one_has_kept(source: Path, cache: Path) -> None:
    with cached(source, cache) as one, cached(source, cache) as other:
        one.fill()
        assert other.copies.number == 0
        other.copies.load()
        assert other.copies.number == SAMPLES
        other.check_epoch()


def test_a_dataset_in_use_is_not_removed(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        (entry,) = here.root.entries()
        assert entry.is_in_use
        assert entry.files == SAMPLES
        with pytest.raises(InUseError):
            here.root.remove(entry.key)
    root = Root(cache)
    assert not root.entries()[0].is_in_use
    root.remove(entry.key)
    assert root.entries() == []
    assert root.used_bytes() == 0
    root.close()


def test_a_dataset_that_a_mount_makes_anew_while_two_remove_it_is_not_removed(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cached(source, cache) as here:
        here.fill()
        key = here.copies._folder.key
    root, lock = Root(cache), fcntl.flock
    folders = []

    def after_another(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        root.remove(key)
        folders.append(root.folder(key))
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", after_another)
    with pytest.raises(InUseError):
        root.remove(key)
    assert [entry.key for entry in root.entries()] == [key]
    folders[0].close()
    root.close()


@pytest.mark.parametrize("what", ["index", "lock"])
def test_a_cache_that_could_not_be_opened_is_not_in_use(source: Path, cache: Path, what: str) -> None:
    with cached(source, cache) as here:
        here.fill()
        index = here.files(".index")[0]
    wrong = index if what == "index" else index.with_name("lock")
    wrong.rename(cache / "elsewhere")
    # The lock is no file, and the cache follows no link to an index.
    wrong.mkdir() if what == "lock" else wrong.symlink_to(cache / "elsewhere")
    options = CacheOptions(cache=str(cache))
    with opened(source) as fd:
        dataset = Dataset(here.catalog, here.cells, fd, None, None)
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(DestinationError):
            open_cache(DirectoryStore(here.catalog, fd), dataset, options, source="", memory_bytes=1 << 20)
        # Garbage of other tests may have held one before.
        assert set(os.listdir("/proc/self/fd")) <= before


def test_a_node_makes_room_for_its_own_part(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part fits beside another dataset; not all samples, and not the other part where the copies are of this."""
    with cached(source, cache) as here:
        here.fill()
        other = here.copies._folder.key
        sizes, used = here.catalog.sample_bytes, here.root.used_bytes()
    monkeypatch.setattr("redoxfs.launch.cache.fingerprint_of", lambda _: "another dataset's")
    # All but the largest ones, in turns.
    order = np.argsort(sizes)[: len(sizes) // 2]
    parts = [np.isin(np.arange(len(sizes)), order[at::2]) for at in range(2)]
    part_bytes = [int(sizes[part].sum()) for part in parts]
    most_bytes = used + max(part_bytes) + min(part_bytes) // 2
    options = CacheOptions(cache=str(cache), cache_size=str(most_bytes))
    with opened(source) as fd:
        dataset, store = Dataset(here.catalog, here.cells, fd, None, None), DirectoryStore(here.catalog, fd)
        for reads, is_left in zip(parts, (True, False), strict=True):
            found = open_cache(store, dataset, options, source="", memory_bytes=1 << 20, reads=reads)
            for chunk, samples in here.chunks():
                if any(reads[samples]):
                    found.copy(chunk, [sample for sample in samples if reads[sample]])
            found.flush()
            assert found.cache_stats()["samples"] == np.count_nonzero(parts[0]) + (
                0 if is_left else np.count_nonzero(reads)
            )
            found.end()
            assert any(entry.key == other for entry in Root(cache).entries()) == is_left


def test_nothing_is_removed_but_what_a_cache_has_made(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        key = here.copies._folder.key
    others = [cache / "0123456789abcdef0123456789abcdef", cache / ".removed-mine", cache / "data"]
    for path in others:
        path.mkdir()
        (path / "file").write_bytes(bytes(5000))
    interrupted = cache / f".removed-{'7' * 32}-12"
    interrupted.mkdir()
    root = Root(cache)
    assert [entry.key for entry in root.entries()] == [key]
    used = root.used_bytes()
    root.sweep()
    assert not interrupted.exists()
    assert [entry.key for entry in root.make_room(used, used, "")] == [key]
    assert root.used_bytes() == 0
    assert all((path / "file").exists() for path in others)
    root.close()


def test_a_death_while_a_dataset_is_described_does_not_hide_it(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cached(source, cache) as here:
        here.fill()
        folder = here.copies._folder

        def dies() -> None:
            monkeypatch.setattr(os, "fsync", lambda _: os._exit(9))
            folder.describe({"source": str(source)})

        assert in_child(dies) == 9
        assert len(list((cache / folder.key).glob(".about.json.*.new"))) == 1
        assert [entry.key for entry in here.root.entries()] == [folder.key]
        assert here.root.used_bytes() >= here.catalog.sample_bytes.sum()
        folder.describe({"source": str(source)})
        assert not list((cache / folder.key).glob(".about.json.*"))


def test_a_dataset_that_is_removed_meanwhile_stops_nobody(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cached(source, cache) as here:
        here.fill()
        key = here.copies._folder.key
    root = Root(cache)
    entries, folders = root.entries(), root._folders()
    root.remove(key)
    monkeypatch.setattr(root, "_folders", lambda: folders)
    monkeypatch.setattr(root, "entries", lambda: entries)
    assert root.used_bytes() == 0
    assert [entry.key for entry in root.make_room(2, 1, "")] == [key]
    root.close()


def test_a_segment_without_its_bytes_does_not_count(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        here.files(".data")[0].unlink()
    with cached(source, cache) as here:
        assert here.copies.number == 0
        here.fill()
        assert here.copies.number == SAMPLES
        here.check_epoch()


def test_readers_go_on_if_no_thread_can_be_started(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(self: threading.Thread) -> None:  # noqa: ARG001 - as the other one
        raise RuntimeError("can't start new thread")

    with cached(source, cache) as here:
        monkeypatch.setattr(threading.Thread, "start", start)
        here.check_epoch()
        here.store.flush()
        assert not here.store.is_writing
        assert here.copies.number == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{cache}: no thread can be started: nothing more is kept in this cache"
    ]


def test_room_is_made_by_removing_what_was_used_longest_ago(source: Path, cache: Path, tmp_path: Path) -> None:
    sources = [source, *(tmp_path / f"source{number}" for number in range(2))]
    keys = []
    for number, place in enumerate(sources):
        if number:
            (place / "cat").mkdir(parents=True)
            (place / "cat/1.jpg").write_bytes(bytes(100_000 + number))
        with cached(place, cache) as here:
            here.fill()
            keys.append(here.copies._folder.key)
    with cached(sources[1], cache) as here:
        used = here.root.used_bytes()
        assert here.root.make_room(1000, used + 1000, keys[2]) == []
        # The first is removed; the second is in use, and now the one that was used last.
        assert [entry.key for entry in here.root.make_room(1000, used, keys[2])] == [keys[0]]
        assert here.root.make_room(used, used, keys[2]) == []
        here.check_epoch()
        assert {entry.key for entry in here.root.entries()} == set(keys[1:])


def test_what_is_found_damaged_by_verify_does_not_count(source: Path, cache: Path) -> None:
    with cached(source, cache) as here:
        here.fill()
        entry = here.catalog.tree.find(b"cat/0.jpg")
        path, at = here.place(entry)
        (known,) = here.root.entries()
    flip(path, at + (3 << 19))
    root = Root(cache)
    checked = verify(root, known.key, lambda *_: None)
    assert (checked.files, checked.damaged) == (SAMPLES, 1)
    checked = verify(root, known.key, lambda *_: None)
    assert (checked.files, checked.damaged) == (SAMPLES - 1, 0)
    root.close()
    with cached(source, cache) as here:
        assert here.copies.number == SAMPLES - 1
        assert not here.store.has(int(here.catalog.sample_of[entry]))
        here.check_epoch()


def test_a_warmup_that_is_interrupted_while_it_writes_the_last_samples_keeps_them(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cached(source, cache) as here:
        flushes: list[CacheStore] = []
        original = CacheStore.flush

        def flush(store: CacheStore) -> None:
            flushes.append(store)
            if len(flushes) == 1:
                raise KeyboardInterrupt
            original(store)

        monkeypatch.setattr(CacheStore, "flush", flush)
        dataset: Any = SimpleNamespace(catalog=here.catalog, cells=here.cells)
        with pytest.raises(KeyboardInterrupt):
            warmup._filled(dataset, here.store, 1)
        assert f"in the cache: {SAMPLES} of {SAMPLES} samples" in capsys.readouterr().err


def test_an_interrupted_warmup_keeps_what_was_read(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cached(source, cache) as here:
        copied: list[int] = []
        original = CacheStore.copy

        def copy(store: CacheStore, chunk: int, samples: Sequence[int]) -> list[OSError]:
            if len(copied) > SAMPLES // 2:
                raise KeyboardInterrupt
            copied.extend(samples)
            return original(store, chunk, samples)

        monkeypatch.setattr(CacheStore, "copy", copy)
        dataset: Any = SimpleNamespace(catalog=here.catalog, cells=here.cells)
        with pytest.raises(KeyboardInterrupt):
            warmup._filled(dataset, here.store, 1)
        assert f"in the cache: {len(copied)} of {SAMPLES} samples" in capsys.readouterr().err
    with cached(source, cache) as here:
        assert {sample for sample in all_samples(here) if here.store.has(sample)} == set(copied)
