"""`scripts/fuzz parsers`: what it has found stays mended, and it finds what it is to find."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/fuzzing"))

import fuzz_parsers
import fuzz_targets
from fuzz_lines import Lines
from fuzz_mutations import Parts
from fuzz_plants import PLANTS

from redoxfs.cli import mount, report, status, umount
from redoxfs.doctor import bundle
from redoxfs.node import opened_ahead, state

DEEP = b"[" * 3000
HUGE = b"1" + b"0" * 400

STATS = json.loads((fuzz_targets.HERE / "seeds/stats-node.json").read_bytes())
STATS["open_seconds"]["resident"] = {"count": 99, "sum": 1.0, "buckets": {"nan": 99}}
NO_TIME = json.dumps(STATS).encode()

FOUND: list[tuple[str, Parts]] = [
    ("stats", {"first.json": b'{"policy": {"a": 1}, "opens": 0}'}),
    ("stats", {"first.json": DEEP}),
    ("top", {"then.json": NO_TIME}),
    ("history", {"history.json": b'{"machine": {"python": "\\u001b[2J"}, "rows": [{"a": 1}]}'}),
    ("control-answer", {"answer.json": DEEP}),
    ("control-answer", {"answer.json": b"3"}),
    ("control-answer", {"answer.json": b"[1]"}),
    ("control-answer", {"answer.json": b'{"error": ""}'}),
    ("control", {"line.json": b'{"do": "turns-since", "bytes": 12}', "data": b"[7, null, 1]"}),
    ("control", {"line.json": b'{"do": "nodes", "bytes": 3000}', "data": DEEP}),
    ("control", {"line.json": b'{"do": "state-take-back", "bytes": %d}', "data": b"KEPT\0" + bytes(8) + b"\xff" * 8}),
    ("checkpoint", {"about.json": b'{"arrays": {}}'}),
    ("checkpoint", {"about.json": b'{"values": {}, "arrays": {"a": ["<i8", [1' + b"0" * 30 + b"]]}}"}),
    ("checkpoint", {"about.json": b'{"values": {}, "arrays": {"a": ["<i8", [' + b"9, " * 99_999 + b"9]]}}"}),
    ("segments", {"about.json": b'{"source": "x", "used_at_s": ' + HUGE + b"}"}),
    ("segments", {"about.json": DEEP}),
    ("meeting", {"nodes.json": b'{"error": ""}'}),
]
"""Of each target, a seed's parts that are replaced. None may be without a line for a person."""


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`begin` and the targets replace functions of redoxfs, for processes that do nothing else."""
    used = {
        state: ("replace_file",),
        opened_ahead: ("replace_file",),
        report: ("_write", "_of_file", "look", "outside"),
        mount: ("read_control_at", "_request", "job_of", "say"),
        status: ("send_control", "control_path"),
        umount: ("end_of", "keeper_of", "read_control"),
        bundle: ("_read_control",),
    }
    for module, names in used.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))

    def late(_signal: int, _frame: object) -> None:
        raise fuzz_parsers.HangError

    before = signal.signal(signal.SIGPROF, late)
    fuzz_targets.begin(tmp_path)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize(("name", "parts"), FOUND, ids=[f"{name}-{at}" for at, (name, _) in enumerate(FOUND)])
def test_what_broke_a_parser_does_so_no_more(name: str, parts: Parts) -> None:
    target = type(fuzz_targets.named(name))()
    seed = target.seeds()[0]
    if "line.json" in parts:
        seed = {}
        data = parts["data"].replace(b"KEPT", os.fsencode(fuzz_targets.ROOM / "kept"))
        line = parts["line.json"]
        parts = {"line.json": line % len(data) if b"%d" in line else line, "data": data}
    assert fuzz_parsers.judged(target, {**seed, **parts}, nullcontext()) is None


def manifest_of(**changes: object) -> Parts:
    """A packed dataset whose manifest was changed, and sealed by whoever changed it."""
    target = fuzz_targets.Packed()
    seed = target.seeds()[0]
    return {**seed, "manifest.json": json.dumps({**json.loads(seed["manifest.json"]), **changes}).encode()}


def test_a_forged_manifest_in_the_folder_to_be_packed_is_refused_with_a_line() -> None:
    target = fuzz_targets.Packing()
    target.seeds()
    parts = {"manifest.json": manifest_of(arrays="x")["manifest.json"]}
    assert fuzz_parsers.judged(target, target.seal(parts), nullcontext()) is None


@pytest.mark.parametrize("depth", [500, 900])
def test_a_forged_manifest_of_deep_lists_takes_no_memory(depth: int) -> None:
    text = (
        b'{"format": "redoxfs packed dataset", "more": ' + b"[" * depth + b"1, " * 200_000 + b"1" + b"]" * depth + b"}"
    )
    target = fuzz_targets.Packing()
    target.seeds()
    assert fuzz_parsers.judged(target, {"manifest.json": text}, nullcontext()) is None


def test_a_forged_length_in_an_object_store_is_refused_with_a_line() -> None:
    target = fuzz_targets.Objects()
    shards = [{"name": "tree-000000.tar", "bytes": float("inf")}]
    parts = target.seal(manifest_of(shards=shards))
    assert fuzz_parsers.judged(target, parts, nullcontext()) is None


@pytest.mark.parametrize("target", fuzz_targets.TARGETS, ids=lambda target: target.name)
def test_valid_inputs_are_no_finds_and_reach_the_parser(target: fuzz_targets.Target) -> None:
    fresh = type(target)()
    lines = Lines(fresh.modules)
    for seed in fresh.seeds():
        assert fuzz_parsers.judged(fresh, fresh.seal(seed), lines) is None
    assert len(lines.seen & lines.all) > len(lines.all) / 3 > 0


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.target)
def test_a_planted_bug_is_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz_plants.PLANTS", (plant,))
    asked = argparse.Namespace(seconds=600.0, jobs=1, seed=time.time_ns(), target=[], missed=False)
    assert fuzz_parsers.planted(asked) == 0


def test_each_bug_to_plant_still_fits_its_line(tmp_path: Path) -> None:
    for plant in PLANTS:
        file = tmp_path / plant.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((fuzz_parsers.ROOT / plant.file).read_text())
        plant.apply(tmp_path)
        compile(file.read_text(), file, "exec")
        assert plant.target in {target.name for target in fuzz_targets.TARGETS}
