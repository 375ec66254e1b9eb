"""The least that pyfuse3 can do, for comparison: serves one directory of files from memory with unmodified pyfuse3.

    stock_pyfuse3.py SOURCE MOUNTPOINT [--direct-io]

Attributes and names are cached forever, sizes are exact, and there is nothing to decide. So the time left is that of
pyfuse3 on trio. fuse_rate.py runs it.
"""

import errno
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FUSEError, InodeT, RequestContext

FOREVER_S = 1e8


class Stock(pyfuse3.Operations):
    """Inode 1 is the directory, file i has inode i + 2."""

    enable_writeback_cache = False

    def __init__(self, source: Path, *, direct_io: bool) -> None:
        super().__init__()
        self._files = [path.read_bytes() for path in sorted(source.iterdir())]
        self._names = [path.name.encode() for path in sorted(source.iterdir())]
        self._inode = {name: InodeT(i + 2) for i, name in enumerate(self._names)}
        self._direct_io = direct_io

    def _attributes(self, inode: int) -> EntryAttributes:
        told = EntryAttributes()
        told.st_ino = InodeT(inode)
        told.st_mode = stat.S_IFREG | 0o444 if inode > 1 else stat.S_IFDIR | 0o555
        told.st_size = len(self._files[inode - 2]) if inode > 1 else 0
        told.st_blksize = 128 * 1024
        told.st_nlink = 1
        told.entry_timeout = told.attr_timeout = FOREVER_S
        return told

    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        if name not in self._inode:
            raise FUSEError(errno.ENOENT)
        return self._attributes(self._inode[name])

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._attributes(inode)

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for i in range(start_id, len(self._names)):
            if not pyfuse3.readdir_reply(token, self._names[i], self._attributes(i + 2), i + 1):
                return

    async def releasedir(self, fh: FileHandleT) -> None:
        return

    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        return FileInfo(fh=FileHandleT(inode), direct_io=self._direct_io, keep_cache=True, nonseekable=False)

    async def read(  # type: ignore[override] # pyfuse3 takes any buffer
        self, fh: FileHandleT, off: int, size: int
    ) -> memoryview:
        return memoryview(self._files[fh - 2])[off : off + size]

    async def release(self, fh: FileHandleT) -> None:
        return

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        return


def main() -> None:
    source, mountpoint, *options = sys.argv[1:]
    pyfuse3.init(Stock(Path(source), direct_io="--direct-io" in options), mountpoint, {"fsname=stock", "ro"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
