"""A node of Kubernetes without a kubelet: its folders, the plugin, pods with sidecars, and calls as the kubelet makes.

All of it lives in a mount namespace of its own, which ends with its last process, so no mount can be left behind. The
sidecar runs as a user of its own without any capability, in a mount namespace that shows neither the pod's mount nor
the device.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import machine
import pytest
from forks import OWN_MOUNTS
from machine import OTHERS_CLEARED
from patience import PATIENCE_S, completed

from redoxfs.csi.v1 import csi_pb2 as pb
from redoxfs.linux.mount_table import Mount, parse_mountinfo, topmost_at

SIDECAR_UID = 65532

CAPABILITIES = pb.VolumeCapability
READERS = CAPABILITIES.AccessMode.MULTI_NODE_READER_ONLY
WRITER = CAPABILITIES.AccessMode.SINGLE_NODE_WRITER

DROP = [
    *("setpriv", f"--reuid={SIDECAR_UID}", f"--regid={SIDECAR_UID}", "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
]

# What a container of the sidecar lacks: the device, and the mount.
CONTAINED = 'mount --bind /dev/null "$0/dev/fuse"; while umount -l "$1" 2>/dev/null; do :; done; shift; exec "$@"'

READ = """
import os, sys
root, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def fail(error):
    raise error
walk = os.walk(root, onerror=fail)
paths = sorted(os.path.join(folder, name) for folder, _, names in walk for name in names if name.endswith(".jpg"))
wrong = 0
for path in paths[rank::ranks]:
    with open(path, "rb") as file:
        content = file.read()
    wrong += not content.startswith(b"cat " if "n02121808" in path else b"dog ")
    print(content.split()[1].decode())
sys.exit(wrong)
"""
"""Reads every sample, or those of one of several ranks; prints which ones came, and exits with the number of wrong
labels."""


class Node:
    """A node in ``root``; its plugin and its sidecars run in that root too.

    ``redoxfs`` is the command, ``more_environment`` the variables of the image.
    """

    def __init__(
        self,
        redoxfs: Sequence[str] = (sys.executable, "-m", "redoxfs"),
        root: Path = Path("/"),
        more_environment: Mapping[str, str] | None = None,
    ) -> None:
        # Readable by all, since the sidecar is another user.
        self.outer = Path(tempfile.mkdtemp(prefix="kube", dir=root / "tmp"))
        self.outer.chmod(0o755)
        self.root = root
        self.folder = Path("/") / self.outer.relative_to(root)
        self._redoxfs = redoxfs
        for name in ("kubelet/pods", "plugin", "home", "data"):
            (self.outer / name).mkdir(parents=True)
        os.chown(self.outer / "home", SIDECAR_UID, SIDECAR_UID)
        (self.outer / "home").chmod(0o700)
        for label, wnid, first in (("cat", "n02121808", 0), ("dog", "n02084071", 20)):
            (self.outer / "data/train" / wnid).mkdir(parents=True)
            for number in range(first, first + 20):
                path = self.outer / "data/train" / wnid / f"{label}{number}.jpg"
                path.write_bytes(f"{label} {number} ".encode() * 9)
        self._processes: list[subprocess.Popen[str]] = []
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{OTHERS_CLEARED} echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        if root != Path("/"):
            for name in ("proc", "sys", "dev"):
                subprocess.run(self.inside("mount", "--rbind", f"/{name}", root / name), check=True)
        # As mountPropagation Bidirectional: what the plugin mounts in its own namespace appears in the node's.
        for words in (["--bind", self.outer / "kubelet"], ["--make-shared"]):
            subprocess.run(self.inside("mount", *words, self.outer / "kubelet"), check=True)
        self.plugin: subprocess.Popen[str]
        self.environment = {**os.environ, **(more_environment or {})} | {
            "XDG_RUNTIME_DIR": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "home"),
            "XDG_STATE_HOME": str(self.folder / "home"),
            "HOME": str(self.folder / "home"),
        }

    # Processes

    def command(self, *arguments: str | Path, drop: Sequence[str] = ()) -> list[str]:
        """The words of a command of redoxfs in the node's root, run after those of ``drop``."""
        change = [] if self.root == Path("/") else ["chroot", str(self.root)]
        return [*change, *drop, *self._redoxfs, *map(str, arguments)]

    def inside(self, *words: str | Path) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *map(str, words)]

    def start(self, *words: str | Path, **keywords: Any) -> subprocess.Popen[str]:
        """Start a process in the node; it ends with the node at the latest."""
        started = subprocess.Popen(
            self.inside(*words),
            env=self.environment,
            text=True,
            stdout=keywords.pop("stdout", subprocess.PIPE),
            stderr=keywords.pop("stderr", subprocess.PIPE),
            **keywords,
        )
        self._processes.append(started)
        return started

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return completed(self.inside(*words), env=self.environment)

    def start_plugin(self, *more: str, within: Sequence[str] = ()) -> None:
        """Start the plugin, by a command that ``within`` begins; alone it has the node's pids (`hostPID`)."""
        self.plugin = self.start(
            *OWN_MOUNTS,
            *within,
            *self.command(
                "csi",
                *("--endpoint", f"unix://{self.folder}/plugin/csi.sock", "--node-id", "node-1"),
                *("--kubelet-dir", str(self.folder / "kubelet"), *more),
            ),
        )
        await_line(self.plugin, "listening at")

    def end(self, process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> int:
        process.send_signal(how)
        process.communicate(timeout=PATIENCE_S)
        return process.returncode

    def mounts(self) -> list[Mount]:
        """The redoxfs mounts of the node."""
        found = parse_mountinfo(Path(f"/proc/{self._holder.pid}/mountinfo").read_bytes())
        return [mount for mount in found if mount.ours and mount.mountpoint.startswith(str(self.outer))]

    def leftovers(self) -> list[str]:
        """What a node without volumes must not have."""
        kept = [mount.mountpoint for mount in self.mounts()]
        kept += [str(path) for path in (self.outer / "plugin/volumes").glob("*")]
        kept += [str(path) for path in self.outer.rglob("socket")]
        return kept + [str(path) for path in self.outer.glob("kubelet/pods/*/volumes/kubernetes.io~csi/*/mount")]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                # unshare does not end a child that has become another user.
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                for pid in (*map(int, children), process.pid):
                    os.kill(pid, signal.SIGKILL)
        # One may hang until another has ended.
        for process in self._processes:
            process.communicate()
        self._holder.communicate()
        shutil.rmtree(self.outer)

    # Calls

    def call(self, service: str, method: str, request: Any) -> Any:
        """The answer of the plugin. Raises grpc.RpcError."""
        response = getattr(pb, f"{method}Response", None)
        with grpc.insecure_channel(f"unix:{self.outer}/plugin/csi.sock") as channel:
            stub = channel.unary_unary(
                f"/csi.v1.{service}/{method}",
                request_serializer=type(request).SerializeToString,
                # Left as it is where redoxfs has no such method.
                response_deserializer=response and response.FromString,
            )
            return stub(request, timeout=PATIENCE_S, wait_for_ready=True)

    def refusal(self, service: str, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        """The code and the line of a call that must fail."""
        with pytest.raises(grpc.RpcError) as raised:
            self.call(service, method, request)
        error = raised.value
        assert isinstance(error, grpc.Call)
        return error.code(), error.details() or ""


@contextmanager
def running_node(within: Sequence[str] = ()) -> Iterator[Node]:
    """A node whose plugin runs, by a command that ``within`` begins."""
    node = Node()
    try:
        node.start_plugin(within=within)
        yield node
    finally:
        node.close()


OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "unchanged")
"""Begins the command of a container, to give it a pid namespace of its own, as those of pods have."""

WORK = """
import os, sys
root, opens = sys.argv[1], int(sys.argv[2])
for name in sys.stdin:
    path = os.path.join(root, name.rstrip("\\n"))
    got = []
    for _ in range(opens):
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            content = file.read()
        assert len(got) == 0 or len(content) == size, "another size"
        got.append(content.split()[1].decode())
    print(*got, flush=True)
"""
"""A worker: opens each file that it is told so many times in a row, and prints which samples came."""


class Pod:
    """A pod with a volume `data` of redoxfs and an emptyDir, whose containers are started one by one."""

    def __init__(self, node: Node, empty_dir: str = "redoxfs") -> None:
        self.node = node
        self.uid = str(uuid.uuid4())
        volumes = node.outer / "kubelet/pods" / self.uid / "volumes"
        self.empty_dir = volumes / "kubernetes.io~empty-dir" / empty_dir
        self.empty_dir.mkdir(parents=True)
        self.empty_dir.chmod(0o777)
        (volumes / "kubernetes.io~csi/data").mkdir(parents=True)
        self.outer_target = volumes / "kubernetes.io~csi/data/mount"
        self.target = self._inner(self.outer_target)
        self.socket = self._inner(self.empty_dir / "socket")

    def _inner(self, path: Path) -> Path:
        return self.node.folder / path.relative_to(self.node.outer)

    def request(self, mode: Any = READERS, *, readonly: Any = True, **attributes: str) -> pb.NodePublishVolumeRequest:
        """As the kubelet publishes; underscores in the names of attributes stand for dashes."""
        context = {
            "csi.storage.k8s.io/pod.uid": self.uid,
            "csi.storage.k8s.io/pod.name": "train",
            "csi.storage.k8s.io/pod.namespace": "default",
            "csi.storage.k8s.io/serviceAccount.name": "default",
            "csi.storage.k8s.io/ephemeral": "true",
        }
        return pb.NodePublishVolumeRequest(
            volume_id=f"csi-{self.uid}",
            target_path=str(self.target),
            volume_capability=CAPABILITIES(
                mount=CAPABILITIES.MountVolume(), access_mode=CAPABILITIES.AccessMode(mode=mode)
            ),
            readonly=readonly,
            volume_context=context | {name.replace("_", "-"): value for name, value in attributes.items()},
        )

    def publish(self, **attributes: str) -> None:
        self.node.call("Node", "NodePublishVolume", self.request(**attributes))

    def unpublish(self) -> None:
        request = pb.NodeUnpublishVolumeRequest(volume_id=f"csi-{self.uid}", target_path=str(self.target))
        self.node.call("Node", "NodeUnpublishVolume", request)

    def end(self) -> None:
        """Unpublish. Nothing is left then of this pod and others."""
        self.unpublish()
        assert not self.node.leftovers()

    def sidecar(self, *options: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start the sidecar, by a command that ``within`` begins."""
        words = ("serve", "--fd-socket", str(self.socket), *options, str(self.node.folder / "data"))
        return self.node.start(
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINED),
            *(str(self.node.root), str(self.outer_target), *within, *self.node.command(*words, drop=DROP)),
        )

    def serving(self, *options: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start the sidecar, and return when it serves."""
        started = self.sidecar(*options, within=within)
        await_line(started, "is served to the mount that came from")
        return started

    def probe(self) -> int:
        """The exit code of the startup probe."""
        return self.node.run(*self.node.command("status", self.socket, drop=DROP)).returncode

    def reader(self, rank: int = 0, ranks: int = 1) -> subprocess.Popen[str]:
        """A container that reads samples; its mount namespace has the mount as it is when it starts."""
        words = (sys.executable, "-c", READ, self.outer_target, str(rank), str(ranks))
        return self.node.start("unshare", "--mount", "--propagation", "private", *words)

    def worker(self, opens: int) -> subprocess.Popen[str]:
        """A container of its own pids that reads what it is told, each file so many times (`WORK`)."""
        words = (*OWN_PIDS, sys.executable, "-c", WORK, self.outer_target, str(opens))
        return self.node.start("unshare", "--mount", "--propagation", "private", *words, stdin=subprocess.PIPE)

    def samples(self, rank: int = 0, ranks: int = 1) -> list[int]:
        """The samples that one container reads. Every label is right."""
        reading = self.reader(rank, ranks)
        out, err = reading.communicate(timeout=PATIENCE_S)
        assert reading.returncode == 0, err
        return sorted(map(int, out.split()))

    def error(self) -> str:
        """The error of a new container that reads."""
        reading = self.reader()
        _, err = reading.communicate(timeout=PATIENCE_S)
        return err.strip().rpartition("\n")[2]

    def top(self) -> Mount | None:
        return topmost_at(self.outer_target, self.node.mounts())

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in (self.node.outer / "plugin/volumes").glob("*.json")]


def await_line(process: subprocess.Popen[str], words: str) -> str:
    """Wait for a line of stderr with these words. What comes later stays in the pipe."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in iter(process.stderr.readline, ""):
        lines.append(line)
        if words in line:
            return line
    raise AssertionError(f"ended with {process.wait(PATIENCE_S)}: {''.join(lines)}")


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Whether a process ends in time."""
    return machine.has_ended(os.pidfd_open(process.pid))


def why_not(tools: Sequence[str] = ("unshare", "nsenter", "setpriv")) -> str | None:
    """Why no node can be made here; None if one can."""
    if os.geteuid() != 0:
        return "mount namespaces need root"
    missing = [name for name in tools if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None
