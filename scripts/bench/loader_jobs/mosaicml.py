"""MosaicML Streaming: MDS shards of 64 MiB, its default, and its default shuffle, `py1e`.

https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/quick_start.html. The shards are on local
storage, so `local` names them and there is no `remote`
(https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/faqs_and_tips.html#using-locally-available-datasets).
"""

from typing import Any

from job import Job
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

PACKAGES = ("mosaicml-streaming",)


class Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        super().__init__(local=str(job.prepared), shuffle=True, batch_size=job.batch)
        self.decode = job.transform

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.decode(sample["image"]), sample["label"]


def loader(job: Job) -> Any:
    return DataLoader(Images(job), batch_size=job.batch, num_workers=job.workers, persistent_workers=True)


def prepare(job: Job) -> None:
    with MDSWriter(out=str(job.prepared), columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in job.in_random_order():
            writer.write({"image": path.read_bytes(), "label": label})
