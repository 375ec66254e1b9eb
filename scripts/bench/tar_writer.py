"""Tar archives for benchmarks. A header is made once and changed: a million headers of tarfile take a while."""

import os
import tarfile
from pathlib import Path
from types import TracebackType

BLOCK_BYTES = tarfile.BLOCKSIZE

END_BYTES = 2 * BLOCK_BYTES


def padded(size: int) -> int:
    """The bytes that the data of a member takes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class TarWriter:
    """An archive, written from begin to end. Names have 100 bytes at most."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._header = bytearray(tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT))

    def __enter__(self) -> "TarWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self.end()
        self._file.flush()
        # Only pages that are on the disk can be dropped.
        os.fdatasync(self._file.fileno())
        self._file.close()

    def add(self, name: str, data: bytes) -> None:
        self.begin(name, len(data))
        self._file.write(data)
        self._file.write(bytes(-len(data) % BLOCK_BYTES))

    def add_hole(self, name: str, size: int) -> None:
        """A member without blocks on the disk."""
        self.begin(name, size)
        self._file.seek(padded(size), os.SEEK_CUR)

    def begin(self, name: str, size: int) -> None:
        """The header of a member. What is added next, up to `end`, is its data: an archive in this one."""
        header = self._header
        header[:100] = name.encode().ljust(100, b"\0")
        header[124:136] = b"%011o\0" % size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        self._file.write(header)

    def end(self) -> None:
        self._file.write(bytes(END_BYTES))
