"""The files of overall.py: each ends with its class and number, so that an epoch over them can be checked."""

import io
import random
from pathlib import Path

import loop_disks
import mounts
import numpy as np
from overall_settings import CHUNK_SIZE, Workload
from overall_train import NAME_BYTES

SEED = 0
JPEGS = 32
"""Different images; a decoder's work does not depend on how many."""

JPEG_SIDES = (320, 480)
JPEG_QUALITY = 88


def make_image(image: Path, folder: Path, workload: Workload, files: int) -> int:
    """Make a disk image with the files in data/, and packed in packed/. Returns the bytes of all files.

    ``folder`` is where the image is mounted meanwhile.
    """
    largest = workload.files(files) * max(workload.largest_bytes, 150_000)
    loop_disks.make(image, 2 * largest + (64 << 20))
    with loop_disks.attached(image, folder, read_only=False):
        total = make_files(folder / "data", workload, files)
        options = ("--chunk-size", str(CHUNK_SIZE))
        mounts.pack(folder / "data", folder / "packed", *options, classes=workload.redirect)
    return total


def make_files(folder: Path, workload: Workload, files: int) -> int:
    """Write classNNNNN/NUMBER with bytes from a seed. Returns their bytes."""
    draw = random.Random(SEED)
    jpegs = [_jpeg(draw.randrange(1 << 31)) for _ in range(JPEGS)] if workload.is_jpeg else []
    classes = workload.classes(files)
    for label in range(classes):
        (folder / f"class{label:05}").mkdir(parents=True)
    total = 0
    for number, label in enumerate(class_of(workload, files)):
        name = f"class{label:05}/{number:07}{workload.suffix}"
        if jpegs:
            # Decoders ignore bytes behind the end of the image.
            data = jpegs[number % JPEGS]
        else:
            data = draw.randbytes(draw.randint(workload.smallest_bytes, workload.largest_bytes) - NAME_BYTES)
        (folder / name).write_bytes(data + name.encode().ljust(NAME_BYTES))
        total += len(data) + NAME_BYTES
    return total


def class_of(workload: Workload, files: int) -> list[int]:
    """The class of each number. Sizes of classes are equal, or skewed: the k-th largest has a share of 1/(k + 20)."""
    count, classes = workload.files(files), workload.classes(files)
    if not workload.skewed:
        return [number % classes for number in range(count)]
    weights = 1 / (np.arange(classes) + 20)
    # One file for each class, and the others by its weight.
    sizes = 1 + np.floor(weights / weights.sum() * (count - classes)).astype(int)
    sizes[: count - int(sizes.sum())] += 1
    return [int(label) for label in np.repeat(np.arange(classes), sizes)]


def _jpeg(seed: int) -> bytes:
    """An image of about 100 kB, with structure and noise."""
    from PIL import Image

    random_ = np.random.default_rng(seed)
    coarse = random_.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((JPEG_SIDES[1], JPEG_SIDES[0]), Image.Resampling.BICUBIC))
    noisy = np.clip(image + random_.normal(0, 22, image.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()
