"""What it costs that an epoch is exact although a job leaves files out, looks at some first, or breaks off.

The pool of one node, with passes. Each job has two epochs before the steady state, and `MEASURED` in it. What it opens
before an epoch counts as part of it: a broken-off half, or a look at some files.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from redoxfs.protocol import PoolPolicy
from redoxfs.simulate.cluster import Counts, Reads
from redoxfs.simulate.policies import WARM_EPOCHS, Dataset, one_node

Int32 = npt.NDArray[np.int32]

MEASURED = 2

BATCH = 1_024
"""What ranks read in a step: four with 256 each."""

Job = Callable[[np.random.Generator, int], tuple[Int32, Int32]]
"""What is opened before an epoch, and the epoch, of so many files."""


def _shuffled(random: np.random.Generator, files: int, opens: int) -> Int32:
    return random.permutation(files)[:opens].astype(np.int32)


def _leaving_out(share: float) -> Job:
    return lambda random, files: (_NONE, _shuffled(random, files, round(files * (1 - share))))


_NONE = np.zeros(0, np.int32)

JOBS: dict[str, Job] = {
    "whole": lambda random, files: (_NONE, _shuffled(random, files, files)),
    "drop_last": lambda random, files: (_NONE, _shuffled(random, files, files - min(BATCH, files // 64) // 2)),
    "2 % left out": _leaving_out(0.02),
    "10 % left out": _leaving_out(0.1),
    "0.5 % first": lambda random, files: (_shuffled(random, files, files // 200), _shuffled(random, files, files)),
    "the same order": lambda _, files: (_NONE, _shuffled(np.random.default_rng(0), files, files)),
    "class by class": lambda _, files: (_NONE, np.arange(files, dtype=np.int32)),
    "broken off": lambda random, files: (_shuffled(random, files, files // 2), _shuffled(random, files, files)),
}
"""By name. `drop_last` leaves out half a batch; in a small dataset, less than a hundredth."""


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch of a job, with what it opens before.

    ``opens_share``       its opens, over the files
    ``loads_per_chunk``   chunks read, over the chunks
    ``reads_per_open``    samples read, over the opens
    ``single_reads``      reads of one sample alone, over the opens
    ``demand_load_share`` opens that waited for a load of their own, over the opens
    ``twice``             samples that came twice in an epoch, at most
    ``rank_correlation``  of an epoch and the next one, of the samples in both
    ``bytes_a_sample``    memory of the passes
    """

    job: str
    files: int
    chunks: int
    opens_share: float
    loads_per_chunk: float
    reads_per_open: float
    single_reads: float
    demand_load_share: float
    twice: int
    rank_correlation: float
    bytes_a_sample: float


def passes(dataset: Dataset, *, jobs: Iterable[str] = JOBS) -> Iterator[Row]:
    """A row for each job."""
    for job in jobs:
        yield _row(job, dataset)


def _row(job: str, dataset: Dataset) -> Row:
    policy, cells, _ = one_node("pool", dataset)
    assert isinstance(policy, PoolPolicy)
    policy.keep_passes(np.zeros(dataset.files, np.int32), 1)
    random, reader, epochs = np.random.default_rng([dataset.seed, 1]), _Reader(policy, cells), []
    for number in range(WARM_EPOCHS["pool"] + MEASURED):
        if number == WARM_EPOCHS["pool"]:
            reader.begin()
        before, epoch = JOBS[job](random, dataset.files)
        reader.read(before)
        epochs.append(reader.read(epoch))
    counts = reader.counts
    return Row(
        job,
        dataset.files,
        len(cells),
        counts.requests / MEASURED / dataset.files,
        counts.loads / MEASURED / len(cells),
        counts.samples_kept / counts.requests,
        reader.single_reads / counts.requests,
        counts.demand_loads / counts.requests,
        max(len(served) - len(np.unique(served)) for served in epochs),
        float(np.mean([_correlation(*pair, dataset.files) for pair in pairwise(epochs[-MEASURED - 1 :])])),
        policy.passes_bytes() / dataset.files,
    )


class _Reader:
    """Opens files of a pool, and counts."""

    def __init__(self, policy: PoolPolicy, cells: Int32) -> None:
        self._policy, self._reads = policy, Reads(cells)
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.counts, self.single_reads = Counts(), 0

    def read(self, order: Int32) -> Int32:
        """The samples that come."""
        request, counts = self._policy.request, self.counts
        counts.requests += len(order)
        served = np.empty(len(order), np.int32)
        answers: memoryview[int] = served.data
        for at, path in enumerate(order.data):
            turn = request(path)
            answers[at] = turn.sample
            if turn.loads:
                counts.demand_loads += turn.is_demanded
                self.single_reads += sum(len(load.samples) == 1 for load in turn.loads)
                self._reads.count(turn.loads, counts)
        return served


def _correlation(one: Int32, other: Int32, files: int) -> float:
    """Spearman's, of the samples that both epochs have."""
    places = np.full((2, files), -1)
    for row, served in zip(places, (one, other), strict=True):
        row[served] = np.arange(len(served))
    both = places[:, (places >= 0).all(axis=0)]
    return float(np.corrcoef(both)[0, 1])
