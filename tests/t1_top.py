"""The screen of `redoxfs top`: what it shows of given statistics, and that it fits."""

from typing import Any

import pytest
from rich.text import Text

from redoxfs.cli.top_screen import Size, screen, short_names, time_left
from redoxfs.cli.top_view import MountView, State
from redoxfs.native import Histogram
from redoxfs.telemetry import Outcome, as_json

HEAD = "12:00:00  every 1 s  q quits"


def times(count: int, each_s: float) -> dict[str, Any]:
    histogram = Histogram()
    for _ in range(count):
        histogram.record(round(each_s * 1e9))
    return as_json(histogram.counts(), histogram.sum_ns, histogram.bounds_ns())


def stats(
    opens: int, *, laps: dict[str, tuple[int, int, int]] | None = None, node: int = 0, nodes: int = 0, pid: int = 1
) -> dict[str, Any]:
    """A stats.json after so many opens, each of 1 MB. ``laps``: number, turns and samples of each split."""
    waits = {outcome.label: times(0, 0) for outcome in Outcome}
    waits["resident"] = times(opens, 0.001)
    told: dict[str, Any] = {
        "pid": pid,
        "policy": "pool",
        "source": "/data",
        "samples": 1000,
        "classes": 10,
        "opens": opens,
        "redirected": opens,
        "exact": 0,
        "bytes_read": 1_000_000 * opens,
        "bytes_served": 2_000_000 * opens,
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
                    "bytes_in": 500_000 * opens,
                    "bytes_out": 0,
                    "samples_received": opens,
                    "retries": 0,
                    "answer_seconds": times(opens, 0.05),
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


def drawn(views: list[MountView], columns: int = 80, lines: int = 24, **choice: int) -> list[str]:
    return [line.plain.rstrip() for line in screen(views, Size(columns, lines), head=HEAD, **choice)]


def row(lines: list[str], label: str) -> list[str]:
    """The words of the only line that begins with ``label``."""
    (line,) = [line for line in lines if line.startswith(label)]
    return line.removeprefix(label).split()


def test_one_mount_shows_its_figures_at_80_by_24() -> None:
    laps = {"train": (2, 300, 900), "val": (1, 0, 100)}
    lines = drawn([seen("/mnt/set", stats(0, laps=laps), stats(60, laps=laps | {"train": (2, 360, 900)}), seconds=2)])
    assert lines[0].startswith("redoxfs top  /mnt/set")
    assert lines[0].endswith(HEAD)
    assert lines[1] == "serving  pool  1,000 samples  10 classes  pid 1  2 restarts"
    assert row(lines, "opens/s")[0] == "30"
    assert row(lines, "storage MB/s")[0] == "30.0"
    assert row(lines, "readers MB/s")[0] == "60.0"
    assert "redirected 100.0%   waiting 7 opens, 0 reads   loads in flight 3   errors/s 0" in lines
    assert row(lines, "all")[:2] == ["30", "100.0%"]
    assert row(lines, "memory")[-5:] == ["512.0", "MiB", "of", "1.0", "GiB"]
    assert row(lines, "samples") == ["in", "slots", "123", "open", "4"]
    assert row(lines, "train")[:2] == ["lap", "2"]
    assert row(lines, "train")[3:] == ["40.0%", "360", "of", "900", "18", "s", "left"]
    assert row(lines, "val")[3:] == ["0.0%", "0", "of", "100"]


@pytest.mark.parametrize("mounts", [1, 2, 4, 30])
@pytest.mark.parametrize(("columns", "lines"), [(1, 1), (20, 5), (40, 10), (80, 24), (140, 40), (400, 90)])
@pytest.mark.parametrize("is_utf8", [True, False])
def test_no_line_is_too_long_and_none_too_many(mounts: int, columns: int, lines: int, is_utf8: bool) -> None:
    laps = {"train": (1234, 123_456_789, 1_234_567_890), "a" * 50: (1, 1, 2)}
    views = [
        seen(f"/mnt/{'d' * 60}/{node}", *(stats(opens, laps=laps, node=node, nodes=mounts) for opens in (1, 2, 9)))
        for node in range(mounts)
    ]
    views[-1].missed(State.SILENT, "the daemon has not answered for 3 seconds")
    for chosen in (None, 0, mounts - 1):
        for first in (0, mounts - 1):
            shown: list[Text] = screen(views, Size(columns, lines, is_utf8), head=HEAD, chosen=chosen, first=first)
            assert len(shown) <= lines
            assert max(line.cell_len for line in shown) <= columns
            assert is_utf8 or "".join(line.plain for line in shown).replace("…", "").isascii()


def test_more_room_shows_more_of_the_past() -> None:
    view = seen("/mnt/set", *(stats(100 * opens) for opens in range(40)))

    def curves(lines: list[str]) -> int:
        return sum("█" in line for line in lines if not line.startswith("memory"))

    assert curves(drawn([view], 140, 40)) > curves(drawn([view], 80, 24)) >= 3


def test_mounts_stand_side_by_side_and_are_added_up() -> None:
    views = [
        seen(
            f"/mnt/{node}", *(stats(opens, laps={"train": (1, opens, 1000)}, node=node, nodes=2) for opens in (0, last))
        )
        for node, last in enumerate((100, 300))
    ]
    lines = drawn(views)
    assert row(lines, "opens/s") == ["100", "300", "400"]
    assert row(lines, "storage MB/s") == ["100.0", "300.0", "400.0"]
    assert row(lines, "train") == ["lap", "1", "20.0%", "lap", "1", "60.0%", "lap", "1", "40.0%"]
    assert row(lines, "  time left") == ["4", "s", "1", "s", "4", "s"]
    assert row(lines, "peers ready") == ["1", "of", "1", "1", "of", "1"]
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
    assert drawn(views)[-1] == "mounts 1 to 4 of 9; left and right show others"


def test_a_mount_that_ended_says_so_and_has_no_rates() -> None:
    views = [seen(f"/mnt/{name}", stats(0), stats(100)) for name in "ab"]
    views[1].missed(State.ENDED, "the mount has ended")
    lines = drawn(views)
    assert row(lines, "state") == ["serving", "ended", "1", "serving"]
    assert row(lines, "opens/s") == ["100", "-", "100"]
    assert lines[-1] == "b: the mount has ended"
    alone = drawn([views[1]])
    assert alone[1].startswith("ended")
    assert alone[2] == "the mount has ended"
    assert row(alone, "opens/s")[0] == "-"
    views[1].saw(200.0, stats(1, pid=2))
    assert row(drawn(views), "state") == ["serving", "serving", "2", "serving"]


def test_a_mount_of_a_version_without_times_is_named() -> None:
    view = seen("/mnt/set", {"version": "0.0.1", "pid": 1})
    assert view.state is State.REFUSED
    assert "redoxfs 0.0.1 serves it" in drawn([view])[2]


def test_peers_show_state_bytes_and_answer_times() -> None:
    view = seen("/mnt/0", stats(0, nodes=3), stats(10, nodes=3))
    lines = drawn([view])
    assert row(lines, "10.0.0.1:4711")[:4] == ["ready", "5.0", "0.0", "10"]
    assert row(lines, "10.0.0.1:4711")[5::2] == ["ms", "ms"]
    told = stats(20, nodes=3)
    told["peers"][0] |= {"state": "unreachable", "reason": "no answer for 12 s"}
    view.saw(200.0, told)
    assert row(drawn([view]), "10.0.0.1:4711") == ["unreachable", "no", "answer", "for", "12", "s"]
    assert any("more peers" in line for line in drawn([seen("/mnt/0", stats(0, nodes=40), stats(1, nodes=40))]))


def test_time_left_counts_over_the_end_of_a_lap() -> None:
    laps = [(1, 980), (2, 10), (2, 40)]
    view = seen("/mnt/set", *(stats(0, laps={"train": (number, turns, 1000)}) for number, turns in laps), seconds=10)
    (lap,) = view.laps()
    assert lap.left_s == pytest.approx(960 / (60 / 20))


def test_a_node_of_several_goes_through_its_part_of_a_lap() -> None:
    def lap_of(turns: int) -> tuple[int, int]:
        view = seen("/mnt/0", *(stats(0, laps={"train": (1, at, 1000)}, nodes=4) for at in (0, turns)))
        (lap,) = view.laps()
        return lap.of, round(lap.left_s or 0)

    assert lap_of(50) == (250, 4)
    assert lap_of(500) == (1000, 1), "it reads more than its part"


def test_no_time_is_left_where_nothing_moves_or_laps_begin_again() -> None:
    still = seen("/mnt/set", *[stats(0, laps={"train": (1, 5, 10)})] * 3)
    again = seen("/mnt/set", *(stats(0, laps={"train": lap}) for lap in ((3, 9, 10), (1, 1, 10))))
    assert [still.laps()[0].left_s, again.laps()[0].left_s] == [None, None]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.2, "0 s"), (59.6, "1m 00s"), (83, "1m 23s"), (11_520, "3h 12m"), (500_000, "5 days")],
)
def test_time_left_in_words(seconds: float | None, shown: str) -> None:
    assert time_left(seconds) == shown


def test_names_lose_the_folders_that_they_have_in_common() -> None:
    assert short_names(["/mnt/run/0", "/mnt/run/1"]) == ["0", "1"]
    assert short_names(["/mnt/a/x", "/mnt/b/x"]) == ["a/x", "b/x"]
    assert short_names(["/a", "/b"]) == ["/a", "/b"]
    assert short_names(["/mnt/set"]) == ["/mnt/set"]
