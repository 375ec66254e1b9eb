"""The verb by which a script tells that an epoch begins, with a policy that has passes and with one that has none."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from pools import SIZE_BYTES

from redoxfs.node.told_epochs import ToldEpochs
from redoxfs.protocol import PoolPolicy

TREES = ("train", "val")


class Passing(PoolPolicy):
    """Notes the passes that begin."""

    def begin_pass(self, tree: int | None) -> bool:
        self.begun = [*getattr(self, "begun", []), tree]
        return super().begin_pass(tree)


def told(*, passes: bool = True) -> tuple[ToldEpochs, Any]:
    """The verb, and the node: what it uses of one."""
    sizes = np.full(4, SIZE_BYTES, np.int64)
    cells, classes = np.arange(4, dtype=np.int32).reshape(2, 2), np.array([0, 0, 1, 1], np.int32)
    policy = Passing(cells, classes, sizes, capacity_bytes=40, seed=0)
    if passes:
        policy.keep_passes(classes, len(TREES))
    checkpoints: list[int] = []
    node: Any = SimpleNamespace(plan=SimpleNamespace(policy=policy), checkpoint=lambda: checkpoints.append(1))
    node.checkpoints = checkpoints
    return ToldEpochs(node, TREES), node


@pytest.mark.parametrize(("data", "tree"), [(b"", None), (b"train", 0), (b"val", 1)])
def test_a_pass_of_the_tree_begins_and_is_in_a_checkpoint(data: bytes, tree: int | None) -> None:
    epochs, node = told()
    assert trio.run(epochs.begin, data) == {"begun": True}
    assert node.plan.policy.begun == [tree]
    assert node.checkpoints == [1]
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
