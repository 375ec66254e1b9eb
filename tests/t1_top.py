"""The screen of `redoxfs top`: what it shows of given statistics, and that it fits."""

import re
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions
from scrapes import told as took

from redoxfs.cli.top_screen import console, screen, take_in
from redoxfs.cli.top_view import MountView, State
from redoxfs.doctor.result import Level, Result
from redoxfs.telemetry import Outcome

HEAD = "12:00:00  every 1 s  q quits"


def stats(
    opens: int, *, laps: dict[str, tuple[int, int, int]] | None = None, node: int = 0, nodes: int = 0, pid: int = 1
) -> dict[str, Any]:
    """A stats.json after so many opens, each of 1 MiB. ``laps``: number, turns and samples of each split."""
    waits = {outcome.label: took() for outcome in Outcome}
    waits["resident"] = took(*[0.001] * opens)
    told: dict[str, Any] = {
        "pid": pid,
        "policy": "pool",
        "source": "/data",
        "samples": 1000,
        "classes": 10,
        "opens": opens,
        "redirected": opens,
        "exact": 0,
        "bytes_read": opens << 20,
        "bytes_served": 2 * opens << 20,
        "errors": 0,
        "open_seconds": waits,
        "wait_seconds": 0.0,
        "waiting_opens": 7,
        "waiting_reads": 0,
        "loads_in_flight": 3,
        "memory_used_bytes": 1 << 29,
        "memory_limit_bytes": 1 << 30,
        "turns": opens,
        "in_slots": 123,
        "in_open_files": 4,
        "laps": {
            tree: dict(zip(("number", "turns", "samples"), lap, strict=True)) for tree, lap in (laps or {}).items()
        },
        "keeper": {"restarts": 2},
    }
    if nodes:
        others = [other for other in range(nodes) if other != node]
        told |= {
            "node": node,
            "nodes": nodes,
            "peers": [
                {
                    "address": f"10.0.0.{other}:4711",
                    "state": "ready",
                    "reason": "",
                    "bytes_in": opens << 19,
                    "bytes_out": 0,
                    "samples_received": opens,
                    "retries": 0,
                    "answer_seconds": took(*[0.05] * opens),
                }
                for other in others
            ],
        }
    return told


def seen(name: str, *snapshots: dict[str, Any], seconds: float = 1.0) -> MountView:
    view = MountView(name)
    for number, told in enumerate(snapshots):
        view.saw(100.0 + seconds * number, told)
    return view


def terminal(columns: int = 80, lines: int = 24, encoding: str = "utf-8") -> tuple[Console, BytesIO]:
    """A console of this size, and what it writes."""
    written = BytesIO()
    on = console(TextIOWrapper(written, encoding, write_through=True))
    on.size = ConsoleDimensions(columns, lines)
    return on, written


def drawn(views: list[MountView], columns: int = 80, lines: int = 24, **choice: int) -> list[str]:
    on, _ = terminal(columns, lines)
    shown = on.render_lines(screen(views, on, head=HEAD, **choice))
    return ["".join(segment.text for segment in line).rstrip() for line in shown[:lines]]


def row(lines: list[str], label: str) -> list[str]:
    """The words of the only line that begins with ``label``."""
    (line,) = [line for line in lines if line.startswith(label)]
    return line.removeprefix(label).split()


def test_one_mount_shows_its_figures_at_80_by_24() -> None:
    laps = {"train": (2, 300, 900), "val": (1, 0, 100)}
    lines = drawn([seen("/mnt/set", stats(0, laps=laps), stats(60, laps=laps | {"train": (2, 360, 900)}), seconds=2)])
    assert lines[0].startswith("redoxfs top  /mnt/set")
    assert lines[0].endswith(HEAD)
    assert lines[1] == "serving  pool  1,000 samples  10 classes  pid 1"
    assert row(lines, "opens/s")[0] == "30"
    assert row(lines, "storage MiB/s")[0] == "30.0"
    assert row(lines, "readers MiB/s")[0] == "60.0"
    assert row(lines, "redirected") == ["100.0%"]
    assert [row(lines, label)[0] for label in ("waiting", "loads", "errors/s", "restarts")] == ["7", "3", "0", "2"]
    assert row(lines, "all")[:2] == ["30", "100.0%"]
    assert row(lines, "memory")[:2] == ["512.0", "MiB"]
    assert row(lines, "  limit") == ["1.0", "GiB"]
    assert [row(lines, label) for label in ("  loaded", "  open")] == [["123"], ["4"]]
    assert row(lines, "train")[:3] == ["lap", "2", "40.0%"]
    assert row(lines, "train")[-3:] == ["360", "of", "900"]
    assert row(lines, "val")[:3] + row(lines, "val")[-3:] == ["lap", "1", "0.0%", "0", "of", "100"]
    assert [line.split() for line in lines if line.startswith("  time left")] == [
        ["time", "left", "18", "s"],
        ["time", "left", "-"],
    ]


@pytest.mark.parametrize("mounts", [1, 2, 30])
@pytest.mark.parametrize(
    ("columns", "lines", "encoding"),
    [(1, 1, "utf-8"), (20, 5, "ascii"), (40, 10, "utf-8"), (80, 24, "utf-8"), (80, 24, "ascii"), (140, 40, "utf-8")]
    + [(400, 90, "ascii")],
)
def test_no_row_is_too_long_and_the_first_lines_matter_most(
    mounts: int, columns: int, lines: int, encoding: str
) -> None:
    laps = {"train": (1234, 123_456_789, 1_234_567_890), "a" * 50: (1, 1, 2)}
    views = [
        seen(f"/mnt/{'d' * 60}/{node}", *(stats(opens, laps=laps, node=node, nodes=mounts) for opens in (1, 2, 9)))
        for node in range(mounts)
    ]
    views[-1].missed(State.SILENT, "silent")
    on, written = terminal(columns, lines, encoding)
    for chosen in {None, 0, mounts - 1}:
        for first in {0, mounts - 1}:
            on.print(screen(views, on, head=HEAD, chosen=chosen, first=first))
            shown = [line.rstrip() for line in plain(written, encoding)]
            assert max(map(len, shown)) <= columns
            if columns >= 20:
                # In this order, whatever is below them.
                labels = ["redoxfs top", "state|serving|no answer", "opens/s", "storage MiB", "readers MiB"]
                found = [next(i for i, line in enumerate(shown) if re.match(label, line)) for label in labels]
                assert found == sorted(found)
                assert found[-1] < 8


def plain(written: BytesIO, encoding: str = "utf-8") -> list[str]:
    """The lines that were written since the last call, without colours; nothing else is more than a character."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue().decode(encoding))
    written.seek(0)
    written.truncate()
    assert text.replace("\n", "").isprintable()
    return text.splitlines()


def test_the_verdict_comes_first_and_stands_whole() -> None:
    view = seen("/mnt/set", stats(0), stats(10))
    verdict = Result("verdict", Level.WARNING, "word " * 40, "redoxfs umount /mnt/set", values={"cause": "IOPS"})
    view.judged(verdict)
    lines = drawn([view])
    state = next(number for number, line in enumerate(lines) if line.startswith("serving"))
    assert state > 2
    assert " ".join(lines[1:state]).split() == verdict.line.split()
    view.missed(State.SILENT, "silent")
    assert not any("verdict" in line for line in drawn([view]))


def test_of_several_mounts_each_has_its_cause_and_one_line_says_what_to_do() -> None:
    views = [seen(f"/mnt/{name}", stats(0), stats(10)) for name in "abc"]
    for view, level, cause in zip(
        views, (Level.OK, Level.WARNING, Level.PROBLEM), ("well", "IOPS", "node"), strict=True
    ):
        view.judged(Result("verdict", level, f"found {cause}", values={"cause": cause}))
    lines = drawn(views)
    assert row(lines, "verdict") == ["well", "IOPS", "node", "2", "to", "mend"]
    assert lines[1] == "/mnt/b: warning  verdict: found IOPS"
    assert not any("found well" in line for line in lines)


def test_more_room_shows_more_of_the_past() -> None:
    view = seen("/mnt/set", *(stats(100 * opens) for opens in range(99)))

    def past(columns: int) -> int:
        (line,) = [line for line in drawn([view], columns, 24) if line.startswith("opens/s")]
        return line.count("█")

    assert past(140) > past(80) > 30


HOSTILE = "\x1b[2J\x1b]0;x\x07[red]\u202e\udcff\r\n:smile:"


def test_no_text_of_a_mount_reaches_the_terminal_as_more_than_text() -> None:
    def told(opens: int) -> dict[str, Any]:
        made = stats(opens, laps={HOSTILE: (1, 1, 2), "[red]:x:": (1, 1, 2)}, nodes=3) | {"policy": HOSTILE}
        made["peers"][0] |= {"address": HOSTILE, "state": HOSTILE, "reason": HOSTILE}
        made["peers"][1] |= {"address": HOSTILE}
        return made

    view = MountView(f"/mnt/{HOSTILE}")
    on, written = terminal(160, 60)
    for at_s, opens in enumerate((0, 10)):
        take_in(view, float(at_s), told(opens), on)
    view.judged(Result("verdict", Level.WARNING, HOSTILE, HOSTILE, values={"cause": HOSTILE}))
    silent = MountView(HOSTILE)
    silent.missed(State.SILENT, HOSTILE)
    # Whose verdict, and the reason; the name, the policy and two peers; the name and the reason.
    for chosen, times in ((None, 2), (0, 4), (1, 2)):
        on.print(screen([view, silent], on, head=HEAD, chosen=chosen))
        lines = plain(written)
        assert sum("?[2J?]0;x?[red]????:smile:" in line for line in lines) == times
        assert chosen == 1 or row(lines, "[red]:x:")[0] == "lap"
    assert view.serves


@pytest.mark.parametrize("bad", [None, HOSTILE, [1], {"x": 1}, float("inf"), ...], ids=repr)
def test_statistics_that_make_no_sense_are_a_line(bad: Any) -> None:
    good = stats(5, laps={"train": (1, 5, 100)}, nodes=2)
    refused = set()
    on, written = terminal()
    for key in good:
        view = seen("/mnt/set", stats(0, laps={"train": (1, 0, 100)}, nodes=2))
        take_in(view, 200.0, {other: told for other, told in (good | {key: bad}).items() if told is not ...}, on)
        on.print(screen([view, view], on, head=HEAD))
        shown = plain(written)
        if not view.serves:
            assert any("statistics make no sense" in line for line in shown)
            refused.add(key)
    assert {"opens", "open_seconds", "memory_used_bytes"} <= refused
    view.refused("")
    for at_s in (300.0, 301.0):
        take_in(view, at_s, good, on)
    assert view.serves
    assert view.rates is not None


def test_mounts_stand_side_by_side_and_are_added_up() -> None:
    views = [
        seen(
            f"/mnt/{node}", *(stats(opens, laps={"train": (1, opens, 1000)}, node=node, nodes=2) for opens in (0, last))
        )
        for node, last in enumerate((100, 300))
    ]
    lines = drawn(views)
    assert row(lines, "opens/s") == ["100", "300", "400"]
    assert row(lines, "storage MiB/s") == ["100.0", "300.0", "400.0"]
    assert row(lines, "train") == ["lap", "1", "20.0%", "lap", "1", "60.0%", "lap", "1", "40.0%"]
    assert row(lines, "  time left") == ["4", "s", "1", "s", "4", "s"]
    assert row(lines, "peers ready") == ["1", "of", "1", "1", "of", "1", "2", "of", "2"]
    assert row(lines, "restarts") == ["2", "2", "4"]
    assert drawn(views, chosen=1)[0].startswith("redoxfs top  /mnt/1")


def test_laps_of_separate_mounts_are_not_added_up() -> None:
    views = [seen(f"/mnt/{name}", *(stats(n, laps={"train": (1, n, 1000)}) for n in (0, 100))) for name in "ab"]
    assert row(drawn(views), "train") == ["lap", "1", "10.0%", "lap", "1", "10.0%"]


def test_mounts_that_do_not_fit_are_reached_by_scrolling() -> None:
    views = [seen(f"/mnt/{node}", stats(0), stats(10 * (node + 1))) for node in range(9)]
    assert row(drawn(views), "opens/s") == ["10", "20", "30", "40", "450"]
    assert row(drawn(views, first=2), "opens/s") == ["30", "40", "50", "60", "450"]
    assert row(drawn(views, first=99), "opens/s") == ["60", "70", "80", "90", "450"]
    assert drawn(views)[0].startswith("redoxfs top  1 to 4 of 9 mounts")


def test_a_mount_that_ended_says_so_and_has_no_rates() -> None:
    views = [seen(f"/mnt/{name}", stats(0), stats(100)) for name in "ab"]
    views[1].missed(State.ENDED, "the mount has ended")
    lines = drawn(views)
    assert row(lines, "state") == ["serving", "ended", "1", "serving"]
    assert row(lines, "opens/s") == ["100", "-", "100"]
    assert lines[1] == "the mount has ended"
    alone = drawn([views[1]])
    assert alone[1].startswith("ended")
    assert alone[2] == "the mount has ended"
    assert row(alone, "opens/s")[0] == "-"
    views[1].saw(200.0, stats(1, pid=2))
    assert row(drawn(views), "state") == ["serving", "serving", "2", "serving"]


def test_a_mount_of_a_version_without_times_is_named() -> None:
    view = MountView("/mnt/set")
    take_in(view, 100.0, {"version": "0.0.1", "pid": 1}, terminal()[0])
    assert view.state is State.REFUSED
    assert "redoxfs 0.0.1 serves it" in drawn([view])[2]


def test_peers_show_state_bytes_and_answer_times() -> None:
    view = seen("/mnt/0", stats(0, nodes=3), stats(10, nodes=3))
    lines = drawn([view])
    assert row(lines, "peers ready") == ["2", "of", "2"]
    assert row(lines, "10.0.0.1:4711")[:3] == ["5.0", "0.0", "10"]
    assert row(lines, "10.0.0.1:4711")[4::2] == ["ms", "ms"]
    told = stats(20, nodes=3)
    told["peers"][0] |= {"state": "unreachable", "reason": "no answer for 12 s"}
    view.saw(200.0, told)
    lines = drawn([view])
    assert row(lines, "10.0.0.1:4711") == ["unreachable", "no", "answer", "for", "12", "s"]
    assert row(lines, "peers ready") == ["1", "of", "2"]
    assert lines.index("10.0.0.1:4711  unreachable  no answer for 12 s") < len(lines) - 1, "before those that are ready"


def test_time_left_counts_over_the_end_of_a_lap() -> None:
    laps = [(1, 980), (2, 10), (2, 40)]
    view = seen("/mnt/set", *(stats(0, laps={"train": (number, turns, 1000)}) for number, turns in laps), seconds=10)
    (lap,) = view.laps().values()
    assert lap.left_s == pytest.approx(960 / (60 / 20))


def test_a_node_of_several_goes_through_its_part_of_a_lap() -> None:
    def lap_of(turns: int) -> tuple[int, int]:
        view = seen("/mnt/0", *(stats(0, laps={"train": (1, at, 1000)}, nodes=4) for at in (0, turns)))
        (lap,) = view.laps().values()
        return lap.of, round(lap.left_s or 0)

    assert lap_of(50) == (250, 4)
    assert lap_of(500) == (1000, 1), "it reads more than its part"


def test_no_time_is_left_where_nothing_moves_or_laps_begin_again() -> None:
    still = seen("/mnt/set", *[stats(0, laps={"train": (1, 5, 10)})] * 3)
    again = seen("/mnt/set", *(stats(0, laps={"train": lap}) for lap in ((3, 9, 10), (1, 1, 10))))
    assert [still.laps()["train"].left_s, again.laps()["train"].left_s] == [None, None]
