"""Readers of a mount's access log, and programs that open files and say what they got."""

import os
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from patience import PATIENCE_S, until

from redoxfs.telemetry.access_log import HEADER, Access, parse

READER = """
import os, sys
for path in sys.stdin.buffer.read().split(b"\\0"):
    try:
        with open(path, "rb") as file:
            got = file.read().hex()
    except OSError as error:
        got = "E%d" % error.errno
    print(os.getpid(), path.hex(), got)
"""


def log_of(mountpoint: Path) -> Path:
    return mountpoint / ".redoxfs/accesslog"


class Tail(AbstractContextManager["Tail"]):
    """`cat` of the access log of a mount. It gets a line for each open that begins after this exists."""

    def __init__(self, mountpoint: Path) -> None:
        self.process = subprocess.Popen(["cat", log_of(mountpoint)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._text = b""
        self.remarks: list[bytes] = []
        assert self.line() == HEADER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> bytes:
        """The next line; empty at the end."""
        assert self.process.stdout
        while b"\n" not in self._text:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            assert ready, "no line came"
            text = os.read(self.process.stdout.fileno(), 1 << 16)
            if not text:
                return b""
            self._text += text
        line, _, self._text = self._text.partition(b"\n")
        return line + b"\n"

    def wait_for_a_read(self) -> None:
        """Wait until it waits for more lines. It sleeps nowhere else once it has written what it read."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", stat.read_text)

    def accesses(self, count: int) -> list[Access]:
        """The next opens. Remarks between them are in ``remarks``."""
        found: list[Access] = []
        while len(found) < count:
            line = self.line()
            assert line, f"the log ended after {len(found)} of {count} opens"
            if line.startswith(b"#"):
                self.remarks.append(line)
            else:
                found.append(parse(line))
        return found


@dataclass(frozen=True)
class Got:
    """What a program got from an open: bytes, or an errno."""

    path: bytes
    data: bytes | int


def read_by(mountpoint: Path, parts: Sequence[Iterable[bytes]]) -> dict[int, list[Got]]:
    """Each part is read by a process of its own, all at once. What each got, in its order, by its number."""
    readers = [
        subprocess.Popen([sys.executable, "-c", READER], cwd=mountpoint, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in parts
    ]
    try:
        for reader, part in zip(readers, parts, strict=True):
            assert reader.stdin
            reader.stdin.write(b"\0".join(part))
            reader.stdin.close()
            reader.stdin = None
        told = [reader.communicate(timeout=PATIENCE_S)[0] for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    found: dict[int, list[Got]] = defaultdict(list)
    for line in b"".join(told).splitlines():
        pid, path, got = line.decode().split(" ")
        data = int(got[1:]) if got.startswith("E") else bytes.fromhex(got)
        found[int(pid)].append(Got(bytes.fromhex(path), data))
    return found


def by_pid(accesses: Iterable[Access]) -> dict[int, list[Access]]:
    found: dict[int, list[Access]] = defaultdict(list)
    for access in accesses:
        found[access.pid].append(access)
    return found


def agree(accesses: Sequence[Access], got: dict[int, list[Got]], source: Path) -> None:
    """The lines are the opens that programs made, each in its order; and they got the bytes of what was served."""
    now_ns = time.time_ns()
    lines = by_pid(accesses)
    assert lines.keys() == got.keys()
    for pid, opens in got.items():
        assert [line.path for line in lines[pid]] == [each.path for each in opens]
        for line, each in zip(lines[pid], opens, strict=True):
            assert now_ns - PATIENCE_S * 10**9 < line.time_ns < now_ns
            if line.served is None:
                assert each.data == line.error
            else:
                assert each.data == (source / os.fsdecode(line.served)).read_bytes()
