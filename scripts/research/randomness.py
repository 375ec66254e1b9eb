"""What redirection costs in randomness: the paper's bound (§4), and measured shuffle quality.

The bound counts orders. With redirection at least (F / M)! / ((F / KM)!)^K orders of one VC's samples can come out,
where a plain shuffle has (F / M)!. The paper gives 2.16e88 as its example of that bound. That number is the one of
Theorem 2, ((F / KM)!)^K, the most orders that are mapped to one. The bound itself is 3.98e418.

Neither shows how well a policy shuffles. So quality is measured (`quality`) and compared with a true permutation and
with WebDataset's method: shards in random order, read one after the other through a buffer of as many samples as the
policy may hold, from which each sample is drawn at random.
"""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from shuffle_quality import quality

from redoxfs.simulate.cluster import OneNode
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import WARM_EPOCHS, Dataset, one_node

Int32 = npt.NDArray[np.int32]

SHARD_SAMPLES = 1024
"""About 100 MB of images a shard, as WebDataset recommends."""

MEASURED_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class Bound:
    """§4 for one VC, as mantissa and exponent of ten: the numbers do not fit in a float.

    ``most_mapped_to_one``   Theorem 2: ((F / KM)!)^K
    ``randomness_at_least``  (F / M)! divided by it
    """

    files: int
    chunk_size: int
    virtual_chunks: int
    most_mapped_to_one: str
    randomness_at_least: str


@dataclass(frozen=True, slots=True)
class Row:
    """Shuffle quality of a policy. ``resident``: the share of samples that memory holds, None where it has none."""

    policy: str
    chunk_size: int
    resident: float | None
    displacement: float
    rank_correlation: float
    mate_pairs: float
    mate_pairs_at_end: float
    mate_pairs_if_random: float


def bound(files: int = 1_280_000, chunk_size: int = 64, virtual_chunks: int = 5_000) -> Bound:
    """The bound; by default the paper's example. ``files`` must fill all chunks of all VCs equally."""
    of_vc, rest = divmod(files, virtual_chunks)
    chunks, odd = divmod(of_vc, chunk_size)
    if rest or odd or not chunks:
        raise ValueError(f"{files} samples do not fill {virtual_chunks} virtual chunks of {chunk_size} slots equally")
    mapped = math.factorial(chunks) ** chunk_size
    return Bound(
        files, chunk_size, virtual_chunks, _in_powers_of_ten(mapped), _in_powers_of_ten(math.factorial(of_vc) // mapped)
    )


def randomness(
    dataset: Dataset, *, policies: Iterable[str], chunk_sizes: Iterable[int], residents: Iterable[float]
) -> Iterator[Row]:
    """A row for each policy, chunk size and memory. The permutation and the buffer come first for each chunk size."""
    chunk_sizes, residents, policies = list(chunk_sizes), list(residents), list(policies)
    for chunk_size in chunk_sizes:
        chunk_of = np.arange(dataset.files, dtype=np.int32) // chunk_size
        measured = range(MEASURED_EPOCHS)
        yield _row("permutation", chunk_size, None, [_order(dataset, epoch) for epoch in measured], chunk_of)
        for resident in residents:
            held = max(1, round(resident * dataset.files))
            epochs = [shuffle_buffer(dataset.files, held, seed=dataset.seed + epoch) for epoch in measured]
            yield _row("shuffle buffer", chunk_size, resident, epochs, chunk_of)
        for policy in policies:
            for resident in residents:
                yield _of_policy(policy, dataset, chunk_size, resident)


def shuffle_buffer(samples: int, held: int, *, seed: int) -> Int32:
    """int32[S]: an epoch of WebDataset with a buffer of ``held`` samples."""
    own = random.Random(seed)
    shards = list(range(0, samples, SHARD_SAMPLES))
    own.shuffle(shards)
    stream = (sample for first in shards for sample in range(first, min(first + SHARD_SAMPLES, samples)))
    buffer: list[int] = []
    served = np.empty(samples, np.int32)
    at = 0
    for sample in stream:
        if len(buffer) < held:
            buffer.append(sample)
            continue
        drawn = int(own.random() * held)
        served[at] = buffer[drawn]
        buffer[drawn] = sample
        at += 1
    own.shuffle(buffer)
    served[at:] = buffer
    return served


def _of_policy(name: str, dataset: Dataset, chunk_size: int, resident: float) -> Row:
    sized = Dataset(dataset.files, dataset.classes, dataset.skew, chunk_size, resident, dataset.seed)
    policy, cells, _ = one_node(name, sized)
    node = OneNode(policy, cells)
    chunk_of = np.empty(dataset.files, np.int32)
    exists = cells >= 0
    chunk_of[cells[exists]] = np.nonzero(exists)[0]
    epochs = [node.epoch(_order(dataset, epoch))[1] for epoch in range(WARM_EPOCHS[name] + MEASURED_EPOCHS)]
    return _row(name, chunk_size, resident, epochs[-MEASURED_EPOCHS:], chunk_of)


def _order(dataset: Dataset, epoch: int) -> Int32:
    return orders(dataset.files, 1, seed=dataset.seed, epoch=epoch)[0]


def _row(policy: str, chunk_size: int, resident: float | None, epochs: list[Int32], chunk_of: Int32) -> Row:
    found = quality(epochs, chunk_of)
    return Row(
        policy,
        chunk_size,
        resident,
        found.displacement,
        found.rank_correlation,
        found.mate_pairs,
        found.mate_pairs_at_end,
        found.mate_pairs_if_random,
    )


def _in_powers_of_ten(number: int) -> str:
    """Three digits and the exponent, as in "2.16e88"."""
    digits = str(number)
    rounded = round(int(digits[:6]) / 10 ** (min(len(digits), 6) - 1), 2)
    return f"{rounded:.2f}e{len(digits) - 1}"
