"""Settings that every tier shares, and the markers that follow from a tier."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ports
import pytest
from hypothesis import HealthCheck, settings
from machine import Machine

# Before the import, so that a failed assertion of StoreTests shows its values.
pytest.register_assert_rewrite("redoxfs.testing")

# For a night, or after a change of the protocol: REDOXFS_TEST_PROFILE=thorough scripts/test
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=10_000)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=20)
settings.load_profile(os.environ.get("REDOXFS_TEST_PROFILE", "default"))

# A shell that starts the tests with & has SIGINT ignored, and the programs that they interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What the tests of a tier need. A file whose tests need something else sets `pytestmark`, and gets none of these.
NEEDS = {
    **dict.fromkeys(("t0", "t1", "t2", "t3"), ("fast",)),
    "t4": ("mount",),
    "t5": ("mount", "nodes"),
    "t6": ("mount", "programs"),
    "t7": ("mount", "engines"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs = {name for names in NEEDS.values() for name in names}
    for item in items:
        own = {mark.name for mark in item.iter_markers()}
        if not own & needs:
            for name in NEEDS[item.path.name[:2]]:
                if name != "fast" or "slow" not in own:
                    item.add_marker(name)


@pytest.fixture(autouse=True)
def own_ports() -> Iterator[None]:
    """Ports that a test reserves are released at its end."""
    yield
    ports.release()


@pytest.fixture
def short_path(tmp_path: Path) -> Path:
    """An empty folder for sockets: the path of one has 107 bytes at most, and ``tmp_path`` may take most of them."""
    return Path(tempfile.mkdtemp(prefix="s", dir=tmp_path.parent))


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skips a test that compiles C where a tool for it is missing."""
    for name in ("gcc", "pkg-config"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed; scripts/setup installs it")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The real command. After the test, even a failed one, none of its processes and mounts is left."""
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small dataset that `auto` redirects: two classes of twenty, and a file of no class."""
    root = tmp_path / "data"
    for label, wnid, first in (("cat", "n02121808", 0), ("dog", "n02084071", 20)):
        folder = root / "train" / wnid
        folder.mkdir(parents=True)
        for number in range(first, first + 20):
            (folder / f"{label}{number}.jpg").write_bytes(f"{label} {number}".encode() * 100)
    (root / "README").write_text("a dataset\n")
    return root
