"""JPEGs like those of ImageNet, scaled. They are quick to draw, no two are alike, and each tells its number.

ImageNet has about 110 kB for 400 x 350 pixels. These have the same bytes a pixel: 50 to 100 kB for 320 x 320. A few
textures are drawn once. An image is one of them, shifted, mirrored and encoded in a quality of its own, so all files
differ. Its number is in a JPEG comment, and in its upper edge as 16 cells, black or white, which survive encoding and
scaling. So `numbers` recognizes the images that a loader returned, with any decoder.
"""

import io
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE_PIXELS = 320
SCALED_PIXELS = 224
BITS = 16
TEXTURES = 64
QUALITIES = (90, 97)
MARK = b"image "
MARK_WITHIN = 64
"""The comment comes right after the JFIF header."""

_CELL = SIDE_PIXELS // BITS


def name_of(number: int, classes: int) -> str:
    """The path of an image below the data set's folder, CLASS/CLASS_NUMBER.JPEG. Its label is number % classes."""
    label = f"n{number % classes:08}"
    return f"{label}/{label}_{number:06}.JPEG"


def draw(number: int, seed: int, textures: list[npt.NDArray[np.uint8]]) -> bytes:
    """The file of one image."""
    own = np.random.default_rng((seed, number))
    pixels = np.roll(textures[number % len(textures)], own.integers(0, SIDE_PIXELS, 2), (0, 1))
    pixels = pixels[:, :: 1 if own.random() < 0.5 else -1].copy()
    bits = np.right_shift(number, np.arange(BITS)) & 1
    pixels[:_CELL] = np.repeat(bits.astype(np.uint8) * 255, _CELL)[None, :, None]
    file = io.BytesIO()
    comment = MARK + f"{number:08}".encode()
    Image.fromarray(pixels).save(file, "jpeg", quality=int(own.integers(*QUALITIES)), comment=comment)
    return file.getvalue()


def textures(seed: int) -> list[npt.NDArray[np.uint8]]:
    """Clouds with grain, uint8[320, 320, 3] each."""
    own = np.random.default_rng(seed)
    return [_texture(own) for _ in range(TEXTURES)]


def _texture(own: np.random.Generator) -> npt.NDArray[np.uint8]:
    clouds = Image.fromarray(own.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((SIDE_PIXELS, SIDE_PIXELS))
    grain = own.normal(0, own.uniform(18, 32), (SIDE_PIXELS, SIDE_PIXELS, 1))
    return (np.asarray(clouds) + grain).clip(0, 255).astype(np.uint8)


def make_images(folder: Path, count: int, classes: int, seed: int = 0) -> int:
    """Draw the data set with all cores. Returns its bytes."""
    if count > 1 << BITS:
        raise ValueError(f"numbers of {BITS} bits tell {1 << BITS} images apart, not {count}")
    for label in range(classes):
        (folder / name_of(label, classes)).parent.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    processes = len(os.sched_getaffinity(0))
    with context.Pool(processes, _begin, (folder, classes, seed)) as pool:
        return sum(pool.imap_unordered(_write, range(count), chunksize=64))


_drawing: dict[str, Any] = {}


def _begin(folder: Path, classes: int, seed: int) -> None:
    _drawing.update(folder=folder, classes=classes, seed=seed, textures=textures(seed))


def _write(number: int) -> int:
    data = draw(number, _drawing["seed"], _drawing["textures"])
    path: Path = _drawing["folder"] / name_of(number, _drawing["classes"])
    return path.write_bytes(data)


def in_order(folder: Path) -> list[tuple[Path, int]]:
    """Path and label of all images of a data set, by their paths."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(path, label) for label, inner in enumerate(folders) for path in sorted(inner.iterdir())]


def in_random_order(folder: Path) -> list[tuple[Path, int]]:
    """The same, in the order in which each loader that converts them writes them."""
    samples = in_order(folder)
    random.Random(0).shuffle(samples)
    return samples


def number_of(path: Path) -> int:
    """The number of an image, from its path."""
    return int(path.stem.rpartition("_")[2])


def number_in(data: bytes) -> int:
    """The number of an image, from its file."""
    at = data.index(MARK, 0, MARK_WITHIN) + len(MARK)
    return int(data[at : at + 8])


def numbers_in(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """int64[B]: the numbers of decoded images, uint8[B, S, S, 3]."""
    cell = pixels.shape[1] / BITS
    across = ((np.arange(BITS) + 0.5) * cell).astype(int)
    bits = pixels[:, int(cell / 2), across, 1] > 127
    return (bits.astype(np.int64) << np.arange(BITS)).sum(axis=1)
