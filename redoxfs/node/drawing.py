"""Draws: turns for a sampler, which takes the order from this node and then opens each file as itself.

A mount with `--classes sampler` redirects nothing. A training process lists the files of its dataset once, asks which
sample each belongs to (`Drawing.samples`), and then asks for blocks of samples (`Drawing.draw`). A draw is a turn
without an open: the policy chooses a sample as it does for an open, and the bytes move to the path of that same sample,
where they wait for its open as the bytes of a closed file do. So the open of a drawn file is one that joins an answer.
What has to leave memory before its open is read again.

A block has a number, which its sampler counts. A sampler that got no answer, since the daemon died, asks again with the
same number and gets the same block. The blocks outlive a daemon: each draw has an entry in the journal, and a
checkpoint has the last block of each sampler.

Where a dataset has samples of several classes, such as two splits, those in the lowest lap are drawn from, each as
often as it has samples left. So all of them end their laps together.

Ranks that share an epoch say in which lap the last one was. The first of them that comes again ends this lap, if a job
broke off or left samples out, and the others find another lap. So they need no agreement, and no daemon has to remember
who came. Rejected: to begin a lap for each epoch that is told. A daemon that dies between two ranks begins two.

Called from the node's task alone.
"""

import base64
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.arrays import distinct
from redoxfs.dataset import Catalog

if TYPE_CHECKING:
    from redoxfs.node.node import Node

BLOCK = 256
"""The most samples of a draw. Each takes some 20 µs, during which no request is served. At 5,000 samples a second a
block lasts 50 ms, and under load the next one takes less to come."""

SHARE = 1 / 8
"""Of what the memory of paths holds: the most samples of a draw. A sampler has two blocks, and workers are ahead."""

FILES = 50_000
"""The most files to ask about at a time. Each request holds up the opens for some milliseconds."""

SAMPLERS = 256
"""How many samplers have a block that they may ask for again: one for each rank."""


class Blocks:
    """The last block of each sampler, by its token: the number, and the samples."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()

    def find(self, token: int, number: int) -> list[int] | None:
        """The block, if it is the last one of its sampler."""
        last = self._last.get(token)
        return last[1] if last is not None and last[0] == number else None

    def add(self, token: int, number: int, sample: int) -> None:
        """``sample`` was drawn for a block, the last of its sampler."""
        last = self._last.get(token)
        if last is not None and last[0] == number:
            last[1].append(sample)
            return
        self._last[token] = (number, [sample])
        self._last.move_to_end(token)
        if len(self._last) > SAMPLERS:
            self._last.popitem(last=False)

    def rows(self) -> Iterable[tuple[int, int, int]]:
        """For a checkpoint: token, number, sample."""
        return ((token, number, each) for token, (number, block) in self._last.items() for each in block)


class Drawing:
    """Verbs of the control socket, for samplers.

    ``identity`` is the dataset's. A sampler that outlives its mount must not draw by the numbers of other files.
    """

    def __init__(self, node: "Node", catalog: Catalog, identity: str, *, seed: int | None = None) -> None:
        self._node = node
        self._catalog = catalog
        classes = len(catalog.class_names)
        # The samples are in the order of their classes.
        self._first = np.searchsorted(catalog.class_of, np.arange(classes))
        self._size = np.bincount(catalog.class_of, minlength=classes)
        self._left = self._size.copy()
        self._lap = np.ones(classes, np.int64)
        self._given = -1
        self._identity = identity
        self._seed = seed
        self._random: np.random.Generator | None = None

    async def samples(self, data: bytes) -> Mapping[str, Any]:
        """The sample, and the class of it, of each of the inodes ``data``, int64[n]; -1 for a file of no sample.

        Raises ValueError.
        """
        self._check()
        if len(data) % 8:
            raise ValueError("expected numbers of 64 bits")
        if len(data) > 8 * FILES:
            raise ValueError(f"expected the numbers of at most {FILES:,} files")
        entries = np.frombuffer(data, "<i8") - 1
        known = (entries >= 0) & (entries < len(self._catalog.sample_of))
        samples = np.full(len(entries), -1, np.int32)
        samples[known] = self._catalog.sample_of[entries[known]]
        classes = distinct(self._catalog.class_of[samples[samples >= 0]])
        return {
            "samples": base64.b64encode(samples.astype("<i4").tobytes()).decode(),
            "classes": classes.tolist(),
            "of": len(self._catalog.class_of),
            "identity": self._identity,
        }

    async def draw(self, data: bytes) -> Mapping[str, Any]:
        """The next samples of the order.

        They are at least one, and may be fewer than asked for. ``data`` is JSON of a token, a number, how many, the
        classes, the identity that `samples` returned, and the lap to end or 0. ``lap`` is that of the last sample.
        Raises ValueError.
        """
        self._check()
        token, number, count, classes, identity, ended = _parsed(data)
        if identity != self._identity:
            raise ValueError("the files of the mount have changed; make the sampler anew")
        if len(classes) > len(self._size) or max(classes) >= len(self._size):
            raise ValueError(_EXPECTED)
        node = self._node
        if node.is_frozen:
            # The next process answers.
            await trio.sleep_forever()
        block = node.blocks.find(token, number)
        if block is None:
            if ended:
                self._end_lap(np.array(classes), ended)
            block = [self._draw(token, number, classes) for _ in range(min(count, self._most()))]
            node.checkpoint_if_due()
        lap = node.plan.policy.lap_of(block[-1])
        return {"samples": base64.b64encode(np.array(block, "<i4").tobytes()).decode(), "lap": lap}

    def _end_lap(self, classes: npt.NDArray[np.integer], lap: int) -> None:
        """End a lap of ``classes``, unless another one has begun: what is left of it has no turn."""
        if self._given != self._node.given:
            self._count()
        if self._lap[classes].min() != lap:
            return
        classes = classes[self._lap[classes] == lap]
        self._node.skip_lap(classes.tolist(), lap)
        self._left[classes] = self._size[classes]
        self._lap[classes] += 1

    def _most(self) -> int:
        """The most samples of a block, so that what is drawn ahead stays in memory."""
        catalog, plan = self._catalog, self._node.plan
        held = plan.claims_bytes * len(catalog.class_of) / max(1, int(catalog.sample_bytes.sum()))
        return max(1, min(BLOCK, int(held * SHARE)))

    def _draw(self, token: int, number: int, classes: Sequence[int]) -> int:
        cls = classes[0] if len(classes) == 1 else self._choose(np.array(classes))
        sample = self._node.draw(int(self._first[cls]), token, number)
        self._given += 1
        self._left[cls] -= 1
        if not self._left[cls]:
            self._left[cls] = self._size[cls]
            self._lap[cls] += 1
        return sample

    def _choose(self, classes: npt.NDArray[np.integer]) -> int:
        """One of the classes in the lowest lap."""
        if self._given != self._node.given:
            self._count()
        if self._random is None:
            # Not by the numbers that a former process has drawn by.
            self._random = np.random.default_rng(None if self._seed is None else [self._seed, self._given])
        lowest = classes[self._lap[classes] == self._lap[classes].min()]
        left = self._left[lowest].cumsum()
        return int(lowest[np.searchsorted(left, self._random.integers(left[-1]), side="right")])

    def _count(self) -> None:
        """Count what is left of the laps, after turns that were not drawn here."""
        turns = self._node.turns()
        class_of = self._catalog.class_of
        had = turns.flags(len(turns.laps), len(class_of))
        self._left = self._size - np.bincount(class_of[had], minlength=len(self._size))
        self._lap = turns.laps[: len(self._size)].astype(np.int64)
        is_over = self._left == 0
        self._left[is_over] = self._size[is_over]
        self._lap[is_over] += 1
        self._given = turns.given

    def _check(self) -> None:
        if not self._catalog.is_for_sampler:
            raise ValueError("this mount serves no sampler; mount with --classes sampler")


_EXPECTED = "expected a token, a number, a count, the numbers of classes, the identity of the files, and a lap"


def _parsed(data: bytes) -> tuple[int, int, int, list[int], str, int]:
    """Raises ValueError."""
    try:
        token, number, count, classes, identity, *more = json.loads(data)
        # Samplers of before this version do not say a lap.
        (lap,) = more or (0,)
        if not all(type(each) is int for each in (token, number, count, lap, *classes)):
            raise ValueError
        if not (0 <= token < 1 << 63 and 0 <= number < 1 << 62 and count > 0 and classes and min(classes) >= 0):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise ValueError(_EXPECTED) from None
    return token, number, count, classes, identity, lap
