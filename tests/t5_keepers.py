"""Keepers of several nodes: what a successor needs to be the same node, and what it must not depend on."""

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from certificates import Authority
from deaths import parts_of
from images import make_images, path_in
from machine import Machine, has_ended
from patience import PATIENCE_S, SLOWNESS
from ports import reserve_addresses

NODES = 3
# Much longer than a successor takes to start, also on a busy machine: no test ends later for it.
PATIENT = ("--peer-timeout", str(2 * PATIENCE_S))
OPTIONS = ("--classes", "dir", *PATIENT)
# Where a node must be lost: half of it is how long a live one may be silent on a busy machine.
LOSING = ("--peer-timeout", str(20 * SLOWNESS))

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
    return machine.mount_nodes(source, reserve_addresses(NODES), *OPTIONS, *options)


def read_all(source: Path, mountpoints: list[Path]) -> None:
    """An epoch, which the nodes share: each sample comes once."""
    names = sorted(path.relative_to(source) for path in source.glob("train/*/*"))
    read = Counter(path_in((mountpoints[at % NODES] / name).read_bytes()) for at, name in enumerate(names))
    assert read == dict.fromkeys(read, 1)
    assert len(read) == len(names) == 99


def view(machine: Machine, mountpoint: Path) -> dict[str, Any]:
    return json.loads(machine.ok("nodes", "--json", mountpoint).stdout)


def ends_unnoticed(machine: Machine) -> None:
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()
    log = machine.log()
    assert "is unreachable" not in log
    assert "was restarted" not in log


def test_a_restarted_daemon_reads_no_file_of_tls(machine: Machine, source: Path) -> None:
    authority = Authority.at(machine.folder / "ca")
    shown = authority.issue("node", "IP:127.0.0.1")
    tls = ("--tls-cert", str(shown.cert), "--tls-key", str(shown.key), "--tls-ca", str(authority.file))
    mountpoints = up(machine, source, *tls)
    for path in (shown.cert, shown.key, authority.file):
        path.unlink()
    read_all(source, mountpoints)
    # Each of the two calls a successor and a node that was not restarted, and is called by both.
    for mountpoint in mountpoints[:2]:
        machine.ok("restart", mountpoint)
    read_all(source, mountpoints)
    assert [machine.stats(mountpoint)["keeper"]["restarts"] for mountpoint in mountpoints] == [1, 1, 0]
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


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_deaths_right_after_a_change_of_the_list_lose_nothing(machine: Machine, source: Path, policy: str) -> None:
    machine.environment["REDOXFS_KEEPER_DEATHS"] = "0"
    mountpoints = up(machine, source, "--policy", policy)
    nodes = view(machine, mountpoints[0])["nodes"]
    # The second time it is a successor that changes.
    for number, dying in ((2, mountpoints), (3, mountpoints[1:2])):
        turned = [*nodes[number:], *nodes[:number]]
        for mountpoint in mountpoints:
            machine.ok("nodes", mountpoint, "--set", ",".join(turned))
            # The others still are in the view before, or wait for the next node.
            if mountpoint in dying:
                machine.kill(signal.SIGKILL, mountpoint)
        assert [view(machine, each) for each in mountpoints] == [{"view": number, "nodes": turned}] * NODES
        read_all(source, mountpoints)
    assert [machine.stats(each)["missed"] for each in mountpoints] == [0] * NODES
    ends_unnoticed(machine)


def test_a_death_in_the_middle_of_a_change_leaves_one_list(machine: Machine, source: Path) -> None:
    mountpoints = up(machine, source, "--policy", "slot")
    nodes = view(machine, mountpoints[0])["nodes"]
    turned = [*nodes[1:], nodes[0]]
    daemon = machine.pid(mountpoints[1])
    changing = subprocess.Popen(
        machine.command("nodes", mountpoints[1], "--set", ",".join(turned)),
        env=machine.environment,
        stderr=subprocess.DEVNULL,
    )
    logs = sorted((machine.folder / "state").rglob("*.log"))
    try:
        # Its port is closed for the change, or the change is over.
        while "view 2" not in logs[1].read_text() and listens(nodes[1]) and changing.poll() is None:
            # A pause of `until` would be longer than the change, and each moment of it is one to die in.
            time.sleep(0.001)
        os.kill(daemon, signal.SIGKILL)
    finally:
        changing.wait()
    for each in mountpoints:
        if view(machine, each)["view"] == 1:
            machine.ok("nodes", each, "--set", ",".join(turned))
    assert [view(machine, each) for each in mountpoints] == [{"view": 2, "nodes": turned}] * NODES
    read_all(source, mountpoints)
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_deaths_right_after_a_state_is_loaded_lose_nothing(machine: Machine, source: Path, policy: str) -> None:
    machine.environment["REDOXFS_KEEPER_DEATHS"] = "0"
    mountpoints = up(machine, source, "--policy", policy)
    saved = machine.folder / "saved"
    names = sorted(path.relative_to(source) for path in source.glob("train/*/*"))
    random.Random(0).shuffle(names)

    def read(part: Sequence[Path]) -> Counter[str]:
        return Counter(path_in((mountpoints[at % NODES] / name).read_bytes()) for at, name in enumerate(part))

    before = read(names[:50])
    machine.ok("state", "save", mountpoints[0], saved)
    read(names[50:])
    for mountpoint in mountpoints:
        machine.ok("state", "load", mountpoint, saved)
        # The first, before the others have loaded it, and the last, when they have.
        if mountpoint != mountpoints[1]:
            machine.kill(signal.SIGKILL, mountpoint)
    served = before + read(names[50:])
    assert served == dict.fromkeys(served, 1)
    assert len(served) == len(names)
    ends_unnoticed(machine)


def test_the_port_stays_the_nodes_and_its_loss_is_one_line(machine: Machine, source: Path) -> None:
    (site := machine.folder / "site").mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    take = machine.folder / "take"
    machine.successors = {"PYTHONPATH": str(site), "TAKE": str(take)}
    mountpoints = up(machine, source)
    address = view(machine, mountpoints[1])["nodes"][1]
    take.write_text(address.rpartition(":")[2])
    machine.refused(1, "restart", mountpoints[1])
    assert take.with_name("take.found").read_text() == "Address already in use"
    line = f"another daemon could not be started: cannot listen at {address}: Address already in use"
    assert machine.log().count(f"ERROR redoxfs.launch.successor: redoxfs: {line}\n") == 3
    assert "Traceback" not in machine.log()
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


@pytest.fixture(scope="module")
def parts(source: Path) -> list[Path]:
    """The dataset packed, with the shards that each node needs."""
    packed = source.with_name("packed")
    words = ("--classes", "dir", "--chunk-size", "4", "--shard-size", "8KiB")
    subprocess.run([sys.executable, "-m", "redoxfs", "pack", source, packed, *words], check=True, capture_output=True)
    return parts_of(packed, NODES)


@pytest.fixture(scope="module")
def lies_at(parts: list[Path]) -> dict[str, int]:
    """The only node with the shard of a file, by the file's name."""
    found: dict[str, int] = {}
    for node, part in enumerate(parts):
        for shard in part.glob("samples-*.tar"):
            with tarfile.open(shard) as members:
                found |= {name.rpartition("/")[2]: node for name in members.getnames()}
    return found


def mounted_apart(machine: Machine, parts: list[Path], *options: str) -> list[Path]:
    return machine.mount_nodes(parts, reserve_addresses(NODES), "--storage", "local", "--exchange", "0.5", *options)


@dataclass
class Opened:
    """A file that is open, and the name of the file whose bytes it serves."""

    file: BinaryIO
    name: str
    served: str


def opened(mountpoint: Path, names: Sequence[str]) -> Iterator[Opened]:
    """Open files without reading them."""
    for name in names:
        file = (mountpoint / name).open("rb", buffering=0)
        yield Opened(file, name, (mountpoint / ".redoxfs/served" / name).read_text().strip().rpartition("/")[2])


def test_bytes_of_another_node_are_sent_again_after_a_death(
    machine: Machine, source: Path, parts: list[Path], lies_at: dict[str, int]
) -> None:
    mountpoints = mounted_apart(machine, parts, *PATIENT)
    names = sorted(str(path.relative_to(source)) for path in source.glob("train/*/*"))
    files = [*opened(mountpoints[0], names[:40])]
    elsewhere = [each for each in files if lies_at[each.served] != 0]
    assert elsewhere
    # Both the node that has lost the bytes and one that can read them again.
    for mountpoint in mountpoints[:2]:
        machine.kill(signal.SIGKILL, mountpoint)
    for each in files:
        with each.file:
            assert path_in(each.file.read()).rpartition("/")[2] == each.served
    stats = machine.stats(mountpoints[0])
    assert stats["samples_reread"] >= len(elsewhere)
    assert stats["errors"] == 0
    ends_unnoticed(machine)


def test_without_the_other_node_only_its_bytes_are_errors(
    machine: Machine, source: Path, parts: list[Path], lies_at: dict[str, int]
) -> None:
    mountpoints = mounted_apart(machine, parts, *LOSING)
    names = sorted(str(path.relative_to(source)) for path in source.glob("train/*/*"))
    files = [*opened(mountpoints[0], names[:40])]
    lost = [each.served for each in files if lies_at[each.served] == 1]
    assert {lies_at[each.served] for each in files} == {0, 1, 2}
    keeper, daemon = (machine.stats(mountpoints[1])["keeper"]["pid"], machine.pid(mountpoints[1]))
    for pid in (keeper, daemon):
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert has_ended(ended)
    machine.kill(signal.SIGKILL, mountpoints[0])
    for each in files:
        with each.file:
            if each.served in lost:
                with pytest.raises(OSError, match="Input/output error") as failed:
                    each.file.read()
                assert failed.value.errno == errno.EIO
            else:
                assert path_in(each.file.read()).rpartition("/")[2] == each.served
    log = machine.log()
    assert "a sample was not sent again" in log
    assert "Traceback" not in log
    assert machine.stats(mountpoints[0])["errors"] == len(lost)
