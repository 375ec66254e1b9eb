"""The verbs by which scripts tell that an epoch begins, with a policy that has passes and with one that has none."""

import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from pools import SIZE_BYTES

from redoxfs.epochs import tell_epoch, tree_of
from redoxfs.node.control import CLIENT
from redoxfs.node.told_epochs import Processes, ToldEpochs
from redoxfs.protocol import PoolPolicy

TREES = ("train", "val")


class Passing(PoolPolicy):
    """Notes the passes that begin."""

    def begin_pass(self, tree: int | None, number: int = 0) -> bool:
        self.begun = [*getattr(self, "begun", []), tree]
        return super().begin_pass(tree, number)


def told(*, passes: bool = True) -> tuple[ToldEpochs, Any]:
    """The verb, and the node: what it uses of one."""
    sizes = np.full(4, SIZE_BYTES, np.int64)
    cells, classes = np.arange(4, dtype=np.int32).reshape(2, 2), np.array([0, 0, 1, 1], np.int32)
    policy = Passing(cells, classes, sizes, capacity_bytes=40, seed=0)
    if passes:
        policy.keep_passes(classes, len(TREES))
    checkpoints: list[int] = []
    plan = SimpleNamespace(policy=policy, sharing=None)
    node: Any = SimpleNamespace(
        plan=plan,
        ranks={},
        checkpoint=lambda: checkpoints.append(len(node.ranks)),
        end_holds=lambda of, tree: node.ended.append((of, tree, len(checkpoints))),
        ended=[],
    )
    node.checkpoints = checkpoints
    return ToldEpochs(node, TREES), node


@pytest.mark.parametrize(("data", "tree"), [(b"", None), (b"train", 0), (b"val", 1)])
def test_a_pass_of_the_tree_begins_and_is_in_a_checkpoint(data: bytes, tree: int | None) -> None:
    epochs, node = told()
    assert trio.run(epochs.begin, data) == {"begun": True}
    assert node.plan.policy.begun == [tree]
    assert len(node.checkpoints) == 1
    assert epochs.stats() == {"epochs_told": 1}


def test_a_policy_without_passes_goes_on_and_says_so() -> None:
    epochs, node = told(passes=False)
    assert trio.run(epochs.begin, b"") == {"begun": False}
    assert node.checkpoints == []
    assert epochs.stats() == {"epochs_told": 0}


@pytest.mark.parametrize("passes", [False, True])
def test_a_tree_that_is_not_there_is_named(passes: bool) -> None:
    epochs, node = told(passes=passes)
    with pytest.raises(ValueError, match="'test' is not a class tree of this mount; its class trees: train, val"):
        trio.run(epochs.begin, b"test")
    assert not node.checkpoints


def begun_by(words: str) -> list[int]:
    """How many passes had begun after each of the words: the number of an epoch, "of", the number of ranks, ".", and
    the rank."""
    epochs, node = told()
    counts = []
    for word in words.split():
        number, _, of_ranks = word.partition("of")
        ranks, rank = of_ranks.split(".")
        data = json.dumps(["train", None if number == "-" else int(number), int(ranks), int(rank)]).encode()
        assert trio.run(epochs.begin_of_rank, data) == {"begun": True, "count": None}
        counts.append(epochs.told)
    assert node.plan.policy.begun == [0] * epochs.told
    assert node.checkpoints == [1] * len(counts), "each has the rank that came"
    return counts


def test_what_readers_of_the_epoch_hold_ends_before_the_checkpoint() -> None:
    epochs, node = told()
    trio.run(epochs.begin, b"")
    before = CLIENT.set(os.getpid())
    for rank in (0, 1):
        trio.run(epochs.begin_of_rank, json.dumps(["val", None, 2, rank]).encode())
    CLIENT.reset(before)
    assert [(tree, checkpoints) for _, tree, checkpoints in node.ended] == [(None, 0), (1, 1), (1, 2)]
    of_all, *of_ranks = (of for of, _, _ in node.ended)
    assert of_all(1)
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        reader = int(shell.stdout.readline())
        for of_rank in of_ranks:
            assert of_rank(threading.get_native_id())
            assert of_rank(reader), "a child of a child"
            assert not of_rank(os.getppid())
            assert not of_rank(0)
        os.kill(reader, signal.SIGKILL)


def test_a_daemon_that_takes_over_between_two_ranks_begins_no_other_pass() -> None:
    epochs, node = told()
    for rank in (0, 2):
        trio.run(epochs.begin_of_rank, json.dumps(["train", None, 3, rank]).encode())
    next_one = ToldEpochs(node, TREES)
    trio.run(next_one.begin_of_rank, b'["train", null, 3, 1]')
    assert node.plan.policy.begun == [0]
    trio.run(next_one.begin_of_rank, b'["train", null, 3, 2]')
    assert node.plan.policy.begun == [0, 0]


def test_the_first_rank_of_an_epoch_begins_its_pass_and_the_others_join_it() -> None:
    assert begun_by("0of3.0 0of3.2 0of3.1  1of3.1 1of3.0 1of3.2") == [1, 1, 1, 2, 2, 2]
    assert begun_by("-of2.0 -of2.1 -of2.1 -of2.0 -of2.0") == [1, 1, 2, 2, 3]
    assert begun_by("-of1.0 -of1.0") == [1, 2], "an epoch is told again each time"


class Born(Processes):
    """Processes that were born when their numbers say, and have ended if they are named."""

    def __init__(self) -> None:
        self.ended: set[int] = set()

    def born_s(self, process: int) -> float:
        return process

    def has_ended(self, process: int) -> bool:
        return process in self.ended


def test_ranks_of_a_job_that_was_started_again_do_not_join_those_that_have_ended() -> None:
    _, node = told()
    processes, now_s = Born(), 0
    epochs = ToldEpochs(node, TREES, processes, lambda: now_s)

    async def tell(at_s: int, rank: int, process: int) -> int:
        nonlocal now_s
        now_s = at_s
        CLIENT.set(process)
        await epochs.begin_of_rank(json.dumps(["train", 3, 2, rank]).encode())
        return epochs.told

    assert trio.run(tell, 750, 1, 701) == 1
    assert trio.run(tell, 751, 0, 700) == 1
    assert trio.run(tell, 760, 1, 701) == 2
    processes.ended.add(701)
    assert trio.run(tell, 761, 0, 700) == 2, "rank 1 was through, and rank 0 is of the same job"
    assert trio.run(tell, 770, 1, 702) == 3
    processes.ended.add(702)
    assert trio.run(tell, 900, 0, 800) == 4, "rank 1 of the job before told this epoch too"


def test_what_the_machine_says_of_processes() -> None:
    processes = Processes()
    assert not processes.has_ended(0)
    assert processes.born_s(0) == 0
    assert not processes.has_ended(os.getpid())
    assert 0 < processes.born_s(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert processes.has_ended(child), "nobody has waited for it"
    os.waitpid(child, 0)
    assert processes.has_ended(child)
    assert processes.born_s(child) == 0


class Counting:
    """A policy that counts epochs, as those of several nodes do: what it was told, and how many it has."""

    has_passes = True

    def __init__(self) -> None:
        self.told: list[tuple[int | None, int]] = []

    def begin_pass(self, tree: int | None, number: int) -> bool:
        self.told.append((tree, number))
        return True

    def pass_number(self, tree: int) -> int:
        return 10 * tree + len(self.told)


def test_an_epoch_has_the_number_that_its_first_rank_says() -> None:
    epochs, node = told()
    policy = node.plan.policy = Counting()
    for rest, count in (("3, 2, 0, 7", 11), ("3, 2, 1, 8", 11), ("4, 2, 1, 9", 12), ("5, 2, 0", 13)):
        data = f'["val", {rest}]'.encode()
        assert trio.run(epochs.begin_of_rank, data) == {"begun": True, "count": count}
    assert policy.told == [(1, 7), (1, 9), (1, 0)]
    assert trio.run(epochs.tree_of, b"train") == {"tree": "train", "count": 3, "dataset": ""}


def test_a_daemon_that_is_older_than_the_package_is_told_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def answer(_mount: Any, verb: str, data: bytes, _timeout_s: float) -> dict[str, Any]:
        asked.append(data)
        return {"tree": "train"} if verb == "epoch-tree" else {"begun": True}

    monkeypatch.setattr("redoxfs.epochs.ask_daemon", answer)
    mount: Any = SimpleNamespace(path="/mnt/set")
    tree = tree_of(mount, "train")
    assert tree is not None
    assert tree.count is None, "so nobody agrees on a number"
    assert tell_epoch(mount, tree.name, 3, 2, 1) is None
    assert json.loads(asked[1]) == ["train", 3, 2, 1]


def test_ranks_of_another_job_or_epoch_join_nobody() -> None:
    assert begun_by("5of2.0 6of2.1 6of2.0") == [1, 2, 2], "the first one was broken off"
    assert begun_by("5of2.0 5of3.1 5of3.0 5of3.2") == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "data",
    [
        *(b"[", b"[]", b'["train", null, 2, 2]', b'["train", 1.5, 2, 0]', b'["train", null, 1, -1]', b"[7, 0, 1, 0]"),
        *(b'["train", 0, 1, 0, -1]', b'["train", 0, 1, 0, null]', b'["train", 0, 1, 0, 2147483648]'),
        b'["train", 0, 1, 0, 5, 5]',
    ],
)
def test_a_rank_that_says_something_else_is_refused(data: bytes) -> None:
    epochs, _ = told()
    with pytest.raises(ValueError, match="expected a class tree, the number of an epoch or null"):
        trio.run(epochs.begin_of_rank, data)
    with pytest.raises(ValueError, match="'test' is not a class tree"):
        trio.run(epochs.begin_of_rank, b'["test", null, 1, 0]')


@pytest.mark.parametrize(
    ("trees", "folder", "tree"),
    [
        (TREES, "train", "train"),
        (TREES, "train/cat", "train"),
        (TREES, "training", None),
        (TREES, ".", None),
        (["train"], ".", "train"),
        (["."], ".", "."),
        (["."], "cat", "."),
        ([".", "train"], "train/cat", "train"),
        ([".", "train"], "cat", "."),
        ([".", "train"], ".", None),
        (["data/train", "data/val", "more/val"], "data", None),
        (["data/train", "data/val", "more/val"], "more", "more/val"),
        (["a", "a/b"], "a/b/c", "a/b"),
    ],
)
def test_the_tree_of_a_loader_is_that_of_its_directory(trees: Any, folder: str, tree: str | None) -> None:
    _, node = told()
    answer = trio.run(ToldEpochs(node, trees, dataset="ab").tree_of, folder.encode())
    assert answer == ({"tree": None} if tree is None else {"tree": tree, "count": None, "dataset": "ab"})


def test_a_policy_that_cannot_begin_passes_has_no_tree_to_tell_of() -> None:
    node: Any = SimpleNamespace(plan=SimpleNamespace(policy=SimpleNamespace(has_passes=False)))
    assert trio.run(ToldEpochs(node, TREES).tree_of, b"train") == {"tree": None}
