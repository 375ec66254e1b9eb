"""A store and a policy that redoxfs does not know, made with nothing but the recipes of ARCHITECTURE.md.

As a program, this file is redoxfs with both: `t4_strangers.py mount …`.
"""

import codecs
import errno
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import t2_recover
import trio
from machine import Machine
from patience import completed

from redoxfs.arrays import Int32
from redoxfs.chunks import ChunkStore, FileBytes, Payload, Read, SourceFile, Stamp, open_beneath
from redoxfs.chunks.layout import Cells
from redoxfs.dataset import Catalog
from redoxfs.launch import source as sources
from redoxfs.launch.defaults import POLICIES, PolicyTraits
from redoxfs.launch.source import Dataset, Kind, Opening, Reading
from redoxfs.node.plan import PLANNERS, Plan, Planner, Share
from redoxfs.protocol import Load, Served, ServingPolicy
from redoxfs.protocol.events import oldest
from redoxfs.protocol.turns import Turns
from redoxfs.testing import StoreTests, Subject, layout_of, make_source

MARK = "is-rot13"


class Rot13File:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self.stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)

    def read(self, offset: int, size: int) -> bytes:
        return codecs.encode(os.pread(self._fd, size, offset).decode("latin-1"), "rot13").encode("latin-1")

    def close(self) -> None:
        os.close(self._fd)


class Rot13Store(ChunkStore):
    """Files whose letters lie rotated in the source."""

    depth = 4

    def __init__(self, catalog: Catalog, root_fd: int) -> None:
        self._catalog = catalog
        self._root_fd = root_fd

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:  # files have no chunk
        return [Read((sample,), partial(self._payloads, sample)) for sample in samples]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        opened = self.open_file(self._entries(sample)[file])
        try:
            if not stamp.is_of(opened.stamp):
                raise OSError(errno.ESTALE, "the file has changed")
            return opened.read(offset, size)
        finally:
            opened.close()

    def open_file(self, entry: int) -> SourceFile:
        return Rot13File(open_beneath(self._root_fd, self._catalog.tree.path(entry)))

    def _entries(self, sample: int) -> list[int]:
        at = self._catalog.member_at
        return self._catalog.members[at[sample] : at[sample + 1]].tolist()

    def _payloads(self, sample: int) -> Sequence[Payload]:
        return [tuple(map(self._whole, self._entries(sample)))]

    def _whole(self, entry: int) -> FileBytes | OSError:
        try:
            file = self.open_file(entry)
        except OSError as error:
            return error
        try:
            return FileBytes(file.read(0, file.stamp.size), file.stamp, changed=False)
        finally:
            file.close()


def is_rot13(opening: Opening) -> bool:
    return MARK in os.listdir(opening.root_fd)


def open_rot13(opening: Opening) -> Dataset:
    catalog = sources.catalog_of(opening.source, opening.root_fd, opening.options, timeout_s=opening.timeout_s)
    return Dataset(catalog, sources.cells_of(catalog, 8, opening.options.seed), opening.root_fd, None, None)


def rot13_store(dataset: Dataset, reading: Reading) -> ChunkStore:
    del reading
    return Rot13Store(dataset.catalog, dataset.root_fd)


class Deck(ServingPolicy):
    """Deals the samples of each class as from a shuffled deck, and reads each when it is dealt."""

    def __init__(self, cells: Int32, class_of: Int32, *, seed: int) -> None:
        self.choose_victim = oldest
        self._class_of = class_of
        chunks, slots = np.nonzero(cells >= 0)
        self._chunk_of = np.empty(len(class_of), np.int32)
        self._chunk_of[cells[chunks, slots]] = chunks
        self._lap = np.ones(int(class_of.max(initial=-1)) + 1, np.int32)
        self._had = np.zeros(len(class_of), np.bool_)
        self._reserved: list[int] = []
        self._given = 0
        self._random = np.random.default_rng(seed)

    def request(self, sample: int) -> Served:
        left = self._left(sample)
        reserved = [*self.reserved(sample)]
        if not len(left) and reserved:
            victim = self.choose_victim(reserved)
            self._reserved.remove(victim)
            return self._turn(victim, preempted=True)
        return self._turn(self._one_of(left, sample))

    def reserve(self, sample: int) -> int | None:
        left = self._left(sample)
        if not len(left) and [*self.reserved(sample)]:
            return None
        chosen = self._one_of(left, sample)
        self._reserved.append(chosen)
        return chosen

    def take(self, reserved: int, path: int = -1) -> Served:
        self._reserved.remove(reserved)
        return self._turn(reserved)

    def put_back(self, reserved: int) -> bool:
        self._reserved.remove(reserved)
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        return [each for each in self._reserved if self._class_of[each] == self._class_of[sample]]

    def reserve_again(self, sample: int) -> None:
        self._reserved.append(sample)

    @property
    def units(self) -> Int32:
        return self._class_of

    def members(self, unit: int, /) -> Int32:
        return np.flatnonzero(self._class_of == unit).astype(np.int32)

    @property
    def given(self) -> int:
        return self._given

    def turns(self) -> Turns:
        return Turns(self._lap.copy(), np.packbits(self._had), self._given)

    def restore(self, turns: Turns) -> None:
        self._had = turns.flags(len(self._lap), len(self._had)).astype(np.bool_)
        self._lap[:] = turns.laps
        self._given = turns.given
        self._reserved.clear()
        if self._progress is not None:
            self._progress.count_again()

    def lap_of(self, sample: int) -> int:
        return int(self._lap[self._class_of[sample]])

    def laps_of_units(self) -> Int32:
        return self._lap

    def chunk_of(self, sample: int) -> int:
        return int(self._chunk_of[sample])

    def _left(self, sample: int) -> Int32:
        members = self.members(int(self._class_of[sample]))
        return members[~self._had[members] & ~np.isin(members, self._reserved)]

    def _one_of(self, left: Int32, sample: int) -> int:
        if not len(left):
            cls = int(self._class_of[sample])
            left = self.members(cls)
            self._had[left] = False
            self._lap[cls] += 1
        return int(self._random.choice(left))

    def _turn(self, sample: int, *, preempted: bool = False) -> Served:
        self._had[sample] = True
        self._given += 1
        if self._progress is not None:
            self._progress.note(int(self._class_of[sample]), self.lap_of(sample))
        return Served(sample, (Load(self.chunk_of(sample), (sample,)),), preempted)


def plan_deck(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int, share: Share | None = None) -> Plan:
    assert share is None
    policy = Deck(cells.cells, np.ascontiguousarray(catalog.class_of), seed=seed)
    policy.count_laps(catalog.tree_of_class[catalog.class_of], len(catalog.class_trees))
    units, lapping = np.unique(catalog.class_of, return_index=True)
    return Plan(
        policy=policy,
        memory_bytes=memory_bytes,
        resident_bytes=0,
        lapping=lapping,
        units=units,
        held_share=0.0,
        about={"policy": "deck", "chunks": len(cells.cells), "chunk_size": cells.chunk_size},
    )


def memory_for_deck(catalog: Catalog, cells: Cells, share: float) -> int:
    del cells, share
    return int(catalog.sample_bytes.sum())


DECK = Planner(plan_deck, memory_for_deck)


class TestRot13Store(StoreTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        source = make_source(tmp_path)
        catalog, cells = layout_of(source)

        def path_of(entry: int) -> Path:
            return source / os.fsdecode(catalog.tree.path(entry))

        @contextmanager
        def unreadable(sample: int) -> Iterator[None]:
            path = path_of(int(catalog.members[catalog.member_at[sample]]))
            hidden = path.rename(path.with_name("hidden"))
            yield
            hidden.rename(path)

        def content(entry: int) -> bytes:
            return rotated(path_of(entry).read_bytes())

        fd = os.open(source, os.O_RDONLY)
        yield Subject(Rot13Store(catalog, fd), catalog, cells, content, unreadable)
        os.close(fd)


def rotated(data: bytes) -> bytes:
    return codecs.encode(data.decode("latin-1"), "rot13").encode("latin-1")


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_of_somebody_else_goes_on_over_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setitem(PLANNERS, "deck", DECK)

    async def main(dataset: t2_recover.Dataset) -> None:
        random = np.random.default_rng(seed)
        mount = t2_recover.mounted(dataset, "deck", lives=t2_recover.lives_of(random, 60))
        programs = t2_recover.Programs(mount, dataset.catalog, random)
        for number in range(1, 4):
            served = await programs.epoch(number)
            assert set(served.values()) == {1}
            assert len(served) == len(dataset.catalog.class_of)
        mount.end()
        assert mount.deaths > 5

    with t2_recover.directory(tmp_path / "source") as dataset:
        trio.run(main, dataset)


def test_a_store_and_a_policy_of_somebody_else_mount_and_resume(machine: Machine, tmp_path: Path) -> None:
    contents = {f"{label}/{number}.txt": f"{label} {number}" for label in ("cat", "dog") for number in range(6)}
    source = tmp_path / "source"
    for name, content in contents.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(rotated(content.encode()))
    (source / MARK).touch()
    paths = [machine.mnt / name for name in contents]
    served: Counter[str] = Counter()
    for half, options in ((paths[::2], ()), (paths[1::2], ("--resume",))):
        mount = ("mount", source, machine.mnt, "--classes", "dir", "--policy", "deck", "--no-keeper", *options)
        command = [sys.executable, __file__, *map(str, mount)]
        done = completed(command, env=machine.environment)
        assert done.returncode == 0, done.stderr
        served.update(path.read_text() for path in half)
        assert machine.stats()["policy"] == "deck"
        machine.ok("umount", machine.mnt)
    assert served == Counter(contents.values())


def register() -> None:
    """Add both to redoxfs, as the recipes say."""
    rest = dict(sources.KINDS)
    sources.KINDS.clear()
    sources.KINDS.update({"rot13": Kind(is_rot13, open_rot13, rot13_store), **rest})
    POLICIES["deck"] = PolicyTraits(streams=True)
    PLANNERS["deck"] = DECK


if __name__ == "__main__":
    from redoxfs.cli import main

    register()
    sys.exit(main(sys.argv[1:]))
