"""Epochs on a real mount: exact whatever was read before them, and over restarts, deaths and resumes."""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine import Machine
from patience import until
from t4_resume import await_write

CLASSES, FILES, VALIDATION = 10, 12, 4
SAMPLES = CLASSES * FILES
BATCH = 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Small files of different sizes, which say what they are; their names tell nothing."""
    root, own = tmp_path / "data", random.Random(0)
    for split, files in (("train", FILES), ("val", VALIDATION)):
        for label in range(CLASSES):
            folder = root / split / f"kind{label}"
            folder.mkdir(parents=True)
            for number in range(files):
                name = f"{split}/kind{label}/{number}"
                (folder / f"{own.getrandbits(48):012x}.jpg").write_bytes(name.encode() + b"|" * own.randrange(99, 999))
    return root


class Reader:
    """Reads through a mount, each epoch in a thread of its own."""

    def __init__(self, machine: Machine, source: Path) -> None:
        self.machine = machine
        paths = sorted(os.fspath(path.relative_to(source)) for path in source.rglob("*.jpg"))
        self.train = [path for path in paths if path.startswith("train/")]
        self.val = [path for path in paths if path.startswith("val/")]
        self.random = random.Random(5)

    def read(self, paths: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._read, paths).result()

    def _read(self, paths: Sequence[str]) -> list[str]:
        served = []
        for path in paths:
            data = (self.machine.mnt / path).read_bytes()
            served.append(data.rstrip(b"|").decode())
            assert served[-1].rpartition("/")[0] == path.rpartition("/")[0], "labels and splits are right"
        return served

    def shuffled(self, count: int = SAMPLES) -> list[str]:
        return self.random.sample(self.train, count)

    def epochs(self) -> Iterator[tuple[str, list[str]]]:
        """What different jobs read, one after the other; and before each epoch, what is none."""
        order, dropped = self.train, SAMPLES - SAMPLES % BATCH - BATCH
        rows: list[tuple[str, list[list[str]], list[str] | int, int]] = [
            ("whole", [], SAMPLES, 1),
            ("two files first", [self.shuffled(2)], SAMPLES, 2),
            ("the last batch is dropped", [], dropped, 3),
            ("three files are left out", [], SAMPLES - 3, 2),
            ("all but one", [], SAMPLES - 1, 2),
            ("an epoch is broken off at half", [self.shuffled(SAMPLES // 2)], SAMPLES, 2),
            ("a fifth first", [self.shuffled(SAMPLES // 5)], SAMPLES, 2),
            ("in order", [], order, 2),
            ("the last file first", [order[-1:]], order, 2),
            ("the same 98 % in order", [], order[:-3], 2),
            ("the same third", [], order[:40], 2),
            ("a tenth in each", [], SAMPLES // 10, 3),
        ]
        for name, before, paths, times in rows:
            for first in before:
                self.read(first)
            for _ in range(times):
                yield name, paths if isinstance(paths, list) else self.shuffled(paths)
        for _ in range(2):
            self.read(order[:7])
            yield "the same 7 before each", self.shuffled()
        for _ in range(2):
            paths = self.shuffled()
            yield "padded", paths
            self.read(paths[:5])
        yield "whole", self.shuffled()


def mount(machine: Machine, source: Path, share: str, *options: str) -> None:
    memory = machine.inspect(source, *options)["memory_for"][share]
    machine.ok("mount", source, machine.mnt, *options, "--memory", str(memory))


@pytest.mark.parametrize(("store", "share"), [("directory", "50%"), ("packed", "10%")])
def test_no_epoch_gets_a_sample_twice(machine: Machine, source: Path, store: str, share: str) -> None:
    options = ["--chunk-size", "4", "--classes", "dir"]
    served = source
    if store == "packed":
        served = machine.folder / "packed"
        machine.ok("pack", source, served, *options)
        options = []
    mount(machine, served, share, *options)
    reader = Reader(machine, source)
    for number, (name, paths) in enumerate(reader.epochs()):
        answers = reader.read(paths)
        assert len(answers) - len({*answers}) == 0, name
        if number % 10 == 0:
            # As Lightning does: two batches of validation before the first epoch, and then all of it.
            reader.read(reader.val[:BATCH])
            for _ in range(2):
                answers = reader.read(reader.val)
                assert len({*answers}) == len(reader.val)
    assert machine.stats()["passes_given_twice"] == 0
    machine.ok("umount", machine.mnt)


def test_a_pass_goes_on_over_restarts_deaths_and_resumes(machine: Machine, source: Path) -> None:
    """Its epochs leave some files out, so laps alone would not keep them exact."""
    options = ["--classes", "dir", "--chunk-size", "4"]
    mount(machine, source, "25%", *options)
    reader = Reader(machine, source)
    reader.read(reader.shuffled(7))
    turns = 7

    def restart() -> None:
        machine.ok("restart", machine.mnt)

    def die() -> None:
        pid = machine.pid()
        machine.kill(signal.SIGKILL)
        until(lambda: machine.pid() != pid, "no other daemon")

    def resume() -> None:
        await_write(machine, turns)
        machine.ok("umount", machine.mnt)
        machine.ok("mount", source, machine.mnt, *options, "--resume")

    def save_and_load() -> None:
        machine.ok("state", "save", machine.mnt, machine.folder / "saved")
        reader.read(reader.train[:9])
        machine.ok("state", "load", machine.mnt, machine.folder / "saved")

    for events in [(restart, die), (resume,), (die, save_and_load), (die, resume, restart)]:
        paths, answers = reader.shuffled(SAMPLES - BATCH), []
        step = len(paths) // (len(events) + 1) + 1
        for at in range(0, len(paths), step):
            answers += reader.read(paths[at : at + step])
            turns += len(paths[at : at + step])
            if at // step < len(events):
                events[at // step]()
        assert len({*answers}) == len(paths)

    def complete() -> int:
        return sum(of_tree["complete"] for of_tree in machine.stats()["passes"].values())

    before = complete()
    for number, event in enumerate((restart, die), 1):
        assert len({*reader.read(reader.shuffled())}) == SAMPLES
        event()
        assert complete() == before + number
    assert machine.stats()["passes_given_twice"] == 0
    machine.ok("umount", machine.mnt)
