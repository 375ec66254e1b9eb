"""Image files that name themselves: class and number in the pixels, path and checksum after the image.

PNG readers stop at the end of the image. So the bytes after it can hold a path of any length, and pad a file to any
size. An empty file cannot name itself; a dataset has at most one in each class tree.
"""

import random
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

from PIL import Image

UNEVEN = {f"n{count:08}": count for count in (1, 3, 10, 30, 70, 180)} | {f"n0000100{i}": 250 for i in range(4)}
"""Classes of very uneven size, 1,294 images. Their names are WordNet ids, which are proof for --classes auto."""

LARGEST_IN, LARGEST_BYTES = "n00001000", 5_000_000
"""One image of this class is much larger than all others."""


def image(path: str, label: int, number: int, size: int) -> bytes:
    """A PNG of at least ``size`` bytes for ``path``, with ``label`` and ``number`` in its first pixels."""
    pixels = struct.pack(">HH", label, number).ljust(3 * 4, b"\0")
    rows = b"".join(b"\0" + pixels for _ in range(4))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(rows, 1)),
            (b"IEND", b""),
        )
    )
    name = b"\n" + path.encode() + b"\n"
    filler = random.Random(path).randbytes(max(0, size - len(png) - len(name) - 4))
    whole = png + filler + name
    return whole + struct.pack(">I", zlib.crc32(whole))


def path_in(data: bytes) -> str:
    """The path that an image was made for. AssertionError if the bytes are not one whole image."""
    assert len(data) > 8, f"short: {len(data)} bytes"
    assert struct.unpack(">I", data[-4:])[0] == zlib.crc32(data[:-4]), "torn or mixed bytes"
    return data[:-5].rpartition(b"\n")[2].decode()


def read_each(paths: Sequence[Path]) -> Counter[str]:
    """Read files of class folders once each, by several threads. Returns the paths that the bytes were made for."""

    def read(path: Path) -> str:
        data = path.read_bytes()
        found = path_in(data) if data else ""
        assert not data or Path(found).parent.name == path.parent.name, "a wrong label"
        return found

    with ThreadPoolExecutor(8) as pool:
        found = Counter(pool.map(read, paths))
    # An empty file cannot name itself.
    found.pop("", None)
    return found


def pixels_in(data: bytes) -> tuple[int, int]:
    """The label and number, decoded as a training script would."""
    with Image.open(BytesIO(data)) as decoded:
        first = decoded.convert("RGB").tobytes()[:4]
    label, number = struct.unpack(">HH", first)
    return label, number


def make_images(root: Path, classes: dict[str, int], *, split: str = "train", typical_bytes: int = 1500) -> None:
    """Make an ImageFolder-style tree. Sizes vary from 0 bytes to 5 MB, most near ``typical_bytes``."""
    for label, (name, count) in enumerate(sorted(classes.items())):
        folder = root / split / name
        folder.mkdir(parents=True)
        for number in range(count):
            path = f"{split}/{name}/{split}-{name}-{number}.png"
            size = typical_bytes * (1 + (number * 7919) % 5) // 2
            if name == LARGEST_IN and number == 17:
                size = LARGEST_BYTES
            (root / path).write_bytes(image(path, label, number, size))
    largest = max(sorted(classes), key=lambda name: classes[name])
    (root / split / largest / f"{split}-{largest}-0.png").write_bytes(b"")


def make_full_images(root: Path, classes: dict[str, int]) -> Path:
    """A tree of `make_images` without its empty file, which would make "short" and "empty" look alike."""
    make_images(root, classes)
    largest = max(sorted(classes), key=lambda name: classes[name])
    path = f"train/{largest}/train-{largest}-0.png"
    (root / path).write_bytes(image(path, sorted(classes).index(largest), 0, 500))
    return root


def identity(data: bytes, split: str, classes: dict[str, int]) -> tuple[str, str]:
    """The class and path of an image that was read."""
    if not data:
        largest = max(sorted(classes), key=lambda name: classes[name])
        return largest, f"{split}/{largest}/{split}-{largest}-0.png"
    path = path_in(data)
    name = path.split("/")[1]
    label, number = pixels_in(data)
    assert sorted(classes)[label] == name
    assert path.endswith(f"-{number}.png")
    return name, path
