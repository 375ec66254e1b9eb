"""A real Slurm on one machine: a controller, and nodes that are as separate as machines are.

Each node has namespaces of its own: a network with its own address, a host name, /tmp, /run, and processes. So the
commands of docs/slurm.md run unchanged: a path such as /tmp/set-7 is another folder on every node, names resolve, and
a node can lose its power. All nodes share `Slurm.home`, as on a cluster. Nothing of /etc is changed or used: hosts,
users and Slurm's configuration are files of the test, which the nodes see under the usual names.

When the test process ends, however it ends, the first process of each node reads the end of its input and exits. The
kernel then kills all processes of the node and removes its mounts.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from netspaces import Network
from patience import PATIENCE_S, completed, until

import redoxfs
from redoxfs.linux.mount_table import parse_mountinfo

USER, UID = "ada", 4242
"""The user who submits jobs. Only the nodes know it."""

HEAD = "head"

PREFIX = "/opt/redoxfs"
"""Where docs/slurm.md installs redoxfs, on all nodes."""

CODE, PYTHON = "/opt/code", "/opt/python"
"""The repository, and the Python environment of this process, on all nodes."""

PROLOG_FOLDER = "/run/redoxfs"

FREEZER = Path("/sys/fs/cgroup/freezer")
"""The hierarchy of cgroups that proctrack/cgroup uses in version 1."""

# The first process of a node: makes its namespaces look like a machine, and runs until its input ends. Its arguments:
# the cluster's folder, the node's name, its group in the freezer or "", folders to replace by empty ones, separated by
# colons, and pairs of what to have below them: where it is on the machine, and where on the node. It is bash, which
# waits for orphans, as the first process must.
_INIT = r"""
set -eu
folder=$1 name=$2 group=$3 IFS=:
tops=$4
shift 4
mount --make-rprivate /
# Copies of the machine's mounts of redoxfs would keep their daemons.
grep " fuse.redoxfs " /proc/self/mounts | while IFS=" " read -r _ path _; do umount --lazy "$(printf %b "$path")"; done
hostname "$name"
if [ "$group" ]; then mount --bind "$group" "${group%/*}"; fi
new=$folder/nodes/$name
for top in $tops; do
    mount -t tmpfs -o mode=1777 tmpfs "$new"
    for ((at = 1; at < $#; at += 2)); do
        path=${!at} next=$((at + 1))
        case ${!next} in "$top"/*)
            own=$new${!next#"$top"}
            mkdir -p "$own"
            mount --bind "$path" "$own" ;;
        esac
    done
    mount --move "$new" "$top"
done
mount -t tmpfs -o mode=755 tmpfs /run
mount -t proc proc /proc
# Only root may open it on some machines.
mknod -m 666 /opt/fuse c 10 229
mount --bind /opt/fuse /dev/fuse
mkdir -p /opt/redoxfs
mount --bind "$folder/redoxfs" /opt/redoxfs
for file in hosts passwd; do mount --bind "$folder/$file" "/etc/$file"; done
echo up
read -r _ || exit 0
"""

_CONF = """\
ClusterName=test
SlurmctldHost={head}({head_address})
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerParameters=batch_sched_delay=0
KillWait=20
SlurmdTimeout=30
MessageTimeout=100
UnkillableStepTimeout=30
{more}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""

_CONTAINER_CONF = "AutoBasePath=true\nBasePath=/run/jobs\n"

_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. ``inside`` is put before a command to run it there as root; ``init`` is its first process."""

    name: str
    init: int
    inside: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The node's own view of the filesystem."""
        return Path(f"/proc/{self.init}/root")

    def processes(self) -> dict[int, list[str]]:
        """The words of every process of the node, by its pid outside."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns/pid") == own:
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
            except OSError:
                continue
        return found

    def daemons(self) -> dict[int, list[str]]:
        """Processes of redoxfs: commands that mount, daemons and keepers."""
        return {
            pid: words
            for pid, words in self.processes().items()
            if words[1:4] == ["-m", "redoxfs", "mount"] or "redoxfs.launch.successor" in words
        }

    def files(self) -> set[str]:
        """What lies in the node's own folders, and in the one that the Prolog makes once for all jobs."""
        folders = [folder for folder in ("/tmp", "/run", PROLOG_FOLDER) if (self.root / folder[1:]).is_dir()]
        files = {f"{folder}/{path.name}" for folder in folders for path in (self.root / folder[1:]).iterdir()}
        return files - {PROLOG_FOLDER}

    def mounts(self) -> list[str]:
        """Mountpoints of redoxfs."""
        table = Path(f"/proc/{self.init}/mountinfo").read_bytes()
        return [mount.mountpoint for mount in parse_mountinfo(table) if mount.ours]


class Slurm:
    """Nodes n1, n2, … and a head node, where users submit jobs."""

    def __init__(self, folder: Path, nodes: dict[str, Node]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.nodes = nodes
        self._own_files: set[str] = set()

    @property
    def workers(self) -> list[Node]:
        return [node for name, node in self.nodes.items() if name != HEAD]

    def environment(self) -> dict[str, str]:
        path = f"{PREFIX}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": str(self.home), "USER": USER, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *words: str | Path, root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command at the head node as the user, in their home."""
        return completed(self.words(*words, root=root), env=self.environment())

    def words(self, *words: str | Path, root: bool = False, node: str = HEAD) -> list[str]:
        user = [] if root else ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        return [*self.nodes[node].inside, *user, "env", "-C", str(self.home), *map(str, words)]

    def ok(self, *words: str | Path, root: bool = False) -> str:
        done = self.command(*words, root=root)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: str | Path) -> str:
        """`sbatch` a script; returns the job's id."""
        return self.ok("sbatch", "--parsable", *words).strip()

    def state(self, job: str) -> str:
        """Slurm's word for the job's state, such as RUNNING."""
        return self.ok("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def start(self) -> None:
        self._run_in(HEAD, *_munged(self.folder))
        self._run_in(HEAD, "slurmctld")
        for node in self.workers:
            self._run_in(node.name, "slurmd")
        for node in self.workers:
            self.until_idle(node.name)
            self._own_files |= node.files()

    def until_idle(self, name: str) -> None:
        self.until(lambda: self.node_state(name) == "IDLE", f"{name} is idle")

    def start_slurmd(self, name: str) -> None:
        self._run_in(name, "slurmd")
        self.until_idle(name)

    def node_state(self, name: str) -> str:
        return self.ok("sinfo", "--noheader", f"--nodes={name}", "--format=%T").strip().upper().rstrip("*")

    def kill_slurmd(self, name: str) -> None:
        """SIGKILL, as by the kernel when memory runs out. Its job goes on, as slurmstepd is another process."""
        [pid] = [pid for pid, words in self.nodes[name].processes().items() if words[0].endswith("slurmd")]
        os.kill(pid, signal.SIGKILL)

    def power_off(self, name: str) -> None:
        """Kill all of a node at once."""
        node = self.nodes.pop(name)
        os.kill(node.init, signal.SIGKILL)

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Ask again and again until it holds: Slurm has nothing to wait on."""
        until(
            holds,
            lambda: f"{what}; left: {self.left()}\n{self.log()}",
            patience_s=4 * PATIENCE_S,
        )

    def until_ended(self, job: str) -> str:
        """The job's last state, once all its nodes have ended it."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self.until(lambda: self.state(job) in over, f"job {job} ends")
        return self.state(job)

    def end_jobs(self) -> None:
        """Cancel what still runs. A test that fails leaves its job, and the next one would meet its daemons."""
        if jobs := self.ok("squeue", "--noheader", "--format=%A").split():
            self.ok("scancel", *jobs, root=True)
            self.until(lambda: not self.ok("squeue", "--noheader", "--format=%A"), "the cancelled jobs end")

    def left(self) -> list[str]:
        """Mounts, processes of jobs, and files below /tmp and /run of all nodes that a job has left behind."""
        found = []
        for node in self.workers:
            found += [f"{node.name}: mount {path}" for path in node.mounts()]
            for words in node.processes().values():
                if "slurmd" not in words[0] and words[:2] != ["bash", "-c"]:
                    found.append(f"{node.name}: process {' '.join(words)}")
            found += [f"{node.name}: file {path}" for path in sorted(node.files() - self._own_files)]
        return found

    def until_nothing_is_left(self) -> None:
        self.until(lambda: not self.left(), "nothing is left")

    def log(self) -> str:
        """The ends of the logs of Slurm's daemons, and of the output of jobs."""
        # The controller's first: it says why a job ended.
        logs = sorted((self.folder / "log").iterdir(), reverse=True)
        files = [*logs, *sorted(self.home.glob("*.out"))]
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}\n" for path in files)

    def _run_in(self, name: str, *words: str) -> None:
        subprocess.run([*self.nodes[name].inside, *words], env=self.environment(), check=True, timeout=PATIENCE_S)


def _kept(folder: Path) -> dict[str, str]:
    """What a node needs of the machine, by its path there: the cluster's own folder, redoxfs, and its Python."""
    own = {path: path for path in (str(folder), sys.base_prefix)}
    return {**own, CODE: str(Path(redoxfs.__file__).parents[1]), PYTHON: sys.prefix}


def _closed_to_others(path: str) -> list[str]:
    return [str(each) for each in Path(path).parents if each.exists() and not each.stat().st_mode & 0o001]


@contextmanager
def slurm_of(nodes: int, *, proctrack: str = "linuxproc", more: str = "") -> Iterator[Slurm]:
    """A running cluster, of which nothing is left at the end.

    ``more`` is added to slurm.conf, with the cluster's folder for /etc/slurm. With job_container/tmpfs in it, call this
    in `one_processor`.
    """
    # Not in /tmp, as jobs may have one of their own.
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/var/tmp"))
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, folder)
        network = ends.enter_context(Network(nodes + 1).up())
        names = [f"n{number + 1}" for number in range(nodes)] + [HEAD]
        addresses = dict(zip(names, (address.partition(":")[0] for address in network.addresses), strict=True))
        _write_files(folder, addresses, proctrack, more)
        kept = _kept(folder)
        tops = sorted({"/tmp", "/opt", *(top for path in kept for top in _closed_to_others(path))})
        started = {}
        for number, name in enumerate(names):
            group = (
                ends.enter_context(_freezer_group(f"{folder.name}-{name}"))
                if proctrack == "cgroup" and name != HEAD
                else ""
            )
            pairs = [path for own, source in kept.items() for path in (source, own)]
            words = ["bash", "-c", _INIT, "bash", folder, name, group, ":".join(tops), *pairs]
            unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
            init = subprocess.Popen(
                [*network.inside(number), *unshare, *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.callback(_power_off, init)
            assert init.stdout is not None
            assert init.stdout.readline() == "up\n"
            [first] = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
            spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
            started[name] = Node(name, int(first), ("nsenter", f"--target={first}", *spaces, "--"))
        slurm = Slurm(folder, started)
        slurm.start()
        yield slurm


@contextmanager
def one_processor() -> Iterator[None]:
    """What starts here keeps to one processor.

    Linux 6.18 numbers the namespaces that each processor makes from a store of its own, and binds none whose number is
    below that of the namespace it is bound in. So on several processors job_container/tmpfs fails at random.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def _freezer_group(name: str) -> Iterator[str]:
    """A group that the node sees as the root of the hierarchy, and its removal with the groups in it."""
    group = FREEZER / f"redoxfs-test-{name}"
    group.mkdir()
    try:
        yield str(group)
    finally:
        for path, _, _ in os.walk(group, topdown=False):
            Path(path).rmdir()


def _power_off(init: subprocess.Popen[str]) -> None:
    with init:
        pass


def _munged(folder: Path) -> list[str]:
    own = folder / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return ["munged", *(f"--{option}={own / name}" for option, name in files.items())]


def _write_files(folder: Path, addresses: dict[str, str], proctrack: str, more: str) -> None:
    folder.chmod(0o755)
    for name in (
        "nodes",
        "log",
        "state",
        "munge",
        "home",
        "redoxfs",
        "redoxfs/bin",
        *(f"nodes/{name}" for name in addresses),
    ):
        (folder / name).mkdir()
    os.chown(folder / "home", UID, UID)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    lines = [f"{address} {name}\n" for name, address in addresses.items()]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
    user = f"{USER}:x:{UID}:{UID}::{folder / 'home'}:/bin/bash\n"
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + user)
    workers = {name: address for name, address in addresses.items() if name != HEAD}
    text = _CONF.format(
        folder=folder,
        head=HEAD,
        head_address=addresses[HEAD],
        proctrack=proctrack,
        more=more.replace("/etc/slurm", str(folder)),
        nodes="\n".join(
            f"NodeName={name} NodeAddr={address} CPUs=8 RealMemory=4000" for name, address in workers.items()
        ),
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text(_CGROUP_CONF)
    (folder / "job_container.conf").write_text(_CONTAINER_CONF)
    for name, words in (("python", ""), ("redoxfs", "-m redoxfs ")):
        command = folder / "redoxfs" / "bin" / name
        command.write_text(f'#!/bin/sh\nPYTHONPATH={CODE} exec {PYTHON}/bin/{Path(sys.executable).name} {words}"$@"\n')
        command.chmod(0o755)
