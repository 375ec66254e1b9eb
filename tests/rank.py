"""One rank of a data-parallel job, as an unmodified training script has it; run by t5_nodes as a process of its own.

    rank.py MOUNTPOINT RANK RANKS EPOCHS MEET OUT

A DataLoader with a DistributedSampler over the ImageFolder below MOUNTPOINT/train. After each epoch all ranks wait for
each other at MEET, a file of torch.distributed, or at none of them does if it is "-". OUT gets one JSON line for each
epoch: the pairs of the path that was asked for and the path that the image served was made for.
"""

import json
import os
import sys
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


def main() -> None:
    mountpoint, rank, ranks, epochs, meet, out = sys.argv[1:]
    if meet != "-":
        torch.distributed.init_process_group("gloo", f"file://{meet}", rank=int(rank), world_size=int(ranks))
    data = Images(Path(mountpoint) / "train")
    sampler: DistributedSampler[tuple[str, str]] = DistributedSampler(data, int(ranks), int(rank), seed=7)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)
    with open(out, "w", encoding="utf-8") as told:
        for epoch in range(int(epochs)):
            sampler.set_epoch(epoch)
            pairs = [pair for asked, served in loader for pair in zip(asked, served, strict=True)]
            told.write(json.dumps(pairs) + "\n")
            if meet != "-":
                torch.distributed.barrier()
    if meet != "-":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
