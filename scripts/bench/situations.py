"""Makes situations that users meet, and prints the verdict about each, which is the first line of `redoxfs status`.

    python scripts/bench/situations.py --work /tmp/situations            # all
    python scripts/bench/situations.py --work /tmp/situations latency    # those whose name begins so
    python scripts/bench/situations.py --work /tmp/situations --record tests/verdicts

Each situation has two variants, and three mounts are healthy. `--record` keeps the histories, of few points, for
tests/t1_verdict.py. Storage with few reads a second needs root (`throttle`); the others do not.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mounts
import numpy as np
import throttle

from redoxfs.telemetry.history_form import columns

READERS = 4
CLASSES = ("apple", "cherry", "fig", "lemon", "melon", "pear", "plum")
MOST_POINTS = 24
"""Of a history that is recorded: the first, the last, and some between."""


class Place:
    """A folder for one situation, with what it starts; ``leave`` ends all of it."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.leave = ExitStack()
        self.mnt = work / "mnt"
        self.mnt.mkdir(parents=True)
        # Whether the mount needs no --classes: it is packed, or is to redirect nothing.
        self.is_proven = False

    def packed(self, source: Path, classes: str = "dir") -> Path:
        """A packed copy of the files."""
        packed = self.work / "packed"
        self.redoxfs("pack", "--classes", classes, source, packed)
        self.is_proven = True
        return packed

    def redoxfs(self, *words: str | Path, group: throttle.Group | None = None) -> str:
        """Run the command; returns what it prints. A mount that it leaves behind is ended with the place."""
        enter = None if group is None else group.enter
        done = subprocess.run(
            [sys.executable, "-m", "redoxfs", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=enter,
        )
        if done.returncode not in (0, 11):
            raise SystemExit(f"redoxfs {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def mount(self, source: Path, *options: str | Path, group: throttle.Group | None = None) -> None:
        classes = () if self.is_proven or "--classes" in options else ("--classes", "dir")
        self.redoxfs("mount", source, self.mnt, *classes, *options, group=group)
        self.leave.callback(self.end, self.mnt)

    def end(self, mountpoint: Path) -> None:
        subprocess.run([sys.executable, "-m", "redoxfs", "umount", "--lazy", str(mountpoint)], check=False)

    def files(self, count: int, size: int, *, flat: bool = False, splits: bool = True) -> Path:
        """Random files of seven classes in two splits; or in one folder."""
        root = self.work / "data"
        at_random = np.random.default_rng(0)
        for number in range(count):
            split = "val" if number % 10 == 0 and splits else "train"
            folder = root if flat else root / split / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").write_bytes(at_random.bytes(size))
        return root

    def slow(self, source: Path, delay_ms: float) -> tuple[Path, subprocess.Popen[bytes]]:
        """The files behind a delay in each open and each read."""
        program, at = mounts.compiled(mounts.HERE.parent / "slow_store.c", self.work), self.work / "slow"
        server = self.leave.enter_context(mounts.served_by([str(program), str(source), str(at), str(delay_ms)], at))
        self.leave.callback(server.send_signal, signal.SIGCONT)
        return at, server

    def throttled(self, profile: str) -> throttle.Group:
        throttle.drop_caches()
        return self.leave.enter_context(throttle.throttled(throttle.PROFILES[profile], None, self.work))


def epochs(root: Path, count: int = 2, *, most_s: float = 15.0, work_s: float = 0.0, readers: int = READERS) -> None:
    """Read all files below ``root`` in random order, by some readers at once."""
    paths = [path for path in root.rglob("*.jpg") if ".redoxfs" not in path.parts]
    until_s = time.monotonic() + most_s
    for number in range(count):
        order = paths[:]
        random.Random(number).shuffle(order)

        def read(mine: list[Path]) -> None:
            for path in mine:
                if time.monotonic() > until_s:
                    return
                with contextlib.suppress(OSError):
                    # The mount may have ended.
                    path.read_bytes()
                if work_s:
                    time.sleep(work_s)

        threads = [threading.Thread(target=read, args=(order[reader::readers],)) for reader in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# Situations: each makes a mount at place.mnt, and uses it


def fast_small(place: Place) -> None:
    place.mount(place.files(4000, 5_000), "--memory", "4MiB")
    epochs(place.mnt)


def fast_large(place: Place) -> None:
    place.mount(place.files(1500, 150_000), "--memory", "64MiB")
    epochs(place.mnt, readers=1)


def iops_hdd(place: Place) -> None:
    source = place.files(2000, 60_000)
    place.mount(source, "--memory", "40MiB", group=place.throttled("hdd"))
    epochs(place.mnt, 1)


def iops_nas(place: Place) -> None:
    source = place.files(3000, 20_000)
    place.mount(source, "--memory", "20MiB", group=place.throttled("nas"))
    epochs(place.mnt, 1, readers=8)


def latency_far(place: Place) -> None:
    slow, _ = place.slow(place.files(6000, 10_000), 20)
    place.mount(slow, "--memory", "30MiB")
    epochs(place.mnt, 2, readers=8)


def latency_near(place: Place) -> None:
    slow, _ = place.slow(place.files(10_000, 20_000), 5)
    place.mount(slow, "--memory", "100MiB")
    epochs(place.mnt, 2, readers=16)


def nothing_table(place: Place) -> None:
    source = place.files(500, 5_000, flat=True)
    (source / "labels.csv").write_text("id,label\n" + "".join(f"{number}.jpg,{number % 7}\n" for number in range(500)))
    place.is_proven = True
    place.mount(source)
    epochs(place.mnt)


def nothing_unproven(place: Place) -> None:
    place.is_proven = True
    place.mount(place.files(500, 5_000, splits=False) / "train")
    epochs(place.mnt)


def sampler_shuffle(place: Place) -> None:
    place.mount(place.files(2400, 5_000), "--classes", "sampler", "--memory", "64MiB")
    epochs(place.mnt)


def sampler_packed(place: Place) -> None:
    place.mount(place.packed(place.files(1000, 20_000), "sampler"), "--memory", "16MiB")
    epochs(place.mnt)


def memory_packed(place: Place) -> None:
    packed = place.packed(place.files(3000, 40_000))
    place.mount(packed, "--memory", "800KiB", "--chunk-size", "16", group=place.throttled("hdd"))
    epochs(place.mnt, 1, readers=8)


def memory_open_files(place: Place) -> None:
    """Readers that keep their files open take the memory of what was read ahead."""
    slow, _ = place.slow(place.files(2000, 50_000), 10)
    place.mount(slow, "--memory", "1200KiB")
    epochs(place.mnt, 1, readers=16)


def hangs_now(place: Place) -> None:
    slow, server = place.slow(place.files(2000, 10_000), 1)
    place.mount(slow, "--memory", "2MiB")
    reading = threading.Thread(target=epochs, args=(place.mnt, 50), kwargs={"most_s": 3600.0}, daemon=True)
    reading.start()
    time.sleep(2)
    server.send_signal(signal.SIGSTOP)
    time.sleep(8)


def hangs_first(place: Place) -> None:
    slow, _ = place.slow(place.files(500, 10_000), 50_000)
    place.mount(slow, "--memory", "2MiB")
    threading.Thread(target=epochs, args=(place.mnt,), daemon=True).start()
    time.sleep(8)


def _nodes(place: Place, count: int, stopped_s: float, going_s: float) -> None:
    """Nodes of which the last is stopped most of the time."""
    source, folder = place.files(3000, 10_000), place.work / "nodes"
    place.redoxfs(
        "cluster",
        "up",
        source,
        folder,
        "--nodes",
        str(count),
        "--memory",
        "3MiB",
        "--classes",
        "dir",
        "--exchange",
        "0.5",
    )
    place.leave.callback(
        lambda: subprocess.run([sys.executable, "-m", "redoxfs", "cluster", "down", folder], check=False)
    )
    place.mnt = folder / "0"
    pid = json.loads((folder / str(count - 1) / ".redoxfs/stats.json").read_text())["pid"]
    over = threading.Event()

    def lag() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(going_s)

    lagging = threading.Thread(target=lag)
    lagging.start()
    epochs(place.mnt, 3, most_s=15)
    over.set()
    lagging.join()


def node_of_three(place: Place) -> None:
    _nodes(place, 3, 0.3, 0.05)


def node_of_two(place: Place) -> None:
    _nodes(place, 2, 0.15, 0.03)


def well_packed(place: Place) -> None:
    """Limited by the bandwidth of a hard disk, seven times as fast as plain files."""
    packed = place.packed(place.files(4000, 60_000))
    place.mount(packed, "--memory", "64MiB", group=place.throttled("hdd"))
    epochs(place.mnt, 1, readers=8)


def well_busy(place: Place) -> None:
    """A job that computes longer than it reads."""
    slow, _ = place.slow(place.files(1000, 20_000), 5)
    place.mount(slow, "--memory", "16MiB")
    epochs(place.mnt, 2, work_s=0.01)


def well_cache(place: Place) -> None:
    slow, _ = place.slow(place.files(1500, 20_000), 3)
    place.mount(slow, "--memory", "8MiB", "--cache", place.work / "cache")
    epochs(place.mnt, 1)


SITUATIONS: dict[str, Callable[[Place], None]] = {
    function.__name__: function
    for function in (
        fast_small, fast_large, iops_hdd, iops_nas, latency_far, latency_near, nothing_table, nothing_unproven,
        sampler_shuffle, sampler_packed, memory_packed, memory_open_files, hangs_now, hangs_first, node_of_three,
        node_of_two, well_packed, well_busy, well_cache,
    )
}  # fmt: skip


def recorded(value: dict[str, Any], work: Path) -> dict[str, Any]:
    """A history of few points, without the paths of this machine."""
    count = len(value["points"]["time"])
    kept = sorted({round(at) for at in np.linspace(0, count - 1, MOST_POINTS)})
    named = {".".join(column.place) + (f":{column.part}" if column.part else ""): column for column in columns()}

    def few(values: dict[str, list[float | None]], rows: list[int]) -> dict[str, list[float | None]]:
        return {
            name: [column[at] for at in rows]
            for name, column in values.items()
            if named[name].part in ("", "count", "sum")
        }

    points, laps = value["points"], value["laps"]
    rows = range(max(0, len(laps["tree"]) - 4), len(laps["tree"]))
    of_laps = {name: [column[at] for at in rows] for name, column in laps.items() if name != "values"}
    made = {
        **value,
        "points": {"time": [points["time"][at] for at in kept], "values": few(points["values"], kept)},
        "laps": {**of_laps, "values": few(laps["values"], list(rows))},
    }
    made["stats"] = {
        name: each for name, each in value["stats"].items() if name not in ("open_seconds", "load_seconds")
    }
    text: str = json.dumps(made).replace(os.fspath(work), "/situation")
    return json.loads(text)


@contextmanager
def made(work: Path, name: str) -> Iterator[Place]:
    place = Place(work / f"{name}-{os.getpid()}")
    try:
        SITUATIONS[name](place)
        yield place
    finally:
        place.leave.close()
        subprocess.run(["rm", "-rf", place.work], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help="situations, or beginnings of their names")
    parser.add_argument("--work", type=Path, required=True, help="a folder on a real disk")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep the histories there")
    arguments = parser.parse_args()
    chosen = [name for name in SITUATIONS if name.startswith(tuple(arguments.names) or "")]
    for name in chosen:
        with made(arguments.work, name) as place:
            history = (place.mnt / ".redoxfs/history.json").read_text()
            if arguments.record is not None:
                path = arguments.record / f"{name}.json"
                path.write_text(json.dumps(recorded(json.loads(history), place.work)) + "\n")
            print(f"{name}: {place.redoxfs('status', place.mnt).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
