"""Keepers of several nodes: what a successor needs to be the same node, and what it must not depend on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from images import make_images, path_in
from machine import Machine

NODES = 3
# Much longer than a successor takes to start, also on a busy machine.
OPTIONS = ("--nodes", str(NODES), "--classes", "dir", "--peer-timeout", "120")

# Runs when a Python begins. In a successor it notes whether the port whose number is in the file $TAKE is free, and
# listens there, if there is such a file.
SITE = """
import os, socket, sys
path = os.environ.get("TAKE", "")
if "redoxfs.launch.successor" in sys.orig_argv and os.path.exists(path):
    where = ("127.0.0.1", int(open(path).read()))
    with socket.socket() as tried, open(path + ".found", "w") as found:
        try:
            tried.bind(where)
            found.write("free")
        except OSError as failure:
            found.write(failure.strerror)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(where)
    taken.listen()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    make_images(root, {"c40": 40, "c60": 60}, typical_bytes=4_000)
    # It is empty, so it could not be told from another.
    (root / "train/c60/train-c60-0.png").unlink()
    return root


def up(machine: Machine, source: Path, *options: str) -> list[Path]:
    machine.ok("cluster", "up", *OPTIONS, *options, source, machine.mnt)
    return [machine.mnt / str(node) for node in range(NODES)]


def read_all(source: Path, mountpoints: list[Path]) -> None:
    """An epoch, which the nodes share: each sample comes once."""
    names = sorted(path.relative_to(source) for path in source.glob("train/*/*"))
    read = Counter(path_in((mountpoints[at % NODES] / name).read_bytes()) for at, name in enumerate(names))
    assert read == dict.fromkeys(read, 1)
    assert len(read) == len(names) == 99


def view(machine: Machine, mountpoint: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(machine.ok("nodes", "--json", mountpoint).stdout)
    return told


def ends_unnoticed(machine: Machine) -> None:
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()
    log = machine.log()
    assert "is unreachable" not in log
    assert "was restarted" not in log


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_a_restarted_daemon_reads_no_file_of_tls(machine: Machine, source: Path, policy: str) -> None:
    authority = Authority.at(machine.folder / "ca")
    shown = authority.issue("node", "IP:127.0.0.1")
    tls = ("--tls-cert", str(shown.cert), "--tls-key", str(shown.key), "--tls-ca", str(authority.file))
    mountpoints = up(machine, source, "--policy", policy, *tls)
    for path in (shown.cert, shown.key, authority.file):
        path.unlink()
    for mountpoint in mountpoints:
        read_all(source, mountpoints)
        machine.ok("restart", mountpoint)
    read_all(source, mountpoints)
    assert [machine.stats(mountpoint)["keeper"]["restarts"] for mountpoint in mountpoints] == [1] * NODES
    assert [peer["state"] for peer in machine.stats(mountpoints[0])["peers"]] == ["ready"] * (NODES - 1)
    ends_unnoticed(machine)


def test_a_restarted_daemon_is_in_the_view_of_the_others(machine: Machine, source: Path) -> None:
    mountpoints = up(machine, source)
    nodes = view(machine, mountpoints[0])["nodes"]
    # In another order, so each has another number.
    turned = [*nodes[1:], nodes[0]]
    for mountpoint in mountpoints:
        machine.ok("nodes", mountpoint, "--set", ",".join(turned))
    machine.ok("restart", mountpoints[1])
    assert view(machine, mountpoints[1]) == view(machine, mountpoints[0]) == {"view": 2, "nodes": turned}
    read_all(source, mountpoints)
    for mountpoint in mountpoints:
        machine.ok("nodes", mountpoint, "--set", ",".join(nodes))
    assert view(machine, mountpoints[1]) == {"view": 3, "nodes": nodes}
    read_all(source, mountpoints)
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def test_the_port_stays_the_nodes_and_its_loss_is_one_line(machine: Machine, source: Path) -> None:
    (site := machine.folder / "site").mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    take = machine.folder / "take"
    machine.environment |= {"PYTHONPATH": str(site), "TAKE": str(take)}
    mountpoints = up(machine, source)
    address = view(machine, mountpoints[1])["nodes"][1]
    take.write_text(address.rpartition(":")[2])
    done = machine.run("restart", mountpoints[1])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert take.with_name("take.found").read_text() == "Address already in use"
    line = f"another daemon could not be started: cannot listen at {address}: Address already in use"
    assert machine.log().count(f"ERROR redoxfs.launch.successor: redoxfs: {line}\n") == 3
    assert "Traceback" not in machine.log()
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def test_nodes_with_local_storage_have_no_keeper(machine: Machine, source: Path) -> None:
    mountpoints = up(machine, source, "--storage", "local")
    assert [machine.stats(mountpoint)["keeper"] for mountpoint in mountpoints] == [None] * NODES
    done = machine.run("restart", mountpoints[0])
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "mounted without a keeper" in done.stderr
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()
