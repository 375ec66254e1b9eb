"""Traces that peers send of their requests, put together from parts.

A requester sends one part after the other and is told with each how much is here, so that it goes on at the right
place after a reply was lost, or this node was started again. Memory grows with what has come, not with what was said.
"""

import threading

import numpy as np
import numpy.typing as npt

TRACE_LIMIT_BYTES = 4 << 30
"""A billion requests a node and epoch."""


class _Trace:
    __slots__ = ("data", "is_told", "received", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.data = bytearray()
        self.received = 0
        self.is_told = False


class Traces:
    """One trace at a time of each requester. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, _Trace] = {}

    def take(
        self, requester: int, serial: int, total_bytes: int, offset: int, payload: memoryview
    ) -> tuple[int, npt.NDArray[np.int32] | None]:
        """A part of trace number ``serial``: how many bytes of it are here, and the trace if that was the last part.

        Raises:
            ValueError: such a part cannot be.
        """
        if total_bytes % 4 or total_bytes > TRACE_LIMIT_BYTES or offset + len(payload) > total_bytes:
            raise ValueError(f"bytes {offset} to {offset + len(payload)} of a trace of {total_bytes}")
        with self._lock:
            trace = self._of.get(requester)
            if trace is None or serial > trace.serial:
                trace = self._of[requester] = _Trace(serial)
            if serial < trace.serial or trace.is_told:
                return total_bytes, None
            if offset == trace.received:
                trace.data += payload
                trace.received += len(payload)
            if trace.received < total_bytes:
                return trace.received, None
            trace.is_told = True
            order = np.frombuffer(trace.data, "<i4").astype(np.int32, copy=False)
            trace.data = bytearray()
            return total_bytes, order

    def forget(self, requester: int) -> None:
        """The requester is another process now, which counts its traces anew."""
        with self._lock:
            self._of.pop(requester, None)
