"""Arrays in files: each a plain .npy with a record of its length, type and checksum. Never pickled.

The cached scan of a source and the index of a packed dataset are folders of these. A file is used only if its size
and checksum match the record. So a damaged file is never mapped, and a length claimed by a damaged header is never
allocated.

To make a folder appear whole, write it under another name, sync it, and rename it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20


class DamagedArrayError(Exception):
    """A file does not match its record. The text names the file and the difference."""


def save(folder: Path, name: str, values: NDArray[Any], *, sync: bool = True) -> dict[str, Any]:
    """Write ``values`` to ``folder``/NAME.npy, readable only by its owner, and to the disk with ``sync``. Return its
    record."""
    path = folder / f"{name}.npy"
    plain = np.ascontiguousarray(values)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        # np.save writes through C's stdio, which loses the reason of a failed write, and the failure of the last write.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        file.write(plain.data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    with open(path, "rb", buffering=0) as written:
        return {
            "bytes": os.fstat(written.fileno()).st_size,
            "xxh3_128": _checksum(written),
            "shape": list(values.shape),
            "dtype": str(values.dtype),
        }


def load(folder: Path, name: str, record: dict[str, Any], *, in_memory: bool = False) -> NDArray[Any]:
    """The array of ``record``, read-only: mapped, or ``in_memory``.

    A mapped array is read from disk as needed. If the disk fails then, or the file is truncated, SIGBUS kills the
    process.

    Raises:
        DamagedArrayError: the file does not match its record, or does not exist.
    """
    path = folder / f"{name}.npy"
    try:
        with open_plain(path) as file:
            return _checked(path, file, record, in_memory=in_memory)
    except OSError as error:
        raise DamagedArrayError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArrayError(f"{path} does not match its record: {error}") from None


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. Anything else, such as a symlink, a FIFO or a device, is an OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return open(fd, "rb", buffering=0)


def _checked(path: Path, file: BinaryIO, record: dict[str, Any], *, in_memory: bool) -> NDArray[Any]:
    length = os.fstat(file.fileno()).st_size
    if length != record["bytes"]:
        raise DamagedArrayError(f"{path} is {length} bytes long instead of {record['bytes']!r:.20}")
    data = file.read() if in_memory else b""
    if (xxhash.xxh3_128_hexdigest(data) if in_memory else _checksum(file)) != record["xxh3_128"]:
        raise DamagedArrayError(f"{path} is damaged: its checksum is wrong")
    file.seek(0)
    shape, dtype = _header(path, file)
    if list(shape) != record["shape"] or str(dtype) != record["dtype"]:
        raise DamagedArrayError(f"{path} holds {dtype}{list(shape)}, but its record has another type or shape")
    values = length - file.tell()
    if dtype.hasobject or int(np.prod(shape, dtype=object)) * dtype.itemsize != values:
        raise DamagedArrayError(f"{path} has {values} bytes of values, which do not fit {dtype}{list(shape)}")
    if not values:
        # An empty array cannot be mapped.
        return np.empty(shape, dtype)
    if in_memory:
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
    # A plain view keeps the mapping and avoids memmap's slow indexing.
    return np.memmap(file, dtype, "r", file.tell(), shape).view(np.ndarray)


def _header(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception:  # numpy parses the header with Python's own parser, which may raise anything, with long messages
        raise DamagedArrayError(f"{path} has no valid .npy header") from None
    if version != (1, 0) or fortran_order:
        raise DamagedArrayError(f"{path} is an array of another .npy version or order than redoxfs writes")
    return shape, dtype


def _checksum(file: BinaryIO) -> str:
    """XXH3-128 of a file from its current position, in hexadecimal."""
    digest = xxhash.xxh3_128()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
