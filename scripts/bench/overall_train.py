"""One rank of the training of overall.py: a PyTorch script as anyone writes it, told over stdin what to train on.

The dataset is an ImageFolder in plain code. A DataLoader with persistent workers reads it in the order of a
DistributedSampler, and each step ends with an all-reduce, as in DistributedDataParallel, so the nodes go in step. A
step of the GPU is a sleep. It begins when the batch is there, while the workers prepare the next ones.

For CoorDL the dataset asks its cache first (coordl.py). For No-I/O it makes up the bytes, as in the paper. With
``--model cnn`` the workers decode JPEGs, and each step trains a small network on the processor instead of sleeping.

Each line of stdin is one command in JSON, and each line of stdout its answer. Every file ends with its own name, so
the answer to an epoch says which samples came, and how many came under another label than their own.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from coordl import Node
from overall_settings import PREFETCH
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NAME_BYTES = 64
FEATURES = 3072
"""Bytes of a sample as a tensor: those of CIFAR's images. A decoder's output would only load the processors."""

SIDE = 64
"""Pixels of a side of what the small network is given."""

Sample = tuple[Tensor, int, int, int]


class ImageFolder(Dataset[Sample]):
    """Tensor, index of the directory, the class that the file names, the number that it names."""

    def __init__(self, root: str, decodes: bool) -> None:
        self.classes = sorted(os.listdir(root))
        self.items = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self._decodes = decodes

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int) -> bytes:
        with open(self.items[index][0], "rb") as file:
            return file.read()

    def __getitem__(self, index: int) -> Sample:
        data = self.read(index)
        label = self.items[index][1]
        own, _, number = data[-NAME_BYTES:].rstrip().decode().partition("/")
        tensor = decoded(data) if self._decodes else torch.frombuffer(bytearray(data[:FEATURES]), dtype=torch.uint8)
        return tensor, label, int(own.removeprefix("class")), int(number.partition(".")[0])


class Cached(ImageFolder):
    """The same through CoorDL's cache."""

    def __init__(self, root: str, decodes: bool, node: Node) -> None:
        super().__init__(root, decodes)
        self._node = node

    def read(self, index: int) -> bytes:
        return self._node.read(index, lambda: super(Cached, self).read(index))


class MadeUp(ImageFolder):
    """No-I/O: samples of the same number and shape, of random bytes."""

    def __getitem__(self, index: int) -> Sample:
        path, label = self.items[index]
        shape, number = (3, SIDE, SIDE) if self._decodes else (FEATURES,), int(Path(path).stem)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
        return pixels, label, int(self.classes[label].removeprefix("class")), number


def decoded(data: bytes) -> Tensor:
    """An image as a tensor: decoded whole, cropped at random, as a training does."""
    import io

    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    x, y = random.randrange(image.width - SIDE + 1), random.randrange(image.height - SIDE + 1)
    return torch.from_numpy(np.asarray(image.crop((x, y, x + SIDE, y + SIDE))).transpose(2, 0, 1).copy())


class Step:
    """The work of the GPU on a batch: a sleep, or on the processor a small network."""

    def __init__(self, model: str, classes: int) -> None:
        self.grads = torch.zeros(1024)
        self._net: nn.Module | None = None
        if model == "cnn":
            layers: list[nn.Module] = []
            for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
                layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
            self._net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (SIDE // 8) ** 2, classes))
            self._optimizer = torch.optim.SGD(self._net.parameters(), 0.01)

    def run(self, images: Tensor, labels: Tensor, seconds: float) -> None:
        if self._net is None:
            time.sleep(seconds)
            return
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._net(images.float() / 255 - 0.5), labels).backward()
        self._optimizer.step()


class Rank:
    """The commands of overall.py."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._data: ImageFolder | None = None
        self._node: Node | None = None
        self._loaders: dict[int, tuple[DataLoader[Sample], DistributedSampler[Sample]]] = {}

    def data(
        self, way: str, roots: list[str], capacity_bytes: int = 0, addresses: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Take a dataset in the place of the one before. ``roots`` has that of each rank."""
        self.drop()
        root = roots[self._arguments.rank]
        decodes = self._arguments.model == "cnn"
        if way == "coordl":
            samples = sum(len(files) for _, _, files in os.walk(root))
            self._node = Node(samples, capacity_bytes, addresses, self._arguments.rank)
            self._node.serve()
            self._data = Cached(root, decodes, self._node)
        else:
            self._data = (MadeUp if way == "none" else ImageFolder)(root, decodes)
        self._step = Step(self._arguments.model, len(self._data.classes))
        return {"samples": len(self._data)}

    def drop(self) -> dict[str, Any]:
        """End the workers, so that nothing has a file open, and free the cache."""
        self._loaders.clear()
        self._data = None
        if self._node:
            self._node.close()
            self._node = None
        gc.collect()
        return {}

    def refresh(self) -> dict[str, Any]:
        """CoorDL: learn what the other nodes have cached."""
        if self._node:
            self._node.refresh()
        return {}

    def epoch(self, epoch: int, batch: int, compute_s: float, labels: str = "path") -> dict[str, Any]:
        """Train for an epoch, with ``compute_s`` for a sample. ``labels`` come from the "path" or from the "file"."""
        if self._data is None:
            raise ValueError("there is no dataset to train on")
        loader, sampler = self._loader(self._data, batch)
        sampler.set_epoch(epoch)
        numbers: list[int] = []
        wrong = 0
        owns = torch.tensor([int(name.removeprefix("class")) for name in self._data.classes])
        self._barrier()
        began = time.monotonic()
        for images, label, own, number in loader:
            self._step.run(images, label, compute_s * len(label))
            if self._arguments.nodes > 1:
                dist.all_reduce(self._step.grads)
            wrong += int((owns[label] != own).sum()) if labels == "path" else 0
            numbers += number.tolist()
        seconds = time.monotonic() - began
        counts = self._node.counts() if self._node else {}
        return {"seconds": seconds, "wrong_labels": wrong, "numbers": numbers, "cache": counts}

    def _loader(self, data: ImageFolder, batch: int) -> tuple[DataLoader[Sample], DistributedSampler[Sample]]:
        if batch not in self._loaders:
            self._loaders.clear()
            sampler = DistributedSampler(data, self._arguments.nodes, self._arguments.rank)
            workers = self._arguments.workers
            loader = DataLoader(
                data,
                batch,
                sampler=sampler,
                num_workers=workers,
                persistent_workers=True,
                prefetch_factor=PREFETCH,
            )
            self._loaders[batch] = (loader, sampler)
        return self._loaders[batch]

    def _barrier(self) -> None:
        if self._arguments.nodes > 1:
            dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--master", default="", help="HOST:PORT of rank 0")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=("sleep", "cnn"), default="sleep")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Forked workers then share more of what is there already.
    gc.freeze()
    if arguments.nodes > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://{arguments.master}", world_size=arguments.nodes, rank=arguments.rank
        )
    rank = Rank(arguments)
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "data": rank.data,
        "drop": rank.drop,
        "refresh": rank.refresh,
        "epoch": rank.epoch,
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(commands[words.pop("do")](**words)), flush=True)
    if arguments.nodes > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
