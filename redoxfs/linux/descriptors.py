"""Descriptors of files for the length of a block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """``fd`` for a block, after which it is closed."""
    try:
        yield fd
    finally:
        os.close(fd)
