"""Simulated accelerators, and the readers that feed them from files, as in DLIO.

An accelerator is a process that sleeps for each batch. `READERS` processes read its share of an epoch, each a part of
every batch, at most `AHEAD` batches ahead. All accelerators wait for each other after each batch.
"""

import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

from children import Children, fork
from labelled import NAME_BYTES

READERS = 8
"""For each accelerator: ``reader.read_threads`` of MLPerf Storage's configuration of ResNet-50."""

AHEAD = 2
"""The most batches that readers are ahead: DLIO's default ``reader.prefetch_size``."""


@dataclass(frozen=True, slots=True)
class Load:
    """The settings of one try. ``compute_s`` 0: readers alone, as fast as they can."""

    accelerators: int
    batch: int
    compute_s: float
    limit_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Fed:
    """The result of one try.

    ``utilisation``    mean of all accelerators, 0 to 1
    ``samples_per_s``  of all accelerators, the first batch included, as MLPerf counts them
    ``steps``          batches of each accelerator
    ``not_once``       samples that did not come exactly once; None unless it was a whole epoch
    """

    utilisation: float
    samples_per_s: float
    steps: int
    seconds: float
    wrong_labels: int
    not_once: int | None


def utilisation(load_s: Sequence[float], compute_s: Sequence[float], whole_s: float) -> float:
    """DLIO's accelerator utilisation of a block of steps: the first step counts neither as computation nor as time.

    Args:
        load_s: seconds that the accelerator waited for each batch.
        compute_s: seconds that it computed on each batch.
        whole_s: seconds from the start to the end, with all that is neither, such as waiting for other accelerators.
    """
    return sum(compute_s[1:]) / (whole_s - load_s[0] - compute_s[0])


def highest(passes: Callable[[int], bool], guess: int, most: int) -> int:
    """The highest number of accelerators that passes, or 0: one more fails, unless it is ``most``.

    Passing is taken to be monotonic, so the search ends at the first change from the guess on.
    """
    at = max(1, min(guess, most))
    if passes(at):
        while at < most and passes(at + 1):
            at += 1
        return at
    while at > 1 and not passes(at - 1):
        at -= 1
    return at - 1


class _Lane:
    """Between one accelerator and one of its readers: how many batches may be read, and how many are there."""

    def __init__(self) -> None:
        self.room, self.ready = fork.Semaphore(AHEAD), fork.Semaphore(0)


def feed(folder: Path, load: Load, ready: Callable[[], None] | None = None) -> Fed:
    """Read an epoch of ``folder`` for simulated accelerators. Raises SystemExit if a read fails, or a child dies.

    One of the processes calls ``ready`` when all are there, before any begins.
    """
    names = sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("class*/*"))
    steps = len(names) // (load.batch * load.accelerators)
    if steps < 2:
        raise SystemExit(f"{len(names)} files are too few for {load.accelerators} accelerators")
    order = list(range(len(names)))
    random.Random(load.seed).shuffle(order)
    start = fork.Barrier(load.accelerators * (READERS + 1), ready)
    together, stop = fork.Barrier(load.accelerators), fork.Value("i", 0)
    with Children() as children:
        for number in range(load.accelerators):
            mine = order[number :: load.accelerators][: steps * load.batch]
            batches = [mine[at : at + load.batch] for at in range(0, len(mine), load.batch)]
            lanes = [_Lane() for _ in range(READERS)]
            for reader, lane in enumerate(lanes):
                # One string a part: a reader that went through the parent's list would copy all pages that it lies on.
                parts = ["\n".join(names[sample] for sample in batch[reader::READERS]) for batch in batches]
                children.start(_read, folder, parts, lane, start, stop)
            children.start(_accelerate, number, lanes, steps, load, start, together, stop)
        found = children.answers()
    times = [answer for answer in found if len(answer) == 4]
    taken, seconds = min(each[0] for each in times), max(each[3] for each in times)
    seen = [sample for answer in found if len(answer) == 2 for sample in answer[0]]
    whole = taken == steps and steps * load.batch * load.accelerators == len(names)
    shares = [utilisation(load_s, compute_s, whole_s) for _, load_s, compute_s, whole_s in times]
    return Fed(
        utilisation=statistics.mean(shares),
        samples_per_s=taken * load.batch * load.accelerators / seconds,
        steps=taken,
        seconds=seconds,
        wrong_labels=sum(answer[1] for answer in found if len(answer) == 2),
        not_once=len(set(seen) ^ set(range(len(names)))) + len(seen) - len(set(seen)) if whole else None,
    )


def _read(
    folder: Path, parts: list[str], lane: _Lane, start: Any, stop: "Synchronized[int]"
) -> tuple[Sequence[int], int]:
    """A reader: its part of each batch, whole files. Answers with its samples, and how many labels were wrong."""
    seen, wrong = array("l"), 0
    start.wait()
    for part in parts:
        lane.room.acquire()
        if stop.value:
            # Its accelerator may wait for this part, and looks whether to stop after that.
            lane.ready.release()
            break
        try:
            for name in part.split("\n") if part else []:
                with open(folder / name, "rb") as file:
                    got = file.read()[:NAME_BYTES].rstrip().decode(errors="replace")
                label, _, rest = got.partition("/")
                wrong += label != name.partition("/")[0]
                number = rest.partition(".")[0]
                seen.append(int(number) if number.isdigit() else -1)
        except OSError:
            stop.value = 1
            raise
        finally:
            lane.ready.release()
    return seen, wrong


def _accelerate(
    number: int,
    lanes: list[_Lane],
    steps: int,
    load: Load,
    start: Any,
    together: Any,
    stop: "Synchronized[int]",
) -> tuple[int, list[float], list[float], float]:
    """An accelerator: sleeps for each batch. Answers with its steps, their times, and the time of all."""
    load_s, compute_s = [], []
    start.wait()
    began = time.monotonic()
    for _ in range(steps):
        asked = time.monotonic()
        for lane in lanes:
            lane.ready.acquire()
        came = time.monotonic()
        for lane in lanes:
            lane.room.release()
        time.sleep(load.compute_s)
        load_s.append(came - asked)
        compute_s.append(time.monotonic() - came)
        if number == 0 and len(load_s) > 1 and time.monotonic() - began > load.limit_s:
            # Another one may look for the step before only now.
            stop.value = len(load_s)
        try:
            together.wait()
        except BrokenBarrierError:
            break
        # After the barrier, which the one that sets it has passed, too.
        if 0 < stop.value <= len(load_s):
            # A reader that failed may have set it when others had looked already.
            together.abort()
            break
    ended = time.monotonic()
    for lane in lanes:
        lane.room.release()
    return len(load_s), load_s, compute_s, ended - began
