"""FFCV: one file of its own format, JPEGs within it, threads, and its own decoder on libjpeg-turbo.

https://docs.ffcv.io/parameter_tuning.html, "Large scale datasets": `os_cache=False` and QUASI_RANDOM. The images are
encoded again, in quality 90, its default. Without decoding, the file has the bytes of the images as they are.
"""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from ffcv.fields import BytesField, IntField, RGBImageField
from ffcv.fields.decoders import BytesDecoder, CenterCropRGBImageDecoder, IntDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Squeeze, ToTensor
from ffcv.writer import DatasetWriter
from job import Job
from jpegs import SCALED_PIXELS
from PIL import Image

PACKAGES = ("ffcv",)


def loader(job: Job) -> Any:
    decoder = CenterCropRGBImageDecoder((SCALED_PIXELS, SCALED_PIXELS), ratio=1) if job.decode else BytesDecoder()
    batches = Loader(
        str(job.prepared / "images.beton"),
        batch_size=job.batch,
        # Its threads are numba's, which has one for each core.
        num_workers=min(job.workers, numba.config.NUMBA_NUM_THREADS),
        order=OrderOption.QUASI_RANDOM,
        os_cache=False,
        drop_last=False,
        pipelines={"image": [decoder, ToTensor()], "label": [IntDecoder(), ToTensor(), Squeeze(-1)]},
    )
    return batches if job.decode else Files(batches, job)


class Files:
    """The files of batches that are not decoded."""

    def __init__(self, batches: Any, job: Job) -> None:
        self.batches = batches
        self.job = job

    def __iter__(self) -> Iterator[Any]:
        for files, labels in self.batches:
            yield [self.job.transform(file.numpy().tobytes()) for file in files], labels


class Images:
    """What DatasetWriter reads: (image, label)."""

    def __init__(self, job: Job) -> None:
        self.samples = job.in_random_order()
        self.decode = job.decode

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return (Image.open(path) if self.decode else np.frombuffer(path.read_bytes(), np.uint8)), label


def prepare(job: Job) -> None:
    field = RGBImageField(write_mode="jpg") if job.decode else BytesField()
    writer = DatasetWriter(str(job.prepared / "images.beton"), {"image": field, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(Images(job))
