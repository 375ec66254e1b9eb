"""What loaders get from a mount: each loader's order of opens, answered by the code that serves, without a mount.

    python scripts/bench/loader_opens.py [LOADER...]

Prints a row for each loader, as docs/loaders.md has it. The tree has `FILES` files of `CLASSES` classes in one split;
memory holds a fifth. PyTorch's loaders and samplers run as they are, if PyTorch is installed. The others are not: their
rows replay the order of opens that their documentation or source gives.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from redoxfs.protocol import Binding, PoolPolicy

FILES, CLASSES, EPOCHS = 480, 4, 6
BATCH = 64
VALIDATION = 96
"""Files of the set that a script keeps for validation."""

FEW = 64
CHUNK = 8
FILE_BYTES = 1000


@dataclass
class Mount:
    """Answers opens as a mount with one node and the pool does; keeps what was asked and served, by epoch.

    ``uses``     for each epoch: the path, the sample and the purpose of each open
    ``easiest``  the files that a curriculum begins with
    """

    seed: int = 0
    uses: list[list[tuple[int, int, str]]] = field(default_factory=lambda: [[]])
    easiest: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.class_of = (np.arange(FILES) * CLASSES // FILES).astype(np.int32)
        cells = np.random.default_rng(self.seed).permutation(FILES).astype(np.int32).reshape(-1, CHUNK)
        sizes = np.full(FILES, FILE_BYTES, np.int64)
        policy = PoolPolicy(cells, self.class_of, sizes, capacity_bytes=FILES * FILE_BYTES // 5, seed=self.seed)
        policy.keep_passes(np.zeros(FILES, np.int32), 1)
        self._binding = Binding(policy, np.ones(FILES, np.int64))

    def open(self, path: int, use: str = "train", thread: int = 1) -> int:
        """The sample that an open returns; the file is closed again."""
        sample = self._binding.open(path, 0, thread).sample
        self._binding.close(path)
        self.uses[-1].append((path, sample, use))
        return sample

    def read(self, paths: Iterable[int], use: str = "train") -> None:
        for path in paths:
            self.open(path, use)

    def of_easiest(self) -> int:
        """Of the samples that came for the easiest files, how many are theirs."""
        return len(self.easiest & set(chain.from_iterable(self.served("easiest"))))

    def end_epoch(self) -> None:
        self.uses.append([])

    def served(self, *uses: str) -> list[list[int]]:
        """By epoch, the samples that opens for these purposes returned."""
        return [[sample for _, sample, use in epoch if not uses or use in uses] for epoch in self.uses if epoch]

    def asked(self) -> list[list[int]]:
        """By epoch, the paths of all opens."""
        return [[path for path, _, _ in epoch] for epoch in self.uses if epoch]


def most_repeated(mount: Mount, *uses: str) -> int:
    """Samples that came twice or more in the epoch with most of them."""
    return max(sum(count > 1 for count in Counter(epoch).values()) for epoch in mount.served(*uses))


def most_missing(mount: Mount, *uses: str) -> int:
    """Samples that did not come in the epoch that lacks most, from the second on."""
    return max(FILES - len(set(epoch)) for epoch in mount.served(*uses)[1:])


def leaked(mount: Mount, epochs: int = EPOCHS) -> int:
    """Samples of the last validation that were trained on in the last ``epochs``, by one model."""
    return len(set(mount.served("validation")[-1]) & set(chain.from_iterable(mount.served("train")[-epochs:])))


def shuffled(draw: random.Random, paths: Iterable[int]) -> list[int]:
    order = list(paths)
    draw.shuffle(order)
    return order


# PyTorch, as it is


class Files:
    """A dataset in the style of PyTorch: an item is what its open returned."""

    def __init__(self, mount: Mount, use: str = "train") -> None:
        self.mount, self.use = mount, use

    def __len__(self) -> int:
        return FILES

    def __getitem__(self, path: int) -> int:
        return self.mount.open(path, self.use)


def torch_loader(mount: Mount, **options: object) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(Files(mount), batch_size=BATCH, **options)
    for _ in range(EPOCHS):
        list(loader)
        mount.end_epoch()


def whole_epochs(mount: Mount) -> None:
    torch_loader(mount, shuffle=True)


def drop_last(mount: Mount) -> None:
    torch_loader(mount, shuffle=True, drop_last=True)


def weighted(mount: Mount) -> None:
    """Half of the files of each class weigh nine times as much as the others."""
    from torch.utils.data import WeightedRandomSampler

    weights = [9.0 if path % 2 else 1.0 for path in range(FILES)]
    torch_loader(mount, sampler=WeightedRandomSampler(weights, FILES))


def distributed(mount: Mount, ranks: int = 7) -> None:
    """The ranks in step, and each in one thread: 480 files are 69 for each of 7 ranks, and 3 come twice."""
    from torch.utils.data import DistributedSampler

    samplers = [DistributedSampler(range(FILES), ranks, rank) for rank in range(ranks)]
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for step in zip(*samplers, strict=True):
            for rank, path in enumerate(step):
                mount.open(path, thread=1 + rank)
        mount.end_epoch()


def torch_split(mount: Mount) -> None:
    """`random_split`; training is shuffled, validation is in order."""
    from torch.utils.data import DataLoader, random_split

    ours = [*random_split(range(FILES), [FILES - VALIDATION, VALIDATION])]
    training, validation = (list(part) for part in ours)
    for _ in range(EPOCHS):
        for batch in DataLoader(training, BATCH, shuffle=True):
            mount.read(batch.tolist())
        for batch in DataLoader(validation, BATCH):
            mount.read(batch.tolist(), "validation")
        mount.end_epoch()


# Others, in their documented order


def split(mount: Mount, training: Sequence[int], validation: Sequence[int], epochs: int = EPOCHS) -> None:
    draw = random.Random(mount.seed)
    for _ in range(epochs):
        mount.read(shuffled(draw, training))
        mount.read(validation, "validation")
        mount.end_epoch()


def validation_split(mount: Mount) -> None:
    """Keras: the last fifth of the files, which are in a fixed random order."""
    order = shuffled(random.Random(mount.seed + 1), range(FILES))
    split(mount, order[:-VALIDATION], order[-VALIDATION:])


def train_test_split(mount: Mount) -> None:
    """scikit-learn: a random fifth."""
    order = shuffled(random.Random(mount.seed + 2), range(FILES))
    split(mount, order[VALIDATION:], order[:VALIDATION])


def folds(mount: Mount, each: int = 3) -> None:
    """scikit-learn's KFold: five folds, and a model for each, which is trained for some epochs."""
    order = shuffled(random.Random(mount.seed + 3), range(FILES))
    for fold in range(5):
        validation = order[fold::5]
        split(mount, [path for path in order if path not in set(validation)], validation, each)


def rotating_folds(mount: Mount) -> None:
    """The same, with one epoch for each model."""
    folds(mount, 1)


def few_shot(mount: Mount) -> None:
    """16 files of each class, again and again."""
    draw = random.Random(mount.seed)
    chosen = [path for label in range(CLASSES) for path in draw.sample(list(of_class(label)), FEW // CLASSES)]
    for _ in range(EPOCHS):
        mount.read(shuffled(draw, chosen))
        mount.end_epoch()


def of_class(label: int) -> range:
    return range(label * FILES // CLASSES, (label + 1) * FILES // CLASSES)


def sanity_check(mount: Mount) -> None:
    """Lightning: two batches of validation before the first epoch. Here the whole tree is the validation set."""
    mount.read(range(2 * BATCH))
    mount.end_epoch()
    for _ in range(EPOCHS):
        mount.read(range(FILES))
        mount.end_epoch()


def verified_first(mount: Mount) -> None:
    """Ultralytics, classification: a look at five images, and all are opened to be verified. Then whole epochs."""
    draw = random.Random(mount.seed)
    mount.read(draw.sample(range(FILES), 5), "look")
    mount.read(range(FILES), "verification")
    mount.end_epoch()
    for _ in range(EPOCHS):
        mount.read(shuffled(draw, range(FILES)))
        mount.end_epoch()


def curriculum(mount: Mount) -> None:
    """The easiest fifth of the files in the first epoch, as the script has it, and a fifth more in each later one."""
    draw = random.Random(mount.seed)
    by_difficulty = shuffled(draw, range(FILES))
    for epoch in range(1, EPOCHS):
        mount.read(shuffled(draw, by_difficulty[: FILES * epoch // 5]), "easiest" if epoch == 1 else "train")
        mount.end_epoch()
    mount.easiest = set(by_difficulty[: FILES // 5])


def dispatched(mount: Mount, workers: int = 4, prefetch: int = 2, batch: int = 8) -> None:
    """accelerate, dispatch_batches=True: rank 0 reads all, and sends it. The other of two ranks makes an iterator too,
    whose workers open what they prefetch, and it throws that away."""
    draw = random.Random(mount.seed)
    for _ in range(EPOCHS):
        order = shuffled(draw, range(FILES))
        ahead = order[: workers * prefetch * batch]
        for path, thrown in zip(order, ahead, strict=False):
            mount.open(path, thread=1)
            mount.open(thrown, "thrown away", thread=2)
        mount.read(order[len(ahead) :])
        mount.end_epoch()


def repeated(mount: Mount) -> None:
    """Repeated augmentation, as in DeiT: each index of an epoch three times, at three ranks."""
    draw = random.Random(mount.seed)
    for _ in range(EPOCHS):
        for path in shuffled(draw, range(FILES))[: FILES // 3]:
            for rank in range(3):
                mount.open(path, thread=1 + rank)
        mount.end_epoch()


def cached(mount: Mount) -> None:
    """TensorFlow's tutorial: files in one random order; a look at a batch, with some that are prefetched; then
    `cache()`, which reads once."""
    order = shuffled(random.Random(mount.seed), range(FILES))
    mount.read(order[: 3 * BATCH // 2], "look")
    mount.end_epoch()
    mount.read(order)


def manifest(mount: Mount) -> None:
    """Lhotse, NeMo and others: durations or sizes are read once and kept by path. Then epochs use them."""
    draw = random.Random(mount.seed)
    mount.read(range(FILES), "manifest")
    mount.end_epoch()
    for _ in range(EPOCHS):
        mount.read(shuffled(draw, range(FILES)))
        mount.end_epoch()


def mapped(mount: Mount) -> None:
    """Hugging Face: `map` computes a column from each image and keeps the image, whose file is opened again."""
    draw = random.Random(mount.seed)
    mount.read(range(FILES), "column")
    mount.end_epoch()
    mount.read(shuffled(draw, range(FILES)))


def losses(mount: Mount) -> None:
    """A loss for each index, as hard mining keeps it; the hardest tenth is read again after each epoch."""
    draw = random.Random(mount.seed)
    for _ in range(EPOCHS):
        order = shuffled(draw, range(FILES))
        mount.read(order)
        mount.read(draw.sample(order, FILES // 10), "hardest")
        mount.end_epoch()


def two_views(mount: Mount) -> None:
    """Contrastive: a dataset opens a file twice in a row, for two views."""
    draw = random.Random(mount.seed)
    for _ in range(EPOCHS):
        for path in shuffled(draw, range(FILES)):
            mount.read([path, path])
        mount.end_epoch()


def pairs(mount: Mount) -> None:
    """Contrastive: each file beside another of its class."""
    draw = random.Random(mount.seed)
    for _ in range(EPOCHS):
        for path in shuffled(draw, range(FILES)):
            mount.read([path, draw.choice(of_class(path * CLASSES // FILES))])
        mount.end_epoch()


# Figures


def told_by_path(mount: Mount) -> int:
    """Paths that got another sample in the last epoch than in the first."""
    first, last = ({path: sample for path, sample, _ in epoch} for epoch in (mount.uses[0], used(mount)[-1]))
    return sum(first[path] != sample for path, sample in last.items())


def used(mount: Mount) -> list[list[tuple[int, int, str]]]:
    return [epoch for epoch in mount.uses if epoch]


def runs_of_one_sample(mount: Mount, length: int) -> int:
    """Of the opens of one path in a row in the last epoch: how many were of one sample."""
    samples = [sample for _, sample, _ in used(mount)[-1]]
    return sum(len(set(samples[at : at + length])) == 1 for at in range(0, len(samples), length))


def different(mount: Mount) -> int:
    """Samples that came at all."""
    return len(set(chain.from_iterable(mount.served())))


def fewest(mount: Mount) -> int:
    """Different samples in the epoch with fewest."""
    return min(len(set(epoch)) for epoch in mount.served())


def share_of_heavy(mount: Mount) -> float:
    """The share of files with odd numbers among all that came."""
    served = list(chain.from_iterable(mount.served()))
    return sum(sample % 2 for sample in served) / len(served)


Figures = Callable[[Mount], dict[str, float]]
LEAK: Figures = lambda mount: {"validation samples trained on": leaked(mount)}  # noqa: E731
ONCE: Figures = lambda mount: {"twice": most_repeated(mount, "train"), "missing": most_missing(mount, "train")}  # noqa: E731

TORCH: dict[str, tuple[Callable[[Mount], None], Figures]] = {
    "whole epochs": (whole_epochs, ONCE),
    "drop_last": (drop_last, ONCE),
    "distributed": (distributed, ONCE),
    "weighted": (
        weighted,
        lambda mount: {"share of heavy files": share_of_heavy(mount), "different in an epoch": fewest(mount)},
    ),
    "random_split": (torch_split, LEAK),
}
DOCUMENTED: dict[str, tuple[Callable[[Mount], None], Figures]] = {
    "validation_split": (validation_split, LEAK),
    "train_test_split": (train_test_split, LEAK),
    "folds": (folds, lambda mount: {"validation samples trained on": leaked(mount, 3)}),
    "rotating folds": (rotating_folds, lambda mount: {"validation samples trained on": leaked(mount, 1)}),
    "few-shot": (few_shot, lambda mount: {"different samples": different(mount)}),
    "sanity check": (sanity_check, ONCE),
    "verified first": (verified_first, ONCE),
    "curriculum": (curriculum, lambda mount: {"of 96 are easy": mount.of_easiest()}),
    "dispatch_batches": (dispatched, ONCE),
    "repeated augmentation": (
        repeated,
        lambda mount: {"triples of one sample": runs_of_one_sample(mount, 3), "twice": most_repeated(mount)},
    ),
    "cache": (cached, lambda mount: {"missing": FILES - len(set(mount.served()[-1])), "twice": most_repeated(mount)}),
    "manifest": (manifest, lambda mount: {"of another sample": told_by_path(mount)}),
    "map": (mapped, lambda mount: {"of another sample": told_by_path(mount)}),
    "losses": (losses, lambda mount: {"of another sample": told_by_path(mount), **ONCE(mount)}),
    "two views": (two_views, lambda mount: {"pairs of one sample": runs_of_one_sample(mount, 2)}),
    "pairs": (pairs, lambda mount: {"different in an epoch": fewest(mount)}),
}


def figures(loader: str, seed: int = 0) -> dict[str, float]:
    run, measure = {**TORCH, **DOCUMENTED}[loader]
    return measure(played(run, seed))


def played(run: Callable[[Mount], None], seed: int = 0) -> Mount:
    if "torch" in sys.modules or run in {each for each, _ in TORCH.values()}:
        import torch

        torch.manual_seed(seed)
    mount = Mount(seed)
    run(mount)
    return mount


def main(loaders: Sequence[str]) -> Iterator[str]:
    for loader in loaders or [*TORCH, *DOCUMENTED]:
        told = [figures(loader, seed) for seed in range(5)]
        ranges = (
            f"{name}: {min(each[name] for each in told):.4g} to {max(each[name] for each in told):.4g}"
            for name in told[0]
        )
        yield f"{loader:22} {'; '.join(ranges)}"


if __name__ == "__main__":
    for line in main(sys.argv[1:]):
        print(line)
