"""Real nodes that all end and resume in the middle of an epoch, and states saved with a checkpoint of their job."""

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from images import make_images
from machine import Machine
from t5_lost_nodes import MORTAL, NODES, PREFETCH, SLOT, Reads, epoch, names_of, read, states, turns, until

from redoxfs.node.state import decode, read_bytes

CLASSES = {"c2": 2, "c40": 40, "c60": 60, "c99": 99}
# Long enough for a machine whose cores are busy: an open that is answered later fails.
OPTIONS = ("--classes", "dir", "--memory", "6MiB", "--chunk-size", "8", "--peer-timeout", "8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    make_images(root, CLASSES, typical_bytes=4_000)
    (empty,) = (path for path in root.glob("train/*/*") if not path.stat().st_size)
    empty.unlink()
    return root


def up(machine: Machine, source: Path, *options: str, nodes: int = NODES) -> tuple[list[Path], str]:
    told = machine.ok("cluster", "up", "--nodes", str(nodes), source, machine.mnt, *OPTIONS, *options)
    return [machine.mnt / str(node) for node in range(nodes)], told.stderr


def files_of(machine: Machine) -> list[Path]:
    return sorted((machine.folder / "state/redoxfs").glob("[!.]*.state.?"))


def await_write(machine: Machine, turns: int) -> None:
    """Wait until the state files of all nodes together have this many turns."""
    until(lambda: sum(decode(read_bytes(path)).turns.given for path in files_of(machine)) == turns)


def read_part(mountpoints: Sequence[Path], names: Sequence[str]) -> Counter[str]:
    found = epoch(mountpoints, names)
    assert not sum(reads.failed for reads in found)
    return turns(found)


@pytest.mark.parametrize("options", [(), SLOT, PREFETCH])
def test_killed_nodes_resume_in_the_middle_of_an_epoch(
    machine: Machine, source: Path, options: tuple[str, ...]
) -> None:
    mountpoints, _ = up(machine, source, *options, MORTAL)
    names = names_of(source)
    counts = read_part(mountpoints, names) + read_part(mountpoints, names[:120])
    await_write(machine, len(names) + 120)
    for mountpoint in mountpoints:
        machine.kill(signal.SIGKILL, mountpoint)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files_of(machine))
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, *options, "--resume")
    assert "of 200 samples had their turn at all nodes; samples that a killed node served in its last 1 s" in told
    assert sum(machine.stats(mountpoint)["turns"] for mountpoint in mountpoints) == counts.total()
    counts += read_part(mountpoints, names[120:])
    assert counts == dict.fromkeys(names, 2)
    if options == PREFETCH:
        assert sum(machine.stats(mountpoint)["prefetched"] for mountpoint in mountpoints) > 0, "the order goes on too"
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1), "and every epoch after it is exact"
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


@pytest.mark.parametrize("options", [("--exchange", "0.3"), PREFETCH])
def test_unmounts_lose_nothing(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    names = names_of(source)
    counts: Counter[str] = Counter()
    done = 0
    for end in (0, 77, 200, 310):
        mountpoints, told = up(machine, source, *options, "--resume")
        if done:
            assert "resumed: " in told
        else:
            assert "there is nothing to resume at any node" in told
        while done < end:
            upto = min(end, (done // len(names) + 1) * len(names))
            counts += read_part(mountpoints, names[done % len(names) : upto - done + done % len(names)])
            done = upto
        # A sample that a stat reserved had no turn, whichever node it came from.
        for name in names[:30]:
            (mountpoints[0] / name).stat()
        machine.ok("cluster", "down", machine.mnt)
    mountpoints, _ = up(machine, source, *options, "--resume")
    counts += read_part(mountpoints, names[done % len(names) :])
    assert counts == dict.fromkeys(names, 2)


@pytest.mark.parametrize("options", [(), SLOT])
def test_only_samples_read_around_the_kill_come_twice(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    mountpoints, _ = up(machine, source, *options, MORTAL)
    names = names_of(source)
    first = read_part(mountpoints, names[:60])
    await_write(machine, 60)
    found = [Reads() for _ in mountpoints]
    threads = [
        threading.Thread(target=read, args=(mountpoint, names[60 + i :: NODES], reads))
        for i, (mountpoint, reads) in enumerate(zip(mountpoints, found, strict=True))
    ]
    for thread in threads:
        thread.start()
    until(lambda: sum(len(reads.served) for reads in found) > 30)
    for pid in [machine.pid(mountpoint) for mountpoint in mountpoints]:
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    before: Counter[str] = first + turns(found)
    assert before == dict.fromkeys(before, 1)
    kept = [decode(read_bytes(path)).turns for path in files_of(machine)]
    had = np.bitwise_or.reduce([np.unpackbits(turns.had, count=len(names)) for turns in kept])
    assert 60 <= had.sum() == sum(turns.given for turns in kept)
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, *options, "--resume")
    assert f"resumed: lap 1, {had.sum()} of 200 samples had their turn" in told
    # The rest of the lap: samples are numbered class by class.
    left = [name for name, had_turn in zip(names, had, strict=True) if not had_turn]
    after = read_part(mountpoints, left)
    assert after == dict.fromkeys(after, 1)
    # A thread whose node died between the answer and the read has read nothing.
    assert len(set(names).difference(before, after)) <= NODES
    assert sum((before & after).values()) <= before.total() - had.sum() + NODES
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1)


@pytest.mark.parametrize("options", [(), SLOT])
def test_a_saved_state_resumes_on_any_number_of_nodes(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    saved = machine.folder / "checkpoint.state"
    mountpoints, _ = up(machine, source, *options)
    names = names_of(source)
    before = read_part(mountpoints, names[:80])
    assert ": lap 1, 80 of 200 samples had their turn" in machine.ok("state", "save", mountpoints[1], saved).stdout
    read_part(mountpoints, names[80:150])
    for mountpoint in mountpoints:
        machine.ok("state", "load", mountpoint, saved)
    until(lambda: all(states(machine, mountpoint) == ["ready", "ready"] for mountpoint in mountpoints))
    assert before + read_part(mountpoints, names[80:]) == dict.fromkeys(names, 1)
    assert read_part(mountpoints, names) == dict.fromkeys(names, 1)
    assert sum(machine.stats(mountpoint)["turns"] for mountpoint in mountpoints) == 2 * len(names)
    machine.ok("cluster", "down", machine.mnt)
    # Later, on any number of nodes; with the slot policy only if there are as many virtual chunks.
    machine.ok("mount", source, machine.mnt, *OPTIONS, *options)
    machine.ok("state", "load", machine.mnt, saved)
    assert before + read_part([machine.mnt], names[80:]) == dict.fromkeys(names, 1)
    machine.ok("umount", machine.mnt)
    mountpoints, _ = up(machine, source, *options, nodes=2)
    for mountpoint in mountpoints:
        machine.ok("state", "load", mountpoint, saved)
    until(lambda: all(states(machine, mountpoint) == ["ready"] for mountpoint in mountpoints))
    assert before + read_part(mountpoints, names[80:]) == dict.fromkeys(names, 1)


def test_nodes_that_loaded_different_states_refuse_each_other(machine: Machine, source: Path) -> None:
    """Until all load the same state: laps that began differently must not be merged."""
    mountpoints, _ = up(machine, source)
    names = names_of(source)
    saved = [machine.folder / "one", machine.folder / "two"]
    read_part(mountpoints, names[:50])
    machine.ok("state", "save", mountpoints[0], saved[0])
    read_part(mountpoints, names[50:90])
    machine.ok("state", "save", mountpoints[0], saved[1])
    for mountpoint, path in zip(mountpoints, (saved[0], saved[1], saved[0]), strict=True):
        machine.ok("state", "load", mountpoint, path)
    until(lambda: "refused" in states(machine, mountpoints[0]))
    assert "has another start point (the state " in machine.log()
    for mountpoint in mountpoints:
        machine.ok("state", "load", mountpoint, saved[1])
    until(lambda: all(states(machine, mountpoint) == ["ready", "ready"] for mountpoint in mountpoints))
    assert read_part(mountpoints, names[90:]).total() == len(names) - 90


def test_a_save_needs_all_nodes_and_a_restarted_one_resumes_nothing(machine: Machine, source: Path) -> None:
    mountpoints, _ = up(machine, source, MORTAL)
    names = names_of(source)
    nodes = machine.nodes(mountpoints[0])
    read_part(mountpoints, names[:90])
    machine.kill(signal.SIGKILL, mountpoints[2])
    saved = machine.folder / "saved"
    refused = machine.run("state", "save", mountpoints[0], saved)
    assert refused.returncode == 2
    assert f"no answer from {nodes[2]}, which served samples as well" in refused.stderr
    assert not saved.exists()
    rank = ("--nodes", ",".join(nodes), "--node-rank", "2")
    told = machine.ok("mount", source, mountpoints[2], *OPTIONS, *rank, "--resume").stderr
    assert "the other nodes continued without this node, so it joins them and resumes nothing" in told
    until(lambda: states(machine, mountpoints[0]) == ["ready", "ready"])
    machine.ok("state", "save", mountpoints[0], saved)
    assert not sum(reads.failed for reads in epoch(mountpoints, names))


def test_a_state_that_does_not_fit_is_refused_in_one_line(machine: Machine, source: Path) -> None:
    mountpoints, _ = up(machine, source)
    names = names_of(source)
    nodes = machine.nodes(mountpoints[0])
    before = read_part(mountpoints, names[:90])
    machine.ok("cluster", "down", machine.mnt)
    files = files_of(machine)
    assert [path.name[-8:] for path in files] == [".state.0", ".state.1", ".state.2"]
    good = [path.read_bytes() for path in files]
    machine.mnt.joinpath("0").mkdir()

    def refused(line: str, code: int, *command: str | Path) -> None:
        done = machine.run(*command)
        assert done.returncode == code, done.stderr
        assert line in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr

    one = ("mount", source, machine.mnt / "0", *OPTIONS, "--nodes", ",".join(nodes[:2]), "--node-rank", "0")
    refused("number of nodes was 3 when it was written, and is 2 now", 2, *one, "--resume")
    cluster = ("cluster", "up", "--nodes", "3", source, machine.mnt, *OPTIONS, "--resume")
    files[1].write_bytes(good[1][:-1])
    refused("truncated or damaged", 2, *cluster)
    assert [path.read_bytes() for path in files] == [good[0], good[1][:-1], good[2]]
    files[1].write_bytes(good[1])
    refused("--policy was pool when it was written", 2, *cluster, *SLOT)
    assert [path.read_bytes() for path in files] == good
    # If one file is missing, the others resume and report the consequence.
    files[1].unlink()
    lost = decode(good[1]).turns.given
    mountpoints, told = up(machine, source, "--resume")
    now = machine.nodes(mountpoints[0])
    assert f"no state from {now[1]}: what it served in these laps is served again" in told
    counts = before + read_part(mountpoints, names[90:])
    counts += read_part(mountpoints, names)
    assert set(counts) == set(names)
    twice = [name for name, times in counts.items() if times == 3]
    assert len(twice) <= lost
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()


def test_each_node_has_its_own_state_file_for_one_state_path(machine: Machine, source: Path) -> None:
    kept = machine.folder / "kept"
    kept.mkdir()
    names = names_of(source)
    mountpoints, _ = up(machine, source, "--state", str(kept / "state"))
    counts = read_part(mountpoints, names[:90])
    machine.ok("cluster", "down", machine.mnt)
    assert sorted(os.listdir(kept)) == ["state.0", "state.1", "state.2"]
    shutil.rmtree(machine.folder / "state/redoxfs", ignore_errors=True)
    mountpoints, _ = up(machine, source, "--state", str(kept / "state"), "--resume")
    assert counts + read_part(mountpoints, names[90:]) == dict.fromkeys(names, 1)


def test_a_new_view_restarts_the_state_files_too(machine: Machine, source: Path) -> None:
    mountpoints, _ = up(machine, source)
    names = names_of(source)
    read_part(mountpoints, names[:90])
    nodes = ",".join(machine.nodes(mountpoints[0]))
    for mountpoint in mountpoints:
        machine.ok("nodes", mountpoint, "--set", nodes)
    assert [decode(read_bytes(path)).turns.given for path in files_of(machine)] == [0, 0, 0]
    until(lambda: all(states(machine, mountpoint) == ["ready", "ready"] for mountpoint in mountpoints))
    counts = read_part(mountpoints, names[:60])
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, _ = up(machine, source, "--resume")
    assert counts + read_part(mountpoints, names[60:]) == dict.fromkeys(names, 1)


def mount(machine: Machine, source: Path, at: Path, nodes: Sequence[str], rank: int, *more: str) -> str:
    where = ("--nodes", ",".join(nodes), "--node-rank", str(rank))
    return machine.ok("mount", source, at, *OPTIONS, *where, *more).stderr


def test_turns_of_earlier_laps_are_not_merged_with_these(machine: Machine, source: Path) -> None:
    """A node that gives no sample writes nothing, and its old file stays."""
    names = names_of(source)
    mountpoints, _ = up(machine, source, nodes=2)
    read_part(mountpoints, names)
    read_part(mountpoints, names[:150])
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, _ = up(machine, source, nodes=2)
    counts = read_part(mountpoints[:1], names[:30])
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, "--resume", nodes=2)
    assert "resumed: lap 1, 30 of 200 samples" in told
    assert f"no state from {machine.nodes(mountpoints[0])[1]}" in told
    counts += read_part(mountpoints, names[30:])
    assert counts == dict.fromkeys(names, 1)
    # After a turn the file belongs to these laps, and the next resume uses it.
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, "--resume", nodes=2)
    assert "resumed: lap 1, 200 of 200 samples" in told
    assert "no state from" not in told


def test_nodes_killed_when_only_one_has_loaded_lose_no_sample(machine: Machine, source: Path) -> None:
    names = names_of(source)
    saved = machine.folder / "checkpoint"
    mountpoints, _ = up(machine, source, MORTAL, nodes=2)
    read_part(mountpoints, names)
    counts = read_part(mountpoints, names[:50])
    machine.ok("state", "save", mountpoints[0], saved)
    read_part(mountpoints, names[50:])
    read_part(mountpoints, names[:100])
    await_write(machine, 500)
    machine.ok("state", "load", mountpoints[0], saved)
    for mountpoint in mountpoints:
        machine.kill(signal.SIGKILL, mountpoint)
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, "--resume", nodes=2)
    assert "no state from" in told
    for _ in range(2):
        counts += read_part(mountpoints, names)
    assert set(counts) == set(names)


@pytest.mark.parametrize("how", ["anew", "from a state"])
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_node_that_joins_a_later_view_begins_where_that_does(
    machine: Machine, source: Path, how: str, resume: tuple[str, ...]
) -> None:
    names = names_of(source)
    mountpoints, _ = up(machine, source, MORTAL)
    nodes, left = machine.nodes(mountpoints[0]), mountpoints[:2]
    saved = machine.folder / "checkpoint"
    before = read_part(mountpoints, names[:120])
    machine.ok("state", "save", mountpoints[0], saved)
    read_part(mountpoints, names[120:])
    read_part(mountpoints, names[:50])
    machine.kill(signal.SIGKILL, mountpoints[2])
    if how == "anew":
        before.clear()
        for new in (nodes[:2], nodes):
            for mountpoint in left:
                machine.ok("nodes", mountpoint, "--set", ",".join(new))
    else:
        for mountpoint in left:
            machine.ok("state", "load", mountpoint, saved)
    told = mount(machine, source, mountpoints[2], nodes, 2, *resume)
    assert "resumed: " not in told
    assert ("the other nodes continue from the state" in told) == (how != "anew")
    until(lambda: all(states(machine, mountpoint) == ["ready", "ready"] for mountpoint in mountpoints))
    assert before + read_part(mountpoints, names[before.total() :]) == dict.fromkeys(names, 1)
    # From then on the files belong to these laps, by the number that each node has now.
    machine.ok("cluster", "down", machine.mnt)
    mountpoints, told = up(machine, source, "--resume")
    assert "resumed: lap 1, 200 of 200" in told
    assert "no state from" not in told


def test_renumbered_nodes_keep_their_files_by_their_new_numbers(machine: Machine, source: Path) -> None:
    names = names_of(source)
    mountpoints, _ = up(machine, source, MORTAL)
    nodes = machine.nodes(mountpoints[0])
    left, new = [mountpoints[0], mountpoints[2]], [nodes[0], nodes[2]]
    machine.kill(signal.SIGKILL, mountpoints[1])
    for mountpoint in left:
        machine.ok("nodes", mountpoint, "--set", ",".join(new))
    until(lambda: all(states(machine, mountpoint) == ["ready"] for mountpoint in left))
    counts = read_part(left, names[:100])
    for mountpoint in left:
        machine.ok("umount", mountpoint)
    told: dict[int, str] = {}

    def back(rank: int) -> None:
        told[rank] = mount(machine, source, left[rank], new, rank, MORTAL, "--resume")

    threads = [threading.Thread(target=back, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("resumed: lap 1, 100 of 200" in lines and "no state from" not in lines for lines in told.values())
    assert counts + read_part(left, names[100:]) == dict.fromkeys(names, 1)
    # A view of one node is like a mount on its own.
    machine.kill(signal.SIGKILL, left[1])
    machine.ok("nodes", left[0], "--set", nodes[0])
    counts = read_part(left[:1], names[:70])
    machine.ok("umount", left[0])
    assert "resumed: lap 1, 70 of 200" in machine.ok("mount", source, left[0], *OPTIONS, "--resume").stderr
    assert counts + read_part(left[:1], names[70:]) == dict.fromkeys(names, 1)
