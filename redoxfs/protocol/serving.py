"""The whole interface of a policy, as a node uses it. Derive from `ServingPolicy`, or from `SharedServingPolicy`, which
is for several nodes.

`events.Policy` and `events.SharedPolicy` are what a binding needs: turns and reservations. A node also asks for laps,
writes the policy's state into checkpoints and files, and continues from them. A method that has a body here is a
default. No module but those that make a plan knows which policy there is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from redoxfs.arrays import Int32, Numbers
from redoxfs.protocol.binding import Binding
from redoxfs.protocol.events import Message, SharedPolicy, SharedState
from redoxfs.protocol.lap_progress import LapProgress, TreeLap
from redoxfs.protocol.replay import Replay, Replayable
from redoxfs.protocol.shared_replay import SharedReplay
from redoxfs.protocol.turns import Ledger, Turns, merged

NO_TURNS = Turns(np.zeros(0, np.int32), np.zeros(0, np.uint8), 0)
"""In a checkpoint in which the state of the policy has the turns."""


class Kept(NamedTuple):
    """What a checkpoint has of a policy, and of the opens and stats that wait for another node.

    ``undecided``  by path: the ticket of its open
    ``promises``   by ticket of a stat: its path and thread
    """

    turns: Turns
    state: SharedState | None
    undecided: Mapping[int, int]
    promises: Mapping[int, tuple[int, int]]


class _Serving(Protocol):
    """What policies of one node and of several have in common.

    ``counts_own_turns``  the turns that this node gave its readers are all that it counts: they can be taken back here
    """

    counts_own_turns: bool = True

    @property
    def units(self) -> Numbers:
        """int[S]: the number of each sample's class or column, which has laps of its own."""

    @property
    def identity(self) -> Numbers | None:
        """What a checkpoint relies on beside the scan: a process with another one does not continue from it."""

    def laps(self, samples: Numbers) -> Int32:
        """The lap, from 1, of the class or column of each of ``samples``."""
        return self.laps_of_units()[self.units[samples]]

    def lap_of(self, sample: int) -> int:
        """The lap, from 1, of the class or column of ``sample``. After its turn, that of the turn."""

    def laps_of_units(self) -> Int32:
        """int32[units]: the lap of each class or column. It may be a view, valid until the next request."""

    def chunk_of(self, sample: int) -> int:
        """The physical chunk of ``sample``."""

    def count_laps(self, tree_of: Numbers, trees: int) -> None:
        """Count the turns of each tree from now on (`lap_progress`); ``tree_of``: int[S]."""

    def tree_laps(self) -> list[TreeLap]:
        """The lap of each tree, once they are counted."""

    @property
    def has_passes(self) -> bool:
        """Whether `begin_pass` begins one."""
        return False

    def begin_pass(self, tree: int | None, number: int = 0) -> bool:
        """The job says that an epoch of a tree begins, or of all. Returns whether the policy has passes.

        ``number``: the epoch is at least that one, where nodes count them.
        """
        return False

    def pass_number(self, tree: int) -> int | None:
        """The number of the last epoch of a tree that was told here, or that a peer in it asked from. 0: none, or it is
        not known. None: they are not counted, as on one node."""
        return None


class ServingPolicy(Replayable, _Serving, Protocol):
    """A policy of one node.

    Where ``_progress`` is not None, the policy notes each turn there, and has it count again after a `restore`.
    """

    _progress: LapProgress | None = None

    @property
    def identity(self) -> Numbers | None:
        return self.units

    @property
    def given(self) -> int:
        """How many turns were given since the first lap began, those before a `restore` included."""

    def turns(self) -> Turns:
        """How far the laps are. A copy."""

    def restore(self, turns: Turns) -> None:
        """Resume where another policy of the same samples was, with nothing in memory or reserved.

        Raises ValueError, and changes nothing, if that is impossible.
        """

    def recover(self, turns: Turns) -> None:
        self.restore(turns)

    def turns_to_repeat(self) -> Turns:
        """`turns`, for a record of the turns after them, and `recover`."""
        return self.turns()

    def count_laps(self, tree_of: Numbers, trees: int) -> None:
        self._progress = LapProgress(self.units, tree_of, trees, self.turns)
        self._progress.count_again()

    def tree_laps(self) -> list[TreeLap]:
        return [] if self._progress is None else self._progress.of_trees()

    def kept(self) -> tuple[Turns, SharedState | None]:
        """What a checkpoint has of it."""
        return self.turns_to_repeat(), None

    def repeat(self, binding: Binding, kept: Kept) -> Replay:
        """Continue from ``kept``. Raises ValueError."""
        return Replay(binding, kept.turns, self)


class SharedServingPolicy(SharedPolicy, _Serving, Protocol):
    """A policy of several nodes.

    ``message_kind``  of its messages
    ``home_of``       int[S], the home of each sample; None: a policy without homes
    ``needs_order``   it prefetches by the orders of all nodes, which `follow` tells it
    ``_ledger``       the turns that this node gave its readers; ``_nodes``: how many share the laps
    """

    message_kind: type[Message]
    home_of: Numbers | None = None
    needs_order: bool = False
    _ledger: Ledger
    _nodes: int

    @property
    def given(self) -> int:
        return self._ledger.given

    def turns(self) -> Turns:
        return self._ledger.turns()

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        return merged(of_nodes, self.units)

    def count_laps(self, tree_of: Numbers, trees: int) -> None:
        progress = LapProgress(self.units, tree_of, trees, self._ledger.turns, nodes=self._nodes)
        progress.count_again()
        self._ledger.progress = progress

    def tree_laps(self) -> list[TreeLap]:
        return [] if self._ledger.progress is None else self._ledger.progress.of_trees()

    @property
    def identity(self) -> Numbers | None:
        return None

    @property
    def degraded(self) -> int:
        """How many requests got the very sample they asked for, as its home was lost."""
        return 0

    def classes_alone(self) -> int:
        """Of how many classes every request gets the very sample it asks for now, as all their nodes are lost."""
        return 0

    def follow(self, requester: int, epoch: int, order: Numbers) -> None:
        """``requester``, this node or another, will ask in ``order`` in ``epoch``."""
        return

    def figures(self) -> dict[str, Any]:
        """Its part of stats.json."""
        return {}

    def begun(self) -> Int32:
        """int32[n]: how many laps of each class have begun, and what else one that takes a node's place has to know, of
        which the greatest number counts. Empty: nothing."""
        return np.zeros(0, np.int32)

    def rejoin(self, begun: Int32) -> None:
        """This process has taken the place of another. The laps that have ``begun``, the maximum over the peers, go on
        without its samples."""
        return

    def kept(self) -> tuple[Turns, SharedState | None]:
        """What a checkpoint has of it."""
        return NO_TURNS, self.state()

    def repeat(self, binding: Binding, kept: Kept) -> SharedReplay:
        """Continue from ``kept``. Raises ValueError."""
        if kept.state is None:
            raise ValueError("it is of a node without others")
        return SharedReplay(binding, self, kept.state, undecided=kept.undecided, promises=kept.promises)
