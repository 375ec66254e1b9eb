"""Takes turns back from states: verbs of the control socket.

A loader opens files ahead of the training loop. If a state is saved with a checkpoint, samples that the loop has not
got must come again after a load.

    state-save-less   save without the last N turns of this node
    turns-since       the turns for the batches that a loader has not yielded
    state-take-back   remove some turns from a saved file

`redoxfs.torch` uses the second and the third. One rank saves, then each rank asks its own node for the turns that its
loader has ahead, and the first rank takes all of these back. They include turns between the save and the question;
taking these back changes nothing.

Called in the node's task.
"""

import base64
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from redoxfs.arrays import Numbers
from redoxfs.node.control import clients_file
from redoxfs.node.node import Node
from redoxfs.node.recent import Batch, Int64
from redoxfs.node.state import State, StateError, StateWriter, decode, encode, read_bytes, replace_file
from redoxfs.node.threads import in_thread
from redoxfs.protocol.turns import taken_back


class OpenedAhead:
    """Saves states without the turns of opens ahead."""

    def __init__(self, node: Node, state: StateWriter) -> None:
        self._node = node
        self._state = state

    async def save_less(self, data: bytes) -> Mapping[str, Any]:
        """Save the state without the last N turns; ``data``: N and the path of the file. Raises ValueError."""
        count, _, path = data.partition(b" ")
        if self._node.plan.nodes > 1:
            raise ValueError("--less: this mount shares its laps with other nodes, whose readers open ahead as well")
        rows = self._node.recent.last(int(count))
        now = self._node.kept_turns(whole=True)
        turns, again = taken_back(now, self._node.plan.policy.units, rows[:, 0], rows[:, 1])
        return {**await self._state.save_turns(path, turns), "less": len(rows), "again": again}

    async def turns_since(self, data: bytes) -> Mapping[str, Any]:
        """The turns for a batch of a loader and later ones, in base64; ``data``: JSON of a `Batch`.

        Raises ValueError.
        """
        self._check_policy()
        batch = _batch_in(data)
        rows = self._node.recent.since(batch).astype("<i8").tobytes()
        return {"turns": base64.b64encode(rows).decode()}

    async def take_back(self, data: bytes) -> Mapping[str, Any]:
        """Take turns back from a saved file, and replace it. ``data``: its path, a zero, and the turns.

        Raises ValueError.
        """
        self._check_policy()
        name, _, rows = data.partition(b"\0")
        path = Path(os.fsdecode(name))
        if not path.is_absolute() or len(rows) % 16:
            raise ValueError("expected the absolute path of a file, and turns")
        units = self._node.plan.policy.units
        try:
            file = clients_file(path)
            state = await in_thread(partial(_read, file))
            state.check(self._state.about())
            turns = np.frombuffer(rows, "<i8").reshape(-1, 2)
            if len(turns) and turns[:, 1].min() < 1:
                raise StateError("turns to take back are of laps from 1 on")
            again = await in_thread(_replace, file, state, units, turns)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        except StateError as error:
            raise ValueError(f"{path}: {error}") from error
        return {"again": again}

    def _check_policy(self) -> None:
        if not self._node.plan.policy.counts_own_turns:
            raise ValueError("on several nodes this needs --policy pool: with slot, other nodes count a sample's turn")


def _batch_in(data: bytes) -> Batch:
    """Raises ValueError."""
    try:
        batch = Batch(*json.loads(data))
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in batch):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise ValueError("expected a loader's token, an iteration, and the number of a batch") from None
    return batch


def _read(path: Path) -> State:
    return decode(read_bytes(path))


def _replace(path: Path, state: State, units: Numbers, rows: Int64) -> int:
    turns, again = taken_back(state.turns, units, rows[:, 0], rows[:, 1])
    replace_file(path, encode(state.about, turns, state.written_ns))
    return again
