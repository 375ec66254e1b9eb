"""The plain script: torchvision's ImageFolder and PyTorch's DataLoader, as in PyTorch's example for ImageNet.

https://github.com/pytorch/examples/blob/main/imagenet/main.py

redoxfs and the other mounts run this file as it is, and open another folder.
"""

from typing import Any

from job import Job
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

PACKAGES = ("torchvision",)


def loader(job: Job) -> Any:
    data = ImageFolder(str(job.images), transform=job.transform, loader=job.read)
    return DataLoader(data, batch_size=job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True)
