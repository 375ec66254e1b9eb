"""Arrays in files: each a plain .npy beside a record of its length, type and checksum, never pickled.

Both the kept scan of a source and the index of a packed dataset are folders of these. A file is believed only if
its size and checksum are those of the record, so that nothing damaged is ever mapped, and no length that a damaged
header may claim is ever allocated.

Invariant: what is stored is on the disk when `store` and `write_file` return. Who wants a folder to appear whole
writes it beside, syncs it, and renames it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20


class DamagedArrayError(Exception):
    """A file is not what its record says; the text names the file and says how."""


def store(folder: Path, name: str, values: NDArray[Any]) -> dict[str, Any]:
    """Write ``values`` to ``folder``/NAME.npy, readable by its owner alone; the record to keep of it."""
    path = folder / f"{name}.npy"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        np.save(file, values, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return record_of(path, values)


def record_of(path: Path, values: NDArray[Any]) -> dict[str, Any]:
    """The record of an array that is stored at ``path``."""
    return {
        "bytes": path.stat().st_size,
        "xxh3_128": checksum(path),
        "shape": list(values.shape),
        "dtype": str(values.dtype),
    }


def load(folder: Path, name: str, record: dict[str, Any]) -> NDArray[Any]:
    """The array that ``record`` tells of, mapped read-only.

    Raises:
        DamagedArrayError: it is another one, cut, or not there.
    """
    path = folder / f"{name}.npy"
    try:
        if path.stat().st_size != record["bytes"]:
            raise DamagedArrayError(f"{path} is {path.stat().st_size} bytes long instead of {record['bytes']}")
        if checksum(path) != record["xxh3_128"]:
            raise DamagedArrayError(f"{path} is damaged: its checksum is wrong")
        # An empty array cannot be mapped.
        empty = 0 in record["shape"]
        mapped = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    except OSError as error:
        raise DamagedArrayError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArrayError(f"{path} is no array that its record fits: {error}") from None
    if list(mapped.shape) != record["shape"] or str(mapped.dtype) != record["dtype"]:
        raise DamagedArrayError(f"{path} holds {mapped.dtype}{list(mapped.shape)} instead of what its record says")
    # The plain view keeps the mapping and loses memmap's slow indexing.
    plain: NDArray[Any] = mapped.view(np.ndarray)
    return plain


def checksum(path: Path) -> str:
    """XXH3-128 of a file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write a new file, readable by its owner alone, through to the disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """What was renamed in or into a directory stays so after a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
