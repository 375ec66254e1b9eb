"""A real Prometheus scrapes a real mount under load, and its values agree with what an outside reader counted."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from dashboards import ALERTS, ALERTS_TEST, FOLDER, Query, alert_queries, may_be_empty, panel_queries, variables
from images import make_images
from machine import Machine
from patience import PATIENCE_S, SLOWNESS, completed, until
from ports import reserve, reserve_two
from scrapes import text_of

from redoxfs.telemetry import When

PAGE = (Path(__file__).parents[1] / "docs/metrics.md").read_text()

READERS, EPOCHS = 4, 3
# No node is lost in these tests, and a slow one must not be taken for lost.
PATIENT = ("--peer-timeout", "3600")

# Reads every file EPOCHS times in an order of its own, and prints how many files, how many bytes, and the longest open.
READER = """
import os, random, sys, time
paths, epochs = sys.argv[2:], int(sys.argv[1])
files = size = 0
longest = 0.0
for _ in range(epochs):
    random.shuffle(paths)
    for path in paths:
        began = time.monotonic()
        fd = os.open(path, os.O_RDONLY)
        longest = max(longest, time.monotonic() - began)
        while part := os.read(fd, 1 << 20):
            size += len(part)
        os.close(fd)
        files += 1
print(files, size, longest)
"""

CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
scrape_configs:
  - job_name: redoxfs
    static_configs:
      - targets: [{targets}]
rule_files:
  - {rules}
"""

OVER_S = 600
"""The rates of the dashboard are taken over this: longer than a test, so that they have all that readers did."""


class Prometheus:
    """A server of its own; ``port`` is where it answers."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self.at_s: float | None = None
        """The moment that queries ask about; None: now."""

    def _data(self, path: str, **asked: str) -> Any:
        try:
            with urlopen(f"{self._url}/{path}?{urlencode(asked)}", timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        except HTTPError as error:
            raise AssertionError((asked, error.read())) from None
        assert found["status"] == "success", found
        return found["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        at = {} if self.at_s is None else {"time": repr(self.at_s)}
        return self._data("query", query=text, **at)["result"]

    def rules(self) -> list[dict[str, Any]]:
        """All alerts that it evaluates."""
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def finite(self, text: str) -> list[float]:
        """The values of a query that are numbers."""
        values = [float(sample["value"][1]) for sample in self.query(text)]
        return [value for value in values if math.isfinite(value)]

    def value(self, text: str) -> float:
        """The one value of a query; NaN if it has none yet."""
        samples = self.query(text)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else math.nan

    def await_value(self, text: str, expected: float) -> None:
        """Until a scrape has brought it."""
        until(lambda: self.value(text) == expected, f"{text} is not {expected}")


@contextmanager
def prometheus(folder: Path, *ports: int) -> Iterator[Prometheus]:
    """Scrapes these ports of this machine, and evaluates the alerts."""
    (port,) = reserve(1)
    config = folder / "prometheus.yml"
    targets = ", ".join(f'"127.0.0.1:{each}"' for each in ports)
    config.write_text(CONFIG.format(targets=targets, rules=ALERTS))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S):
                    return True
            except URLError:
                return False

        until(is_ready, "Prometheus is not ready")
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(autouse=True)
def installed() -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed; scripts/test-engines installs it")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    source = tmp_path / "data"
    make_images(source, {"n00000001": 150, "n00000002": 150})
    return source


def read_from_outside(root: Path) -> tuple[int, int, float]:
    """What several readers at once counted: opens, bytes, and the longest open of any in seconds."""
    paths = [str(path) for path in root.rglob("*.png")]
    assert paths
    command = [sys.executable, "-c", READER, str(EPOCHS), *paths]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(READERS)]
    try:
        counts = [reader.communicate(timeout=PATIENCE_S)[0].split() for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
    assert [reader.returncode for reader in readers] == [0] * READERS
    files, sizes, longest = zip(*counts, strict=True)
    return sum(map(int, files)), sum(map(int, sizes)), max(map(float, longest))


# The duration of an open inside is compared with that outside. A daemon without a processor may note a reply late.
@pytest.mark.timed
def test_values_agree_with_what_outside_readers_counted(machine: Machine, images: Path, tmp_path: Path) -> None:
    (port,) = reserve(1)
    # Without the kernel's pages, each read of a program is a read of the mount.
    options = ("--metrics", str(port), "--metrics-label", "job_id=17", "-o", "direct_io")
    machine.ok("mount", images, machine.mnt, *options)
    of_mount = f'{{mount="{machine.mnt}",node="0",job_id="17"}}'
    with prometheus(tmp_path, port) as server:
        server.await_value(f"redoxfs_opens_total{of_mount}", 0)
        files, size, longest_s = read_from_outside(machine.mnt)
        server.await_value(f"redoxfs_opens_total{of_mount}", files)
        server.await_value(f"redoxfs_served_bytes_total{of_mount}", size)
        server.await_value("sum(redoxfs_open_duration_seconds_count)", files)
        # After the last open. Then nothing is read any more.
        server.await_value(f"redoxfs_loads_in_flight{of_mount}", 0)
        stats = machine.stats()
        assert stats["bytes_read"] >= size // files
        assert stats["redirected"] > 0
        server.await_value(f"redoxfs_storage_read_bytes_total{of_mount}", stats["bytes_read"])
        server.await_value(f"redoxfs_opens_redirected_total{of_mount}", stats["redirected"])
        # No open took longer from receipt to reply than the longest took from outside. A reply is noted when it is
        # sent, and its program may have run before: so a bucket more.
        below = 2.0 ** (math.ceil(math.log2(longest_s * SLOWNESS * 1e9)) + 1) / 1e9
        server.await_value(f'sum(redoxfs_open_duration_seconds_bucket{{le="{below!r}"}})', files)
    machine.ok("umount", machine.mnt)


def test_the_queries_of_the_page_have_answers(machine: Machine, images: Path, tmp_path: Path) -> None:
    rows = PAGE.partition("| question | query |")[2].partition("\n\n")[0]
    queries = [text.replace("\\|", "|") for text in re.findall(r"\| `(.+)` \|", rows)]
    assert len(queries) >= 4
    (port,) = reserve(1)
    machine.ok("mount", images, machine.mnt, "--metrics", str(port))
    with prometheus(tmp_path, port) as server:
        server.await_value("redoxfs_opens_total", 0)
        files, _, _ = read_from_outside(machine.mnt)
        server.await_value("redoxfs_opens_total", files)
        for query in queries:
            (sample,) = server.query(query)
            assert float(sample["value"][1]) > 0, query
    machine.ok("umount", machine.mnt)


def test_the_exposition_has_nothing_that_promtool_complains_of(machine: Machine, images: Path) -> None:
    port = reserve_two()
    machine.ok("cluster", "up", "--nodes", "2", images, machine.mnt, *PATIENT, "--metrics", str(port))
    text = text_of(port)
    checked = completed(["promtool", "check", "metrics"], input=text, env=os.environ)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    machine.ok("cluster", "down", machine.mnt)


class Dashboard:
    """The queries of the dashboard, sent to ``server`` as Grafana sends them, for one mount or for all."""

    def __init__(self, server: Prometheus, mount: Path | None = None) -> None:
        self._server = server
        self._mount = None if mount is None else str(mount)
        self._over = f"{OVER_S}s"

    def empty(self, present: frozenset[When]) -> list[str]:
        """Queries without a number, of mounts that have the fields of ``present``. An error fails at once."""
        return [
            f"{query.of}, {query.legend}: {query.text}"
            for query in panel_queries()
            if not self._finite(query) and not may_be_empty(query, present)
        ]

    def value(self, panel: str, legend: str | None = None) -> float:
        """The sum of what a panel shows now."""
        queries = [query for query in panel_queries() if query.of == panel and legend in (None, query.legend)]
        assert queries, panel
        values = [value for query in queries for value in self._finite(query)]
        assert values, panel
        return sum(values)

    def _finite(self, query: Query) -> list[float]:
        return self._server.finite(query.with_values(self._over, self._mount))

    def count(self, panel: str, legend: str | None = None) -> float:
        """What a panel with rates shows, as a number of times."""
        return self.value(panel, legend) * OVER_S

    def choices(self) -> dict[str, set[str]]:
        """What its variables let people choose from."""
        return {
            name: {sample["metric"][label] for sample in self._server.query(f"group by ({label}) ({text})")}
            for name, (metric, label) in variables().items()
            for text in [re.sub(r"\$\w+", ".*", metric)]
        }


def at_the_last_scrape(server: Prometheus, mount: Path) -> None:
    """Ask about the moment of the newest values of a mount, after which a rate would guess."""
    server.at_s = None
    server.at_s = server.value(f'timestamp(redoxfs_opens_total{{mount="{mount}"}})')


def settled(server: Prometheus, machine: Machine, mount: Path) -> dict[str, Any]:
    """The statistics of a mount that nobody reads, once it does nothing more and all of them are scraped."""
    # A daemon that has just started has no state file yet.
    names = {
        "remote_samples": "remote_samples_total",
        "bytes_read": "storage_read_bytes_total",
        "turns_kept": "turns_kept",
    }
    stats: dict[str, Any] = {}

    def is_settled() -> bool:
        stats.update(machine.stats(mount))
        scraped = {name: server.value(f'redoxfs_{text}{{mount="{mount}"}}') for name, text in names.items()}
        return not stats["loads_in_flight"] and all(stats[name] == value for name, value in scraped.items())

    until(is_settled, "not all that the mount counts is scraped")
    return stats


# As above.
@pytest.mark.timed
def test_the_dashboard_shows_what_outside_readers_counted(machine: Machine, images: Path, tmp_path: Path) -> None:
    (port,) = reserve(1)
    machine.ok("mount", "--keeper", images, machine.mnt, "--metrics", str(port), "-o", "direct_io")
    with prometheus(tmp_path, port) as server:
        server.await_value("redoxfs_opens_total", 0)
        files, size, longest_s = read_from_outside(machine.mnt)
        # Another daemon takes over, and counts from zero.
        machine.kill(signal.SIGKILL)
        again, more, longer_s = read_from_outside(machine.mnt)
        server.await_value("redoxfs_opens_total", again)
        server.await_value("redoxfs_served_bytes_total", more)
        stats = settled(server, machine, machine.mnt)
        at_the_last_scrape(server, machine.mnt)
        dashboard = Dashboard(server)
        present = frozenset({When.ALWAYS, When.KEEPER, When.DEATH})
        assert dashboard.empty(present) == []
        assert dashboard.choices() == {
            "job": {"redoxfs"},
            "instance": {f"127.0.0.1:{port}"},
            "mount": {str(machine.mnt)},
            "node": {"0"},
        }
        assert (dashboard.value("Mounts up"), dashboard.value("Down")) == (1, 0)
        assert dashboard.value("Errors, last hour") == 0
        # A scrape may have missed the last opens of the first daemon, and a rate the first of the second.
        opens = dashboard.count("Opens of each mount")
        assert again <= opens * 1.001
        assert opens <= (files + again) * 1.001
        assert dashboard.value("Opens") == pytest.approx(dashboard.value("Opens of each mount"))
        assert dashboard.count("Bytes to programs") <= (size + more) * 1.001
        assert dashboard.value("What opens waited for") == pytest.approx(1)
        assert 0 < dashboard.value("Redirected opens") <= 1
        assert dashboard.value("p99 of opens") <= 2 * SLOWNESS * max(longest_s, longer_s)
        assert dashboard.value("Memory for samples", "{{instance}} {{mount}} used") == stats["memory_used_bytes"]
        assert dashboard.value("Restarts", "{{instance}} {{mount}} restarts") == 1
        server.at_s = None
        server.await_value('ALERTS{alertname="RedoxfsDaemonRestarted",alertstate="firing"}', 1)
    machine.ok("umount", machine.mnt)


def test_the_dashboard_counts_exactly_what_one_daemon_served(machine: Machine, images: Path, tmp_path: Path) -> None:
    (port,) = reserve(1)
    machine.ok("mount", images, machine.mnt, "--metrics", str(port), "-o", "direct_io")
    with prometheus(tmp_path, port) as server:
        server.await_value("redoxfs_opens_total", 0)
        files, size, _ = read_from_outside(machine.mnt)
        server.await_value("redoxfs_opens_total", files)
        server.await_value("redoxfs_served_bytes_total", size)
        stats = settled(server, machine, machine.mnt)
        at_the_last_scrape(server, machine.mnt)
        dashboard = Dashboard(server)
        assert dashboard.empty(frozenset({When.ALWAYS})) == []
        for panel, expected in {
            "Opens": files,
            "Opens of each mount": files,
            "To programs": size,
            "Bytes to programs": size,
            "Bytes from storage": stats["bytes_read"],
        }.items():
            assert dashboard.count(panel) == pytest.approx(expected, rel=1e-3), panel
        assert dashboard.value("Redirected opens") == pytest.approx(stats["redirected"] / files, rel=1e-3)
        assert dashboard.value("Read amplification") == pytest.approx(stats["bytes_read"] / size, rel=1e-3)
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_the_dashboard_shows_two_nodes(machine: Machine, images: Path, tmp_path: Path, policy: str) -> None:
    port = reserve_two()
    machine.ok(
        "cluster", "up", "--nodes", "2", images, machine.mnt, *PATIENT, "--metrics", str(port), "--policy", policy
    )
    nodes = [machine.mnt / str(node) for node in range(2)]
    with prometheus(tmp_path, port, port + 1) as server:
        # A rate begins with the first scrape, and what was counted before that is in no rate.
        server.await_value("count(redoxfs_opens_total == 0)", 2)
        counts = [read_from_outside(node)[0] for node in nodes]
        for number, files in enumerate(counts):
            server.await_value(f'redoxfs_opens_total{{node="{number}"}}', files)
        stats = [settled(server, machine, node) for node in nodes]
        dashboard = Dashboard(server)
        present = {When.ALWAYS, When.KEEPER, When.NODES} | ({When.SLOT, When.SLOT_NODES} if policy == "slot" else set())
        assert dashboard.empty(frozenset(present)) == []
        assert dashboard.choices()["node"] == {"0", "1"}
        assert dashboard.choices()["mount"] == {str(node) for node in nodes}
        assert dashboard.value("Mounts up") == 2
        for node, files, told in zip(nodes, counts, stats, strict=True):
            at_the_last_scrape(server, node)
            of_node = Dashboard(server, node)
            assert of_node.count("Opens") == pytest.approx(files, rel=1e-3)
            remote = of_node.count("Samples into memory", "other nodes")
            assert remote == pytest.approx(told["remote_samples"], rel=1e-3)
    machine.ok("cluster", "down", machine.mnt)


def test_the_dashboard_shows_a_mount_that_does_not_answer(machine: Machine, images: Path, tmp_path: Path) -> None:
    (port,) = reserve(1)
    machine.ok("mount", "--no-keeper", images, machine.mnt)
    command = machine.command("metrics", "--listen", str(port))
    collector = subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)
    try:
        with prometheus(tmp_path, port) as server:
            # It has all mounts of this user.
            is_up = f'redoxfs_up{{mount="{machine.mnt}"}}'
            server.await_value(is_up, 1)
            dashboard = Dashboard(server, machine.mnt)
            assert (dashboard.value("Mounts up"), dashboard.value("Down")) == (1, 0)
            # The filesystem stays, and nobody serves it.
            machine.kill(signal.SIGKILL)
            server.await_value(is_up, 0)
            assert (dashboard.value("Mounts up"), dashboard.value("Down")) == (0, 1)
            alert = f'ALERTS{{alertname="RedoxfsMountDown",alertstate="pending",mount="{machine.mnt}"}}'
            server.await_value(alert, 1)
    finally:
        collector.terminate()
        collector.communicate(timeout=PATIENCE_S)


def test_prometheus_takes_the_alerts(machine: Machine, images: Path, tmp_path: Path) -> None:
    for verb, path in (("check", ALERTS), ("test", ALERTS_TEST)):
        checked = completed(["promtool", verb, "rules", path], cwd=FOLDER)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    (port,) = reserve(1)
    machine.ok("mount", images, machine.mnt, "--metrics", str(port))
    with prometheus(tmp_path, port) as server:
        server.await_value("redoxfs_opens_total", 0)
        read_from_outside(machine.mnt)
        until(lambda: {rule["health"] for rule in server.rules()} == {"ok"}, "a rule is not healthy")
        assert {rule["name"] for rule in server.rules()} == {query.of for query in alert_queries()}
        # None fires on a mount that does well.
        assert server.query('ALERTS{alertstate="firing"}') == []
    machine.ok("umount", machine.mnt)
