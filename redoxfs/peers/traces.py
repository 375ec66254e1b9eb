"""Traces, and how those of peers are assembled from parts.

A requester sends one part after the other. Each reply says how much is here, so the requester resumes at the right
place after a lost reply or a restart of this node. Memory grows with the bytes that arrived, not with the announced
length. Each part is checked when it arrives: a trace that names samples that do not exist is not kept until its end.
"""

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TRACE_LIMIT_BYTES = 4 << 30
"""A billion requests a node and epoch."""

MOST_TIMES = 16
FEWEST_BYTES = 4 << 20
"""Requests of a node for each sample in an epoch, and the size of a trace that is allowed in any case (a million
requests). A sampler may draw with replacement, or repeat samples."""


class _Trace:
    __slots__ = ("data", "is_complete", "received", "serial", "total_bytes")

    def __init__(self, serial: int, total_bytes: int) -> None:
        self.serial = serial
        self.total_bytes = total_bytes
        self.data = bytearray()
        self.received = 0
        self.is_complete = False


@dataclass(frozen=True, slots=True)
class Trace:
    """``order`` is int32 little endian; ``serial`` counts this node's traces."""

    serial: int
    epoch: int
    order: memoryview


class TraceAssembly:
    """One trace at a time of each requester, of so many ``samples``. Used by any thread."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._most_bytes = min(TRACE_LIMIT_BYTES, max(FEWEST_BYTES, 4 * MOST_TIMES * samples))
        self._lock = threading.Lock()
        self._of: dict[int, _Trace] = {}

    def take(
        self, requester: int, serial: int, total_bytes: int, offset: int, payload: memoryview
    ) -> tuple[int, npt.NDArray[np.int32] | None]:
        """Take a part of trace number ``serial``. Returns the bytes that are here, and the trace after its last part.

        Raises:
            ValueError: the part is impossible.
        """
        end = offset + len(payload)
        if total_bytes % 4 or offset % 4 or end % 4 or total_bytes > self._most_bytes or end > total_bytes:
            raise ValueError(f"bytes {offset} to {end} of a trace of {total_bytes}")
        self._check(payload)
        with self._lock:
            trace = self._of.get(requester)
            if trace is None or serial > trace.serial:
                trace = self._of[requester] = _Trace(serial, total_bytes)
            if serial < trace.serial or trace.is_complete:
                return total_bytes, None
            if total_bytes != trace.total_bytes:
                raise ValueError(f"bytes {offset} to {end} of a trace of {total_bytes}, before of {trace.total_bytes}")
            if offset == trace.received:
                trace.data += payload
                trace.received += len(payload)
            if trace.received < total_bytes:
                return trace.received, None
            trace.is_complete = True
            order = np.frombuffer(trace.data, "<i4").astype(np.int32, copy=False)
            trace.data = bytearray()
            return total_bytes, order

    def _check(self, payload: memoryview) -> None:
        if not len(payload):
            return
        part = np.frombuffer(payload, "<i4")
        first, last = int(part.min()), int(part.max())
        if first < 0 or last >= self._samples:
            raise ValueError(f"a trace with sample {first if first < 0 else last} of {self._samples}")

    def forget(self, requester: int) -> None:
        """The requester is another process now, which numbers its traces anew."""
        with self._lock:
            self._of.pop(requester, None)
