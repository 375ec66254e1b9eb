"""SPDL: threads instead of processes, on the plain files; stages for reading and decoding, and its own decoder.

https://facebookresearch.github.io/spdl/latest/getting_started/pytorch.html. A stage has as many threads as others have
workers. Pixels are decoded as in
https://github.com/facebookresearch/spdl/blob/main/examples/image_dataloading.py, which scales in FFmpeg.
"""

from collections.abc import Iterator
from typing import Any

import spdl.io
from job import Job
from jpegs import SCALED_PIXELS
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler
from torchvision.datasets import ImageFolder

PACKAGES = ("spdl", "spdl_io")


class Loader:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.samples = ImageFolder(str(job.images)).samples
        self.sampler = DistributedRandomSampler(len(self.samples), rank=0, world_size=1)
        size = {"scale_width": SCALED_PIXELS, "scale_height": SCALED_PIXELS}
        self.scaling = spdl.io.get_video_filter_desc(**size, pix_fmt="rgb24")

    def read(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.job.read(path), label

    def decode(self, sample: Any) -> Any:
        data, label = sample
        if not self.job.decode:
            return self.job.transform(data), label
        return spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=self.scaling), label

    def collate(self, samples: list[Any]) -> Any:
        images, labels = zip(*samples, strict=True)
        if not self.job.decode:
            return images, labels
        return spdl.io.to_torch(spdl.io.convert_frames(images)), labels

    def __iter__(self) -> Iterator[Any]:
        builder = PipelineBuilder().add_source(self.sampler)
        builder.pipe(self.read, concurrency=self.job.workers, output_order="completion")
        builder.pipe(self.decode, concurrency=self.job.workers)
        builder.aggregate(self.job.batch).pipe(self.collate).add_sink(self.job.workers)
        pipeline = builder.build(num_threads=2 * self.job.workers)
        with pipeline.auto_stop():
            yield from pipeline


def loader(job: Job) -> Any:
    return Loader(job)


def begin_epoch(loader: Any, epoch: int) -> None:
    loader.sampler.shuffle(seed=epoch)
