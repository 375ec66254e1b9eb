"""Files that hold their own names, and epochs over them that check each sample and its label."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import Children, fork

CLASSES = 64
NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch took, and what it found. ``wrong_labels`` and ``not_once`` count samples; both should be 0."""

    files: int
    seconds: float
    server_s: float
    """Processor time of the server that was measured."""
    wrong_labels: int
    not_once: int

    @property
    def files_per_s(self) -> float:
        return self.files / self.seconds

    @property
    def server_us_per_file(self) -> float:
        return self.server_s / self.files * 1e6

    @property
    def is_complete(self) -> bool:
        return not (self.wrong_labels or self.not_once)

    @property
    def told(self) -> dict[str, Any]:
        """The part of a result's row."""
        return {"seconds": self.seconds, "wrong_labels": self.wrong_labels, "not_once": self.not_once}


def make_files(source: Path, count: int, smallest_bytes: int, largest_bytes: int, classes: int = CLASSES) -> list[str]:
    """Make files of random bytes that begin with their names, of sizes that are uniform. Returns the names."""
    names = []
    for label in range(classes):
        (source / f"class{label:02}").mkdir(parents=True)
        for i in range(label, count, classes):
            names.append(f"class{label:02}/{i:07}.jpg")
            length = random.randint(smallest_bytes, largest_bytes) - NAME_BYTES
            (source / names[-1]).write_bytes(names[-1].encode().ljust(NAME_BYTES) + random.randbytes(length))
    return names


def read_file(path: str, name: str) -> tuple[str, bool]:
    """The name of the sample that came, and whether it is of the class of ``name``."""
    with open(path, "rb") as file:
        came = file.read()[:NAME_BYTES].rstrip().decode(errors="replace")
    return came, came.partition("/")[0] == name.partition("/")[0]


def read_epoch(
    paths: dict[str, str],
    readers: int,
    server_s: Callable[[], float] = lambda: 0.0,
    read: Callable[[str, str], tuple[str, bool]] = read_file,
) -> Epoch:
    """Read all files once, in random order, in ``readers`` child processes that share them.

    ``paths`` has the path to ``read`` for each name. ``server_s`` returns the processor time that the server has used
    so far. Raises SystemExit if a read fails, or a child dies.
    """
    names = random.sample(list(paths), len(paths))
    start = fork.Barrier(readers + 1)

    def work(number: int) -> tuple[float, float, list[str], int]:
        start.wait()
        began = time.monotonic()
        found = [read(paths[name], name) for name in names[number::readers]]
        return began, time.monotonic(), [came for came, _ in found], sum(not is_right for _, is_right in found)

    with Children() as children:
        for number in range(readers):
            children.start(work, number)
        spent_s = server_s()
        start.wait()
        found = children.answers()
        spent_s = server_s() - spent_s
    seen = [name for _, _, part, _ in found for name in part]
    return Epoch(
        files=len(names),
        server_s=spent_s,
        seconds=max(ended for _, ended, _, _ in found) - min(began for began, _, _, _ in found),
        wrong_labels=sum(wrong for _, _, _, wrong in found),
        not_once=len(set(names) ^ set(seen)) + len(seen) - len(set(seen)),
    )
