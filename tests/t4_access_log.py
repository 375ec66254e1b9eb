"""The access log of real mounts, beside what the programs that opened files got; slow opens; `redoxfs profile`."""

import fcntl
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import slow_store
from machine import Machine, has_ended
from opens_log import Tail, agree, log_of, read_by
from patience import PATIENCE_S, until

from redoxfs.fs.slow_opens import LINES
from redoxfs.telemetry.access_log import CONTINUED, HEADER, parse
from redoxfs.telemetry.open_profile import OpenProfile

READERS = 6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three classes of sixty files with unlike bytes, and a file of no class."""
    root = tmp_path / "data"
    for label in ("cat", "dog", "emu"):
        (root / "train" / label).mkdir(parents=True)
        for number in range(60):
            (root / "train" / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * 50)
    (root / "README").write_text("a dataset\n")
    return root


def samples(source: Path) -> list[bytes]:
    return sorted(os.fsencode(path.relative_to(source)) for path in source.rglob("*.jpg"))


def serve(machine: Machine, source: Path, *options: str) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "dir", *options)


WITH_A_CONSTANT = """
import sys
from importlib import import_module
from redoxfs.cli import main
setattr(import_module(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
sys.exit(main(sys.argv[4:]))
"""
"""The program, with another value of a constant of a module."""


def serve_with(constant: tuple[str, str, float], machine: Machine, source: Path, *options: str) -> None:
    """As `serve`, with this value of a constant: (module, name, value)."""
    program = [sys.executable, "-c", WITH_A_CONSTANT, *map(str, constant)]
    mount = [*program, "mount", str(source), str(machine.mnt), "--classes", "dir", *options]
    subprocess.run(mount, env=machine.environment, check=True, capture_output=True)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--memory", "64KiB", "--chunk-size", "4"),
        ("--policy", "slot", "--chunk-size", "4", "--memory", "80KiB"),
        ("--fuse-threads", "2"),
    ],
    ids=["pool", "little", "slot", "threads"],
)
def test_the_log_has_each_open_and_what_it_got(machine: Machine, source: Path, options: tuple[str, ...]) -> None:
    serve(machine, source, *options)
    paths = samples(source)
    orders = [random.Random(number).sample(paths, len(paths)) for number in range(READERS)]
    before = {name: times["count"] for name, times in machine.stats()["open_seconds"].items()}
    with Tail(machine.mnt) as log, Tail(machine.mnt) as other:
        got = read_by(machine.mnt, orders)
        lines = log.accesses(READERS * len(paths))
        agree(lines, got, source)
        assert sorted(other.accesses(len(lines)), key=repr) == sorted(lines, key=repr)
        assert log.remarks == []
    assert any(line.served != line.path for line in lines)
    # The histograms have the same opens.
    after = machine.stats()["open_seconds"]
    assert Counter(line.outcome.label for line in lines) == Counter(
        {name: times["count"] - before[name] for name, times in after.items()}
    )
    spent_s = sum(times["sum"] for times in after.values())
    assert sum(line.took_us for line in lines) / 1e6 == pytest.approx(spent_s, abs=len(lines) * 1e-6)
    machine.ok("umount", machine.mnt)


def test_names_of_any_bytes_are_one_line_each(machine: Machine, source: Path) -> None:
    names = [
        b"tab\there.jpg",
        b"line\nbreak.jpg",
        b"not \xff\xfe utf8.jpg",
        b"back\\slash.jpg",
        "bücher\u2028.jpg".encode(),
    ]
    folder = source / "train/cat"
    for number, name in enumerate(names):
        (folder / os.fsdecode(name)).write_bytes(b"odd %d" % number)
    (source / "-").write_bytes(b"a dash")
    serve(machine, source)
    paths = [*(b"train/cat/" + name for name in names), b"-"]
    with Tail(machine.mnt) as log:
        got = read_by(machine.mnt, [paths * 3])
        agree(log.accesses(3 * len(paths)), got, source)
    machine.ok("umount", machine.mnt)


def test_exact_and_failed_opens_have_their_lines(machine: Machine, source: Path) -> None:
    serve(machine, source)
    (source / "train/dog/3.jpg").unlink()
    (source / "README").unlink()
    paths = [b".redoxfs/exact/train/cat/7.jpg", b".redoxfs/exact/train/dog/3.jpg", b"README", b"train/cat/1.jpg"]
    with Tail(machine.mnt) as log:
        got = read_by(machine.mnt, [paths])
        lines = log.accesses(len(paths))
    agree(lines, got, source)
    assert [line.outcome_word for line in lines[:3]] == ["direct", "failed:ENOENT", "failed:ENOENT"]
    assert lines[0].served == b"train/cat/7.jpg"
    machine.ok("umount", machine.mnt)


def test_a_reader_that_waits_ends_at_once_with_a_signal(machine: Machine, source: Path) -> None:
    # A line without an open would end the read as well, and comes after longer than the test waits for the end.
    serve_with(("redoxfs.fs.access_log", "IDLE_S", 2 * PATIENCE_S), machine, source)
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with Tail(machine.mnt) as log:
            log.wait_for_a_read()
            log.process.send_signal(how)
            assert log.process.wait(PATIENCE_S) == -how
    machine.ok("umount", machine.mnt)


def test_a_reader_is_the_owner_and_counts_as_no_waiting_program(machine: Machine, source: Path) -> None:
    serve(machine, source)
    with Tail(machine.mnt), Tail(machine.mnt):
        stats = machine.stats()
        assert (stats["waiting_opens"], stats["waiting_reads"], stats["open_files"]) == (0, 0, 0)
    attributes = log_of(machine.mnt).stat()
    # It tells what other users open.
    assert (attributes.st_mode & 0o777, attributes.st_uid) == (0o400, os.getuid())
    machine.ok("umount", machine.mnt)


# Ends


def test_umount_refuses_while_somebody_reads_and_lazy_does_not(machine: Machine, source: Path) -> None:
    serve(machine, source)
    processes = machine.watched()
    with Tail(machine.mnt) as log:
        refused = machine.run("umount", machine.mnt)
        assert (refused.returncode, "still in use" in refused.stderr) == (8, True)
        (machine.mnt / "README").read_bytes()
        assert log.accesses(1)[0].path == b"README"
        machine.ok("umount", "--lazy", machine.mnt)
        log.process.send_signal(signal.SIGINT)
        log.process.wait(PATIENCE_S)
    assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


def has_open(pid: int, path: Path) -> bool:
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError):
            if os.readlink(fd) == str(path):
                return True
    return False


def test_a_profile_ends_with_a_mount_that_is_detached(machine: Machine, source: Path) -> None:
    """It may be the last user, whom daemon and keeper wait for."""
    serve(machine, source)
    processes = machine.watched()
    command = machine.command("profile", machine.mnt, "--json")
    with subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True) as profile:
        try:
            until(lambda: has_open(profile.pid, log_of(machine.mnt)))
            (machine.mnt / "README").read_bytes()
            machine.ok("umount", "--lazy", machine.mnt)
            told = profile.communicate(timeout=PATIENCE_S)[0]
        finally:
            profile.kill()
    assert profile.returncode == 0
    assert json.loads(told)["opens"] == 1
    assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


def test_the_end_of_the_daemon_ends_the_log(machine: Machine, source: Path) -> None:
    serve(machine, source, "--no-keeper")
    with Tail(machine.mnt) as log:
        # A read that comes when the daemon has ended fails.
        log.wait_for_a_read()
        machine.kill(signal.SIGTERM)
        assert log.line() == b""
        assert log.process.wait(PATIENCE_S) == 0
    assert machine.nothing_is_left()


@pytest.mark.parametrize("way", ["killed", "restarted"])
def test_a_reader_reads_on_when_another_daemon_serves(machine: Machine, source: Path, way: str) -> None:
    serve(machine, source, "--keeper")
    with Tail(machine.mnt) as log:
        former = machine.pid()
        first = read_by(machine.mnt, [samples(source)[:20]])
        agree(log.accesses(20), first, source)
        if way == "killed":
            machine.kill(signal.SIGKILL)
        else:
            machine.ok("restart", machine.mnt)
        assert machine.pid() != former
        assert log.line() == CONTINUED
        second = read_by(machine.mnt, [samples(source)[20:50]])
        agree(log.accesses(30), second, source)
        log.process.send_signal(signal.SIGINT)
        assert log.process.wait(PATIENCE_S) == -signal.SIGINT
    machine.ok("umount", machine.mnt)


# Slow opens


@pytest.mark.usefixtures("compiler")
def test_slow_opens_are_logged_in_bounded_number(machine: Machine, source: Path, tmp_path: Path) -> None:
    program, slow = slow_store.compiled(tmp_path), tmp_path / "slow"
    slow.mkdir()
    delay_ms = 30
    with slow_store.served(program, source, slow, delay_ms):
        small = ("--memory", "16KiB", "--chunk-size", "2")
        # One window, however long the opens take: each has lines of its own.
        window = ("redoxfs.node.failures", "WINDOW_S", 10 * PATIENCE_S)
        serve_with(window, machine, slow, *small, "--slow-open", f"{delay_ms}ms")
        with Tail(machine.mnt) as log:
            paths = samples(source)[:40]
            read_by(machine.mnt, [paths])
            lines = log.accesses(len(paths))
        machine.ok("umount", machine.mnt)
        told = machine.log()
        waited = [line for line in lines if line.took_us >= delay_ms * 1000]
        assert len(waited) > LINES
        warnings = [line for line in told.splitlines() if "an open was slow" in line]
        assert len(warnings) == LINES
        for line, warning in zip(waited, warnings, strict=False):
            assert " WARNING redoxfs.fs.slow_opens: an open was slow " in warning
            fields = dict(word.split("=") for word in warning.partition("slow ")[2].split())
            assert fields == {name: str(value) for name, value in line.fields.items()}
        assert told.count(f"more opens were slow count={len(waited) - LINES}\n") == 1
        serve(machine, slow, *small, "--slow-open", "0")
        read_by(machine.mnt, [paths])
        machine.ok("umount", machine.mnt)
        assert machine.log().count("an open was slow") == LINES


# The profile


def profile_of(text: str) -> dict[str, dict[str, float]]:
    return json.loads(text)


def test_a_saved_log_and_a_live_mount_have_one_profile(machine: Machine, source: Path, tmp_path: Path) -> None:
    serve(machine, source)
    saved = tmp_path / "opens.log"
    live = subprocess.Popen(
        machine.command("profile", machine.mnt, "--json", "--depth", "2"),
        env=machine.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with Tail(machine.mnt) as log:
            # Until the program reads: what it gets is what `cat` gets.
            until(lambda: has_open(live.pid, log_of(machine.mnt)), live.poll)
            got = read_by(machine.mnt, [samples(source)] * 2)
            lines = [log.line() for _ in range(2 * len(samples(source)))]
        saved.write_bytes(HEADER + b"".join(lines))
        live.send_signal(signal.SIGINT)
        told = json.loads(live.communicate(timeout=PATIENCE_S)[0])
    finally:
        live.kill()
        live.wait()
    assert live.returncode == 0
    agree([parse(line) for line in lines], got, source)
    expected = OpenProfile(2)
    for line in lines:
        expected.add(parse(line))
    again = json.loads(machine.ok("profile", saved, "--json", "--depth", "2").stdout)
    for each in (told, again):
        assert {name: each[name] for name in expected.as_json()} == json.loads(json.dumps(expected.as_json()))
        assert (each["lines_lost"], each["lines_damaged"]) == (0, 0)
    assert [group["opens"] for group in told["directories"]] == [120, 120, 120]
    machine.ok("umount", machine.mnt)


def test_a_profile_prints_once_and_on_a_terminal_again_and_again(machine: Machine, source: Path) -> None:
    serve(machine, source)
    text = machine.ok("profile", machine.mnt, "--seconds", "0.2", "--interval", "0.05").stdout
    assert text.startswith(f"{machine.mnt}: 0 opens in ")
    assert text.count("\n") == 1
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 250, 0, 0))
        command = machine.command("profile", machine.mnt, "--interval", "0.05")
        # The size of the terminal, not that of the one where the tests run.
        environment = {name: each for name, each in machine.environment.items() if name not in ("COLUMNS", "LINES")}
        live = subprocess.Popen(command, env=environment, stdout=theirs)
        try:
            shown = _shown_until(ours, b"0 opens")
            (machine.mnt / "README").read_bytes()
            shown += _shown_until(ours, b"1 open in")
            live.send_signal(signal.SIGINT)
            assert live.wait(PATIENCE_S) == 0
        finally:
            live.kill()
            live.wait()
    finally:
        os.close(theirs)
        os.close(ours)
    screens = shown.decode().split("\x1b[H\x1b[J")[1:-1]
    assert len(screens) > 1
    for screen in screens:
        assert screen.endswith("Ctrl-C ends it\r\n")
        assert screen.count("\n") <= 6
        assert max(map(len, screen.splitlines())) <= 250
    machine.ok("umount", machine.mnt)


def _shown_until(terminal: int, text: bytes) -> bytes:
    """What comes on a terminal, up to a whole screen after one with ``text``."""
    shown, until_s = b"", time.monotonic() + PATIENCE_S
    while text not in shown or b"\x1b[J" not in shown.partition(text)[2]:
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, f"nothing but {shown!r} came"
        assert time.monotonic() < until_s, f"no {text!r} came"
        shown += os.read(terminal, 1 << 16)
    return shown


def test_damaged_lines_are_counted_and_the_others_used(machine: Machine, tmp_path: Path) -> None:
    saved = tmp_path / "opens.log"
    good = b"2026-05-04T10:20:30.123456Z\t4711\tdemand\t812\ttrain/cat/7.jpg\ttrain/cat/9.jpg\n"
    saved.write_bytes(good + good[:40] + b"\n" + b"\xff\xfe\n" + b"# lost 7 lines: slow\n" + good[:-1])
    told = json.loads(machine.ok("profile", saved, "--json").stdout)
    assert (told["opens"], told["lines_damaged"], told["lines_lost"]) == (2, 2, 7)
    text = machine.ok("profile", saved).stdout
    assert "2 lines not understood" in text
    assert "7 lines lost" in text


def test_what_is_no_access_log_is_one_line_of_usage(machine: Machine, source: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some\ntext\n")
    for path, code in ((text, 2), (tmp_path / "missing", 2), (source, 4)):
        refused = machine.run("profile", path)
        assert (refused.returncode, refused.stderr.count("\n")) == (code, 1), refused.stderr
    for log in (str(text), "-"):
        refused = machine.run("profile", log, "--seconds", "1")
        assert (refused.returncode, refused.stderr.count("--seconds is for a mount")) == (2, 1), refused.stderr


def test_a_profile_of_a_mount_that_ends_is_printed(machine: Machine, source: Path) -> None:
    serve(machine, source, "--no-keeper")
    live = subprocess.Popen(
        machine.command("profile", machine.mnt, "--json"),
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: has_open(live.pid, log_of(machine.mnt)), live.poll)
        machine.kill(signal.SIGTERM)
        text, error = live.communicate(timeout=PATIENCE_S)
    finally:
        live.kill()
        live.wait()
    assert (live.returncode, error.count("the mount has ended")) == (0, 1)
    assert json.loads(text)["seconds_watched"] > 0
