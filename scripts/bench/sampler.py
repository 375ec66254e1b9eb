"""A DataLoader with `redoxfs.torch.RedoxSampler`, beside the same loader on a mount that redirects.

Each file has its own number and a label that only a table knows. Two mounts of the same files have the same memory:

    redirecting  --classes any, and a loader with shuffle=True. Labels by name would be wrong
    sampler      --classes sampler, and a RedoxSampler

They take turns, epoch by epoch, so that both meet the same machine. Of each the report has the samples per second; the
processor time for a sample, of the daemon, and of the training process without its workers; how often each chunk was
loaded in an epoch after the first; samples that were read once more; labels by the file's name that are wrong; and the
shuffle quality (`redoxfs.telemetry.quality`) of the order in which the loop got the samples.
"""

import argparse
import os
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mounts
import numpy as np
import numpy.typing as npt
from results import options_of, parse_quick, tell
from torch.utils.data import DataLoader, Dataset

from redoxfs.chunks import build_cells
from redoxfs.dataset import build_catalog, read_tree
from redoxfs.torch import RedoxSampler

sys.path.append(str(Path(__file__).parents[1] / "research"))

from shuffle_quality import quality

CHUNK = 8
FOLDERS = 50
QUICK_FILES, QUICK_EPOCHS = 2000, 3
WAYS = {"redirecting": "any", "sampler": "sampler"}
COLUMNS = (
    *("way", "samples_per_s", "server_us_per_sample", "loop_us_per_sample", "loads_per_chunk", "samples_reread"),
    *("wrong_labels", "displacement", "mate_pairs"),
)


class Numbered(Dataset[tuple[int, int]]):
    """Files that begin with their number; each is named by it. An item: the number in the file, and in the name."""

    def __init__(self, root: Path, files: int) -> None:
        self.paths = [name_of(root, number) for number in range(files)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, int]:
        with open(self.paths[index], "rb") as file:
            return int(file.read()[:8]), index


def name_of(root: Path, number: int) -> str:
    return f"{root}/train/{number % FOLDERS}/{number:08d}.jpg"


def make_files(root: Path, files: int, size: int) -> None:
    for number in range(min(files, FOLDERS)):
        os.makedirs(os.path.dirname(name_of(root, number)))
    for number in range(files):
        Path(name_of(root, number)).write_bytes(f"{number:08d}".encode() + random.randbytes(size - 8))


def chunks_of_files(root: Path) -> npt.NDArray[np.int32]:
    """int32[files]: the chunk of each file, as the mounts have them."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        catalog = build_catalog(read_tree(fd), classes="any")
    finally:
        os.close(fd)
    cells = build_cells(
        catalog.class_of, catalog.sample_bytes, chunk_size=CHUNK, seed=0, tree_of_class=catalog.tree_of_class
    ).cells
    chunk_of = np.empty(len(catalog.class_of), np.int32)
    for chunk, samples in enumerate(cells.tolist()):
        for sample in samples:
            if sample >= 0:
                name = catalog.tree.path(int(catalog.members[catalog.member_at[sample]]))
                chunk_of[int(os.path.basename(name).split(b".")[0])] = chunk
    return chunk_of


class Way:
    """One of the mounts, and its loader."""

    def __init__(self, name: str, root: Path, arguments: argparse.Namespace, server: int) -> None:
        self.name = name
        self._server = server
        self._server_s = self._loop_s = 0.0
        self._root = root
        dataset = Numbered(root, arguments.files)
        order = {"sampler": RedoxSampler(dataset)} if name == "sampler" else {"shuffle": True}
        options: dict[str, Any] = {"persistent_workers": True} if arguments.workers else {}
        self._loader = DataLoader(
            dataset, batch_size=arguments.batch, num_workers=arguments.workers, **order, **options
        )
        self._orders: list[npt.NDArray[np.int32]] = []
        self._rates: list[float] = []
        self._wrong_labels = 0
        self._stats: list[dict[str, Any]] = []

    def epoch(self) -> None:
        server_s, loop_s = mounts.cpu_s(self._server), time.process_time()
        began = time.monotonic()
        batches = [(numbers, indices) for numbers, indices in self._loader]
        seconds = time.monotonic() - began
        self._server_s += mounts.cpu_s(self._server) - server_s
        self._loop_s += time.process_time() - loop_s
        served = np.concatenate([numbers.numpy() for numbers, _ in batches]).astype(np.int32)
        asked = np.concatenate([indices.numpy() for _, indices in batches])
        self._wrong_labels += int(np.count_nonzero(served != asked))
        self._rates.append(len(served) / seconds)
        self._orders.append(served)
        self._stats.append(mounts.stats(self._root))

    def row(self, chunk_of: npt.NDArray[np.int32], batch: int) -> dict[str, Any]:
        first, last = self._stats[0], self._stats[-1]
        epochs = len(self._stats) - 1
        whole = all(len(np.unique(order)) == len(order) == len(chunk_of) for order in self._orders)
        found = quality(self._orders, chunk_of, batch=batch) if whole else None
        return {
            "way": self.name,
            "samples_per_s": statistics.median(self._rates),
            "all_samples_per_s": self._rates,
            "server_us_per_sample": 1e6 * self._server_s / len(chunk_of) / len(self._rates),
            "loop_us_per_sample": 1e6 * self._loop_s / len(chunk_of) / len(self._rates),
            "epochs_are_exact": whole,
            "loads_per_chunk": (last["chunk_loads"] - first["chunk_loads"]) / epochs / last["chunks"],
            "samples_reread": last["samples_reread"],
            "redirected": last["redirected"],
            "wrong_labels": self._wrong_labels,
            "errors": last["errors"],
            "displacement": found and found.displacement,
            "rank_correlation": found and found.rank_correlation,
            "mate_pairs": found and found.mate_pairs,
            "mate_pairs_if_random": found and found.mate_pairs_if_random,
        }


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=20_000, help="bytes of a file")
    parser.add_argument("--memory", type=float, default=0.1, help="of each mount, as a share of the data")
    parser.add_argument("--epochs", type=int, default=4, help="at least 2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files are made")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FILES:,} files, {QUICK_EPOCHS} epochs")
    arguments = parse_quick(parser, files=QUICK_FILES, epochs=QUICK_EPOCHS, size=2000, batch=16)
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2")
    random.seed(arguments.seed)
    with ExitStack() as ends:
        folder = ends.enter_context(mounts.work_folder(arguments.folder))
        make_files(folder / "data", arguments.files, arguments.size)
        memory = str(int(arguments.files * arguments.size * arguments.memory))
        ways = []
        for name, classes in WAYS.items():
            options = ("--classes", classes, "--chunk-size", str(CHUNK), "--memory", memory)
            command = mounts.redoxfs(folder / "data", folder / name, *options)
            server = ends.enter_context(mounts.served_by(command, folder / name))
            ways.append(Way(name, folder / name, arguments, server.pid))
        for _ in range(arguments.epochs):
            for way in ways:
                way.epoch()
        chunk_of = chunks_of_files(folder / "data")
        rows = [way.row(chunk_of, arguments.batch) for way in ways]
        # Their workers have files open.
        del ways, way
    settings = {name: getattr(arguments, name) for name in ("files", "size", "memory", "workers", "batch", "seed")}
    report = {"benchmark": "sampler", "machine": mounts.machine(), **settings, "rows": rows}
    tell(report, arguments.json, *COLUMNS)
    drawn = rows[-1]
    wrong = [f"{row['way']}: {row['errors']} errors" for row in rows if row["errors"]]
    wrong += [f"{row['way']}: an epoch was not exact" for row in rows if not row["epochs_are_exact"]]
    if drawn["redirected"] or drawn["wrong_labels"]:
        wrong.append(f"sampler: {drawn['redirected']} opens redirected, {drawn['wrong_labels']} labels wrong")
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
