"""A pool policy that is asked for whole epochs, with counts of what it reads."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from redoxfs.protocol import PoolPolicy, Served

SIZE_BYTES = 10


class Pool:
    """A policy over classes of samples of one size, in chunks that mix them at random; counts its loads and waits."""

    def __init__(
        self, of_class: list[int], chunk_size: int, *, resident: float, seed: int = 0, retained: int | None = None
    ) -> None:
        self.class_of = np.repeat(np.arange(len(of_class)), of_class).astype(np.int32)
        self.samples = len(self.class_of)
        cells = np.full(-(-self.samples // chunk_size) * chunk_size, -1, np.int32)
        cells[: self.samples] = np.random.default_rng(seed + 1).permutation(self.samples)
        self.cells = cells.reshape(-1, chunk_size)
        self.capacity_bytes = int(self.samples * resident) * SIZE_BYTES
        self.policy = policy_of(self.cells, self.class_of, self.capacity_bytes, seed, retained)
        self.loads: Counter[int] = Counter()
        self.read: Counter[int] = Counter()
        self.kept: Counter[int] = Counter()
        self.demanded = 0

    def ask(self, sample: int) -> Served:
        served = self.policy.request(sample)
        assert self.class_of[served.sample] == self.class_of[sample]
        self.loads.update(load.chunk for load in served.loads)
        self.read.update(s for load in served.loads for s in load.samples)
        self.kept[served.sample] += served.kept
        self.demanded += served.is_demanded
        return served

    def ask_all(self, order: Iterable[int]) -> list[int]:
        return [self.ask(sample).sample for sample in order]

    def epochs(self, count: int, seed: int = 5) -> Iterator[list[int]]:
        random = np.random.default_rng(seed)
        for _ in range(count):
            yield self.ask_all(random.permutation(self.samples).tolist())


def policy_of(
    cells: np.ndarray, class_of: np.ndarray, capacity_bytes: int, seed: int = 0, retained: int | None = None
) -> PoolPolicy:
    """``retained``: so many samples; None: by the rule."""
    sizes = np.full(len(class_of), SIZE_BYTES, np.int64)
    retained_bytes = None if retained is None else retained * SIZE_BYTES
    return PoolPolicy(cells, class_of, sizes, capacity_bytes=capacity_bytes, retained_bytes=retained_bytes, seed=seed)
