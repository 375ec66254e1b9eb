"""The verdict about a live mount, from histories that scripts/bench/situations.py recorded of real ones.

Each situation has two variants. What they wait for, how long their files are and how many readers they have was chosen
without a look at the thresholds.
"""

import json
import shlex
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from redoxfs.cli.arguments import parse
from redoxfs.doctor.histories import verdict_of, waits_in
from redoxfs.doctor.mount import Watched, check_mount
from redoxfs.doctor.result import Level, Result
from redoxfs.doctor.verdict import judge
from redoxfs.launch.options import MountOptions
from redoxfs.launch.sizes import parse_size
from redoxfs.telemetry.history_form import read

RECORDED = Path(__file__).parent / "verdicts"

SITUATIONS = {
    "fast_small": ("fast disk", "redoxfs umount /situation/mnt"),
    "fast_large": ("fast disk", "redoxfs umount /situation/mnt"),
    "iops_hdd": ("IOPS", "redoxfs pack --classes=dir /situation/data /situation/data-packed"),
    "iops_nas": ("IOPS", "redoxfs pack --classes=dir /situation/data /situation/data-packed"),
    "nothing_table": ("not redirected", "redoxfs umount /situation/mnt && redoxfs mount --classes=sampler "),
    "nothing_unproven": ("not redirected", "redoxfs umount /situation/mnt && redoxfs mount --classes=dir "),
    "sampler_shuffle": ("no sampler", "redoxfs umount /situation/mnt && redoxfs mount --memory=64MiB "),
    "sampler_packed": ("no sampler", "redoxfs pack /situation/mnt/.redoxfs/exact /situation/packed-anew"),
    "memory_packed": ("memory", "redoxfs umount /situation/mnt && redoxfs mount --memory="),
    "memory_open_files": ("memory", "redoxfs umount /situation/mnt && redoxfs mount --classes=dir --memory="),
    "hangs_now": ("storage hangs", "redoxfs doctor /situation/slow"),
    "hangs_first": ("storage hangs", "redoxfs doctor /situation/slow"),
    "node_of_two": ("node", "redoxfs doctor --nodes 127.0.0.1:"),
    "node_of_three": ("node", "redoxfs doctor --nodes 127.0.0.1:"),
}
"""By name: the cause, and the beginning of the command that mends it."""

WELL = {
    "well_packed": "well",
    "well_busy": "well",
    "well_cache": "well",
    "latency_far": "latency",
    "latency_near": "latency",
}
"""Without a warning. Where storage takes long to answer, redoxfs has many reads in flight, and that is what helps."""


def value_of(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text())


def judged(value: dict[str, Any]) -> Result:
    return judge(read(value))


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_verdict_names_the_cause_and_a_command(name: str) -> None:
    cause, command = SITUATIONS[name]
    found = judged(value_of(name))
    assert found.values["cause"] == cause
    assert found.level in (Level.WARNING, Level.PROBLEM)
    assert (found.command or "").startswith(command)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_command_of_a_verdict_can_be_run_as_it_is_printed(name: str) -> None:
    command = judged(value_of(name)).command or ""
    for each in command.split(" && "):
        program, *words = shlex.split(each)
        assert program == "redoxfs"
        assert parse(words).options is not None
    assert "--classes=any" not in command


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_command_of_a_verdict_fits_100_columns(name: str) -> None:
    """With folders of usual names."""
    named = json.loads(json.dumps(value_of(name)).replace("/situation/", "/data/"))
    command = judged(named).command
    assert command is not None
    assert "/data/" in command or "127.0.0.1" in command
    assert len(command) <= 100


@pytest.mark.parametrize("name", WELL)
def test_a_healthy_mount_has_no_warning(name: str) -> None:
    history = read(value_of(name))
    found = judge(history)
    assert (found.level, found.values["cause"], found.command) == (Level.OK, WELL[name], None)
    assert found.found.startswith("well: ")
    waits = waits_in(history)
    assert waits is not None
    assert waits.level is Level.OK
    assert "lap" in waits.found


def test_a_mount_that_nobody_used_cannot_be_judged() -> None:
    value = value_of("well_busy")
    for values in (value["points"]["values"], value["laps"]["values"]):
        values.update({name: [0 for _ in column] for name, column in values.items()})
    found = judged(value)
    assert (found.level, found.found) == (Level.OK, "cannot say, because no program has opened a file here yet")


def test_while_the_first_opens_wait_no_open_counts_as_answered() -> None:
    """Whether they are counted as opens already, or not yet."""
    for opens in (4, 0):
        value = value_of("hangs_first")
        points = value["points"]
        # Now is two seconds after they began to wait, when storage does not hang yet.
        points["time"] = [*points["time"][:2], *(each - 5 for each in points["time"][2:])]
        points["values"]["opens"] = [min(each, opens) for each in points["values"]["opens"]]
        found = judged(value)
        assert (found.level, found.values["cause"]) == (Level.OK, "unknown")
        assert found.found == "cannot say yet: 4 opens wait, and none was answered so far"


def test_archives_are_packed_from_what_the_mount_shows_and_a_packed_copy_never_again() -> None:
    """As `pack` refuses archives and packed copies."""
    for kind, classes, command in (
        ("archives", "dir", "redoxfs pack --classes=dir /situation/mnt/.redoxfs/exact /situation/data-packed"),
        ("archives", "member", None),
        ("packed", "dir", None),
        ("objects", "dir", None),
    ):
        value = value_of("iops_nas")
        value["stats"] |= {"source_kind": kind, "classes_mode": classes}
        found = judged(value)
        assert (found.values["cause"], found.command) == ("IOPS", command)
        assert ("packed, a read gets many files" in found.found) == (kind == "archives")


def test_a_short_validation_after_an_epoch_does_not_hide_the_epoch() -> None:
    """Neither does a mount that is idle for a day."""
    value = value_of("iops_hdd")
    points = value["points"]
    before = judged(value).found
    points["time"].append(points["time"][-1] + 86_400)
    for column in points["values"].values():
        column.append(column[-1])
    assert judged(value).found == before


@pytest.mark.parametrize("name", ["iops_nas", "latency_near"])
def test_copies_in_a_full_cache_do_not_hide_that_storage_limits(name: str) -> None:
    value = value_of(name)
    before = judged(value)
    # More samples come from the cache than from storage.
    for values in (value["points"]["values"], value["laps"]["values"]):
        values["cache.writes"] = [0 for _ in values["opens"]]
        values["cache.read_samples"] = [1.5 * each for each in values["samples_loaded"]]
        values["cache.read_bytes"] = [1.5 * each for each in values["bytes_read"]]
        for place, copies in (("samples_loaded", "cache.read_samples"), ("bytes_read", "cache.read_bytes")):
            values[place] = [sum(each) for each in zip(values[place], values[copies], strict=True)]
    after = judged(value)
    assert (after.level, after.values["cause"], after.found) == (before.level, before.values["cause"], before.found)


def test_errors_come_before_speed() -> None:
    value = value_of("well_busy")
    for values in (value["points"]["values"], value["laps"]["values"]):
        values["errors"] = list(range(2, 2 + len(values["errors"])))
    found = judged(value)
    assert (found.level, found.values["cause"]) == (Level.PROBLEM, "errors")
    assert "redoxfs debug" in (found.command or "")


def test_a_mount_over_its_source_is_ended_before_it_is_packed() -> None:
    value = value_of("iops_hdd")
    value["stats"]["source"] = value["stats"]["mountpoint"] = "/my data"
    assert judged(value).command == (
        "redoxfs umount '/my data' && redoxfs pack --classes=dir '/my data' '/my data-packed'"
    )


def test_a_mount_that_was_asked_to_redirect_nothing_says_so() -> None:
    value = value_of("nothing_table")
    value["stats"]["verdict"] = "not redirecting: --classes none; every open returns the file that it names"
    value["stats"]["request"]["words"] = ["--classes=none", "--", "/data", "-mnt"]
    assert judged(value).command == "redoxfs umount /situation/mnt && redoxfs mount -- /data -mnt"
    value["stats"]["request"]["words"] = ["--", "/data", "/mnt"]
    assert judged(value).command == "redoxfs pack /situation/mnt/.redoxfs/exact /situation/data-anew"
    # The mount of a pod is made by its manifest.
    value["stats"]["request"]["words"] = ["--classes=none", "--fd-socket=/s", "--", "/data"]
    assert judged(value).command == "mount again, without --classes none"
    value["stats"]["request"]["words"] = ["--fd-socket=/s", "--", "/data"]
    assert judged(value).command == "pack the dataset again, without --classes none"


@pytest.mark.parametrize(
    ("verdict", "nodes", "policy", "command"),
    [
        ("if the script can take a sampler: --classes sampler", 2, "", None),
        ("if the script can take a sampler: --classes sampler", 1, "--policy=slot", "redoxfs mount --classes=sampler "),
        ("if the directory is the label: --classes dir", 1, "--policy=slot",
         "redoxfs mount --policy=slot --classes=dir "),
        ("if the directory is the label: --classes dir", 2, "",
         "unmount all nodes, and mount each again with --classes dir"),
        ("--classes none; every open returns the file that it names", 2, "--classes=none",
         "unmount all nodes, and mount each again without --classes"),
    ],
)  # fmt: skip
def test_no_mount_is_ended_for_one_that_would_be_refused(
    verdict: str, nodes: int, policy: str, command: str | None
) -> None:
    """One for a sampler is of one node, with the pool, and nodes refuse one with another dataset."""
    value = value_of("nothing_table")
    value["stats"] |= {"verdict": f"not redirecting: {verdict}"} | ({"nodes": nodes} if nodes > 1 else {})
    value["stats"]["request"]["words"] = [*filter(None, [policy]), "--", "/data", "/mnt"]
    found = judged(value)
    assert found.values["cause"] == "not redirected"
    assert (found.command and found.command.removeprefix("redoxfs umount /situation/mnt && ")) == (
        f"{command}/data /mnt" if command and command.endswith(" ") else command
    )


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("nothing_table", "mount again, without --catalog, with the options that it names and --classes sampler"),
        ("sampler_shuffle", "mount again, without --catalog, with the options that it names"),
        ("iops_hdd", "then redoxfs pack, with the options that it names"),
        ("memory_open_files", None),
    ],
)
def test_options_of_a_catalog_are_shown_before_they_are_changed(name: str, then: str | None) -> None:
    """A mount with a catalog refuses others, and would do so after the mount had ended."""
    value = value_of(name)
    words = [word for word in value["stats"]["request"]["words"] if not word.startswith("--classes=")]
    value["stats"]["request"]["words"] = ["--catalog=/a b.catalog", *words]
    command = judged(value).command or ""
    if then is None:
        # Memory is no option of the dataset.
        assert command.startswith("redoxfs umount /situation/mnt && redoxfs mount '--catalog=/a b.catalog' --memory=")
    else:
        assert command == f"redoxfs catalog show '/a b.catalog'  # {then}"
    changed = {**value["stats"], "changed": 1}
    (line,) = [each for each in check_mount(Watched(changed, changed, 1.0)) if each.name == "changed files"]
    assert "--rescan" not in (line.command or "")
    assert "redoxfs catalog export" in (line.command or "")


@pytest.mark.parametrize("name", ["memory_packed", "memory_open_files"])
def test_no_more_memory_is_advised_than_holds_all_samples_or_is_there(name: str) -> None:
    value = value_of(name)
    stats, grown = value["stats"], value["laps"]["values"]
    # Each sample is read once ahead, and once more for its open.
    for values in (value["points"]["values"], grown):
        values["bytes_read"] = [50_000 * sum(of) for of in zip(values["samples_loaded"], values["opens"], strict=True)]
    all_bytes = 50_000 * stats["samples"] * 4 / 3

    def advised(limit: float, free_bytes: int | None = None) -> str:
        stats["memory_limit_bytes"] = int(limit)
        for values in (value["points"]["values"], grown):
            values["samples_reread"] = values["opens"]
        found = judge(read(value), free_bytes)
        assert found.values["cause"] == "memory"
        return found.command or ""

    used = stats["memory_used_bytes"]
    for limit, free_bytes, expected in (
        (all_bytes / 4, None, all_bytes / 2),
        (all_bytes / 4, 1 << 50, all_bytes / 2),
        (all_bytes / 4, int(all_bytes * 0.8), used + all_bytes * 0.4),
        (all_bytes * 0.75, None, all_bytes),
    ):
        command = advised(limit, free_bytes)
        made = parse(shlex.split(command.partition(" && ")[2])[1:]).options
        assert isinstance(made, MountOptions)
        assert made.memory.memory_size is not None
        assert parse_size(made.memory.memory_size, 0) == pytest.approx(expected, rel=0.01)
    fewer = "keep fewer files open at the same time, or mount with a smaller --chunk-size"
    assert advised(all_bytes * 1.01) == advised(all_bytes / 4, 1000) == fewer


def test_samples_that_are_read_in_place_of_lost_nodes_do_not_mean_too_little_memory() -> None:
    value = value_of("node_of_three")
    for values in (value["points"]["values"], value["laps"]["values"]):
        values["samples_reread"] = values["opens"]
    assert judged(value).values["cause"] == "memory"
    for values in (value["points"]["values"], value["laps"]["values"]):
        values["degraded"] = values["opens"]
    assert judged(value).values["cause"] != "memory"


def test_of_nodes_that_are_equally_slow_none_is_blamed() -> None:
    value = value_of("node_of_three")
    for peer in value["stats"]["peers"]:
        peer["answer_seconds"] = deepcopy(value["stats"]["peers"][0]["answer_seconds"])
    found = judged(value)
    assert found.found.startswith("the other nodes are slow: ")
    assert found.level is Level.WARNING


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"stats": 1, "points": 2, "laps": 3, "format": 1}'])
def test_a_history_of_another_form_is_not_judged(text: str) -> None:
    found = verdict_of(text.encode())
    assert found.level is Level.OK
    assert found.found.startswith("cannot say, because its history is not understood")
