"""A real Prometheus scrapes a real mount under load, and its values agree with what an outside reader counted."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from images import make_images
from machine import PATIENCE_S, Machine
from ports import reserve, reserve_two
from scrapes import text_of

PAGE = (Path(__file__).parents[1] / "docs/metrics.md").read_text()

READERS, EPOCHS = 4, 3

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
  scrape_interval: 200ms
  scrape_timeout: 200ms
scrape_configs:
  - job_name: redoxfs
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


class Prometheus:
    """A server of its own; ``port`` is where it answers."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/query"

    def query(self, text: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        with urlopen(f"{self._url}?{urlencode({'query': text})}", timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        samples: list[dict[str, Any]] = found["data"]["result"]
        return samples

    def value(self, text: str) -> float:
        """The one value of a query; NaN if it has none yet."""
        samples = self.query(text)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else math.nan

    def await_value(self, text: str, expected: float) -> None:
        """Until a scrape has brought it."""
        deadline = time.monotonic() + PATIENCE_S
        while (value := self.value(text)) != expected:
            assert time.monotonic() < deadline, (text, value, expected)
            time.sleep(0.1)


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Prometheus]:
    """Scrapes ``target``, a port of this machine."""
    (port,) = reserve(1)
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(port=target))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S):
                    break
            except URLError:
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
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
        below = 2.0 ** (math.ceil(math.log2(longest_s * 1e9)) + 1) / 1e9
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
    machine.ok("cluster", "up", "--nodes", "2", images, machine.mnt, "--metrics", str(port))
    text = text_of(port)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False, env=os.environ
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    machine.ok("cluster", "down", machine.mnt)
