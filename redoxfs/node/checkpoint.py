"""The bytes of a checkpoint: named arrays.

    head      magic, layout, the length of the description, the length of all
    about     JSON: numbers and texts, and the name, type and shape of each array
    arrays    one after the other
    checksum  XXH3-128 of everything before it

A process writes them to memory that outlives it, for another process of the same layout.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

MAGIC = b"RedoxNow"
LAYOUT = 8
"""Of a checkpoint, and of the entries of the journal (`node.journal`). Another number is another format."""

MOST_DIMENSIONS = 4
"""More than any array of a checkpoint has. Without a bound, a product of lengths may be too long for the memory."""

_HEAD = struct.Struct("<8sIIQ")
_SUM_BYTES = 16
_TYPES = {np.dtype(name).str: np.dtype(name) for name in ("<i8", "<i4", "|u1")}

Arrays = Mapping[str, npt.NDArray[Any]]
Values = Mapping[str, Any]


class CheckpointError(ValueError):
    """A checkpoint cannot be used: one line."""


def encode(values: Values, arrays: Arrays) -> bytes:
    """The bytes of a checkpoint."""
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    about = json.dumps({"values": dict(values), "arrays": shapes}).encode()
    size = _HEAD.size + len(about) + sum(array.nbytes for array in arrays.values()) + _SUM_BYTES
    head = _HEAD.pack(MAGIC, LAYOUT, len(about), size)
    data = b"".join((head, about, *(array.tobytes() for array in arrays.values())))
    return data + xxhash.xxh3_128_digest(data)


def decode(data: bytes) -> tuple[Values, Arrays]:
    """The inverse of `encode`. Raises CheckpointError."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEAD.size + _SUM_BYTES:
        raise CheckpointError(f"it is not a checkpoint: it has {len(data)} bytes")
    _, layout, about_bytes, size = _HEAD.unpack_from(data)
    if layout != LAYOUT:
        raise CheckpointError(f"it has layout {layout}, and this redoxfs reads layout {LAYOUT}")
    if size != len(data):
        raise CheckpointError(f"it is truncated: it has {len(data)} bytes of {size}")
    if xxhash.xxh3_128_digest(memoryview(data)[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
        raise CheckpointError("it is damaged: its checksum is wrong")
    at = _HEAD.size + about_bytes
    try:
        about = json.loads(data[_HEAD.size : at])
        arrays = {}
        for name, (type_name, shape) in about["arrays"].items():
            dtype = _TYPES[type_name]
            if len(shape) > MOST_DIMENSIONS or not all(0 <= length <= len(data) for length in shape):
                raise ValueError
            count = math.prod(shape)
            arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
        return dict(about["values"]), arrays
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise CheckpointError("it is damaged: its description is wrong") from None
