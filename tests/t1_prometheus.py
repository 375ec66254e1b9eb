"""The exposition for Prometheus is made of the registry, and names nothing else."""

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import urlopen

import pytest
from patience import PATIENCE_S, completed, until
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry
from scrapes import Series, series_of, text_of, told, value_of

from redoxfs.launch.errors import UsageError
from redoxfs.launch.metrics import labels_of, listen, moved, parse_listen
from redoxfs.telemetry import METRICS, Kind
from redoxfs.telemetry.prometheus import REFUSED_S, MountCollector, Scraped, Server

STATS: dict[str, Any] = {
    "mountpoint": "/mnt",
    "node": 2,
    "opens": 7,
    "lap": {"train": 3, 'va"l\n': 4},
    "peers": [{"address": "a:1", "retries": 5}],
    "state_written": None,
    "open_seconds": {"resident": told(0.0005, 0.0005, 0.1), "demand": told(500.0)},
}


def exposition(*mounts: Scraped, **labels: str) -> Series:
    registry = CollectorRegistry()
    registry.register(MountCollector(lambda: mounts, labels))
    return series_of(generate_latest(registry).decode())


def test_values_have_the_labels_of_mount_node_and_metric() -> None:
    found = exposition(Scraped("/mnt", STATS), job="j 1")
    common = {"mount": "/mnt", "node": "2", "job": "j 1"}
    assert value_of(found, "redoxfs_up", mount="/mnt", job="j 1") == 1
    assert value_of(found, "redoxfs_opens_total", **common) == 7
    assert value_of(found, "redoxfs_lap", tree='va"l\n', **common) == 4
    assert value_of(found, "redoxfs_peer_retries_total", peer="a:1", **common) == 5
    assert not [name for name, _ in found if "state_written" in name]


def test_buckets_count_the_times_up_to_their_bounds() -> None:
    found = exposition(Scraped("/mnt", STATS))
    name = "redoxfs_open_duration_seconds"
    assert value_of(found, f"{name}_count", outcome="resident") == 3
    assert value_of(found, f"{name}_sum", outcome="resident") == pytest.approx(0.101)
    bounds = {
        float(dict(labels)["le"]): value
        for (of_name, labels), value in found.items()
        if of_name == f"{name}_bucket" and dict(labels)["outcome"] == "resident"
    }
    assert [bounds[2**bits / 1e9] for bits in (10, 18, 19, 26, 27, 37)] == [0, 0, 2, 2, 3, 3]
    assert value_of(found, f"{name}_bucket", outcome="demand", le="+Inf") == 1
    assert value_of(found, f"{name}_bucket", outcome="demand", le=repr(2**37 / 1e9)) == 0


def test_a_mount_whose_daemon_does_not_answer_is_not_up() -> None:
    found = exposition(Scraped("/mnt", STATS), Scraped("/dead", None))
    assert value_of(found, "redoxfs_up", mount="/dead") == 0
    # The series of a mount is the same one before and after its daemon dies.
    assert {frozenset(dict(labels)) for name, labels in found if name == "redoxfs_up"} == {frozenset({"mount"})}
    assert [dict(labels)["mount"] for name, labels in found if name == "redoxfs_opens_total"] == ["/mnt"]


def test_names_that_are_not_utf_8_are_escaped() -> None:
    name = os.fsdecode(b"/m\xff")
    found = exposition(Scraped(name, STATS | {"lap": {os.fsdecode(b"tr\xfe"): 2}}), job=os.fsdecode(b"\xfd"))
    assert value_of(found, "redoxfs_lap", mount="/m\\udcff", tree="tr\\udcfe", job="\\udcfd") == 2
    assert value_of(found, "redoxfs_up", mount="/m\\udcff") == 1


def test_every_metric_but_facts_is_exposed() -> None:
    names = {name for name, _ in exposition(Scraped("/mnt", STATS))}
    assert "redoxfs_opens_total" in names
    registry = CollectorRegistry()
    registry.register(MountCollector(lambda: [Scraped("/mnt", STATS)], {}))
    declared = {metric.exposed.removesuffix("_total") for metric in METRICS if metric.kind is not Kind.FACT}
    assert {family.name for family in registry.collect()} == declared | {"redoxfs_up"}


@contextmanager
def served() -> Iterator[tuple[int, Server]]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = Server(listening, MountCollector(lambda: [Scraped("/mnt", STATS)], {}))
    server.start()
    try:
        yield port, server
    finally:
        server.stop()


def test_a_server_answers_one_scrape_after_another() -> None:
    with served() as (port, _):
        assert text_of(port) == text_of(port)
        assert value_of(series_of(text_of(port)), "redoxfs_opens_total") == 7
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_a_request_may_name_some_metrics() -> None:
    with served() as (port, _), urlopen(f"http://127.0.0.1:{port}/metrics?name[]=redoxfs_opens_total") as answer:
        assert {name for name, _ in series_of(answer.read().decode())} == {"redoxfs_opens_total"}


class Full(socket.socket):
    """A socket that accepts nobody, as in a process without a free descriptor. It counts how often it was asked."""

    asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_process_without_descriptors_does_not_spin() -> None:
    listening = Full()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = Server(listening, MountCollector(list, {}))
    with socket.create_connection(listening.getsockname(), PATIENCE_S):
        began = time.monotonic()
        server.start()
        until(lambda: listening.asked >= 3)
        # A machine that is slower only makes it more.
        assert time.monotonic() - began >= 2 * REFUSED_S
        server.stop()


def test_a_client_that_sends_nothing_does_not_keep_a_server_from_its_end() -> None:
    with served() as (port, _):
        text_of(port)
        silent = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    # The server has closed the connection, whether it had accepted it or not.
    with silent, suppress(ConnectionResetError):
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("node1:9100", ("node1", 9100)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_an_address_has_a_port_and_perhaps_a_host(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", ":9100", "0", "65536", "::1:9100", "[::1]", "[x]:1", "host:", "9100 ", "a..b:1", "ä..b:1"]
)
def test_an_address_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_listen(text)


def test_nodes_on_one_machine_have_ports_of_their_own() -> None:
    assert [moved("9100", node) for node in range(2)] == ["127.0.0.1:9100", "127.0.0.1:9101"]
    assert moved("[::1]:9100", 2) == "[::1]:9102"
    with pytest.raises(UsageError):
        moved("65535", 1)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError) as refused:
            listen("--metrics", str(port))
    assert str(refused.value) == f"--metrics 127.0.0.1:{port}: cannot listen there: Address already in use"


def test_labels_are_names_with_values() -> None:
    assert labels_of(["job=a=b", "team="]) == {"job": "a=b", "team": ""}


@pytest.mark.parametrize("text", ["job", "=x", "1a=x", "__a=x", "a-b=x", "mount=x", "outcome=x", "le=x"])
def test_a_label_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        labels_of([text])


def test_a_label_is_given_once() -> None:
    with pytest.raises(UsageError):
        labels_of(["job=a", "job=b"])


TOLD_ELSEWHERE = """
import os, signal, socket, threading
from redoxfs.telemetry.prometheus import MountCollector, Server

server = Server(socket.create_server(("127.0.0.1", 0)), MountCollector(list, {}))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
server.end_by_signals()
try:
    server.serve()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_another_thread_takes_ends_the_collector() -> None:
    command = [sys.executable, "-c", TOLD_ELSEWHERE]
    done = completed(command)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
