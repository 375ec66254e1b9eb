"""Turns outlive the daemon: mounts that resume, and states that are saved and loaded with a checkpoint."""

import errno
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from images import identity, image, make_images
from machine import PATIENCE_S, Machine

from redoxfs.node.state import decode, read_bytes

CLASSES = {"cat": 40, "dog": 40}
SAMPLES = sum(CLASSES.values())
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    make_images(root, CLASSES)
    return root


@pytest.fixture(params=["pool", "slot"])
def options(request: pytest.FixtureRequest, machine: Machine, source: Path) -> list[str]:
    options = [*OPTIONS, "--policy", request.param]
    return [*options, "--memory", str(machine.inspect(source, *options)["memory_for"]["25%"])]


@pytest.fixture
def order(source: Path) -> list[str]:
    """The paths of an epoch, in random order."""
    paths = sorted(os.fspath(path.relative_to(source)) for path in source.glob("train/*/*.png"))
    random.Random(5).shuffle(paths)
    return paths


def read(machine: Machine, paths: Sequence[str]) -> list[str]:
    """Open ``paths`` one after the other; returns the samples that were served."""
    served = []
    for path in paths:
        label, sample = identity((machine.mnt / path).read_bytes(), "train", CLASSES)
        assert label == path.split("/")[1]
        served.append(sample)
    return served


def state_file(machine: Machine) -> Path:
    (path,) = (machine.folder / "state/redoxfs").glob("mnt-*.state")
    return path


def turns_in(path: Path) -> int:
    """The number of turns in the state file."""
    return decode(read_bytes(path)).turns.given


def await_write(machine: Machine, turns: int) -> None:
    """Wait until the state file has this number of turns."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not list((machine.folder / "state/redoxfs").glob("*.state")) or turns_in(state_file(machine)) != turns:
        assert time.monotonic() < deadline_s, "the state is not written"
        time.sleep(0.01)


def refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("redoxfs: ")
    assert why in last
    assert "Traceback" not in done.stderr


def test_a_mount_resumes_after_the_daemon_was_killed_in_an_epoch(
    machine: Machine, source: Path, options: list[str], order: list[str]
) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt, *options)
    before = read(machine, order[:30])
    await_write(machine, 30)
    assert state_file(machine).stat().st_mode & 0o777 == 0o600
    with open(machine.mnt / order[30], "rb", buffering=0):
        before += read(machine, order[31:37])
        machine.kill(signal.SIGKILL)
        for ask in (machine.mnt.stat, (machine.mnt / order[0]).read_bytes, (machine.mnt / order[40]).stat):
            with pytest.raises(OSError) as dead:
                ask()
            assert dead.value.errno == errno.ENOTCONN
    # The file has 30 turns, or more if it was written once more before the kill.
    known = turns_in(state_file(machine))
    assert 30 <= known <= 37
    stderr = machine.ok("mount", source, machine.mnt, *options, "--resume").stderr
    assert f"cleared the stale mount that a killed daemon left at {machine.mnt}" in stderr
    assert f"resumed: lap 1, {known} of 80 samples had their turn" in stderr
    assert machine.stats()["turns"] == known
    served = Counter(before + read(machine, order[known:]))
    # One sample was open when the daemon died. No reader got it, also where its turn is in the file.
    missing = [sample for sample in order if sample not in served]
    assert len(missing) <= (known > 30)
    assert sum(served.values()) - len(served) == 36 - known + len(missing)
    assert max(served.values()) <= 2
    assert {sample for sample, times in served.items() if times > 1} <= set(before[30:])
    for _ in range(2):
        assert sorted(read(machine, order)) == sorted(order), "later epochs are exact"


def test_resuming_after_unmounts_is_exact(machine: Machine, source: Path, options: list[str], order: list[str]) -> None:
    served: list[str] = []
    ends = [0, 1, 33, SAMPLES, SAMPLES + 20, 3 * SAMPLES]
    for number, end in enumerate(ends):
        stderr = machine.ok("mount", source, machine.mnt, *options, "--resume").stderr
        if len(served) == 0:
            assert "there is nothing to resume: no " in stderr
        else:
            assert "resumed: lap" in stderr
            assert machine.stats()["turns"] == len(served)
        served += read(machine, (order * 3)[len(served) : end])
        # A sample that a stat reserves has had no turn.
        for path in order[: 0 if number % 2 else 5]:
            (machine.mnt / path).stat()
        machine.ok("umount", machine.mnt)
    for lap in range(3):
        assert sorted(served[lap * SAMPLES : (lap + 1) * SAMPLES]) == sorted(order)
    assert machine.nothing_is_left()


def test_resuming_after_sigterm_is_exact(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    served = read(machine, order[:41])
    machine.kill(signal.SIGTERM)
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--resume")
    assert sorted(served + read(machine, order[41:])) == sorted(order)


def test_without_resume_the_first_turn_replaces_the_state(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:50])
    machine.ok("umount", machine.mnt)
    first = state_file(machine).read_bytes()
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    machine.ok("umount", machine.mnt)
    assert state_file(machine).read_bytes() == first, "a mount without reads keeps the old state"
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    assert sorted(read(machine, order)) == sorted(order)
    machine.ok("umount", machine.mnt)
    assert turns_in(state_file(machine)) == SAMPLES


def test_the_pool_resumes_with_other_memory_and_chunks(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    served = read(machine, order[:50])
    machine.ok("umount", machine.mnt)
    machine.ok("mount", source, machine.mnt, "--classes", "dir", "--chunk-size", "7", "--seed", "3", "--resume")
    assert sorted(served + read(machine, order[50:])) == sorted(order)


def test_a_saved_state_restores_a_checkpoint(
    machine: Machine, source: Path, options: list[str], order: list[str]
) -> None:
    saved = machine.folder / "checkpoint.state"
    machine.ok("mount", source, machine.mnt, *options)
    before = read(machine, order[:30])
    assert "saved: lap 1, 30 of 80 samples had their turn" in machine.ok("state", "save", machine.mnt, saved).stdout
    assert saved.stat().st_mode & 0o777 == 0o600
    after = read(machine, order[30:55])
    # An open file stays as it is; reservations end.
    with open(machine.mnt / order[3], "rb", buffering=0) as held:
        first = held.read(100)
        (machine.mnt / order[60]).stat()
        stdout = machine.ok("state", "load", machine.mnt, saved).stdout
        assert "loaded: lap 1, 30 of 80 samples had their turn; samples served since the save" in stdout
        again = read(machine, order[30:])
        assert os.pread(held.fileno(), 100, 0) == first
    assert sorted(before + again) == sorted(order)
    assert set(after) <= set(again)
    assert sorted(read(machine, order)) == sorted(order)
    stats = machine.stats()
    assert (stats["turns"], stats["put_aside"], stats["errors"]) == (2 * SAMPLES, 0, 0)
    machine.ok("umount", machine.mnt)
    # The job restarts from its checkpoint, on a new mount.
    machine.ok("mount", source, machine.mnt, *options)
    machine.ok("state", "load", machine.mnt, saved)
    assert sorted(before + read(machine, order[30:])) == sorted(order)
    await_write(machine, SAMPLES)


def test_a_bad_or_foreign_state_is_refused_in_one_line(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:30])
    saved = machine.folder / "saved"
    machine.ok("state", "save", machine.mnt, saved)
    good = saved.read_bytes()
    bad = machine.folder / "bad"
    older = good[:8] + b"\0" + good[9:]
    link = machine.folder / "link"
    link.symlink_to(saved)
    for data, why in [
        (good[:-1], "truncated or damaged"),
        (good[:20], "truncated"),
        (b"", "not a redoxfs state file"),
        (b"x" * len(good), "not a redoxfs state file"),
        (good[:-20] + b"\0\1\2\3" + good[-16:], "checksum"),
        (older, "format version 0, and this redoxfs reads version 1"),
    ]:
        bad.write_bytes(data)
        refused(machine.run("state", "load", machine.mnt, bad), why)
    refused(machine.run("state", "load", machine.mnt, link), "symbolic links")
    refused(machine.run("state", "load", machine.mnt, machine.folder / "none"), "No such file")
    refused(machine.run("state", "save", machine.mnt, machine.folder / "none/file"), "no such directory")
    for below in (machine.mnt / "train/cat/new", machine.mnt / "new", machine.mnt / ".redoxfs/new"):
        refused(machine.run("state", "save", machine.mnt, below), "lies in the redoxfs mount")
        refused(machine.run("state", "load", machine.mnt, below), "lies in the redoxfs mount")
    await_write(machine, 30)
    read(machine, order[30:])
    machine.ok("umount", machine.mnt)
    path = state_file(machine)
    whole = path.read_bytes()
    for data, why in [(whole[:-1], "truncated or damaged"), (older, "format version 0")]:
        path.write_bytes(data)
        refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--resume"), why)
        assert path.read_bytes() == data
    path.write_bytes(whole)
    refused(
        machine.run("mount", source, machine.mnt, *OPTIONS, "--policy", "slot", "--resume"),
        "--policy was pool when it was written, and is slot now",
    )
    (source / "train/cat/new.png").write_bytes(image("train/cat/new.png", 0, 40, 500))
    refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--resume"), "another dataset")
    assert path.read_bytes() == whole
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    refused(machine.run("state", "load", machine.mnt, saved), "another dataset")
    assert machine.stats()["turns"] == 0
    machine.ok("umount", machine.mnt)
    assert machine.nothing_is_left()


def test_no_other_file_is_replaced_by_a_state(machine: Machine, source: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    done = machine.run("mount", source, machine.mnt, "--state", script)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    machine.ok("mount", source, machine.mnt)
    for less in ([], ["--less", "1"]):
        done = machine.run("state", "save", machine.mnt, script, *less)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert "train.py: is there, and is no state file" in done.stderr
    assert script.read_text() == "import torch"
    machine.ok("umount", machine.mnt)


def test_the_state_is_kept_in_the_file_of_the_option(machine: Machine, source: Path, order: list[str]) -> None:
    kept = machine.folder / "kept"
    kept.mkdir()
    for at in (source / "state", machine.mnt / "state"):
        refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--state", at), "which will be served")
    refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--state", kept / "no/state"), "no such directory")
    refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--state", f"{kept}/"), "is not a file name")
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--state", kept / "state")
    served = read(machine, order[:30])
    machine.ok("umount", machine.mnt)
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--state", kept / "state", "--resume")
    assert sorted(served + read(machine, order[30:])) == sorted(order)
    machine.ok("umount", machine.mnt)
    assert os.listdir(kept) == ["state"]


def test_a_source_mounted_over_itself_resumes(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, *OPTIONS)
    served = [identity((source / path).read_bytes(), "train", CLASSES)[1] for path in order[:30]]
    machine.ok("umount", source)
    machine.ok("mount", source, *OPTIONS, "--resume")
    served += [identity((source / path).read_bytes(), "train", CLASSES)[1] for path in order[30:]]
    assert sorted(served) == sorted(order)


def test_a_mount_works_where_no_state_can_be_kept(machine: Machine, source: Path, order: list[str]) -> None:
    machine.environment["XDG_STATE_HOME"] = "/dev/null/state"
    stderr = machine.ok("mount", source, machine.mnt, *OPTIONS).stderr
    assert "this mount cannot be resumed (choose another place with --state FILE)" in stderr
    assert sorted(read(machine, order)) == sorted(order)
    machine.ok("umount", machine.mnt)


def test_a_state_that_cannot_be_written_is_one_log_line(machine: Machine, source: Path, order: list[str]) -> None:
    kept = machine.folder / "kept"
    kept.mkdir()
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--state", kept / "state")
    read(machine, order[:30])
    shutil.rmtree(kept)
    read(machine, order[30:])
    deadline_s = time.monotonic() + PATIENCE_S
    while "retrying every second" not in machine.log():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert sorted(read(machine, order)) == sorted(order)
    machine.ok("umount", machine.mnt)
    assert machine.log().count("retrying every second") == 1
    assert machine.nothing_is_left()


@pytest.mark.parametrize("how", [(), ("--resume",)])
def test_a_new_mount_takes_socket_and_state_from_a_detached_one(
    machine: Machine, source: Path, order: list[str], how: tuple[str, ...]
) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:10])
    detached = os.pidfd_open(machine.pid())
    # A process that uses the old mount still takes turns there.
    root = os.open(machine.mnt, os.O_RDONLY | os.O_DIRECTORY)
    machine.ok("umount", "--lazy", machine.mnt)
    stderr = machine.ok("mount", source, machine.mnt, *OPTIONS, *how).stderr
    known = 10 if how else 0
    if how:
        assert "resumed: lap 1, 10 of 80 samples had their turn" in stderr
    read(machine, order[10:15])
    await_write(machine, known + 5)
    for path in order[15:35]:
        os.close(os.open(path, os.O_RDONLY, dir_fd=root))
    os.close(root)
    waiting = select.poll()
    waiting.register(detached, select.POLLIN)
    assert waiting.poll(PATIENCE_S * 1000)
    os.close(detached)
    assert turns_in(state_file(machine)) == known + 5
    # The new daemon has the socket.
    assert "saved: " in machine.ok("state", "save", machine.mnt, machine.folder / "saved").stdout
    assert f"{state_file(machine)} now belongs to another mount" in machine.log()
    machine.ok("umount", machine.mnt)
    assert machine.nothing_is_left()


def test_a_stopped_detached_daemon_delays_no_mount(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:10])
    await_write(machine, 10)
    pid = machine.pid()
    detached = os.pidfd_open(pid)
    with open(machine.mnt / order[10], "rb"):
        machine.ok("umount", "--lazy", machine.mnt)
        os.kill(pid, signal.SIGSTOP)
        try:
            stderr = machine.ok("mount", source, machine.mnt, *OPTIONS, "--resume", "--timeout", "3").stderr
        finally:
            os.kill(pid, signal.SIGCONT)
    assert f"the daemon of a detached mount of {machine.mnt} does not answer; it may still write" in stderr
    assert "resumed: lap 1, 1" in stderr
    waiting = select.poll()
    waiting.register(detached, select.POLLIN)
    assert waiting.poll(PATIENCE_S * 1000)
    os.close(detached)
    machine.ok("umount", machine.mnt)
    assert machine.nothing_is_left()


def test_the_last_samples_that_were_opened_come_again(
    machine: Machine, source: Path, options: list[str], order: list[str]
) -> None:
    machine.ok("mount", source, machine.mnt, *options)
    before = read(machine, order[:30])
    file = machine.folder / "less"
    assert (
        "the last 10 that were opened come again"
        in machine.ok("state", "save", machine.mnt, file, "--less", "10").stdout
    )
    read(machine, order[30:45])
    machine.ok("state", "load", machine.mnt, file)
    assert machine.stats()["turns"] == 20
    assert sorted(before[:20] + read(machine, order[20:])) == sorted(order)
    assert sorted(read(machine, order)) == sorted(order), "later epochs are exact"


def test_opens_of_the_lap_before_come_again_with_those_after_them(
    machine: Machine, source: Path, options: list[str], order: list[str]
) -> None:
    machine.ok("mount", source, machine.mnt, *options)
    read(machine, order)
    more = read(machine, order[:4])
    file = machine.folder / "less"
    machine.ok("state", "save", machine.mnt, file, "--less", "10")
    machine.ok("state", "load", machine.mnt, file)
    assert machine.stats()["turns"] == SAMPLES + len(more) - 10
    assert machine.stats()["laps"]["train"]["number"] == 1


def test_less_takes_no_more_than_the_opens_that_are_kept(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    refused(machine.run("state", "save", machine.mnt, machine.folder / "less", "--less", "65537"), "65536")
    told = machine.ok("state", "save", machine.mnt, machine.folder / "less", "--less", "65536").stdout
    assert "the last 0 that were opened come again" in told


def test_the_last_opens_are_known_after_the_daemon_died(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:30])
    machine.kill(signal.SIGKILL)
    read(machine, order[30:35])
    told = machine.ok("state", "save", machine.mnt, machine.folder / "less", "--less", "20").stdout
    assert "15 of 80 samples had their turn; the last 20 that were opened" in told
