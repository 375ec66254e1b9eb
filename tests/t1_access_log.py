"""The lines of the access log, whatever the names of files are; and profiles of opens."""

import errno
import math
import os
import random
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patience import PATIENCE_S

from redoxfs.cli.options.watching import ProfileOptions
from redoxfs.cli.profile import LONGEST_LINE_BYTES, Seen, texts
from redoxfs.telemetry import Outcome
from redoxfs.telemetry.access_log import (
    CONTINUED,
    HEADER,
    IDLE,
    Access,
    Lines,
    escaped,
    lost_line,
    lost_of,
    parse,
    unescaped,
)
from redoxfs.telemetry.open_profile import MOST_DIRECTORIES, OTHERS, STEP, OpenProfile, directory_of

PATHS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(min_size=1, max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b"-", b"#", b"\\", b"\\x41", b"a\tb\nc\rd", b"\xff\xfe", "\u2028\x85\u202e".encode(), b" ", b"\0"]
    ),
)
MOMENTS = st.integers(0, 250_000_000_000_000_000).map(lambda us: us * 1000)

ACCESSES = st.one_of(
    st.builds(
        Access,
        MOMENTS,
        st.integers(0, 2**32 - 1),
        st.sampled_from([each for each in Outcome if each is not Outcome.FAILED]),
        st.integers(0, 10**12),
        PATHS,
        PATHS,
    ),
    st.builds(
        Access,
        MOMENTS,
        st.integers(0, 2**32 - 1),
        st.just(Outcome.FAILED),
        st.integers(0, 10**12),
        PATHS,
        st.none(),
        st.sampled_from([errno.EIO, errno.EAGAIN, 511]),
    ),
)


def access(path: bytes = b"a/b/c.jpg", took_us: int = 100, outcome: Outcome = Outcome.RESIDENT) -> Access:
    is_failed = outcome is Outcome.FAILED
    return Access(0, 1, outcome, took_us, path, None if is_failed else path, errno.EIO if is_failed else 0)


def test_a_line_has_the_fields_in_the_order_of_the_header() -> None:
    moment = int(datetime(2026, 5, 4, 10, 20, 30, 123456, tzinfo=UTC).timestamp() * 1e6) * 1000
    done = Access(moment, 4711, Outcome.DEMAND, 812, b"train/cat/7.jpg", b"train/cat/9.jpg")
    line = b"2026-05-04T10:20:30.123456Z\t4711\tdemand\t812\ttrain/cat/7.jpg\ttrain/cat/9.jpg\n"
    assert Lines().line(done) == line
    failed = Access(moment, 4711, Outcome.FAILED, 9, b"a", None, errno.EIO)
    assert Lines().line(failed).split(b"\t")[2:] == [b"failed:EIO", b"9", b"a", b"-\n"]
    assert HEADER == b"# time\tpid\toutcome\tmicroseconds\tpath\tserved\n"


@given(st.lists(ACCESSES, min_size=1, max_size=4))
@example([access(b"-")])
def test_every_line_says_what_was_opened_whatever_its_name(accesses: list[Access]) -> None:
    lines = Lines()
    for each in accesses:
        line = lines.line(each)
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert line.count(b"\t") == 5
        assert len(line.decode().splitlines()) == 1
        assert parse(line) == each


@given(PATHS)
def test_a_path_is_escaped_into_printable_text_and_back(path: bytes) -> None:
    text = escaped(path)
    assert text.decode().isprintable()
    assert unescaped(text) == path


def test_names_of_other_languages_stay_readable() -> None:
    assert escaped("bücher/猫 7.jpg".encode()) == "bücher/猫 7.jpg".encode()
    assert escaped(b"a\tb\nc\\d\xff\x01") == rb"a\tb\nc\\d\xff\x01"


GOOD = Lines().line(access())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        GOOD[:-10].rpartition(b"\t")[0],
        GOOD[30:],
        GOOD.replace(b"\n", b"\tmore\n"),
        GOOD.replace(b"resident", b"residing"),
        GOOD.replace(b"resident", b"RESIDENT"),
        GOOD.replace(b"resident", b"resident:EIO"),
        GOOD.replace(b"resident", b"failed"),
        GOOD.replace(b"resident", b"failed:EIO"),
        GOOD.replace(b"resident", b"failed:NOTHING"),
        GOOD.replace(b"resident", b"failed:errorcode"),
        GOOD.replace(b"\t100\t", b"\t-100\t"),
        GOOD.replace(b"\t100\t", b"\t1e3\t"),
        GOOD.replace(b"\t100\t", b"\t" + b"1" * 5000 + b"\t"),
        GOOD.replace(b"Z\t", b"\t"),
        GOOD.replace(b"1970-", b"197O-"),
        GOOD.replace(b"a/b/", b"a\\b/"),
        GOOD.replace(b"a/b/", b"a/b\\"),
        GOOD.replace(b"1970", b"\xff\xfe70"),
        HEADER,
        IDLE,
        CONTINUED,
    ],
)
def test_any_other_line_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(line)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(line)


def test_lost_lines_are_counted_from_the_line_about_them() -> None:
    assert lost_of(lost_line(12_345)) == 12_345
    assert [lost_of(line) for line in (HEADER, IDLE, CONTINUED, GOOD, b"# lost many lines: x")] == [0] * 5


@pytest.mark.parametrize(
    ("path", "depth", "directory"),
    [
        (b"train/cat/a.jpg", 1, b"train"),
        (b"train/cat/a.jpg", 2, b"train/cat"),
        (b"train/cat/a.jpg", 9, b"train/cat"),
        (b"train/cat/a.jpg", 0, b"."),
        (b"README", 1, b"."),
        (b".redoxfs/exact/train/cat/a.jpg", 1, b".redoxfs/exact/train"),
        (b".redoxfs/exact/README", 1, b".redoxfs/exact"),
    ],
)
def test_a_directory_is_named_by_as_many_names_as_asked(path: bytes, depth: int, directory: bytes) -> None:
    assert directory_of(path, depth) == directory


def test_a_profile_adds_up_and_its_quantiles_are_close() -> None:
    chosen = random.Random(3)
    profile = OpenProfile(depth=2)
    accesses = [
        access(
            b"train/%d/%d.jpg" % (chosen.randrange(5), number),
            int(chosen.lognormvariate(6, 2)),
            chosen.choice(list(Outcome)),
        )
        for number in range(5000)
    ]
    for each in accesses:
        profile.add(each)
    told = profile.as_json()
    total_us = sum(each.took_us for each in accesses)
    assert told["opens"] == 5000
    assert told["seconds"] == pytest.approx(total_us / 1e6)
    for groups in (told["outcomes"].values(), told["directories"]):
        assert sum(group["opens"] for group in groups) == 5000
        assert sum(group["share"] for group in groups) == pytest.approx(1)
    for name, group in told["outcomes"].items():
        times = sorted(each.took_us for each in accesses if each.outcome.label == name)
        for share, field in ((0.5, "p50_seconds"), (0.99, "p99_seconds")):
            exact = times[math.ceil(share * len(times)) - 1]
            assert exact * 0.999 <= group[field] * 1e6 <= exact * STEP * 1.001
        assert group["slowest_seconds"] == times[-1] / 1e6
        assert group["mean_seconds"] == pytest.approx(sum(times) / len(times) / 1e6)
    assert told["directories"][0]["seconds"] == max(group["seconds"] for group in told["directories"])
    slowest = max(accesses, key=lambda each: each.took_us)
    assert told["slowest_path"] == slowest.path.decode()


def test_a_profile_tells_a_bounded_number_of_directories_apart() -> None:
    profile = OpenProfile(depth=1)
    for number in range(MOST_DIRECTORIES + 7):
        profile.add(access(b"%d/a" % number))
    assert len(profile.directories) == MOST_DIRECTORIES + 1
    assert profile.directories[OTHERS].opens == 7


def test_a_profile_of_nothing_has_no_quotient() -> None:
    assert OpenProfile(1).as_json()["mean_seconds"] == 0


@pytest.mark.parametrize("seconds_s", [0.2, None])
def test_a_profile_ends_though_lines_go_on_coming(seconds_s: float | None) -> None:
    reads, writes = os.pipe()
    interrupt, interrupts = os.pipe()
    os.set_blocking(reads, False)
    lines = Lines().line(access()) * 1000

    def open_without_end() -> None:
        with suppress(BrokenPipeError):
            while True:
                os.write(writes, lines)

    programs = threading.Thread(target=open_without_end)
    programs.start()
    try:
        began_s = time.monotonic()
        found = 0
        for text in texts(reads, interrupt, ProfileOptions("", seconds_s=seconds_s), began_s):
            if text and seconds_s is None and not found:
                os.write(interrupts, b"\0")
            found += text.count(b"\n")
            assert time.monotonic() < began_s + PATIENCE_S
        assert found > 0
    finally:
        os.close(reads)
        programs.join()
        for fd in (writes, interrupt, interrupts):
            os.close(fd)


def test_a_profile_that_is_interrupted_has_what_came_before() -> None:
    reads, writes = os.pipe()
    interrupt, interrupts = os.pipe()
    os.set_blocking(reads, False)
    try:
        os.write(writes, Lines().line(access()))
        os.write(interrupts, b"\0")
        assert b"".join(texts(reads, interrupt, ProfileOptions(""), time.monotonic())) == Lines().line(access())
    finally:
        for fd in (reads, writes, interrupt, interrupts):
            os.close(fd)


def test_a_file_without_line_ends_is_one_damaged_line_and_is_not_kept() -> None:
    seen = Seen(OpenProfile(1), "")
    seen.add(bytes(LONGEST_LINE_BYTES + 1))
    assert seen.damaged == 1
    assert len(seen._rest) == 0
    seen.add(bytes(LONGEST_LINE_BYTES + 1))
    seen.add(b"the end\n" + Lines().line(access()))
    seen.end()
    assert (seen.damaged, seen.profile.all.opens) == (1, 1)
