"""A FUSE mount of subtype redoxfs that serves what a test says: any bytes, and symlinks where files are expected.

A child serves it, as the user ``uid``; `wire` has the protocol. It ends with the block.
"""

import ctypes
import errno
import os
import signal
import stat
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import wire
from strangers import become
from wire import Opcode

from redoxfs.linux.detach import MNT_DETACH
from redoxfs.linux.libc import last_error, libc


@dataclass(frozen=True)
class Link:
    """A symlink."""

    target: str


Tree = Mapping[str, "bytes | Link | Tree"]
"""Names of a folder: a file's bytes, a symlink, or a folder."""


@contextmanager
def hostile_mount(
    at: Path, tree: Tree, uid: int, *, options: str = "allow_other", source: str = "/data"
) -> Iterator[None]:
    """``tree`` at ``at``, as a mount of the user ``uid``."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    words = ",".join([f"fd={fd},rootmode=40000,user_id={uid},group_id={uid}", *([options] if options else [])])
    flags = ctypes.c_ulong(1 | 2 | 4)
    if libc.mount(source.encode(), os.fsencode(at), b"fuse.redoxfs", flags, words.encode()) != 0:
        raise last_error(str(at))
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            _serve(fd, tree)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(fd)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        libc.umount2(os.fsencode(at), MNT_DETACH)


def _serve(fd: int, tree: Tree) -> None:
    nodes: list[bytes | Link | Tree] = [{}, tree]
    while True:
        try:
            message = os.read(fd, wire.MESSAGE_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue
            raise
        length, opcode, unique, inode, *_ = wire.IN_HEADER.unpack_from(message)
        if opcode in (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT):
            continue
        try:
            body, code = _answer(nodes, opcode, inode, message[wire.IN_HEADER.size : length]), 0
        except OSError as error:
            body, code = b"", -(error.errno or errno.EIO)
        os.write(fd, wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(body), code, unique) + body)


def _answer(nodes: list["bytes | Link | Tree"], opcode: int, inode: int, body: bytes) -> bytes:
    if opcode == Opcode.INIT:
        return wire.INIT_OUT.pack(7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0, 0)
    node = nodes[inode]
    if opcode == Opcode.LOOKUP:
        name = os.fsdecode(body[:-1])
        if not isinstance(node, Mapping) or name not in node:
            raise OSError(errno.ENOENT, "")
        nodes.append(node[name])
        found = len(nodes) - 1
        return wire.ENTRY_OUT.pack(found, 0, 0, 0, 0, 0) + _attributes(nodes[found], found)
    if opcode == Opcode.GETATTR:
        return wire.ATTR_OUT.pack(0, 0) + _attributes(node, inode)
    if opcode == Opcode.READLINK and isinstance(node, Link):
        return os.fsencode(node.target)
    if opcode in (Opcode.OPEN, Opcode.OPENDIR):
        return wire.OPEN_OUT.pack(0, 1)
    if opcode == Opcode.READ and isinstance(node, bytes):
        _, offset, size, *_ = wire.READ_IN.unpack_from(body)
        return node[offset : offset + size]
    if opcode in (Opcode.RELEASE, Opcode.RELEASEDIR, Opcode.FLUSH):
        return b""
    if opcode == Opcode.STATFS:
        return bytes(80)
    raise OSError(errno.ENOSYS, "")


def _attributes(node: "bytes | Link | Tree", inode: int) -> bytes:
    if isinstance(node, Link):
        mode, size = stat.S_IFLNK | 0o777, len(node.target)
    elif isinstance(node, bytes):
        mode, size = stat.S_IFREG | 0o644, len(node)
    else:
        mode, size = stat.S_IFDIR | 0o755, 0
    uid = os.getuid()
    return wire.ATTR.pack(inode, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, uid, uid, 0, 4096, 0)
