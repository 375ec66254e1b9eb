"""The storage under a directory, by a short probe that only reads.

It reads as redoxfs and a training script do: open a file, read all of it, close it. The question is how many files a
second come with one read in flight, as with one worker, and what more in flight gain. Pages of a file are dropped
before it is read, and not left behind where the kernel can do that (RWF_DONTCACHE), so the page cache neither helps nor
suffers. Rejected: O_DIRECT. redoxfs and scripts read without it, filesystems treat it differently, and small files need
aligned buffers.

Each part runs in a child with a deadline. In the child, threads read, and the main thread reports what they have done
when the time is over. So storage that hangs in the middle costs no more than its time, and nothing that came before is
lost. Python takes 30 to 60 µs for a file: storage beyond some 15,000 files a second is shown as that fast.
"""

import contextlib
import errno
import itertools
import os
import random
import shlex
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.launch.deadline import call_in_child
from redoxfs.launch.sizes import counted, format_bytes, format_time
from redoxfs.linux.mount_table import mount_of, read_mounts
from redoxfs.packed.index import is_packed
from redoxfs.packed.store import RWF_DONTCACHE

DEFAULT_PROBE_S = 10.0

WARM_UP_DEPTH = 8
"""Of a first round that does not count: it pays for connections, and for what all files of a directory share."""

DEPTHS = (1, 8, 2, 4, 16, 32, 64, 128)
"""In the order in which they are measured: if time runs out, the first two matter most. redoxfs has at most 128 reads
in flight on a directory (chunks/directory.py)."""

LEAST_GAIN = 1.1
"""Beyond a depth of 8, twice the depth is tried as long as it brings this times the rate, as redoxfs itself does."""

ROUND_SHARE = 1 / 12
"""Of the time, for each depth. The rest is for finding files, long reads, and rounds of slow storage."""

LEAST_READS = 8
"""Finished reads in a round. A round with fewer goes on, up to a third of the time."""

MOST_BYTES = 2 << 30
"""That a probe reads in all. Storage in a cloud may bill for more."""

MOST_FILES, MOST_OF_FOLDER, MOST_LISTED = 20_000, 128, 5_000
"""How many files the probe chooses from; how many of each folder it takes before it takes more of any; and how many
entries of a folder it looks at. It needs many files, as a server answers from its cache for one that is read again."""

FILE_BYTES, BLOCK_BYTES, LONG_BYTES = 16 << 20, 4096, 4 << 20
"""The most that is read of a file at once; a read at a random place of a shard; a long read."""

SWEEPS = 8
"""Long reads in flight, as of the packed store."""

LEAST_HUNG_S = 2.0
"""A round that gets less time, after others that had answers, says nothing by having none."""

GRACE_S = 1.0
"""For a child to report, beyond its time."""

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "9p", "virtiofs", "afs", "glusterfs")
MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


@dataclass(frozen=True, slots=True)
class Round:
    """Reads at one depth. Times in seconds; ``p50`` and ``p99`` are of a read, None if none has ended."""

    depth: int
    reads: int
    bytes: int
    seconds: float
    p50: float | None
    p99: float | None
    failed: int
    failure: str | None

    @property
    def per_s(self) -> float:
        return self.reads / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe measured.

    ``rounds`` have whole files, or in a packed dataset blocks of shards. ``long_bytes_per_s`` is the rate of long
    reads; None: no file is long enough. ``trouble``: the storage did not answer, or refused; ``mend``: what to do then.
    """

    is_packed: bool = False
    files: int = 0
    rounds: tuple[Round, ...] = ()
    long_bytes_per_s: float | None = None
    trouble: str | None = None
    mend: str = "look at the server, the network, and dmesg"

    @property
    def mean_bytes(self) -> float:
        """Of the files that were read; 0 if none was."""
        reads = sum(each.reads for each in self.rounds)
        return sum(each.bytes for each in self.rounds) / reads if reads else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The best rate of bytes that was seen: with only small files, less than the storage can do."""
        return max([self.long_bytes_per_s or 0.0, *(each.bytes_per_s for each in self.rounds)])

    def per_s(self, depth: int) -> float:
        """Files a second with so many reads in flight: that of the greatest depth up to it that was measured."""
        rates = {each.depth: each.per_s for each in self.rounds if each.reads}
        return rates[max((at for at in rates if at <= depth), default=min(rates))] if rates else 0.0

    @property
    def best(self) -> Round | None:
        """The depth with the most reads a second."""
        return max((each for each in self.rounds if each.reads), key=lambda each: each.per_s, default=None)


@dataclass(slots=True)
class _Budget:
    """The bytes and the time that are left."""

    until: float
    bytes: int = MOST_BYTES

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()


def probe(folder: Path, seconds: float = DEFAULT_PROBE_S, shards: Sequence[str] = ()) -> Probe:
    """Measure the storage under ``folder``, in about ``seconds``. Never raises for what it finds there.

    ``shards``: files below it, to be read as those of a packed dataset.
    """
    budget = _Budget(time.monotonic() + seconds)
    at_random = random.Random(0)
    # The child looks at the time between two calls, and then has to answer.
    patience_s = seconds / 2
    choose_s = patience_s + GRACE_S
    try:
        found: dict[str, Any] = {"files": list(shards[:MOST_FILES]), "packed": True}
        if not shards:
            found = call_in_child(lambda: _choose(folder, seconds * ROUND_SHARE * 2, patience_s, at_random), choose_s)
    except OSError as failure:
        if isinstance(failure, PermissionError):
            return _refused(folder, str(failure.strerror))
        return Probe(trouble=_words(failure, choose_s))
    files: list[str] = found["files"]
    if not files and found["refused"]:
        return _refused(Path(found["refused"]), found["failure"])
    if not files and found["complete"]:
        return Probe(trouble="there is no file below it", mend=f"ls -la {shlex.quote(os.fspath(folder))}")
    if not files:
        mend = f"redoxfs doctor --probe-seconds {6 * seconds:g} {shlex.quote(os.fspath(folder))}"
        trouble = found["failure"] or f"no file was found within {patience_s:.1f} s"
        return Probe(is_packed=found["packed"], trouble=trouble, mend=mend)
    rounds, trouble = _rounds(folder, files, found["packed"], seconds, budget)
    long_per_s = None
    if trouble is None and budget.left_s > 0:
        most_s = min(seconds * ROUND_SHARE * 2, max(budget.left_s, seconds * ROUND_SHARE))
        with contextlib.suppress(OSError):
            long_per_s = call_in_child(lambda: _long(folder, files, most_s, max(0, budget.bytes)), most_s + GRACE_S)
    return Probe(
        is_packed=found["packed"],
        files=len(files),
        rounds=tuple(sorted(rounds, key=lambda each: each.depth)),
        long_bytes_per_s=long_per_s,
        trouble=trouble,
    )


def _refused(folder: Path, why: str) -> Probe:
    return Probe(trouble=f"{why}: this user may not read it", mend=f"ls -ld {shlex.quote(os.fspath(folder))}")


def _rounds(
    folder: Path, files: list[str], packed: bool, seconds: float, budget: _Budget
) -> tuple[list[Round], str | None]:
    """Rounds at several depths, as far as the budget goes; and what was wrong."""
    rounds: list[Round] = []
    at = in_vain = 0

    def one(depth: int, most_s: float) -> Round:
        nonlocal at
        chosen, most_bytes = files[at:] + files[:at], budget.bytes // 4

        def measure() -> Round:
            read = _block_reader(folder, chosen) if packed else _file_reader(folder, chosen)
            return _round(read, depth, seconds * ROUND_SHARE, most_s, most_bytes)

        measured = call_in_child(measure, most_s + GRACE_S)
        at = (at + measured.reads) % len(files)
        budget.bytes -= measured.bytes
        return measured

    for number, depth in enumerate((WARM_UP_DEPTH, *DEPTHS)):
        most_s = min(seconds / 3, budget.left_s)
        if most_s < seconds * ROUND_SHARE or budget.bytes <= 0:
            break
        says_nothing = bool(rounds) and most_s < LEAST_HUNG_S
        try:
            measured = one(depth, most_s)
        except OSError as failure:
            if says_nothing and isinstance(failure, TimeoutError):
                break
            return rounds, _words(failure, most_s)
        if not measured.reads and not measured.failed and says_nothing:
            break
        if not measured.reads:
            return [*rounds, measured], measured.failure or f"no read ended within {most_s:.1f} s"
        if number == 0:
            continue
        before = max((each.per_s for each in rounds if each.depth >= WARM_UP_DEPTH), default=0.0)
        rounds.append(measured)
        # One depth that does not gain may be chance, on a machine that is busy.
        in_vain = in_vain + 1 if depth > WARM_UP_DEPTH and measured.per_s < LEAST_GAIN * before else 0
        if in_vain == 2:
            break
    return rounds, None


def check_filesystem(folder: Path) -> Result:
    """What the directory lies on. Looks at the mount table alone."""
    mount = mount_of(folder, read_mounts())
    if mount is None:
        return warning("filesystem", f"{folder} is on no mount that this process can see")
    kind = kind_of(mount.fstype)
    text = f"{mount.fstype} ({kind}), {mount.source}, mounted at {mount.mountpoint}"
    values = {"type": mount.fstype, "kind": kind, "mountpoint": mount.mountpoint}
    if kind == "memory":
        return warning("filesystem", f"{text}: reads from memory cannot be made faster", **values)
    return ok("filesystem", text, **values)


def kind_of(fstype: str) -> str:
    """ "network", "memory", "FUSE" or "local", by the type of a filesystem."""
    if fstype in NETWORK:
        return "network"
    if fstype in MEMORY:
        return "memory"
    return "FUSE" if fstype.partition(".")[0] in ("fuse", "fuseblk") else "local"


def results(measured: Probe) -> list[Result]:
    """The probe, a line for each part."""
    what = "4 KiB at random places of the shards" if measured.is_packed else "whole files"
    values = {
        "rounds": [
            {
                "depth": each.depth,
                "per_s": each.per_s,
                "bytes_per_s": each.bytes_per_s,
                "p50": each.p50,
                "p99": each.p99,
            }
            for each in measured.rounds
        ],
        "mean_bytes": measured.mean_bytes,
    }
    found: list[Result] = []
    failed = sum(each.failed for each in measured.rounds)
    if failed:
        reason = next(each.failure for each in measured.rounds if each.failure)
        found.append(
            problem("reads", f"{counted(failed, 'read')} failed: {reason}", "ls -l, and the kernel's log: dmesg")
        )
    if measured.trouble is not None:
        found.append(problem("storage", measured.trouble, measured.mend, **values))
    first, best = next(iter(measured.rounds), None), measured.best
    if first is None or best is None or first.p50 is None or first.p99 is None:
        return found
    rates = ", ".join(f"{each.per_s:,.0f} at {each.depth}" for each in measured.rounds if each.reads)
    gain = best.per_s / first.per_s
    found.append(
        ok(
            "random reads",
            f"{what} a second, by reads in flight: {rates}; one takes {format_time(first.p50)} "
            f"(p99 {format_time(first.p99)}); depth gains {gain:.1f} times",
            **values,
        )
    )
    rate = f"{format_bytes(int(measured.bytes_per_s))}/s"
    if measured.long_bytes_per_s is None:
        shown = f"at least {rate}: no file of {format_bytes(LONG_BYTES)} was found to measure it"
    else:
        shown = rate
    found.append(
        ok("long reads", shown, bytes_per_s=measured.bytes_per_s, measured=measured.long_bytes_per_s is not None)
    )
    return found


def _words(failure: OSError, seconds: float) -> str:
    if isinstance(failure, TimeoutError):
        return f"no answer within {seconds:.1f} s"
    return str(failure.strerror or failure)


# In a child


def _choose(folder: Path, most_s: float, patience_s: float, at_random: random.Random) -> dict[str, Any]:
    """Files below ``folder``, from folders in random order: the shards of a packed dataset, else any.

    It looks for ``most_s`` seconds, and for ``patience_s`` if it has found none.
    """
    began = time.monotonic()
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    packed = is_packed(root)
    os.close(root)
    folders: list[str] = [os.fspath(folder)]
    files: list[str] = []
    others: list[str] = []
    failure = refused = None
    while folders and len(files) < MOST_FILES and time.monotonic() - began < (most_s if files else patience_s):
        inner = folders.pop(at_random.randrange(len(folders)))
        here: list[str] = []
        try:
            with os.scandir(inner) as entries:
                for entry in itertools.islice(entries, MOST_LISTED):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and (not packed or entry.name.endswith(".tar")):
                        here.append(os.path.relpath(entry.path, folder))
        except OSError as refusal:
            failure = f"{inner}: {refusal.strerror}"
            refused = inner if isinstance(refusal, PermissionError) else refused
        if packed:
            files = here
            break
        at_random.shuffle(here)
        files += here[:MOST_OF_FOLDER]
        others += here[MOST_OF_FOLDER : MOST_OF_FOLDER + MOST_FILES - len(others)]
    files += at_random.sample(others, max(0, min(len(others), MOST_FILES - len(files))))
    at_random.shuffle(files)
    complete = not folders and failure is None
    return {"files": files, "packed": packed, "failure": failure, "refused": refused, "complete": complete}


_Reader = Callable[[int], int]
"""Makes the read of a number, and returns its bytes. Raises OSError."""


def _file_reader(folder: Path, files: Sequence[str]) -> _Reader:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

    def read(number: int) -> int:
        fd = os.open(folder / files[number % len(files)], flags)
        try:
            size = min(os.fstat(fd).st_size, FILE_BYTES)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _read(fd, 0, size)
        finally:
            os.close(fd)

    return read


def _block_reader(folder: Path, shards: Sequence[str]) -> _Reader:
    fds = [os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC) for name in shards[:64]]
    sizes = [os.fstat(fd).st_size for fd in fds]
    for fd in fds:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    at_random = random.Random(os.getpid())

    def read(_number: int) -> int:
        shard = at_random.choices(range(len(fds)), sizes)[0]
        at = at_random.randrange(max(1, sizes[shard] - BLOCK_BYTES)) & ~(BLOCK_BYTES - 1)
        os.posix_fadvise(fds[shard], at, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
        return _read(fds[shard], at, BLOCK_BYTES)

    return read


_flags = RWF_DONTCACHE
"""Of preadv2 in this child; 0 once the kernel or the filesystem has refused them."""


def _read(fd: int, at: int, size: int) -> int:
    """Read ``size`` bytes, or to the end. Returns how many came."""
    global _flags
    buffer = memoryview(bytearray(max(1, min(size, LONG_BYTES))))
    done = 0
    while done < size:
        flags = _flags
        try:
            part = os.preadv(fd, [buffer[: size - done]], at + done, flags)
        except OSError as failure:
            if not flags or failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            _flags = 0
            continue
        if not part:
            break
        done += part
    return done


def _round(read: _Reader, depth: int, least_s: float, most_s: float, most_bytes: int) -> Round:
    numbers = itertools.count()
    begin = time.monotonic()
    until = begin + most_s
    done: list[list[tuple[float, int]]] = [[] for _ in range(depth)]
    failures: list[str] = []
    stopped = threading.Event()

    def work(mine: list[tuple[float, int]]) -> None:
        while not stopped.is_set():
            started = time.monotonic()
            try:
                size = read(next(numbers))
            except OSError as failure:
                failures.append(str(failure))
                if len(failures) > 100:
                    return
                continue
            mine.append((time.monotonic() - started, size))

    threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in done]
    for thread in threads:
        thread.start()
    while time.monotonic() < until and any(thread.is_alive() for thread in threads):
        time.sleep(min(0.02, least_s / 10))
        reads, size = sum(map(len, done)), sum(sum(size for _, size in list(mine)[-1:]) for mine in done)
        mean = size / max(1, sum(bool(mine) for mine in done))
        if reads * mean > most_bytes:
            break
        if time.monotonic() - begin >= least_s and reads >= LEAST_READS * depth:
            break
    seconds = time.monotonic() - begin
    ended = [each for mine in done for each in list(mine)]
    stopped.set()
    times = sorted(each for each, _ in ended)
    return Round(
        depth,
        reads=len(ended),
        bytes=sum(size for _, size in ended),
        seconds=seconds,
        p50=times[len(times) // 2] if times else None,
        p99=times[min(len(times) - 1, len(times) * 99 // 100)] if times else None,
        failed=len(failures),
        failure=failures[0] if failures else None,
    )


def _long(folder: Path, files: Sequence[str], most_s: float, most_bytes: int) -> float | None:
    """The rate of long reads one after the other in several files; None if no file is long enough."""
    look_until = time.monotonic() + most_s / 2
    sizes: list[tuple[int, str]] = []
    for name in files[:2000]:
        with contextlib.suppress(OSError):
            found = os.stat(folder / name, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                sizes.append((found.st_size, name))
        if time.monotonic() > look_until:
            break
    largest = [(size, name) for size, name in sorted(sizes, reverse=True)[:SWEEPS] if size >= LONG_BYTES]
    if not largest:
        return None
    pieces: list[tuple[int, int]] = []
    for size, name in largest:
        fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        pieces += [(fd, at) for at in range(0, size - LONG_BYTES + 1, LONG_BYTES)]
    left = iter(pieces[: max(1, most_bytes // LONG_BYTES)])
    begin = time.monotonic()
    until = begin + most_s / 2
    done: list[int] = []

    def work() -> None:
        for fd, at in left:
            if time.monotonic() > until:
                break
            done.append(_read(fd, at, LONG_BYTES))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(SWEEPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # The last read that is in flight may end a little later, and counts.
        thread.join(max(0.0, until + GRACE_S / 2 - time.monotonic()))
    seconds = time.monotonic() - begin
    return sum(done) / seconds if done else None
