"""The request loop: takes requests that need a decision from the session, asks the node, and returns the answers.

`redoxfs.native.Session` answers by itself whatever needs no decision, and hands over the other requests as events, in
the order in which the kernel sent them. This loop is one trio task. It handles an event completely before the next, so
the node's order of decisions is the order of the requests. A request whose answer is here is answered without any
await. An open that waits for its bytes is answered when they arrive (`Node.expect`). Only a request that has to wait
for anything else gets a task of its own. While as many wait as may, further ones stay here in their order, undecided: a
program waits longer, and none is refused what would have been its turn.

The loop stays with the session as long as requests come: `take` looks for the next request for `LOOK_US` before it
sleeps, because a program that got an answer sends its next request sooner than the scheduler could have slept. Messages
of other nodes wake the session, and are handled between requests. Other tasks run after them, when there is nothing to
do, and at least every `TURN_S`; sooner if requests wait for them.
"""

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import trio

from redoxfs.fs.access_log import AccessLog
from redoxfs.fs.handlers import errno_of
from redoxfs.fs.inodes import ACCESS_LOG_INODE, FIRST_OUTSIDE_DATA, Branch, branch_and_entry, inode_of
from redoxfs.fs.open_times import NO_SAMPLE, OpenTimes
from redoxfs.fs.page_cache import PageCache
from redoxfs.fs.recorder import Recorder
from redoxfs.native import (
    EVENTS_AT_ONCE,
    INIT,
    INTERRUPT,
    LOG_POLL,
    LOG_READ,
    LOG_RELEASE,
    LOG_TRY,
    OPEN,
    READ,
    RELEASE,
    STAT,
    Session,
)
from redoxfs.node import WAITING_OPENS, WAITING_READS, ExpectedOpen, Journal, Node, OpenBefore, OpenFile, Recovered
from redoxfs.telemetry import Outcome

log = logging.getLogger(__name__)

LOOK_US = 50
"""How long to look for a request before sleeping. Most requests follow an answer within this. Looking costs less
processor time per file than sleeping and waking up. Looking twice as long gains little more. The session learns after
which requests a look finds nothing, as after a close where programs compute between files. It leaves out most of those.
"""

LINGER_MS = 4
"""How long to sleep in the session before other tasks get their turn, which costs more than an open. It is longer than
most programs take to their next request, and shorter than any deadline."""

TURN_S = 5e-3
"""How long the loop gives the other tasks no turn: long enough to make the scheduler's cost small. The session may
sleep for `LINGER_MS` beyond it."""

WAITING_TURN_S = 1e-3
"""The same while requests wait for other tasks."""

SLICES_FIRST = 100
"""Slices of results that are delivered before an open fails at its deadline. Results that programs wait for come first,
so these are there after a few; storage may answer other reads for longer."""

MOST_CRASHES = 2
"""How many processes may crash while they are at one request before it fails."""

Event: TypeAlias = tuple[int, int, int, int, int, int]


class KernelCaches:
    """The node's `Kernel`: passes notices on to the session. Before the mount the kernel caches nothing, so there is no
    one to notify."""

    _session: Session | None
    turned: Callable[[Sequence[int]], None]
    freed: Callable[[Sequence[int]], None]
    bind: Callable[[int, int], None]
    shed: Callable[[int], None]
    sizes_differ: Callable[[bool], None]
    unhold: Callable[[int], None]
    ask: Callable[[int, bool], None]

    def __init__(self) -> None:
        self.detach()

    def attach(self, session: Session) -> None:
        """The mount is there."""
        self._session = session
        # Some at each open and close, so the node calls the session itself.
        self.turned, self.freed, self.bind, self.shed = session.turned, session.freed, session.bind, session.shed
        self.sizes_differ, self.unhold, self.ask = session.sizes_differ, session.unhold, session.ask

    def detach(self) -> None:
        """The mount is over. The numbers of its descriptors may soon belong to other files."""
        self._session = None
        self.turned = self.freed = self.bind = self.shed = _nothing
        self.sizes_differ = self.unhold = self.ask = _nothing

    @property
    def bytes_served(self) -> int:
        """The bytes that programs have read without the node."""
        return 0 if self._session is None else self._session.counts()["bytes_served"]

    def reopened(self, handle: OpenBefore) -> None:
        if self._session is not None:
            inode = inode_of(Branch(handle.branch), handle.entry)
            self._session.reopened(handle.handle, inode, handle.thread, handle.size, handle.shares_pages)

    def void_size(self, entry: int, settles_s: float) -> bool:
        return self._session is None or self._session.void_size(entry, int(settles_s * 1e9))

    def changed(self, entry: int, *, redirected: bool = False) -> None:
        # The replies to opens handle its pages: a program may be reading them.
        if self._session is not None:
            for branch in (Branch.EXACT,) if redirected else (Branch.DATA, Branch.EXACT):
                self._session.changed(inode_of(branch, entry))


def _nothing(*_: object) -> None:
    pass


def _none_here() -> bool:
    return False


class _Queue:
    """Requests of one kind: those that wait for an answer, at most ``most``, and those that come after them.

    ``now``   how many wait
    ``held``  events that nobody has looked at, in their order
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0
        self.held: deque[Event] = deque()


class Requests:
    """Serves the requests of one mount.

    Args:
        answering: called when the kernel has accepted the mount.
        page_cache: which opens use the page cache.
        journal: of the node; None if nothing outlives this process.
        times: how long opens took.
        access_log: whose readers get a line for each open.
        recorder: looks at the samples that were served.

    ``refused_minor``  FUSE's minor version of a kernel that is too old, whose mount was refused; else 0
    """

    def __init__(
        self,
        node: Node,
        session: Session,
        answering: Callable[[], None],
        page_cache: PageCache,
        journal: Journal | None = None,
        times: OpenTimes | None = None,
        access_log: AccessLog | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._node = node
        node.shares_pages = page_cache.shares
        self._done = (OpenTimes() if times is None else times).opens.done
        self._access_log = access_log
        self._session = session
        self._page_cache = page_cache
        self._journal = journal
        self._recorder = recorder
        self._recovered: Recovered | None = None
        self._answering = answering
        self.refused_minor = 0
        self._handlers: dict[int, Callable[[int, int, int, int, int], None]] = {
            INIT: self._init,
            OPEN: self._open,
            RELEASE: self._release,
            STAT: self._stat,
            READ: self._read,
            INTERRUPT: self._interrupt,
        }
        if access_log is not None:
            read = access_log.read
            self._handlers |= {
                LOG_READ: lambda unique, handle, _thread, number, size: read(unique, handle, number, size, waits=True),
                LOG_TRY: lambda unique, handle, _thread, number, size: read(unique, handle, number, size, waits=False),
                LOG_POLL: lambda unique, handle, _thread, waiter, _size: access_log.poll(unique, handle, waiter),
                LOG_RELEASE: lambda _unique, handle, _thread, _offset, _size: access_log.release(handle),
            }
        self._nursery: trio.Nursery
        self._waiting = 0
        self._opens = _Queue(WAITING_OPENS)
        self._reads = _Queue(WAITING_READS)
        self._queues = {OPEN: self._opens, STAT: self._opens, READ: self._reads}
        self._nothing_waits = trio.Event()
        self._taking = trio.CancelScope()
        for entry in node.out_of_date():
            session.ask(entry, True)
        self._arrivals = node.supply.loader.take_over()
        session.watch(self._arrivals)

    def go_on(self, recovered: Recovered) -> None:
        """Continue after a process that served this mount before; before `run`.

        A request that processes were at when they crashed may be the cause. It fails if there were `MOST_CRASHES`.
        """
        session = self._session
        shares_pages = {handle.handle: handle.shares_pages for handle in recovered.handles}
        for request in session.waiting():
            if request in recovered.answered:
                number = recovered.answered[request]
                session.answered(request, number, shares_pages.get(number, False))
            elif request in recovered.failed:
                session.failed(request, recovered.failed[request])
            elif session.crashes(request) >= MOST_CRASHES:
                log.error("%d processes crashed at one request, which fails now", MOST_CRASHES)
                session.failed(request, errno.EIO)
        self._recovered = recovered

    async def run(self, grace_s: float) -> None:
        """Serve until the mount is over, or `stop`. Requests that wait then get ``grace_s``, and are cancelled."""
        # A process that continues has joined the other nodes after this was made.
        posts = self._node.posts
        if posts is not None:
            self._session.watch(posts.take_over())
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    with self._taking:
                        await self._serve(_none_here if posts is None else posts.run)
                finally:
                    if posts is not None:
                        posts.give_back()
                for queue in (self._opens, self._reads):
                    # For the next process, if there is one.
                    queue.held.clear()
                if self._taking.cancelled_caught:
                    await self._finish(grace_s)
                self._nursery.cancel_scope.cancel()
        finally:
            self._node.freeze()
            self._node.end_expected()

    def stop(self) -> None:
        """Take no more requests."""
        self._taking.cancel()

    # The loop

    async def _serve(self, post: Callable[[], bool]) -> None:
        take, deliver, journal = self._session.take, self._node.supply.loader.deliver_some, self._journal
        recorder, served = self._recorder, () if self._recorder is None else self._recorder.served
        fd, turn = self._session.fileno(), perf_counter()
        while True:
            events = take(LOOK_US, 0 if self._waiting else LINGER_MS)
            if events is None:
                return
            self._handle(events)
            if journal is not None:
                journal.checkpoint_if_due()
                if self._recovered is not None and len(events) < EVENTS_AT_ONCE and not self._session.waiting():
                    # All that the former process left was delivered again.
                    self._recovered.release_pins()
                    self._recovered = None
            if recorder is not None and len(served) >= recorder.due:
                recorder.look()
            delivered, posted = deliver(), post()
            self._take_held()
            now = perf_counter()
            if not events and not delivered and not posted:
                with trio.move_on_at(self._node.next_deadline):
                    await trio.lowlevel.wait_readable(fd)
                self._expire()
            elif posted or (self._waiting and (delivered or now - turn > WAITING_TURN_S)) or now - turn > TURN_S:
                await trio.lowlevel.checkpoint()
                self._expire()
            else:
                continue
            turn = perf_counter()

    def _expire(self) -> None:
        """Fail the opens whose deadline has passed, but not those whose bytes have arrived."""
        for _ in range(SLICES_FIRST):
            if self._node.next_deadline > trio.current_time():
                return
            if not self._node.supply.loader.deliver_some():
                break
        self._node.expire()
        self._take_held()

    def _handle(self, events: Sequence[Event], *, were_held: bool = False) -> None:
        """Decide events in their order. Those for which no wait is left are held, unless they ``were_held``."""
        handlers, queues, journal = self._handlers, self._queues, self._journal
        for event in events:
            kind, unique, number, thread, offset, size = event
            queue = None if were_held else queues.get(kind)
            # The access log does not wait for storage.
            if queue is not None and (queue.held or queue.now >= queue.most) and number != ACCESS_LOG_INODE:
                queue.held.append(event)
                continue
            if journal is not None:
                self._session.deciding(unique)
            handlers[kind](unique, number, thread, offset, size)
            if journal is not None and journal.soon:
                journal.checkpoint()
        if journal is not None:
            self._session.deciding(0)

    def _take_held(self) -> None:
        """Handle events that were held, as many as may wait now."""
        for queue in (self._opens, self._reads):
            while queue.held and queue.now < queue.most:
                self._handle((queue.held.popleft(),), were_held=True)

    async def _take_held_soon(self) -> None:
        self._take_held()

    async def _finish(self, grace_s: float) -> None:
        """Let requests that wait have their answers."""

        async def deliver() -> None:
            while True:
                await trio.lowlevel.wait_readable(self._arrivals)
                self._node.supply.loader.deliver_some()

        self._nursery.start_soon(deliver)
        with trio.move_on_after(grace_s):
            while self._is_waiting():
                self._nothing_waits = trio.Event()
                await self._nothing_waits.wait()

    # Events

    def _init(self, _unique: int, can_map: int, _thread: int, refused_minor: int, _size: int) -> None:
        if refused_minor:
            self.refused_minor = refused_minor
            self.stop()
            return
        if not can_map:
            self._page_cache.cannot_map()
        self._answering()

    def _open(self, unique: int, inode: int, thread: int, _offset: int, received_ns: int) -> None:
        if self._journal is not None:
            self._journal.request = unique
        try:
            if inode < FIRST_OUTSIDE_DATA:
                opened = self._node.open(inode - 1, thread)
            elif inode == ACCESS_LOG_INODE and self._access_log is not None:
                self._access_log.open(unique)
                return
            else:
                opened = self._node.open_exact(branch_and_entry(inode)[1])
            if isinstance(opened, OpenFile):
                self._opened(unique, inode, thread, received_ns, opened)
                return
            if isinstance(opened, ExpectedOpen):
                self._opens.now += 1
                self._node.expect(opened, partial(self._expected, unique, inode, thread, received_ns))
                return
        except Exception as error:
            self._open_failed(unique, inode, thread, received_ns, error)
            return
        opening = self._await_open(unique, inode, thread, received_ns, opened)
        self._later(self._opens, unique, opening, lambda _: None)

    async def _await_open(
        self, unique: int, inode: int, thread: int, received_ns: int, opening: Coroutine[Any, Any, OpenFile]
    ) -> None:
        try:
            self._opened(unique, inode, thread, received_ns, await opening)
        except Exception as error:
            self._open_failed(unique, inode, thread, received_ns, error)

    def _open_failed(self, unique: int, inode: int, thread: int, received_ns: int, error: Exception) -> None:
        number = errno_of(error)
        self._session.failed(unique, number)
        self._done(Outcome.FAILED, received_ns, inode, thread, NO_SAMPLE, number)

    def _expected(self, unique: int, inode: int, thread: int, received_ns: int, result: OpenFile | Exception) -> None:
        """An open that waited for its bytes is over. Raises nothing, since other opens wait for the same call."""
        self._opens.now -= 1
        if self._opens.held:
            # Not here, in the middle of a delivery; nor does a store in Python wake the loop.
            self._nursery.start_soon(self._take_held_soon)
        try:
            if isinstance(result, Exception):
                self._open_failed(unique, inode, thread, received_ns, result)
            else:
                self._opened(unique, inode, thread, received_ns, result)
        except Exception as error:
            self._open_failed(unique, inode, thread, received_ns, error)
        if not self._is_waiting():
            self._nothing_waits.set()

    def _opened(self, unique: int, inode: int, thread: int, received_ns: int, file: OpenFile) -> None:
        is_open = False
        try:
            is_open = self._session.opened(
                # An exact file says nothing of the path that its thread holds.
                unique,
                inode,
                thread if file.size >= 0 else 0,
                file.handle,
                file.data,
                file.size,
                file.keep_pages,
                file.shares_pages,
            )
        finally:
            if not is_open:
                # Nobody waits any more, or it failed: nobody will close it.
                self._node.close(file.handle)
        self._done(file.outcome, received_ns, inode, thread, file.sample, 0)

    def _interrupt(self, _unique: int, number: int, _thread: int, _offset: int, _size: int) -> None:
        # Every other wait has a deadline.
        if self._access_log is not None:
            self._access_log.interrupt(number)

    def _stat(self, unique: int, entry: int, thread: int, _offset: int, _size: int) -> None:
        try:
            result = self._node.stat(entry, thread)
        except Exception as error:
            self._session.failed(unique, errno_of(error))
            return
        if isinstance(result, tuple):
            self._session.stat(unique, entry, *result)
        else:
            self._later(self._opens, unique, result, lambda known: self._session.stat(unique, entry, *known))

    def _read(self, unique: int, handle: int, _thread: int, offset: int, size: int) -> None:
        try:
            data = self._node.read(handle, offset, size)
        except Exception as error:
            self._session.failed(unique, errno_of(error))
            return
        if isinstance(data, Coroutine):
            self._later(self._reads, unique, data, lambda read: self._session.data(unique, read))
        else:
            self._session.data(unique, data)

    def _release(self, unique: int, handle: int, _thread: int, _offset: int, reads: int) -> None:
        self._page_cache.closed(reads)
        try:
            self._node.close(handle)
        except Exception as error:
            errno_of(error)  # it is logged; the kernel has its answer already
        if self._journal is not None:
            self._session.released(unique, handle)

    def _later(
        self, queue: _Queue, unique: int, answering: Coroutine[Any, Any, Any], answer: Callable[[Any], None]
    ) -> None:
        """Wait for ``answering`` in a task of its own, and pass its result to ``answer``."""
        self._waiting += 1
        queue.now += 1
        self._nursery.start_soon(self._wait, queue, unique, answering, answer)

    async def _wait(
        self, queue: _Queue, unique: int, answering: Coroutine[Any, Any, Any], answer: Callable[[Any], None]
    ) -> None:
        try:
            answer(await answering)
        except trio.Cancelled:
            # Only at the end, also by an error. What this gives up has no entry in the journal, and the request is for
            # the next process.
            self._node.freeze()
            raise
        except Exception as error:
            self._session.failed(unique, errno_of(error))
        finally:
            self._waiting -= 1
            queue.now -= 1
            if not self._is_waiting():
                self._nothing_waits.set()
        # After an exception nobody decides any more.
        self._take_held()

    def _is_waiting(self) -> bool:
        return bool(self._waiting) or self._node.next_deadline < math.inf
