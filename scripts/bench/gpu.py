"""Trains ResNet-50 on a GPU from slow storage: the plain directory, and redoxfs on a packed copy.

    scripts/bench/gpu.py [--files 20000] [--profiles none,nas] [--ways plain,packed] [--workers 16] [--json FILE]

Needs a GPU, PyTorch, torchvision and root. The training is an ordinary one: ImageFolder, RandomResizedCrop, a
DataLoader, bfloat16, batches of 256. Only the folder's path differs between the ways. The JPEGs are those of jpegs.py,
and the storage is a profile of throttle.py. Each way trains one epoch, and no image is in the page cache as it begins.
Making images, packing, mounting, imports and the first steps on random pixels are not timed.

How to read the result: "GPU" is the share of the epoch in which the GPU computed. "alone" is its rate with images that
lie on it already: nothing can be faster. Each image tells its number, and must come exactly once, with the label of the
path that was opened. The exit code is 1 if one does not.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import epoch
import mounts
import throttle
from jpegs import make_images, number_in
from results import options_of, tell
from rich.console import Console

CLASSES = 100
BATCH = 256
STEPS_BEFORE, STEPS_ALONE = 5, 30
WAYS = {"plain": "plain directory", "packed": "redoxfs, packed"}
COLUMNS = ("profile", "way", "seconds", "images_per_s", "gpu_share", "alone_images_per_s", "not_once", "wrong_labels")


def train(folder: Path, workers: int) -> dict[str, Any]:
    """One epoch of an ImageFolder. Returns what it took, and what came."""
    import torch
    from torchvision import datasets, io, models, transforms

    crop = transforms.Compose([transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip()])

    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def decode(data: bytes) -> tuple[Any, int]:
        return crop(io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))), number_in(data)

    images = datasets.ImageFolder(str(folder), decode, loader=read)
    loader = torch.utils.data.DataLoader(
        images, BATCH, shuffle=True, num_workers=workers, pin_memory=True, prefetch_factor=4
    )
    model = models.resnet50(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.backends.cudnn.benchmark = True
    busy: list[tuple[Any, Any]] = []

    def step(pixels: Any, labels: Any) -> None:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        scaled = pixels.to(memory_format=torch.channels_last).float().div_(127.5).sub_(1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(scaled), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        end.record()
        busy.append((begin, end))

    pixels = torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
    for _ in range(STEPS_BEFORE):
        step(pixels, labels)
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(STEPS_ALONE):
        step(pixels, labels)
    torch.cuda.synchronize()
    alone = BATCH * STEPS_ALONE / (time.monotonic() - began)
    busy.clear()

    # The last batch has another size, for which cuDNN would look for its kernels again.
    torch.backends.cudnn.benchmark = False
    seen: list[int] = []
    wrong = 0
    began = time.monotonic()
    for (batch, numbers), given in loader:
        step(batch.cuda(non_blocking=True), given.cuda(non_blocking=True))
        seen += numbers.tolist()
        wrong += int((numbers % CLASSES != given).sum())
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    computed_s = sum(begin.elapsed_time(end) for begin, end in busy) / 1e3
    return {
        "images": len(images),
        "seconds": seconds,
        "images_per_s": len(images) / seconds,
        "gpu_share": computed_s / seconds,
        "alone_images_per_s": alone,
        "wrong_labels": wrong,
        "not_once": len(set(range(len(images))) ^ set(seen)) + len(seen) - len(set(seen)),
        "device": torch.cuda.get_device_name(),
    }


def measure(work: Path, way: str, profile: throttle.Profile, memory_mb: int, workers: int) -> dict[str, Any]:
    with epoch.storage(profile, work, None) as stored, ExitStack() as stack:
        folder = stack.enter_context(epoch.reading(stored, way, work, memory_mb))
        # A job lists its files before it trains.
        subprocess.run(["find", stored.source, "-size", "+1"], check=True, stdout=subprocess.DEVNULL)
        stored.forget()
        command = [sys.executable, __file__, "--child", str(folder), "--workers", str(workers)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=stored.enter)
    return {"way": way, "profile": profile.name, **json.loads(done.stdout.splitlines()[-1])}


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"making {arguments.files:,} images …")
    total = make_images(work / "data", arguments.files, CLASSES)
    mounts.pack(work / "data", work / "packed")
    rows = []
    for name in arguments.profiles.split(","):
        for way in arguments.ways.split(","):
            console.print(f"{name}: {WAYS[way]} …")
            rows.append(measure(work, way, throttle.PROFILES[name], arguments.memory_mb, arguments.workers))
            console.print({key: rows[-1][key] for key in ("seconds", "images_per_s", "gpu_share")})
    return {"files": arguments.files, "bytes": total, "workers": arguments.workers, "batch": BATCH, "rows": rows}


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--profiles", default="none,nas")
    parser.add_argument("--ways", default="plain,packed")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--memory-mb", type=int, default=256, help="--memory of the mounts, MiB")
    parser.add_argument("--folder", type=Path, help="where to work, on a disk; default: the temporary folder")
    parser.add_argument("--child", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(train(arguments.child, arguments.workers)))
        return 0
    with mounts.work_folder(arguments.folder) as work:
        result = run(arguments, work)
    tell(result, arguments.json, *COLUMNS)
    return int(any(row["wrong_labels"] or row["not_once"] for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
