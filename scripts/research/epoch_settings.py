"""The paper's clusters, datasets and models, as `epoch_times` simulates them, each figure with its source.

What the paper gives is taken from it. What it does not give is calibrated on four of its results, or is a substitute
that is named. Two are of ResNet50 on three A10 nodes (Table 4): PyTorch's epoch and Redox' loads. The others are a
speed-up over PyTorch of each other dataset, with five A10 and with three A100 nodes: there Redox is taken to be as
fast as No-I/O. No other result of the paper was used, so the others are predictions. `Cluster` and `Model` have the
figures that a run with ``--vary`` changes by a quarter, up and down.
"""

from dataclasses import dataclass

CHUNK_SIZE = 64
"""§5.5."""

READAHEAD_BATCHES = 2
"""Batches that each worker may be ahead: the default ``prefetch_factor`` of PyTorch's DataLoader."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset (Table 3)."""

    name: str
    files: int
    classes: int
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """A node of a cluster (Table 2), and its storage.

    ``workers``         processes that read and decode; ``file_s``: what a file costs one of them beside waiting
    ``latency_s``       of a read, ``reads``: how many storage has in service at a time for one node
    ``bytes_per_s``     that storage delivers to one node
    ``link_bytes_per_s``, ``message_s``   between nodes: bandwidth, and a message there and back
    ``open_s``          what an open through redoxfs takes longer than one of a file in memory
    ``file_reads``      how many reads of storage, one after the other, a file costs that is read by itself
    ``ahead``           batches that each worker may be ahead
    """

    name: str
    memory_bytes: float
    workers: int
    latency_s: float
    reads: int
    bytes_per_s: float
    link_bytes_per_s: float
    file_s: float
    message_s: float = 0.5e-3
    open_s: float = 0.2e-3
    file_reads: int = 1
    ahead: int = READAHEAD_BATCHES


@dataclass(frozen=True, slots=True)
class Model:
    """``sample_s``: what a sample takes on the accelerators of one node; ``batch``: samples of a step of one node."""

    name: str
    sample_s: float
    batch: int


@dataclass(frozen=True, slots=True)
class Setting:
    """Nodes that train.

    ``over_pytorch``, ``over_coordl``   the paper's best speed-ups of Redox over all its models
    ``as_mounted``  the slot policy does not read whole chunks, as in the paper, but what a mount of packed data reads
    """

    name: str
    workload: Workload
    cluster: Cluster
    nodes: int
    models: tuple[Model, ...]
    over_pytorch: float
    over_coordl: float
    as_mounted: bool = False


IMAGENET_1K = Workload("imagenet-1k", 1_281_167, 1_000, 105_000)  # 135 GB
IMAGENET_21K = Workload("imagenet-21k", 13_153_500, 21_841, 84_000)  # 1.1 TB
LIBRISPEECH = Workload("librispeech", 281_241, 2_484, 213_000)  # 60 GB

# Calibrated: PyTorch takes 1.61 h for 1.28 M files on three A10 nodes, whose memory holds 8.3 % of them each. So a node
# reads 67.5 files/s with the 8 workers of its 8 cores.
_NAS_FILES_PER_S = 1_281_167 * (1 - 0.083) / 3 / (1.61 * 3600)
# Calibrated: Redox loads 126,000 chunks of 64 files there in 0.71 h, which is 110 MB/s a node.
_NAS_BYTES_PER_S = 126e3 * 64 * 105_000 / 3 / (0.71 * 3600)
# Substitute: decoding and cropping a JPEG of 400 x 350 with Pillow, on one core of 2.5 GHz.
_DECODE_S = 8e-3


def _on_nas(name: str, memory_bytes: float) -> Cluster:
    return Cluster(
        name,
        memory_bytes,
        workers=8,
        reads=8,
        latency_s=8 / _NAS_FILES_PER_S - 105_000 / _NAS_BYTES_PER_S - _DECODE_S,
        bytes_per_s=_NAS_BYTES_PER_S,
        link_bytes_per_s=0.38e9,
        file_s=_DECODE_S,
    )


# Memory: three A10 nodes hold 25 % of ImageNet-1k, five 40 %, three P100 nodes all of it (§5.2). One P100 node: the
# same. So of 16 and 60 GB, 11 and 47 GB are left for data.
A10, P100 = _on_nas("A10", 11.2e9), _on_nas("P100", 47e9)
# Substitutes, as the paper says nothing of its Lustre: 48 reads at a time for one node, at the link's 3 GB/s. Decoding:
# half of the above. Four A100 train 2,600 and 1,900 images/s with DenseNet121 and VGG16 in fp32.
DENSENET, VGG = Model("DenseNet121", 1 / 2_600, 256), Model("VGG16", 1 / 1_900, 256)
# Calibrated: on three nodes PyTorch takes 2.41 times as long as Redox, and 96 % of its reads miss a page cache of 15 %.
_LUSTRE_S = 48 * 2.41 * DENSENET.sample_s / 0.96 - 4e-3
A100 = Cluster(
    "A100",
    170e9,
    workers=48,
    reads=48,
    latency_s=_LUSTRE_S,
    bytes_per_s=3e9,
    link_bytes_per_s=3e9,
    file_s=4e-3,
)

# Table 1: No-I/O's part of an epoch on three P100 nodes.
SQUEEZENET = Model("SqueezeNet", 0.13 * 3600 * 3 / 1_281_167, 512)
MOBILENET = Model("MobileNetV3", 0.28 * 3600 * 3 / 1_281_167, 256)
RESNET = Model("ResNet50", 0.58 * 3600 * 3 / 1_281_167, 128)
# Substitute: an A10 has 1.4 times the rate of a P100 in training ResNet50 in fp32.
_A10_RATE = 1.4
A10_MODELS = tuple(
    Model(model.name, model.sample_s / _A10_RATE, model.batch) for model in (SQUEEZENET, MOBILENET, RESNET)
)
# Calibrated: on five nodes PyTorch takes 2.18 times as long as Redox, which "is very close to No I/O" there (§5.2), and
# 91 % of its reads miss a page cache of 16 %.
WAV2VEC = Model(
    "Wav2Vec 2.0", 0.91 * (A10.latency_s + LIBRISPEECH.sample_bytes / A10.bytes_per_s + _DECODE_S) / 8 / 2.18, 64
)

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("1k-p100", IMAGENET_1K, P100, 1, (SQUEEZENET, MOBILENET, RESNET), 2.13, 1.45),
        Setting("1k-3xp100", IMAGENET_1K, P100, 3, (SQUEEZENET, MOBILENET, RESNET), 4.57, 1.32),
        Setting("1k-3xa10", IMAGENET_1K, A10, 3, A10_MODELS, 2.26, 1.96),
        Setting("1k-5xa10", IMAGENET_1K, A10, 5, A10_MODELS, 2.47, 1.69),
        Setting("libri-a10", LIBRISPEECH, A10, 1, (WAV2VEC,), 1.77, 1.64),
        Setting("libri-3xa10", LIBRISPEECH, A10, 3, (WAV2VEC,), 2.18, 1.46),
        Setting("libri-5xa10", LIBRISPEECH, A10, 5, (WAV2VEC,), 2.18, 1.46),
        Setting("21k-2xa100", IMAGENET_21K, A100, 2, (DENSENET, VGG), 2.37, 1.73),
        Setting("21k-3xa100", IMAGENET_21K, A100, 3, (DENSENET, VGG), 2.41, 1.70),
    )
}
