"""From gRPC's threads into the node's trio task, and back.

Rejected: `trio.from_thread`. Only the trio task can wake a thread that waits in it, and when the node ends, that task
waits for the server's threads. Here the end wakes them itself.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class ClosedError(Exception):
    """The node is ending."""


class Bridge:
    """Made in the trio task, used by any thread.

    Args:
        post: has a function called in the trio task, in the order of the calls; None: trio's `run_sync_soon`.
    """

    def __init__(self, post: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._post = trio.lowlevel.current_trio_token().run_sync_soon if post is None else post
        self._lock = threading.Lock()
        self._closed = False
        self._promises: set[Future[Any]] = set()

    def post(self, act: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have ``act`` called in the trio task, in the order of the calls; not at all after `close`."""

        def run() -> None:
            if self._closed:
                return
            try:
                act(*args, **kwargs)
            except Exception:
                # It would end the event loop, and with it the mount.
                log.exception("a bug in redoxfs: please report it")

        with suppress(trio.RunFinishedError):
            self._post(run)

    def call(self, timeout_s: float, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``act`` in the trio task and return its result.

        Raises:
            ClosedError, TimeoutError, and the exceptions of ``act``.
        """
        promise: Future[T] = self.promise()

        def run() -> None:
            try:
                keep(promise, act(*args, **kwargs))
            except Exception as error:
                keep_error(promise, error)

        self.post(run)
        return promise.result(timeout_s)

    def promise(self) -> "Future[Any]":
        """A future that `close` fails with ClosedError."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(ClosedError("this node ends"))
            else:
                self._promises.add(future)
        future.add_done_callback(self._forget)
        return future

    def close(self) -> None:
        """Call nothing any more, and fail all promises."""
        with self._lock:
            self._closed = True
            promises = list(self._promises)
        for promise in promises:
            keep_error(promise, ClosedError("this node ends"))

    def _forget(self, future: "Future[Any]") -> None:
        with self._lock:
            self._promises.discard(future)


def keep(promise: "Future[T]", result: T) -> None:
    """Fulfil a promise, unless it has failed."""
    with suppress(InvalidStateError):
        promise.set_result(result)


def keep_error(promise: "Future[T]", error: Exception) -> None:
    with suppress(InvalidStateError):
        promise.set_exception(error)
