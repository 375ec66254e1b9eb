"""Epochs of nodes: exact where they are told, whatever was read before, with ranks that do not wait for each other; and
from one job to the next."""

import random
import signal
from pathlib import Path

import pytest
from images import make_images, path_in
from job_store import JobStore
from machine import Machine
from patience import PATIENCE_S
from ports import reserve_addresses

import redoxfs
from redoxfs.epochs import JobCounts, tell_epoch, tree_of
from redoxfs.launch.path_status import our_mount_of
from redoxfs.linux.mount_table import read_mounts

NODES, EPOCHS, BATCH = 3, 2, 16
APART = 3
"""So many opens each node is behind the one before it."""

FEW = 2 * APART * NODES
"""As many samples may come twice where nobody tells: the opens by which nodes that do not wait are apart, and as many
before each has found out."""

KILLED_AT = 70
"""In the second epoch."""

PATIENT = ("--classes", "dir", "--peer-timeout", str(2 * PATIENCE_S))


def test_nodes_give_no_sample_twice_in_an_epoch_that_each_was_told_of(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`drop_last`, after a look at two batches of the validation set, over a death. Also where nobody tells, labels are
    right and nothing is stuck."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.environment["XDG_RUNTIME_DIR"]))
    source = tmp_path / "images"
    for split, dogs in (("train", 70), ("val", 30)):
        make_images(source, {"cat": 40, "dog": dogs}, split=split, typical_bytes=1_000)
    for empty in source.rglob("*-0.png"):
        # It could not be told from another.
        empty.unlink()
    train, val = (
        sorted(str(path.relative_to(source)) for path in (source / split).rglob("*.png")) for split in ("train", "val")
    )
    mountpoints = machine.mount_nodes(source, reserve_addresses(NODES), "--memory", "1MiB", "--keeper", *PATIENT)

    draw = random.Random(1)
    orders = [draw.sample(split, len(split)) for _ in range(EPOCHS) for split in (train, val)]
    for told in (False, True):
        # By node: number of the epoch, from 1; and what it opens. None: the epoch begins.
        streams: list[list[tuple[int, str | None]]] = [[(0, None)] for _ in range(NODES)]
        for node, stream in enumerate(streams):
            stream += [(0, path) for path in val[node::NODES][:4]]
            for number, order in enumerate(orders, 1):
                own = order[node::NODES]
                stream += [(number, path) for path in (None, *own[: len(own) // BATCH * BATCH if number % 2 else None])]
        got: dict[int, list[str]] = {}
        for step in range(max(map(len, streams)) + APART * NODES):
            for node, stream in enumerate(streams):
                at = step - APART * node
                if not 0 <= at < len(stream):
                    continue
                number, path = stream[at]
                if path is not None:
                    served = path_in((mountpoints[node] / path).read_bytes())
                    assert served.split("/")[:2] == path.split("/")[:2], "labels and splits are right"
                    got.setdefault(number, []).append(served)
                elif told:
                    assert redoxfs.epoch(mountpoints[node])
            if told and step == KILLED_AT:
                machine.kill(signal.SIGKILL, mountpoints[1])
        assert [len(got[number]) for number in range(2, 2 * EPOCHS + 1, 2)] == [len(val)] * EPOCHS
        twice = {number: len(served) - len({*served}) for number, served in got.items() if number}
        assert max(twice.values()) <= (0 if told else FEW), twice
    stats = [machine.stats(mountpoint) for mountpoint in mountpoints]
    assert [each["keeper"]["restarts"] for each in stats] == [0, 1, 0]
    assert [each["errors"] for each in stats] == [0] * NODES


def test_the_epochs_of_a_job_are_exact_after_one_that_died_between_two_nodes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has a rank, which tells and reads an epoch without waiting for the others."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.environment["XDG_RUNTIME_DIR"]))
    source = tmp_path / "images"
    make_images(source, {"cat": 40, "dog": 50}, typical_bytes=1_000)
    for empty in source.rglob("*-0.png"):
        # It could not be told from another.
        empty.unlink()
    paths = sorted(str(path.relative_to(source)) for path in source.rglob("*.png"))
    mountpoints = machine.mount_nodes(source, reserve_addresses(NODES), "--memory", "1MiB", *PATIENT)
    table = read_mounts()
    mounts = [mount for path in mountpoints if (mount := our_mount_of(path, table)) is not None]
    draw = random.Random(2)

    def run(last: int) -> list[int]:
        """A job of three epochs. It dies after so many nodes were told of the last one. How many samples come twice in
        each epoch."""
        store, twice = JobStore(), []
        trees = [tree for mount in mounts if (tree := tree_of(mount, ".")) is not None]
        counts = [JobCounts(store, tree, set()) for tree in trees]
        for count, tree in zip(counts, trees, strict=True):
            count.say(tree.count)
        for epoch in range(3):
            for node in range(NODES if epoch < 2 else last):
                told = tell_epoch(mounts[node], trees[node].name, epoch, NODES, node, counts[node].number_of(epoch))
                counts[node].say(told)
            if epoch == 2 and last < NODES:
                break
            order = draw.sample(paths, len(paths))
            own = [order[node::NODES] for node in range(NODES)]
            got = [
                (mountpoint / own[node][turn]).read_bytes()
                for turn in range(len(own[0]))
                for node, mountpoint in enumerate(mountpoints)
                if turn < len(own[node])
            ]
            assert len(got) == len(paths)
            twice.append(len(got) - len({*got}))
        return twice

    assert [run(last) for last in (1, 2, NODES)] == [[0, 0], [0, 0], [0, 0, 0]]
