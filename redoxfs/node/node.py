"""One running node: turns the core's decisions into reads, and holds the bytes between storage and reader.

The way of an open: who calls (`threads`) → what the open means (`protocol.binding`, `protocol.slot`) → what has to
be read (`loader`, on worker threads) → whose bytes they are (`memory`) → a handle. All state is touched by one
trio task at a time, and nothing between a decision and its bookkeeping awaits, so there is not one lock here. An
open of a sample that is in memory returns without yielding to the event loop.

The filesystem above calls this with entries of the tree; it knows nothing of samples. Errors leave as OSError,
`trio.TooSlowError` (deadline) or `TooManyWaitingError`.
"""

import errno
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import trio

from redoxfs.chunks import ChunkStore, FileBytes, Read
from redoxfs.chunks.store import Payload, Stamp
from redoxfs.dataset import Catalog
from redoxfs.node.counters import Counters
from redoxfs.node.exact import ExactFile, ExactFiles
from redoxfs.node.loader import Loader
from redoxfs.node.memory import Content, Memory
from redoxfs.node.plan import Plan
from redoxfs.node.threads import Threads
from redoxfs.node.waits import WAITING_OPENS, WAITING_READS, Waits
from redoxfs.protocol import Binding, Closed, Load, Opened, Served

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Handle:
    """An open file of a sample: ``path`` is the sample that was asked for, ``content`` what answers."""

    path: int
    file: int
    content: Content


@dataclass(slots=True)
class OpenFile:
    """``handle`` is for `read` and `close`. ``shares_pages``: the handle may read and fill the kernel's pages of the
    path; ``keep_pages``: those that there are now are right."""

    handle: int
    keep_pages: bool
    shares_pages: bool = True


class Kernel(Protocol):
    """Who has cached attributes and pages of files, and is told when they are no longer right."""

    def bound(self, entries: Sequence[int]) -> None:
        """Files got an answer: sizes that are on their way to somebody who asked before must not count."""

    def freed(self, entries: Sequence[int]) -> None:
        """Files have no answer any more: attributes and pages are void. No handle on them is open."""

    def changed(self, entry: int) -> None:
        """A file that is served as it is was found changed: its attributes are void."""


class Node:
    """Serves the files of one catalog, from `start` to `stop`.

    Args:
        plan: the policy, and the memory.
        timeout_s: the deadline of every wait for storage.
        kernel: is told when what it caches is no longer right.
    """

    def __init__(
        self,
        catalog: Catalog,
        plan: Plan,
        store: ChunkStore,
        *,
        timeout_s: float,
        kernel: Kernel,
        threads: Threads | None = None,
    ) -> None:
        self._catalog = catalog
        self._tree = catalog.tree
        # Views of the buffers give plain ints at a third of numpy's price.
        self._sample_of: memoryview[int] = catalog.sample_of.data
        self._member_of: memoryview[int] = catalog.member_of.data
        self._members: memoryview[int] = catalog.members.data
        self._tree_size: memoryview[int] = catalog.tree.size.data
        self._member_at: memoryview[int] = catalog.member_at.data
        self._store = store
        self._kernel = kernel
        self._plan = plan
        self._policy = plan.policy
        self._binding = Binding(self._policy, np.diff(catalog.member_at))
        self._memory = Memory(plan.memory_bytes - plan.resident_bytes)
        self._threads = threads or Threads()
        self._opens = Waits(WAITING_OPENS, timeout_s)
        self._reads = Waits(WAITING_READS, timeout_s)
        self._exact = ExactFiles(catalog.tree, store, self._opens, self._reads)
        self._rereads = trio.CapacityLimiter(WAITING_READS)
        self._loader: Loader | None = None
        self._expected: dict[Read, list[Content]] = {}
        self._changed_size: dict[int, int] = {}
        self._handles: dict[int, Handle | ExactFile] = {}
        self._next_handle = 1
        self.counters = Counters()

    def start(self) -> None:
        """Start the reading threads; from a trio task."""
        self._loader = Loader(self._arrived, threads=self._store.depth)

    def stop(self) -> None:
        """End the reading threads and close what is open."""
        if self._loader is not None:
            self._loader.close()
        for handle in self._handles.values():
            if isinstance(handle, ExactFile):
                self._exact.close(handle)
        self._handles.clear()

    def is_redirected(self, entry: int) -> bool:
        return self._sample_of[entry] >= 0

    # Files of samples

    def open(self, entry: int, thread: int) -> OpenFile | Coroutine[Any, Any, OpenFile]:
        """Open a file; if it belongs to a sample, any sample of its class may answer.

        The open file if its bytes are here; else what to await for it.
        """
        path, file = self._sample_of[entry], self._member_of[entry]
        if path < 0:
            return self.open_exact(entry)
        self._meet(thread, path)
        self.counters.opens += 1
        opened = self._binding.open(path, file, thread)
        try:
            content = self._content(path, file, opened)
        except BaseException as error:
            self._failed(path, thread, entry, opened.sample, error)
            raise
        if content.arrived:
            return self._opened(path, file, content, keep_pages=not opened.fresh)
        return self._open_late(entry, thread, content, keep_pages=not opened.fresh)

    def _content(self, path: int, file: int, opened: Opened) -> Content:
        """The bytes of an open's answer, here or on their way."""
        sample, turn = opened.sample, opened.turn
        for gone in opened.released:
            self._memory.release(gone)
        if turn is None:
            self.counters.joined += 1
            content = self._memory.claimed(path)
        else:
            self._kernel.bound(self._files_of(path))
            content = self._take_turn(path, turn)
            self.counters.reservations_taken += turn.stolen
        if content is None or (content.arrived and content.stamps[file] is None):
            return self._read_again(path, sample)
        if not content.arrived and (turn is None or not turn.is_demanded):
            self.counters.in_flight_waits += 1
            if content.read is not None and self._loader is not None:
                self._loader.hasten(content.read)
        return content

    async def _open_late(self, entry: int, thread: int, content: Content, *, keep_pages: bool) -> OpenFile:
        path, file = self._sample_of[entry], self._member_of[entry]
        try:
            with self._opens.one():
                await content.wait()
            problem = content.files[file]
            if isinstance(problem, OSError):
                raise OSError(errno.EIO, str(problem)) from problem
        except BaseException as error:
            self._failed(path, thread, entry, content.sample, error)
            raise
        return self._opened(path, file, content, keep_pages=keep_pages)

    def _opened(self, path: int, file: int, content: Content, *, keep_pages: bool) -> OpenFile:
        if content.sample == path:
            self.counters.exact += 1
        else:
            self.counters.redirected += 1
        return OpenFile(self._keep(Handle(path, file, content)), keep_pages)

    def stat(self, entry: int, thread: int) -> tuple[int, bool]:
        """Size in bytes of what ``thread`` would read from a file, and whether that is good until it is void."""
        path, file = self._sample_of[entry], self._member_of[entry]
        if path < 0:
            return self._exact.told(entry).size, True
        stamp = self._bound_stamp(path, file)
        if stamp is not None and self._binding.holds(thread, path):
            # A reader asks for the size of what it has just opened: there is nothing new in that.
            return stamp.size, True
        self._meet(thread, path)
        told = self._binding.stat(path, file, thread)
        for sample in told.unloaded:
            self._memory.forget(sample)
        if told.reserved and told.sample is not None:
            self._memory.put_aside(told.sample)
        if stamp is not None:
            return stamp.size, True
        return self._size(entry if told.sample is None else self._file_of(told.sample, file)), False

    def look(self, entry: int) -> tuple[int, bool]:
        """What `stat` says while a file is bound, else its own size; on nobody's behalf, changing nothing."""
        path, file = self._sample_of[entry], self._member_of[entry]
        stamp = self._bound_stamp(path, file)
        return (self._size(entry), False) if stamp is None else (stamp.size, True)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview | Coroutine[Any, Any, bytes | memoryview]:
        """At most ``size`` bytes from ``offset`` of an open file; what to await for them if they are not here."""
        opened = self._handles[handle]
        if isinstance(opened, ExactFile):
            return self._read_late(self._exact.read(opened, offset, size))
        file = opened.content.files[opened.file]
        if not isinstance(file, FileBytes):
            return self._read_late(self._read_by_position(opened, offset, size))
        data = file.data
        if offset or size < len(data):
            part = memoryview(data)[offset : offset + size]
            self.counters.bytes_served += len(part)
            return part
        self.counters.bytes_served += len(data)
        return data

    async def _read_late(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        try:
            data = await reading
        except BaseException as error:
            self.counters.errors += 1
            if isinstance(error, Exception):
                log.warning("a read failed: %s", error or type(error).__name__)
            raise
        self.counters.bytes_read += len(data)
        self.counters.bytes_served += len(data)
        return data

    def close(self, handle: int) -> None:
        opened = self._handles.pop(handle)
        if isinstance(opened, ExactFile):
            if self._exact.close(opened):
                self._kernel.changed(opened.entry)
        else:
            self._closed(opened.path, self._binding.close(opened.path))

    def served(self, entry: int) -> bytes:
        """The path, relative to the source, of the file whose bytes ``entry`` last gave; empty before that."""
        path = self._sample_of[entry]
        if path < 0:
            return self._tree.path(entry)
        answer = self._binding.answer(path)
        if answer is None:
            return b""
        return self._tree.path(self._file_of(answer, self._member_of[entry]))

    # Files as they are

    async def open_exact(self, entry: int) -> OpenFile:
        """Open the very file."""
        self.counters.opens += 1
        try:
            file, keep_pages = await self._exact.open(entry)
        except BaseException:
            self.counters.errors += 1
            raise
        self.counters.exact += 1
        handle = self._keep(file)
        if not keep_pages:
            self._kernel.changed(entry)
        return OpenFile(handle, keep_pages, file.shares_pages)

    def exact_state(self, entry: int) -> Stamp:
        """What to tell of the very file."""
        return self._exact.told(entry)

    def is_as_scanned(self, entry: int) -> bool:
        """Whether `exact_state` is what the tree says."""
        return self._exact.is_as_scanned(entry)

    # Counts

    def stats(self) -> dict[str, Any]:
        """Everything that `stats.json` says of the node."""
        catalog = self._catalog
        laps = np.full(len(catalog.class_trees), np.iinfo(np.int32).max, np.int32)
        lapping = self._plan.lapping
        np.minimum.at(laps, catalog.tree_of_class[catalog.class_of[lapping]], self._policy.laps(lapping))
        return {
            **self._plan.about,
            "samples": len(catalog.class_of),
            "classes": len(catalog.class_names),
            "memory_limit_bytes": self._plan.memory_bytes,
            "memory_used_bytes": self._memory.slots_bytes + self._memory.claims_bytes,
            **self.counters.as_dict(),
            "wait_seconds": round(self._opens.seconds + self._reads.seconds, 6),
            "changed": len(self._changed_size.keys() | self._exact.changed()),
            "lap": dict(zip(catalog.class_trees, laps.tolist(), strict=True)),
            "open_files": len(self._handles),
            "waiting_opens": self._opens.now,
            "waiting_reads": self._reads.now,
            **self._binding.counts(),
            **self._memory.counts(),
        }

    # Turns and reads

    def _take_turn(self, path: int, turn: Served) -> Content | None:
        if turn.loads:
            awaited = turn.is_demanded
            self.counters.demand_loads += awaited
            for load in turn.loads:
                self._load(load, awaited=awaited)
                awaited = False
        return self._memory.claim(path, turn.sample)

    def _load(self, load: Load, *, awaited: bool) -> None:
        self.counters.chunk_loads += 1
        self.counters.samples_loaded += len(load.samples)
        reads = self._store.reads(load.chunk, load.samples)
        self._submit(reads, self._memory.expect(load.samples), awaited=awaited)

    def _read_again(self, path: int, sample: int) -> Content:
        """Bytes that were dropped, or a read that had failed before this open: read them for the path alone."""
        self.counters.samples_reread += 1
        content = self._memory.expect_for(path, sample)
        self._submit(self._store.reads(self._policy.chunk_of(sample), (sample,)), [content], awaited=True)
        return content

    def _submit(self, reads: Sequence[Read], contents: Sequence[Content], *, awaited: bool) -> None:
        assert self._loader is not None
        of_sample = {content.sample: content for content in contents}
        for read in reads:
            self._expected[read] = [of_sample[sample] for sample in read.samples]
            for content in self._expected[read]:
                content.read = read
        self._loader.submit(reads, awaited=awaited)

    def _arrived(self, read: Read, payloads: Sequence[Payload]) -> None:
        for number, content in enumerate(self._expected.pop(read)):
            entries = self._files_of(content.sample)
            payload: Payload = payloads[number] if number < len(payloads) else ()
            if len(payload) != len(entries):
                payload = (OSError(errno.EIO, "the store failed"),) * len(entries)
            for entry, got in zip(entries, payload, strict=True):
                if isinstance(got, FileBytes):
                    self.counters.bytes_read += len(got.data)
                    if got.changed:
                        self._note_change(entry, got.stamp.size)
                    else:
                        self._changed_size.pop(entry, None)
            self._memory.arrive(content, payload)

    async def _read_by_position(self, opened: Handle, offset: int, size: int) -> bytes:
        content, file = opened.content, opened.file
        stamp = content.stamps[file]
        if stamp is None:
            raise OSError(errno.EIO, "the file could not be read")
        part = max(0, min(size, stamp.size - offset))
        with self._reads.one():
            return await trio.to_thread.run_sync(
                partial(self._store.read_range, content.sample, file, stamp, offset, part),
                abandon_on_cancel=True,
                limiter=self._rereads,
            )

    # Ends

    def _closed(self, path: int, closed: Closed) -> None:
        if closed.last:
            self._memory.rest(path)
            for released in closed.released:
                self._memory.release(released)
            self._kernel.freed(self._files_of(path))

    def _failed(self, path: int, thread: int, entry: int, sample: int, error: BaseException) -> None:
        self.counters.errors += 1
        if isinstance(error, Exception):
            name = os.fsdecode(self._tree.path(entry))
            of = os.fsdecode(self._tree.path(self._file_of(sample, self._member_of[entry])))
            log.warning("open of %s failed: %s: %s", name, of, error or type(error).__name__)
        self._closed(path, self._binding.fail(path, thread))

    def _meet(self, thread: int, path: int) -> None:
        if self._binding.depends_on(thread, path) and self._threads.is_another(thread):
            ended = self._binding.thread(thread)
            for released in ended.released:
                self._memory.release(released)
            for sample in ended.unloaded:
                self._memory.forget(sample)
        self._threads.hear(thread)

    # Numbers

    def _keep(self, handle: Handle | ExactFile) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = handle
        return number

    def _bound_stamp(self, path: int, file: int) -> Stamp | None:
        """What a handle on the path reads, once it is known."""
        if not self._binding.is_bound(path):
            return None
        content = self._memory.look(path)
        return content.stamps[file] if content is not None and content.arrived else None

    def _file_of(self, sample: int, file: int) -> int:
        return self._members[self._member_at[sample] + file]

    def _files_of(self, sample: int) -> Sequence[int]:
        first, end = self._member_at[sample], self._member_at[sample + 1]
        return (self._members[first],) if end - first == 1 else self._members[first:end].tolist()

    def _size(self, entry: int) -> int:
        size = self._changed_size.get(entry)
        return self._tree_size[entry] if size is None else size

    def _note_change(self, entry: int, size: int) -> None:
        if entry not in self._changed_size:
            log.warning("%s is not what it was at the scan", os.fsdecode(self._tree.path(entry)))
        self._changed_size[entry] = size
