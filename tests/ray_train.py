"""A training loop for Ray Train, which t7_ray runs on a mount: every worker writes down what it was given.

`train_loop` reads an ImageFolder as any script does. For each epoch, OUT/rankR.jsonl gets a line with pairs of the path
that was opened and the path that the served image was made for.
"""

import json
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from rank import BATCH, Images
from torch.utils.data import DataLoader


def train_loop(config: dict[str, Any]) -> None:
    data = Images(Path(config["data"]) / "train")
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=1))
    rank = ray.train.get_context().get_world_rank()
    with (Path(config["out"]) / f"rank{rank}.jsonl").open("w", encoding="utf-8") as lines:
        for epoch in range(config["epochs"]):
            loader.sampler.set_epoch(epoch)
            pairs = [pair for asked, served in loader for pair in zip(asked, served, strict=True)]
            lines.write(json.dumps(pairs) + "\n")
            torch.distributed.barrier()
