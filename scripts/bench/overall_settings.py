"""The settings of the paper's §5.1 and §5.2, its figures, and how overall.py scales them.

The settings keep each ratio that an epoch time depends on:

- *storage to storage*: the rate of large reads to the rate of small files, read one by one. Three A10 nodes
  with PyTorch take 1.61 h for 1.28 million files (Table 4): 74 files a second and node. With Redox they load 126,000
  chunks of 64 files of 105 kB in 0.71 h: 110 MB/s a node. So the storage does at least 1.5 MB in the time of a small
  file. `nas` here is a store (scripts/slow_store.c) that serves R small files and R x 1.5 MB a second: two requests
  are in service, a small file takes two, the open and the read, and a long read is one. With --caps, `nas` is a disk
  with caps of R reads and R x 1.5 MB a second. A cap counts each MiB of a longer read, so that storage delivers at most
  1 MiB in the time of a small file.
- *compute to storage*: No-I/O's share of PyTorch's epoch. Table 1 has it for three models on three P100 nodes. For the
  other models the paper does not give it; `Model.source` names the substitute. A step of the GPU is a sleep of
  this share of 1/R for each sample.
- *memory to data*: the share of the dataset that the memory of a node holds, as the paper gives it for CoorDL.
- *network to storage*: 0.38 GB/s for 7.8 MB/s of small files on A10 and P100, so 49 times.
- *samples to chunks*: 64 files of the workload's size to a chunk.

The settings scale the number of files, and with it the number of classes, so that a class has as many files as in the
paper and the memory as many samples of each class. Where classes are the subject, they are many and small instead:
"small classes" has 12 files in a class, so 1,000 classes with --files 12000, and ImageNet-21k-like 20 on average, of
sizes that differ by a factor of 10. Time is scaled too, by R over the paper's 74 files a second and node: all nodes
together do --reads reads a second, so that two processors carry five nodes. The batch is 16 samples.
"""

from dataclasses import dataclass

import throttle

from redoxfs.chunks.layout import RESIDENT_SHARE

PAPER_READS_PER_S = 1.28e6 / (1.61 * 3600) / 3
"""Files a second and node: PyTorch with ResNet50 on three A10 nodes."""

BYTES_PER_READ = 1_500_000
"""Bytes that storage delivers in the time of a small file: 126e3 chunks * 64 * 105 kB in 0.71 h on 3 nodes."""

NETWORK_PER_STORAGE = 49
"""The link's bytes a second, over those of small files at `PAPER_READS_PER_S`."""

AT_ONCE = 2
"""Requests of a node in service: as many as the two loaders of a rank have under way. So PyTorch gets all of it."""

BATCH = 16
PREFETCH = 4
"""Batches that each worker prepares ahead. The samples of a batch are few here, so PyTorch's 2 would be short."""
REMOTE_SHARE = 1 / 8
"""The default of --remote-memory, as a share of --memory."""

LEAST_CLASSES = 4
CHUNK_SIZE = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset. ``paper_files`` and ``paper_classes`` are those of the paper's.

    ``files_share`` says how many files it has here, as a share of --files, and ``classes_share`` how many classes, as a
    share of its files. ``redirect`` is --classes of redoxfs. In LibriSpeech-like a file holds its own text.
    """

    name: str
    paper_files: int
    paper_classes: int
    smallest_bytes: int
    largest_bytes: int
    redirect: str
    classes_share: float | None = None
    files_share: float = 1.0
    skewed: bool = False
    suffix: str = ".jpg"
    is_jpeg: bool = False

    def files(self, files: int) -> int:
        """How many files it has; a multiple of 30, so that 1, 2, 3 and 5 nodes get equal parts."""
        return max(30, round(files * self.files_share / 30) * 30)

    def classes(self, files: int) -> int:
        if self.classes_share is not None:
            return max(LEAST_CLASSES, round(self.files(files) * self.classes_share))
        return max(LEAST_CLASSES, round(self.paper_classes * self.files(files) / self.paper_files))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("imagenet-1k", 1_281_167, 1000, 55_000, 155_000, "dir"),
        Workload("imagenet-1k, small classes", 1_281_167, 1000, 55_000, 155_000, "dir", classes_share=1 / 12),
        Workload("librispeech", 281_241, 2_484, 100_000, 300_000, "any", files_share=0.5, suffix=".flac"),
        Workload("imagenet-21k", 13_153_500, 21_841, 55_000, 155_000, "dir", classes_share=1 / 20, skewed=True),
        Workload("imagenet-1k, JPEG", 1_281_167, 1000, 0, 0, "dir", files_share=0.25, is_jpeg=True),
    )
}


@dataclass(frozen=True, slots=True)
class Model:
    """``share`` is No-I/O's epoch over PyTorch's; ``source`` says where that comes from. None: a real network."""

    name: str
    share: float | None
    source: str


SQUEEZENET = Model("SqueezeNet", 0.13 / 1.40, "Table 1: 0.13 of 1.40 h")
MOBILENET = Model("MobileNetV3", 0.28 / 1.53, "Table 1: 0.28 of 1.53 h")
RESNET = Model("ResNet50", 0.58 / 1.65, "Table 1: 0.58 of 1.65 h")
WAV2VEC = Model("Wav2Vec 2.0", 0.44, "§5.2: with five nodes Redox is close to No-I/O and 2.18 times PyTorch")
DENSENET = Model("DenseNet121", 0.35, "not given; that of ResNet50")
CNN = Model("a small CNN", None, "a real network on the processor, with decoded JPEGs")


@dataclass(frozen=True, slots=True)
class Setting:
    """``share`` is the memory of a node over the dataset. The paper's speed-ups are Redox over PyTorch and CoorDL."""

    name: str
    workload: str
    nodes: int
    share: float
    models: tuple[Model, ...]
    over_pytorch: float | None = None
    over_coordl: float | None = None
    """The paper's figures, its best over all models."""
    profile: str = "nas"
    where: str = ""
    rate: float = 1.0
    """R of this setting, over that of the others."""


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("1k-p100", "imagenet-1k", 1, 0.35, (SQUEEZENET, MOBILENET, RESNET), 2.13, 1.45, where="one P100 node"),
        Setting("1k-3xa10", "imagenet-1k", 3, 0.08, (RESNET,), 2.26, 1.96, where="three A10 nodes"),
        Setting("1k-5xa10", "imagenet-1k", 5, 0.08, (RESNET,), 2.47, 1.69, where="five A10 nodes"),
        Setting("1k-3xp100", "imagenet-1k", 3, 0.35, (SQUEEZENET, RESNET), 4.57, 1.32, where="three P100 nodes"),
        Setting("libri-a10", "librispeech", 1, 0.16, (WAV2VEC,), 1.77, 1.64, where="one A10 node"),
        Setting("libri-3xa10", "librispeech", 3, 0.16, (WAV2VEC,), 2.18, 1.46, where="three A10 nodes"),
        Setting("libri-5xa10", "librispeech", 5, 0.16, (WAV2VEC,), 2.18, 1.46, where="five A10 nodes"),
        Setting("21k-3xa100", "imagenet-21k", 3, 0.15, (DENSENET,), 2.41, 1.70, where="three A100 nodes"),
        Setting("1k-classes", "imagenet-1k, small classes", 1, 0.35, (RESNET,), where="not in the paper"),
        Setting("1k-hdd", "imagenet-1k", 1, 0.35, (RESNET,), profile="hdd", where="not in the paper"),
        Setting("1k-latency", "imagenet-1k", 1, 0.35, (RESNET,), profile="latency", where="not in the paper"),
        Setting("1k-cnn", "imagenet-1k, JPEG", 1, 0.35, (CNN,), where="not in the paper", rate=0.25),
    )
}


def profile_of(setting: Setting, files_per_s: float, *, caps: bool) -> throttle.Profile:
    """The storage of one node, when all nodes together read ``files_per_s`` small files a second.

    Args:
        caps: cap a disk instead of serving its files slowly.
    """
    if setting.profile != "nas":
        return throttle.PROFILES[{"hdd": "hdd" if caps else "disk"}.get(setting.profile, setting.profile)]
    files = files_per_s * setting.rate / setting.nodes
    bytes_per_s = round(files * BYTES_PER_READ)
    if caps:
        return throttle.Profile("nas", round(files), bytes_per_s)
    delay_ms = 1e3 * AT_ONCE / (throttle.REQUESTS_OF_FILE * files)
    return throttle.Profile("nas", None, bytes_per_s, delay_ms=round(delay_ms, 3), at_once=AT_ONCE)


def mbit_per_s(files_per_s: float, mean_bytes: float) -> int:
    """The link of a node whose storage reads so many small files a second."""
    return round(files_per_s * mean_bytes * NETWORK_PER_STORAGE * 8 / 1e6)


def slots_share(nodes: int) -> float:
    """The share of --memory that holds samples which are loaded and not yet served, with the slot policy."""
    return (1 if nodes == 1 else 1 - REMOTE_SHARE) * RESIDENT_SHARE
