"""A small ResNet, and its training on images in memory, in an order that was recorded before."""

import functools
import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

UInt8 = npt.NDArray[np.uint8]

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Of Debian's package dataset-fashion-mnist: 60,000 images for training and 10,000 to test, 28 by 28 pixels, in ten
classes."""

CLASSES = 10
WIDTH = 8
"""Channels of the first stage. Each stage has twice as many as the one before, on a quarter of the pixels."""
FIRST_STRIDE = 3
"""The first stage has 10 by 10 of 28 by 28 pixels: a core trains on some 5,000 images a second."""

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
WARM_SHARE = 0.1
"""The rate rises for this share of the batches, then falls to 0 along a cosine."""

TESTED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """``images`` are uint8[N, height, width], ``labels`` uint8[N]."""

    images: UInt8
    labels: UInt8

    def __len__(self) -> int:
        return len(self.labels)


@functools.cache
def read_images(folder: Path, part: str, most: int | None = None) -> Images:
    """The images of ``part``, "train" or "t10k", in the format of MNIST.

    If ``most`` is given, only the first so many. Raises SystemExit if there are none, or fewer.
    """
    try:
        images, labels = (_idx(folder / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    except (OSError, EOFError, ValueError) as error:
        raise SystemExit(f"no images in {folder}: {error}; try: apt-get install dataset-fashion-mnist") from None
    if most is not None and most > len(labels):
        raise SystemExit(f"{folder} has {len(labels):,} images in its part {part}, fewer than {most:,}")
    return Images(images[:most], labels[:most])


def _idx(path: Path) -> UInt8:
    with gzip.open(path) as file:
        data = file.read()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is not in the IDX format")
    sides = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(sides)).reshape(sides)


class Block(nn.Module):
    """Two convolutions, and the input added to what they return."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.shortcut = (
            nn.Identity()
            if inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, values: Tensor) -> Tensor:
        inner = nn.functional.relu(self.norms[0](self.first(values)))
        return nn.functional.relu(self.norms[1](self.second(inner)) + self.shortcut(values))


def network() -> nn.Module:
    """A ResNet of three blocks with batch normalization."""
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 5, FIRST_STRIDE, padding=2, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        Block(WIDTH, WIDTH, 1),
        Block(WIDTH, WIDTH * 2, 2),
        Block(WIDTH * 2, WIDTH * 4, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH * 4, CLASSES),
    ).to(memory_format=torch.channels_last)


@dataclass(frozen=True, slots=True)
class Tested:
    """The accuracy and the mean loss of the network on the test images after an epoch."""

    accuracy: float
    loss: float


def train(training: Images, test: Images, orders: npt.NDArray[np.integer], batch: int, seed: int) -> list[Tested]:
    """Train a network on batches that hold the images of ``orders``, int[epochs, S], one after the other.

    The seed sets the first weights. Returns a result for each epoch.
    """
    torch.manual_seed(seed)
    model = network()
    values = training.images / np.float32(255)
    middle, spread = float(values.mean()), float(values.std())
    inputs, tested = (_normalized(part.images, middle, spread) for part in (training, test))
    labels, right = (torch.from_numpy(part.labels.astype(np.int64)) for part in (training, test))
    optimizer = torch.optim.SGD(
        model.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    in_all = len(orders) * -(-orders.shape[1] // batch)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: _rate(done / in_all))
    found = []
    for order in orders:
        model.train()
        for part in torch.from_numpy(order.astype(np.int64)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
            optimizer.step()
            rates.step()
        found.append(_tested(model, tested, right))
    return found


def _rate(done: float) -> float:
    """The share of the learning rate once the share ``done`` of all batches is done."""
    if done < WARM_SHARE:
        return max(done, 1e-3) / WARM_SHARE
    return (1 + math.cos(math.pi * (done - WARM_SHARE) / (1 - WARM_SHARE))) / 2


def _normalized(images: UInt8, middle: float, spread: float) -> Tensor:
    return ((torch.from_numpy(images.astype(np.float32)) / 255 - middle) / spread).unsqueeze(3).permute(0, 3, 1, 2)


def _tested(model: nn.Module, images: Tensor, labels: Tensor) -> Tested:
    model.eval()
    with torch.no_grad():
        said = torch.cat([model(part) for part in images.split(TESTED_AT_ONCE)])
    return Tested(float((said.argmax(1) == labels).float().mean()), float(nn.functional.cross_entropy(said, labels)))
