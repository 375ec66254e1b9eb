"""Whether the order in which redoxfs serves samples makes a trained network worse: scikit-learn's digits, ten seeds.

    scripts/bench/digits.py [--seeds 10] [--epochs 12] [--chunk-size 64] [--json]

The data are 1,797 images of handwritten digits, each a small file in the directory of its label. The last 397, by other
writers, are for validation. An ordinary DataLoader with two workers shuffles for every epoch. It reads the training
files from the plain directory, and from mounts with memory for 5, 10 and 25 % of them. Validation always reads the
plain directory. The seed sets the network's weights, the loader's order and the mount's chunks, so each
variant is compared with the plain directory seed by seed.

Nothing hides the effect of an order. Chunks have 64 samples, where shuffling is at its worst; by itself the pool would
take far smaller ones. The learning rate never falls, so the last batches count as much as any. "one order" shows
how much an order can matter here at all: it is the plain directory, shuffled once for all epochs.

Needs FUSE, scikit-learn and PyTorch. Every file holds its own number: each must come once in an epoch, with its
own label. The exit code is 1 if one does not.

How to read the result: a column "less plain" is the mean difference from the plain directory and its standard error. A
difference of less than two standard errors is not significant.
"""

import argparse
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mounts
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

TRAINING = 1_400
SIDE, BRIGHTEST = 8, 16
CLASSES = 10

WORKERS = 2
BATCH = 32
LEARNING_RATE = 0.005

SHARES = ("5%", "10%", "25%")
MEASURES = ("accuracy", "loss")


@dataclass(frozen=True, slots=True)
class Variant:
    """``policy`` is None for the plain directory. If ``shuffles`` is false, every epoch has the order of the first."""

    name: str
    policy: str | None = None
    share: str = ""
    shuffles: bool = True


PLAIN = Variant("plain")
VARIANTS = (
    PLAIN,
    Variant("one order", shuffles=False),
    *(Variant(f"{policy}, {share}", policy, share) for policy in ("slot", "pool") for share in SHARES),
)


class Digits(Dataset[tuple[Tensor, int, int]]):
    """Images, the index of their directory as in torchvision's ImageFolder, and the number in the file."""

    def __init__(self, folder: Path) -> None:
        names = sorted(path.name for path in folder.iterdir())
        self.items = [(path, label) for label, name in enumerate(names) for path in sorted((folder / name).iterdir())]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        path, label = self.items[index]
        with open(path, "rb") as file:
            values = np.load(io.BytesIO(file.read()))
        image = torch.from_numpy(values[:-1].astype(np.float32)).view(1, SIDE, SIDE)
        return image / BRIGHTEST - 0.5, label, int(values[-1])


def make_files(folder: Path) -> list[int]:
    """Write train/LABEL/*.npy and val/LABEL/*.npy. Returns the label of each number."""
    digits = importlib.import_module("sklearn.datasets").load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / ("train" if number < TRAINING else "val") / str(label) / f"{number:04}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.save(file, np.append(image.ravel(), number).astype(np.uint16))
    return [int(label) for label in digits.target]


def network() -> nn.Module:
    """Two convolutions, from 8 to 2 pixels a side."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 2 * 2, CLASSES))


class Training:
    """The dataset, and trainings on it that read its files from any directory."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.labels = make_files(folder)
        self.epochs = epochs
        validation = Digits(folder / "val")
        self._validation: list[Tensor] = next(iter(DataLoader(validation, len(validation))))

    def run(self, root: Path, seed: int, shuffles: bool) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
        orders = torch.Generator().manual_seed(seed)
        loader = DataLoader(Digits(root), BATCH, shuffle=True, num_workers=WORKERS, generator=orders)
        wrong_labels = not_once = 0
        began = time.monotonic()
        for _ in range(self.epochs):
            if not shuffles:
                orders.manual_seed(seed)
            asked: list[int] = []
            seen: list[int] = []
            for images, labels, numbers in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                asked += labels.tolist()
                seen += numbers.tolist()
            wrong_labels += sum(self.labels[number] != label for number, label in zip(seen, asked, strict=True))
            not_once += TRAINING - len(set(seen)) + len(seen) - len(set(seen))
        return {
            **self._validate(model),
            "seconds": time.monotonic() - began,
            "wrong_labels": wrong_labels,
            "not_once": not_once,
        }

    def _validate(self, model: nn.Module) -> dict[str, float]:
        images, labels, _ = self._validation
        with torch.no_grad():
            said = model(images)
        return {
            "accuracy": float((said.argmax(1) == labels).float().mean()),
            "loss": float(nn.functional.cross_entropy(said, labels)),
        }


def memory_for(source: Path, share: str, options: list[str]) -> int:
    command = [sys.executable, "-m", "redoxfs", "inspect", "--json", *options, str(source)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(told["memory_for"][share])


def run_one(training: Training, work: Path, variant: Variant, seed: int, chunk_size: int) -> dict[str, Any]:
    source, mnt = work / "data/train", work / "mnt"
    about = {"variant": variant.name, "seed": seed}
    if variant.policy is None:
        return {**about, **training.run(source, seed, variant.shuffles)}
    options = ["--classes", "dir", "--policy", variant.policy, "--chunk-size", str(chunk_size), "--seed", str(seed)]
    memory = memory_for(source, variant.share, options)
    with mounts.served_by(mounts.redoxfs(source, mnt, "--memory", str(memory), *options), mnt):
        found = training.run(mnt, seed, variant.shuffles)
        stats = mounts.stats(mnt)
    return {**about, **found, "memory_bytes": memory, "stats": stats}


def spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}


def compared(values: list[float], plain: list[float]) -> dict[str, float]:
    """The mean difference over the seeds, and its standard error."""
    told = spread([value - beside for value, beside in zip(values, plain, strict=True)])
    return {"mean": told["mean"], "error": told["deviation"] / len(values) ** 0.5}


def summarize(variant: Variant, runs: list[dict[str, Any]]) -> dict[str, Any]:
    mine, plain = ([run for run in runs if run["variant"] == name] for name in (variant.name, PLAIN.name))
    stats = [run["stats"] for run in mine if "stats" in run]
    return {
        "variant": variant.name,
        **{measure: spread([run[measure] for run in mine]) for measure in MEASURES},
        **{
            f"{measure}_less_plain": compared([run[measure] for run in mine], [run[measure] for run in plain])
            for measure in MEASURES
        },
        "seconds": statistics.mean(run["seconds"] for run in mine),
        "redirected": sum(s["redirected"] for s in stats) / sum(s["opens"] for s in stats) if stats else None,
        "wrong_labels": sum(run["wrong_labels"] for run in mine),
        "not_once": sum(run["not_once"] for run in mine),
    }


def measure(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    console = Console(stderr=True, highlight=False)
    training = Training(work / "data", arguments.epochs)
    runs = []
    began = time.monotonic()
    for seed in range(arguments.seeds):
        for variant in VARIANTS:
            runs.append(run_one(training, work, variant, seed, arguments.chunk_size))
            console.print(f"seed {seed}, {variant.name}: {runs[-1]['accuracy']:.2%} in {runs[-1]['seconds']:.0f} s")
    return {
        "machine": {**mounts.machine(), "torch": torch.__version__},
        "training_files": TRAINING,
        "validation_files": len(training.labels) - TRAINING,
        "seeds": arguments.seeds,
        "epochs": arguments.epochs,
        "chunk_size": arguments.chunk_size,
        "seconds": time.monotonic() - began,
        "variants": [summarize(variant, runs) for variant in VARIANTS],
        "runs": runs,
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    on = result["machine"]
    console.print(f"{on['cores']} cores, {on['cpu']}, Linux {on['kernel']}, PyTorch {on['torch']}")
    console.print(
        f"{result['training_files']:,} files to train on, {result['validation_files']} to validate, {result['seeds']} "
        f"seeds, {result['epochs']} epochs, chunks of {result['chunk_size']}; {result['seconds'] / 60:.0f} minutes"
    )
    table = Table(title="after the last epoch, ± deviation; less plain, ± standard error")
    for column in ("", "accuracy, %", "less plain", "loss, less plain", "redirected"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in result["variants"]:
        is_plain = row["variant"] == PLAIN.name
        accuracy, accuracy_less, loss_less = (
            row[key] for key in ("accuracy", "accuracy_less_plain", "loss_less_plain")
        )
        table.add_row(
            row["variant"],
            f"{accuracy['mean'] * 100:.2f} ± {accuracy['deviation'] * 100:.2f}",
            "" if is_plain else f"{accuracy_less['mean'] * 100:+.2f} ± {accuracy_less['error'] * 100:.2f}",
            "" if is_plain else f"{loss_less['mean']:+.3f} ± {loss_less['error']:.3f}",
            "" if row["redirected"] is None else f"{row['redirected']:.0%}",
        )
    console.print(table)
    for row in result["variants"]:
        if row["wrong_labels"] or row["not_once"]:
            console.print(f"{row['variant']}: {row['wrong_labels']} wrong labels, {row['not_once']} not once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--chunk-size", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2, to compute a deviation")
    # A network this small gains nothing from more threads, which would take the cores from the workers.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder
        result = measure(Path(folder), arguments)
    print(json.dumps(result, indent=2)) if arguments.json else show(result)
    return 1 if any(row["wrong_labels"] or row["not_once"] for row in result["variants"]) else 0


if __name__ == "__main__":
    sys.exit(main())
