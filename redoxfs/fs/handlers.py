"""One map from exceptions to errno, and a wrapper that applies it to every operation for pyfuse3.

An exception that leaves an operation ends pyfuse3's main loop, and with it the mount. So none does, but FUSEError. An
exception that is not in the map is a bug. It is logged with its traceback, and the program gets EIO.
"""

import errno
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio

log = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def errno_of(error: Exception) -> int:
    """The errno for an exception; EIO for a bug, which is logged."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if isinstance(error, trio.TooSlowError):
        return errno.EIO
    log.error("a bug in redoxfs: please report it", exc_info=error)
    return errno.EIO


def handler(
    function: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make an operation for pyfuse3 of a method: it raises only FUSEError."""

    @wraps(function)
    async def handle(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return await function(self, *arguments, **named)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            raise pyfuse3.FUSEError(errno_of(error)) from error

    return handle
