"""LitData's StreamingRawDataset: the plain files as they are, read in whole batches.

https://github.com/Lightning-AI/litdata#stream-raw. Labels come from the paths, as there: `setup` sees all files.
"""

from pathlib import Path
from typing import Any

from job import Job
from litdata import StreamingRawDataset
from torch.utils.data import DataLoader

PACKAGES = ("litdata",)


class ImageFolder(StreamingRawDataset):
    def setup(self, files: Any) -> Any:
        names = [Path(file.path).parent.name for file in files]
        classes = sorted(set(names))
        self.labels = [classes.index(name) for name in names]
        return files

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [
            (image, self.labels[index]) for index, image in zip(indices, super().__getitems__(indices), strict=True)
        ]


def loader(job: Job) -> Any:
    data = ImageFolder(str(job.images), cache_dir=str(job.prepared), transform=job.transform)
    return DataLoader(data, batch_size=job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True)
