"""A report recognizes its inputs, escapes what it shows, and needs nothing from outside the page."""

import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from t1_history import QUALITY, stats, written

from redoxfs.cli import main
from redoxfs.report import Figures, MountRun, UnknownInputError, page, recognized
from redoxfs.report.charts import Series, lines
from redoxfs.report.html import NONE, escaped, number, rate, seconds, share, size, tag
from redoxfs.report.mounts import shuffled
from redoxfs.telemetry import METRICS, Kind
from redoxfs.telemetry.history import History
from redoxfs.telemetry.history_form import LapQuality, row_of, stats_of

HOSTILE = "/data/<script>alert('&\"')</script>"

ABOUT = {
    "version": "0.1.0",
    "pid": 7,
    "policy": "pool",
    "source": HOSTILE,
    "mountpoint": HOSTILE,
    "keeper": None,
    "peers": [],
    "request": {"words": []},
}


def whole(opens: int, **more: Any) -> dict[str, Any]:
    """A stats.json of which each metric has a value."""
    made: dict[str, Any] = {}
    for metric in METRICS:
        if metric.kind in (Kind.COUNTER, Kind.GAUGE) and not metric.labels:
            *path, name = metric.place.split(".")
            inner = made
            for each in path:
                inner = inner.setdefault(each, {})
            inner[name] = 0
    made |= stats(opens, **more) | {"redirected": opens, "bytes_served": 500 * opens, "samples": 10}
    return made


def history(tree: str = HOSTILE, *, restarts: int = 0) -> dict[str, Any]:
    """history.json of a mount that did something for ten seconds, then nothing for ten."""
    kept = History()
    kept.add(whole(0), 0.0)
    kept.begin_lap(0, 0.0)
    for second in range(1, 11):
        kept.add(whole(10 * second, waits=second, restarts=restarts * (second > 5)), float(second))
    kept.end_lap(0, 1, 1, QUALITY, 10.0, whole=True)
    kept.add(whole(100, waits=10, restarts=restarts), 20.0)
    return json.loads("".join(kept.copy(21.0).pieces({**whole(100), **ABOUT}, [tree], None)))


class Seen(html.parser.HTMLParser):
    """The elements of a page, and its text."""

    VOID = ("meta", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.addresses += [value or "" for key, value in attributes if key in ("src", "href", "action", "data")]
        if name not in self.VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self._open.append(name)

    def handle_endtag(self, name: str) -> None:
        if self._open and self._open[-1] == name:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)


def seen(*values: Any) -> Seen:
    return Seen(page([recognized(f"{number}.json", value) for number, value in enumerate(values)]))


def test_hostile_names_are_text() -> None:
    found = seen(history(), {**history(), "stats": {**whole(100), **ABOUT, "mountpoint": "/\udcff<b>"}})
    assert not {"script", "b", "img"} & set(found.elements)
    assert HOSTILE in " ".join(found.words)
    assert "/\\udcff<b>" in " ".join(found.words)


def test_nothing_comes_from_outside_the_page() -> None:
    found = seen(history())
    assert set(found.addresses) <= {"data:,"}
    text = page([recognized("a", history())])
    assert not re.findall(r"url\(|@import|https?://|<script", text)


def test_the_story_has_the_figures_of_the_history() -> None:
    text = " ".join(seen(history(restarts=1)).words).replace("\N{NO-BREAK SPACE}", " ")
    assert "Programs opened 100 files in 10 s of 21 s in all: 10 a second." in text
    assert "Of the opens, 100 % waited for bytes" in text
    assert "Storage delivered 97.7 KiB, which is 2 bytes for each byte that programs read (48.8 KiB)." in text
    assert "Another sample of the same class answered 100 % of the opens. Nothing failed." in text
    assert "1 restart: another daemon took over." in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "good"),
        ({"rank_correlation": 0.5}, "bad: like the lap before"),
        ({"rank_correlation": -0.5}, "bad: the lap before, reversed"),
        # Of 25 samples, that may be chance.
        ({"rank_correlation": 0.5, "followed": 25}, "good"),
        ({"rank_correlation": None, "mate_pairs": 11.0, "mate_pairs_if_random": 1.6}, "bad: chunks stay together"),
        ({"mate_pairs": 8.6, "mate_pairs_if_random": 1.6}, "good"),
    ],
)
def test_an_order_is_said_to_be_good_or_bad(changes: dict[str, float | None], words: str) -> None:
    quality = LapQuality(0.33, 0.01, 4096, 1.6, 1.6, 1.6, 100)
    assert shuffled(replace(quality, **changes)) == words  # type: ignore[arg-type]


def test_a_lap_of_few_chunks_is_not_called_bad_by_chance() -> None:
    """600 samples in 12 chunks: their order decides, and that of 12 things may be like that of before."""
    quality = LapQuality(0.3, 0.155, 600, 5.0, None, 2.7, 1)
    assert [shuffled(quality, chunks) for chunks in (12, 600)] == ["good", "bad: like the lap before"]


def test_a_node_that_draws_from_its_own_part_is_not_called_bad_for_that() -> None:
    """The third epoch of one of two nodes, 64,000 samples in chunks of 64, a tenth in memory, as `PoolCluster` has it:
    5.3 times the mates of a random order of its part, as many as one node has."""
    quality = LapQuality(0.34, -0.04, 1840, 332.0, 152.0, 31.4, 32)
    assert [shuffled(quality, 1000, nodes) for nodes in (2, 1, None)] == ["good", *["bad: chunks stay together"] * 2]


def test_each_entropy_is_beside_that_of_a_random_order() -> None:
    text = " ".join(seen(history()).words).replace("\N{NO-BREAK SPACE}", " ")
    assert "7.10 of 7.50" in text
    assert "3.20 of 3.30" in text
    value = history()
    for name in ("chunk_entropy", "chunk_entropy_if_random", "class_entropy", "class_entropy_if_random"):
        del value["laps"][name]
    assert " of 7.50" not in " ".join(seen(value).words)


def test_doctor_has_its_say() -> None:
    value = history()
    value["stats"]["peers"] = [{"address": "b:1", "state": "unreachable", "reason": None, "answer_seconds": {"sum": 0}}]
    text = " ".join(seen(value).words)
    assert "1 of 1 are not ready: b:1 unreachable" in text
    assert "redoxfs nodes" in text


def test_a_mount_that_has_done_nothing_is_a_page() -> None:
    kept = History()
    kept.add(whole(0), 0.0)
    value = json.loads("".join(kept.copy(5.0).pieces({**whole(0), **ABOUT}, ["."], None)))
    assert "No file was opened in 5 s." in " ".join(seen(value).words).replace("\N{NO-BREAK SPACE}", " ")
    kept.copy(0.0)
    assert "No file was opened" in " ".join(seen(written(kept, 0.0, {**whole(0), **ABOUT})).words)


@pytest.mark.parametrize(("opens", "words"), [(0, "No file was opened"), (3, "Programs opened 3 files")])
def test_a_mount_whose_opens_all_hang_is_a_page(opens: int, words: str) -> None:
    kept = History()
    kept.add(whole(0), 0.0)
    hanging = whole(opens, waits=0) | {"waiting_opens": 3}
    kept.add(hanging, 1.0)
    value = written(kept, 5.0, {**hanging, **ABOUT})
    text = " ".join(seen(value, history()).words)
    assert words in text
    assert "3 opens wait for their reply." in text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("samples", [0, 10])
def test_only_a_mount_that_has_laps_is_said_to_have_completed_none(samples: int) -> None:
    """One that redirects nothing has none, whatever is read."""
    kept = History()
    for second in (0, 1):
        kept.add(whole(9 * second) | {"samples": samples}, float(second))
    text = " ".join(seen(written(kept, 5.0, {**whole(9), **ABOUT})).words)
    assert "Programs opened 9 files" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert ("No lap was completed yet" in text) is (samples > 0)


def test_several_mounts_are_beside_each_other() -> None:
    text = " ".join(seen(history("train"), history("val")).words)
    assert "One mount beside another" in text
    assert text.count("Epochs of train") == text.count("Epochs of val") == 1


def test_histories_of_one_mountpoint_have_the_names_of_their_files() -> None:
    def of(mountpoint: str) -> dict[str, Any]:
        return {**history(), "stats": {**whole(100), **ABOUT, "mountpoint": mountpoint}}

    words = seen(of("/mnt/set"), of("/mnt/set"), of("/mnt/other")).words
    for name in ("/mnt/set (0.json)", "/mnt/set (1.json)", "/mnt/other"):
        assert words.count(name) >= 2, "in the table, and above its own charts"
    assert "/mnt/set" not in words


ROWS = [{"way": "plain", "files_per_s": 1234.5}, {"way": "<packed>", "files_per_s": 10, "open_us": {"p99": 1.5}}]


@pytest.mark.parametrize(
    ("value", "headings", "first"),
    [
        (ROWS, ["way", "files per s", "open us.p99"], ["plain", "1,234", NONE]),
        ({"machine": {"cores": 2}, "files": 2048, "rows": ROWS}, ["way", "files per s", "open us.p99"], None),
        ({"files": 7, "local": {"cold": {"s": 3.0}, "warm": {"s": 1}}}, ["", "s"], ["cold", "3"]),
        ({"asked": {"a": {"b": 1}}, "rows": [{"c": True}]}, ["c"], ["yes"]),
        ({"policy": "pool", "loads_per_chunk": 1.25}, ["policy", "loads per chunk"], ["pool", "1.25"]),
    ],
)
def test_rows_of_figures_are_a_table(value: Any, headings: list[str], first: list[str] | None) -> None:
    found = recognized("a.json", value)
    assert isinstance(found, Figures)
    assert found.table.headings == headings
    assert first is None or found.table.rows[0] == first
    assert not {"script", "packed"} & set(seen(value).elements)


def test_a_table_is_shown_with_its_machine_and_settings() -> None:
    machine = {"cpu": "<fast>", "cores": 2, "kernel": "6.1", "python": "3.11"}
    text = " ".join(seen({"machine": machine, "files": 2048, "cap_mb": 9, "rows": ROWS}).words)
    assert "0.json" in text
    assert "2 cores, <fast>, Linux 6.1" in text
    assert "files: 2,048, cap mb: 9" in text


@pytest.mark.slow
def test_what_a_simulation_prints_is_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "policies", "--files", "2000", "--classes", "10", "--json"]) == 0
    text = " ".join(seen(json.loads(capfd.readouterr().out)).words)
    assert "read amplification" in text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([], "is no history.json, and has no rows"),
        ({}, "is no history.json, and has no rows"),
        (5, "is no history.json, and has no rows"),
        ([1, {"rows": 1}], "is no history.json, and has no rows"),
        ({str(number): number for number in range(100)}, "is no history.json, and has no rows"),
        ({"open_seconds": {}, "pid": 1}, "stats.json"),
        ({"format": 9, "stats": {}, "points": {}, "laps": {}}, "its format is 9"),
    ],
)
def test_another_json_is_refused_with_a_line(value: Any, line: str) -> None:
    with pytest.raises(UnknownInputError, match=line):
        recognized("a.json", value)


def test_a_file_that_is_no_input_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page_path = tmp_path / "report.html"
    (tmp_path / "a.json").write_text('{"a": []}')
    (tmp_path / "b.json").write_text("no JSON")
    broken = history()
    broken["points"]["values"]["opens"] = [None] * len(broken["points"]["time"])
    (tmp_path / "c.json").write_text(json.dumps(broken))
    late = history()
    late["points"]["time"] = [1e17 for _ in late["points"]["time"]]
    (tmp_path / "d.json").write_text(json.dumps(late))
    (tmp_path / "e.json").write_text('[{"resident_share": 1, "loads_per_chunk": 1' + "0" * 400 + "}]")
    (tmp_path / "f.json").write_text(json.dumps({"rows": [{"variant": "a", "loads": 10**400}]}))
    with (tmp_path / "g.json").open("wb") as large:
        large.truncate(1 << 30)
    for name in (*(f"{letter}.json" for letter in "abcdefg"), "missing.json"):
        assert main(["report", str(tmp_path / name), "-o", str(page_path)]) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert str(tmp_path / name) in error
    assert not page_path.exists()


def test_a_page_replaces_an_older_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(history()))
    for _ in range(2):
        assert main(["report", str(tmp_path / "a.json"), "-o", str(tmp_path / "report.html")]) == 0
        verdict, line = capfd.readouterr().out.splitlines()
        assert verdict.startswith("ok       verdict: ")
        assert line.startswith(f"{tmp_path / 'report.html'}: 1 mount; ")
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    (tmp_path / "train.py").write_text("import torch")
    assert main(["report", str(tmp_path / "a.json"), "-o", str(tmp_path / "train.py")]) == 4
    assert "is there, and is no page of redoxfs report" in capfd.readouterr().err
    assert (tmp_path / "train.py").read_text() == "import torch"
    assert main(["report", str(tmp_path / "a.json"), "-o", str(tmp_path / "none" / "report.html")]) == 2
    assert main(["report", str(tmp_path / "a.json"), "-o", str(tmp_path)]) == 4
    assert capfd.readouterr().err.count("\n") == 2


def test_a_scale_of_bytes_is_round_in_their_unit() -> None:
    times = [float(number) for number in range(4)]
    chart = lines("Bytes a second", times, [Series("read", "a", [1e6, 2.5e6, 3.3e6])], rate)
    shown = re.findall(r">([^<]*B/s)<", chart.replace("\N{NO-BREAK SPACE}", " "))
    assert shown[:4] == ["0 B/s", "1 MiB/s", "2 MiB/s", "3 MiB/s"]


def test_figures_have_units_and_three_digits() -> None:
    space = "\N{NO-BREAK SPACE}"
    assert [number(value) for value in (0, 5, 1234567, 12.345, 0.001234, 0.5, None)] == [
        "0", "5", "1,234,567", "12.3", "0.00123", "0.5", NONE,
    ]  # fmt: skip
    assert [size(value) for value in (5, (1 << 20) - 1, 3 << 19, 2 << 40)] == [
        f"5{space}B", f"1{space}MiB", f"1.5{space}MiB", f"2{space}TiB",
    ]  # fmt: skip
    assert [seconds(value) for value in (2e-6, 0.0015, 0.25, 90, 600, 7200, 864_000)] == [
        f"2{space}µs", f"1.5{space}ms", f"250{space}ms", f"90{space}s", f"10{space}min", f"2{space}h", f"10{space}days",
    ]  # fmt: skip
    assert [share(value) for value in (0, 0.0004, 0.123, 1)] == [
        f"0{space}%", f"under 0.1{space}%", f"12.3{space}%", f"100{space}%",
    ]  # fmt: skip
    assert tag("p", "<", class_='a"b') == '<p class="a&quot;b">&lt;</p>'
    assert escaped("&") == "&amp;"


def test_a_history_recognizes_itself() -> None:
    assert isinstance(recognized("a", history()), MountRun)
    assert stats_of(row_of(whole(3)))["opens"] == 3
