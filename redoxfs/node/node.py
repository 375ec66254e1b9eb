"""One running node: turns the core's decisions into reads, and holds the bytes between storage and reader.

An open passes: the calling thread (`callers`) → the meaning of the open (`protocol.binding`, and the policy) → reads,
and the owner of their bytes (`supply`, `loader`, `memory`) → a handle. One trio task at a time touches the state, and
nothing awaits between a decision and its bookkeeping, so there is no lock here. An open of a sample in memory returns
without yielding to the event loop.

Where the samples lie at several nodes, the policy may leave a turn to another node. The open or stat then waits until
`node.cluster` brings the answer (`pending`).

The filesystem above calls this with entries of the tree; it knows nothing of samples. Errors are raised as OSError,
or `trio.TooSlowError` (deadline).
"""

import errno
import gc
import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import trio

from redoxfs.chunks import ChunkStore, FileBytes
from redoxfs.chunks.store import Stamp
from redoxfs.dataset import Catalog
from redoxfs.native import Buffer
from redoxfs.node.callers import Callers
from redoxfs.node.counters import Counters
from redoxfs.node.drawing import Blocks
from redoxfs.node.exact import ExactFile, ExactFiles
from redoxfs.node.failures import failures
from redoxfs.node.journal import (
    ALONE,
    CHANGED,
    DATA,
    DRAWN,
    EXACT,
    FORGET,
    HANDLED,
    OPEN,
    RECEIVED,
    STAT,
    WITHDRAWN,
    Journal,
)
from redoxfs.node.kernel import Kernel
from redoxfs.node.lowest_laps import LowestLaps
from redoxfs.node.memory import Content, Memory
from redoxfs.node.open_files import Handle, OpenFiles
from redoxfs.node.pending import PendingTurns, Promise, Undecided
from redoxfs.node.permissions import Permissions
from redoxfs.node.plan import Plan, Share
from redoxfs.node.posts import Posts
from redoxfs.node.recent import RecentTurns
from redoxfs.node.recovery import (
    Past,
    Ranks,
    Recovered,
    Unanswered,
    packed,
)
from redoxfs.node.succession import Succession
from redoxfs.node.supply import Supply
from redoxfs.node.threads import NoThreadError, in_thread
from redoxfs.node.waits import WAITING_READS, Waits
from redoxfs.protocol import (
    NO_SAMPLE,
    Answer,
    Binding,
    Closed,
    DrawnBinding,
    LocalFirst,
    Message,
    Opened,
    Pending,
    PoolPolicy,
    Served,
    SharedServingPolicy,
    numbers_of,
)
from redoxfs.protocol.binding import UNDECIDED
from redoxfs.protocol.pool.passes import PassFigures
from redoxfs.protocol.turns import Turns
from redoxfs.telemetry import Outcome

NO_ANSWER = "another node does not answer"

SETTLES_S = 1.0
"""How long a program may need to wake up with a size that it was told. With a processor free it needs microseconds."""

SETTLE_LOOK_S = 1e-3

MOST_SETTLE_S = 10 * SETTLES_S
"""A job that opens one path over and over keeps it from settling, but hardly at each look."""

ALL_THREADS = -1


@dataclass(slots=True)
class OpenFile:
    """The result of an open. ``handle`` is for `read` and `close`.

    ``data``          the bytes of the file, if they are in memory
    ``size``          of the file in bytes, -1 if it is not redirected
    ``keep_pages``    the kernel's present pages of the path are right
    ``shares_pages``  the handle may use and fill them
    ``outcome``       what the open waited for
    ``sample``        whose file it is; NO_SAMPLE: the file itself
    """

    handle: int
    data: Buffer | None
    size: int
    keep_pages: bool
    shares_pages: bool = True
    outcome: Outcome = Outcome.RESIDENT
    sample: int = NO_SAMPLE


@dataclass(slots=True, eq=False)
class ExpectedOpen:
    """An open whose bytes are on their way. Await it, or hand it to `Node.expect`.

    ``request``  its number in the journal
    ``outcome``  what it waits for
    """

    node: "Node"
    entry: int
    thread: int
    content: Content
    keep_pages: bool
    request: int = 0
    outcome: Outcome = Outcome.DEMAND

    def __await__(self) -> Generator[Any, Any, OpenFile]:
        return self.node.open_when_here(self).__await__()


class Node:
    """Serves the files of one catalog, from `start` to `stop`.

    Args:
        plan: the policy, and the memory.
        timeout_s: the deadline of every wait for storage.
        kernel: told when its cache is out of date.
        journal: where decisions are kept for the process after this one (`recover`); with `expect` for opens whose
            bytes are on their way.
        recent: the last turns; None: they end with this process.

    ``plan``          the one in force; only `renew` and `go_on` replace it
    ``is_frozen``     see `freeze`
    ``blocks``        the last blocks of samplers
    ``ranks``         the ranks that told of an epoch

    Set before any request, if at all:

    ``flush``         sends the messages in the policy's outbox
    ``shares_pages``  returns whether an open file of so many bytes may use the kernel's pages; -1: an exact file. True:
                      other programs may open the same path as another file meanwhile. Without it, all may
    ``note_served``   called with the served sample at each turn
    ``note_asked``    called with the path of each open that has a turn
    ``watch_turn``    called with the requested sample at each turn, on several nodes
    ``posts``         what other nodes send
    ``place``         returns this node's place among the nodes of its job, as JSON, for a checkpoint
    """

    def __init__(
        self,
        catalog: Catalog,
        plan: Plan,
        store: ChunkStore,
        *,
        timeout_s: float,
        kernel: Kernel,
        callers: Callers | None = None,
        journal: Journal | None = None,
        recent: RecentTurns | None = None,
    ) -> None:
        self.catalog = catalog
        self.recent = RecentTurns() if recent is None else recent
        # The thread whose turn is being decided; and by undecided path, the one that waits for it.
        self._reader = 0
        self._readers: dict[int, int] = {}
        self._tree = catalog.tree
        # A memoryview gives plain ints at a third of numpy's price.
        self._sample_of: memoryview[int] = catalog.sample_of.data
        self._member_of: memoryview[int] = catalog.member_of.data
        self.kernel = kernel
        self._journal = journal
        self.is_frozen = False
        self.plan = plan
        if plan.passing is not None:
            memory = self.recent.beyond(plan.passing.passes_bytes())
            if memory is not None:
                plan.passing.keep_passes_in(memory)
        self._lowest: LowestLaps | None = None
        self._decided_alone = 0
        self._timeout_s = timeout_s
        self.counters = Counters()
        kind = DrawnBinding if catalog.is_for_sampler else Binding
        self.binding = kind(
            plan.policy,
            np.diff(catalog.member_at),
            tree_of=lambda: catalog.tree_of_class[catalog.class_of],
        )
        self.memory = Memory(
            plan.claims_bytes,
            self._shed,
            keeps_remote=not plan.reads_any,
            retainer=plan.retained,
            most_lent_bytes=plan.lendable_bytes,
        )
        self.permissions = Permissions(catalog.tree, self._access_changed)
        self.supply = Supply(self, store)
        self.pending = PendingTurns(self)
        self.callers = callers or Callers()
        # Files with sizes that the kernel keeps from before the present programs that copy.
        self._kept_sizes: list[int] = []
        self.callers.watch_copying(self._copying_changed)
        self.copying: Mapping[int, str] = self.callers.copying
        self._failures = failures()
        self._opens = Waits(timeout_s)
        self._reads = Waits(timeout_s)
        self.exact = ExactFiles(self.supply.scanned, store, self._opens, self._reads, self.permissions)
        self._rereads = trio.CapacityLimiter(WAITING_READS)
        self.files = OpenFiles()
        # By the time they began, as all have one timeout.
        self._expected: OrderedDict[ExpectedOpen, tuple[float, Callable[[OpenFile | Exception], None]]] = OrderedDict()
        self.flush: Callable[[], None] | None = None
        self.shares_pages: Callable[[int, bool], bool] | None = None
        self.posts: Posts | None = None
        self.place: Callable[[], Mapping[str, Any]] | None = None
        self.note_served: Callable[[int], None] = deque[int](maxlen=0).append
        self.note_asked: Callable[[int], None] = deque[int](maxlen=0).append
        self.watch_turn: Callable[[int], None] | None = None
        # How often the first files of samples were opened, the second ones, and so on; empty if samples are of one
        # file, or if nothing is redirected but for a sampler.
        files = int(np.diff(catalog.member_at).max(initial=0))
        self.opens_of_files = [0] * files if files > 1 and catalog.verdict.mode != "sampler" else []
        self.blocks = Blocks()
        self.ranks: Ranks = {}
        self._succession = Succession(self)
        if journal is not None:
            journal.attach(self._succession.state)

    def start(self) -> None:
        """Start the reading threads; from a trio task. Raises NoThreadError."""
        try:
            self.supply.start()
        except (BlockingIOError, RuntimeError):
            raise NoThreadError from None

    def stop(self) -> None:
        """End the reading threads and close open files."""
        self.supply.stop()
        self._failures.tell_left_out()
        for file in self.files.values():
            if isinstance(file, ExactFile):
                self.exact.close(file)
        self.files.clear()

    def is_redirected(self, entry: int) -> bool:
        return self._sample_of[entry] >= 0

    # Files of samples

    def open(self, entry: int, thread: int) -> OpenFile | ExpectedOpen | Coroutine[Any, Any, OpenFile]:
        """Open a file; if it belongs to a sample, any sample of its class may answer.

        Returns the open file if its bytes are here, else something to await for it.
        """
        path, file = self._sample_of[entry], self._member_of[entry]
        if path < 0:
            return self.open_exact(entry, DATA)
        heard_s = self._meet(thread, path, opens=True)
        if thread in self.copying:
            return self._open_copied(entry)
        if self.opens_of_files:
            self.opens_of_files[file] += 1
        self._reader = thread
        opened = self.binding.open(path, file, thread)
        keep_pages, journal = not opened.fresh, self._journal
        if journal is not None:
            turn, sample, flags = opened.turn, NO_SAMPLE, 0
            if isinstance(turn, Served):
                sample, flags = turn.sample, turn.preempted
            elif turn is not None:
                sample = UNDECIDED
            journal.note(OPEN, file, flags, thread, path, sample, journal.request, int(heard_s * 1e9))
            if self._succession.unpin(journal.request):
                keep_pages = False
        try:
            if self.plan.sharing is not None:
                undecided = self._ask_for(path, opened)
                if undecided is not None:
                    request = 0
                    if journal is not None:
                        request = journal.request
                        self._succession.undecided[request] = Unanswered(path, file, thread)
                    return self._open_undecided(entry, thread, undecided, keep_pages=keep_pages, request=request)
            in_flight = self.counters.in_flight_waits
            content = self._content(path, file, opened)
        except BaseException as error:
            self._failed(path, thread, entry, opened.sample, error)
            raise
        if content.arrived:
            return self._opened(path, file, thread, content, keep_pages=keep_pages)
        outcome = Outcome.DEMAND
        if self.counters.in_flight_waits != in_flight:
            remote = isinstance(opened.turn, Served) and opened.turn.remote
            outcome = Outcome.REMOTE if remote else Outcome.IN_FLIGHT
        request = 0 if journal is None else journal.request
        return ExpectedOpen(self, entry, thread, content, keep_pages, request, outcome)

    def _content(self, path: int, file: int, opened: Opened) -> Content:
        """The bytes of an open's answer, here or expected."""
        sample, turn = opened.sample, opened.turn
        for gone in opened.released:
            self.memory.release(gone)
        if isinstance(turn, Served):
            content = self._take_turn(path, turn)
        else:
            self.counters.joined += 1
            content = self.memory.claimed(path)
        if content is None or (content.arrived and content.stamps[file] is None):
            return self.supply.read_again(path, sample, counted=self.binding.was_read)
        if not content.arrived and not (isinstance(turn, Served) and turn.is_demanded):
            self.counters.in_flight_waits += 1
            self.supply.hasten(content)
        return content

    def _take_turn(self, path: int, turn: Served) -> Content | None:
        sample = turn.sample
        self.note_asked(path)
        self.note_served(sample)
        self.recent.note(sample, self.plan.policy.lap_of(sample), self._reader)
        self.kernel.turned(self.supply.files_of(path))
        self.counters.reservations_taken += turn.preempted
        return self.supply.take_turn(path, turn)

    def draw(self, path: int, token: int, number: int) -> int:
        """A turn for a sample of ``path``'s class, without an open: for block ``number`` of a sampler.

        Returns the sample. Its bytes wait at its own path, as those of a closed file.
        """
        assert isinstance(self.binding, DrawnBinding)
        turn = self.binding.draw(path)
        sample = turn.sample
        if self._journal is not None:
            self._journal.note(DRAWN, 0, 0, 0, sample, sample, token, number)
        self.blocks.add(token, number, sample)
        self.note_served(sample)
        self.recent.note(sample, self.plan.policy.lap_of(sample), 0)
        self.supply.take_turn(sample, turn)
        if not self.binding.is_bound(sample):
            self.memory.rest(sample)
        return sample

    def skip_lap(self, classes: Sequence[int], lap: int) -> None:
        """What is left of a lap of ``classes`` has no turn: samplers begin the next."""
        policy = self.plan.policy
        assert isinstance(policy, PoolPolicy)
        for cls in classes:
            self.void(policy.skip(cls, lap + 1), ())
        # It has no entry in the journal.
        self.checkpoint()

    def give(self, path: int, turn: Served) -> None:
        """As `_take_turn`. Bytes that the slots have dropped are read again."""
        self._reader = self._readers.pop(path, 0)
        if self._take_turn(path, turn) is None:
            self.supply.read_again(path, turn.sample)

    async def open_when_here(self, expected: ExpectedOpen) -> OpenFile:
        """Wait for the bytes of ``expected``, at most until the deadline."""
        try:
            with self._opens.one():
                await expected.content.wait()
        except BaseException as error:
            self._failed_expected(expected, error)
            raise
        return self._open_expected(expected)

    def expect(self, expected: ExpectedOpen, answer: Callable[[OpenFile | Exception], None]) -> None:
        """Pass ``answer`` the open file, or the reason why there is none, without a task that waits for it.

        The caller calls `expire` at `next_deadline`.
        """
        self._expected[expected] = (self._opens.enter(), answer)
        expected.content.when_here(partial(self._here, expected))

    def _here(self, expected: ExpectedOpen) -> None:
        began, answer = self._expected.pop(expected, (0.0, None))
        if answer is None:
            return  # its deadline has passed
        self._opens.leave(began)
        try:
            result: OpenFile | Exception = self._open_expected(expected)
        except Exception as error:
            result = error
        answer(result)

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do, in trio's time; inf if no open is expected."""
        for began, _ in self._expected.values():
            return began + self._timeout_s
        return math.inf

    def expire(self) -> None:
        """Fail the expected opens whose deadline has passed."""
        while self.next_deadline <= trio.current_time():
            expected = next(iter(self._expected))
            began, answer = self._expected.pop(expected)
            self._opens.leave(began)
            error = trio.TooSlowError()
            self._failed_expected(expected, error)
            answer(error)

    def end_expected(self) -> None:
        """Expect no open any more: nobody waits for its answer."""
        while self._expected:
            expected, (began, _) = self._expected.popitem(last=False)
            self._opens.leave(began)
            self._failed_expected(expected, None)

    def _open_expected(self, expected: ExpectedOpen) -> OpenFile:
        entry, content = expected.entry, expected.content
        path, file = self._sample_of[entry], self._member_of[entry]
        try:
            problem = content.files[file]
            if isinstance(problem, OSError):
                raise OSError(errno.EIO, _reason(problem)) from problem
        except BaseException as error:
            self._failed_expected(expected, error)
            raise
        opened = self._opened(path, file, expected.thread, content, keep_pages=expected.keep_pages)
        opened.outcome = expected.outcome
        return opened

    def expected_by_request(self) -> Iterator[tuple[int, Unanswered]]:
        for expected in self._expected:
            entry = expected.entry
            yield expected.request, Unanswered(self._sample_of[entry], self._member_of[entry], expected.thread)

    def _failed_expected(self, expected: ExpectedOpen, error: BaseException | None) -> None:
        entry = expected.entry
        self._failed(self._sample_of[entry], expected.thread, entry, expected.content.sample, error)

    # Other nodes, and other plans

    def renew(self, plan: Plan) -> None:
        """Replace the plan; the new one has its own laps. Open files stay as they are; opens that wait ask again."""
        self._replace(plan)
        self.checkpoint()

    def _replace(self, plan: Plan) -> None:
        if plan is not self.plan and plan.passing is not None:
            memory = self.recent.beyond(plan.passing.passes_bytes())
            if memory is not None:
                # What is there is of the plan before, or of one before that.
                memory[:8] = bytes(8)
                plan.passing.keep_passes_in(memory)
        self.plan = plan
        self._lowest = None
        # Their epoch ends with the laps.
        self.ranks.clear()
        self.recent.forget(plan.policy.given)
        self.binding.renew(plan.policy)
        self.memory.renew(
            plan.claims_bytes,
            keeps_remote=not plan.reads_any,
            retainer=plan.retained,
            most_lent_bytes=plan.lendable_bytes,
        )
        self.supply.cancel_unwanted()
        self.pending.ask_again()
        # The old plan may be large and part of a cycle, and nothing else collects old objects (`fs.serve`).
        gc.collect()

    @property
    def share(self) -> Share:
        """This node among those that share the dataset; there are others."""
        assert self.plan.sharing is not None
        return self.plan.sharing.share

    @property
    def shared_policy(self) -> SharedServingPolicy:
        """The policy in force; there are other nodes."""
        assert self.plan.sharing is not None
        return self.plan.sharing.policy

    @property
    def given(self) -> int:
        """The number of turns that this node has given since the first lap began."""
        return self.plan.policy.given

    @property
    def turns_of_readers(self) -> int:
        """`given`, and the turns of samples that this node read alone, which no lap counts."""
        sharing = self.plan.sharing
        alone = 0 if sharing is None else sharing.policy.degraded
        return self.given + alone + self._decided_alone

    def turns(self) -> Turns:
        """How far the laps are, by the turns of this node."""
        return self.plan.policy.turns()

    def kept_turns(self, *, whole: bool) -> Turns:
        """`turns`, with the passes of a node that keeps them: see `PoolPolicy.kept_turns`."""
        passing = self.plan.passing
        return self.turns() if passing is None else passing.kept_turns(whole=whole)

    def restore(self, turns: Turns) -> None:
        """Continue from ``turns``, as the only node. Raises ValueError, and changes nothing, if that is impossible."""
        self.plan.policy.restore(turns)
        # The same plan, but its policy has nothing in memory now.
        self.go_on(self.plan)

    def go_on(self, plan: Plan) -> None:
        """Replace the plan, by one whose laps continue from a state; it may be the same plan.

        Open files stay as they are. Everything else in memory is read again when it is needed.
        """
        self._replace(plan)
        for path in self.binding.let_go():
            self.memory.release(path)
        self.kernel.unhold(ALL_THREADS)
        self.checkpoint()

    def end_holds(self, of: Callable[[int], bool], tree: int | None) -> None:
        """End the holds of the threads that ``of`` takes, on the paths of a tree or of all: an epoch begins. It has no
        entry in the journal."""
        tree_of, class_of = self.catalog.tree_of_class, self.catalog.class_of
        for thread in [*filter(of, self.binding.holders)]:
            for path in self.binding.end_holds(thread, lambda path: tree in (None, tree_of[class_of[path]])):
                self.memory.release(path)
            self.kernel.unhold(thread)

    def void(self, unloaded: Sequence[int], revoked: Sequence[int]) -> None:
        """The policy has dropped ``unloaded`` without serving them, and ended the reservations of ``revoked``."""
        memory = self.memory
        for sample in revoked:
            self.binding.revoke(sample)
            # Also if it cannot be read here: no reader of this node gets it any more.
            memory.forget_reserved(sample)
        for sample in unloaded:
            # After its reservation was undone, a sample lies where it was reserved.
            is_remote = memory.holds_remote(sample) or (memory.is_remote(sample) and not memory.holds_own(sample))
            memory.forget(sample, remote=is_remote)

    def void_dropped(self) -> None:
        """Take out what the policy of several nodes has dropped and revoked."""
        policy = self.shared_policy
        if policy.unloaded or policy.revoked:
            self.void(policy.unloaded, policy.revoked)
            policy.unloaded.clear()
            policy.revoked.clear()

    def handled(self, message: Message, answer: Answer) -> None:
        """The policy answered a message of another node just now; before anything leaves this node."""
        if self._journal is not None:
            parts = (numbers_of(message), numbers_of(answer))
            self._journal.event(HANDLED, packed(parts, self.shared_policy.chosen))

    def received(self, answer: Answer) -> None:
        """The policy took in an answer of another node just now; before anything leaves this node."""
        if self._journal is not None:
            self._journal.event(RECEIVED, packed((numbers_of(answer),), self.shared_policy.chosen))

    def _ask_for(self, path: int, opened: Opened) -> Undecided | None:
        """After an open on several nodes: send messages. Returns what to wait for if the path is undecided."""
        if isinstance(opened.turn, Pending):
            self._readers[path] = self._reader
            self.pending.leave_undecided(path, opened.turn.ticket)
        if opened.turn is not None and self.watch_turn is not None:
            self.watch_turn(path)
        assert self.flush is not None
        self.flush()
        if opened.sample != UNDECIDED:
            return None
        self.counters.joined += opened.turn is None
        for gone in opened.released:
            self.memory.release(gone)
        return self.pending.undecided[path]

    async def _open_undecided(
        self, entry: int, thread: int, undecided: Undecided, *, keep_pages: bool, request: int
    ) -> OpenFile:
        path, file = undecided.path, self._member_of[entry]
        try:
            try:
                with self._opens.one(self._peer_timeout_s):
                    await undecided.over.wait()
            except trio.TooSlowError as error:
                if not undecided.over.is_set() and not self._decide_alone(undecided):
                    self._failed(path, thread, entry, path, OSError(errno.EIO, NO_ANSWER))
                    raise OSError(errno.EIO, NO_ANSWER) from error
            except BaseException as error:
                self._failed(path, thread, entry, path, error)
                raise
            content = self.memory.claimed(path)
            if content is None or (content.arrived and content.stamps[file] is None):
                content = self.supply.read_again(path, self.binding.present_answer(path))
            if content.arrived:
                opened = self._opened(path, file, thread, content, keep_pages=keep_pages)
                opened.outcome = Outcome.REMOTE
                return opened
            return await ExpectedOpen(self, entry, thread, content, keep_pages, outcome=Outcome.REMOTE)
        finally:
            # In the same turn the request loop answers it.
            self._succession.undecided.pop(request, None)

    def _decide_alone(self, undecided: Undecided) -> bool:
        decided = self.pending.decide_alone(undecided)
        self.counters.degraded += decided
        self._decided_alone += decided
        if decided and self._journal is not None and not self.is_frozen:
            self._journal.note(ALONE, 0, 0, 0, undecided.path, NO_SAMPLE, 0, 0)
        return decided

    @property
    def _peer_timeout_s(self) -> float:
        sharing = self.plan.sharing
        return self._timeout_s if sharing is None else sharing.timeout_s

    def _opened(self, path: int, file: int, thread: int, content: Content, *, keep_pages: bool) -> OpenFile:
        self.counters.opens += 1
        if content.sample == path:
            self.counters.exact += 1
        else:
            self.counters.redirected += 1
        stamp, got = content.stamps[file], content.files[file]
        assert stamp is not None
        if self._journal is not None:
            for number, changed in self.supply.since_scan(content.sample, content.stamps):
                self._journal.stamp(self.supply.file_of(content.sample, number), changed)
        if len(content.stamps) > 1:
            for number, entry in enumerate(self.supply.files_of(path)):
                other = content.stamps[number]
                if number != file and other is not None:
                    self.kernel.bind(entry, other.size)
        data = got.data if isinstance(got, FileBytes) else None
        if data is not None and not isinstance(data, Buffer):
            # A store in Python or another node's message brought it.
            data = Buffer(data)
        shares_pages = self.shares_pages is None or self.shares_pages(stamp.size, bool(self.copying))
        handle = self.files.keep(Handle(path, file, content, thread, not shares_pages))
        return OpenFile(handle, data, stamp.size, keep_pages, shares_pages, sample=content.sample)

    def _shed(self, path: int) -> None:
        for entry in self.supply.files_of(path):
            self.kernel.shed(entry)

    def stat(self, entry: int, thread: int) -> tuple[int, bool] | Coroutine[Any, Any, tuple[int, bool]]:
        """The size in bytes that ``thread`` would read from a file, and whether the kernel may cache it.

        Returns both, or a coroutine that does if another node has to decide.
        """
        path, file = self._sample_of[entry], self._member_of[entry]
        if path < 0:
            return self.exact.state(entry).size, True
        stamp = self._bound_stamp(path, file)
        if stamp is not None and self.binding.holds(thread, path):
            # A reader stats the file that it has just opened: the answer is known.
            return stamp.size, True
        heard_s = self._meet(thread, path, opens=False)
        if thread in self.copying:
            return self._stat_copied(entry, path)
        undecided = self.pending.undecided.get(path)
        if undecided is not None:
            return self._stat_late(entry, thread, undecided.over)
        former = self.pending.former_promise(path, thread)
        if former is not None:
            return self._stat_promised(entry, *former)
        result = self.binding.stat(path, file, thread)
        if self._journal is not None:
            sample = NO_SAMPLE if result.sample is None else result.sample
            self._journal.note(STAT, file, result.reserved, thread, path, sample, 0, int(heard_s * 1e9))
        if self.flush is not None:
            self.flush()
        for sample in result.unloaded:
            self.unload(sample)
        if result.pending is not None:
            promise = self.pending.promise(path, thread, result.pending.ticket)
            return self._stat_promised(entry, result.pending.ticket, promise)
        if result.reserved and result.sample is not None:
            sharing = self.plan.sharing
            remote = sharing is not None and sharing.policy.is_taken(result.sample)
            self.memory.reserve(result.sample, remote=remote)
        if stamp is not None:
            return stamp.size, True
        return self.supply.size(entry if result.sample is None else self.supply.file_of(result.sample, file)), False

    async def _stat_promised(self, entry: int, ticket: int, promise: Promise) -> tuple[int, bool]:
        try:
            return await self._stat_late(entry, promise.thread, promise.over)
        finally:
            self._withdrawn(ticket, was_waiting=self.pending.withdraw(ticket, promise))

    def _withdrawn(self, ticket: int, *, was_waiting: bool) -> None:
        if was_waiting and self._journal is not None and not self.is_frozen:
            self._journal.note(WITHDRAWN, 0, 0, 0, 0, NO_SAMPLE, 0, ticket)

    async def _stat_late(self, entry: int, thread: int, over: trio.Event) -> tuple[int, bool]:
        """`stat`, once another node has answered; the file's own size if it does not answer in time."""
        try:
            with self._opens.one(self._peer_timeout_s):
                await over.wait()
        except trio.TooSlowError:
            return self.supply.size(entry), False
        if self.is_frozen:
            # Until this is cancelled: the next process answers.
            await trio.sleep_forever()
        result = self.stat(entry, thread)
        return result if isinstance(result, tuple) else await result

    def unload(self, sample: int) -> None:
        """A reservation was undone, and the policy has no room for the bytes of its sample. Its turn is still to come:
        they stay if they cannot be read here."""
        if not self.memory.is_remote(sample) or self.plan.owner(sample) is None:
            self.memory.forget_reserved(sample)

    def look(self, entry: int) -> tuple[int, bool]:
        """As `stat` while the file is bound, else its own size. For no caller, and without any change."""
        stamp = self._bound_stamp(self._sample_of[entry], self._member_of[entry])
        return (self.supply.size(entry), False) if stamp is None else (stamp.size, True)

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview | Coroutine[Any, Any, bytes | memoryview]:
        """At most ``size`` bytes from ``offset`` of an open file, or a coroutine that returns them."""
        opened = self.files[handle]
        if isinstance(opened, ExactFile):
            return self._read_late(opened, self.exact.read(opened, offset, size))
        file = opened.content.files[opened.file]
        if not isinstance(file, FileBytes):
            return self._read_late(opened, self._read_by_position(opened, offset, size))
        part = memoryview(file.data)[offset : offset + size]
        self.counters.bytes_served += len(part)
        return part

    async def _read_late(self, opened: Handle | ExactFile, reading: Coroutine[Any, Any, bytes]) -> bytes:
        try:
            data = await reading
        except Exception as error:
            self.counters.errors += 1
            self._failures.note(partial(self._failed_read, opened, error), "a read failed")
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                # It was removed after a former process opened it, or after its bytes were given up.
                raise OSError(errno.ESTALE, "the file was removed while it was open") from error
            raise
        if isinstance(opened, ExactFile) or self.supply.owner(opened.content.sample) is None:
            self.counters.bytes_read += len(data)
        self.counters.bytes_served += len(data)
        return data

    def close(self, handle: int) -> None:
        opened = self.files.close(handle)
        if opened is None:
            return
        if isinstance(opened, ExactFile):
            if self.exact.close(opened):
                self._exact_changed(opened.entry)
        else:
            self.closed(opened.path, self.binding.close(opened.path))

    def served(self, entry: int) -> bytes:
        """The path, relative to the source, of the file whose bytes ``entry`` last served; empty before."""
        path = self._sample_of[entry]
        if path < 0:
            return self._tree.path(entry)
        answer = self.binding.answer(path)
        if answer is None:
            return b""
        return self._tree.path(self.supply.file_of(answer, self._member_of[entry]))

    def file_of(self, sample: int, entry: int) -> int:
        """The entry of the file of ``sample`` that opens of ``entry`` return when ``sample`` is their answer."""
        return self.supply.file_of(sample, self._member_of[entry])

    # Exact files

    async def open_exact(self, entry: int, branch: int = EXACT, *, bypasses: bool = False) -> OpenFile:
        """Open the file itself.

        ``branch``: where in the mount. ``bypasses``: its reads do not use the kernel's pages.
        """
        try:
            file, keep_pages = await self.exact.open(entry, branch, bypasses=bypasses)
        except Exception as error:
            self._failed_exact(entry, error)
            raise
        self.counters.opens += 1
        self.counters.exact += 1
        shares_pages = file.shares_pages and not bypasses
        if shares_pages and self.shares_pages is not None and not self.shares_pages(-1, bool(self.copying)):
            shares_pages = False
            file = file._replace(bypasses=True)
        handle = self.files.keep(file)
        if not keep_pages:
            self._exact_changed(entry)
        if self._journal is not None:
            self._journal.stamp(entry, file.file.stamp)
        return OpenFile(handle, None, -1, keep_pages or bypasses, shares_pages, Outcome.DIRECT)

    def _failed_exact(self, entry: int, error: Exception) -> None:
        self.counters.opens += 1
        self.counters.errors += 1
        self._failures.note(partial(self._failure_of, entry, entry, error))

    def _exact_changed(self, entry: int) -> None:
        """Its attributes in the kernel are not those of the file itself any more."""
        self.kernel.changed(entry, redirected=self.is_redirected(entry))
        self._ask(entry, not self.exact.is_as_scanned(entry))

    # Programs that are not the job

    async def _open_copied(self, entry: int) -> OpenFile:
        """Open a redirected file as itself, for a program that copies. It takes no turn, and leaves its path alone.

        The path may be open with another sample. So reads of this handle use none of the kernel's pages, which are
        those of that sample.
        """
        if not self._void_sizes():
            try:
                await self._settle(self._void_sizes)
            except trio.TooSlowError as error:
                self._failed_exact(entry, error)
                raise
        opened = await self.open_exact(entry, DATA, bypasses=True)
        self.counters.copied += 1
        return opened

    def _stat_copied(self, entry: int, path: int) -> tuple[int, bool] | Coroutine[Any, Any, tuple[int, bool]]:
        """`stat` for a program that copies: the size of a redirected file itself."""

        def is_void() -> bool:
            # The kernel has one size for all programs. One that is void when it arrives is passed on, and not kept.
            return self._void_sizes() and (not self.binding.is_bound(path) or self.kernel.void_size(entry, SETTLES_S))

        def known() -> tuple[int, bool]:
            return self.exact.state(entry).size if self.exact.is_open(entry) else self.supply.size(entry), False

        async def late() -> tuple[int, bool]:
            await self._settle(is_void)
            return known()

        return known() if is_void() else late()

    async def _settle(self, is_void: Callable[[], bool]) -> None:
        """Wait until sizes are void. The job may be waiting for them: it comes first."""
        with self._opens.one(MOST_SETTLE_S):
            while not is_void():
                await trio.sleep(SETTLE_LOOK_S)

    def _void_sizes(self) -> bool:
        """Make void what the kernel keeps from before programs that copy were here. Whether all of it is."""
        if self._kept_sizes:
            self._kept_sizes = [entry for entry in self._kept_sizes if not self.kernel.void_size(entry, SETTLES_S)]
        return not self._kept_sizes

    def _copying_changed(self, copying: bool) -> None:
        """The first program that copies is here, or the last one has ended."""
        self.kernel.sizes_differ(copying)
        paths = {file.path for file in self.files.values() if isinstance(file, Handle)} if copying else ()
        # So that its stats are not answered with sizes that the kernel has.
        self._kept_sizes = [entry for path in paths for entry in self.supply.files_of(path)]

    def out_of_date(self) -> set[int]:
        """Entries of which the tree does not have the present size and time."""
        return {*self.supply.changed_sizes, *self.exact.changed_states}

    # Counts

    def lowest_laps(self) -> list[int]:
        """By tree: the lowest lap of its classes or columns. A history asks each second."""
        if self._lowest is None:
            self._lowest = LowestLaps(self.catalog, self.plan)
        return self._lowest.now()

    def stats(self) -> dict[str, Any]:
        """The part of `stats.json` about the node."""
        catalog = self.catalog
        return {
            **self.plan.about,
            "samples": len(catalog.class_of),
            "classes": len(catalog.class_names),
            "memory_limit_bytes": self.plan.memory_bytes,
            "memory_used_bytes": self.memory.used_bytes,
            **asdict(self.counters),
            "copying": sorted(set(self.copying.values())),
            "sessions": self.callers.sessions(),
            "wait_seconds": round(self._opens.seconds + self._reads.seconds, 6),
            "changed": self.supply.changed_count(self.exact.changed_states.keys()),
            "lap": dict(zip(catalog.class_trees, self.lowest_laps(), strict=True)),
            "laps": {
                tree: lap._asdict() for tree, lap in zip(catalog.class_trees, self.plan.policy.tree_laps(), strict=True)
            },
            "open_files": len(self.files),
            "waiting_opens": self._opens.now,
            "waiting_reads": self._reads.now,
            **self.binding.counts(),
            **self.memory.counts(),
            **_retained(self.plan),
            **_passes(self.plan, catalog.class_trees),
            **self.supply.stats(),
        }

    async def _read_by_position(self, opened: Handle, offset: int, size: int) -> bytes:
        content, file = opened.content, opened.file
        stamp = content.stamps[file]
        if stamp is None:
            raise OSError(errno.EIO, "the file could not be read")
        if self.supply.owner(content.sample) is not None:
            return await self._read_at_owner(opened, stamp, offset, size)
        part = max(0, min(size, stamp.size - offset))
        with self._reads.one():
            return await in_thread(
                partial(self.supply.read_range, content.sample, file, stamp, offset, part),
                abandon_on_cancel=True,
                limiter=self._rereads,
            )

    async def _read_at_owner(self, opened: Handle, stamp: Stamp, offset: int, size: int) -> bytes:
        """Let the only node that can read the sample send it again, for all handles on its path."""
        path, file, sample = opened.path, opened.file, opened.content.sample
        content = self.memory.look(path)
        if content is None or (content.arrived and not isinstance(content.files[file], FileBytes)):
            content = self.supply.read_again(path, sample)
        with self._reads.one(self._peer_timeout_s):
            await content.wait()
        got = content.files[file]
        if not isinstance(got, FileBytes):
            raise OSError(errno.EIO, "its bytes are gone" if got is None else _reason(got))
        if not got.stamp.is_of(stamp):
            raise OSError(errno.ESTALE, "the file has changed since it was opened")
        opened.content = content
        return bytes(memoryview(got.data)[offset : offset + size])

    # Ends

    def closed(self, path: int, closed: Closed) -> None:
        """A handle on ``path`` is closed, and ``closed`` is what that ended."""
        if closed.last:
            self.memory.rest(path)
            for released in closed.released:
                self.memory.release(released)
            self.kernel.freed(self.supply.files_of(path))

    def _failed(self, path: int, thread: int, entry: int, sample: int, error: BaseException | None) -> None:
        # One that ended with the wait, or without an error, gets no answer here. The next process counts it.
        if isinstance(error, Exception):
            self.counters.opens += 1
            self.counters.errors += 1
            self._failures.note(partial(self._failure, entry, sample, error))
        self.closed(path, self.binding.fail(path, thread))
        self.kernel.unhold(thread)
        self.pending.give_up_unless_bound(path)

    def _failure(self, entry: int, sample: int, error: Exception) -> dict[str, str]:
        return self._failure_of(entry, self.supply.file_of(sample, self._member_of[entry]), error)

    def _failed_read(self, opened: Handle | ExactFile, error: Exception) -> dict[str, str]:
        if isinstance(opened, ExactFile):
            return self._failure_of(opened.entry, opened.entry, error)
        entry = self.supply.file_of(opened.path, opened.file)
        return self._failure_of(entry, self.supply.file_of(opened.content.sample, opened.file), error)

    def _failure_of(self, entry: int, of: int, error: Exception) -> dict[str, str]:
        """The fields of a line: ``entry`` was opened or read, with the bytes of ``of``."""
        name, sample = (os.fsdecode(self._tree.path(each)) for each in (entry, of))
        return {"path": name, "sample": sample, "error": _reason(error)}

    def _meet(self, thread: int, path: int, *, opens: bool) -> float:
        """Returns when the thread was heard, in s since boot."""
        if self.binding.depends_on(thread, path, opens=opens) and self.callers.is_another(thread):
            self._forget(thread)
        heard_s = self.callers.hear(thread)
        reservers, copying = self.binding.reservers, self.copying
        if reservers or copying:
            for gone in self.callers.gone(chain(reservers, copying)):
                self._forget(gone)
        return heard_s

    def _forget(self, thread: int) -> None:
        """A thread has ended: end its holds and reservations."""
        self.callers.forget(thread)
        ended = self.binding.thread(thread)
        if self._journal is not None:
            self._journal.note(FORGET, 0, 0, thread, 0, NO_SAMPLE, 0, 0)
        self.kernel.unhold(thread)
        for released in ended.released:
            self.memory.release(released)
        for sample in ended.unloaded:
            self.unload(sample)

    # For the process after this one

    def recover(self, past: Past) -> Recovered:
        """Continue where the process before this one was. Before any request.

        Open files keep their handles; their bytes are read by position, and a read fails with ESTALE if the file has
        changed since. Laps, reservations and holds are as they were. The request loop then does this, in this order,
        before it takes the first request:

        1. Attach the kernel, before this call: it gets `reopened`, `bind`, `ask` and `turned`.
        2. Give opens whose number is in ``answered`` or ``failed`` the same reply again, without `open`.
        3. With other nodes, join them again (`node.cluster`).
        4. Deliver the other waiting requests again, in the order of their receipt. Set `Journal.request` to the number
           of each.
        5. Call `release_pins`. Opens that were decided and not answered keep their paths open until then.

        Between two requests it calls `Journal.checkpoint_if_due`. A new mount calls `Journal.checkpoint` once instead
        of this. Before it ends requests without an answer, it calls `freeze`.

        Args:
            past: what that process left. The plan is of the view that it was in.

        Raises:
            RecoveryError: the journal is of another scan of the dataset, or damaged. The node is of no use then.
        """
        recovered = self._succession.recover(past)
        if self.plan.sharing is None and recovered.last_turn is not None:
            sample, thread = recovered.last_turn
            self.recent.complete(sample, self.plan.policy.lap_of(sample), thread, self.given)

        def release_pins() -> None:
            recovered.release_pins()
            self.checkpoint()

        return replace(recovered, release_pins=release_pins)

    def checkpoint(self) -> None:
        """Replace the checkpoint, after a change that has no entry in the journal."""
        if self._journal is not None and not self.is_frozen:
            self._journal.checkpoint()

    def checkpoint_soon(self) -> None:
        """Have a checkpoint written before the next request: something has changed that has no entry in the journal."""
        if self._journal is not None:
            self._journal.checkpoint_soon()

    def checkpoint_if_due(self) -> None:
        """Replace the checkpoint if it is time. Never between a decision and its entry."""
        if self._journal is not None and not self.is_frozen:
            self._journal.checkpoint_if_due()

    def freeze(self) -> None:
        """From now on no message of another node is handled, and no checkpoint is written. Requests that wait end
        without an answer: they are for the next process."""
        self.is_frozen = True

    def changed(self, entry: int, asks: bool) -> None:
        """A file has changed since the scan, or is as it was again (False)."""
        self._ask(entry, asks)
        if self._journal is not None:
            size = self.supply.size(entry) if asks else -1
            self._journal.note(CHANGED, 0, 0, 0, entry, NO_SAMPLE, 0, size)

    def _access_changed(self, entry: int) -> None:
        self._ask(entry, entry in self.supply.changed_sizes or entry in self.exact.changed_states)
        self.kernel.changed(entry)

    def _ask(self, entry: int, asks: bool) -> None:
        self.kernel.ask(entry, asks or entry in self.permissions.now)

    def _bound_stamp(self, path: int, file: int) -> Stamp | None:
        """The stamp of the file that a handle on the path reads, once it is known."""
        if not self.binding.is_bound(path):
            return None
        content = self.memory.look(path)
        return content.stamps[file] if content is not None and content.arrived else None


def _retained(plan: Plan) -> dict[str, int]:
    """What the policy retains from lap to lap."""
    policy = plan.retained
    return {
        "retained_samples": 0 if policy is None else policy.retained_samples,
        "retained_bytes": 0 if policy is None else policy.retained_bytes,
        "reads_saved": 0 if policy is None else policy.reads_saved,
        "reads_alone": 0 if policy is None else policy.reads_alone,
        "samples_given_back": 0 if policy is None else policy.given_back,
    }


def _passes(plan: Plan, trees: Sequence[str]) -> dict[str, Any]:
    """How far the passes of each tree are."""
    policy = plan.passing
    counted = plan.policy if isinstance(plan.policy, LocalFirst) else policy
    return {
        "passes": {} if policy is None else dict(zip(trees, map(PassFigures._asdict, policy.passes()), strict=True)),
        "samples_held_back": 0 if counted is None else counted.samples_held_back,
        "passes_given_twice": 0 if counted is None else counted.passes_given_twice,
    }


def _reason(error: Exception) -> str:
    """The error in words, without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
