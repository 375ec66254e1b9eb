"""Work on the shards of a dataset, spread over processes.

Shards do not depend on each other, and all facts about them lie in memory-mapped arrays. So a worker is a process that
opens these arrays and receives numbers of shards. Processes rather than threads, because tar headers and file names are
work for Python, which threads would do one after the other. A single worker runs in this process, unless it may hang.
So does all work where the system gives no semaphores, which processes need to share it.

Workers count their work in shared memory, which the caller reads at any time. They end with the process that started
them, however it ends, and leave Ctrl-C to it, and other signals that the whole group may get. If one of them dies, the
pool ends the others, which may wait for a lock that the dead one held.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redoxfs.linux.parent import signal_at_the_parents_end

if TYPE_CHECKING:
    from multiprocessing.synchronize import Lock

SPAWN = multiprocessing.get_context("spawn")

PROGRESS_EVERY_S = 0.2

STOP_S = 3.0
"""How long a worker that may hang has to stop."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

State = TypeVar("State")
Result = TypeVar("Result")


class WorkerEndedError(Exception):
    """A worker process ended before its work did. Where memory is limited, the kernel kills one of them."""

    def __init__(self, workers: int) -> None:
        fewer = f" with --jobs {workers // 2}" if workers > 1 else ""
        super().__init__(
            f"a worker process ended early, perhaps killed for lack of memory; run the same command again{fewer}"
        )


@dataclass(frozen=True, slots=True)
class Done:
    """Files and bytes that all workers together have done so far."""

    files: int
    size: int


class Tally:
    """Files done, bytes done, and whether workers have to stop: numbers in shared memory if workers are processes."""

    def __init__(self, shared: "ctypes.Array[ctypes.c_longlong]", lock: AbstractContextManager[bool]) -> None:
        self._shared = shared
        self._lock = lock

    def add(self, files: int, size: int) -> None:
        with self._lock:
            self._shared[0] += files
            self._shared[1] += size

    def stopping(self) -> bool:
        return bool(self._shared[2])

    def stop(self) -> None:
        self._shared[2] = 1

    def done(self) -> Done:
        with self._lock:
            return Done(self._shared[0], self._shared[1])


@dataclass(frozen=True, slots=True)
class Work(Generic[State, Result]):
    """``prepare`` makes a worker's state, once; ``carry_out`` does one shard with it. Both are module functions.

    ``may_hang``: ``carry_out`` may wait for a server, and does not notice that it has to stop.
    """

    prepare: Callable[[Any], State]
    argument: Any
    carry_out: Callable[[State, int, Tally], Result]
    may_hang: bool = False


def each_shard(
    work: Work[State, Result], shards: Sequence[int], jobs: int, on_progress: Callable[[Done], None]
) -> Iterator[tuple[int, Result]]:
    """Run ``work`` for each of ``shards``, ``jobs`` at a time. Yield (shard, result) as shards finish.

    An exception in one shard stops the others, and is raised when they have stopped: WorkerEndedError if a worker
    process ended early.
    """
    pool: ProcessPoolExecutor | ThreadPoolExecutor
    processes = min(jobs, len(shards))
    lock = shared_lock() if processes > 1 or work.may_hang else None
    if lock is None:
        tally = Tally((ctypes.c_longlong * 3)(), threading.Lock())
        _here[:] = work, tally
        pool = ThreadPoolExecutor(1)
    else:
        tally = Tally(SPAWN.RawArray(ctypes.c_longlong, 3), lock)
        pool = ProcessPoolExecutor(processes, mp_context=SPAWN, initializer=_begin, initargs=(work, tally, os.getpid()))
    try:
        with _no_interrupt(), _in_a_directory():
            waiting = {pool.submit(_one, shard): shard for shard in shards}
        while waiting:
            finished, _ = wait(waiting, PROGRESS_EVERY_S, FIRST_COMPLETED)
            on_progress(tally.done())
            for future in finished:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool:
        raise WorkerEndedError(processes) from None
    finally:
        # A further SIGTERM ends this process and its workers at once, as one of them may wait for storage for ever.
        with _no_interrupt(signal.SIGINT), _ending(signal.SIGTERM, signal.SIGHUP):
            tally.stop()
            pool.shutdown(cancel_futures=True)
        _here.clear()


def shared_lock() -> "Lock | None":
    """A lock that processes share; None where the system gives no semaphores."""
    try:
        # The first one starts a process that removes what is left of them, and would itself end at a SIGHUP.
        with _no_interrupt():
            return SPAWN.Lock()
    except (ImportError, OSError):
        # Python was built without sem_open; it is not allowed; or /dev/shm is not there, full, or not to be written.
        return None


@contextmanager
def _ending(*signals: signal.Signals) -> Iterator[None]:
    """Let signals end this process, but for those that it ignores."""
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_interrupt(*signals: signal.Signals) -> Iterator[None]:
    """Block signals (default: all that end a command) while children start or end.

    Ctrl-C reaches the whole foreground group, also a child that does not ignore it yet. If a signal breaks off the wait
    for a thread, Python takes the thread for ended. It would then wait for children that this thread has not told to
    end.

    A child inherits the blocked signals. In this process they are only delayed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals or _ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _in_a_directory() -> Iterator[None]:
    """Let children start in / where the current directory was removed: Python starts none without a path of it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        removed = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        yield
        return
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(removed)
        os.close(removed)


_here: list[Any] = []
"""Of this worker: the work, the tally, and the state once the first shard needs it."""


def _begin(work: Work[Any, Any], tally: Tally, parent: int) -> None:
    signal_at_the_parents_end(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_the_pool, args=(parent,), daemon=True).start()
    if work.may_hang:
        threading.Thread(target=_end_in_time, args=(tally,), daemon=True).start()
    _here[:] = work, tally


def _end_with_the_pool(parent: int) -> None:
    """End this process at a SIGTERM of its parent, by which a pool ends workers; the group gets those of others."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(1)


def _end_in_time(tally: Tally) -> None:
    """End this process soon after it has to stop, whatever it waits for."""
    while not tally.stopping():
        time.sleep(PROGRESS_EVERY_S)
    time.sleep(STOP_S)
    os._exit(1)


def _one(shard: int) -> Any:
    work, tally, *state = _here
    if not state:
        # Not as the process begins: a pool prints the traceback of what fails then, and takes the worker for killed.
        state = [work.prepare(work.argument)]
        _here[2:] = state
    return work.carry_out(state[0], shard, tally)
