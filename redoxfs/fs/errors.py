"""One map from what a handler raises to the errno that the program sees.

An exception that leaves a handler ends pyfuse3's main loop and with it the mount, so none does: what is not in the
map is a bug, written to the log once with its traceback, and EIO to the program that ran into it.
"""

import errno
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio

from redoxfs.node import TooManyWaitingError

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
    if isinstance(error, TooManyWaitingError):
        return errno.EAGAIN
    log.error("a bug in redoxfs: please report it", exc_info=error)
    return errno.EIO


def translated(
    handler: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A handler that raises FUSEError alone."""

    @wraps(handler)
    async def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            raise pyfuse3.FUSEError(errno_of(error)) from error

    return wrapper
