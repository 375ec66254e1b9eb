"""Wraps every handler for pyfuse3: it raises only FUSEError, and never blocks the loop.

An exception that leaves a handler ends pyfuse3's main loop, and with it the mount. So none does: one map turns each
into an errno. An exception that is not in the map is a bug. It is logged with its traceback, and the program gets EIO.

A handler is an ordinary function. Most return their answer at once, without the event loop. A handler that has to wait
returns a coroutine. This drives the coroutine by hand, so that another task starts to receive requests when it suspends
for the first time (`redoxfs.fs.session`).
"""

import errno
import logging
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from inspect import signature
from types import CoroutineType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import pyfuse3
import trio

from redoxfs.fs.session import resumed, suspending
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
    """A handler's coroutine. Await it once."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = self._coroutine
        sent: object = None
        thrown: BaseException | None = None
        suspended = False
        try:
            while True:
                try:
                    trap = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
                except StopIteration as done:
                    result: T = done.value
                    return result
                except pyfuse3.FUSEError:
                    raise
                except Exception as error:
                    raise pyfuse3.FUSEError(errno_of(error)) from error
                if not suspended:
                    suspended = True
                    suspending()
                try:
                    sent, thrown = (yield trap), None
                except BaseException as error:
                    thrown = error
        finally:
            if suspended:
                resumed()


def handler(
    function: Callable[Concatenate[S, P], T | Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a pyfuse3 operation of a method that returns its answer, or a coroutine if it has to wait.

    There is a wrapper for each number of arguments: ``*args`` would cost 3 % of a request's instructions.
    """
    act = cast(Callable[..., Any], function)

    async def of_one(self: S, a: object, /) -> Any:
        try:
            answer = act(self, a)
        except Exception as error:
            raise _refusal(error) from error
        return await Handled(answer) if isinstance(answer, CoroutineType) else answer

    async def of_two(self: S, a: object, b: object, /) -> Any:
        try:
            answer = act(self, a, b)
        except Exception as error:
            raise _refusal(error) from error
        return await Handled(answer) if isinstance(answer, CoroutineType) else answer

    async def of_three(self: S, a: object, b: object, c: object, /) -> Any:
        try:
            answer = act(self, a, b, c)
        except Exception as error:
            raise _refusal(error) from error
        return await Handled(answer) if isinstance(answer, CoroutineType) else answer

    arguments = len(signature(function).parameters) - 1
    wrapper: Any = (of_one, of_two, of_three)[arguments - 1]
    return cast(Callable[Concatenate[S, P], Coroutine[Any, Any, T]], wraps(function)(wrapper))


def _refusal(error: Exception) -> pyfuse3.FUSEError:
    return error if isinstance(error, pyfuse3.FUSEError) else pyfuse3.FUSEError(errno_of(error))
