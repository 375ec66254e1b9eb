"""Nodes that die, hang and come back: opens on the others end in time, and laps become exact again."""

import errno
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from images import make_images, path_in
from machine import Machine
from patience import PATIENCE_S, SLOWNESS, until
from ports import reserve_addresses

NODES = 3
PEER_TIMEOUT_S = 20 * SLOWNESS
"""A node is lost after half of it without an answer. A live one is silent for less, on a busy machine too: its requests
and Hellos are answered by threads that wait for nothing but a processor."""

IN_TIME_S = PEER_TIMEOUT_S + PATIENCE_S
"""An open's deadline, and far more than a busy machine adds. No other deadline comes as early, so an open that does not
keep this one takes longer."""

NEVER = "3600"
"""As a deadline: longer than `IN_TIME_S`, and than any test."""

PATIENT = ("--peer-timeout", NEVER)
"""For tests that need no node to be taken for lost: none is, however slow it is."""

CLASSES = {"c12": 12, "c18": 18, "c30": 30, "c60": 60}
OPTIONS = (
    "--classes",
    "dir",
    "--memory",
    "6MiB",
    "--chunk-size",
    "8",
    "--timeout",
    NEVER,
    "--peer-timeout",
    str(PEER_TIMEOUT_S),
)
# For nodes that die: with a keeper they only pause.
MORTAL = "--no-keeper"
SLOT = ("--policy", "slot")
PREFETCH = (*SLOT, "--sampler", "torch-distributed,no_shuffle")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    make_images(root, CLASSES, typical_bytes=4_000)
    (root / "train/c60/train-c60-0.png").unlink()
    return root


@dataclass
class Reads:
    """The files that a node's reader got, how many opens failed, and the time of the longest open."""

    served: list[str] = field(default_factory=list)
    failed: int = 0
    longest_s: float = 0.0


def names_of(source: Path) -> list[str]:
    return sorted(str(path.relative_to(source)) for path in source.glob("train/*/*"))


def read(mountpoint: Path, names: Sequence[str], reads: Reads, hold: threading.Event | None = None) -> None:
    """Read ``names`` as a training job would that skips files that it cannot read."""
    for name in names:
        if hold is not None:
            hold.wait()
        began = time.monotonic()
        try:
            data = (mountpoint / name).read_bytes()
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                return
            if error.errno != errno.EIO:
                raise
            reads.failed += 1
        else:
            served = path_in(data)
            assert served.split("/")[1] == name.split("/")[1], f"{name} gave {served}"
            reads.served.append(served)
        reads.longest_s = max(reads.longest_s, time.monotonic() - began)


def start(machine: Machine, source: Path, options: Sequence[str], *, classes: int = len(CLASSES)) -> list[Path]:
    mountpoints = machine.mount_nodes(source, reserve_addresses(NODES), *OPTIONS, *options)
    assert all(machine.stats(mountpoint)["classes"] == classes for mountpoint in mountpoints)
    return mountpoints


def epoch(mountpoints: Sequence[Path], names: Sequence[str]) -> list[Reads]:
    """Every node reads its part of ``names``, all at once."""
    found = [Reads() for _ in mountpoints]
    threads = [
        threading.Thread(target=read, args=(mountpoint, names[i :: len(mountpoints)], reads))
        for i, (mountpoint, reads) in enumerate(zip(mountpoints, found, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * PATIENCE_S)
        assert not thread.is_alive(), "an open hangs"
    return found


def turns(found: Sequence[Reads]) -> Counter[str]:
    return Counter(name for reads in found for name in reads.served)


def states(machine: Machine, mountpoint: Path) -> list[str]:
    return [peer["state"] for peer in machine.stats(mountpoint)["peers"]]


def await_all_ready(machine: Machine, mountpoints: Sequence[Path]) -> None:
    """Each node has its own view of the others, and reads alone what lies at one that it takes for lost."""
    until(lambda: all(states(machine, mountpoint) == ["ready", "ready"] for mountpoint in mountpoints))


@pytest.mark.parametrize(
    ("how", "options"),
    [(signal.SIGKILL, ()), (signal.SIGKILL, SLOT), (signal.SIGSTOP, ()), (signal.SIGSTOP, PREFETCH)],
)
def test_opens_end_in_time_when_a_node_dies_or_hangs(
    machine: Machine, source: Path, how: signal.Signals, options: tuple[str, ...]
) -> None:
    mountpoints = start(machine, source, (*options, MORTAL) if how is signal.SIGKILL else options)
    names = names_of(source)
    epoch(mountpoints, names)
    pid = machine.pid(mountpoints[2])
    half = len(names) // 2
    first = epoch(mountpoints, names[:half])
    assert not sum(reads.failed for reads in first)
    os.kill(pid, how)
    try:
        rest = epoch(mountpoints[:2], names[half:])
        for mountpoint in mountpoints[:2]:
            until(lambda mountpoint=mountpoint: sorted(states(machine, mountpoint)) == ["ready", "unreachable"])  # type: ignore[misc]
        later = epoch(mountpoints[:2], names)
        for reads in (*rest, *later):
            assert reads.longest_s < IN_TIME_S
        assert len(turns(later)) > 0
        # An open may fail only if it began before the node was known to be lost.
        assert sum(reads.failed for reads in later) == 0
        assert turns(rest).total() + sum(reads.failed for reads in rest) == len(names) - half
        told = [machine.stats(mountpoint) for mountpoint in mountpoints[:2]]
        if options:
            assert sum(stats["degraded"] for stats in told) > 0
        else:
            assert max(stats["missed"] for stats in told) > 0
    finally:
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)


def test_of_classes_that_lie_at_a_lost_node_alone_the_very_files_are_read(machine: Machine, tmp_path: Path) -> None:
    singles = {f"single{number}": 1 for number in range(24)}
    make_images(tmp_path / "images", {"c12": 12, **singles}, typical_bytes=500)
    (tmp_path / "images/train/c12/train-c12-0.png").unlink()
    mountpoints = start(machine, tmp_path / "images", (), classes=25)
    names = names_of(tmp_path / "images")
    left = mountpoints[:2]
    epoch(mountpoints, names)
    pid = machine.pid(mountpoints[2])
    os.kill(pid, signal.SIGSTOP)
    try:
        # Also opens that began before the node was known to be lost.
        for _ in range(2):
            found = epoch(left, names)
            assert [reads.failed for reads in found] == [0, 0]
            assert set(turns(found)) >= {name for name in names if "single" in name}
        assert all(machine.stats(mountpoint)["degraded"] > 0 for mountpoint in left)
        assert machine.log().count("classes whose samples are all at lost nodes") == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    await_all_ready(machine, mountpoints)
    degraded = [machine.stats(mountpoint)["degraded"] for mountpoint in left]
    assert not sum(reads.failed for reads in epoch(mountpoints, names))
    assert [machine.stats(mountpoint)["degraded"] for mountpoint in left] == degraded


def test_a_node_that_hung_takes_part_again(machine: Machine, source: Path) -> None:
    """With the slot policy: t5_links, where a node is cut off."""
    mountpoints = start(machine, source, ())
    names = names_of(source)
    epoch(mountpoints, names)
    pid = machine.pid(mountpoints[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        epoch([mountpoints[0], mountpoints[2]], names)
    finally:
        os.kill(pid, signal.SIGCONT)
    await_all_ready(machine, mountpoints)
    check_recovered(machine, mountpoints, names)


@pytest.mark.parametrize("options", [(), SLOT])
def test_a_restarted_node_takes_part_again(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    mountpoints = start(machine, source, (*options, MORTAL))
    names = names_of(source)
    epoch(mountpoints, names)
    nodes = machine.nodes(mountpoints[0])
    machine.kill(signal.SIGKILL, mountpoints[1])
    epoch([mountpoints[0], mountpoints[2]], names)
    rank = ("--nodes", ",".join(nodes), "--node-rank", "1", MORTAL)
    machine.ok("mount", source, mountpoints[1], *OPTIONS, *options, *rank)
    await_all_ready(machine, mountpoints)
    check_recovered(machine, mountpoints, names)
    # Now the same nodes have a later view, which a restarted node learns from the others.
    machine.kill(signal.SIGKILL, mountpoints[1])
    machine.ok("mount", source, mountpoints[1], *OPTIONS, *options, *rank)
    await_all_ready(machine, mountpoints)
    assert machine.stats(mountpoints[1])["view"] == 2


def check_recovered(machine: Machine, mountpoints: Sequence[Path], names: Sequence[str]) -> None:
    """All nodes serve again: laps are whole, though epochs may begin within them; epochs too once laps begin anew."""
    epoch(mountpoints, names)
    missed = [machine.stats(mountpoint)["missed"] for mountpoint in mountpoints]
    counts: Counter[str] = Counter()
    for _ in range(3):
        found = epoch(mountpoints, names)
        assert not sum(reads.failed for reads in found)
        counts += turns(found)
    assert [machine.stats(mountpoint)["missed"] for mountpoint in mountpoints] == missed
    # The three epochs cover the rest of one lap, whole laps, and the start of another.
    assert set(counts) == set(names)
    assert max(counts.values()) - min(counts.values()) <= 2
    nodes = machine.nodes(mountpoints[0])
    for mountpoint in mountpoints:
        machine.ok("nodes", mountpoint, "--set", ",".join(nodes))
    await_all_ready(machine, mountpoints)
    assert turns(epoch(mountpoints, names)) == dict.fromkeys(names, 1)


@pytest.mark.parametrize("options", [(), SLOT, ("--storage", "local")])
def test_a_new_view_gives_the_chunks_of_a_lost_node_new_homes(
    machine: Machine, source: Path, options: tuple[str, ...]
) -> None:
    mountpoints = start(machine, source, (*options, MORTAL, *PATIENT))
    names = names_of(source)
    epoch(mountpoints, names)
    nodes = machine.nodes(mountpoints[0])
    machine.kill(signal.SIGKILL, mountpoints[2])
    left = mountpoints[:2]
    for mountpoint in left:
        told = machine.ok("nodes", mountpoint, "--set", ",".join(nodes[:2]))
        assert told.stdout.startswith("view 2: ")
    until(lambda: states(machine, left[0]) == states(machine, left[1]) == ["ready"])
    for _ in range(2):
        found = epoch(left, names)
        assert not sum(reads.failed for reads in found)
        assert turns(found) == dict.fromkeys(names, 1)
    # And with one node alone.
    machine.kill(signal.SIGKILL, left[1])
    machine.ok("nodes", left[0], "--set", nodes[0])
    assert turns(epoch(left[:1], names)) == dict.fromkeys(names, 1)


def test_a_node_of_an_older_view_is_refused(machine: Machine, source: Path) -> None:
    mountpoints = start(machine, source, ())
    names = names_of(source)
    nodes = machine.nodes(mountpoints[0])
    pid = machine.pid(mountpoints[2])
    os.kill(pid, signal.SIGSTOP)
    try:
        for mountpoint in mountpoints[:2]:
            machine.ok("nodes", mountpoint, "--set", ",".join(nodes[:2]))
        until(lambda: states(machine, mountpoints[0]) == states(machine, mountpoints[1]) == ["ready"])
    finally:
        os.kill(pid, signal.SIGCONT)
    stale = Reads()
    reader = threading.Thread(target=read, args=(mountpoints[2], names, stale))
    reader.start()
    for _ in range(2):
        assert turns(epoch(mountpoints[:2], names)) == dict.fromkeys(names, 1), "the stale node took some"
    reader.join(10 * PATIENCE_S)
    assert stale.longest_s < IN_TIME_S


def test_an_invalid_list_of_nodes_is_refused_in_one_line(machine: Machine, source: Path) -> None:
    mountpoints = start(machine, source, PATIENT)
    for words, line in {
        ("--set", "127.0.0.1:1,127.0.0.1:2"): "is not among them",
        ("--set", "auto"): "expected a list of nodes",
        ("--set", "127.0.0.1:1,127.0.0.1:1"): "listed twice",
    }.items():
        refused = machine.run("nodes", mountpoints[0], *words)
        assert refused.returncode == 2
        assert line in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert json.loads(machine.ok("nodes", mountpoints[0], "--json").stdout)["view"] == 1


def test_a_program_on_a_killed_node_fails_at_once(machine: Machine, source: Path) -> None:
    mountpoints = start(machine, source, (MORTAL, *PATIENT))
    names = names_of(source)
    with open(mountpoints[0] / names[0], "rb"):
        machine.kill(signal.SIGKILL, mountpoints[0])
        began = time.monotonic()
        for name in names[:2]:
            with pytest.raises(OSError) as refused:
                (mountpoints[0] / name).read_bytes()
            assert refused.value.errno == errno.ENOTCONN
        # It has waited for no other node.
        assert time.monotonic() - began < PATIENCE_S


def test_a_view_that_does_not_fit_the_sampler_is_refused(machine: Machine, source: Path) -> None:
    mountpoints = start(machine, source, (*SLOT, "--sampler", "torch-distributed,no_shuffle,ranks=3", *PATIENT))
    names = names_of(source)
    nodes = machine.nodes(mountpoints[0])
    refused = machine.run("nodes", mountpoints[0], "--set", ",".join(nodes[:2]))
    assert refused.returncode == 2
    assert "3 ranks cannot be dealt to 2 nodes in equal numbers" in refused.stderr
    assert machine.nodes(mountpoints[0]) == nodes
    assert turns(epoch(mountpoints, names)) == dict.fromkeys(names, 1)
