"""The FUSE protocol, raw, for tests: requests as the kernel writes them, replies, and an end that plays the kernel.

`Device` is a socket pair of messages. One end stands in for /dev/fuse: what reads a request from it and writes a reply
to it cannot tell the difference, apart from the end, which is an end of file and not ENODEV. libfuse serves it as the
mountpoint ``/dev/fd/N``.

    with Device() as device:
        session = Session(device.fd, ...)
        device.send(init())
        ...
        reply = device.receive()

Layouts and numbers are those of <linux/fuse.h>, protocol 7.38, in the byte order of this machine.
"""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import NamedTuple, Self

from patience import PATIENCE_S


class Opcode(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    MKNOD = 8
    UNLINK = 10
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46
    STATX = 52


class Notice(IntEnum):
    """What the filesystem tells the kernel unasked."""

    INVALIDATE_INODE = 2
    INVALIDATE_ENTRY = 3
    STORE = 4
    POLL = 1


IN_HEADER = struct.Struct("=IIQQIIIHH")
OUT_HEADER = struct.Struct("=IiQ")
INIT_IN = struct.Struct("=IIIII44x")
INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
GETATTR_IN = struct.Struct("=I4xQ")
OPEN_IN = struct.Struct("=II")
OPEN_OUT = struct.Struct("=QI4x")
READ_IN = struct.Struct("=QQIIQI4x")
RELEASE_IN = struct.Struct("=QIIQ")
FLUSH_IN = struct.Struct("=Q8xQ")
GETXATTR_IN = struct.Struct("=I4x")
FORGET_IN = struct.Struct("=Q")
FORGET_ONE = struct.Struct("=QQ")
BATCH_FORGET_IN = struct.Struct("=I4x")
INTERRUPT_IN = struct.Struct("=Q")
POLL_IN = struct.Struct("=QQII")
POLL_OUT = struct.Struct("=I4x")
ACCESS_IN = struct.Struct("=I4x")
ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
ATTR_OUT = struct.Struct("=QI4x")
ENTRY_OUT = struct.Struct("=QQQQII")
DIRENT = struct.Struct("=QQII")
INVALIDATE_INODE_OUT = struct.Struct("=Qqq")

MESSAGE_BYTES = (1 << 20) + (1 << 12)
"""Room for the largest message: a reply of one MiB and its header."""

INIT_EXT, DIRECT_IO_ALLOW_MMAP = 1 << 30, 1 << 36
INIT_FLAGS = (1 << 0) | (1 << 3) | (1 << 13) | (1 << 14) | (1 << 15) | (1 << 18) | (1 << 22) | (1 << 24)
INIT_FLAGS |= INIT_EXT | DIRECT_IO_ALLOW_MMAP
"""What a kernel offers, of what matters here: ASYNC_READ, ATOMIC_O_TRUNC, DO_READDIRPLUS, READDIRPLUS_AUTO, ASYNC_DIO,
PARALLEL_DIROPS, MAX_PAGES, NO_OPENDIR_SUPPORT, and the two above."""

ROOT = 1
"""The inode number of the mount's root."""


# Requests


@dataclass(frozen=True, slots=True)
class Request:
    """One request, without what the kernel numbers anew each time."""

    opcode: int
    inode: int
    body: bytes = b""

    def message(self, unique: int, thread: int = 0) -> bytes:
        """The bytes that a read of /dev/fuse returns. ``thread``: the caller's thread id."""
        return raw(self.opcode, self.inode, self.body, unique, thread)


def raw(opcode: int, inode: int, body: bytes, unique: int, thread: int = 0, length: int | None = None) -> bytes:
    """Any message. ``length``: what the header claims, if not the truth."""
    claimed = IN_HEADER.size + len(body) if length is None else length
    return IN_HEADER.pack(claimed, opcode, unique, inode, os.getuid(), os.getgid(), thread, 0, 0) + body


def init(major: int = 7, minor: int = 38, *, max_readahead: int = 1 << 17, flags: int = INIT_FLAGS) -> Request:
    return Request(Opcode.INIT, 0, INIT_IN.pack(major, minor, max_readahead, flags & 0xFFFFFFFF, flags >> 32))


def lookup(parent: int, name: bytes) -> Request:
    return Request(Opcode.LOOKUP, parent, name + b"\0")


def getattr_(inode: int, handle: int | None = None) -> Request:
    """``handle``: of the open file whose attributes are asked for, as in fstat."""
    return Request(Opcode.GETATTR, inode, GETATTR_IN.pack(handle is not None, handle or 0))


def readlink(inode: int) -> Request:
    return Request(Opcode.READLINK, inode)


def opendir(inode: int, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Request:
    return Request(Opcode.OPENDIR, inode, OPEN_IN.pack(flags, 0))


def readdir(inode: int, handle: int, offset: int, size: int) -> Request:
    return Request(Opcode.READDIR, inode, READ_IN.pack(handle, offset, size, 0, 0, 0))


def readdirplus(inode: int, handle: int, offset: int, size: int) -> Request:
    return Request(Opcode.READDIRPLUS, inode, READ_IN.pack(handle, offset, size, 0, 0, 0))


def releasedir(inode: int, handle: int) -> Request:
    return Request(Opcode.RELEASEDIR, inode, RELEASE_IN.pack(handle, os.O_RDONLY, 0, 0))


def open_(inode: int, flags: int = os.O_RDONLY) -> Request:
    return Request(Opcode.OPEN, inode, OPEN_IN.pack(flags, 0))


def read(inode: int, handle: int, offset: int, size: int) -> Request:
    return Request(Opcode.READ, inode, READ_IN.pack(handle, offset, size, 0, 0, os.O_RDONLY))


def release(inode: int, handle: int) -> Request:
    return Request(Opcode.RELEASE, inode, RELEASE_IN.pack(handle, os.O_RDONLY, 0, 0))


def flush(inode: int, handle: int) -> Request:
    return Request(Opcode.FLUSH, inode, FLUSH_IN.pack(handle, 0))


def statfs(inode: int = ROOT) -> Request:
    return Request(Opcode.STATFS, inode)


def access(inode: int, mask: int = os.R_OK) -> Request:
    return Request(Opcode.ACCESS, inode, ACCESS_IN.pack(mask))


def getxattr(inode: int, name: bytes, size: int = 0) -> Request:
    return Request(Opcode.GETXATTR, inode, GETXATTR_IN.pack(size) + name + b"\0")


def forget(inode: int, lookups: int = 1) -> Request:
    return Request(Opcode.FORGET, inode, FORGET_IN.pack(lookups))


def batch_forget(forgotten: Sequence[tuple[int, int]], count: int | None = None) -> Request:
    """Pairs of an inode and its lookups. ``count``: how many the message claims to have, if not the truth."""
    claimed = len(forgotten) if count is None else count
    return Request(
        Opcode.BATCH_FORGET, 0, BATCH_FORGET_IN.pack(claimed) + b"".join(FORGET_ONE.pack(*one) for one in forgotten)
    )


def destroy() -> Request:
    return Request(Opcode.DESTROY, 0)


# Replies


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, or a notice: then ``unique`` is 0, and ``error`` is a `Notice`. An answer's ``error`` is an errno."""

    unique: int
    error: int
    body: bytes

    @property
    def is_notice(self) -> bool:
        return self.unique == 0

    @property
    def is_of_interrupt(self) -> bool:
        return bool(self.unique & 1)


class Attr(NamedTuple):
    inode: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    blksize: int
    flags: int


class Entry(NamedTuple):
    """A name's inode and attributes; the times are seconds for which the kernel may keep them."""

    inode: int
    generation: int
    entry_valid: int
    attr_valid: int
    entry_valid_ns: int
    attr_valid_ns: int
    attr: Attr


class Attributes(NamedTuple):
    attr_valid: int
    attr_valid_ns: int
    attr: Attr


class Opened(NamedTuple):
    handle: int
    flags: int


class Dirent(NamedTuple):
    """One name of a directory; ``entry`` is None without READDIRPLUS."""

    inode: int
    offset: int
    kind: int
    name: bytes
    entry: Entry | None


class Init(NamedTuple):
    major: int
    minor: int
    max_readahead: int
    flags: int
    max_background: int
    congestion: int
    max_write: int
    time_gran: int
    max_pages: int
    map_alignment: int
    flags2: int


FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_CACHE_DIR = 1 << 0, 1 << 1, 1 << 3


def parse_reply(message: bytes) -> Reply:
    """Raises ValueError: the header's length is not the message's, or it has an error that the kernel would refuse."""
    if len(message) < OUT_HEADER.size:
        raise ValueError(f"a message of {len(message)} bytes")
    length, error, unique = OUT_HEADER.unpack_from(message)
    if length != len(message):
        raise ValueError(f"a message of {len(message)} bytes says that it has {length}")
    if unique:
        if not -1000 < error <= 0:
            raise ValueError(f"an answer with error {error}")
        if error and len(message) > OUT_HEADER.size:
            raise ValueError(f"an answer with error {error} and a body")
        return Reply(unique, -error, message[OUT_HEADER.size :])
    return Reply(0, error, message[OUT_HEADER.size :])


def parse_entry(body: bytes) -> Entry:
    _exactly(body, ENTRY_OUT.size + ATTR.size)
    return _entry(body, 0)


def parse_attributes(body: bytes) -> Attributes:
    _exactly(body, ATTR_OUT.size + ATTR.size)
    valid, valid_ns = ATTR_OUT.unpack_from(body)
    return Attributes(valid, valid_ns, Attr(*ATTR.unpack_from(body, ATTR_OUT.size)))


def parse_opened(body: bytes) -> Opened:
    _exactly(body, OPEN_OUT.size)
    return Opened(*OPEN_OUT.unpack(body))


def parse_init(body: bytes) -> Init:
    _exactly(body, INIT_OUT.size)
    return Init(*INIT_OUT.unpack(body))


def parse_dirents(body: bytes, *, plus: bool) -> Iterator[Dirent]:
    """The names in the reply to READDIR, or READDIRPLUS if ``plus``.

    Raises ValueError: a record passes the end, or its padding is not zero.
    """
    before = ENTRY_OUT.size + ATTR.size if plus else 0
    at = 0
    while at < len(body):
        if at + before + DIRENT.size > len(body):
            raise ValueError("a record passes the end")
        inode, offset, length, kind = DIRENT.unpack_from(body, at + before)
        start = at + before + DIRENT.size
        end = start + length + -length % 8
        if end > len(body):
            raise ValueError("a name passes the end")
        if any(body[start + length : end]):
            raise ValueError("the padding is not zero")
        yield Dirent(inode, offset, kind, body[start : start + length], _entry(body, at) if plus else None)
        at = end


def parse_invalidated_inode(body: bytes) -> tuple[int, int, int]:
    """Inode, offset and length; an offset of -1 means the attributes alone."""
    _exactly(body, INVALIDATE_INODE_OUT.size)
    inode, offset, length = INVALIDATE_INODE_OUT.unpack(body)
    return inode, offset, length


def dirent_bytes(name: bytes) -> int:
    """The room that a name takes in a reply to READDIR."""
    return (DIRENT.size + len(name) + 7) // 8 * 8


def parse_voided(notice: Reply) -> tuple[int, bool]:
    """An inode that is void, and whether its attributes alone are. Raises ValueError: it is another notice."""
    if notice.error != Notice.INVALIDATE_INODE:
        raise ValueError(f"notice {notice.error}")
    inode, offset, _ = parse_invalidated_inode(notice.body)
    return inode, offset < 0


def _entry(body: bytes, at: int) -> Entry:
    inode, generation, *valid = ENTRY_OUT.unpack_from(body, at)
    entry_s, attr_s, entry_ns, attr_ns = valid
    attr = Attr(*ATTR.unpack_from(body, at + ENTRY_OUT.size))
    return Entry(inode, generation, entry_s, attr_s, entry_ns, attr_ns, attr)


def _exactly(body: bytes, size: int) -> None:
    if len(body) != size:
        raise ValueError(f"{len(body)} bytes instead of {size}")


# The kernel's end


class Device:
    """Plays the kernel: `fd` is the descriptor to hand to whatever serves the filesystem.

    ``notices`` collects the notices among the replies, in their order. Replies to interrupts, which may ask the kernel
    to send them again, are dropped. Each waiting method raises TimeoutError.
    """

    def __init__(self) -> None:
        self._kernel, self._served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._served.setblocking(False)
        self._unique = 2
        self._early: dict[int, Reply] = {}
        self.notices: list[Reply] = []
        for end in (self._kernel, self._served):
            widen(end)

    @property
    def fd(self) -> int:
        """What stands in for /dev/fuse; non-blocking. It stays the device's."""
        return self._served.fileno()

    @property
    def kernel_fd(self) -> int:
        """The end of the kernel: readable when a message is here that no method has received yet."""
        return self._kernel.fileno()

    def send(self, request: Request, thread: int = 0) -> int:
        """Send a request and return its number."""
        unique = self._unique
        self._unique += 2
        self.send_raw(request.message(unique, thread))
        return unique

    def interrupt(self, unique: int) -> None:
        """The program that waits for a request was interrupted. The answer may be here already, or on its way."""
        self.send_raw(raw(Opcode.INTERRUPT, 0, INTERRUPT_IN.pack(unique), unique | 1))

    def send_raw(self, message: bytes) -> None:
        self._kernel.send(message)

    def receive(self, timeout_s: float = PATIENCE_S) -> Reply:
        """The next message that is not a notice. Raises EOFError if the served end was closed."""
        if self._early:
            return self._early.pop(next(iter(self._early)))
        while True:
            reply = self._next(timeout_s)
            if reply.is_notice:
                self.notices.append(reply)
            elif not reply.is_of_interrupt:
                return reply

    def reply_to(self, unique: int, timeout_s: float = PATIENCE_S) -> Reply:
        """The reply to one request. Replies to others that arrive before it stay for their own calls."""
        while unique not in self._early:
            reply = self._next(timeout_s)
            if reply.is_notice:
                self.notices.append(reply)
            else:
                self._early[reply.unique] = reply
        return self._early.pop(unique)

    def reply_now(self, unique: int) -> Reply | None:
        """The reply to one request if it is here."""
        try:
            return self.reply_to(unique, 0)
        except TimeoutError:
            return None

    def ask(self, request: Request, thread: int = 0, timeout_s: float = PATIENCE_S) -> Reply:
        """Send a request that something else serves meanwhile, and return its reply."""
        return self.reply_to(self.send(request, thread), timeout_s)

    def waiting(self) -> list[Reply]:
        """All messages that are here, notices too. Never blocks."""
        found = list(self._early.values())
        self._early.clear()
        while self._is_readable(0):
            found.append(self._next(0))
        return [reply for reply in found if not reply.is_of_interrupt]

    def end(self) -> None:
        """The mount is over: the served end reads an end of file."""
        self._kernel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._kernel.close()
        self._served.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, timeout_s: float) -> Reply:
        if not self._is_readable(timeout_s):
            raise TimeoutError(errno.ETIMEDOUT, "no reply")
        message = self._kernel.recv(MESSAGE_BYTES)
        if not message:
            raise EOFError
        return parse_reply(message)

    def _is_readable(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._kernel, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


def widen(end: socket.socket) -> None:
    """Let a socket hold several messages of the largest size, where this user may."""
    forced = 32  # SO_SNDBUFFORCE, which Python does not name
    for option in (socket.SO_SNDBUF, forced):
        try:
            end.setsockopt(socket.SOL_SOCKET, option, 4 * MESSAGE_BYTES)
        except PermissionError:
            return
