"""The session loop: trio for whatever waits, and nothing of trio for a request that need not.

pyfuse3 receives requests in a set of tasks, one of which at a time has the *reader role*: it waits for the FUSE
descriptor to be readable, receives a request and runs its handler. As it comes, every request goes through trio's
scheduler twice, once to hand the role on through a `trio.Lock` and once in `wait_readable`, and that costs more
than the request. pyfuse3 looks these primitives up in its module attribute ``trio`` (its own asyncio support
replaces it), so a small object is put there:

- `wait_readable` asks the descriptor first. If a request is there, it returns without suspending. If none is there
  and no handler is suspended, it stays with the descriptor: a program that was just answered asks again sooner than
  the scheduler could have gone to sleep. For `SPIN_S` it looks again and again, as to sleep and be woken takes longer
  and costs more than that, on a virtual machine above all; then it sleeps for up to `LINGER_MS`. Every
  `REQUESTS_PER_TURN` it goes through a real checkpoint, so that nothing else starves.
- the role stays with the task that has it. Only a handler that is about to suspend gives it to a parked task
  (`suspending`; `redoxfs.fs.handlers` calls it for every handler).

Ends: an unmount shows as an error on the descriptor, `terminate` as a call of `notify_closing`; both wake the parked
tasks, which then find the session over. An unmount that comes just after the look ends the holder without a word, so
it is looked after every `PULSE_S`. Cancellation is trio's own.

A request may vanish between the look and the receive, when its program is killed. The receive then blocks, with the
interpreter's lock: loads that arrive are not handed on, and whoever waits for one cannot even be killed. (A
descriptor that does not block would not do: pyfuse3 takes EAGAIN for the end.) So a timer's signal interrupts the
main thread every `PULSE_S`, upon which pyfuse3 looks again.

Rejected: a loop of our own without pyfuse3's tasks. It would be some 15 % quicker, but parsing requests is pyfuse3's
business, and its loop cannot be entered from outside. A pyfuse3 that this was not tested with runs as it comes.
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
"""Versions of pyfuse3 whose loop has been read and tested with this."""

REQUESTS_PER_TURN = 256
"""Requests between two checkpoints: about 5 ms, and the scheduler's cost is spread over enough of them."""

WHILE_SUSPENDED = 4
"""What a request counts for while a handler waits, so that what it waits for is handed on within about 1 ms."""

SPIN_S = 50e-6
"""Most requests follow an answer within this; one that does not has cost a core so much. It takes less processor time a
file than to sleep, and gives 1.05 to 2.2 times as many files a second, the more the fewer readers; twice as long gains
little more."""

LINGER_MS = 1
"""The least that poll(2) takes. Longer than a client's next request, and far less than any deadline or person."""

PULSE_S = 0.5
"""How long a receive can block, and the holder's end go unnoticed; a pulse costs some 20 µs."""

ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class _Nothing:
    """What it awaits is an iterator without items, so no Python code runs; each request awaits it three times."""

    __slots__ = ()
    __await__ = staticmethod(iter(()).__iter__)


NOTHING = cast(Awaitable[None], _Nothing())
"""It is there already: awaiting it does not suspend."""


class ReaderRole:
    """Which task receives. Stands in for the lock that pyfuse3 takes around every receive."""

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
        # The role is kept through the handler that follows; only an error ends the holder here.
        if kind is not None:
            self.hand_over()
        return NOTHING

    def hand_over(self) -> None:
        """The holder is about to suspend: another task receives from now on."""
        if self._holder is current_task():
            self._holder = self._parked.popleft() if self._parked else None
            if self._holder is not None:
                trio.lowlevel.reschedule(self._holder)

    def close(self) -> None:
        """The session is over: wake all who wait for the role, so that they see it."""
        self._closing = True
        while self._parked:
            trio.lowlevel.reschedule(self._parked.popleft())

    async def look_after(self) -> None:
        """Wake the parked tasks once the holder has ended without a word, until cancelled.

        Then the session ended in its hands, between its look and its receive.
        """
        while True:
            await trio.sleep(PULSE_S)
            holder = self._holder
            if holder is not None and (
                holder.parent_nursery is None or holder not in holder.parent_nursery.child_tasks
            ):
                self.close()

    async def _park(self, task: trio.lowlevel.Task) -> None:
        """Until the role is this task's, or the session over."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked.append(task)
        await trio.lowlevel.wait_task_rescheduled(abort)


class _Lowlevel:
    """`trio.lowlevel`, with a `wait_readable` that looks before it waits."""

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
        """Whether the session is over, which receiving will say."""
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
    """What pyfuse3 finds where it looks for trio."""

    ClosedResourceError = trio.ClosedResourceError
    open_nursery = staticmethod(trio.open_nursery)

    def __init__(self, role: ReaderRole) -> None:
        self.lowlevel = _Lowlevel(role)
        self._role = role

    def Lock(self) -> ReaderRole:  # noqa: N802 - trio's name
        return self._role


class Session:
    """The loop of one mount. Make one after `pyfuse3.init`; ``quick`` is false where pyfuse3 runs as it comes."""

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
                # No task ends for being idle: the one that ended might be the one with the role.
                await pyfuse3.main(min_tasks=max_tasks, max_tasks=max_tasks)
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.trio = trio  # type: ignore[attr-defined]
            _role = None


@contextmanager
def _pulse() -> Iterator[None]:
    """Interrupt whatever blocks the main thread every `PULSE_S`. Python's own calls go on by themselves."""
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, PULSE_S, PULSE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# pyfuse3 is one session for each process, and so is this.
_role: ReaderRole | None = None


def suspending() -> None:
    """The running handler suspends for the first time: another task receives from now on."""
    if _role is not None:
        _role.suspended += 1
        _role.hand_over()


def resumed() -> None:
    """A handler that had suspended is over."""
    if _role is not None:
        _role.suspended -= 1
