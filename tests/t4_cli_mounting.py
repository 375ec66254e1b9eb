"""The verbs on real mounts: over and beside SOURCE, stale and live mounts, signals, busy mounts, hanging daemons."""

import errno
import json
import os
import select
import shlex
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import log2
from pathlib import Path

import pytest
from machine import OTHERS_CLEARED, PATIENCE_S, Machine, has_ended, mount_at
from patience import NEVER_S, completed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts and mount namespaces need root")


def test_mount_and_umount_return_when_they_are_done(machine: Machine, source: Path) -> None:
    done = machine.ok("mount", source, machine.mnt)
    assert done.stdout == ""
    assert f"redoxfs umount {machine.mnt}" in done.stderr
    assert "memory: " in done.stderr
    mount = mount_at(machine.mnt)
    assert mount.ours
    assert mount.source == str(source)
    assert sorted(os.listdir(machine.mnt)) == ["README", "train"]
    assert (machine.mnt / "train/n02121808/cat3.jpg").read_bytes().startswith(b"cat ")
    assert machine.daemons() == machine.processes_of(machine.mnt)
    machine.umount()
    assert os.listdir(machine.mnt) == []


def test_an_over_mount_hides_source_until_it_ends(machine: Machine, source: Path) -> None:
    machine.ok("mount", source)
    assert (source / "train/n02084071/dog23.jpg").read_bytes().startswith(b"dog ")
    assert (source / ".redoxfs/exact/train/n02084071/dog23.jpg").read_bytes() == b"dog 23" * 100
    told = machine.refused(4, "mount", source)
    assert "live redoxfs mount" in told
    machine.umount(source)
    assert (source / "train/n02084071/dog23.jpg").read_bytes() == b"dog 23" * 100
    assert not (source / ".redoxfs").exists()


def test_a_live_mount_is_refused_as_mountpoint_and_as_source(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    for mountpoint in (machine.mnt, machine.mnt / "train"):
        machine.refused(4, "mount", source, mountpoint)
    other = machine.folder / "other"
    other.mkdir()
    for verb, *more in (["mount", other], ["inspect"]):
        assert f"{machine.mnt}/.redoxfs/exact" in machine.refused(3, str(verb), machine.mnt / "train", *more)
    inspected = machine.ok("inspect", machine.mnt / ".redoxfs/exact", "--json")
    assert json.loads(inspected.stdout)["files"] == 41
    machine.umount()


@pytest.mark.parametrize("known", [False, True], ids=["unseen", "stat'ed before"])
@pytest.mark.parametrize("over", [False, True], ids=["beside", "over"])
def test_a_stale_mount_is_cleared_by_the_next_mount(machine: Machine, source: Path, over: bool, known: bool) -> None:
    paths = [source] if over else [source, machine.mnt]
    machine.ok("mount", "--no-keeper", *paths)
    if known:
        # The kernel answers from what it knows, also after the daemon's death.
        os.stat(paths[-1])
    machine.kill(signal.SIGKILL, paths[-1])
    with pytest.raises(OSError) as dead:
        os.listdir(paths[-1])
    assert dead.value.errno == errno.ENOTCONN
    machine.refused(4, "status", paths[-1])
    done = machine.ok("mount", *paths)
    assert done.stderr.count("cleared the stale mount") == 1
    assert machine.mounts() == [str(paths[-1])]
    assert (paths[-1] / "train/n02121808/cat3.jpg").read_bytes().startswith(b"cat ")
    machine.umount(paths[-1])


def test_umount_clears_a_stale_mount(machine: Machine, source: Path) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt)
    machine.kill(signal.SIGKILL, machine.mnt)
    assert "cleared the stale mount" in machine.ok("umount", machine.mnt).stderr
    assert not machine.mounts()


def test_a_busy_mount_stays_and_lazy_lets_its_users_finish(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    with open(machine.mnt / "train/n02121808/cat3.jpg", "rb") as held:
        assert "still in use" in machine.refused(8, "umount", machine.mnt)
        assert machine.mounts() == [str(machine.mnt)]
        processes = machine.watched()
        machine.ok("umount", "--lazy", machine.mnt)
        assert not machine.mounts()
        assert held.read().startswith(b"cat ")
    assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


def test_the_commands_that_messages_name_can_be_typed_as_they_are(machine: Machine, source: Path) -> None:
    mountpoint = machine.folder / "my $HOME's mnt"
    mountpoint.mkdir()
    end = ["redoxfs", "umount", str(mountpoint)]
    said = [machine.ok("mount", source, mountpoint).stderr, machine.run("mount", "--seed=1", source, mountpoint).stderr]
    assert [shlex.split(each.rpartition("to end it: ")[2]) for each in said] == [end, end]
    with open(mountpoint / "train/n02121808/cat3.jpg", "rb"):
        busy = machine.run("umount", mountpoint).stderr
    assert shlex.split(busy.partition("by whom: ")[2].partition(" (or")[0]) == ["fuser", "-vm", str(mountpoint)]
    machine.ok(*end[1:])


def test_a_mountpoint_that_is_not_empty_is_told(machine: Machine, source: Path) -> None:
    (machine.mnt / "precious").touch()
    done = machine.ok("mount", source, machine.mnt)
    assert done.stderr.count("is not empty; what is there is hidden until the mount ends\n") == 1
    assert not (machine.mnt / "precious").exists()
    machine.ok("umount", machine.mnt)
    assert (machine.mnt / "precious").exists()


def test_sigterm_ends_the_daemon_and_its_mount(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    machine.kill(signal.SIGTERM, machine.mnt)
    assert machine.nothing_is_left()


KEEPER = pytest.mark.parametrize("keeper", [["--no-keeper"], ["--keeper"]], ids=lambda words: words[0][2:])


@KEEPER
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_foreground_mount_cleanly(
    machine: Machine, source: Path, how: signal.Signals, keeper: list[str]
) -> None:
    with machine.in_front(source, *keeper) as running:
        assert running.stderr is not None
        stats = machine.stats()
        assert (stats["keeper"] or stats)["pid"] == running.pid
        running.send_signal(how)
        rest = running.stderr.read()
        assert running.wait(PATIENCE_S) == 0, rest
    assert "Traceback" not in rest
    assert machine.nothing_is_left()


@KEEPER
def test_signals_until_its_end_let_a_foreground_mount_end_cleanly(
    machine: Machine, source: Path, keeper: list[str]
) -> None:
    """As systemd tells every process of a service, and a keeper its daemon once more."""
    with machine.in_front(source, *keeper) as running:
        assert running.stderr is not None
        daemon = os.pidfd_open(machine.stats()["pid"])
        try:
            while running.poll() is None:
                running.send_signal(signal.SIGTERM)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(daemon, signal.SIGTERM)
                # Without a pause, each would interrupt Python's handler of the one before, until its stack is full.
                time.sleep(0.001)
        finally:
            os.close(daemon)
        rest = running.stderr.read()
        assert running.returncode == 0, rest
    assert "killed" not in rest
    assert machine.nothing_is_left()


@KEEPER
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_mount_leaves_nothing(
    machine: Machine, source: Path, how: signal.Signals, keeper: list[str]
) -> None:
    """The kernel lists the mount before the daemon serves it."""
    changes = select.poll()
    with open("/proc/self/mountinfo") as table:
        # The kernel reports a change of the table as an error.
        changes.register(table, select.POLLERR | select.POLLPRI)
        command = machine.command("mount", source, machine.mnt, "-f", *keeper)
        with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as running:
            try:
                while not machine.mounts():
                    assert changes.poll(PATIENCE_S * 1000)
                running.send_signal(how)
                _, err = running.communicate(timeout=PATIENCE_S)
            finally:
                running.kill()
    assert running.returncode == 0, err
    assert "Traceback" not in err
    assert machine.nothing_is_left()


def test_status_and_its_json_agree(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--memory", "64MiB")
    (machine.mnt / "train/n02121808/cat3.jpg").read_bytes()
    told = json.loads(machine.ok("status", machine.mnt, "--json").stdout)
    assert told["opens"] == 1
    assert told["samples"] == 40
    assert told["memory_limit_bytes"] == 64 << 20
    table = machine.ok("status", machine.mnt).stdout
    for words in (str(source), "40 samples, 2 classes", "64.0 MiB", "redirected", "train is in lap 1"):
        assert words in table
    # Whatever there is none of is not worth a row.
    for words in ("errors", "open files", "changed files"):
        assert words not in table
    assert all(line == line.rstrip() for line in table.splitlines())
    with open(machine.mnt / "train/n02121808/cat3.jpg", "rb"):
        assert "open files" in machine.ok("status", machine.mnt).stdout
    machine.ok("umount", machine.mnt)


def test_memory_for_all_samples_is_reported(machine: Machine, source: Path) -> None:
    words = "each chunk is read once an epoch, nothing needs redirecting"
    slot = ("--policy", "slot")
    assert words in machine.ok("mount", source, machine.mnt, *slot, "--memory", "64MiB").stderr
    assert words in machine.ok("status", machine.mnt).stdout
    machine.ok("umount", machine.mnt)
    least = machine.inspect(source, *slot, "--chunk-size", "4")["memory_for"]["least"]
    done = machine.ok("mount", source, machine.mnt, *slot, "--chunk-size", "4", "--memory", str(least))
    assert "of memory hold" in done.stderr
    assert words not in done.stderr
    assert words not in machine.ok("status", machine.mnt).stdout
    machine.ok("umount", machine.mnt)


def test_no_command_hangs_with_a_hung_daemon(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    pid = machine.pid(machine.mnt)
    os.kill(pid, signal.SIGSTOP)
    try:
        # What mounts knows the mount from the table.
        assert "did not answer" in machine.refused(1, "status", machine.mnt, "--timeout", str(NEVER_S))
        machine.refused(4, "mount", source, machine.mnt, "--timeout", str(NEVER_S))
    finally:
        os.kill(pid, signal.SIGCONT)
    machine.kill(signal.SIGTERM, machine.mnt)
    assert machine.nothing_is_left()


def test_a_command_waits_for_an_answer_as_long_as_it_is_told(machine: Machine, source: Path) -> None:
    """Of a stopped daemon, whose mount is known from the table."""
    machine.ok("mount", source, machine.mnt)
    state, order = machine.folder / "laps", machine.folder / "order"
    machine.ok("state", "save", machine.mnt, state)
    order.write_text(str(next(source.glob("train/*/*.jpg")).relative_to(source)))
    pid = machine.pid(machine.mnt)
    commands: list[tuple[str | Path, ...]] = [
        ("nodes", machine.mnt),
        ("trace", machine.mnt, order),
        ("state", "save", machine.mnt, state),
        ("state", "save", machine.mnt, state, "--less", "1"),
        ("state", "load", machine.mnt, state),
        ("restart", machine.mnt),
        ("log-level", machine.mnt),
    ]
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(commands)) as pool:
            # All wait at once.
            done = [*pool.map(lambda words: machine.run(*words, "--timeout", str(NEVER_S)), commands)]
        line = f"redoxfs: {machine.mnt}: the daemon did not answer within {NEVER_S:g} s\n"
        assert [(each.returncode, each.stderr) for each in done] == [(1, line)] * len(commands)
    finally:
        os.kill(pid, signal.SIGCONT)
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize(
    ("keeper", "code", "line"),
    [
        ("--keeper", 1, f"its daemon has not ended within {NEVER_S:g} s"),
        ("--no-keeper", 0, "its daemon did not report its pid"),
    ],
)
def test_a_hung_daemon_can_be_unmounted(machine: Machine, source: Path, keeper: str, code: int, line: str) -> None:
    """What asks it waits in the mount, and must be gone before that is unmounted."""
    machine.ok("mount", keeper, source, machine.mnt)
    pid = machine.pid(machine.mnt)
    processes = machine.watched()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert machine.run("status", machine.mnt, "--timeout", str(NEVER_S)).returncode == 1
        # By the name under which programs may have it.
        (link := machine.folder / "set").symlink_to("mnt")
        done = machine.run("umount", link, "--timeout", str(NEVER_S))
        assert done.returncode == code
        assert line in done.stderr
        assert not machine.mounts()
    finally:
        os.kill(pid, signal.SIGCONT)
        assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


@needs_root
def test_umount_names_a_bind_mount_that_remains(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    processes = machine.watched()
    other = machine.folder / "bound here"
    other.mkdir()
    subprocess.run(["mount", "--bind", machine.mnt, other], check=True)
    try:
        said = machine.refused(8, "umount", machine.mnt)
        assert f"{machine.mnt} is unmounted" in said
        assert f"it is also mounted at {other}" in said
        assert machine.mounts() == [str(other)]
    finally:
        subprocess.run(["umount", other], check=True)
        assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


@needs_root
def test_umount_names_a_mount_in_another_namespace(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    processes = machine.watched()
    # What other tests have mounted is theirs to end.
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{OTHERS_CLEARED} echo ready; read line"]
    environment = os.environ | {"MNT": str(machine.mnt)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as container:
        try:
            assert container.stdout is not None
            assert container.stdout.readline() == b"ready\n"
            said = machine.refused(8, "umount", machine.mnt)
            assert f"process {container.pid} (sh) has it mounted at {machine.mnt} in another" in said
            assert not machine.mounts()
        finally:
            container.communicate(b"\n")
            assert all(map(has_ended, processes))
    assert machine.nothing_is_left()


def test_the_daemon_detaches_and_logs_where_it_says(machine: Machine, source: Path) -> None:
    log = machine.folder / "log"
    done = machine.ok("mount", source, machine.mnt, "--log", log)
    proc = Path(f"/proc/{machine.pid(machine.mnt)}")
    assert str(log) in done.stderr
    assert log.stat().st_mode & 0o777 == 0o600
    assert os.readlink(proc / "cwd") == "/"
    assert os.readlink(proc / "fd/0") == "/dev/null"
    assert os.readlink(proc / "fd/1") == os.readlink(proc / "fd/2") == str(log)
    machine.ok("umount", machine.mnt)


def test_paths_of_any_bytes_can_be_mounted_and_unmounted(machine: Machine, source: Path) -> None:
    odd = os.fsdecode(os.fsencode(machine.folder) + b"/a b\\\xff")
    os.mkdir(odd)
    machine.ok("mount", source, odd)
    assert machine.mounts() == [odd]
    machine.umount(odd)


def test_inspect_describes_the_mount_without_mounting(machine: Machine, source: Path) -> None:
    facts = json.loads(machine.ok("inspect", source, "--json", "--chunk-size", "8").stdout)
    assert (facts["samples"], facts["classes"], facts["files"], facts["exact_files"]) == (40, 2, 41, 1)
    assert facts["classes_mode"] == "dir"
    assert facts["samples_per_class"] == {"min": 20, "median": 20, "max": 20}
    assert facts["files_per_sample"] == {"min": 1, "median": 1, "max": 1}
    assert facts["sample_bytes"]["total"] == sum(path.stat().st_size for path in (source / "train").rglob("*.jpg"))
    needed = list(facts["memory_for"].values())
    assert list(facts["memory_for"]) == ["least", "5%", "10%", "25%", "50%", "all"]
    assert needed == sorted(needed)
    table = machine.ok("inspect", source).stdout
    for words in ("2 classes", "not redirected", "memory needed", facts["verdict"][:20]):
        assert words in table
    assert facts["shuffled_with"] is None, "no batch is whole"
    assert "chunk mates" not in table
    assert machine.nothing_is_left()


def test_inspect_says_how_well_each_memory_shuffles(machine: Machine, tmp_path: Path) -> None:
    for label in range(10):
        (tmp_path / f"many/train/{label}").mkdir(parents=True)
        for number in range(60):
            (tmp_path / f"many/train/{label}/{number}.jpg").write_bytes(bytes(200))
    options = ["--classes", "dir", "--chunk-size", "16"]
    facts = machine.inspect(tmp_path / "many", *options)
    shuffled = facts["shuffled_with"]
    for measure, best in (("mates", 1), ("chunk_entropy", shuffled["chunk_entropy_if_random"])):
        by_memory = shuffled[measure]
        assert list(by_memory) == list(facts["memory_for"])
        assert [*by_memory.values()] == sorted(by_memory.values(), reverse=measure == "mates")
        assert by_memory["least"] != by_memory["50%"] != by_memory["all"] == best
    assert log2(10) - 0.1 < shuffled["class_entropy_if_random"] < log2(10)
    assert 0 < facts["block_variance"] < facts["block_variance_if_random"] < 1
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in machine.ok("inspect", tmp_path / "many", *options).stdout.splitlines()
        if "│" in line
    }
    assert f"50% {shuffled['mates']['50%']:.1f}, all 1.0 times those of a random order" in rows["chunk mates"]
    assert f"a random order has {shuffled['chunk_entropy_if_random']:.2f}" in rows["chunks in a batch"]
    assert f"a random order has {shuffled['class_entropy_if_random']:.2f}" in rows["classes in a batch"]
    assert f"block variance {facts['block_variance']:.2f}" in rows["classes in a chunk"]
    assert "chunk mates" not in machine.ok("inspect", tmp_path / "many", *options, "--policy", "slot").stdout


def test_a_scan_is_cached_and_reused(machine: Machine) -> None:
    # A tree that nobody is changing; one made a moment ago is scanned again to be sure.
    settled = Path(json.__file__).parent
    assert "scanned" in machine.ok("inspect", settled).stderr
    assert "unchanged" in machine.ok("inspect", settled).stderr
    assert "scanned" in machine.ok("inspect", settled, "--rescan").stderr


@needs_root
def test_umount_waits_for_no_process_that_another_namespace_counts(machine: Machine, source: Path) -> None:
    """The daemon's number is that of another process here."""
    command = machine.command("mount", "-f", "--no-keeper", source, machine.mnt)
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command],
        env=machine.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as container:
        try:
            assert container.stderr is not None
            assert any("to end it: " in line for line in container.stderr)
            assert machine.pid() == 1
            told = machine.ok("umount", machine.mnt, "--timeout", "5").stderr
            assert "its daemon did not report its pid, so its end was not awaited" in told
            assert container.wait(PATIENCE_S) == 0
        finally:
            container.kill()


@needs_root
def test_a_mount_for_other_containers_says_whom_it_does_not_see(machine: Machine, source: Path) -> None:
    script = f'{OTHERS_CLEARED} mount --make-"$0" / && "$@" 1>&2; "$1" -m redoxfs umount "$6"'
    own = ("--pid", "--fork", "--kill-child", "--mount-proc")
    for propagation, lines in (("rshared", 1), ("rprivate", 0)):
        command = [sys.executable, "-m", "redoxfs", "mount", str(source), str(machine.mnt), "--classes", "dir"]
        done = completed(
            ["unshare", "--mount", "--propagation", "private", *own, "sh", "-c", script, propagation, *command],
            env=machine.environment,
        )
        assert "is served at" in done.stderr
        assert done.stderr.count("programs whose pids redoxfs cannot see from here share their open files") == lines


def test_a_list_that_closes_what_a_mode_opens_is_one_line_of_a_mount_for_others(machine: Machine, source: Path) -> None:
    entries = ((1, 7, -1), (2, 0, 1234), (4, 5, -1), (16, 5, -1), (32, 5, -1))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    file = next(source.glob("train/*/*.jpg"))
    os.setxattr(file.parent, "system.posix_acl_access", packed)
    for options, lines in (((), 0), (("-o", "allow_other"), 1)):
        said = machine.ok("mount", *options, source, machine.mnt).stderr
        told = [line for line in said.splitlines() if "access control list" in line]
        assert len(told) == lines, said
        assert all(str(file.parent.relative_to(source)) in line for line in told)
        machine.ok("umount", machine.mnt)
