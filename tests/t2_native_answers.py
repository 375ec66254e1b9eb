"""The session in C gives the answers of pyfuse3: the same requests to both, over equal nodes, compared byte by byte.

Not compared, because only one of the two defines it:

- INIT, and the handle and flags of OPENDIR, which the session chooses;
- the numbers of handles, which depend on the order in which storage answers;
- READDIR, which pyfuse3 refuses. It must have the names, numbers and positions of the tree.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import trio
import wire
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from reference import Mounted, Reference
from served import serving
from wire import Device, Opcode, Reply, Request

from redoxfs.dataset import Catalog
from redoxfs.fs.inodes import CONTROL_INODE, STATS_INODE, Branch, branch_and_entry, inode_of

T = TypeVar("T")

SIZES = (0, 1, 17, 1000, 5000, 200_000)
THREADS = (0, 11, 12, 13)
ROOM = (512, 4096, 32_768)
"""The bytes that a program offers for names."""

TREES = (Branch.DATA, Branch.EXACT, Branch.SERVED)


# Datasets


class Folder(NamedTuple):
    """A class: its name, and the stem and size of each image. A caption beside an image joins its group."""

    name: bytes
    images: tuple[tuple[bytes, int], ...]
    captions: int


names = st.one_of(
    st.sampled_from([b"a", b"b", b"0", b".hidden", b"\xff\xfe", b"new\nline", b"x" * 240, b".redoxfs"]),
    st.binary(min_size=1, max_size=12),
).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))

folders = st.builds(
    Folder,
    names,
    st.lists(st.tuples(names, st.sampled_from(SIZES)), min_size=1, max_size=6, unique_by=lambda image: image[0]).map(
        tuple
    ),
    st.integers(0, 3),
)


@dataclass(frozen=True)
class Dataset:
    """What lies in a source directory."""

    folders: tuple[Folder, ...]
    plain: tuple[tuple[bytes, int], ...]  # files of no class
    links: tuple[bytes, ...]

    def make(self, root: bytes) -> None:
        for folder in self.folders:
            path = os.path.join(root, folder.name)
            os.makedirs(path, exist_ok=True)
            for number, (stem, size) in enumerate(folder.images):
                write(os.path.join(path, stem + b".jpg"), stem, size)
                if number < folder.captions:
                    write(os.path.join(path, stem + b".txt"), stem, size // 3)
        for name, size in self.plain:
            write(os.path.join(root, name + b".md"), name, size)
        for number, target in enumerate(self.links):
            os.symlink(target, os.path.join(root, b"link%d" % number))


def write(path: bytes, stem: bytes, size: int) -> None:
    """A file whose bytes tell it from all others."""
    filler = stem + str(size).encode() + b"|"
    Path(os.fsdecode(path)).write_bytes((filler * (size // len(filler) + 1))[:size])


datasets = st.builds(
    Dataset,
    st.lists(folders, min_size=1, max_size=4, unique_by=lambda folder: folder.name).map(tuple),
    st.lists(st.tuples(names, st.sampled_from(SIZES)), max_size=3, unique_by=lambda file: file[0]).map(tuple),
    st.lists(st.sampled_from([b"a", b"missing", b"\xff" * 200]), max_size=2).map(tuple),
)


# Requests


class Step(NamedTuple):
    """A drawn request. Its numbers choose among what there is, modulo how much there is."""

    action: str
    thread: int
    one: int
    two: int
    three: int


ACTIONS = (
    *("open", "open", "open", "open several", "hand over", "open exact", "open text", "open stats"),
    *("read", "read", "read", "release", "release", "fstat", "getattr", "getattr", "getattr any"),
    *("lookup", "lookup", "lookup odd", "opendir", "readdirplus", "readdirplus", "readdir", "readlink"),
    *("statfs", "getxattr", "flush", "access", "unknown", "forget", "batch forget", "interrupt", "change"),
)

numbers = st.integers(0, 1 << 16)
one_step = st.builds(Step, st.sampled_from(ACTIONS), st.sampled_from(THREADS), numbers, numbers, numbers)
# Of all lengths: lists as they come are mostly of two or three steps.
sequences = st.integers(0, 60).flatmap(lambda length: st.lists(one_step, min_size=length, max_size=length))


class Handle(NamedTuple):
    """An open file, and its number on both sides."""

    inode: int
    of_reference: int
    of_session: int


class Comparison:
    """Sends each request to both sides, waits for both answers, and compares them."""

    def __init__(self, catalog: Catalog, root: str, reference: Device, session: Device) -> None:
        self._tree = tree = catalog.tree
        self._sample_of = catalog.sample_of
        self._root = os.fsencode(root)
        self._reference, self._session = reference, session
        every = range(len(tree))
        self._folders = [entry for entry in every if tree.is_dir(entry)]
        self._links = [entry for entry in every if stat.S_ISLNK(int(tree.mode[entry]))]
        self._files = [entry for entry in every if stat.S_ISREG(int(tree.mode[entry]))]
        self._samples = [entry for entry in self._files if catalog.sample_of[entry] >= 0]
        self._plain = [entry for entry in self._files if catalog.sample_of[entry] < 0]
        self._handles: list[Handle] = []
        self._changed: set[int] = set()
        # The name after the last one of a listing. pyfuse3 notes its size as known to the kernel, and drops it then.
        self._cut_off: set[int] = set()

    async def begin(self) -> None:
        for reply in await self._ask(wire.init()):
            assert wire.parse_init(reply.body).major == 7

    async def take(self, step: Step) -> None:
        await getattr(self, step.action.replace(" ", "_"))(step)

    async def end(self) -> None:
        """Release everything, and compare what both told the kernel unasked, in its order."""
        while self._handles:
            await self._release_last()
        await self._same(wire.statfs())
        of_reference, of_session = (self._voided(device) for device in self._both)
        assert [inode for inode, attributes in of_session if not attributes] == [
            inode for inode, attributes in of_reference if not attributes
        ]
        # The session may make attributes void that the kernel does not have, but must not leave any out.
        rest = iter(of_session)
        assert all(void in rest for void in of_reference), (of_reference, of_session)

    def _voided(self, device: Device) -> list[tuple[int, bool]]:
        """The inodes that were made void, and whether that were their attributes alone."""
        late = device.waiting()
        assert all(reply.is_notice for reply in late), late
        voided = [wire.parse_voided(notice) for notice in (*device.notices, *late)]
        return [(inode, attributes) for inode, attributes in voided if not attributes or inode not in self._cut_off]

    # Files

    async def open(self, step: Step) -> None:
        await self._open(Branch.DATA, [self._file(step)], step.thread)

    async def open_exact(self, step: Step) -> None:
        await self._open(Branch.EXACT, [pick(self._files, step.one)], step.thread)

    async def open_text(self, step: Step) -> None:
        await self._open(Branch.SERVED, [pick(self._files, step.one)], step.thread)

    async def open_stats(self, step: Step) -> None:
        await self._opened([STATS_INODE], [step.thread])

    async def open_several(self, step: Step) -> None:
        """They are received at once, so several wait at the same time. Threads open plain files, in any order."""
        entries = [pick(self._samples, step.one + number * step.two) for number in range(2 + step.three % 5)]
        await self._open(Branch.DATA, entries, step.thread)

    async def hand_over(self, step: Step) -> None:
        """A thread that has a file open stats another thread's, and opens that one when it is closed."""
        one, other = pick(self._samples, step.one), pick(self._samples, step.two)
        if one is None or other is None:
            return
        first, second = THREADS[1 + step.three % 2], THREADS[3]
        await self._open(Branch.DATA, [other], second)
        await self._open(Branch.DATA, [one], first)
        await self._same(wire.getattr_(inode_of(Branch.DATA, one)), second)
        await self._release_last()
        await self._open(Branch.DATA, [one], second)
        handle = self._handles[-1]
        await self._same_of(handle, lambda number: wire.read(handle.inode, number, 0, 1 << 17))

    async def read(self, step: Step) -> None:
        handle = pick(self._handles, step.one)
        if handle is not None:
            offset = (0, step.two, step.two * 64)[step.three % 3]
            size = (1 << 17, 4096, step.three)[step.two % 3]
            await self._same_of(handle, lambda number: wire.read(handle.inode, number, offset, size))

    async def release(self, step: Step) -> None:
        if self._handles:
            self._handles.append(self._handles.pop(step.one % len(self._handles)))
            await self._release_last()

    async def flush(self, step: Step) -> None:
        handle = pick(self._handles, step.one)
        if handle is not None:
            await self._same_of(handle, lambda number: wire.flush(handle.inode, number))

    # Attributes and names

    async def fstat(self, step: Step) -> None:
        handle = pick(self._handles, step.one)
        if handle is not None:
            await self._same_of(handle, lambda number: wire.getattr_(handle.inode, number), step.thread)

    async def getattr(self, step: Step) -> None:
        entry = self._file(step)
        if entry is not None:
            await self._same(wire.getattr_(inode_of(Branch.DATA, entry)), step.thread)

    async def getattr_any(self, step: Step) -> None:
        entry = step.one % len(self._tree)
        inodes = [*(inode_of(branch, entry) for branch in TREES), CONTROL_INODE, STATS_INODE]
        await self._same(wire.getattr_(inodes[step.two % len(inodes)]), step.thread)

    async def lookup(self, step: Step) -> None:
        child = step.one % len(self._tree)
        parent = inode_of(TREES[step.two % len(TREES)], int(self._tree.parent[child]))
        await self._same(wire.lookup(parent, self._tree.name(child) or b"missing"), step.thread)

    async def lookup_odd(self, step: Step) -> None:
        own = self._tree.name(step.two % len(self._tree))
        names = [b".redoxfs", b"missing", b"m" * 255, b"stats.json", b"exact", b"served", own[:-1] or b"m", own + b"m"]
        await self._same(wire.lookup(self._folder(step), names[step.three % len(names)]), step.thread)

    async def readlink(self, step: Step) -> None:
        entry = pick(self._links, step.one)
        if entry is not None:
            await self._same(wire.readlink(inode_of(TREES[step.two % 2], entry)))

    # Directories

    async def opendir(self, step: Step) -> None:
        for reply in await self._ask(wire.opendir(self._folder(step)), step.thread):
            assert reply.error in (0, errno.ENOSYS)
            assert reply.error or wire.parse_opened(reply.body)

    async def readdirplus(self, step: Step) -> None:
        """The session may end a reply before a file that has changed since the scan. Then the next one goes on."""
        inode = self._folder(step)
        start, room = self._part(step)
        reference, session = await self._ask(wire.readdirplus(inode, inode, start, room), step.thread)
        assert session.error == reference.error == 0
        listed = session.body
        while session.body and len(listed) < len(reference.body):
            *_, last = wire.parse_dirents(listed, plus=True)
            rest = wire.readdirplus(inode, inode, last.offset, len(reference.body) - len(listed))
            session = await answer(self._session, self._session.send(rest, step.thread))
            listed += session.body
        names = list(wire.parse_dirents(reference.body, plus=True))
        assert list(wire.parse_dirents(listed, plus=True)) == names
        branch, entry = branch_and_entry(inode)
        if branch is Branch.DATA:
            after = self._tree.children_of(entry)[start + len(names) :]
            self._cut_off.update(inode_of(branch, child) for child in after[:1])

    async def readdir(self, step: Step) -> None:
        tree, branch = self._tree, TREES[step.two % 2]
        entry = self._folders[step.one % len(self._folders)]
        start, room = self._part(step)
        request = wire.readdir(inode_of(branch, entry), inode_of(branch, entry), start, room)
        reply = await answer(self._session, self._session.send(request, step.thread))
        children = tree.children_of(entry)[start:]
        # What comes from a changed file on is pyfuse3's to list, and it refuses. The kernel does not send READDIR.
        listed = [] if reply.error else list(wire.parse_dirents(reply.body, plus=False))
        following = children[len(listed) :][:1]
        if following and following[0] not in self._changed:
            assert not reply.error
            assert len(reply.body) + wire.dirent_bytes(tree.name(following[0])) > room
        assert len(reply.body) <= room
        assert listed == [
            wire.Dirent(inode_of(branch, child), at, stat.S_IFMT(int(tree.mode[child])) >> 12, tree.name(child), None)
            for at, child in enumerate(children[: len(listed)], start + 1)
        ]

    # The rest

    async def statfs(self, step: Step) -> None:
        await self._same(wire.statfs(self._folder(step)), step.thread)

    async def getxattr(self, step: Step) -> None:
        inode = inode_of(TREES[step.two % 2], step.one % len(self._tree))
        await self._same(wire.getxattr(inode, b"security.capability", step.three), step.thread)

    async def access(self, step: Step) -> None:
        await self._same(wire.access(inode_of(TREES[step.two % 2], step.one % len(self._tree))), step.thread)

    async def unknown(self, step: Step) -> None:
        opcodes = (Opcode.LSEEK, Opcode.STATX, 51, 99, 9999)
        await self._same(Request(opcodes[step.one % len(opcodes)], 1, bytes(step.two % 200)))

    async def forget(self, step: Step) -> None:
        self._send(wire.forget(1 + step.one % len(self._tree), step.two))

    async def batch_forget(self, step: Step) -> None:
        self._send(wire.batch_forget([(1 + step.one % len(self._tree), step.two)] * (step.three % 9)))

    async def interrupt(self, step: Step) -> None:
        """Of a request that has its answer: interrupts may come too late."""
        for device in self._both:
            device.interrupt(2 * step.one)

    async def change(self, step: Step) -> None:
        """A file of no sample grows. Both sides notice when they open it."""
        entry = pick(self._plain, step.one)
        if entry is not None:
            with open(os.path.join(self._root, self._tree.path(entry)), "ab") as file:
                file.write(b"longer")
            self._changed.add(entry)

    # Both sides

    async def _open(self, branch: Branch, entries: Sequence[int | None], thread: int) -> None:
        inodes = [inode_of(branch, entry) for entry in entries if entry is not None]
        start = THREADS.index(thread)
        await self._opened(inodes, [THREADS[(start + number) % len(THREADS)] for number in range(len(inodes))])

    async def _opened(self, inodes: Sequence[int], threads: Sequence[int]) -> None:
        """Send opens at once. Handles are not compared: their numbers depend on which open is done first."""
        sent = [
            [device.send(wire.open_(inode), thread) for device in self._both]
            for inode, thread in zip(inodes, threads, strict=True)
        ]
        for inode, uniques in zip(inodes, sent, strict=True):
            replies = [await answer(device, unique) for device, unique in zip(self._both, uniques, strict=True)]
            assert replies[1].error == replies[0].error
            if not replies[0].error:
                of_reference, of_session = (wire.parse_opened(reply.body) for reply in replies)
                assert of_session.flags == of_reference.flags
                self._handles.append(Handle(inode, of_reference.handle, of_session.handle))

    async def _release_last(self) -> None:
        handle = self._handles.pop()
        await self._same_of(handle, lambda number: wire.release(handle.inode, number))

    def _file(self, step: Step) -> int | None:
        """A file; often one that is open, since its answer depends on who asks."""
        open_ones = [inode - 1 for inode, *_ in self._handles if branch_and_entry(inode)[0] is Branch.DATA]
        return pick(open_ones if open_ones and step.two % 2 else self._files, step.one)

    def _folder(self, step: Step) -> int:
        """The inode of a directory, in any branch."""
        branch, entry = pick([*TREES, Branch.CONTROL], step.two), pick(self._folders, step.one)
        assert branch is not None
        assert entry is not None
        return CONTROL_INODE if branch is Branch.CONTROL else inode_of(branch, entry)

    def _part(self, step: Step) -> tuple[int, int]:
        """Where a listing begins, and the room for it."""
        return (step.two % 8 if step.three % 2 else 0), ROOM[step.three % len(ROOM)]

    @property
    def _both(self) -> tuple[Device, Device]:
        return self._reference, self._session

    def _send(self, request: Request) -> None:
        for device in self._both:
            device.send(request)

    async def _ask(self, request: Request, thread: int = 0) -> tuple[Reply, Reply]:
        uniques = [device.send(request, thread) for device in self._both]
        return await answer(self._reference, uniques[0]), await answer(self._session, uniques[1])

    async def _same(self, request: Request, thread: int = 0) -> tuple[Reply, Reply]:
        reference, session = await self._ask(request, thread)
        assert (session.error, session.body) == (reference.error, reference.body)
        return reference, session

    async def _same_of(self, handle: Handle, request: Callable[[int], Request], thread: int = 0) -> None:
        uniques = (
            self._reference.send(request(handle.of_reference), thread),
            self._session.send(request(handle.of_session), thread),
        )
        reference, session = [await answer(device, unique) for device, unique in zip(self._both, uniques, strict=True)]
        assert (session.error, session.body) == (reference.error, reference.body)


def pick(choices: Sequence[T], number: int) -> T | None:
    return choices[number % len(choices)] if choices else None


async def answer(device: Device, unique: int) -> Reply:
    with trio.fail_after(PATIENCE_S):
        while (reply := device.reply_now(unique)) is None:
            await trio.lowlevel.wait_readable(device.kernel_fd)
    return reply


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with Reference() as reference:
        yield reference


@pytest.mark.slow
@given(
    dataset=datasets,
    steps=sequences,
    chunk_size=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 3),
    grouped=st.booleans(),
    direct_io=st.booleans(),
)
def test_the_session_gives_the_answers_of_pyfuse3(
    reference: Reference,
    dataset: Dataset,
    steps: list[Step],
    chunk_size: int,
    share: float,
    seed: int,
    grouped: bool,
    direct_io: bool,
) -> None:
    async def main(mounted: Mounted, of_reference: Device, of_session: Device) -> None:
        async with serving(mounted, of_session) as catalog:
            comparison = Comparison(catalog, mounted.root, of_reference, of_session)
            await comparison.begin()
            for step in steps:
                await comparison.take(step)
            await comparison.end()

    with tempfile.TemporaryDirectory() as root, Device() as of_reference, Device() as of_session:
        dataset.make(os.fsencode(root))
        mounted = Mounted(root, chunk_size, share, seed, grouped, direct_io)
        with reference.serving(mounted, of_reference.fd):
            trio.run(main, mounted, of_reference, of_session)
