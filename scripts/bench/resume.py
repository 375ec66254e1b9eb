"""Kills and resumes training jobs at random moments, and counts the samples that each was trained on.

    scripts/bench/resume.py [--kills 50] [--files 1440] [--seed 1] [--quick] [--json FILE]

A job trains for two epochs on a mount with memory for a quarter of the samples, with 4 workers and prefetch_factor 4.
It writes a checkpoint after every third batch. SIGKILL ends all of its ranks at a random moment, and the job starts
again from its checkpoint, on the same mount. The workers are not killed: they notice by themselves. Batches after the
last checkpoint before a kill do not count, since the final model has not seen them.

The kills are spread over these settings: 1 and 3 ranks, persistent workers and not, DataLoader and torchdata's
StatefulDataLoader, no workers, and jobs that start again with another number of ranks, all with `redoxfs.torch`; and
the command line alone, with `redoxfs state save --less N` for N = ranks * (2 * workers * prefetch_factor + 1) * batch.

How to read the result: with `redoxfs.torch`, "not once" must be 0: each epoch trains on each sample once. With
``--less`` some samples may come again in place of others: "most again in an epoch" must be at most N for each kill of
the job. The exit code is 1 if anything was wrong. 50 kills take about ten minutes on two cores, most of it to import
PyTorch. --quick makes 4 kills.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mounts
from results import options_of, parse_quick, shares, tell

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from machine import Machine
from resuming_job import STEP_S, Job, Ranks, killed_runs, make_files

CLASSES = 4
QUICK_KILLS, QUICK_FILES = 4, 360
COLUMNS = ("name", "kills", "jobs", "samples_not_once", "most_again", "allowed_again", "redirected")


@dataclass(frozen=True, slots=True)
class Case:
    """A setting. ``ranks``: for each start, repeated from the first. ``less``: with the command line alone."""

    name: str
    ranks: Ranks = (1,)
    workers: int = 4
    persistent: bool = False
    stateful: bool = False
    less: bool = False


CASES: tuple[Case, ...] = (
    Case("1 rank"),
    Case("3 ranks", ranks=(3,)),
    Case("1 rank, persistent workers", persistent=True),
    Case("3 ranks, persistent workers", ranks=(3,), persistent=True),
    Case("1 rank, StatefulDataLoader", stateful=True),
    Case("3 ranks, then 1, 3, …", ranks=(3, 1)),
    Case("1 rank, no workers", workers=0),
    Case("1 rank, --less", less=True),
    Case("3 ranks, --less", ranks=(3,), less=True),
)
QUICK = (CASES[0], CASES[3], CASES[7])


def kill_times(draws: random.Random, job: Job, files: int, kills: int) -> Iterator[float]:
    """Moments within an epoch, in s from a job's first batch."""
    longest_s = 2 * STEP_S * files / (job.ranks * job.batch)
    for _ in range(kills):
        yield draws.uniform(0, longest_s)


def measure(folder: Path, source: Path, case: Case, kills: int, files: int, draws: random.Random) -> dict[str, Any]:
    """Jobs on a mount of their own, one after the other, until they were killed so often."""
    folder.mkdir()
    machine = Machine(folder)
    options = ("--classes", "dir", "--samples", "*.bin", "--chunk-size", "8")
    try:
        memory = machine.inspect(source, *options)["memory_for"]["25%"]
        machine.ok("mount", source, machine.mnt, *options, "--memory", str(memory))
        found: dict[str, Any] = {"kills": 0, "jobs": 0, "samples_not_once": 0, "most_again": 0, "allowed_again": 0}
        while found["kills"] < kills:
            place = folder / f"job{found['jobs']}"
            place.mkdir()
            job = Job(
                root=str(machine.mnt),
                folder=str(place),
                ranks=max(case.ranks),
                workers=case.workers,
                persistent=case.persistent,
                stateful=case.stateful,
                seed=draws.randrange(1 << 30),
            )
            if case.less:
                job = replace(job, less=job.ahead)
            left = min(kills - found["kills"], 5)
            killed = killed_runs(job, machine.environment, kill_times(draws, job, files, left), case.ranks)
            counts = job.trained_on()
            not_once = [
                sum(abs(times - 1) for times in of_epoch.values()) + files - len(of_epoch) for of_epoch in counts
            ]
            again = [sum(max(0, times - 1) for times in of_epoch.values()) for of_epoch in counts]
            found["kills"] += killed
            found["jobs"] += 1
            found["samples_not_once"] += sum(not_once)
            found["most_again"] = max(found["most_again"], *again)
            found["allowed_again"] = max(found["allowed_again"], killed * max(0, job.less))
            if max(again) > killed * max(0, job.less) or (not case.less and any(not_once)):
                found["wrong"] = f"epochs with {again} samples again, {not_once} not once"
                break
            if not killed:
                break
        stats = machine.stats()
        return {**asdict(case), **found, "redirected": stats["redirected"], "errors": stats["errors"]}
    finally:
        machine.clear()


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--files", type=int, default=1440, help="a multiple of 12, for 3 ranks with batches of 4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KILLS} kills, {QUICK_FILES} files")
    arguments = parse_quick(parser, kills=QUICK_KILLS, files=QUICK_FILES)
    cases = QUICK if arguments.quick else CASES
    kills, files = arguments.kills, arguments.files
    if files % 12:
        parser.error("--files must be a multiple of 12")
    draws = random.Random(arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-") as name:
        folder = Path(name)
        make_files(folder / "data", CLASSES, files)
        for number, (case, share) in enumerate(zip(cases, shares(kills, len(cases)), strict=True)):
            if share:
                rows.append(measure(folder / str(number), folder / "data", case, share, files, draws))
    report = {"benchmark": "resume", "machine": mounts.machine(), "files": files, "seed": arguments.seed, "rows": rows}
    tell(report, arguments.json, *COLUMNS)
    wrong = [f"{row['name']}: {row['wrong']}" for row in rows if "wrong" in row]
    wrong += [f"{row['name']}: {row['errors']} errors" for row in rows if row["errors"]]
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
