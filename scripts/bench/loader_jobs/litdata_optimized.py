"""LitData's optimized format: chunks of 64 MB, read with StreamingDataset and StreamingDataLoader.

https://github.com/Lightning-AI/litdata#optimize-data: the default size of a chunk, and `shuffle=True`.
"""

from typing import Any

from job import Job
from litdata import StreamingDataLoader, StreamingDataset, optimize

PACKAGES = ("litdata",)


class Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        super().__init__(str(job.prepared / "chunks"), shuffle=True)
        self.decode = job.transform

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.decode(sample["image"]), sample["label"]


def loader(job: Job) -> Any:
    return StreamingDataLoader(Images(job), batch_size=job.batch, num_workers=job.workers, persistent_workers=True)


def sample(image: Any) -> dict[str, Any]:
    path, label = image
    return {"image": path.read_bytes(), "label": label}


def prepare(job: Job) -> None:
    optimize(
        sample,
        job.in_random_order(),
        str(job.prepared / "chunks"),
        num_workers=2,
        chunk_bytes="64MB",
        reorder_files=False,
        keep_data_ordered=True,
        verbose=False,
    )
