"""Hugging Face datasets, `imagefolder`, streamed from the plain files through a shuffle buffer of 1,000 samples.

https://huggingface.co/docs/datasets/stream#shuffle; `set_epoch` as there. The library deals its shards to the workers.
"""

from typing import Any

from datasets import Image, load_dataset
from job import Job
from torch.utils.data import DataLoader, default_collate

PACKAGES = ("datasets",)
BUFFER_SAMPLES = 1000


def loader(job: Job) -> Any:
    def transform(row: Any) -> Any:
        image = row["image"]
        return {"image": job.pixels(image) if job.decode else job.transform(image["bytes"] or job.read(image["path"]))}

    data = load_dataset("imagefolder", data_dir=str(job.images), split="train", streaming=True)
    data = data.cast_column("image", Image(decode=job.decode)).shuffle(seed=0, buffer_size=BUFFER_SAMPLES)
    return DataLoader(
        data.map(transform),
        batch_size=job.batch,
        num_workers=job.workers,
        persistent_workers=True,
        collate_fn=lambda rows: default_collate([(row["image"], row["label"]) for row in rows]),
    )


def begin_epoch(loader: Any, epoch: int) -> None:
    loader.dataset.set_epoch(epoch)
