"""`redoxfs profile`: what the time of opens goes to, by outcome and directory.

The opens are those of a mount while this runs, or those of an access log that was saved. On a terminal the profile of a
mount is shown again and again, elsewhere once at the end.
"""

import errno
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from redoxfs.cli.options.watching import ProfileOptions
from redoxfs.launch.control import live_mount, reading, why_not
from redoxfs.launch.control_files import open_control
from redoxfs.launch.errors import DaemonError, UsageError
from redoxfs.launch.path_status import STALE_ERRORS, PathStatus, path_status
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_time
from redoxfs.linux.mount_table import read_mounts, topmost_at
from redoxfs.telemetry.access_log import BATCH, lost_of, parse
from redoxfs.telemetry.open_profile import OpenProfile, Times, by_time

ACCESS_LOG = "accesslog"

READ_BYTES = 1 << 17

LONGEST_LINE_BYTES = 1 << 20
"""More than the longest paths take. What is longer is no line, and is not kept."""

PORTION_S = 0.05
"""Between two reads of a mount's log: each costs the daemon more than the lines of some opens."""

LOOK_S = 1.0
"""Between two looks whether the mount is still there."""

DRAIN_S = 1.0
"""After `--seconds`, how long to read what was opened before: programs may open faster than this reads."""

COLUMNS = ("opens", "time", "share", "mean", "p50", "p99", "slowest")

_WIDTH = 9
"""Of a column of numbers."""

_HOME_AND_CLEAR = "\x1b[H\x1b[J"


@dataclass(slots=True)
class Seen:
    """What was read so far. ``damaged`` and ``lost`` are lines; ``seconds`` is how long a mount was watched."""

    profile: OpenProfile
    source: str
    damaged: int = 0
    lost: int = 0
    seconds: float | None = None
    _rest: bytes = field(default=b"")
    # The line that `_rest` belongs to was too long, and is counted already.
    _is_cut: bool = False

    def add(self, text: bytes) -> None:
        """The next bytes of the log, which may end within a line."""
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            self._add_line(line)
        if len(self._rest) > LONGEST_LINE_BYTES:
            self.damaged += not self._is_cut
            self._rest, self._is_cut = b"", True

    def end(self) -> None:
        """The log ends here; its last line may lack its end."""
        if self._rest:
            self._add_line(self._rest)
        self._rest, self._is_cut = b"", False

    def _add_line(self, line: bytes) -> None:
        if self._is_cut:
            self._is_cut = False
            return
        if line.startswith(b"#") or not line:
            self.lost += lost_of(line)
            return
        try:
            self.profile.add(parse(line))
        except ValueError:
            self.damaged += 1


def run(options: ProfileOptions) -> int:
    """Profile a mount until the time is over, Ctrl-C, or the end of the mount; or a saved log. Returns 0."""
    seen = Seen(OpenProfile(options.depth), options.path)
    if options.path == "-":
        _read_saved(options, seen, 0)
    else:
        found = path_status(options.path, options.timeout_s)
        if found.is_our_root or stat.S_ISDIR(found.seen.mode) or found.is_stale:
            _watch(options, seen)
        elif found.seen.error:
            raise UsageError(f"{options.path}: {os.strerror(found.seen.error)}")
        else:
            _read_saved(options, seen)
    _print(seen, options)
    return 0


# Where the lines come from


def _read_saved(options: ProfileOptions, seen: Seen, fd: int | None = None) -> None:
    if options.seconds_s is not None:
        raise UsageError("--seconds is for a mount; a saved log is read to its end")
    try:
        opened = os.open(options.path, os.O_RDONLY | os.O_CLOEXEC) if fd is None else os.dup(fd)
        try:
            _read_file(opened, seen)
        finally:
            os.close(opened)
    except OSError as failure:
        raise UsageError(f"{options.path}: {failure.strerror}") from None
    if not seen.profile.all.opens and seen.damaged:
        raise UsageError(f"{options.path}: not an access log: {counted(seen.damaged, 'line')} not understood")


def _read_file(fd: int, seen: Seen) -> None:
    # A pipe, or the access log of a mount itself, goes on until somebody ends it.
    with suppress(KeyboardInterrupt):
        while text := os.read(fd, READ_BYTES):
            seen.add(text)
    seen.end()


def _watch(options: ProfileOptions, seen: Seen) -> None:
    mount = live_mount(options.path, options.timeout_s)
    seen.source = os.fspath(mount.path)
    fd = _opened(mount, options.timeout_s)
    began_s = time.monotonic()
    try:
        with _interrupt() as interrupt:
            for text in texts(fd, interrupt, options, began_s):
                seen.add(text)
                seen.seconds = time.monotonic() - began_s
                if not text and _shows(options):
                    _show(seen, options)
    except KeyboardInterrupt:
        # Again, before what was there had been read.
        pass
    except OSError as failure:
        if failure.errno not in STALE_ERRORS:
            raise DaemonError(f"{mount.path}: its access log cannot be read: {why_not(failure)}") from None
        say(f"{mount.path}: the mount has ended")
    finally:
        os.close(fd)
    seen.seconds = time.monotonic() - began_s
    seen.end()


@contextmanager
def _interrupt() -> Iterator[int]:
    """A descriptor that can be read after Ctrl-C, the usual end of a view that goes on by itself.

    A second Ctrl-C is a KeyboardInterrupt.
    """
    former = signal.getsignal(signal.SIGINT)
    reads, writes = os.pipe()

    def note(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, former)
        os.write(writes, b"\0")

    try:
        # A shell without job control has it ignored in what runs in the background.
        if former is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, note)
        yield reads
    finally:
        signal.signal(signal.SIGINT, former)
        os.close(reads)
        os.close(writes)


def _opened(found: PathStatus, timeout_s: float) -> int:
    mount = topmost_at(found.path, read_mounts())
    with reading(found, "access log", timeout_s):
        if mount is None or not mount.ours:
            raise NotADirectoryError(errno.ENOTDIR, "the mount has ended")
        return open_control(mount, ACCESS_LOG, timeout_s)


def texts(fd: int, interrupt: int, options: ProfileOptions, began_s: float) -> Iterator[bytes]:
    """What comes, until the time is over, ``interrupt`` can be read, or the mount ends.

    Empty whenever the profile is to be shown.
    """
    end_s = float("inf") if options.seconds_s is None else began_s + options.seconds_s
    of = os.fstat(fd).st_dev
    device = f"{os.major(of)}:{os.minor(of)}"
    look_s = began_s + LOOK_S if _is_mounted(device) else float("inf")
    interrupted, waiting = select.poll(), select.poll()
    interrupted.register(interrupt, select.POLLIN)
    waiting.register(interrupt, select.POLLIN)
    waiting.register(fd, select.POLLIN)
    show_s, text = began_s, b""
    while (now_s := time.monotonic()) < end_s:
        if now_s >= show_s:
            show_s = now_s + options.interval_s
            yield b""
        if now_s >= look_s:
            # A mount that was detached ends with its last user, which may be this one.
            look_s = now_s + LOOK_S
            if not _is_mounted(device):
                say(f"{options.path}: the mount was detached")
                break
        wait_s = min(show_s, end_s, look_s) - now_s
        if interrupted.poll(min(wait_s, PORTION_S) * 1000 if _is_last(text) else 0):
            break
        waiting.poll(max(1, int((min(show_s, end_s, look_s) - time.monotonic()) * 1000)))
        try:
            # Whatever poll says: another daemon does not know who waits.
            text = os.read(fd, READ_BYTES)
        except BlockingIOError:
            text = b""
            continue
        if not text:
            say(f"{options.path}: the mount has ended")
            return
        yield text
    drained_s = time.monotonic() + DRAIN_S
    with suppress(BlockingIOError):
        # What was opened before the end.
        while time.monotonic() < drained_s and (text := os.read(fd, READ_BYTES)):
            yield text
            if _is_last(text):
                break


def _is_mounted(device: str) -> bool:
    return any(mount.device == device for mount in read_mounts())


def _is_last(text: bytes) -> bool:
    """Whether a read got all lines that there were."""
    return text.count(b"\n") < BATCH


# What is printed


def _shows(options: ProfileOptions) -> bool:
    return sys.stdout.isatty() and not options.json


def _show(seen: Seen, options: ProfileOptions) -> None:
    """Replace the screen by what there is so far, as much as it has room for."""
    width, height = shutil.get_terminal_size()
    lines = list(_lines(seen, options))
    lines = [line[:width] for line in lines[: height - 2]]
    print(_HOME_AND_CLEAR + "\n".join([*lines, "Ctrl-C ends it"]), flush=True)


def _print(seen: Seen, options: ProfileOptions) -> None:
    if options.json:
        told = {
            "source": seen.source,
            "seconds_watched": seen.seconds,
            "depth": seen.profile.depth,
            "lines_damaged": seen.damaged,
            "lines_lost": seen.lost,
        }
        print(json.dumps({**told, **seen.profile.as_json()}))
        return
    clear = _HOME_AND_CLEAR if seen.seconds is not None and _shows(options) else ""
    print(clear + "\n".join(_lines(seen, options)))


def _lines(seen: Seen, options: ProfileOptions) -> Iterator[str]:
    everything = seen.profile.all
    watched = "" if seen.seconds is None else f" in {format_time(seen.seconds)}"
    together = f", which took {_time(everything.total_us)} together" if everything.opens else ""
    yield f"{seen.source}: {counted(everything.opens, 'open')}{watched}{together}"
    if seen.lost:
        yield f"{counted(seen.lost, 'line')} lost: the log came faster than it was read"
    if seen.damaged:
        yield f"{counted(seen.damaged, 'line')} not understood"
    if not everything.opens:
        return
    outcomes = [(each.label, times) for each, times in by_time(seen.profile.outcomes)]
    folders = [(_shown(name), times) for name, times in by_time(seen.profile.directories)]
    shown, more = folders[: options.limit], folders[options.limit :]
    width = max(len(name) for name, _ in [("directory", everything), *outcomes, *shown])
    yield ""
    yield from _table("outcome", outcomes, width, everything.total_us)
    yield ""
    yield from _table("directory", shown, width, everything.total_us)
    if more:
        rest_us = sum(times.total_us for _, times in more)
        share = _share(rest_us, everything.total_us)
        yield f"and {counted(len(more), 'directory', 'directories')} more, with {share} of the time"
    worst = everything.slowest
    if worst is not None:
        yield ""
        yield f"slowest: {_time(worst.took_us)}, {worst.outcome_word}, thread {worst.pid}: {_shown(worst.path)}"
        if worst.served not in (None, worst.path):
            yield f"         served {_shown(worst.served or b'')}"


def _table(title: str, rows: Iterable[tuple[str, Times]], width: int, all_us: int) -> Iterator[str]:
    yield title.ljust(width) + "".join(name.rjust(_WIDTH) for name in COLUMNS)
    for name, times in rows:
        cells = (
            f"{times.opens:,}",
            _time(times.total_us),
            _share(times.total_us, all_us),
            _time(times.total_us / times.opens),
            _time(times.quantile_us(0.5)),
            _time(times.quantile_us(0.99)),
            _time(times.slowest_us),
        )
        yield name.ljust(width) + "".join(cell.rjust(_WIDTH) for cell in cells)


def _share(part_us: int, all_us: int) -> str:
    return f"{part_us / all_us:.1%}" if all_us else "-"


def _time(microseconds: float) -> str:
    return format_time(microseconds / 1e6)


def _shown(path: bytes) -> str:
    """A path for a terminal: what cannot be printed is escaped."""
    text = path.decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
