"""Calls in threads, for a daemon that may not be able to start any.

At a limit of processes (`pids.max` of a control group, `ulimit -u`) no thread starts, and a job's own workers may fill
that limit at any time. So one thread starts before the mount, and carries out the calls for which trio gets none. Then
they wait for each other, but nothing fails.

Called from the trio task, but for `start_spare`.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


class NoThreadError(Exception):
    """No thread can be started: this process is at a limit of processes."""

    def __init__(self) -> None:
        super().__init__(
            "no thread can be started; raise the limit of processes (ulimit -u, or pids.max of the cgroup)"
        )


class _Spare:
    """One thread, and what waits for it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        thread = threading.Thread(target=self._run, name="redoxfs-spare", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise NoThreadError from None

    def _run(self) -> None:
        while True:
            self._calls.get()()

    def submit(self, call: Callable[[], None]) -> None:
        """Carry out ``call``, which raises nothing, after those before."""
        self._calls.put(call)


_spare: _Spare | None = None


def start_spare() -> None:
    """Start the thread, once in a process. Raises NoThreadError."""
    global _spare
    if _spare is None:
        _spare = _Spare()


async def in_thread(
    call: Callable[..., T],
    *arguments: Any,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """As `trio.to_thread.run_sync`. Raises NoThreadError if there is neither a thread nor the spare one."""
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return call(*arguments)

    try:
        return await trio.to_thread.run_sync(begin, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    except RuntimeError:
        if has_begun:
            raise
    return await _in_spare(begin, abandon_on_cancel=abandon_on_cancel)


async def _in_spare(call: Callable[[], T], *, abandon_on_cancel: bool) -> T:
    if _spare is None:
        raise NoThreadError
    token, over = trio.lowlevel.current_trio_token(), trio.Event()
    results: list[T] = []
    errors: list[BaseException] = []
    is_abandoned = False

    def run() -> None:
        if is_abandoned:
            return
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        try:
            token.run_sync_soon(over.set)
        except trio.RunFinishedError:
            return

    _spare.submit(run)
    try:
        with trio.CancelScope(shield=not abandon_on_cancel):
            await over.wait()
    finally:
        is_abandoned = True
    if errors:
        raise errors[0]
    return results[0]


def begin_in_thread(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> threading.Event:
    """Begin ``call``, which raises nothing, in a thread that ends with the process. The event is set when it is over.

    Raises NoThreadError.
    """
    over = threading.Event()

    def run() -> None:
        call(*arguments, **named)
        over.set()

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        if _spare is None:
            raise NoThreadError from None
        _spare.submit(run)
    return over
