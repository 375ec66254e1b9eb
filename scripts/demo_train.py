"""An ordinary training script: `demo_train.py FOLDER` trains on FOLDER/train/CLASS/*.png and validates on FOLDER/val.

It does not know redoxfs. The label is the name of the directory, as in torchvision's ImageFolder. The last line has
the times of all training and of all validation.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images and the index of their directory."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir())
        self.items = [
            (path, label) for label, name in enumerate(self.classes) for path in sorted((folder / name).glob("*.png"))
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.items[index]
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        return torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.5, label


def network(classes: int) -> nn.Module:
    """Three convolutions, from 32 to 4 pixels a side; small, so that the demo waits for storage and not for the CPU."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    first = [nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers = [*first, *block(16, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 4 * 4, classes)]
    return nn.Sequential(*layers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()

    # A network this small gains nothing from more threads, which would take the cores from the workers.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = {"batch_size": arguments.batch_size, "num_workers": arguments.workers}
    train = ImageFolder(arguments.folder / "train")
    train_loader = DataLoader(train, shuffle=True, persistent_workers=arguments.workers > 0, **batches)
    val = ImageFolder(arguments.folder / "val")
    val_loader = DataLoader(val, **batches)

    model = network(len(train.classes))
    steps = arguments.epochs * len(train_loader)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.005, total_steps=steps)
    train_s = val_s = 0.0
    for epoch in range(1, arguments.epochs + 1):
        started = time.perf_counter()
        model.train()
        total_loss = 0.0
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total_loss += loss.item() * len(labels)
        took = time.perf_counter() - started
        train_s += took

        started = time.perf_counter()
        model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in val_loader:
                right += int((model(images).argmax(1) == labels).sum())
        val_s += time.perf_counter() - started
        print(
            f"epoch {epoch}: {took:.1f} s, {len(train) / took:,.0f} files/s, "
            f"loss {total_loss / len(train):.3f}, validation accuracy {right / len(val):.1%}",
            flush=True,
        )
    print(f"in all: training {train_s:.1f} s, validation {val_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
