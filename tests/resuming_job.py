"""A training job that is killed and resumed, one process a rank: resuming_job.py JOB.json RANK

Each rank writes the samples that it trained on, one line a batch. A checkpoint has the length of these files, as a
model has what it was trained on. A job that starts cuts them back to its checkpoint. So at the end they have what the
final model was trained on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

STEP_S = 0.004
"""Of a training step: longer than a worker takes for a file, so that loaders are ahead."""


Ranks: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """One start of a job.

    ``root``    of the dataset; "{rank}" in it stands for the rank
    ``folder``  of the checkpoint and of the ranks' files
    ``every``   batches between two checkpoints
    ``less``    of `redoxfs state save --less`, in place of redoxfs.torch; -1: use redoxfs.torch
    ``lag_s``   that all workers but the first take longer for a file
    """

    root: str
    folder: str
    ranks: int = 1
    workers: int = 4
    prefetch: int = 4
    batch: int = 4
    epochs: int = 2
    every: int = 3
    seed: int = 0
    persistent: bool = False
    stateful: bool = False
    less: int = -1
    lag_s: float = 0.0

    @property
    def ahead(self) -> int:
        """The last opens among which are all that the loaders of all ranks have ahead, and the batch of a step."""
        return self.ranks * (2 * self.workers * self.prefetch + 1) * self.batch

    def start(self, environment: dict[str, str]) -> list[subprocess.Popen[str]]:
        """Start the ranks. Each writes a line when it has its first batch, or has nothing left to do."""
        folder = Path(self.folder)
        (folder / "meet").unlink(missing_ok=True)
        (folder / "job.json").write_text(json.dumps(asdict(self)))
        command = [sys.executable, __file__, str(folder / "job.json")]
        # A rank that is killed leaves its temporary files.
        environment = {**environment, "TMPDIR": self.folder}
        return [
            subprocess.Popen(
                [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in range(self.ranks)
        ]

    def trained_on(self) -> list[Counter[str]]:
        """By epoch: how often the job was trained on each sample."""
        found: list[Counter[str]] = [Counter() for _ in range(self.epochs)]
        for path in Path(self.folder).glob("trained.*"):
            for line in path.read_text().splitlines():
                epoch, *samples = line.split()
                found[int(epoch)].update(samples)
        return found


def make_files(root: Path, classes: int, files: int) -> None:
    """Files that name themselves, in ``classes`` folders."""
    for number in range(files):
        path = root / f"class{number % classes}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"class{number % classes}/{number} ".encode().ljust(2000 + number % 7, b"."))


class Files:
    """The files of a tree, each read with its label from its path."""

    def __init__(self, root: str, lag_s: float = 0.0) -> None:
        self._paths = sorted(Path(root).glob("*/*.bin"))
        self._lag_s = lag_s

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> str:
        path = self._paths[index]
        if self._lag_s and _worker() > 0:
            time.sleep(self._lag_s)
        name = path.read_bytes().split()[0].decode()
        assert name.startswith(path.parent.name + "/"), f"{path} has the bytes of {name}"
        return name


def _worker() -> int:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return -1 if info is None else int(info.id)


def main(job: Job, rank: int) -> None:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    import redoxfs.torch

    torch.set_num_threads(1)
    folder = Path(job.folder)
    if job.ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=job.ranks
        )
    root = job.root.format(rank=rank)
    dataset: Any = Files(root, job.lag_s)
    sampler: Any = DistributedSampler(dataset, job.ranks, rank, seed=job.seed)
    kind: Any = DataLoader
    if job.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader

        kind = StatefulDataLoader
    options: dict[str, Any] = {"batch_size": job.batch, "num_workers": job.workers, "collate_fn": list}
    if job.workers:
        options |= {"prefetch_factor": job.prefetch, "persistent_workers": job.persistent}

    checkpoint = folder / "checkpoint.json"
    saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    _cut(folder, rank, saved)

    def save(epoch: int, step: int, state: Any) -> None:
        lengths = {path.name: path.stat().st_size for path in folder.glob("trained.*")}
        if rank == 0:
            new = folder / "checkpoint.new"
            new.write_text(json.dumps({"epoch": epoch, "step": step, "state": state, "lengths": lengths}))
            new.rename(checkpoint)
        _meet(job)

    def train(loader: Any, epoch: int, first: int, state_of: Any) -> None:
        with open(folder / f"trained.{rank}", "a") as trained:
            for step, batch in enumerate(loader, first):
                if step == first:
                    print("training", flush=True)
                time.sleep(STEP_S)
                trained.write(f"{epoch} {' '.join(batch)}\n")
                trained.flush()
                _meet(job)
                if (step + 1) % job.every == 0:
                    save(epoch, step + 1, state_of(step + 1))

    epoch, step = (saved["epoch"], saved["step"]) if saved else (0, 0)
    if job.less < 0:
        loader = redoxfs.torch.track(kind(dataset, sampler=sampler, **options), root)
        if saved:
            redoxfs.torch.load_state_dict(loader, saved["state"])
        else:
            save(0, 0, redoxfs.torch.state_dict(loader))
        for number in range(epoch, job.epochs):
            sampler.set_epoch(number)
            train(loader, number, step, lambda _: redoxfs.torch.state_dict(loader))
            step = 0
            save(number + 1, 0, redoxfs.torch.state_dict(loader))
    else:
        if not saved:
            save(0, 0, _state_saved(job, rank, 0, 0))
        for number in range(epoch, job.epochs):
            sampler.set_epoch(number)
            left = list(sampler)[step * job.batch :]
            loader = kind(dataset, sampler=left, **options)
            train(loader, number, step, lambda done, epoch=number: _state_saved(job, rank, epoch, done))
            step = 0
            save(number + 1, 0, _state_saved(job, rank, number + 1, 0))
    print("done", flush=True)


def _cut(folder: Path, rank: int, saved: Any) -> None:
    """Forget what was trained since the checkpoint; of ranks that are no more as well."""
    if rank == 0:
        for path in folder.glob("trained.*"):
            os.truncate(path, saved["lengths"].get(path.name, 0) if saved else 0)


def _meet(job: Job) -> None:
    if job.ranks > 1:
        import torch.distributed

        torch.distributed.barrier()


def _state_saved(job: Job, rank: int, epoch: int, step: int) -> str | None:
    """The file of a state that the command line saved."""
    state = Path(job.folder) / f"{epoch}-{step}.state"
    if rank == 0:
        # Between epochs nothing is ahead.
        less = job.less if step else 0
        command = [sys.executable, "-m", "redoxfs", "state", "save", job.root, str(state), "--less", str(less)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return os.fspath(state)


def killed_runs(job: Job, environment: dict[str, str], delays: Iterator[float], ranks_of: Iterable[int] = ()) -> int:
    """Run ``job`` to its end, killed after each of ``delays`` in s from its first batch; how often it was killed.

    ``ranks_of``: how many ranks it starts with each time, from the first again.
    """
    numbers = cycle(ranks_of or (job.ranks,))
    kills = 0
    while True:
        job = replace(job, ranks=next(numbers))
        if job.less >= 0 and (Path(job.folder) / "checkpoint.json").exists():
            state = json.loads((Path(job.folder) / "checkpoint.json").read_text())["state"]
            command = [sys.executable, "-m", "redoxfs", "state", "load", job.root, state]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        ranks = job.start(environment)
        try:
            assert ranks[0].stdout is not None
            said = ranks[0].stdout.readline()
            delay = next(delays, None) if said == "training\n" else None
            if delay is not None:
                time.sleep(delay)
                for rank in ranks:
                    rank.send_signal(signal.SIGKILL)
                kills += 1
            told = [rank.communicate(timeout=300) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if delay is None:
            codes = [rank.returncode for rank in ranks]
            if any(codes):
                raise RuntimeError(f"ranks ended with {codes}: {''.join(error for _, error in told)}")
            return kills


if __name__ == "__main__":
    main(Job(**json.loads(Path(sys.argv[1]).read_text())), int(sys.argv[2]))
