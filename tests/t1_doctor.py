"""The doctor's checks of a machine that is made of files, and its advice for storage and datasets that are known."""

import errno
import json
import os
import pwd
import random
import resource
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from scrapes import told

from redoxfs.cli import main
from redoxfs.doctor.estimate import MOST_CHUNK, chunk_size, estimate
from redoxfs.doctor.machine import (
    check_allow_other,
    check_callers,
    check_device,
    check_helper,
    check_kernel,
    check_memory,
    check_open_files,
    check_processes,
)
from redoxfs.doctor.mount import Watched, check_mount, source_of
from redoxfs.doctor.network import check_nodes
from redoxfs.doctor.result import Level, Result, warning
from redoxfs.doctor.source import Facts, _facts, advise, unusable
from redoxfs.doctor.storage import Probe, Round, kind_of, probe, results
from redoxfs.launch.addresses import joined
from redoxfs.launch.deadline import run_in_child
from redoxfs.launch.errors import FuseUnavailableError, UsageError
from redoxfs.launch.fuse_access import check_name
from redoxfs.launch.path_status import path_status
from redoxfs.telemetry import Outcome

MIB = 1 << 20
GIB = 1 << 30


def a_probe(
    rates: dict[int, float],
    *,
    mean_bytes: int = 100_000,
    long_bytes_per_s: float | None = None,
    is_packed: bool = False,
) -> Probe:
    """A probe that lasted a second at each depth."""
    rounds = [
        Round(depth, int(rate), int(rate) * mean_bytes, 1.0, depth / rate, 2 * depth / rate, 0, None)
        for depth, rate in rates.items()
    ]
    return Probe(files=1000, rounds=tuple(rounds), long_bytes_per_s=long_bytes_per_s, is_packed=is_packed)


def facts(**changes: object) -> Facts:
    known: dict[str, object] = {
        "mode": "dir",
        "line": "redirecting",
        "evidence": (),
        "files": 1_000_000,
        "samples": 1_000_000,
        "classes": 1000,
        "total_bytes": 100_000 * 1_000_000,
        "file_bytes": 100_000 * 1_000_000,
        "shards": 0,
        "chunk_size": 8,
        "least_memory": MIB,
        "tenth_memory": 13 * GIB,
    }
    return Facts(**known | changes)  # type: ignore[arg-type]


def named(found: list[Result]) -> dict[str, Result]:
    return {each.name: each for each in found}


# The machine


@pytest.mark.parametrize("kind", ["missing", "not a device"])
def test_a_device_that_cannot_be_opened_is_a_problem(tmp_path: Path, kind: str) -> None:
    device = tmp_path / "fuse"
    if kind == "not a device":
        device.touch()
    found = check_device(device)
    assert found.level is Level.PROBLEM
    assert found.command is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root opens everything")
def test_a_device_without_permission_is_a_problem(tmp_path: Path) -> None:
    device = tmp_path / "fuse"
    device.touch(0o000)
    found = check_device(device)
    assert os.strerror(errno.EACCES) in found.found


def test_a_missing_helper_is_a_problem_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_helper(lambda: None, is_root=False).level is Level.PROBLEM
    assert check_helper(lambda: None, is_root=True).level is Level.WARNING
    # CAP_SYS_ADMIN is bit 21.
    status = tmp_path / "self/status"
    status.parent.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for rights, level in ((0, Level.PROBLEM), (1 << 21, Level.WARNING)):
        status.write_text(f"Name:\tx\nCapEff:\t{rights:016x}\n")
        found = check_helper(lambda: None, proc=tmp_path)
        assert (found.level, "only root" in found.found) == (level, level is Level.PROBLEM)


def test_a_helper_that_is_not_setuid_is_a_problem(tmp_path: Path) -> None:
    helper = tmp_path / "fusermount3"
    helper.touch(0o755)
    found = check_helper(lambda: str(helper), is_root=False)
    assert found.level is Level.PROBLEM
    assert found.command == f"sudo chown root {helper} && sudo chmod u+s {helper}"
    assert check_helper(lambda: str(helper), is_root=True).command == f"chown root {helper} && chmod u+s {helper}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file setuid root")
def test_a_process_that_may_gain_no_privileges_is_a_problem(tmp_path: Path) -> None:
    helper, proc = tmp_path / "fusermount3", tmp_path / "proc"
    helper.touch()
    helper.chmod(0o4755)
    (proc / "self").mkdir(parents=True)
    for flag, level in (("0", Level.OK), ("1", Level.PROBLEM)):
        (proc / "self/status").write_text(f"Name:\tsh\nNoNewPrivs:\t{flag}\n")
        assert check_helper(lambda: str(helper), is_root=False, proc=proc).level is level


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file setuid root")
def test_a_user_without_a_name_cannot_use_the_helper(tmp_path: Path) -> None:
    helper = tmp_path / "fusermount3"
    helper.touch()
    helper.chmod(0o4755)
    for is_root, level in ((False, Level.PROBLEM), (True, Level.OK)):
        found = check_helper(lambda: str(helper), is_root=is_root, proc=tmp_path, named=lambda: False)
        assert found.level is level
    assert check_helper(lambda: str(helper), is_root=False, proc=tmp_path, named=lambda: True).level is Level.OK
    (tmp_path / "self").mkdir()
    # All rights but CAP_SYS_ADMIN, or that one alone, by which a process mounts without the helper.
    for held, level in ((0x1FFFFDFFFFF, Level.PROBLEM), (0x200000, Level.OK)):
        (tmp_path / "self/status").write_text(f"CapPrm:\t{1 << 21:016x}\nCapEff:\t{held:016x}\n")
        found = check_helper(lambda: str(helper), is_root=False, proc=tmp_path, named=lambda: False)
        assert found.level is level


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_mount_by_a_user_without_a_name_says_why_it_cannot() -> None:
    unused = next(uid for uid in range(54321, 60000) if uid not in {each.pw_uid for each in pwd.getpwall()})

    def refusal() -> bytes:
        os.setresuid(unused, unused, unused)
        try:
            check_name()
        except FuseUnavailableError as error:
            return str(error).encode()
        return b""

    assert f"user {unused} has no name" in run_in_child(refusal, 60).decode()


def test_allow_other_depends_on_the_user_and_the_configuration(tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    assert check_allow_other(conf, is_root=False).level is Level.WARNING
    assert check_allow_other(conf, is_root=True).level is Level.OK
    conf.write_text("# user_allow_other\n")
    assert check_allow_other(conf, is_root=False).level is Level.WARNING
    conf.write_text("user_allow_other\n")
    assert check_allow_other(conf, is_root=False).level is Level.OK


@pytest.mark.parametrize(
    ("release", "openat2", "level"),
    [
        ("4.18.0-553.el8_10.x86_64", False, Level.WARNING),
        ("5.4.0-generic", False, Level.OK),
        ("6.18.4", True, Level.OK),
        ("6.18.4", False, Level.WARNING),
    ],
)
def test_a_kernel_is_judged_by_version_and_by_trial(release: str, openat2: bool, level: Level) -> None:
    assert check_kernel(release, lambda: openat2).level is level


@pytest.mark.parametrize(
    ("hard", "shards", "level"),
    [(128, 0, Level.PROBLEM), (1024, 0, Level.WARNING), (1024, 1000, Level.PROBLEM), (65536, 1000, Level.OK)],
)
def test_few_open_files_are_a_problem(hard: int, shards: int, level: Level) -> None:
    assert check_open_files((64, hard), shards).level is level


class Groups:
    """A procfs whose process is in a control group, with files of either version."""

    def __init__(self, folder: Path, *, version: int, free_bytes: int = 100 * GIB) -> None:
        self.proc = folder / "proc"
        self.group = folder / "cgroup/job"
        self.group.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(f"MemAvailable: {free_bytes // 1024} kB\n")
        top = folder / "cgroup"
        if version == 2:
            line = f"20 1 0:20 / {top} rw - cgroup2 cgroup2 rw\n"
            (self.proc / "self/cgroup").write_text("0::/job\n")
        else:
            line = f"20 1 0:20 / {top} rw - cgroup cgroup rw,memory,pids\n"
            (self.proc / "self/cgroup").write_text("4:memory,pids:/job\n")
        (self.proc / "self/mountinfo").write_text(line)

    def set(self, **numbers: object) -> None:
        for name, number in numbers.items():
            (self.group / name.replace("_", ".", 1)).write_text(f"{number}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_a_memory_limit_of_a_control_group_is_found(tmp_path: Path, version: int) -> None:
    groups = Groups(tmp_path, version=version)
    assert check_memory(groups.proc).values == {"available_bytes": 100 * GIB, "limit_bytes": None}
    if version == 2:
        groups.set(memory_max=256 * MIB, memory_current=56 * MIB)
    else:
        groups.set(memory_limit_in_bytes=256 * MIB, memory_usage_in_bytes=56 * MIB)
    found = check_memory(groups.proc)
    assert found.level is Level.WARNING
    assert found.values == {"available_bytes": 200 * MIB, "limit_bytes": 256 * MIB}
    assert f"{groups.group} (cgroup v{version})" in found.found


@pytest.mark.parametrize("version", [1, 2])
def test_few_threads_of_a_control_group_are_a_warning(tmp_path: Path, version: int) -> None:
    groups = Groups(tmp_path, version=version)
    assert check_processes(groups.proc).level is Level.OK
    groups.set(pids_max=300, pids_current=100)
    assert check_processes(groups.proc).values == {"left": 200}


@pytest.mark.parametrize(
    ("options", "user", "namespace", "level", "words"),
    [
        ("rw", 1000, "4026531836", Level.OK, "all are told apart"),
        ("rw,gid=4,hidepid=invisible", 1000, "4026531836", Level.WARNING, "hides processes of other users"),
        ("rw,hidepid=2", 1000, "4026531836", Level.WARNING, "hides processes of other users"),
        ("rw,hidepid=0", 1000, "4026531836", Level.OK, "all are told apart"),
        ("rw,hidepid=2", 0, "4026531836", Level.OK, "all are told apart"),
        ("rw", 0, "4026532260", Level.OK, "others hold files by path"),
    ],
)
def test_callers_that_redoxfs_cannot_see_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, user: int, namespace: str, level: Level, words: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/mountinfo").write_text(f"22 1 0:21 / /proc rw,relatime shared:5 - proc proc {options}\n")
    (tmp_path / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    found = check_callers(tmp_path)
    assert found.level is level
    assert words in found.found


def test_few_threads_of_a_user_are_a_warning_by_the_soft_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a daemon does not raise."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NPROC: (100, 1 << 20)}.__getitem__)
    found = check_processes(Groups(tmp_path, version=2).proc)
    assert found.level is Level.WARNING
    assert found.found == "at most 100 processes and threads of this user"
    assert found.command == "ulimit -u 4096"


MEMORY_STAT = """anon 1610612736
file 536870912
kernel 41943040
kernel_stack 1048576
pagetables 8388608
sec_pagetables 0
percpu 12288
sock 0
vmalloc 65536
shmem 8192
file_mapped 16777216
file_dirty 0
file_writeback 0
swapcached 0
anon_thp 0
file_thp 0
shmem_thp 0
inactive_anon 1610604544
active_anon 16384
inactive_file 402653184
active_file 134217728
unevictable 0
slab_reclaimable 20971520
slab_unreclaimable 4194304
slab 25165824
workingset_refault_anon 0
pgfault 1234567
"""
"""As Linux 6.8 writes it: 1.5 GiB of anonymous memory, 512 MiB of page cache."""


def test_the_slice_around_a_session_of_systemd_limits_it(tmp_path: Path) -> None:
    """The files of a login: cgroup v2 beside a hierarchy of v1 without controllers, and no limit but the slice's."""
    proc, top = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       65844196 kB\nMemAvailable:   52428800 kB\n")
    (proc / "self/cgroup").write_text("1:name=systemd:/\n0::/user.slice/user-1000.slice/session-2.scope\n")
    (proc / "self/mountinfo").write_text(
        f"34 24 0:29 / {top} rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 "
        "rw,nsdelegate,memory_recursiveprot\n"
        "35 24 0:30 / /sys/fs/cgroup/systemd rw,nosuid - cgroup systemd rw,xattr,name=systemd\n"
    )
    unlimited = {"memory.max": "max", "memory.high": "max", "memory.current": "1700000000", "pids.max": "max"}
    limited = unlimited | {"memory.high": str(3 * GIB), "memory.current": str(2 * GIB), "pids.max": "1000"}
    session = top / "user.slice/user-1000.slice/session-2.scope"
    for folder, files in ((session, unlimited), (session.parent, limited), (session.parent.parent, unlimited)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (files | {"pids.current": "900"}).items():
            (folder / name).write_text(f"{text}\n")
        (folder / "memory.stat").write_text(MEMORY_STAT)
    # The root group has no limits, nor its use.
    (top / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    memory = check_memory(proc)
    left = 3 * GIB - (2 * GIB - 512 * MIB - 20 * MIB)
    assert memory.level is Level.OK
    assert memory.values == {"available_bytes": left, "limit_bytes": 3 * GIB}
    assert f"{session.parent} (cgroup v2) has a limit of 3.0 GiB" in memory.found
    threads = check_processes(proc)
    assert threads.level is Level.WARNING
    assert str(session.parent) in threads.found
    assert threads.values == {"left": 100}


# Storage and advice


def test_latency_gains_from_redoxfs_on_the_directory() -> None:
    """Each read takes 20 ms, and many may be in flight."""
    probe = a_probe({1: 50, 8: 400, 128: 6400}, long_bytes_per_s=2e9)
    found = estimate(probe, 1_000_000, 100_000 * 1_000_000)
    assert found is not None
    assert found.plain_one == pytest.approx(20_000)
    assert found.plain_eight == pytest.approx(2_500)
    assert found.directory == pytest.approx(156.25)
    advised = named(advise(Path("/data"), facts(), probe, 50 * GIB))
    assert advised["packing"].found.startswith("not needed")
    verdict = advised["verdict"]
    assert verdict.found == "latency: one read takes 20 ms: redoxfs reads this 16 times as fast from the directory"
    assert (verdict.command, verdict.values["cause"]) == ("redoxfs mount /data", "latency")


def test_few_reads_a_second_make_packing_worth_it() -> None:
    """500 reads a second, 200 MB/s, as a NAS: docs/performance.md measured 493 plain and 1,892 packed."""
    probe = a_probe({1: 450, 8: 500, 16: 500}, long_bytes_per_s=200e6)
    advised = named(advise(Path("/data"), facts(), probe, 50 * GIB))
    assert advised["packing"].level is Level.ADVICE
    assert advised["packing"].values["gain"] == pytest.approx(1900 / 500)
    assert advised["packing"].command == advised["verdict"].command == "redoxfs pack /data /data-packed"
    assert (advised["verdict"].level, advised["verdict"].values["cause"]) == (Level.ADVICE, "IOPS")
    assert "IOPS-limited: at most 500 reads/s: redoxfs reads this 3.8 times as fast when packed" in str(
        advised["verdict"].found
    )


def test_fast_storage_is_better_read_without_redoxfs() -> None:
    probe = a_probe({1: 5000, 8: 15_000}, long_bytes_per_s=3e9)
    advised = named(advise(Path("/data"), facts(), probe, 50 * GIB))
    packing, verdict = advised["packing"], advised["verdict"]
    assert packing.level is Level.OK
    assert "without redoxfs" in packing.found
    assert "page cache" not in packing.found
    assert (verdict.level, verdict.values["cause"]) == (Level.WARNING, "fast disk")
    assert "redoxfs would slow this down 2.1 times: do not use it" in verdict.found
    # Nothing else says to mount it.
    assert [each.name for each in advised.values() if each.command] == []


def test_a_dataset_that_fits_in_memory_is_said_to() -> None:
    probe = a_probe({1: 450, 8: 500}, long_bytes_per_s=200e6)
    packing = named(advise(Path("/data"), facts(), probe, 200 * GIB))["packing"]
    assert "page cache" in packing.found


def test_without_long_files_the_bandwidth_is_assumed_and_named() -> None:
    probe = a_probe({1: 450, 8: 500})
    advised = named(advise(Path("/data"), facts(), probe, 50 * GIB))
    assert advised["estimate"].values["bandwidth_is_assumed"] is True
    assert "could not be measured" in advised["estimate"].found
    assert "if long reads come at" in advised["packing"].found


def test_empty_files_were_measured_as_others_are() -> None:
    empty = facts(total_bytes=0, file_bytes=0)
    advised = named(advise(Path("/data"), empty, a_probe({1: 450, 8: 500}, mean_bytes=0), 50 * GIB))
    assert "an epoch of 1,000,000 files, 0 B, takes about" in advised["estimate"].found
    assert advised["verdict"].values["cause"] == "IOPS"


def test_a_dataset_without_redirection_is_not_to_be_packed() -> None:
    line = "not redirecting: nothing shows that a and b are classes; if the directory is the label: --classes dir"
    bare = facts(samples=0, mode="none", line=line)
    advised = named(advise(Path("/my data"), bare, a_probe({1: 450, 8: 500}), 50 * GIB))
    assert advised["redirection"].level is Level.WARNING
    assert advised["redirection"].command == "redoxfs inspect --classes dir '/my data'"
    assert advised["packing"].level is Level.OK
    assert "memory needed" not in advised
    assert "through redoxfs packed, if it could redirect. This" in advised["estimate"].found
    verdict = advised["verdict"]
    assert verdict.found == f"as it is, redoxfs would redirect nothing and gain nothing, because {line[17:]}"
    assert verdict.command == "redoxfs pack --classes dir '/my data' '/my data-packed'"


@pytest.mark.parametrize("redirects", [True, False])
def test_archives_are_served_as_they_are_and_never_packed(redirects: bool) -> None:
    refused = (
        "not redirecting: nothing shows that a and b are classes; if the script can take a sampler: --classes sampler"
    )
    line = "redirecting" if redirects else refused
    samples = 1_000_000 if redirects else 0
    tars = facts(samples=samples, line=line, shards=100, is_archive=True)
    advised = named(advise(Path("/my tars"), tars, a_probe({1: 450, 8: 500}, is_packed=True), 50 * GIB))
    verdict = advised["verdict"]
    options = "" if redirects else "--classes sampler "
    assert verdict.command == f"redoxfs mount {options}'/my tars' MOUNTPOINT"
    assert verdict.found.startswith("ready: redoxfs reads these archives" if redirects else "as they are, ")
    assert ("--classes member:cls" in verdict.found) is not redirects
    assert "pack" not in verdict.found
    condition = "" if redirects else ", if it could redirect"
    assert f"from these archives{condition}. This" in advised["estimate"].found
    assert all("redoxfs pack" not in (each.command or "") for each in advised.values())


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "redoxfs mount --chunk-size 25 --memory 900MiB /data"),
        ({"shards": 9, "is_archive": True}, "redoxfs mount --chunk-size 25 --memory 900MiB /data MOUNTPOINT"),
        # Four open files alone take more than there is.
        ({"smaller": None}, None),
    ],
)
def test_smaller_chunks_are_advised_where_they_fit(changes: dict[str, object], command: str | None) -> None:
    large = facts(**({"chunk_size": 100, "least_memory": 2 * GIB, "smaller": (25, 900 * MIB)} | changes))
    found = named(advise(Path("/data"), large, None, GIB))
    assert found["verdict"].command == command
    assert (found["memory needed"].command or "").endswith(command or "give it more memory")


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_mount_takes_the_smaller_chunks_that_are_advised(
    is_packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the memory that the advice names. A mount of the directory makes chunks of 4 that are no halves of those of
    8, and take more memory."""
    source = tmp_path / "data"
    for number, name in enumerate(random.Random(0).sample(range(1 << 40), 1098)):
        folder = source / ("train" if number < 999 else "val") / ("cat", "dog", "owl")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name:010x}.jpg").write_bytes(b"x" * (400 + number * number % 700))
    if is_packed:
        assert main(["pack", str(source), str(tmp_path / "packed")]) == 0
        source = tmp_path / "packed"
    monkeypatch.setattr("redoxfs.doctor.source.available_memory", lambda: 8_200)
    advised = named(advise(source, _facts(path_status(str(source), 9.0), 9.0), None))
    command = shlex.split(advised["verdict"].command or "")
    assert command[:4] == ["redoxfs", "mount", "--chunk-size", "4"]
    capfd.readouterr()
    assert main(["inspect", "--json", *command[2:]]) == 0
    assert json.loads(capfd.readouterr().out)["memory_suffices"] is True


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("not redirecting: 0.jpg lies at the top; if there are no labels: --classes any; if the script can take a "
         "sampler: --classes sampler; else: --classes FILE.csv", "--classes sampler"),
        ("not redirecting: labels.csv looks like a label table; if the script can take a sampler: --classes sampler",
         "--classes sampler"),
        ("not redirecting: a.jpg and a.png may be parts of one sample; if files with one stem are one sample, the "
         "script opens them together, each time, and their directory is the label: --groups stem --classes dir",
         "--groups stem --classes dir"),
        ("not redirecting: none of 1,000 files (a/0.dat, …) counts as a sample; to select the samples: --samples GLOB",
         "--samples '*.dat'"),
    ],
)  # fmt: skip
def test_no_command_claims_that_there_are_no_labels(line: str, options: str) -> None:
    """What is beside the data, nobody has looked at. `--classes any` is for people to choose."""
    advised = named(advise(Path("/data"), facts(samples=0, mode="none", line=line), a_probe({1: 450, 8: 500}), GIB))
    assert advised["redirection"].command == f"redoxfs inspect {options} /data"
    assert advised["verdict"].command == f"redoxfs pack {options} /data /data-packed"


def test_what_was_not_measured_is_not_judged() -> None:
    verdict = named(advise(Path("/data"), facts(), None, GIB * 100))["verdict"]
    assert (verdict.level, verdict.found) == (Level.OK, "cannot say, because the storage was not measured")
    slow = warning("dataset", "the scan takes longer than 60 s, so there is no advice")
    assert unusable([slow]).found == "cannot say, because the scan takes longer than 60 s, so there is no advice"
    silent = unusable(results(Probe(files=3, trouble="no read ended within 3.3 s")))
    assert (silent.level, silent.values["cause"]) == (Level.PROBLEM, "storage hangs")


def test_chunks_grow_with_what_a_read_costs() -> None:
    costly, cheap = a_probe({1: 20, 8: 20}, long_bytes_per_s=1e9), a_probe({1: 400, 8: 500}, long_bytes_per_s=200e6)
    assert chunk_size(cheap, 100_000) == 64
    # 50 ms of 1 GB/s are 500 files.
    assert chunk_size(costly, 100_000) == 512
    assert chunk_size(costly, 100) == MOST_CHUNK
    packing = named(advise(Path("/data"), facts(), costly, 50 * GIB))["packing"]
    assert packing.command is not None
    assert "--chunk-size 512" in packing.command


@pytest.mark.parametrize(
    ("least", "tenth", "available", "level", "command"),
    [
        (MIB, GIB, 100 * GIB, Level.OK, None),
        (MIB, 10 * GIB, 30 * GIB, Level.ADVICE, "redoxfs mount --memory 10GiB /data"),
        (MIB, 100 * GIB, 30 * GIB, Level.ADVICE, "redoxfs mount --memory 15GiB /data"),
        (10 * GIB, 12 * GIB, 30 * GIB, Level.ADVICE, "redoxfs mount --memory 10GiB /data"),
    ],
)
def test_memory_is_advised_within_what_there_is(
    least: int, tenth: int, available: int, level: Level, command: str | None
) -> None:
    found = advise(Path("/data"), facts(least_memory=least, tenth_memory=tenth), None, available)
    memory = named(found)["memory needed"]
    assert (memory.level, memory.command) == (level, command)


def test_a_command_that_mounts_has_memory_where_the_default_is_too_little() -> None:
    """`mount` would refuse it otherwise."""
    slow = a_probe({1: 50, 8: 400, 128: 6400}, long_bytes_per_s=2e9)
    for changes, measured, of_lines in (
        ({}, slow, ["verdict", "packing", "memory needed"]),
        ({"shards": 9}, a_probe({1: 500}, is_packed=True), ["verdict", "memory needed"]),
        ({"shards": 9, "is_archive": True}, a_probe({1: 500}, is_packed=True), ["verdict", "memory needed"]),
    ):
        found = advise(Path("/data"), facts(**(changes | {"least_memory": 10 * GIB})), measured, 30 * GIB)
        commands = {each.name: each.command for each in found if each.command}
        assert [*commands] == of_lines
        where = "/data MOUNTPOINT" if "is_archive" in changes else "/data"
        assert set(commands.values()) == {f"redoxfs mount --memory 10GiB {where}"}


def test_too_little_memory_is_a_problem() -> None:
    found = named(advise(Path("/data"), facts(least_memory=2 * GIB), None, GIB))
    assert found["memory needed"].level is Level.PROBLEM


def test_a_directory_without_files_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (found,) = results(probe(tmp_path, 0.5))
    assert (found.level, found.found) == (Level.PROBLEM, "there is no file below it")
    assert found.command == f"ls -la {tmp_path}"


def test_a_probe_reads_as_many_files_as_it_can_of_a_flat_folder(tmp_path: Path) -> None:
    # A server's cache would answer for few files that are read again and again.
    for number in range(300):
        (tmp_path / f"{number}.jpg").write_bytes(b"x")
    assert probe(tmp_path, 0.5).files == 300


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_this_user_may_not_read_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        (found,) = results(probe(folder, 0.5))
    finally:
        os.seteuid(0)
    assert found.level is Level.PROBLEM
    assert found.command == f"ls -ld {folder}"


def test_storage_that_fails_or_is_silent_is_a_problem() -> None:
    silent = results(Probe(files=3, trouble="no read ended within 3.3 s"))
    assert [each.level for each in silent] == [Level.PROBLEM]
    failing = Round(1, 10, 1000, 1.0, 0.1, 0.1, 2, "[Errno 5] Input/output error: 'x'")
    found = named(results(Probe(files=3, rounds=(failing,))))
    assert found["reads"].level is Level.PROBLEM
    assert "2 reads failed" in found["reads"].found
    assert found["random reads"].level is Level.OK


@pytest.mark.parametrize(
    ("fstype", "kind"),
    [("nfs4", "network"), ("lustre", "network"), ("fuse.sshfs", "FUSE"), ("ext4", "local"), ("tmpfs", "memory")],
)
def test_a_filesystem_is_known_by_its_type(fstype: str, kind: str) -> None:
    assert kind_of(fstype) == kind


# Mounts and nodes


STATS: dict[str, Any] = {
    "mountpoint": "/mnt",
    "source": "/data",
    "opens": 1000,
    "pid": 7,
    "redirected": 1000,
    "exact": 0,
    "errors": 0,
    "wait_seconds": 1.0,
    "waiting_opens": 0,
    "waiting_reads": 0,
    "open_seconds": {outcome.label: told() for outcome in Outcome},
    "bytes_read": 0,
    "bytes_served": 0,
    "loads_in_flight": 0,
    "turns": 1000,
    "samples": 100,
    "memory_used_bytes": 10,
    "memory_limit_bytes": 100,
}


def watched(**after: object) -> Watched:
    """A mount that reports `STATS`, and 2 s later what has changed."""
    return Watched(STATS, STATS | after, 2.0)


def test_a_mount_with_nothing_wrong_is_well() -> None:
    found = named(check_mount(watched()))
    assert {each.level for each in found.values()} == {Level.OK}
    # A daemon before this one may have failed, and a file that nobody reads may differ.
    assert found["errors"].found == "no open or read has failed since this daemon began"
    assert found["changed files"].found == "none that was read has changed since the scan"


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"errors": 2}, "errors", Level.PROBLEM),
        ({"changed": 2}, "changed files", Level.WARNING),
        ({"memory_used_bytes": 200}, "mount's memory", Level.WARNING),
        ({"missed": 5}, "missed samples", Level.WARNING),
        ({"keeper": {"pid": None, "restarts": 0, "last_death": None}}, "keeper", Level.WARNING),
        ({"keeper": {"pid": 7, "restarts": 1, "last_death": {"how": "killed", "at": 0}}}, "keeper", Level.WARNING),
        ({"keeper": {"pid": 7, "restarts": 1, "last_death": None}}, "keeper", Level.OK),
        ({"peers": [{"address": "b:1", "state": "ready"}]}, "peers", Level.OK),
        ({"peers": [{"address": "b:1", "state": "unreachable", "reason": "silent"}]}, "peers", Level.PROBLEM),
    ],
)
def test_each_trouble_of_a_mount_is_a_line(changes: dict[str, object], name: str, level: Level) -> None:
    found = named(check_mount(watched(**changes)))
    assert found[name].level is level
    assert {each.level for each in found.values() if each.name != name} == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({"wait_seconds": 2.1}, "which is much"),
        # Most of the waiting was before this daemon's first look, or in another daemon's time.
        ({"wait_seconds": 1.9}, "which is little"),
        ({"pid": 8, "wait_seconds": 0.9}, "which is little"),
    ],
)
def test_waiting_is_said_to_be_much_or_little(changes: dict[str, object], judged: str) -> None:
    """What it is for, and whether it is wrong, is for the verdict to say."""
    waits = named(check_mount(watched(**changes)))["waits"]
    assert judged in waits.found
    assert waits.level is Level.OK


def test_waits_that_do_not_end_are_found() -> None:
    waiting = STATS | {"waiting_opens": 2, "waiting_reads": 1}
    assert named(check_mount(Watched(waiting, waiting, 1.0)))["waits"].values["waiting_mean"] == 3
    assert "which is little" in named(check_mount(watched(waiting_opens=2)))["waits"].found


def test_a_set_of_paths_that_comes_apart_is_a_warning() -> None:
    laps = {"train": {"number": 3, "turns": 0, "samples": 480}}
    found = named(check_mount(watched(laps=laps, split_paths={"train": 96})))["splits"]
    assert found.level is Level.WARNING
    assert found.found.startswith("the job reads two sets of paths of train; samples cross them")
    assert "splits" not in named(check_mount(watched(laps=laps, split_paths={"train": 0})))


def test_the_source_of_an_over_mount_is_hidden() -> None:
    assert source_of(STATS) == "/data"
    assert source_of(STATS | {"source": "/mnt"}) is None


def test_nodes_are_reached_or_it_is_said_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolved(host: str, port: int, **hints: Any) -> list[Any]:
        if host == "no-such.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, port, **hints)

    # In the child of `check_nodes` too. A resolver may take its time over a name that is not there.
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:
        open_port = listening.getsockname()[1]
        closed_port = other.getsockname()[1]
        other.close()
        found = check_nodes([joined("127.0.0.1", open_port), joined("127.0.0.1", closed_port), "no-such.invalid:1"])
    assert [each.level for each in found] == [Level.OK, Level.WARNING, Level.PROBLEM]
    assert "nothing listens" in found[1].found
    assert "not found" in found[2].found


def test_a_text_that_is_no_node_is_refused() -> None:
    with pytest.raises(UsageError):
        check_nodes(["a:b:c"])


@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="fusermount3 is not installed")
def test_the_helper_of_this_machine_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_helper().found.startswith("/")
    monkeypatch.setenv("PATH", str(tmp_path))
    # It is also looked for where Debian has it.
    assert check_helper().found.startswith("/")
