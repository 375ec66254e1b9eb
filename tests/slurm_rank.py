"""One rank of a job under Slurm, an unmodified training script, which slurm_jobs submits.

    slurm_rank.py MOUNTPOINT EPOCHS

The rank reads its part of the ImageFolder below MOUNTPOINT/train in an order that all ranks share. After each epoch the
ranks wait for each other through files of their working directory. out-JOB-RANK gets a line for each file: the epoch,
the path that was opened, and the path that the image was made for.

A rank that gets SIGUSR1 makes told-JOB-RANK, as a training writes a checkpoint. If end-JOB exists after an epoch, the
ranks exit with CODE_OF_AN_END.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from images import path_in

CODE_OF_AN_END = 3


def main(mountpoint: Path, epochs: int) -> None:
    """Read; an error ends the rank with a traceback, as it would end a training."""
    job, rank, ranks = (os.environ[f"SLURM_{name}"] for name in ("JOB_ID", "PROCID", "NTASKS"))
    paths = sorted(path.relative_to(mountpoint) for path in mountpoint.glob("train/*/*"))
    assert paths, f"no images at {mountpoint}"
    signal.signal(signal.SIGUSR1, lambda *_: Path(f"told-{job}-{rank}").touch())
    with open(f"out-{job}-{rank}", "w", encoding="utf-8") as out:
        for epoch in range(epochs):
            random.Random(epoch).shuffle(paths)
            for path in paths[int(rank) :: int(ranks)]:
                print(epoch, path, path_in((mountpoint / path).read_bytes()), file=out, flush=True)
            if Path(f"end-{job}").exists():
                Path(f"end-{job}-{epoch}-{rank}").touch()
            Path(f"meet-{job}-{epoch}-{rank}").touch()
            while not all(Path(f"meet-{job}-{epoch}-{other}").exists() for other in range(int(ranks))):
                time.sleep(0.05)
            # All have seen it, or another epoch follows for all.
            if all(Path(f"end-{job}-{epoch}-{other}").exists() for other in range(int(ranks))):
                sys.exit(CODE_OF_AN_END)
            # Longer each time: a job that runs until Slurm notices something leaves the machine to others.
            time.sleep(epoch * 0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
