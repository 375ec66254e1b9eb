"""The session loop: a request that need not wait does not pass through trio's scheduler.

pyfuse3 receives requests in a set of tasks. One task at a time has the *reader role*: it waits for the FUSE descriptor
to be readable, receives a request and runs its handler. With plain pyfuse3 every request passes through trio's
scheduler twice, once to hand the role over through a `trio.Lock` and once in `wait_readable`, and that costs more than
the request. pyfuse3 looks these primitives up in its module attribute ``trio``, which its own asyncio support replaces.
This module puts a small object there:

- `wait_readable` polls the descriptor first. If a request is there, it returns without suspending. If none is there and
  no handler is suspended, it stays at the descriptor: a program that just got an answer sends its next request sooner
  than the scheduler could have slept. It polls for `SPIN_S`, since to sleep and wake up takes longer and costs more
  than that, above all on a virtual machine. Then it sleeps for up to `LINGER_MS`. Every `REQUESTS_PER_TURN` requests it
  passes a real checkpoint, so that no other task starves.
- The task with the role keeps it. Only a handler that is about to suspend gives it to a parked task (`suspending`;
  `redoxfs.fs.handlers` calls it for every handler).

The end: an unmount shows as an error on the descriptor, `terminate` as a call of `notify_closing`. Both wake the parked
tasks, which then find the session over. An unmount right after a poll ends the task with the role silently, so this is
checked every `PULSE_S`. Cancellation is trio's own.

A request may vanish between the poll and the receive, when its program is killed. The receive then blocks and holds the
interpreter's lock: no load that arrives is delivered, and a program that waits for one cannot even be killed. So a
timer's signal interrupts the main thread every `PULSE_S`, and pyfuse3 then looks again.

Rejected: a non-blocking descriptor, since pyfuse3 takes EAGAIN for the end of the session. Rejected: a loop of our own
without pyfuse3's tasks. It would be some 15 % faster, but pyfuse3 parses the requests, and its loop cannot be entered
from outside. Versions of pyfuse3 that this was not tested with run unchanged.
"""

import select
import signal
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import cast

import pyfuse3
import trio
from trio.lowlevel import current_task

TESTED = ("3.4.", "3.5.")
"""Versions of pyfuse3 whose loop was read, and tested with this."""

REQUESTS_PER_TURN = 256
"""Requests between two checkpoints: about 5 ms, and enough to make the scheduler's cost small."""

WHILE_SUSPENDED = 4
"""The weight of a request while a handler waits, so that its result is delivered within about 1 ms."""

SPIN_S = 50e-6
"""How long to poll. Most requests follow an answer within this. It takes less CPU time per file than to sleep, and
serves 1.05 to 2.2 times as many files a second, more with fewer readers. Twice as long gains little more."""

LINGER_MS = 1
"""The shortest timeout of poll(2). Longer than a client takes to its next request, and below any deadline."""

PULSE_S = 0.5
"""The longest time that a receive blocks, or that the end of the task with the role goes unnoticed. One pulse costs
some 20 µs."""

ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class _Nothing:
    """Awaits an iterator without items, so no Python code runs. Each request awaits it three times."""

    __slots__ = ()
    __await__ = staticmethod(iter(()).__iter__)


NOTHING = cast(Awaitable[None], _Nothing())
"""The result is here already: awaiting this does not suspend."""


class ReaderRole:
    """The task that receives. Replaces the lock that pyfuse3 takes around every receive."""

    def __init__(self) -> None:
        self._holder: trio.lowlevel.Task | None = None
        self._parked: deque[trio.lowlevel.Task] = deque()
        self._closing = False
        self.suspended = 0

    def __aenter__(self) -> Awaitable[None]:
        task = current_task()
        if self._holder is None:
            self._holder = task
        elif self._holder is not task and not self._closing:
            return self._park(task)
        return NOTHING

    def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        # The task keeps the role while it runs the handler; only an error ends the task here.
        if kind is not None:
            self.hand_over()
        return NOTHING

    def hand_over(self) -> None:
        """The task with the role is about to suspend: another task receives from now on."""
        if self._holder is current_task():
            self._holder = self._parked.popleft() if self._parked else None
            if self._holder is not None:
                trio.lowlevel.reschedule(self._holder)

    def close(self) -> None:
        """The session is over: wake all parked tasks, so that they notice."""
        self._closing = True
        while self._parked:
            trio.lowlevel.reschedule(self._parked.popleft())

    async def look_after(self) -> None:
        """Wake the parked tasks if the task with the role has ended silently. Runs until cancelled.

        The session then ended between its poll and its receive.
        """
        while True:
            await trio.sleep(PULSE_S)
            holder = self._holder
            if holder is not None and (
                holder.parent_nursery is None or holder not in holder.parent_nursery.child_tasks
            ):
                self.close()

    async def _park(self, task: trio.lowlevel.Task) -> None:
        """Wait until this task has the role, or the session is over."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked.append(task)
        await trio.lowlevel.wait_task_rescheduled(abort)


class _Lowlevel:
    """`trio.lowlevel`, with a `wait_readable` that polls before it waits."""

    current_task = staticmethod(trio.lowlevel.current_task)
    current_trio_token = staticmethod(trio.lowlevel.current_trio_token)

    def __init__(self, role: ReaderRole) -> None:
        self._role = role
        poll = select.poll()
        self._register = poll.register
        self._look = poll.poll
        self._fd = -1
        self._readable: list[tuple[int, int]] = []
        self._until_checkpoint = REQUESTS_PER_TURN

    def wait_readable(self, fd: int) -> Awaitable[None]:
        if fd != self._fd:
            self._register(fd, select.POLLIN)
            self._fd = fd
            self._readable = [(fd, select.POLLIN)]
        suspended = self._role.suspended
        self._until_checkpoint -= WHILE_SUSPENDED if suspended else 1
        if self._until_checkpoint > 0:
            found = self._look(0)
            if not found and not suspended:
                found = self._linger()
            if found == self._readable or self._is_ended(found):
                return NOTHING
        return self._wait()

    def _linger(self) -> list[tuple[int, int]]:
        look, until = self._look, perf_counter() + SPIN_S
        while perf_counter() < until:
            if found := look(0):
                return found
        return look(LINGER_MS)

    def notify_closing(self, fd: int) -> None:
        trio.lowlevel.notify_closing(fd)
        self._role.close()

    def _is_ended(self, found: list[tuple[int, int]]) -> bool:
        """Whether the session is over; the next receive will report it."""
        if found and found[0][1] & ENDED:
            self._role.close()
            return True
        return False

    async def _wait(self) -> None:
        self._until_checkpoint = REQUESTS_PER_TURN
        await trio.lowlevel.checkpoint()
        while (found := self._look(0)) != self._readable and not self._is_ended(found):
            await trio.lowlevel.wait_readable(self._fd)


class _Trio:
    """Stands in for the module `trio` in pyfuse3."""

    ClosedResourceError = trio.ClosedResourceError
    open_nursery = staticmethod(trio.open_nursery)

    def __init__(self, role: ReaderRole) -> None:
        self.lowlevel = _Lowlevel(role)
        self._role = role

    def Lock(self) -> ReaderRole:  # noqa: N802 - trio's name
        return self._role


class Session:
    """The loop of one mount. Create it after `pyfuse3.init`. ``quick`` is false if pyfuse3 runs unchanged."""

    def __init__(self) -> None:
        self.quick = pyfuse3.__version__.startswith(TESTED) and getattr(pyfuse3, "trio", None) is trio
        self._role = ReaderRole()

    async def run(self, max_tasks: int) -> None:
        """Receive and handle requests until the session is over; in the main thread."""
        with _pulse():
            if self.quick:
                await self._run_quick(max_tasks)
            else:
                await pyfuse3.main(max_tasks=max_tasks)

    async def _run_quick(self, max_tasks: int) -> None:
        global _role
        pyfuse3.trio = _Trio(self._role)  # type: ignore[attr-defined]
        _role = self._role
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._role.look_after)
                # Idle tasks do not end: such a task could have the role.
                await pyfuse3.main(min_tasks=max_tasks, max_tasks=max_tasks)
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.trio = trio  # type: ignore[attr-defined]
            _role = None


@contextmanager
def _pulse() -> Iterator[None]:
    """Interrupt system calls of the main thread every `PULSE_S`. Python retries its own."""
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, PULSE_S, PULSE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# pyfuse3 has one session per process, and so has this.
_role: ReaderRole | None = None


def suspending() -> None:
    """The running handler suspends for the first time. Another task receives from now on."""
    if _role is not None:
        _role.suspended += 1
        _role.hand_over()


def resumed() -> None:
    """A handler that had suspended is over."""
    if _role is not None:
        _role.suspended -= 1
