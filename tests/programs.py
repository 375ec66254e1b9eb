"""Programs as their users write them. t6_programs runs each in a separate process.

    programs.py PROGRAM FOLDER ROUNDS

A program reads every sample below FOLDER with another project's library, ROUNDS times in a row. For each round, it
prints a line of JSON: for each sample the split and label from the library or the path, such as "train/disc", and a
digest of the decoded content. t6_programs knows the digest of each file.

Only the library that a program needs is imported.
"""

import contextlib
import hashlib
import importlib.util
import json
import random
import sys
import tempfile
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

SPLITS = ("train", "val")
READERS = 4
"""Threads, or workers of a DataLoader: more than the cores of a small machine."""

Sample = tuple[str, str]


def digest(decoded: Any) -> str:
    """The digest of an image's RGB bytes, of 16-bit sound, or of an array."""
    return hashlib.sha256(decoded.tobytes()).hexdigest()


def torchvision_image_folder(root: Path) -> Iterator[Sample]:
    """As torchvision's reference scripts: a DataLoader with workers, shuffled."""
    from torch.utils.data import DataLoader

    folder = _torchvision_datasets().ImageFolder
    for split in SPLITS:
        data = folder(root / split, transform=digest)
        for digests, labels in DataLoader(data, batch_size=32, shuffle=True, num_workers=READERS):
            yield from ((f"{split}/{data.classes[label]}", told) for told, label in zip(digests, labels, strict=True))


def declare_operators() -> None:
    """Make torchvision importable beside a CPU build of PyTorch.

    The wheel on PyPI is built for PyTorch with CUDA. With a CPU build its operators are missing, and the import fails
    because torchvision registers two of them with PyTorch. Declaring these two is enough for all that is pure Python.
    Does nothing where torchvision can be imported, or is not installed.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        from torch import library

        for operator in ("nms", "qnms"):
            library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@cache
def _torchvision_datasets() -> Any:
    """torchvision.datasets, which is pure Python, without the models beside it: they import PyTorch's compiler."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    package: Any = types.ModuleType("torchvision")
    package.__path__ = spec.submodule_search_locations
    package.get_image_backend = lambda: "PIL"
    sys.modules["torchvision"] = package
    return importlib.import_module("torchvision.datasets")


def hugging_face_images(root: Path) -> Iterator[Sample]:
    """The library stats all files from many threads first, keeps their paths, and opens each file to decode it."""
    for split, samples in _hugging_face("imagefolder", root):
        names = samples.features["label"].names
        yield from ((f"{split}/{names[sample['label']]}", digest(sample["image"].convert("RGB"))) for sample in samples)


def hugging_face_sounds(root: Path) -> Iterator[Sample]:
    """As `hugging_face_images`, for sound decoded by soundfile."""
    import soundfile
    from datasets import Audio

    # The library imports torchcodec's encoder for every path, but encodes nothing. torchcodec needs FFmpeg.
    encoders = types.ModuleType("torchcodec.encoders")
    encoders.AudioEncoder = None  # type: ignore[attr-defined]
    sys.modules |= {"torchcodec": types.ModuleType("torchcodec"), "torchcodec.encoders": encoders}
    for split, samples in _hugging_face("audiofolder", root):
        names = samples.features["label"].names
        for sample in samples.cast_column("audio", Audio(decode=False)):
            sound, _ = soundfile.read(sample["audio"]["path"], dtype="int16")
            yield f"{split}/{names[sample['label']]}", digest(sound)


def _hugging_face(kind: str, root: Path) -> Iterator[tuple[str, Any]]:
    """The splits, named like their directories, with a new cache each time."""
    from datasets import load_dataset

    with tempfile.TemporaryDirectory() as cache:
        found = load_dataset(kind, data_dir=str(root), cache_dir=cache)
        assert sorted(found) == ["train", "validation"]
        yield from zip(SPLITS, (found["train"], found["validation"]), strict=True)


def opencv(root: Path) -> Iterator[Sample]:
    """imread opens a file twice: to recognize its format, and to decode it."""
    import cv2

    def read(path: Path) -> Sample:
        pixels = cv2.imread(str(path))
        assert pixels is not None, path
        return _label(path), digest(pixels[..., ::-1])

    return _by_threads(read, root.glob("*/*/*.png"))


def sound_file(root: Path) -> Iterator[Sample]:
    import soundfile

    return _by_threads(
        lambda path: (_label(path), digest(soundfile.read(path, dtype="int16")[0])), root.glob("*/*/*.wav")
    )


def numpy_load(root: Path) -> Iterator[Sample]:
    import numpy

    return _by_threads(lambda path: (_label(path), digest(numpy.load(path))), root.glob("*/*/*.npy"))


def numpy_mmap(root: Path) -> Iterator[Sample]:
    """np.load opens a file three times to map it."""
    import numpy

    return _by_threads(lambda path: (_label(path), digest(numpy.load(path, mmap_mode="r"))), root.glob("*/*/*.npy"))


def web_dataset(root: Path) -> Iterator[Sample]:
    """FOLDER has shards, whose keys have the labels."""
    import webdataset
    from torch.utils.data import DataLoader

    shards = sorted(str(path) for path in root.glob("samples-*.tar"))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=0).decode("pilrgb").to_tuple("__key__", "png")
    for key, image in DataLoader(data, batch_size=None, num_workers=READERS):
        yield key.rpartition("/")[0], digest(image)


def _label(path: Path) -> str:
    """The split and label as a script takes them from the path."""
    return f"{path.parts[-3]}/{path.parts[-2]}"


def _by_threads(read: Any, paths: Iterator[Path]) -> Iterator[Sample]:
    shuffled = sorted(paths)
    random.shuffle(shuffled)
    with ThreadPoolExecutor(READERS) as threads:
        yield from threads.map(read, shuffled)


PROGRAMS = {
    program.__name__: program
    for program in (
        torchvision_image_folder,
        hugging_face_images,
        hugging_face_sounds,
        opencv,
        sound_file,
        numpy_load,
        numpy_mmap,
        web_dataset,
    )
}


def main() -> None:
    name, folder, rounds = sys.argv[1:]
    for _ in range(int(rounds)):
        # Some libraries print to stdout.
        with contextlib.redirect_stdout(sys.stderr):
            samples = list(PROGRAMS[name](Path(folder)))
        print(json.dumps(samples), flush=True)


if __name__ == "__main__":
    main()
