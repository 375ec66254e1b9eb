"""Epochs that a script tells: a verb of the control socket.

    epoch    an epoch of a class tree begins now, of that with the name in the data; without data: of all

A policy that has passes begins one, so the epoch has each sample once, whatever was opened before. Laps of other
policies go on as they are; the answer says which it is. `redoxfs.epoch` is the client.

Called in the node's task, between two requests.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redoxfs.node.node import Node


class ToldEpochs:
    """The verb, and how often it began passes."""

    def __init__(self, node: "Node", trees: Sequence[str]) -> None:
        self._node = node
        self._trees = trees
        self.told = 0

    async def begin(self, data: bytes) -> Mapping[str, Any]:
        """Begin a pass. ``begun`` is False if the policy has none. Raises ValueError for a tree that is not there."""
        tree = self._tree_in(data)
        if not self._node.plan.policy.begin_pass(tree):
            return {"begun": False}
        self.told += 1
        # It has no entry in the journal, and a daemon that takes over must go on in this pass.
        self._node.checkpoint()
        return {"begun": True}

    def _tree_in(self, data: bytes) -> int | None:
        if not data:
            return None
        name = os.fsdecode(data)
        if name not in self._trees:
            known = ", ".join(self._trees[:8]) or "none"
            raise ValueError(f"{name!r:.200} is not a class tree of this mount; its class trees: {known}")
        return self._trees.index(name)

    def stats(self) -> dict[str, int]:
        """``epochs_told``: since the daemon began."""
        return {"epochs_told": self.told}
