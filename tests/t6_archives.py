"""Shards that WebDataset's own writer made, read through a mount and by WebDataset itself."""

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine import Machine
from tars import LONG_AGO_S

KEYS = 60

WRITE = """
import sys, webdataset
with webdataset.ShardWriter(sys.argv[1] + "/train-%06d.tar", maxcount=20, verbose=0) as shards:
    for number in range(int(sys.argv[2])):
        sample = {"jpg": b"%d " % number * 300, "cls": number, "json": {"number": number}}
        shards.write({"__key__": f"{number:07}", **sample})
"""

READ = """
import json, sys, webdataset
for url in sys.argv[1:]:
    samples = webdataset.WebDataset(url, shardshuffle=False, empty_check=False)
    print(json.dumps({sample["__key__"]: [len(sample["jpg"]), int(sample["cls"])] for sample in samples}))
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("webdataset")
    subprocess.run([sys.executable, "-c", WRITE, folder, str(KEYS)], check=True)
    for path in folder.iterdir():
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return folder


def test_samples_of_webdataset_are_whole_and_come_once(machine: Machine, shards: Path) -> None:
    machine.ok("mount", "--classes", "any", shards, machine.mnt, "--memory", "1MiB", "--storage-speed", "1000,100MiB")

    def read(path: Path) -> tuple[int, int, int]:
        data = path.read_bytes().split()
        assert len({*data}) == 1
        assert len(data) == 300
        return (
            int(data[0]),
            int(path.with_suffix(".cls").read_text()),
            json.loads(path.with_suffix(".json").read_text())["number"],
        )

    for _ in range(2):
        with ThreadPoolExecutor(4) as threads:
            found = Counter(threads.map(read, sorted(machine.mnt.glob("*.jpg"))))
        assert found == Counter((number, number, number) for number in range(KEYS))
    assert machine.stats()["redirected"] > KEYS


def test_webdataset_reads_the_shards_of_a_mount_that_serves_them_as_files(machine: Machine, shards: Path) -> None:
    machine.ok("mount", "--archives", "none", shards, machine.mnt)
    urls = [f"{folder}/train-{{000000..000002}}.tar" for folder in (machine.mnt, machine.mnt / ".redoxfs/exact")]
    done = subprocess.run([sys.executable, "-c", READ, *urls], check=True, capture_output=True, text=True)
    every = {f"{number:07}": [300 * len(b"%d " % number), number] for number in range(KEYS)}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [every, every]
