"""WebDataset: shards of shuffled samples, and a shuffle buffer of 1,000 samples in each worker.

As in https://github.com/webdataset/webdataset/blob/main/examples/train-resnet50-wds.ipynb, without `resampled`, which
draws shards with replacement and so has no epochs. `unbatched` and `shuffle` mix the batches of the workers, as there.
"""

from typing import Any

import torch
import webdataset
from job import Job

PACKAGES = ("webdataset",)
SHARD_SAMPLES = 1000
BUFFER_SAMPLES = 1000


def loader(job: Job) -> Any:
    shards = sorted(str(path) for path in job.prepared.glob("*.tar"))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER_SAMPLES)
    data = data.to_tuple("jpg", "cls").map_tuple(job.transform, int).batched(job.batch)
    workers = webdataset.WebLoader(data, batch_size=None, num_workers=job.workers, persistent_workers=True)
    return workers.unbatched().map(alone).shuffle(BUFFER_SAMPLES).batched(job.batch)


def alone(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """A copy: a decoded sample of a batch is a view, and in the buffer it would keep the whole batch in memory."""
    return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in sample)


def prepare(job: Job) -> None:
    """Write the shards. The documentation asks for samples in random order, and for more shards than workers."""
    samples = job.in_random_order()
    per_shard = min(SHARD_SAMPLES, -(-len(samples) // job.most_workers))
    with webdataset.ShardWriter(str(job.prepared / "%06d.tar"), maxcount=per_shard, verbose=0) as writer:
        for number, (path, label) in enumerate(samples):
            writer.write({"__key__": f"{number:08}", "jpg": path.read_bytes(), "cls": label})
