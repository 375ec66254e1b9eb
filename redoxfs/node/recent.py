"""The last turns of this node, and the batch of a DataLoader that each was for.

A loader opens files ahead of the training loop. Samples that it opened and the loop did not get have had their turn,
and must come again if the job ends now. So the node keeps the last `TURNS` turns with their laps. A state can be saved
without some of them: the last N (`redoxfs state save --less`), or those of the batches that a loader has not yielded
(`redoxfs.torch`). The node also keeps the `MARKED` marked turns before them: a validation pushes none of these out.

A worker *marks* the beginning of each batch: it looks up a name in `.redoxfs/batches`. The turns of its process belong
to that batch until its next mark. Batches have numbers within an iteration of a loader, and a loader has a token.

If there is a keeper, the tables are in memory that outlives the process, and so are the passes of the pool
(`redoxfs.protocol.pool.passes`), in the same memory. A new daemon continues them, so checkpoints do
not contain them. A daemon may die after the journal has a turn, and before the turn has its row here. The policy counts
turns too, so a new daemon notices, and adds the row (`complete`). The marked turns before the last ones end with the
process.

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

MARKED = 1 << 18
"""Enough for batches of 1,024 files. It takes 6 MB once turns are pushed out."""

MARKS = 1 << 14
"""Enough for the batches of these turns, if a batch has at least 20 samples."""

NO_MARK = -1
LAYOUT = 2

_HEAD = 4
_TURN = 2
_MARKED_TURN = 3
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
        # Marked turns that were pushed out: number, sample | lap << 32, number of the mark.
        marked = np.zeros(MARKED * _MARKED_TURN, np.int64)
        self._marked = marked.data
        self._marked_rows = marked.reshape(MARKED, _MARKED_TURN)
        self._pushed_out = 0
        # All marked turns from this number on are kept.
        self._known_from = max(0, self._head[1] - TURNS)
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
        if count >= TURNS and self._turns[at + 1] != NO_MARK:
            self._keep(count - TURNS, self._turns[at], self._turns[at + 1])
        self._turns[at] = sample | lap << 32
        self._turns[at + 1] = mark
        self._head[1] = count + 1

    def _keep(self, number: int, packed: int, mark: int) -> None:
        """Keep a marked turn that is pushed out of the last ones."""
        at = (self._pushed_out & (MARKED - 1)) * _MARKED_TURN
        if self._pushed_out >= MARKED:
            self._known_from = self._marked[at] + 1
        self._marked[at], self._marked[at + 1], self._marked[at + 2] = number, packed, mark
        self._pushed_out += 1

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
        self._pushed_out = self._known_from = 0

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
        if begun < self._known_from:
            raise ForgottenError(
                f"since the loader opened what it has ahead, tracked loaders have opened {MARKED:,} files, or the "
                f"mount has had {TURNS:,} opens and another daemon, and keeps no more; save again when the loader "
                "has yielded it"
            )
        older = self._marked_rows[np.arange(max(0, self._pushed_out - MARKED), self._pushed_out) % MARKED]
        numbers = np.arange(max(begun, self._head[1] - TURNS), self._head[1])
        last = numbers[is_in(self._turn_rows[numbers % TURNS, 1], wanted)]
        return np.concatenate([_unpacked(older[is_in(older[:, 2], wanted), 1]), self._rows(last)])

    def _rows(self, numbers: Int64) -> Int64:
        return _unpacked(self._turn_rows[numbers % TURNS, 0])

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


def _unpacked(packed: Int64) -> Int64:
    """Samples and laps, int64[n, 2]."""
    return np.stack([packed & 0xFFFFFFFF, packed >> 32], axis=1)


def _array(memory_fd: int) -> Int64:
    if memory_fd < 0:
        return np.zeros(_NUMBERS, np.int64)
    if os.fstat(memory_fd).st_size < _NUMBERS * 8:
        os.ftruncate(memory_fd, _NUMBERS * 8)
    return np.frombuffer(mmap.mmap(memory_fd, _NUMBERS * 8), np.int64)
