"""What stands between pyfuse3 and every handler: it raises nothing but FUSEError, and it never holds up the loop.

An exception that leaves a handler ends pyfuse3's main loop and with it the mount, so none does: one map says which
errno each becomes. What is not in the map is a bug, written to the log once with its traceback, and EIO to the
program that ran into it.

A handler runs at once, by hand. If it returns without suspending, the event loop has not heard of it; when it
suspends for the first time, another task takes over receiving (`redoxfs.fs.session`). One that never suspends is an
ordinary function and costs no coroutine (`at_once`).
"""

import errno
import logging
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import pyfuse3
import trio

from redoxfs.fs.session import Done, hand_over
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


class Handled(Generic[T]):
    """A handler's coroutine, to be awaited once."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[Any], object] = self._coroutine.send
        argument: object = None
        suspended = False
        while True:
            try:
                trap = step(argument)
            except StopIteration as done:
                result: T = done.value
                return result
            except pyfuse3.FUSEError:
                raise
            except Exception as error:
                raise pyfuse3.FUSEError(errno_of(error)) from error
            if not suspended:
                suspended = True
                hand_over()
            try:
                argument = yield trap
                step = self._coroutine.send
            except BaseException as thrown:
                argument, step = thrown, self._coroutine.throw


def handler(
    function: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a pyfuse3 operation of a method, typed as the coroutine that pyfuse3 declares; it is only awaited."""

    @wraps(function)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Handled[T]:
        return Handled(function(self, *args, **kwargs))

    return cast(Callable[Concatenate[S, P], Coroutine[Any, Any, T]], wrapper)


def at_once(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a pyfuse3 operation of a method that never suspends."""

    @wraps(function)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Done[T]:
        try:
            return Done(function(self, *args, **kwargs))
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            raise pyfuse3.FUSEError(errno_of(error)) from error

    return cast(Callable[Concatenate[S, P], Coroutine[Any, Any, T]], wrapper)
