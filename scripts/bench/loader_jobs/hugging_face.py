"""Hugging Face datasets, `imagefolder`, map-style: an Arrow table with the paths of the files, in PyTorch's DataLoader.

https://huggingface.co/docs/datasets/image_dataset#imagefolder and
https://huggingface.co/docs/datasets/use_with_pytorch#data-loading
"""

from typing import Any

from datasets import Image, load_dataset
from job import Job
from torch.utils.data import DataLoader, default_collate

PACKAGES = ("datasets",)


def table(job: Job) -> Any:
    return load_dataset("imagefolder", data_dir=str(job.images), split="train", cache_dir=str(job.prepared))


def loader(job: Job) -> Any:
    def transform(rows: Any) -> Any:
        if job.decode:
            images = [job.pixels(image) for image in rows["image"]]
        else:
            images = [job.transform(job.read(image["path"])) for image in rows["image"]]
        return {"samples": list(zip(images, rows["label"], strict=True))}

    data = table(job).cast_column("image", Image(decode=job.decode)).with_transform(transform)
    return DataLoader(
        data,
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=True,
        collate_fn=lambda rows: default_collate([row["samples"] for row in rows]),
    )


def prepare(job: Job) -> None:
    table(job)
