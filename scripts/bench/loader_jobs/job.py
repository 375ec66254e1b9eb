"""Runs one loader in a process of its own: `job.py MODULE` with a JSON object on stdin, and the result in a file.

A module of this folder is a training script as the loader's documentation has it, without the training: `loader`
returns something that yields batches of samples and labels, again for each epoch, and `prepare`, where there is one,
converts the images. All that does not belong into such a script is here. The diff between a module and plain.py is
what a user of the loader changes.

A loader gives what `Job.transform` made of a file: without decoding, the image's number, found in its bytes; with it,
the pixels, uint8[224, 224, 3]. Some loaders decode by themselves. The numbers of the samples are then found in their
pixels.

The process imports what it needs, says `ready`, and begins when it hears `go`. The clock runs from there to the last
batch, so imports are not measured.
"""

import importlib
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from jpegs import SCALED_PIXELS, in_random_order, number_in, numbers_in
from programs import declare_operators


@dataclass(frozen=True)
class Job:
    """The facts that a training script knows.

    ``images``        the folder of plain files, or a mount that has them; CLASS/NAME.JPEG below it
    ``prepared``      where `prepare` wrote, if there is such a function
    ``most_workers``  the most workers that any run of the loader has
    ``decode``        whether samples are pixels, or just read
    """

    images: Path
    prepared: Path
    workers: int
    most_workers: int
    batch: int
    decode: bool

    @staticmethod
    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def transform(self, data: bytes) -> Any:
        """What becomes of a file in the worker that read it."""
        return self.pixels(Image.open(io.BytesIO(data))) if self.decode else number_in(data)

    @staticmethod
    def pixels(image: Image.Image) -> torch.Tensor:
        scaled = image.convert("RGB").resize((SCALED_PIXELS, SCALED_PIXELS), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(scaled))

    def in_random_order(self) -> list[tuple[Path, int]]:
        """Path and label of all images, in the order in which each loader that converts them writes them."""
        return in_random_order(self.images)


def numbers_of(batch: Any, decode: bool) -> list[int]:
    """Which images a batch has."""
    numbers = numbers_in(np.asarray(batch)) if decode else np.asarray(batch)
    return numbers.tolist()


def run(module: Any, job: Job, epochs: int, seconds: float | None) -> dict[str, Any]:
    """Read epochs, each until its end or until ``seconds`` have passed since its first batch."""
    told = []
    began = time.monotonic()
    loader = module.loader(job)
    for epoch in range(epochs):
        started = time.monotonic() if epoch else began
        if hasattr(module, "begin_epoch"):
            module.begin_epoch(loader, epoch)
        numbers: list[int] = []
        labels: list[int] = []
        first_s, first_samples = None, 0
        is_whole = True
        for samples, classes in loader:
            numbers += numbers_of(samples, job.decode)
            if first_s is None:
                first_s, first_samples = time.monotonic() - started, len(numbers)
            labels += np.asarray(classes).tolist()
            if seconds is not None and time.monotonic() - started - first_s > seconds:
                is_whole = False
                break
        told.append(
            {
                "seconds": time.monotonic() - started,
                "first_batch_s": first_s,
                "first_samples": first_samples,
                "numbers": numbers,
                "labels": labels,
                "whole": is_whole,
            }
        )
    return {"epochs": told}


def main() -> None:
    # Libraries print to stdout; what they print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    declare_operators()
    module = importlib.import_module(asked["module"])
    job = Job(**{**asked["job"], "images": Path(asked["job"]["images"]), "prepared": Path(asked["job"]["prepared"])})
    job.pixels(Image.new("RGB", (8, 8)))
    print("ready", file=answers, flush=True)
    sys.stdin.readline()
    if asked["epochs"]:
        told = run(module, job, asked["epochs"], asked["seconds"])
    else:
        began = time.monotonic()
        module.prepare(job)
        told = {"seconds": time.monotonic() - began}
    told["packages"] = {name: metadata.version(name) for name in module.PACKAGES}
    Path(asked["result"]).write_text(json.dumps(told))
    print("done", file=answers, flush=True)
    # Threads and processes of a loader that was left in the middle of an epoch end with this process.
    os._exit(0)


if __name__ == "__main__":
    main()
