"""What jobs on several nodes get: how many samples come twice in an epoch, told and not, by the code that serves.

    python scripts/bench/node_opens.py [--nodes 3] [--files 480] [--epochs 6] [--seeds 5]

Prints the table of docs/loaders.md. Each rank has its share of one random order in each epoch, as with PyTorch's
DistributedSampler, and batches of 64. Memory of all nodes together holds a third of the files. Messages arrive at once.
Ranks open in step, or, where they are apart, in random turn, up to 8 opens; they meet between epochs, as the ranks
of a data-parallel job do. What a job opens twice itself does not count. A figure is the worst of all seeds.

"rank correlation" is that of successive epochs from the third on, not told: 0 if they are independent.
"""

import argparse
import itertools
import random
from collections.abc import Sequence

import numpy as np
from loader_opens import BATCH, CHUNK, CLASSES
from rich.console import Console
from rich.table import Table

from redoxfs.chunks import build_cells, deal
from redoxfs.protocol import LocalFirst, Pending, PoolPolicy, Take

APART = 8
RESIDENT = 1 / 3

JOBS = {
    "whole epochs": "whole",
    "the last batch dropped": "drop_last",
    "a tenth left out": "tenth",
    "3 files left out": "three",
    "an epoch broken off at half, then whole ones": "broken off",
    "a fifth first, then whole ones": "fifth",
    "the same 7 files on each node before each": "same",
    "a sampler that repeats 5 files, beyond those": "padded",
}

Epoch = list[list[int]]
"""By node, the paths that it opens."""


class Nodes:
    """Nodes that serve one job, each with its own pool."""

    def __init__(self, nodes: int, files: int, seed: int) -> None:
        class_of = (np.arange(files) * CLASSES // files).astype(np.int32)
        sizes = np.ones(files, np.int64)
        cells = build_cells(class_of, sizes, chunk_size=CHUNK, seed=seed)
        part_of = deal(cells, nodes, seed=seed)
        capacity = int(files * RESIDENT / nodes)
        self.nodes = []
        for number in range(nodes):
            pool = PoolPolicy(
                cells.cells,
                class_of,
                sizes,
                capacity_bytes=capacity,
                retained_bytes=capacity // 2,
                seed=seed + number,
                covered=part_of == number,
            )
            room_bytes = files // 20
            self.nodes.append(
                LocalFirst(
                    number, pool, class_of, part_of, sizes, nodes=nodes, remote_memory_bytes=room_bytes, seed=seed
                )
            )

    def open(self, number: int, path: int) -> int:
        """The sample that answers an open at a node."""
        node = self.nodes[number]
        turn = node.request(path)
        delivered = {}
        while node.outbox:
            message = node.outbox.pop(0)
            assert isinstance(message, Take)
            answer = self.nodes[message.home].handle(message).answer
            assert answer is not None
            delivered.update(dict(node.receive(answer) or ()))
        served = delivered[turn.ticket] if isinstance(turn, Pending) else turn
        assert served is not None
        return int(served.sample)

    def read(self, epoch: Epoch, draw: random.Random, *, apart: int) -> list[int]:
        """The samples in the order of their opens."""
        got, at = [], [0] * len(epoch)
        while rest := [number for number, paths in enumerate(epoch) if at[number] < len(paths)]:
            last = min(at[number] for number in rest)
            ready = [number for number in rest if at[number] <= last + apart]
            number = draw.choice(ready) if apart else ready[0]
            got.append(self.open(number, epoch[number][at[number]]))
            at[number] += 1
        return got


def epochs_of(job: str, nodes: int, files: int, epochs: int, draw: random.Random) -> list[tuple[bool, Epoch]]:
    """What is read, and whether it is an epoch."""
    each = files // nodes
    most = {"drop_last": each // BATCH * BATCH, "tenth": each * 9 // 10, "three": each - 1}.get(job, files)

    def dealt(order: Sequence[int], most: int = most) -> Epoch:
        return [[*order[number::nodes][:most]] for number in range(nodes)]

    read: list[tuple[bool, Epoch]] = []
    if job == "fifth":
        read.append((False, dealt(range(files), each // 5)))
    if job == "broken off":
        read += [(True, dealt(draw.sample(range(files), files))), (False, dealt(range(files), each // 2))]
    while sum(is_epoch for is_epoch, _ in read) < epochs:
        if job == "same":
            read.append((False, dealt(range(files), 7)))
        order = draw.sample(range(files), files)
        read.append((True, dealt(order + order[:5] * (job == "padded"))))
    return read


def twice(numbers: Sequence[int]) -> int:
    return len(numbers) - len(set(numbers))


def played(
    job: str, seed: int, *, nodes: int, files: int, epochs: int, apart: int = 0, told: bool = False
) -> tuple[list[int], float]:
    """By epoch, how many samples came twice; and the rank correlation of successive epochs from the third on."""
    draw, mounts = random.Random(seed), Nodes(nodes, files, seed)
    repeated, orders = [], []
    for is_epoch, epoch in epochs_of(job, nodes, files, epochs, draw):
        if told:
            for node in mounts.nodes:
                node.begin_pass(None)
        got = mounts.read(epoch, draw, apart=apart)
        if is_epoch:
            repeated.append(twice(got) - twice([*itertools.chain(*epoch)]))
            orders.append({sample: at for at, sample in enumerate(got)})
    alike = []
    for before, after in itertools.pairwise(orders[2:]):
        both = [sample for sample in before if sample in after]
        alike.append(np.corrcoef([before[sample] for sample in both], [after[sample] for sample in both])[0, 1])
    return repeated, float(np.mean(alike))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 3), ("files", 480), ("epochs", 6), ("seeds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    size = {"nodes": arguments.nodes, "files": arguments.files, "epochs": arguments.epochs}
    table = Table("what the job does")
    for column in ("not told", "from the third epoch on", f"{APART} opens apart", "told", f"told, {APART} apart"):
        table.add_column(column, justify="right")
    table.add_column("rank correlation", justify="right")
    for name, job in JOBS.items():
        of_seeds = {
            (apart, told): [played(job, seed, apart=apart, told=told, **size) for seed in range(arguments.seeds)]
            for told in (False, True)
            for apart in (0, APART)
        }
        worst = {way: max(max(repeated) for repeated, _ in runs) for way, runs in of_seeds.items()}
        later = max(max(repeated[2:]) for repeated, _ in of_seeds[0, False])
        alike = np.mean([correlation for _, correlation in of_seeds[0, False]])
        figures = (worst[0, False], later, worst[APART, False], worst[0, True], worst[APART, True])
        table.add_row(name, *map(str, figures), f"{alike:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
