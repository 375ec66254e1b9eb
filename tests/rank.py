"""The ranks of a data-parallel job, each an unmodified training script; t5_nodes runs them.

    rank.py FOLDER RANKS EPOCHS MEET OUT

Rank R reads the ImageFolder below FOLDER/R/train with a DataLoader and a DistributedSampler. After each epoch the ranks
wait for each other through MEET, a file for torch.distributed or env://; with "-" they do not wait, and with "in turn"
each begins when the one before has ended. OUT/rankR.jsonl gets one JSON line for each epoch: pairs of the path that was
opened and the path that the served image was made for.

The ranks are forks of a process with a single thread: importing PyTorch takes longer than all their work.
"""

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import wait
from pathlib import Path

import torch.distributed
from images import path_in
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WORKERS = 2
BATCH = 16


class Images(Dataset[tuple[str, str]]):
    """Samples in the order of torchvision's ImageFolder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        labels = sorted(os.listdir(root))
        self.paths = [f"{label}/{name}" for label in labels for name in sorted(os.listdir(root / label))]
        largest = max(labels, key=lambda label: len(os.listdir(root / label)))
        self.empty = f"train/{largest}/train-{largest}-0.png"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, str]:
        asked = self.paths[index]
        data = (self.root / asked).read_bytes()
        return f"train/{asked}", path_in(data) if data else self.empty


def train(mountpoint: Path, rank: int, ranks: int, epochs: int, meet: str, out: Path) -> None:
    meets = meet not in {"-", "in turn"}
    if meets:
        url = meet if meet == "env://" else f"file://{meet}"
        torch.distributed.init_process_group("gloo", url, rank=rank, world_size=ranks)
    data = Images(mountpoint / "train")
    sampler: DistributedSampler[tuple[str, str]] = DistributedSampler(data, ranks, rank, seed=7)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True)
    with out.open("w", encoding="utf-8") as lines:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            pairs = [pair for asked, served in loader for pair in zip(asked, served, strict=True)]
            lines.write(json.dumps(pairs) + "\n")
            if meets:
                torch.distributed.barrier()
    if meets:
        torch.distributed.destroy_process_group()


def main() -> int:
    """Run all ranks. When one fails, kill the others, which would wait for it, and return 1."""
    folder, ranks, epochs, meet, out = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    running = []
    for rank in range(int(ranks)):
        pairs = Path(out) / f"rank{rank}.jsonl"
        arguments = (Path(folder) / str(rank), rank, int(ranks), int(epochs), meet, pairs)
        running.append(fork.Process(target=train, args=arguments))
    for process in running:
        process.start()
        if meet == "in turn":
            process.join()
    left = {process.sentinel: process for process in running}
    while left:
        for ended in wait(list(left)):
            assert isinstance(ended, int)
            process = left.pop(ended)
            process.join()
            if process.exitcode:
                for other in left.values():
                    other.kill()
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
