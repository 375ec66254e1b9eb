"""Daemons that all end and resume in the middle of an epoch, and states saved with a checkpoint of their job.

`t2_nodes_resume` has what needs no mount: all policies, more nodes, and nodes that die, join and are renumbered at bad
moments.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from images import make_full_images
from machine import Machine
from patience import PATIENCE_S, until
from ports import reserve_addresses
from t5_lost_nodes import MORTAL, PREFETCH, SLOT, Reads, epoch, names_of, read, states, turns

from redoxfs.node.state import decode, read_bytes

NODES = 2
CLASSES = {"c1": 1, "c40": 40, "c59": 59}
"""A class has fewer samples than there are nodes."""

SAMPLES = sum(CLASSES.values())
# No node is lost in these tests, so none may be taken for lost because the machine is slow.
OPTIONS = ("--classes", "dir", "--memory", "6MiB", "--chunk-size", "8", "--peer-timeout", str(PATIENCE_S))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_full_images(tmp_path_factory.mktemp("images"), CLASSES)


def up(machine: Machine, source: Path, *options: str) -> tuple[list[Path], str]:
    mountpoints = machine.mount_nodes(source, reserve_addresses(NODES), *OPTIONS, *options)
    return mountpoints, machine.told[0]


def files_of(machine: Machine) -> list[Path]:
    return sorted((machine.folder / "state/redoxfs").glob("[!.]*.state.?"))


def await_write(machine: Machine, turns: int) -> None:
    """Wait until the state files of all nodes together have this many turns."""
    until(lambda: sum(decode(read_bytes(path)).turns.given for path in files_of(machine)) == turns, "a write")


def read_part(mountpoints: Sequence[Path], names: Sequence[str]) -> Counter[str]:
    found = epoch(mountpoints, names)
    assert not sum(reads.failed for reads in found)
    return turns(found)


def test_killed_nodes_resume_in_the_middle_of_an_epoch(machine: Machine, source: Path) -> None:
    mountpoints, _ = up(machine, source, *PREFETCH, MORTAL)
    names = names_of(source)
    counts = read_part(mountpoints, names) + read_part(mountpoints, names[:60])
    await_write(machine, SAMPLES + 60)
    for mountpoint in mountpoints:
        machine.kill(signal.SIGKILL, mountpoint)
    assert [path.stat().st_mode & 0o777 for path in files_of(machine)] == [0o600] * NODES
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, *PREFETCH, "--resume")
    assert "of 100 samples had their turn at all nodes; samples that a killed node served in its last 1 s" in told
    assert sum(machine.stats(mountpoint)["turns"] for mountpoint in mountpoints) == counts.total()
    counts += read_part(mountpoints, names[60:])
    assert counts == dict.fromkeys(names, 2)
    assert sum(machine.stats(mountpoint)["prefetched"] for mountpoint in mountpoints) > 0, "the order goes on too"
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1), "and every epoch after it is exact"
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def test_only_samples_read_around_the_kill_come_twice(machine: Machine, source: Path) -> None:
    mountpoints, _ = up(machine, source, MORTAL)
    names = names_of(source)
    first = read_part(mountpoints, names[:30])
    await_write(machine, 30)
    found = [Reads() for _ in mountpoints]
    threads = [
        threading.Thread(target=read, args=(mountpoint, names[30 + i :: NODES], reads))
        for i, (mountpoint, reads) in enumerate(zip(mountpoints, found, strict=True))
    ]
    pids = [machine.pid(mountpoint) for mountpoint in mountpoints]
    for thread in threads:
        thread.start()
    until(lambda: sum(len(reads.served) for reads in found) > 10)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    before: Counter[str] = first + turns(found)
    assert before == dict.fromkeys(before, 1)
    kept = [decode(read_bytes(path)).turns for path in files_of(machine)]
    had = np.bitwise_or.reduce([np.unpackbits(turns.had, count=SAMPLES) for turns in kept])
    assert 30 <= had.sum() == sum(turns.given for turns in kept)
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, "--resume")
    assert f"resumed: lap 1, {had.sum()} of 100 samples had their turn" in told
    # The rest of the lap: samples are numbered class by class.
    left = [name for name, had_turn in zip(names, had, strict=True) if not had_turn]
    after = read_part(mountpoints, left)
    assert after == dict.fromkeys(after, 1)
    # A thread whose node died between the answer and the read has read nothing.
    assert len(set(names).difference(before, after)) <= NODES
    assert sum((before & after).values()) <= before.total() - had.sum() + NODES
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1)


def test_unmounts_lose_nothing_and_a_damaged_file_is_refused(machine: Machine, source: Path) -> None:
    """Each node has its own file for the one path."""
    kept = machine.folder / "kept"
    kept.mkdir()
    options = ("--state", str(kept / "state"), "--exchange", "0.3")
    names = names_of(source)
    mountpoints, told = up(machine, source, *options, "--resume")
    assert "there is nothing to resume at any node" in told
    counts = read_part(mountpoints, names[:45])
    # A sample that a stat reserved had no turn, whichever node it came from.
    for name in names[:30]:
        (mountpoints[0] / name).stat()
    machine.ok("cluster", "down", machine.mnt)
    files = sorted(kept.iterdir())
    assert [path.name for path in files] == ["state.0", "state.1"]
    assert not files_of(machine)
    good = [path.read_bytes() for path in files]
    files[1].write_bytes(good[1][:-1])
    refused = machine.run("cluster", "up", "--nodes", "2", source, machine.mnt, *OPTIONS, *options, "--resume")
    assert refused.returncode == 2
    assert "truncated or damaged" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    assert [path.read_bytes() for path in files] == [good[0], good[1][:-1]]
    files[1].write_bytes(good[1])
    mountpoints, told = up(machine, source, *options, "--resume")
    assert "resumed: lap 1, 45 of 100" in told
    assert counts + read_part(mountpoints, names[45:]) == dict.fromkeys(names, 1)
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def test_a_saved_state_is_loaded_by_the_nodes_and_by_a_single_mount(machine: Machine, source: Path) -> None:
    saved = machine.folder / "checkpoint.state"
    mountpoints, _ = up(machine, source, *SLOT)
    names = names_of(source)
    before = read_part(mountpoints, names[:40])
    assert ": lap 1, 40 of 100 samples had their turn" in machine.ok("state", "save", mountpoints[1], saved).stdout
    read_part(mountpoints, names[40:75])
    for mountpoint in mountpoints:
        machine.ok("state", "load", mountpoint, saved)
    until(lambda: all(states(machine, mountpoint) == ["ready"] for mountpoint in mountpoints))
    assert before + read_part(mountpoints, names[40:]) == dict.fromkeys(names, 1)
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1)
    assert sum(machine.stats(mountpoint)["turns"] for mountpoint in mountpoints) == 2 * SAMPLES
    machine.ok("cluster", "down", machine.mnt)
    # Later, on another number of nodes; with the slot policy only if there are as many virtual chunks.
    machine.ok("mount", source, machine.mnt, *OPTIONS, *SLOT)
    machine.ok("state", "load", machine.mnt, saved)
    assert before + read_part([machine.mnt], names[40:]) == dict.fromkeys(names, 1)
