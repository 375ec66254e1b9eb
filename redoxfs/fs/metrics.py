"""The metrics of one mount, for Prometheus.

The server has a thread of its own. It asks the mount's task for a snapshot, which takes that task about a
millisecond, and makes the text by itself.
"""

import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from redoxfs.node.threads import in_thread
from redoxfs.telemetry.prometheus import MountCollector, Scraped, Server

log = logging.getLogger(__name__)


class Metrics:
    """Serves the metrics of a mount at a socket that listens; ``address``: host and port, as numbers."""

    def __init__(self, listening: socket.socket, address: str, labels: Mapping[str, str]) -> None:
        self.address = address
        self._listening = listening
        self._labels = labels

    @asynccontextmanager
    async def served(self, stats: Callable[[], Mapping[str, Any]]) -> AsyncIterator[None]:
        """Answer scrapes with ``stats``, which is called in this task's thread, until the block ends."""
        token = trio.lowlevel.current_trio_token()

        def scrape() -> list[Scraped]:
            snapshot = trio.from_thread.run_sync(stats, trio_token=token)
            return [Scraped(snapshot["mountpoint"], snapshot)]

        server = Server(self._listening, MountCollector(scrape, self._labels))
        try:
            server.start()
        except RuntimeError as error:
            # At a limit of processes. The mount is there already, and programs wait for it.
            log.warning("no metrics: %s", error)
            yield
            return
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                # A scrape may wait for this thread.
                await in_thread(server.stop)
