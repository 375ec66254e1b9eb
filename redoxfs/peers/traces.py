"""Traces that peers send of their requests, put together from parts.

A requester sends one part after the other and is told with each how much is here, so that it goes on at the right
place after a reply was lost, or this node was started again. Memory grows with what has come, not with what was said,
and what has come is looked at part by part: a trace that names what does not exist is not kept until its end.
"""

import threading

import numpy as np
import numpy.typing as npt

TRACE_LIMIT_BYTES = 4 << 30
"""A billion requests a node and epoch."""

MOST_TIMES = 16
FEWEST_BYTES = 4 << 20
"""Where it is known how many samples there are: so often may a node ask for each in an epoch, and a million times in
any case. A sampler may draw with replacement, or repeat what it draws."""


class _Trace:
    __slots__ = ("data", "is_told", "received", "serial", "total_bytes")

    def __init__(self, serial: int, total_bytes: int) -> None:
        self.serial = serial
        self.total_bytes = total_bytes
        self.data = bytearray()
        self.received = 0
        self.is_told = False


class TraceAssembly:
    """One trace at a time of each requester. Used by any thread.

    Args:
        samples: how many there are, where that is known.
    """

    def __init__(self, samples: int | None = None) -> None:
        self._samples = samples
        self._most_bytes = TRACE_LIMIT_BYTES
        if samples is not None:
            self._most_bytes = min(TRACE_LIMIT_BYTES, max(FEWEST_BYTES, 4 * MOST_TIMES * samples))
        self._lock = threading.Lock()
        self._of: dict[int, _Trace] = {}

    def take(
        self, requester: int, serial: int, total_bytes: int, offset: int, payload: memoryview
    ) -> tuple[int, npt.NDArray[np.int32] | None]:
        """A part of trace number ``serial``: how many bytes of it are here, and the trace if that was the last part.

        Raises:
            ValueError: such a part cannot be.
        """
        end = offset + len(payload)
        if total_bytes % 4 or offset % 4 or end % 4 or total_bytes > self._most_bytes or end > total_bytes:
            raise ValueError(f"bytes {offset} to {end} of a trace of {total_bytes}")
        self._check(payload)
        with self._lock:
            trace = self._of.get(requester)
            if trace is None or serial > trace.serial:
                trace = self._of[requester] = _Trace(serial, total_bytes)
            if serial < trace.serial or trace.is_told:
                return total_bytes, None
            if total_bytes != trace.total_bytes:
                raise ValueError(f"bytes {offset} to {end} of a trace of {total_bytes}, before of {trace.total_bytes}")
            if offset == trace.received:
                trace.data += payload
                trace.received += len(payload)
            if trace.received < total_bytes:
                return trace.received, None
            trace.is_told = True
            order = np.frombuffer(trace.data, "<i4").astype(np.int32, copy=False)
            trace.data = bytearray()
            return total_bytes, order

    def _check(self, payload: memoryview) -> None:
        if self._samples is None or not len(payload):
            return
        part = np.frombuffer(payload, "<i4")
        first, last = int(part.min()), int(part.max())
        if first < 0 or last >= self._samples:
            raise ValueError(f"a trace with sample {first if first < 0 else last} of {self._samples}")

    def forget(self, requester: int) -> None:
        """The requester is another process now, which counts its traces anew."""
        with self._lock:
            self._of.pop(requester, None)
