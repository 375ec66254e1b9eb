"""What a daemon imports, and when: little, and nothing once it serves.

It may serve for weeks, while its installation is replaced or lies below its own mount.
"""

import os
import signal
from pathlib import Path

import pytest
from machine import Machine

IMPORTED = "import time:"
"""What begins a line of Python about an import (PYTHONPROFILEIMPORTTIME)."""

OF_OTHERS = {"redoxfs.node.cluster", "redoxfs.objects.client", "redoxfs.packed.packing", "redoxfs.peers", "asyncio"}
OF_OTHERS |= {"grpc", "google.protobuf", "http", "multiprocessing", "numpy.ma", "obstore"}
OF_OTHERS |= {"prometheus_client", "rich"}


def imported(text: str) -> set[str]:
    """The modules that Python tells of."""
    return {line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith(IMPORTED)}


def use(machine: Machine, folder: Path) -> None:
    """Ask the daemon for one of each kind of thing that it does while it serves."""
    control = machine.mnt / ".redoxfs"
    files = sorted((machine.mnt / "train").rglob("*.jpg"))
    assert files
    for path in (*files, *files):
        path.read_bytes()
    os.statvfs(machine.mnt)
    for name in ("stats.json", "history.json"):
        assert (control / name).read_bytes()
    relative = files[0].relative_to(machine.mnt)
    assert (control / "served" / relative).read_bytes()
    assert (control / "exact" / relative).read_bytes()
    with (control / "accesslog").open("rb") as log:
        files[1].read_bytes()
        assert log.readline()
    state = folder / "saved"
    machine.ok("state", "save", machine.mnt, state)
    machine.ok("state", "save", "--less", "1", machine.mnt, state)
    machine.ok("state", "load", machine.mnt, state)
    machine.ok("log-level", machine.mnt, "debug")
    assert machine.run("nodes", machine.mnt).returncode != 0


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_a_daemon_that_serves_imports_nothing_more(machine: Machine, source: Path, tmp_path: Path, policy: str) -> None:
    log = tmp_path / "daemon.log"
    machine.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    done = machine.ok("mount", "--keeper", "--policy", policy, "--log", log, source, machine.mnt)
    del machine.environment["PYTHONPROFILEIMPORTTIME"]
    before = imported(done.stderr)
    assert {"redoxfs.fs.serve", "redoxfs.node.node"} <= before
    use(machine, tmp_path)
    assert imported(log.read_text()) == set()
    machine.kill(signal.SIGKILL)
    machine.stats()
    started, served, _ = log.read_text().partition("in the place of a former daemon")
    assert {"redoxfs.fs.serve", "redoxfs.node.node"} <= imported(started)
    assert served
    use(machine, tmp_path)
    machine.ok("umount", machine.mnt)
    told = log.read_text()
    assert imported(told.partition("in the place of a former daemon")[2]) == set()
    for modules in (before, imported(told)):
        assert modules & OF_OTHERS == set()
