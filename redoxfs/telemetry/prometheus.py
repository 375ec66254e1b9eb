"""The exposition for Prometheus: the declared metrics of some mounts, over HTTP.

One thread answers one scrape after the other, so a slow client delays other scrapes and nothing else. It takes a
snapshot of stats.json, and makes the text from that. Between two metrics it lets go of the interpreter's lock, for
which the thread that serves the mount may wait.
"""

import logging
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import HTTPServer
from typing import Any

from prometheus_client import MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from redoxfs.telemetry.distribution import FIRST_BITS, LAST_BITS
from redoxfs.telemetry.metric import PREFIX, Kind, Metric
from redoxfs.telemetry.registry import METRICS

CLIENT_S = 5.0
"""For a client to send its request, and to take the answer."""

REFUSED_S = 0.1
"""Before the next try, if a connection cannot be taken: it waits there, so that a loop would spin."""

MOUNT, NODE = "mount", "node"
"""Labels of every metric, but that `UP` has no node: a daemon that does not answer does not say which it is."""

UP = Metric("up", Kind.GAUGE, "", "1 if the daemon of the mount answered, else 0.")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scraped:
    """A mount and its stats.json; None if its daemon does not answer."""

    mountpoint: str
    stats: Mapping[str, Any] | None


class MountCollector(Collector):
    """The metrics of the mounts that ``scrape`` returns, in the order of the registry.

    Args:
        labels: more labels of every metric.
    """

    def __init__(self, scrape: Callable[[], Sequence[Scraped]], labels: Mapping[str, str]) -> None:
        self._scrape = scrape
        self._names = tuple(labels)
        self._values = tuple(labels.values())

    def collect(self) -> Iterator[Family]:
        return self._families(self._scrape())

    def describe(self) -> Iterator[Family]:
        """The metrics without values: for a request that names some of them."""
        return self._families(())

    def _families(self, mounts: Sequence[Scraped]) -> Iterator[Family]:
        up = GaugeMetricFamily(f"{PREFIX}{UP.name}", UP.help, labels=(MOUNT, *self._names))
        for mount in mounts:
            up.add_metric(_texts(mount.mountpoint, *self._values), mount.stats is not None)
        yield up
        for metric in METRICS:
            if metric.kind is not Kind.FACT:
                yield self._family(metric, mounts)
                time.sleep(0)

    def _family(self, metric: Metric, mounts: Iterable[Scraped]) -> Family:
        name, labels = f"{PREFIX}{metric.name}", (MOUNT, NODE, *self._names, *metric.labels)
        values = [
            (_texts(mount.mountpoint, str(mount.stats.get("node", 0)), *self._values, *of_labels), value)
            for mount in mounts
            if mount.stats is not None
            for of_labels, value in metric.values(mount.stats)
        ]
        if metric.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(name, metric.help, labels=labels)
            for of_labels, value in values:
                histogram.add_metric(of_labels, buckets(value), value["sum"])
            return histogram
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = kind(name, metric.help, labels=labels)
        for of_labels, value in values:
            family.add_metric(of_labels, value)
        return family


def _texts(*values: str) -> tuple[str, ...]:
    """Values of labels as UTF-8 can have them: a path may have any bytes."""
    return tuple(value.encode("utf-8", "backslashreplace").decode() for value in values)


def buckets(told: Mapping[str, Any]) -> list[tuple[str, float]]:
    """A histogram of stats.json as Prometheus counts: how many times were below each bound, all of them at last.

    Only powers of two are bounds here. With all bounds of stats.json, there would be four times as many series.
    """
    ends = sorted((float(bound), count) for bound, count in told["buckets"].items())
    found: list[tuple[str, float]] = []
    total, at = 0, 0
    for bits in range(FIRST_BITS, LAST_BITS + 1):
        bound = (1 << bits) / 1e9
        while at < len(ends) and ends[at][0] <= bound:
            total += ends[at][1]
            at += 1
        found.append((repr(bound), total))
    return [*found, ("+Inf", told["count"])]


class Server:
    """Answers scrapes at ``listening``, a socket that listens, from `start` to `stop`."""

    def __init__(self, listening: socket.socket, collector: Collector) -> None:
        self._http = _Http(listening, collector)
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self.serve, name="redoxfs-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hang up, and end the thread."""
        self._end.close()
        self._http.hang_up()
        self._thread.join()

    def end_by_signals(self) -> None:
        """From now on SIGTERM raises KeyboardInterrupt in the main thread as SIGINT does, also while `serve` waits."""
        # The kernel's handler writes there at once. Python's runs only once this thread does.
        self._end.setblocking(False)
        signal.set_wakeup_fd(self._end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def serve(self) -> None:
        """Answer in this thread, until `stop` or an exception."""
        waiting = select.poll()
        for each in (self._http.socket, self._ended):
            waiting.register(each, select.POLLIN)
        try:
            while self._ended.fileno() not in (fd for fd, _ in waiting.poll()):
                self._http.handle_request()
        finally:
            self._http.server_close()
            self._ended.close()


class _Http(HTTPServer):
    timeout = 0  # `handle_request` is called when there is one.

    def __init__(self, listening: socket.socket, collector: Collector) -> None:
        # What `?name[]=…` chooses from.
        registry = CollectorRegistry()
        registry.register(collector)
        handler = MetricsHandler.factory(registry)
        handler.timeout = CLIENT_S  # type: ignore[attr-defined]
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._client: socket.socket | None = None
        self._ends = False

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            client, address = super().get_request()
        except OSError:
            # The process has as many files open as it may, perhaps.
            time.sleep(REFUSED_S)
            raise
        self._client = client
        if self._ends:
            self.hang_up()
        return client, address

    def hang_up(self) -> None:
        """Let no client keep the thread. From another thread."""
        self._ends = True
        client = self._client
        if client is not None:
            # It may have gone, or be closed.
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # the signature is socketserver's
        # The client has gone, or the mount ends.
        log.debug("a scrape failed", exc_info=True)
