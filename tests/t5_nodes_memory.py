"""Real nodes that hold a dataset together: it is read in the first epoch, and never again."""

import random
import threading
from collections import Counter
from pathlib import Path

from machine import Machine
from patience import PATIENCE_S
from ports import reserve_addresses

NODES, CLASSES, FILES, SIZE = 3, 10, 450, 3_000
DATASET_BYTES = FILES * SIZE


def make_source(root: Path) -> list[str]:
    """Files that contain their own names."""
    names = [f"n0000000{number % CLASSES}/{number:04}.jpg" for number in range(FILES)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode().ljust(SIZE))
    return names


def read(mountpoint: Path, names: list[str], served: list[str]) -> None:
    for name in names:
        data = (mountpoint / name).read_bytes()
        answer = data.decode().rstrip()
        assert len(data) == SIZE
        assert answer.split("/")[0] == name.split("/")[0]
        served.append(answer)


def epoch(mountpoints: list[Path], names: list[str], seed: int) -> None:
    """All nodes read their part of the names at once; each sample comes once."""
    names = random.Random(seed).sample(names, len(names))
    served: list[list[str]] = [[] for _ in mountpoints]
    threads = [
        threading.Thread(target=read, args=(mountpoint, names[node :: len(mountpoints)], served[node]))
        for node, mountpoint in enumerate(mountpoints)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert Counter(name for each in served for name in each) == dict.fromkeys(names, 1)


def total(machine: Machine, mountpoints: list[Path], name: str) -> int:
    return sum(machine.stats(mountpoint)[name] for mountpoint in mountpoints)


def test_nodes_of_53_percent_each_read_storage_in_the_first_epoch_alone(machine: Machine, tmp_path: Path) -> None:
    names = make_source(tmp_path / "data")
    options = ("--classes", "dir", "--memory", f"{DATASET_BYTES * 53 // 100}B", "--peer-timeout", "3600")
    mountpoints = machine.mount_nodes(tmp_path / "data", reserve_addresses(NODES), *options)
    epoch(mountpoints, names, seed=0)
    assert total(machine, mountpoints, "samples_loaded") == FILES
    assert total(machine, mountpoints, "retained_samples") == FILES
    before = total(machine, mountpoints, "bytes_read")
    came = total(machine, mountpoints, "remote_samples")
    for seed in (1, 2):
        epoch(mountpoints, names, seed)
    assert total(machine, mountpoints, "bytes_read") - before <= 0.02 * DATASET_BYTES
    assert total(machine, mountpoints, "retained_samples") == FILES
    # With this memory the default of --exchange is a fifth.
    assert 0.15 * 2 * FILES < total(machine, mountpoints, "remote_samples") - came < 0.3 * 2 * FILES
    for mountpoint in mountpoints:
        stats = machine.stats(mountpoint)
        assert stats["exchange"] == 0.2
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]
    shown = machine.ok("status", mountpoints[0]).stdout
    assert "stay for every epoch" in shown
    assert "--exchange 0.2" in shown
