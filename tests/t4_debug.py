"""`redoxfs debug` of daemons that are well, hang and are dead; and stacks of a process that runs no Python code."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from machine import Machine
from patience import completed, until
from strangers import UID

from redoxfs.doctor.bundle import LOG_BYTES, Bundle, _stacks, processes, tail
from redoxfs.launch import stacks
from redoxfs.launch.deadline import Look
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.stacks import NoStacksError, _answer, stacks_of
from redoxfs.linux.mount_table import OUR_TYPE, Mount
from redoxfs.linux.pids import pid_namespace

SPINNING = """
import ctypes
import os
import sys
import threading
from redoxfs.launch.stacks import answer_with_stacks

def waiting_elsewhere():
    threading.Event().wait()

def spinning_forever():
    print("ready", flush=True)
    while True:
        pass

def keeping_the_lock():
    nothing, _ = os.pipe()
    print("ready", flush=True)
    ctypes.PyDLL(None).read(nothing, ctypes.create_string_buffer(1), 1)

how, *user = sys.argv[1:]
if user:
    os.setresuid(*[int(user[0])] * 3)
    # As that of a user, and not of root who became one (PR_SET_DUMPABLE).
    ctypes.CDLL(None).prctl(4, 1)
answer_with_stacks()
threading.Thread(target=waiting_elsewhere, daemon=True).start()
globals()[how]()
"""


@contextmanager
def running(program: str, *arguments: str) -> Iterator[int]:
    """The pid of a process that runs ``program``, once it says that it is ready."""
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def debugged(machine: Machine, name: str = "bundle.tar.gz", *options: str) -> dict[str, str]:
    """The files of a bundle, and "said" by the command."""
    path = machine.folder / name
    done = machine.ok("debug", machine.mnt, "-o", path, "--interval", "0.1", *options)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parts = {"said": done.stdout}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            parts[member.name.removeprefix("redoxfs-debug/")] = file.read().decode()
    return parts


def test_a_live_daemon_gives_everything(machine: Machine, source: Path) -> None:
    machine.environment["REDOXFS_TEST_SECRET"] = "hunter2"
    machine.ok("mount", source, machine.mnt, "--keeper", "--log-format", "json")
    before = machine.pid()
    (machine.mnt / "train/n02121808/cat3.jpg").read_bytes()
    parts = debugged(machine)
    about = json.loads(parts["about.json"])
    assert (about["pid"], about["is_dead"], about["missing"]) == (before, False, {})
    assert json.loads(parts["stats-1.json"])["opens"] == json.loads(parts["stats-2.json"])["opens"] == 1
    assert str(source) in parts["request.json"]
    assert "Thread" in parts["stacks.txt"]
    assert "trio" in parts["stacks.txt"]
    assert "== thread" in parts["daemon/threads.txt"]
    assert "Max open files" in parts["daemon/limits.txt"]
    assert "redoxfs-keeper" in parts["keeper/cmdline.txt"]
    assert str(machine.mnt) in parts["daemon/mountinfo.txt"]
    assert json.loads(parts["mount.json"])["fstype"] == "fuse.redoxfs"
    assert "log.txt" in parts
    assert not [name for name, text in parts.items() if "hunter2" in text]
    # The daemon serves on.
    assert machine.pid() == before
    assert (machine.mnt / "train/n02121808/cat4.jpg").read_bytes()
    machine.ok("umount", machine.mnt)


def test_a_stopped_daemon_gives_what_the_kernel_knows(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    pid = machine.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        parts = debugged(machine, "bundle.tar.gz", "--timeout", "2")
        # No handler is to run once the daemon is at work again.
        assert "ShdPnd:\t0000000000000000\n" in Path(f"/proc/{pid}/status").read_text()
    finally:
        os.kill(pid, signal.SIGCONT)
    about = json.loads(parts["about.json"])
    assert about["pid"] == pid
    assert {"stats-1.json", "stacks.txt"} <= about["missing"].keys()
    assert "missing: stacks.txt (" in parts["said"]
    assert "State:\tT (stopped)" in parts["daemon/status.txt"]
    assert "== thread" in parts["daemon/threads.txt"]
    # The request that came too late does no harm.
    assert machine.pid() == pid
    machine.ok("umount", machine.mnt)


def test_a_dead_daemon_leaves_its_log_and_its_mount(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--no-keeper")
    machine.ok("log-level", machine.mnt, "debug")
    machine.kill(signal.SIGKILL)
    parts = debugged(machine)
    about = json.loads(parts["about.json"])
    assert (about["pid"], about["is_dead"]) == (None, True)
    assert "the level of the log was changed" in parts["log.txt"]
    assert json.loads(parts["mount.json"])["source"] == str(source)
    machine.ok("umount", machine.mnt)


def test_a_file_that_cannot_be_written_is_one_line(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    there = machine.folder / "there"
    there.write_text("mine")
    machine.refused(4, "debug", machine.mnt, "-o", there)
    assert there.read_text() == "mine"
    machine.refused(2, "debug", machine.mnt, "-o", machine.mnt / "bundle")
    short = ("prlimit", "--fsize=1000", *machine.command("debug", machine.mnt, "-o", machine.folder / "bundle"))
    cut = completed(short, env=machine.environment)
    assert (cut.returncode, cut.stderr) == (4, f"redoxfs: -o {machine.folder / 'bundle'}: File too large\n")
    command = machine.command("debug", machine.mnt, "-o", machine.folder / "bundle", "--interval", "600")
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as ended:
        until((machine.folder / "bundle").exists)
        ended.terminate()
        assert ended.communicate()[1] == "redoxfs: interrupted\n"
    assert ended.returncode == 130
    machine.refused(4, "debug", machine.folder, "-o", machine.folder / "bundle")
    assert not (machine.folder / "bundle").exists()
    machine.ok("umount", machine.mnt)


def test_readers_notice_nothing_while_stacks_are_written(machine: Machine, source: Path) -> None:
    """They come in the middle of requests and reads, and with the interpreter's lock."""
    machine.ok("mount", source, machine.mnt, "--fuse-threads", "2")
    pid = machine.pid()
    whole = {path.read_bytes() for path in (source / "train").rglob("*.jpg")}
    names = [path.relative_to(source) for path in (source / "train").rglob("*.jpg")]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            asked = pool.submit(lambda: [stacks_of(pid) for _ in range(3)])
            while not asked.done():
                assert {(machine.mnt / name).read_bytes() for name in names} == whole
            assert all("Thread" in told and f"in {_answer.__name__}" in told for told in asked.result())
    assert machine.stats()["errors"] == 0
    assert machine.pid() == pid
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize("how", ["spinning_forever", "keeping_the_lock"])
def test_stacks_come_while_no_other_python_code_runs(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SPINNING, how) as pid:
        if how == "spinning_forever":
            # Its thread answers.
            monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: pytest.fail("a signal was sent"))
        for _ in range(2):
            told = stacks_of(pid)
            assert told.count(f"in {how}") == 1
            assert told.count("in waiting_elsewhere") == 1


def test_a_log_is_read_only_if_it_is_a_file_of_its_process(tmp_path: Path) -> None:
    mine, link, pipe = tmp_path / "mine", tmp_path / "link", tmp_path / "pipe"
    mine.write_bytes(b"a" * LOG_BYTES + b"end")
    link.symlink_to(mine)
    os.mkfifo(pipe)
    assert tail(mine, os.geteuid()) == b"a" * (LOG_BYTES - 3) + b"end"
    for path, owner in ((mine, os.geteuid() + 1), (mine, None), (link, os.geteuid()), (pipe, os.geteuid())):
        with pytest.raises(OSError, match=r"not permitted|symbolic links"):
            tail(path, owner)


def test_a_process_is_not_looked_into_unless_it_can_serve_the_mount() -> None:
    with running(SPINNING, "spinning_forever") as spinning:
        user = os.geteuid()
        here = pid_namespace()
        assert here is not None
        for pid, namespace, owner, is_known in (
            (spinning, here, user, True),
            (spinning, here + 1, user, False),
            (os.getpid(), here, user, False),
            (-1, here, user, False),
            ("1", here, user, False),
            (spinning, here, user + 1, user != 0),
        ):
            of_user = frozenset({f"user_id={owner}", "group_id=0"})
            mount = Mount(1, 0, "0:50", "/", "/mnt", OUR_TYPE, "x", of_user)
            bundle = Bundle()
            stats = {"pid": pid, "pid_namespace": namespace}
            found, _ = processes(bundle, PathStatus("/mnt", Look(Path("/mnt"), 0, 0, True), mount), stats)
            assert (found == pid, "daemon" in bundle.missing) == (is_known, not is_known)


HOSTILE = """
import ctypes
import os
import signal
import sys
import time

how, uid, file, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].encode()
libc = ctypes.CDLL(None)
if how == "memory":
    # A mount namespace whose root has the file under the name of the memory.
    assert libc.unshare(0x20000) == 0
    assert libc.mount(None, b"/", None, 0x40000 | 0x4000, None) == 0
    assert libc.mount(b"tmpfs", folder, b"tmpfs", 0, None) == 0
    name = folder + b"/memfd:redoxfs-stacks (deleted)"
    open(name, "w").close()
    assert libc.mount(file.encode(), name, None, 0x1000, None) == 0
    os.chdir(folder)
    assert libc.syscall(155, b".", b".") == 0
    os.open("/memfd:redoxfs-stacks (deleted)", os.O_PATH)
else:
    fifo = os.open(file, os.O_PATH)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
if how == "pipe":
    os.memfd_create(f"redoxfs-stacks-{fifo}")
libc.prctl(4, 1)
signal.signal(signal.SIGRTMAX, lambda *_: None)
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["memory", "pipe"])
def test_root_is_not_led_to_a_file_of_its_own(tmp_path: Path, how: str) -> None:
    """A user's process shows root's file as the memory, or a FIFO that is root's as the pipe."""
    file, folder = tmp_path / "file", tmp_path / "root"
    folder.mkdir()
    if how == "memory":
        file.write_text("mine")
    else:
        os.mkfifo(file, 0o600)
    with running(HOSTILE, how, str(UID), str(file), str(folder)) as pid, ExitStack() as opened:
        if how == "pipe":
            reading = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
            opened.callback(os.close, reading)
        with pytest.raises(NoStacksError, match=f"replaced its {how}"):
            stacks_of(pid)
        bundle = Bundle()
        _stacks(bundle, pid)
        assert bundle.missing.keys() == {"stacks.txt"}
        assert file.read_text() == "mine" if how == "memory" else os.read(reading, 1) == b""


def test_root_asks_as_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.doctor.bundle.stacks_of", lambda pid: f"{os.geteuid()} {stacks_of(pid)}")
    with running(SPINNING, "spinning_forever", str(UID)) as pid:
        as_user = Bundle()
        _stacks(as_user, pid)
        assert as_user.parts["stacks.txt"].startswith(f"{UID} ".encode())
        assert b"in spinning_forever" in as_user.parts["stacks.txt"]


def test_a_file_in_the_place_of_the_memory_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    # The descriptor has changed since it was found.
    monkeypatch.setattr(stacks, "_memfd_of", lambda _: other)
    with running(SPINNING, "spinning_forever") as pid, pytest.raises(NoStacksError, match="replaced"):
        stacks_of(pid)
    assert other.read_text() == "mine"


def test_a_process_that_does_not_expect_the_signal_is_left_alone() -> None:
    # As long as no test takes; it is killed.
    with subprocess.Popen(["sleep", "infinity"]) as other:
        try:
            with pytest.raises(NoStacksError, match="does not answer"):
                stacks_of(other.pid)
            assert other.poll() is None
        finally:
            other.kill()
