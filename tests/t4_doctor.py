"""The doctor on real machines, storage and mounts, each made to fail: what it finds, and that nothing hangs it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import slow_store
from machine import Machine
from patience import NEVER_S, SLOWNESS, completed, until

from redoxfs.cli.mount import IN_THE_SCRIPT
from redoxfs.doctor.machine import FEW_FILES

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and control groups need root")

FOUND = 11

PROBE = ("--probe-seconds", str(3 * SLOWNESS))
"""For what a test needs of a probe: a read that ends within a third of it, and names within a half."""

NO_PROBE = ("--probe-seconds", "0.2")
"""For a test of what follows from the history alone: the doctor reads storage for a moment only."""

MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


def doctor(machine: Machine, *words: str | Path, prefix: tuple[str, ...] = (), **options: Any) -> tuple[int, Any]:
    """The exit code, and the checks by name."""
    done = completed([*prefix, *machine.command("doctor", "--json", *words)], env=machine.environment, **options)
    assert done.returncode in (0, FOUND), done.stderr
    report = json.loads(done.stdout)
    checks = {each["name"]: each for each in report["checks"]}
    assert (done.returncode == FOUND) == any(each["level"] == "problem" for each in checks.values())
    assert report["problems"] == sum(each["level"] == "problem" for each in checks.values())
    return done.returncode, checks


def test_a_machine_that_mounts_has_no_problem(machine: Machine) -> None:
    code, checks = doctor(machine)
    assert code == 0
    expected = {"/dev/fuse", "fusermount3", "allow_other", "kernel", "open files", "threads", "callers", "memory"}
    assert expected == set(checks) - {"AppArmor"}
    done = machine.ok("doctor")
    assert len(done.stdout.splitlines()) == len(checks)
    assert done.stdout.startswith("ok       /dev/fuse: ")


@needs_root
def test_few_descriptors_are_found(machine: Machine) -> None:
    few = FEW_FILES - 1
    code, checks = doctor(machine, prefix=("prlimit", f"--nofile={few}:{few}"))
    assert code == FOUND
    assert checks["open files"]["values"] == {"hard": few}


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with a limit of memory; skips the test where none can be made."""
    top = next((each for each in MEMORY_GROUPS if (each / "cgroup.procs").exists()), MEMORY_GROUPS[0])
    group = top / f"redoxfs-doctor-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as failure:
        pytest.skip(f"no control group can be made: {failure}")
    try:
        name = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        if not (group / name).exists():
            pytest.skip("the control groups here have no memory controller")
        (group / name).write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()


@needs_root
def test_a_memory_limit_is_found(machine: Machine) -> None:
    limit = 400 << 20
    with memory_group(limit) as group:
        code, checks = doctor(
            machine, preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
        )
    assert code == 0
    assert checks["memory"]["level"] == "warning"
    assert checks["memory"]["values"]["limit_bytes"] == limit
    assert str(group) in checks["memory"]["found"]


def test_a_dataset_of_class_directories_gets_advice(machine: Machine, source: Path) -> None:
    code, checks = doctor(machine, source, *PROBE)
    assert code == 0
    assert next(iter(checks)) == "verdict"
    assert "plain readers" in checks["verdict"]["found"] or "as fast" in checks["verdict"]["found"]
    assert checks["redirection"]["level"] == "ok"
    assert checks["redirection"]["values"]["samples"] == 40
    assert checks["filesystem"]["level"] in ("ok", "warning")
    assert checks["random reads"]["values"]["rounds"][0]["depth"] == 1
    assert checks["estimate"]["values"]["plain_1_s"] > 0
    assert checks["memory needed"]["level"] == "ok"
    assert machine.nothing_is_left()


def test_a_dataset_without_labels_is_told_what_to_say(machine: Machine, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(30):
        (flat / f"{number}.jpg").write_bytes(os.urandom(2000))
    code, checks = doctor(machine, flat, *PROBE)
    assert code == 0
    assert checks["redirection"]["level"] == "warning"
    assert "--classes" in checks["redirection"]["found"]
    assert "no use" in checks["packing"]["found"]


def test_a_packed_dataset_is_known_as_one(machine: Machine, source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    machine.ok("pack", source, packed)
    code, checks = doctor(machine, packed, *PROBE)
    assert code == 0
    assert checks["packing"]["found"].startswith("it is packed")
    assert checks["estimate"]["values"]["plain_1_s"] is None
    assert checks["redirection"]["level"] == "ok"
    assert checks["verdict"]["found"].startswith("ready: it is packed")
    assert checks["verdict"]["command"] == f"redoxfs mount {packed}"


@pytest.mark.parametrize("path", ["missing", "file"])
def test_a_source_that_cannot_be_read_is_a_problem(machine: Machine, tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    code, checks = doctor(machine, tmp_path / path)
    assert code == FOUND
    assert checks["source"]["level"] == "problem"


# Slow storage


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    mountpoint = tmp_path / "slow"
    mountpoint.mkdir()
    return mountpoint


@pytest.mark.usefixtures("compiler")
def test_latency_is_measured_and_so_is_what_depth_gains(machine: Machine, source: Path, slow: Path) -> None:
    delay_ms = 20
    with slow_store.served(slow_store.compiled(machine.folder), source, slow, delay_ms):
        _, checks = doctor(machine, slow, "--probe-seconds", str(6 * SLOWNESS))
        *_, at_once = os.getxattr(slow, "user.read").split()
    assert checks["filesystem"]["values"]["type"] == "fuse.slow_store"
    rounds = {each["depth"]: each for each in checks["random reads"]["values"]["rounds"]}
    # An open and a read. No read can be faster; a busy machine makes it slower.
    assert rounds[1]["p50"] >= 2 * delay_ms / 1000
    assert rounds[1]["per_s"] <= 1000 / (2 * delay_ms)
    assert int(at_once) >= 8
    assert rounds[8]["per_s"] > 0
    values = checks["estimate"]["values"]
    assert values["plain_1_s"] > values["plain_8_s"] > 0


@pytest.mark.usefixtures("compiler")
def test_storage_that_hangs_does_not_hang_the_doctor(machine: Machine, source: Path, slow: Path) -> None:
    with slow_store.served(slow_store.compiled(machine.folder), source, slow) as server:
        server.send_signal(signal.SIGSTOP)
        code, checks = doctor(machine, slow, "--timeout", str(NEVER_S), "--probe-seconds", "3")
        assert code == FOUND
        assert "does not answer" in checks["source"]["found"]


@pytest.mark.usefixtures("compiler")
def test_reads_that_never_end_are_a_problem(machine: Machine, source: Path, slow: Path) -> None:
    """Names are answered, and an open takes longer than the whole probe."""
    with slow_store.served(slow_store.compiled(machine.folder), source, slow, 10_000 * SLOWNESS):
        code, checks = doctor(machine, slow, *PROBE)
    assert code == FOUND
    assert "no read ended" in checks["storage"]["found"]
    assert "redirection" not in checks


# Mounts


def test_a_live_mount_is_well_and_a_stopped_one_is_not(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--no-keeper")
    (machine.mnt / "train/n02121808/cat3.jpg").read_bytes()
    code, checks = doctor(machine, machine.mnt, *PROBE)
    assert code == 0
    assert {checks[name]["level"] for name in ("daemon", "errors", "changed files", "waits")} == {"ok"}
    # The source lies elsewhere, and its storage is measured too.
    assert checks["random reads"]["values"]["rounds"]
    pid = machine.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        code, checks = doctor(machine, machine.mnt, "--timeout", str(NEVER_S))
        assert code == FOUND
        assert "does not answer" in checks["daemon"]["found"]
    finally:
        os.kill(pid, signal.SIGCONT)
    machine.kill(signal.SIGKILL)
    code, checks = doctor(machine, machine.mnt)
    assert code == FOUND
    assert "killed" in checks["daemon"]["found"]
    machine.ok("umount", machine.mnt)


def test_failed_opens_of_a_mount_are_a_problem(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "none")
    (source / "README").unlink()
    with pytest.raises(OSError):
        (machine.mnt / "README").read_bytes()
    code, checks = doctor(machine, machine.mnt, *NO_PROBE)
    assert code == FOUND
    assert checks["errors"]["level"] == "problem"
    assert "redoxfs debug" in checks["errors"]["command"]
    machine.ok("umount", machine.mnt)


def test_an_over_mount_says_that_its_source_is_hidden(machine: Machine, source: Path) -> None:
    machine.ok("mount", source)
    code, checks = doctor(machine, source)
    assert code == 0
    assert "hidden" in checks["source"]["found"]
    machine.ok("umount", source)


def test_nodes_that_nobody_serves_yet_are_a_warning(machine: Machine) -> None:
    code, checks = doctor(machine, "--nodes", "127.0.0.1:1,localhost:1")
    assert code == 0
    assert checks["node 127.0.0.1:1"]["level"] == "warning"
    assert machine.run("doctor", "--nodes", "a:b:c").returncode == 2
    # As by an unset variable.
    assert machine.run("doctor", "--nodes", "").returncode == 2


def first_lines(machine: Machine) -> set[str]:
    """What doctor, status and report say first, which is the same, and follows from the history alone."""
    page = machine.folder / "report.html"
    said = (
        machine.run("doctor", machine.mnt, *NO_PROBE),
        machine.ok("status", machine.mnt),
        machine.ok("report", machine.mnt, "-o", page),
    )
    (line,) = {done.stdout.splitlines()[0] for done in said}
    assert line.partition("verdict: ")[2][:40] in page.read_text()
    return {line}


def test_a_mount_that_redirects_nothing_is_told_what_to_do(machine: Machine, tmp_path: Path) -> None:
    """A flat folder with a table beside it: all tools say the same, and the command works."""
    flat = tmp_path / "flat"
    (flat / "img").mkdir(parents=True)
    for number in range(30):
        (flat / f"img/{number}.jpg").write_bytes(os.urandom(2000))
    (flat / "labels.csv").write_text("name,label\n0.jpg,1\n")
    machine.ok("mount", flat, machine.mnt)
    for path in (machine.mnt / "img").iterdir():
        path.read_bytes()
    (line,) = first_lines(machine)
    assert line.startswith("warning  verdict: this mount redirects nothing, so it gains nothing, because labels.csv ")
    command = line.partition("; to mend it: ")[2]
    assert command.startswith(f"redoxfs umount {machine.mnt} && redoxfs mount --classes=sampler ")
    for each in command.split(" && "):
        machine.ok(*each.split()[1:])
    assert machine.stats()["classes_mode"] == "sampler"
    machine.ok("umount", machine.mnt)


def test_a_mount_for_a_sampler_that_none_draws_from_says_so(machine: Machine, source: Path) -> None:
    assert IN_THE_SCRIPT in machine.ok("mount", source, machine.mnt, "--classes", "sampler").stderr
    for path in machine.mnt.rglob("*.jpg"):
        path.read_bytes()
    (line,) = first_lines(machine)
    assert "none drawn by a sampler: each read its own file" in line
    for each in line.partition("; to mend it: ")[2].split(" && "):
        machine.ok(*each.split()[1:])
    assert machine.stats()["classes_mode"] == "dir"
    for path in machine.mnt.rglob("*.jpg"):
        path.read_bytes()
    assert "none drawn" not in "".join(first_lines(machine))
    machine.ok("umount", machine.mnt)


def test_after_an_epoch_the_doctor_speaks_of_that_epoch(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "-o", "direct_io")
    for path in machine.mnt.rglob("*.jpg"):
        path.read_bytes()
    until(lambda: json.loads((machine.mnt / ".redoxfs/history.json").read_text())["points"]["time"][2:], "points")
    _, checks = doctor(machine, machine.mnt, *NO_PROBE)
    assert " 0 opens/s" not in checks["waits"]["found"]
    machine.ok("umount", machine.mnt)
