"""How many samples each class takes from peers on purpose."""

from typing import cast

import numpy as np

from redoxfs.arrays import Int64, Numbers

LEAST_SHARE = 1 / 20
"""The share that is exchanged where nothing is retained. What storage reads crosses a network as well there."""

RETAINED_SHARE = 1 / 5
"""The share that is exchanged where all is retained, and storage is idle. A cache with a global order would move
1 - 1 / nodes."""

AT_A_TIME = 8
"""The most samples that are taken together. A message has its own cost, whatever it brings."""

TIMES_A_LAP = 4
"""How many times a lap a class takes some, at least: fewer would come close together."""

NEEDED = 0.4
"""1 / sqrt(2 pi). A node is asked for n samples of a class, give or take sqrt(n (1 - 1 / nodes)): what it lacks, and
takes from peers at the end of the lap, is NEEDED times that on average."""

MASK = (1 << 64) - 1


def exchange_for(retained_share: float) -> float:
    """The share of samples to take from peers, by the share of its part that a node retains."""
    return max(LEAST_SHARE, RETAINED_SHARE * retained_share)


class Exchange:
    """An account for each class: it grows by a share with each turn, and falls with each sample that comes.

    Samples are taken several at a time, and the account begins each lap anew, between 0 and so many. A debt that went
    over to the next lap would make the samples of some nodes early or late in one lap after the other: a rank
    correlation of 0.03 with 10 turns of a class at a node. What need alone takes near the end of a lap is therefore
    expected, and not counted after the fact. All is computed from the seed, the lap and the turn, so another process
    continues with the same.

    Args:
        of_class: int[C], how many samples each class has.
        nodes: that share them.
        share: the share of samples to take from peers.
        room_samples: how many the remote memory has room for.
        seed: of what is drawn.
    """

    def __init__(self, of_class: Numbers, *, nodes: int, share: float, room_samples: float, seed: int) -> None:
        self.share = share
        self.seed = seed
        turns = np.maximum(1, of_class) / nodes
        needed = NEEDED * np.sqrt((1 - 1 / nodes) / turns)
        shares = np.maximum(0, share - needed)
        self._share_of = cast("memoryview[float]", shares.data)
        # What a class took is served next: at any time a share of the classes have half of what they took, on average.
        has_room_for = room_samples / np.maximum(1, len(of_class) * shares)
        at_a_time = np.clip(np.minimum(shares * turns / TIMES_A_LAP, has_room_for), 1, AT_A_TIME)
        self._at_a_time: memoryview[int] = at_a_time.astype(np.int64).data
        self._accounts = np.zeros(len(of_class))
        self._account = cast("memoryview[float]", self._accounts.data)
        # The lap of each account.
        self._laps = np.zeros(len(of_class), np.int32)
        self._lap: memoryview[int] = self._laps.data

    def count_turn(self, cls: int, lap: int) -> int:
        """Count a turn of a class in ``lap``; returns how many samples to take now, 0 or less for none."""
        if self._lap[cls] != lap:
            self._lap[cls], self._account[cls] = lap, mixed(self.seed, cls, lap) * self._at_a_time[cls]
        account = self._account[cls] = self._account[cls] + self._share_of[cls]
        return int(account) if account >= self._at_a_time[cls] else 0

    def count_taken(self, cls: int, samples: int) -> None:
        """Samples of a class came from a peer."""
        self._account[cls] -= samples

    def draw(self, cls: int, lap: int, turn: int) -> float:
        """A number from 0 to 1 for a turn of a class."""
        return mixed(self.seed, cls, lap << 32 | turn)

    def table(self) -> Int64:
        """int64[C, 2]: the bits of each account, and its lap. A copy."""
        return np.stack([self._accounts.view(np.int64), self._laps.astype(np.int64)], axis=1)

    def resume(self, table: Numbers, seed: int) -> None:
        """Continue where a `table` was taken, with its seed. Raises ValueError where an account is no number."""
        accounts = np.ascontiguousarray(table[:, 0]).view(np.float64)
        if not np.isfinite(accounts).all():
            raise ValueError("an account is no number")
        self._accounts[:] = accounts
        self._laps[:] = table[:, 1]
        self.seed = seed


def mixed(seed: int, cls: int, turn: int) -> float:
    """A number from 0 to 1, as good as random (the finalizer of splitmix64)."""
    bits = (seed * 0x9E3779B97F4A7C15 + cls * 0xD1342543DE82EF95 + turn * 0xA0761D6478BD642F) & MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & MASK
    return (bits ^ bits >> 31) / (MASK + 1)
