"""The last turns of this node, and the batch of a DataLoader that each was for.

A loader opens files ahead of the training loop. Samples that it opened and the loop did not get have had their turn,
and must come again if the job ends now. So the node keeps the last `TURNS` turns with their laps. A state can be saved
without some of them: the last N (`redoxfs state save --less`), or those of the batches that a loader has not yielded
(`redoxfs.torch`).

A worker *marks* the beginning of each batch: it looks up a name in `.redoxfs/batches`. The turns of its process belong
to that batch until its next mark. Batches have numbers within an iteration of a loader, and a loader has a token.

If there is a keeper, the tables are in memory that outlives the process, and so are the passes of the pool
(`redoxfs.protocol.pool.passes`), in the same memory. A new daemon continues them, so checkpoints do
not contain them. A daemon may die after the journal has a turn, and before the turn has its row here. The policy counts
turns too, so a new daemon notices, and adds the row (`complete`).

    head    int64[4]: layout, turns so far, marks so far, the policy's count of turns before the first row
    turns   int64[TURNS, 2]: sample | lap << 32, number of the mark or -1
    marks   int64[MARKS, 5]: process, token, iteration, batch, turns so far at the mark

Called from the node's task alone.
"""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import is_in
from redoxfs.linux.pids import process_of

TURNS = 1 << 16
"""Enough for the loaders of a machine: 16 ranks with 8 workers, two batches each of 256 files."""

MARKS = 1 << 14
"""Enough for the batches of these turns, if a batch has at least 4 samples."""

NO_MARK = -1
LAYOUT = 2

_HEAD = 4
_TURN = 2
_MARK = 5
_NUMBERS = _HEAD + TURNS * _TURN + MARKS * _MARK

# Threads whose process is remembered. Others are looked up in /proc.
_THREADS = 4096

Int64 = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """A batch of a loader. Later batches of the same loader compare as greater."""

    token: int
    iteration: int
    number: int


class ForgottenError(ValueError):
    """The node no longer has the turns that were asked for: one line."""


class RecentTurns:
    """The last turns of a node.

    Args:
        memory_fd: of a memfd that outlives this process, empty or with the turns of a former daemon; -1: none.
        proc: the directory where the kernel lists threads.
    """

    def __init__(self, memory_fd: int = -1, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._memory_fd = memory_fd
        self._array = _array(memory_fd)
        if self._array[0] != LAYOUT:
            self._array[:_HEAD] = (LAYOUT, 0, 0, 0)
        head, turns, marks = np.split(self._array, [_HEAD, _HEAD + TURNS * _TURN])
        self._head = head.data
        self._turns = turns.data
        self._turn_rows = turns.reshape(TURNS, _TURN)
        self._mark_rows = marks.reshape(MARKS, _MARK)
        # By process: the number of its latest mark.
        self._mark_of: dict[int, int] = {}
        self._process_of: dict[int, int] = {}
        for number in self._kept_marks():
            self._mark_of[int(self._mark_rows[number % MARKS, 0])] = number

    def beyond(self, size_bytes: int) -> memoryview | None:
        """Memory that outlives this process too, empty or as a former daemon left it; None: there is none."""
        if self._memory_fd < 0:
            return None
        end = _NUMBERS * 8 + size_bytes
        if os.fstat(self._memory_fd).st_size < end:
            os.ftruncate(self._memory_fd, end)
        return memoryview(mmap.mmap(self._memory_fd, end))[_NUMBERS * 8 :]

    def note(self, sample: int, lap: int, thread: int) -> None:
        """Record a turn of ``sample`` in ``lap``, for an open by ``thread``."""
        mark = NO_MARK if not self._mark_of else self._mark_of.get(self._process(thread), NO_MARK)
        count = self._head[1]
        at = (count & (TURNS - 1)) * _TURN
        self._turns[at] = sample | lap << 32
        self._turns[at + 1] = mark
        self._head[1] = count + 1

    def mark(self, thread: int, batch: Batch) -> None:
        """The process of ``thread`` begins a batch."""
        # The kernel reuses thread numbers, so an old answer may be another process.
        process = self._look_up(thread)
        if process not in self._mark_of:
            self._process_of.clear()
        self._process_of[thread] = process
        number = self._head[2]
        self._mark_rows[number % MARKS] = (process, *batch, self._head[1])
        self._head[2] = number + 1
        self._mark_of[process] = number
        if len(self._mark_of) > 2 * MARKS:
            # Forget processes that ended long ago.
            self._mark_of = {process: at for process, at in self._mark_of.items() if at > number - MARKS}

    def forget(self, given: int = 0) -> None:
        """Forget all turns, and which batch each process was at: the laps are others from now on.

        ``given``: how many turns they have had, by the policy's count.
        """
        self._head[1] = 0
        self._head[2] = 0
        self._head[3] = given
        self._mark_of.clear()

    def complete(self, sample: int, lap: int, thread: int, given: int) -> None:
        """`note` the last turn of a former daemon if its row is missing: the policy has counted one more (``given``).

        Only for laps of one node: with others, the policy also counts turns that it gave to them.
        """
        if self._head[3] + self._head[1] == given - 1:
            self.note(sample, lap, thread)

    def last(self, count: int) -> Int64:
        """The last turns, int64[n, 2] of sample and lap: ``count``, or all since laps began. Raises ForgottenError."""
        if count > TURNS:
            raise ForgottenError(f"the last {TURNS:,} opens are kept, not {count:,}")
        return self._rows(np.arange(max(0, self._head[1] - count), self._head[1]))

    def since(self, first: Batch) -> Int64:
        """The turns for batch ``first`` of a loader and later ones, int64[n, 2] of sample and lap.

        Raises:
            ForgottenError: some of them may be gone, or the batch before ``first`` was never marked.
        """
        marks = self._kept_marks()
        rows = self._mark_rows[marks % MARKS]
        of_loader = rows[:, 1] == first.token
        is_later = (rows[:, 2] > first.iteration) | ((rows[:, 2] == first.iteration) & (rows[:, 3] >= first.number))
        wanted = marks[of_loader & is_later]
        if first.number and not (of_loader & (rows[:, 2] == first.iteration) & ~is_later).any():
            # What was forgotten with the laps leaves fewer marks than are kept.
            why = (
                f"{MARKS:,} batches of other loaders have begun"
                if self._head[2] > MARKS
                else "a state was loaded or the list of nodes has changed"
            )
            raise ForgottenError(
                f"batch {first.number - 1} of the loader is not known here: since it was opened, {why}; save again "
                "when the loader has yielded what it has ahead"
            )
        if not len(wanted):
            return np.zeros((0, 2), np.int64)
        begun = int(self._mark_rows[wanted % MARKS, 4].min())
        if begun < self._head[1] - TURNS:
            raise ForgottenError(
                f"since the loader opened what it has ahead, the mount has had {TURNS:,} opens, of whatever loader, "
                "and keeps no more; save again when the loader has yielded it"
            )
        numbers = np.arange(begun, self._head[1])
        return self._rows(numbers[is_in(self._turn_rows[numbers % TURNS, 1], wanted)])

    def _rows(self, numbers: Int64) -> Int64:
        packed = self._turn_rows[numbers % TURNS, 0]
        return np.stack([packed & 0xFFFFFFFF, packed >> 32], axis=1)

    def _kept_marks(self) -> Int64:
        return np.arange(max(0, self._head[2] - MARKS), self._head[2])

    def _process(self, thread: int) -> int:
        """The process of a thread; the thread itself if /proc does not show it."""
        process = self._process_of.get(thread)
        if process is None:
            if len(self._process_of) >= _THREADS:
                self._process_of.clear()
            process = self._process_of[thread] = self._look_up(thread)
        return process

    def _look_up(self, thread: int) -> int:
        try:
            return process_of(thread, self._proc)
        except (OSError, ValueError):
            return thread


def _array(memory_fd: int) -> Int64:
    if memory_fd < 0:
        return np.zeros(_NUMBERS, np.int64)
    if os.fstat(memory_fd).st_size < _NUMBERS * 8:
        os.ftruncate(memory_fd, _NUMBERS * 8)
    return np.frombuffer(mmap.mmap(memory_fd, _NUMBERS * 8), np.int64)
