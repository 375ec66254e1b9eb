"""What tables say, and how they look on a terminal and off one."""

import json
import re
import sys
from pathlib import Path

import pytest

from redoxfs.cli import inspect, main, status
from redoxfs.cli.table import _print_rich, print_table
from redoxfs.linux.detach import _ask_helper


def test_off_a_terminal_no_line_folds_or_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("a title", [("short", "x"), ("long", "y" * 300)])
    print_table("title " * 50 + "end", [("short", "[b]")])
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert "title " * 50 + "end" in lines
    assert lines[0] == "a title"
    assert any("y" * 300 in line for line in lines)
    assert any("[b]" in line for line in lines)


@pytest.mark.parametrize("rows", [[("name", "value")], [("a", ""), ("bcd", "x" * 300), ("", "[b]")], [("é", "数")], []])
def test_off_a_terminal_a_table_looks_as_on_a_wide_one(
    rows: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _print_rich("title " * 50 + "end", rows)
    wide = capsys.readouterr().out
    print_table("title " * 50 + "end", rows)
    assert capsys.readouterr().out == wide


def test_a_narrow_terminal_shows_every_name_and_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "20")
    print_table("title", [("classes in a batch", "x" * 60), ("files", "18; all are samples")])
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    names, values = (re.sub(r"\s", "", "".join(line[column] for line in lines)) for column in (1, 2))
    assert (names, values) == ("classesinabatchfiles", "x" * 60 + "18;allaresamples")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", "policies", "--files", "2000", "--classes", "20"]) == 0
    shown = capsys.readouterr().out
    assert "messages per open" in shown
    assert "…" not in shown


def test_status_shows_laps_and_waits_in_words() -> None:
    lap = {"number": 2, "turns": 1184, "samples": 5000}
    stats = {
        "laps": {"train": lap, "": {"number": 1, "turns": 0, "samples": 1}},
        "demand_loads": 1184,
        "in_flight_waits": 23,
        "wait_seconds": 1.26,
    }
    rows = dict(status.rows(stats))
    assert rows["laps"] == "train is in lap 2, 1,184 of 5,000 samples; the whole tree is in lap 1, 0 of 1 sample"
    of_node = dict(status.rows({"laps": {"train": lap}, "nodes": 2, "node": 0}))
    assert of_node["laps"] == "train is in lap 2, 1,184 of 5,000 samples at this node"
    assert rows["waits for a load"] == "1,184 started a load, 23 joined one in progress; 1.3 s waited in all"


def test_status_says_from_when_on_it_counts_after_a_restart() -> None:
    """Counters are of one daemon, and laps are of the mount."""
    keeper = {"restarts": 2, "last_death": None}
    told = dict(status.rows({"keeper": keeper}))["restarts"]
    assert told == "2; opens, loads, waits and bytes are counted since the last restart"
    assert "restarts" not in dict(status.rows({"keeper": keeper | {"restarts": 0}}))


def test_status_shows_a_set_of_paths_that_comes_apart() -> None:
    laps = {name: {"number": 3, "turns": 0, "samples": 5000} for name in ("train", ".", "val")}
    stats = {"laps": laps, "split_paths": {"train": 1000, ".": 64, "val": 0}}
    told = dict(status.rows(stats))["splits"]
    assert told == (
        "the job reads two sets of paths of train; samples cross them (about 1,000 of 5,000 come apart in each epoch); "
        "the job reads two sets of paths of the whole tree; samples cross them "
        "(about 64 of 5,000 come apart in each epoch): "
        "if they are splits that the script makes, give each a directory, "
        "or a table with a column split; or mount with --classes sampler"
    )
    assert "splits" not in dict(status.rows(stats | {"split_paths": dict.fromkeys(laps, 0)}))


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_status_shows_errors_only_if_there_are_any(count: int) -> None:
    rows = dict(status.rows({"open_files": count, "errors": count, "changed": count}))
    told = [rows.get(name) for name in ("open files", "errors", "changed files")]
    assert told == [f"{count:,}" if count else None] * 3


@pytest.mark.parametrize(
    ("samples", "words"), [(41, "41; all are samples"), (40, "41; 40 are samples by name"), (0, "41; none is a")]
)
def test_inspect_shows_how_many_files_are_samples(samples: int, words: str) -> None:
    facts = {"verdict": "", "evidence": [], "saw": [], "packed": False, "files": 41, "sample_files": samples}
    facts |= {"exact_files": 0, "samples": 0, "classes_mode": "auto"}
    assert dict(inspect.rows(facts))["files"].startswith(words)


def test_without_mtab_the_error_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "fusermount3"
    helper.write_text(
        "#!/bin/sh\necho 'fusermount3: failed to open /etc/mtab: No such file or directory' >&2\nexit 1\n"
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OSError) as refused:
        _ask_helper(tmp_path, ["-u"])
    assert "ln -s ../proc/self/mounts /etc/mtab" in str(refused.value)


@pytest.mark.parametrize("classes", ["dir", "any", "sampler"])
def test_inspect_speaks_of_classes_as_an_epoch_of_one_split_has_them(
    classes: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No chunk has classes of two splits, and no epoch reads them mixed."""
    for number in range(600):
        folder = tmp_path / ("train", "val")[number % 2] / f"c{number // 2 % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(b"x")
    assert main(["inspect", "--json", "--classes", classes, str(tmp_path)]) == 0
    facts = json.loads(capfd.readouterr().out)
    shown = dict(inspect.rows(facts))
    assert facts["exact_files"] == (600 if classes == "sampler" else 0)
    if classes == "dir":
        assert facts["block_variance"] < facts["block_variance_if_random"] <= 1
        assert shown["classes in a batch"].endswith("a random order has 1.00 bits")
    else:
        assert not {"classes in a batch", "classes in a chunk"} & shown.keys()


def test_the_line_of_a_scan_counts_the_files_of_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A symlink is none."""
    (tmp_path / "1.jpg").write_bytes(b"x")
    (tmp_path / "link").symlink_to("1.jpg")
    assert main(["inspect", "--json", str(tmp_path)]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["files"] == 1
    assert "catalog: 1 file, " in said.err
