"""Carries out the core's decisions: submits reads, and gives their bytes to the right owner.

Opens of this node and requests of other nodes come here with the turn that the core gave them. Called from the node's
task alone; reads run on the loader's threads.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import trio

from redoxfs.chunks import ChunkStore, FileBytes, NativeRead, Read
from redoxfs.chunks.store import NO_INODE, CopyRead, NarrowedError, Payload, Stamp
from redoxfs.native import Histogram
from redoxfs.node.loader import Loader
from redoxfs.node.memory import Content
from redoxfs.protocol import Handled, Load, Served
from redoxfs.telemetry import as_json

if TYPE_CHECKING:
    from redoxfs.node.node import Node

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loading:
    """A load of a chunk: when it was submitted, how many of its reads are expected, and whether none was dropped."""

    began_ns: int
    reads: int
    is_whole: bool = True


class Supply:
    """Supplies the bytes of samples, from `start` to `stop`.

    ``changed_sizes``  by entry: the sizes of files that have changed since the scan
    ``fetch``          lets another node read a content that only that node can read, and calls `came`; before any
                       request, if there are other nodes
    """

    def __init__(self, node: "Node", store: ChunkStore) -> None:
        catalog = node.catalog
        self._node = node
        self._tree = catalog.tree
        self._tree_size: memoryview[int] = catalog.tree.size.data
        self._tree_mtime_ns: memoryview[int] = catalog.tree.mtime_ns.data
        self._tree_inode: memoryview[int] = catalog.tree.inode.data
        self._members: memoryview[int] = catalog.members.data
        self._member_at: memoryview[int] = catalog.member_at.data
        self._store = store
        self._memory = node.memory
        self._counters = node.counters
        self._permissions = node.permissions
        self._loader: Loader | None = None
        # What each read is for; and of which load it is, if of any.
        self._expected: dict[Read, tuple[Sequence[Content], _Loading | None]] = {}
        self._loads_in_flight = 0
        self._load_times = Histogram()
        self.changed_sizes: dict[int, int] = {}
        # Whether any file ever was.
        self._has_changed = False
        self.fetch: Callable[[Content], None] | None = None

    def start(self) -> None:
        """Start the reading threads, and the threads of the store; from a trio task."""
        store = self._store
        store.start()
        self._loader = Loader(
            self._arrived,
            threads=store.depth,
            most_threads=store.most_depth,
            most_held_bytes=store.most_held_bytes,
            copies_threads=store.copies_depth,
        )

    def stop(self) -> None:
        """End the reading threads, and the threads of the store."""
        if self._loader is not None:
            self._loader.close()
        self._store.end()

    @property
    def loader(self) -> Loader:
        """What delivers the bytes, after `start`."""
        assert self._loader is not None
        return self._loader

    # Turns

    def take_turn(self, path: int, turn: Served) -> Content | None:
        """The content that ``turn`` gives to ``path``; None if its bytes were dropped."""
        if turn.loads:
            self._counters.demand_loads += turn.is_demanded
            self.load(turn.loads, awaited=turn.is_demanded)
            for sample in turn.gone:
                self._memory.forget(sample)
        content = self._memory.claim(path, turn.sample, remote=turn.remote, kept=turn.kept)
        if turn.kept and content is not None and content.has_failed:
            self._read_for_slots(turn.sample)
        return content

    def load(self, loads: Sequence[Load], *, awaited: bool) -> None:
        """Read ``loads`` into the slots. ``awaited``: a request waits for the first sample of the first."""
        for load in loads:
            self._counters.chunk_loads += 1
            self._counters.samples_loaded += len(load.samples)
            reads = self._store.reads(load.chunk, load.samples)
            loading = _Loading(monotonic_ns(), len(reads))
            self._loads_in_flight += 1
            self._submit(reads, self._memory.expect(load.samples), awaited=awaited, loading=loading)
            awaited = False

    def _read_for_slots(self, sample: int) -> None:
        """The core keeps ``sample`` for its next turn, but its read failed. An open now and that one need one each."""
        self._counters.samples_loaded += 1
        reads = self._store.reads(self._node.plan.policy.chunk_of(sample), (sample,))
        self._submit(reads, self._memory.expect((sample,)), awaited=False)

    def read_again(self, path: int, sample: int, *, counted: bool = True) -> Content:
        """Read dropped bytes, or bytes whose read had failed before this open, for ``path`` alone."""
        self._counters.samples_reread += counted
        content = self._memory.expect_for(path, sample, remote=self.owner(sample) is not None)
        self.read(content)
        return content

    def read(self, content: Content) -> None:
        """Read ``content`` from storage, whatever its owner; by the node that can."""
        if self.fetch is not None and self.owner(content.sample) is not None:
            self.fetch(content)
            return
        self._submit(
            self._store.reads(self._node.plan.policy.chunk_of(content.sample), (content.sample,)),
            [content],
            awaited=True,
        )

    def owner(self, sample: int) -> int | None:
        """See `Plan.owner`."""
        return self._node.plan.owner(sample)

    def hasten(self, content: Content) -> None:
        """A request waits for ``content`` now."""
        if content.read is not None and self._loader is not None:
            self._loader.hasten(content.read)

    def cancel_unwanted(self) -> None:
        """Drop the reads whose samples nobody wants any more, if they have not begun."""
        if self._loader is not None:
            for read, (contents, loading) in [*self._expected.items()]:
                if not any(content.is_wanted for content in contents) and self._loader.cancel(read):
                    del self._expected[read]
                    if loading is not None:
                        loading.is_whole = False
                        self._read_is_over(loading)

    # Samples given to other nodes and taken from them

    def give(self, handled: Handled) -> list[Content]:
        """The samples that ``handled`` gives to another node, here or expected. Its loads begin."""
        assert handled.answer is not None
        samples = handled.answer.samples
        demanded = bool(handled.loads) and handled.loads[0].samples[0] in samples
        self._counters.demand_loads += demanded
        if handled.repeated:
            return [self.give_again(sample) for sample in samples]
        # A load for the next lap may bring a sample that is here and leaves with this answer.
        here = {sample: self._give(sample, handled) for sample in samples}
        self.load(handled.loads, awaited=demanded)
        return [here[sample] or self._give(sample, handled) or self.give_again(sample) for sample in samples]

    def give_again(self, sample: int) -> Content:
        """A sample that leaves nothing here: it was given before, or its bytes were dropped."""
        content = self._memory.give_again(sample)
        return self._read_to_give(sample) if content is None else self._hastened(content)

    def _give(self, sample: int, handled: Handled) -> Content | None:
        # One that another node gave may also lie here as this node's own, for the next lap.
        content = self._memory.give(sample, remote=sample in handled.remote, kept=sample in handled.kept)
        if content is None:
            return None
        if sample in handled.kept and content.has_failed:
            self._read_for_slots(sample)
        return self._hastened(content)

    def _read_to_give(self, sample: int) -> Content:
        self._counters.samples_reread += 1
        content = self._memory.expect_to_give(sample)
        self.read(content)
        return content

    def _hastened(self, content: Content) -> Content:
        if not content.arrived:
            self.hasten(content)
        return content

    def came(self, content: Content, payload: Payload) -> None:
        """Another node sent the bytes of a sample that it had given, or errors in their place."""
        if self._node.plan.reads_any and any(isinstance(file, OSError) for file in payload):
            self._counters.degraded += 1
            self.read(content)
        else:
            self._deliver(content, self._as_here(content.sample, payload))

    def _as_here(self, sample: int, payload: Payload) -> Payload:
        """A payload of another node with stamps for this node, whose copy may have other times and inodes.

        A file that is unchanged since the scan there has the content of the scan here. A changed file keeps its stamp:
        the time is right if both nodes see the same file, and matches nothing here otherwise.
        """
        stamped: list[FileBytes | OSError] = []
        for entry, file in zip(self.files_of(sample), payload, strict=True):
            if isinstance(file, FileBytes) and not file.changed:
                stamp = Stamp(file.stamp.size, self._tree_mtime_ns[entry], NO_INODE)
                stamped.append(FileBytes(file.data, stamp, changed=False))
            else:
                stamped.append(file)
        return tuple(stamped)

    # Files

    def files_of(self, sample: int) -> Sequence[int]:
        """The entries of a sample's files, by role."""
        first, end = self._member_at[sample], self._member_at[sample + 1]
        return (self._members[first],) if end - first == 1 else self._members[first:end].tolist()

    def file_of(self, sample: int, file: int) -> int:
        """The entry of file number ``file`` of a sample."""
        return self._members[self._member_at[sample] + file]

    def size(self, entry: int) -> int:
        """The size of a file when it was last read, else at the scan."""
        size = self.changed_sizes.get(entry)
        return self._tree_size[entry] if size is None else size

    def changed_count(self, others: Set[int]) -> int:
        """How many entries are in `changed_sizes` or in ``others``. It copies neither: they may be millions."""
        return len(self.changed_sizes) + len(others) - len(self.changed_sizes.keys() & others)

    def resume(self, changed_sizes: Mapping[int, int]) -> None:
        """Continue with what another process knew."""
        self.changed_sizes.update(changed_sizes)
        self._has_changed |= bool(changed_sizes)
        for entry in changed_sizes:
            self._node.changed(entry, True)

    def scanned(self, entry: int) -> Stamp:
        """The state of a file at the scan."""
        return Stamp(self._tree_size[entry], self._tree_mtime_ns[entry], self._tree_inode[entry])

    def since_scan(self, sample: int, stamps: Sequence[Stamp | None]) -> Sequence[tuple[int, Stamp]]:
        """The number and the stamp of each file of a sample that was read and is not as at the scan."""
        if len(stamps) == 1 and not self._has_changed:
            # Nearly every open. A file that was not noted as changed has the size and time of the scan.
            (stamp,) = stamps
            inode = self._tree_inode[self._members[self._member_at[sample]]]
            if stamp is None or stamp.inode in (inode, NO_INODE) or inode == NO_INODE:
                return ()
        numbered = zip(self.files_of(sample), enumerate(stamps), strict=True)
        return [(file, stamp) for entry, (file, stamp) in numbered if stamp and not self._is_as_scanned(entry, stamp)]

    def _is_as_scanned(self, entry: int, stamp: Stamp) -> bool:
        scanned = self.scanned(entry)
        # The catalog of a copy knows no inodes.
        return stamp.is_of(scanned) or scanned.is_of(stamp)

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """See `ChunkStore.read_range`."""
        return self._store.read_range(sample, file, stamp, offset, size)

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json."""
        times = self._load_times
        of_times = as_json(times.counts(), times.sum_ns, times.bounds_ns())
        of_reads = {"reads": 0, "read_seconds": 0.0, "reads_limit": 0} if self._loader is None else self._loader.reads()
        told = {"loads_in_flight": self._loads_in_flight, "load_seconds": of_times, **of_reads}
        of_store, of_cache = self._store.stats(), self._store.cache_stats()
        if of_store is not None and self._loader is not None:
            told["objects"] = {**of_store, "reads_limit": of_reads["reads_limit"]}
        if of_cache is not None:
            told["cache"] = of_cache
        return told

    # Reads

    def _submit(
        self,
        reads: Sequence[Read],
        contents: Sequence[Content],
        *,
        awaited: bool,
        loading: _Loading | None = None,
    ) -> None:
        assert self._loader is not None
        expected = self._expected
        if len(contents) == 1:
            (content,) = contents
            content.read = reads[0]
            expected[reads[0]] = contents, loading
        else:
            of_sample = {content.sample: content for content in contents}
            for read in reads:
                of_read = list(map(of_sample.__getitem__, read.samples))
                expected[read] = of_read, loading
                for content in of_read:
                    content.read = read
        self._loader.submit(reads, awaited=awaited)

    def _arrived(self, read: Read, payloads: Sequence[Payload]) -> None:
        contents, loading = self._expected.pop(read)
        if isinstance(read, CopyRead) and (reads := read.instead(payloads)):
            contents, payloads = self._read_instead(reads, contents, payloads, loading)
        if loading is not None:
            self._read_is_over(loading)
        if not isinstance(read, NativeRead):
            payloads = self._completed(contents, payloads)
        for content, payload in zip(contents, payloads, strict=True):
            for file in payload:
                if isinstance(file, FileBytes):
                    self._counters.bytes_read += len(file.data)
            self._deliver(content, payload)

    def _read_instead(
        self, reads: Sequence[Read], contents: Sequence[Content], payloads: Sequence[Payload], loading: _Loading | None
    ) -> tuple[Sequence[Content], Sequence[Payload]]:
        """Submit ``reads`` of samples whose copies could not be read. Returns the other contents and payloads."""
        again = {sample for read in reads for sample in read.samples}
        if loading is not None:
            loading.reads += len(reads)
        # An open may wait for any of them.
        self._submit(reads, [content for content in contents if content.sample in again], awaited=True, loading=loading)
        others = [pair for pair in zip(contents, payloads, strict=True) if pair[0].sample not in again]
        return [content for content, _ in others], [payload for _, payload in others]

    def _read_is_over(self, loading: _Loading) -> None:
        """A read has arrived, or was dropped. A load is over with its last read."""
        loading.reads -= 1
        if not loading.reads:
            self._loads_in_flight -= 1
            if loading.is_whole:
                self._load_times.since(loading.began_ns)

    def _completed(self, contents: Sequence[Content], payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Payloads with errors in the place of what a store in Python did not return."""
        completed = []
        for number, content in enumerate(contents):
            files = len(self.files_of(content.sample))
            payload: Payload = payloads[number] if number < len(payloads) else ()
            whole = len(payload) == files
            completed.append(payload if whole else (OSError(errno.EIO, "the store failed"),) * files)
        return completed

    def _deliver(self, content: Content, payload: Payload) -> None:
        for file in payload:
            if isinstance(file, FileBytes):
                has_news = file.changed or bool(self.changed_sizes or self._permissions.now)
            else:
                has_news = isinstance(file, NarrowedError)
            if has_news:
                self._note_changes(content, payload)
                break
        if self._memory.arrive(content, payload):
            self._read_for_slots(content.sample)

    def _note_changes(self, content: Content, payload: Payload) -> None:
        for entry, got in zip(self.files_of(content.sample), payload, strict=True):
            if isinstance(got, FileBytes):
                if got.changed:
                    self._note_change(entry, got.stamp.size)
                elif self.changed_sizes.pop(entry, None) is not None:
                    self._node.changed(entry, False)
                self._permissions.saw_as_scanned(entry)
            elif isinstance(got, NarrowedError):
                self._permissions.saw(entry, got.access)

    def _note_change(self, entry: int, size: int) -> None:
        if entry not in self.changed_sizes:
            path = os.fsdecode(self._tree.path(entry))
            log.warning("a file has changed since the scan", extra={"fields": {"path": path, "bytes": size}})
        self._has_changed = True
        self.changed_sizes[entry] = size
        self._node.changed(entry, True)


async def all_here(contents: Sequence[Content], timeout_s: float) -> None:
    """Wait until all bytes are here. Raises trio.TooSlowError at the deadline."""
    with trio.fail_after(timeout_s):
        for content in contents:
            await content.wait()
