"""The keeper of a mount: another daemon in the place of one that died, on purpose or not, and what ends them all."""

import errno
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import Machine, contents, has_ended, mount_at
from patience import PATIENCE_S, completed, until

from redoxfs.launch.turn import keeper_of
from redoxfs.linux.detach import detach
from redoxfs.native.sources import KEEPER

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can end a connection")

MOST_RSS_KIB = 3 * 1024

# Runs when a Python begins. While the file $STOP exists, each daemon of a keeper writes its pid there and stops itself:
# the first, which the child of a command forks, if the command is a new process, and those that the keeper starts.
SITE = """
import os, signal, sys
path, command = os.environ.get("STOP", ""), os.getpid()
def stop():
    if os.path.exists(path):
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.kill(os.getpid(), signal.SIGSTOP)
if "redoxfs.launch.successor" in sys.orig_argv:
    stop()
else:
    os.register_at_fork(after_in_child=lambda: os.getppid() != command and stop())
"""

# While the file $LACK exists, a daemon that the keeper starts fails with the error in it when it begins.
LACKING = """
import os, socket, sys
def recv_fds(*arguments, own=socket.recv_fds):
    if os.path.exists(os.environ["LACK"]):
        with open(os.environ["LACK"]) as file:
            raise eval(file.read())
    return own(*arguments)
if "redoxfs.launch.successor" in sys.orig_argv:
    socket.recv_fds = recv_fds
"""

# The daemon kills its command, the keeper, at the line that says that the mount serves.
KILLING = """
import os, signal, sys
command = os.getpid()
class Telling:
    def __init__(self, own):
        self._own = own
    def __getattr__(self, name):
        return getattr(self._own, name)
    def write(self, text):
        written = self._own.write(text)
        if text.startswith("to end it") and os.getppid() == command:
            os.kill(command, signal.SIGKILL)
            while os.getppid() == command:
                os.sched_yield()
        return written
sys.stderr = Telling(sys.stderr)
"""

LOOK_S = 5  # of keeper.c

# Becomes the keeper of a child whose first thread has ended, and whose second ends with stdin.
HALF_DEAD = """
import ctypes, os, socket, sys, threading
keeper, lock = sys.argv[1], os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    threading.Thread(target=os.read, args=(0, 1)).start()
    ctypes.CDLL(None).pthread_exit(None)
os.set_inheritable(lock, True)
os.dup2(ours.fileno(), 0)
os.execv(keeper, [keeper, "background", str(child), str(lock), "/nowhere.sock", "/nowhere", "/bin/false"])
"""


@pytest.fixture(autouse=True)
def own_sockets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`keeper_of` looks where the commands of the machine do."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.sockets))


@pytest.fixture
def kept(machine: Machine, source: Path) -> Machine:
    """A machine with a mount that has a keeper."""
    machine.ok("mount", "--keeper", source, machine.mnt)
    return machine


@pytest.fixture
def stop(machine: Machine, tmp_path: Path) -> Path:
    """While a pipe is at this path, daemons that a keeper starts stop at once. A reader of it gets their pid."""
    stop = tmp_path / "stop"
    machine.successors = {"PYTHONPATH": site_of(tmp_path, SITE), "STOP": str(stop)}
    return stop


@pytest.fixture
def stop_first(machine: Machine, stop: Path) -> Path:
    """The same for the first daemon as well, until the test clears ``machine.before``."""
    machine.before = ("env", *(f"{name}={value}" for name, value in machine.successors.items()))
    os.mkfifo(stop)
    return stop


def site_of(folder: Path, text: str) -> str:
    """A folder for PYTHONPATH: a Python that starts with it runs ``text`` first."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(text)
    return str(site)


def keeper(machine: Machine) -> int:
    return int(machine.stats()["keeper"]["pid"])


@contextmanager
def ends(pid: int) -> Iterator[None]:
    """The process ends in or after the body."""
    process = os.pidfd_open(pid)
    yield
    assert has_ended(process)


def fields(pid: int) -> list[str]:
    """Of a process: its state, its parent, … (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def stopped_successor(machine: Machine, stop: Path) -> int:
    """Kill the daemon. The next one has begun, and stops; its pid."""
    os.mkfifo(stop)
    machine.kill(signal.SIGKILL)
    return stopped(stop)


def stopped(stop: Path) -> int:
    """The pid of the daemon that stops next."""
    pid = int(stop.read_text())
    stop.unlink()
    until(lambda: fields(pid)[0] == "T", lambda: fields(pid))
    return pid


def test_programs_go_on_when_the_daemon_is_killed(kept: Machine, source: Path) -> None:
    whole = contents(source)
    first, former = kept.pid(), keeper(kept)
    with open(kept.mnt / "train/n02121808/cat3.jpg", "rb") as held:
        begin = held.read(3)
        kept.kill(signal.SIGKILL)
        assert begin + held.read() in whole
        assert contents(kept.mnt) == whole
    stats = kept.stats()
    assert stats["pid"] not in (first, former)
    assert stats["keeper"]["pid"] == former
    assert stats["keeper"]["restarts"] == 1
    assert stats["keeper"]["last_death"]["how"] == "SIGKILL"
    assert f"ERROR redoxfs.keeper: the daemon (pid {first}) was killed by SIGKILL; starting another\n" in kept.log()
    assert "last death: SIGKILL" in kept.ok("status", kept.mnt).stdout
    kept.umount()


def a_successor_serves(machine: Machine, mounted: Path, whole: list[bytes]) -> None:
    """Mount ``mounted`` over itself, kill its daemon, and compare all files."""
    machine.ok("mount", "--keeper", mounted)
    machine.kill(signal.SIGKILL, mounted)
    assert contents(mounted) == whole
    assert machine.stats(mounted)["keeper"]["restarts"] == 1
    machine.umount(mounted)


def test_a_successor_needs_nothing_that_the_mount_hides(machine: Machine, source: Path) -> None:
    a_successor_serves(machine, source, contents(source))


def test_a_successor_serves_a_packed_dataset(machine: Machine, source: Path, tmp_path: Path) -> None:
    whole = contents(source)
    packed = tmp_path / "packed"
    machine.ok("pack", source, packed)
    a_successor_serves(machine, packed, whole)


def test_a_successor_serves_the_tree_as_it_was_mounted(kept: Machine, source: Path) -> None:
    (source / "train/n02121808/aaa.jpg").write_bytes(b"new")
    (source / "train/n02121808/cat3.jpg").unlink()
    before = sorted(path.name for path in kept.mnt.glob("train/*/*"))
    kept.kill(signal.SIGKILL)
    # The kernel has the listing; the new daemon looks up the names.
    sizes = [path.stat().st_size for path in (kept.mnt / ".redoxfs/exact").glob("train/*/*")]
    assert len(sizes) == len(before) == 40
    assert sorted(path.name for path in (kept.mnt / ".redoxfs/exact").glob("train/*/*")) == before


def test_a_daemon_that_runs_into_an_error_is_replaced(kept: Machine) -> None:
    first = kept.pid()
    kept.kill(signal.SIGSEGV)
    assert kept.stats()["keeper"]["last_death"]["how"] == "SIGSEGV"
    assert kept.pid() != first


def test_the_keeper_takes_less_than_3_mb(kept: Machine) -> None:
    def rss_kib(pid: int) -> int:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0])

    before = rss_kib(keeper(kept))
    kept.kill(signal.SIGKILL)
    assert 0 < before <= rss_kib(keeper(kept)) < MOST_RSS_KIB


@pytest.mark.parametrize("whom", ["daemon", "keeper"])
@pytest.mark.parametrize("is_second", [False, True], ids=["first", "second"])
def test_sigterm_ends_daemon_keeper_and_mount(kept: Machine, whom: str, is_second: bool) -> None:
    if is_second:
        kept.kill(signal.SIGKILL)
    pids = {"daemon": kept.pid(), "keeper": keeper(kept)}
    with ends(pids["daemon"]), ends(pids["keeper"]):
        os.kill(pids[whom], signal.SIGTERM)
    assert kept.nothing_is_left()


def test_an_unmount_by_others_ends_daemon_and_keeper(kept: Machine) -> None:
    with ends(kept.pid()), ends(keeper(kept)):
        detach(kept.mnt)
    assert kept.nothing_is_left()


@contextmanager
def connection_ended(mnt: Path) -> Iterator[None]:
    """`umount -f` of a mount that is in use ends the connection alone. The mount stays, dead, and in use."""
    user = os.open(mnt, os.O_PATH)
    try:
        assert subprocess.run(["umount", "-f", mnt], capture_output=True, check=False).returncode != 0
        yield
    finally:
        os.close(user)


@needs_root
@pytest.mark.parametrize("words", [("--keeper",), ("--no-keeper",)])
def test_a_connection_that_the_kernel_ended_is_an_error(machine: Machine, source: Path, words: tuple[str]) -> None:
    with machine.in_front(*words, source) as running:
        with connection_ended(machine.mnt):
            assert running.wait(PATIENCE_S) == 1
        assert running.stderr is not None
        (error,) = [line for line in running.stderr if " ERROR " in line]
        assert error.endswith(f"and the mount is dead; to clear it: redoxfs umount {machine.mnt}\n")
    machine.umount()


@needs_root
def test_no_daemon_is_started_for_a_connection_that_has_ended(machine: Machine, source: Path) -> None:
    with machine.in_front("--keeper", source) as running:
        daemon = machine.pid()
        os.kill(daemon, signal.SIGSTOP)
        with connection_ended(machine.mnt):
            os.kill(daemon, signal.SIGKILL)
            assert running.wait(PATIENCE_S) == 128 + signal.SIGKILL
        assert running.stderr is not None
        (error,) = [line for line in running.stderr if " ERROR " in line]
        assert error.endswith(f"and the mount is dead; to clear it: redoxfs umount {machine.mnt}\n")
    machine.umount()


@needs_root
def test_a_connection_that_ends_while_a_daemon_starts_is_an_error(machine: Machine, source: Path, stop: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    with ends(keeper(machine)), ends(stopped_successor(machine, stop)), connection_ended(machine.mnt):
        pass
    assert f"and the mount is dead; to clear it: redoxfs umount {machine.mnt}\n" in machine.log()
    machine.umount()


def test_a_daemon_goes_on_without_its_keeper(kept: Machine, source: Path) -> None:
    assert keeper_of(mount_at(kept.mnt)) == keeper(kept)
    with ends(keeper(kept)):
        os.kill(keeper(kept), signal.SIGKILL)
    assert contents(kept.mnt) == contents(source)
    assert kept.stats()["keeper"]["pid"] is None
    assert keeper_of(mount_at(kept.mnt)) is None
    assert "keeper, which was killed" in kept.refused(4, "restart", kept.mnt)
    kept.umount()


def test_without_keeper_and_daemon_the_mount_is_dead(kept: Machine, source: Path) -> None:
    with ends(keeper(kept)):
        os.kill(keeper(kept), signal.SIGKILL)
    kept.kill(signal.SIGKILL)
    with pytest.raises(OSError) as dead:
        os.listdir(kept.mnt)
    assert dead.value.errno == errno.ENOTCONN
    kept.ok("mount", "--keeper", source, kept.mnt)
    assert contents(kept.mnt) == contents(source)
    kept.umount()


# The keeper counts the deaths of a minute by its own clock, and two daemons have to start between them.
@pytest.mark.timed
def test_the_third_death_in_a_minute_ends_the_mount(kept: Machine) -> None:
    process = keeper(kept)
    with ends(process):
        for _ in range(3):
            kept.kill(signal.SIGKILL)
    with pytest.raises(OSError) as dead:
        os.listdir(kept.mnt)
    assert dead.value.errno == errno.ENOTCONN
    last = kept.log().splitlines()[-1]
    assert "the third in a minute; giving up: the mount is dead" in last
    assert last.endswith(f"to clear the mount: redoxfs umount {kept.mnt}")
    kept.umount()


def test_restart_replaces_the_daemon_under_open_files(kept: Machine, source: Path) -> None:
    whole = contents(source)
    first = kept.pid()
    with open(kept.mnt / "train/n02084071/dog23.jpg", "rb") as held:
        done = kept.ok("restart", kept.mnt)
        assert held.read() in whole
    stats = kept.stats()
    assert f"pid {stats['pid']} of redoxfs {stats['version']}; before, it was pid {first}" in done.stderr
    assert stats["keeper"]["restarts"] == 1
    assert stats["keeper"]["last_death"] is None
    assert "redoxfs.keeper: the daemon" in kept.log()
    assert "ERROR" not in kept.log()


# Opens the small file until a large one answers it, while the kernel still has the small one's size. Prints a line,
# waits for one, asks fstat for the size, and reads that much of a mapping.
MAPS = """
import ctypes, mmap, os, random, sys
small, *large = sys.argv[1:]
while True:
    fd = os.open(small, os.O_RDONLY)
    if os.pread(fd, 1, 0) == b"l":
        break
    os.close(fd)
    for path in random.sample(large, len(large)):
        with open(path, "rb") as file:
            file.read()
print("open", flush=True)
sys.stdin.readline()
size = os.fstat(fd).st_size
# mmap.mmap would ask for the size again.
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_PRIVATE, fd, ctypes.c_size_t(0))
print(size, len(ctypes.string_at(at, size).strip(b"l")), flush=True)
"""


def test_a_mapping_has_the_size_that_was_asked_for_while_no_daemon_served(
    machine: Machine, tmp_path: Path, stop: Path
) -> None:
    source, size = tmp_path / "pairs", 5 * mmap.PAGESIZE
    large = [f"large{number}" for number in range(3)]
    images = [("one", "small", b"s"), *(("one", name, b"l" * size) for name in large), ("two", "third", b"t")]
    for folder, name, image in images:
        (source / folder).mkdir(parents=True, exist_ok=True)
        (source / f"{folder}/{name}.jpg").write_bytes(image)
        (source / f"{folder}/{name}.txt").write_bytes(b"a caption")
    options = ("--classes", "dir", "--groups", "stem", "-o", "direct_io")
    machine.ok("mount", "--keeper", source, machine.mnt, *options)
    command = [sys.executable, "-c", MAPS, *(str(machine.mnt / f"one/{name}.jpg") for name in ("small", *large))]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "open\n"
    successor = stopped_successor(machine, stop)
    print(file=program.stdin, flush=True)
    asleep_in = Path(f"/proc/{program.pid}/wchan")
    until(lambda: asleep_in.read_text() == "request_wait_answer", asleep_in.read_text)
    os.kill(successor, signal.SIGCONT)
    assert program.communicate(timeout=2 * PATIENCE_S)[0] == f"{size} 0\n"
    assert program.returncode == 0


def test_restarts_on_purpose_are_no_deaths(kept: Machine) -> None:
    # The third death within a minute would end the mount.
    for _ in range(3):
        kept.ok("restart", kept.mnt)
    assert kept.stats()["keeper"]["restarts"] == 3


def test_programs_do_not_wait_for_the_end_of_an_interpreter(machine: Machine, source: Path, tmp_path: Path) -> None:
    """It would free the objects of each sample in memory by itself."""
    began, ended = tmp_path / "began", tmp_path / "ended"
    telling = f"import atexit\nopen({str(began)!r}, 'w')\natexit.register(open, {str(ended)!r}, 'w')\n"
    machine.successors = {"PYTHONPATH": site_of(tmp_path, telling)}
    machine.ok("mount", "--keeper", source, machine.mnt)
    for _ in range(2):
        daemon = os.pidfd_open(machine.pid())
        machine.ok("restart", machine.mnt)
        assert has_ended(daemon)
    machine.ok("umount", machine.mnt)
    assert began.exists()
    assert not ended.exists()


def test_of_two_restarts_at_once_the_second_waits(kept: Machine) -> None:
    first = kept.pid()
    both = [
        subprocess.Popen(kept.command("restart", kept.mnt), env=kept.environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=2 * PATIENCE_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert kept.stats()["keeper"]["restarts"] == 2
    assert sum(f"it was pid {first} " in text for text in said) == 1


def test_restart_needs_a_keeper(machine: Machine, source: Path) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt)
    first = machine.pid()
    assert "mounted without a keeper" in machine.refused(4, "restart", machine.mnt)
    assert machine.stats()["keeper"] is None
    assert machine.pid() == first


def test_umount_ends_a_daemon_that_is_being_started(machine: Machine, source: Path, stop: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    process = keeper(machine)
    with ends(process):
        stopped_successor(machine, stop)
        assert keeper_of(mount_at(machine.mnt)) == process
        machine.umount("--timeout", "2", machine.mnt)
    machine.ok("mount", "--keeper", source, machine.mnt)
    assert machine.pid() != process


def test_sigterm_to_the_keeper_ends_a_daemon_that_starts(machine: Machine, source: Path, stop: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    with ends(keeper(machine)):
        process = keeper(machine)
        pid = stopped_successor(machine, stop)
        os.kill(process, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    assert machine.nothing_is_left()


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_becomes_a_keeper_leaves_it_its_signals(asked: signal.Signals) -> None:
    told = "import signal; print(*map(int, signal.sigpending()), flush=True)"
    program = (
        "import os, signal, sys; from redoxfs.launch.keeper import Ends; ends = Ends(); "
        f"os.kill(os.getpid(), {int(asked)}); ends.leave_to_the_next(); "
        f"os.execv(sys.executable, [sys.executable, '-c', {told!r}])"
    )
    done = completed([sys.executable, "-c", program])
    # Python installs its handler of SIGINT, and still blocks it.
    assert done.stdout == f"{int(asked)}\n", done.stderr


def test_an_end_that_a_leaving_daemon_does_not_hear_of_ends_the_next(tmp_path: Path) -> None:
    """The one that leaves does not unmount, so another has to."""
    keepers, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    may_leave, leave = os.pipe()
    lock, null = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT), os.open(os.devnull, os.O_RDWR)
    next_one = tmp_path / "next"
    # The shell is the daemon's parent, and becomes the keeper.
    leaving = '(read -r _ < "/proc/self/fd/$1"; exit 75)'
    script = f'trap "" TERM; {leaving} & exec "$0" foreground $! "$2" /none /none "$3" "$4"'
    touch = shutil.which("touch")
    assert touch
    words = [str(KEEPER), str(may_leave), str(lock), touch, str(next_one)]
    with subprocess.Popen(["sh", "-c", script, *words], stdin=keepers.fileno(), pass_fds=[may_leave, lock]) as process:
        try:
            socket.send_fds(daemons, [b"H0\n"], [null])
            assert daemons.recv(1) == b"\0"
            daemons.send(b"S")
            process.send_signal(signal.SIGTERM)
            os.write(leave, b"\n")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.write(leave, b"\n")
            for fd in (may_leave, leave, lock, null):
                os.close(fd)
            keepers.close()
            daemons.close()
    assert next_one.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_killed_leaves_nothing(
    machine: Machine, source: Path, stop_first: Path, how: signal.Signals
) -> None:
    command = subprocess.Popen(
        machine.command("mount", "--keeper", source, machine.mnt), env=machine.environment, stderr=subprocess.DEVNULL
    )
    daemon = stopped(stop_first)
    # It is about to become the keeper, or it is that already.
    between = int(fields(daemon)[1])
    with ends(between), ends(daemon):
        command.send_signal(how)
        assert command.wait(PATIENCE_S) != 0
        os.kill(daemon, signal.SIGCONT)
    assert machine.nothing_is_left()


def test_a_command_waits_until_its_keeper_outlives_it(machine: Machine, source: Path, stop_first: Path) -> None:
    command = subprocess.Popen(machine.command("mount", "--keeper", source, machine.mnt), env=machine.environment)
    machine.before = ()
    daemon = stopped(stop_first)
    between = int(fields(daemon)[1])
    os.kill(between, signal.SIGSTOP)
    os.kill(daemon, signal.SIGCONT)
    try:
        until(machine.mounts, "nothing is mounted")
        # A command that does not wait would end now. A busy machine may hide that, and fails no right command.
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0.5)
    finally:
        os.kill(between, signal.SIGCONT)
    assert command.wait(PATIENCE_S) == 0
    assert contents(machine.mnt) == contents(source)
    assert machine.processes_of() == sorted([between, daemon])
    machine.umount()


def test_a_daemon_whose_keeper_died_while_it_began_says_so(machine: Machine, source: Path, stop: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    keeper_pid = keeper(machine)
    with ends(keeper_pid):
        pid = stopped_successor(machine, stop)
        os.kill(keeper_pid, signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    assert machine.stats()["keeper"]["pid"] is None
    machine.refused(4, "restart", machine.mnt)
    assert contents(machine.mnt) == contents(source)
    machine.umount()


def test_status_and_mount_wait_for_a_daemon_that_starts(machine: Machine, source: Path, stop: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    pid = stopped_successor(machine, stop)
    waiting = [
        subprocess.Popen(
            machine.command(*words), env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for words in (("status", "--json", machine.mnt), ("mount", source, machine.mnt))
    ]
    os.kill(pid, signal.SIGCONT)
    told, refused = [(process.communicate(timeout=2 * PATIENCE_S), process.returncode) for process in waiting]
    assert told[1] == 0
    assert json.loads(told[0][0])["pid"] == pid
    assert refused[1] == 4
    assert b"live redoxfs mount" in refused[0][1]


def test_a_daemon_that_cannot_start_is_given_up(machine: Machine, source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    machine.successors = {"PYTHONPATH": str(broken)}
    machine.ok("mount", "--keeper", source, machine.mnt)
    (broken / "trio.py").write_text("raise ImportError('broken')\n")
    with ends(keeper(machine)):
        machine.kill(signal.SIGKILL)
    assert machine.log().count("ended with status 1") == 2
    assert "ImportError: broken" in machine.log()
    machine.umount()


@pytest.mark.parametrize("lack", ["MemoryError()", "OSError(24, 'Too many open files')"])
def test_a_successor_that_lacks_memory_or_descriptors_is_no_death(
    machine: Machine, source: Path, tmp_path: Path, lack: str
) -> None:
    whole, lacking = contents(source), tmp_path / "lack"
    machine.successors = {"PYTHONPATH": site_of(tmp_path, LACKING), "LACK": str(lacking)}
    machine.ok("mount", "--keeper", source, machine.mnt)
    lacking.write_text(lack)
    machine.kill(signal.SIGKILL)
    # Three deaths within a minute would end the mount.
    until(lambda: machine.log().count(f"another daemon could not be started: {lack}") >= 3, machine.log)
    lacking.unlink()
    assert contents(machine.mnt) == whole
    assert "ended with status" not in machine.log()
    machine.umount()


def test_a_successor_whose_modules_lack_memory_is_no_death(kept: Machine, source: Path) -> None:
    whole = contents(source)
    held_back = keeper(kept)
    soft, hard = resource.prlimit(held_back, resource.RLIMIT_AS)
    resource.prlimit(held_back, resource.RLIMIT_AS, (80 << 20, hard))
    kept.kill(signal.SIGKILL)
    # Three deaths within a minute would end the mount.
    until(lambda: kept.log().count("could not begin: memory is short") >= 3, kept.log)
    resource.prlimit(held_back, resource.RLIMIT_AS, (soft, hard))
    assert contents(kept.mnt) == whole
    kept.umount()


@pytest.fixture
def in_front(machine: Machine, source: Path) -> Iterator[subprocess.Popen[str]]:
    """A mount with a keeper in the foreground, which answers."""
    with machine.in_front("--keeper", source) as running:
        yield running


def test_a_command_in_the_foreground_is_the_keeper(
    in_front: subprocess.Popen[str], machine: Machine, source: Path
) -> None:
    assert keeper(machine) == in_front.pid
    whole, first = contents(source), machine.pid()
    with open(machine.mnt / "train/n02121808/cat3.jpg", "rb") as held:
        machine.kill(signal.SIGKILL)
        assert held.read() in whole
        assert contents(machine.mnt) == whole
    machine.ok("restart", machine.mnt)
    assert machine.stats()["keeper"]["restarts"] == 2
    # The turn of a command ends when the mount answers, although the process lives on.
    assert "a live redoxfs mount is there already" in machine.run("mount", source, machine.mnt, "--seed", "1").stderr
    machine.ok("umount", machine.mnt)
    assert in_front.wait(PATIENCE_S) == 0
    assert in_front.stderr is not None
    log = in_front.stderr.read()
    assert f"ERROR redoxfs.keeper: the daemon (pid {first}) was killed by SIGKILL; starting another\n" in log
    assert log.count("serving") == 2
    assert machine.nothing_is_left()


@pytest.fixture
def killing(machine: Machine, tmp_path: Path) -> None:
    machine.before = ("env", f"PYTHONPATH={site_of(tmp_path, KILLING)}")


@pytest.mark.usefixtures("killing")
def test_a_daemon_goes_on_without_a_command_that_was_its_keeper(
    in_front: subprocess.Popen[str], machine: Machine, source: Path
) -> None:
    assert in_front.wait(PATIENCE_S) == -signal.SIGKILL
    machine.before = ()
    assert contents(machine.mnt) == contents(source)
    assert machine.stats()["keeper"]["pid"] is None
    machine.umount()


# As above: three deaths in a minute of the keeper's clock.
@pytest.mark.timed
def test_the_third_death_in_a_minute_ends_a_command_in_the_foreground(
    in_front: subprocess.Popen[str], machine: Machine
) -> None:
    for _ in range(3):
        machine.kill(signal.SIGKILL)
    assert in_front.wait(PATIENCE_S) == 1
    assert in_front.stderr is not None
    assert "the third in a minute; giving up: the mount is dead" in in_front.stderr.read()
    machine.umount()


def test_a_mistake_is_the_same_line_and_code_with_a_keeper_in_the_foreground(machine: Machine, source: Path) -> None:
    """One that only the daemon finds: another program has the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        nodes = ["--nodes", f"127.0.0.1:{port},127.0.0.1:1", "--node-rank", "0", "--insecure"]
        done, same = (
            machine.run("mount", word, "-f", *nodes, source, machine.mnt) for word in ("--keeper", "--no-keeper")
        )
    (said, same_said) = ([line for line in run.stderr.splitlines() if "redoxfs: " in line] for run in (done, same))
    assert (done.returncode, said) == (same.returncode, same_said)
    assert (done.returncode, len(said)) == (10, 1)
    assert "already in use" in said[0]
    assert machine.nothing_is_left()


def test_a_daemon_that_cannot_end_is_one_line_in_the_log(tmp_path: Path) -> None:
    """Two looks of the keeper must show it, since one that is just ending looks the same."""
    began_s = time.monotonic()
    command = [sys.executable, "-c", HALF_DEAD, str(KEEPER), str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert "is dead, but one of its threads cannot end" in process.stderr.readline()
        assert time.monotonic() - began_s >= 2 * LOOK_S
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_limit_of_open_files_that_is_too_low_is_said(machine: Machine, source: Path) -> None:
    command = ["bash", "-c", 'ulimit -n 24 && exec "$@"', "bash", *machine.command("mount", source, machine.mnt)]
    done = completed(command, env=machine.environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the limit of open files is 24, and redoxfs needs 64" in done.stderr
    assert machine.nothing_is_left()


@pytest.mark.parametrize("words", ["restart", "state save"])
def test_commands_wait_for_a_daemon_that_starts(machine: Machine, source: Path, stop: Path, words: str) -> None:
    """One at a time: a restart may end the daemon in the middle of what another asks of it."""
    machine.ok("mount", source, machine.mnt)
    pid = stopped_successor(machine, stop)
    saved = [machine.folder / "saved"] if "save" in words else []
    command = machine.command(*words.split(), machine.mnt, *saved)
    waiting = subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)
    os.kill(pid, signal.SIGCONT)
    _, said = waiting.communicate(timeout=2 * PATIENCE_S)
    assert waiting.returncode == 0, said
    assert machine.stats()["keeper"]["restarts"] == 1 + (words == "restart")


def test_modules_below_the_mountpoint_leave_no_keeper(machine: Machine, source: Path) -> None:
    machine.before = ("env", f"PYTHONPATH={source / 'train'}")
    assert str(source / "train") in machine.refused(4, "mount", "--keeper", source)
    done = machine.ok("mount", source)
    machine.before = ()
    assert f"{source}: Python looks for modules in {source}/train" in done.stderr
    assert machine.stats(source)["keeper"] is None
    machine.umount(source)


@pytest.mark.parametrize("words", [[], ["--keeper"], ["--no-keeper"]])
def test_a_mount_has_a_keeper_unless_it_shall_have_none(machine: Machine, source: Path, words: list[str]) -> None:
    machine.ok("mount", "--job", "one", *words, source, machine.mnt)
    has_one = "--no-keeper" not in words
    assert (machine.stats()["keeper"] is not None) == has_one
    # Another process of the job asks for the same if it asks for none in particular.
    again = machine.run("mount", "--job", "one", source, machine.mnt)
    assert again.returncode == (0 if has_one else 4)
