"""Turns outlive the daemon: mounts that resume, and states that are saved and loaded with a checkpoint.

`t2_node_resume` has what needs no mount, `t1_resume` where the file may be, and what it depends on.
"""

import errno
import os
import random
import select
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest
from disks import small_disk
from forks import EXECUTED
from images import identity, image, make_images
from machine import Machine
from patience import PATIENCE_S, until
from seclusion import with_own_folder

from redoxfs.node.state import decode, read_bytes

CLASSES = {"cat": 40, "dog": 40}
SAMPLES = sum(CLASSES.values())
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    make_images(root, CLASSES)
    return root


def quarter(machine: Machine, source: Path, *options: str) -> list[str]:
    """These options, with memory for a quarter of the samples."""
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
    folder = machine.folder / "state/redoxfs"
    until(lambda: list(folder.glob("*.state")) and turns_in(state_file(machine)) == turns, "the state is not written")


def has_ended(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(PATIENCE_S * 1000))


def refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("redoxfs: ")
    assert why in last
    assert "Traceback" not in done.stderr


def test_a_mount_resumes_after_the_daemon_was_killed_in_an_epoch(
    machine: Machine, source: Path, order: list[str]
) -> None:
    """With the pool also if memory, chunks and seed are others."""
    machine.ok("mount", "--no-keeper", source, machine.mnt, *quarter(machine, source, *OPTIONS))
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
    options = ["--classes", "dir", "--chunk-size", "7", "--seed", "3"]
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


def test_resuming_after_an_unmount_and_sigterm_is_exact(machine: Machine, source: Path, order: list[str]) -> None:
    kept = machine.folder / "kept"
    kept.mkdir()
    options = [*quarter(machine, source, *OPTIONS, "--policy", "slot"), "--state", str(kept / "state"), "--resume"]
    stderr = machine.ok("mount", source, machine.mnt, *options).stderr
    assert "there is nothing to resume: no " in stderr
    served = read(machine, order[:33])
    # A sample that a stat reserves has had no turn.
    for path in order[:5]:
        (machine.mnt / path).stat()
    machine.ok("umount", machine.mnt)
    for end, signalled in ((SAMPLES + 20, True), (2 * SAMPLES, False)):
        assert "resumed: lap" in machine.ok("mount", source, machine.mnt, *options).stderr
        assert machine.stats()["turns"] == len(served)
        served += read(machine, (order * 2)[len(served) : end])
        if signalled:
            machine.kill(signal.SIGTERM)
        else:
            machine.ok("umount", machine.mnt)
    for lap in range(2):
        assert sorted(served[lap * SAMPLES : (lap + 1) * SAMPLES]) == sorted(order)
    assert os.listdir(kept) == ["state"], "and nothing else is left there"
    assert machine.nothing_is_left()


def test_a_saved_state_restores_a_checkpoint(machine: Machine, source: Path, order: list[str]) -> None:
    options = quarter(machine, source, *OPTIONS, "--policy", "slot")
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


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a folder that the daemon does not see")
def test_a_state_is_saved_in_the_folder_that_the_command_sees(
    machine: Machine, source: Path, order: list[str], tmp_path: Path
) -> None:
    """The daemon of a container, or that of a Slurm job's Prolog, has another folder at that path."""
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:30])
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    saved = folder / "state"
    states = []

    def save() -> None:
        for less in ((), ("--less", "5")):
            subprocess.run(
                [*EXECUTED, *machine.command("state", "save", machine.mnt, saved, *less)],
                env=machine.environment,
                check=True,
            )
            states.append(decode(read_bytes(saved)).turns.given)

    with_own_folder(folder, save)
    assert states == [30, 25]
    assert not list(folder.iterdir())


def test_a_state_that_its_disk_has_no_room_for_is_refused(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    with small_disk(machine.folder / "full", "nr_inodes=1") as full:
        for less in ([], ["--less", "1"]):
            told = machine.refused(4, "state", "save", machine.mnt, full / "state", *less)
            assert told == f"redoxfs: {full / 'state'}: No space left on device\n"


def test_a_bad_or_foreign_state_is_refused_in_one_line(machine: Machine, source: Path, order: list[str]) -> None:
    """Nor is another file replaced by a state."""
    script = machine.folder / "train.py"
    script.write_text("import torch")
    machine.refused(4, "mount", source, machine.mnt, "--state", script)
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:30])
    saved = machine.folder / "saved"
    machine.ok("state", "save", machine.mnt, saved)
    link = machine.folder / "link"
    link.symlink_to(saved)
    bad = machine.folder / "bad"
    bad.write_bytes(saved.read_bytes()[:-1])
    refused(machine.run("state", "load", machine.mnt, bad), "truncated or damaged")
    refused(machine.run("state", "load", machine.mnt, link), "symbolic links")
    refused(machine.run("state", "load", machine.mnt, machine.folder / "none"), "No such file")
    refused(machine.run("state", "save", machine.mnt, machine.folder / "none/file"), "no such directory")
    refused(machine.run("state", "save", machine.mnt, machine.mnt / "train/cat/new"), "lies in the redoxfs mount")
    refused(machine.run("state", "load", machine.mnt, machine.mnt / ".redoxfs/new"), "lies in the redoxfs mount")
    for less in ([], ["--less", "1"]):
        told = machine.refused(4, "state", "save", machine.mnt, script, *less)
        assert "train.py: is there, and is no state file" in told
    assert script.read_text() == "import torch"
    machine.ok("umount", machine.mnt)
    path = state_file(machine)
    whole = path.read_bytes()
    older = whole[:8] + b"\0" + whole[9:]
    path.write_bytes(older)
    refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--resume"), "format version 0")
    assert path.read_bytes() == older
    path.write_bytes(whole)
    (source / "train/cat/new.png").write_bytes(image("train/cat/new.png", 0, 40, 500))
    refused(machine.run("mount", source, machine.mnt, *OPTIONS, "--resume"), "another dataset")
    assert path.read_bytes() == whole
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    refused(machine.run("state", "load", machine.mnt, saved), "another dataset")
    assert machine.stats()["turns"] == 0
    machine.umount()


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


def test_a_new_mount_takes_socket_and_state_from_a_detached_one(
    machine: Machine, source: Path, order: list[str]
) -> None:
    """With --resume, and without."""
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    read(machine, order[:10])
    for how in ((), ("--resume",)):
        detached = os.pidfd_open(machine.pid())
        # A process that uses the old mount still takes turns there.
        root = os.open(machine.mnt, os.O_RDONLY | os.O_DIRECTORY)
        over = threading.Event()

        def use_the_old_mount(root: int = root, over: threading.Event = over) -> None:
            for path in cycle(order):
                os.close(os.open(path, os.O_RDONLY, dir_fd=root))
                if over.wait(0.002):
                    return

        with ThreadPoolExecutor(1) as pool:
            using = pool.submit(use_the_old_mount)
            try:
                machine.ok("umount", "--lazy", machine.mnt)
                stderr = machine.ok("mount", source, machine.mnt, *OPTIONS, *how).stderr
                known = machine.stats()["turns"]
                assert ("resumed: lap" in stderr) == bool(how) == bool(known)
                if how:
                    assert known == turns_in(state_file(machine)), "all turns until the old daemon let go"
                read(machine, order[:5])
                await_write(machine, known + 5)
            finally:
                over.set()
            using.result()
        os.close(root)
        assert has_ended(detached)
        os.close(detached)
        assert turns_in(state_file(machine)) == known + 5
        # The new daemon has the socket.
        assert "saved: " in machine.ok("state", "save", machine.mnt, machine.folder / "saved").stdout
        assert machine.log().count(f"{state_file(machine)} now belongs to another mount") == 1 + bool(how)
    machine.umount()


def test_the_last_opens_are_known_after_the_daemon_died(machine: Machine, source: Path, order: list[str]) -> None:
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    before = read(machine, order[:30])
    machine.kill(signal.SIGKILL)
    read(machine, order[30:35])
    less = machine.folder / "less"
    refused(machine.run("state", "save", machine.mnt, less, "--less", "65537"), "65536")
    told = machine.ok("state", "save", machine.mnt, less, "--less", "20").stdout
    assert "15 of 80 samples had their turn; the last 20 that were opened come again" in told
    assert "no more than these" not in told
    machine.ok("state", "load", machine.mnt, less)
    # Right after it there is nothing to take back.
    few = machine.ok("state", "save", machine.mnt, machine.folder / "few", "--less", "20").stdout
    assert "the last 0 that were opened come again; no more than these, of 20, were opened since the state" in few
    assert sorted(before[:15] + read(machine, order[15:])) == sorted(order)
