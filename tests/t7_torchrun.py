"""docs/torchrun.md on two nodes: SSH starts the script of the page on each, and torchrun or accelerate start the ranks.

A node is a network namespace with an address of its own, and a mount namespace, in which an sshd runs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from images import make_full_images
from netspaces import Network, why_not
from patience import completed

from redoxfs.linux.mount_table import parse_mountinfo

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[1] / "docs" / "torchrun.md").read_text()
TESTS = Path(__file__).parent

NODES = 2
RANKS = 4
EPOCHS = 2
CLASSES = {"n00000001": 40, "n00000002": 60, "n00000003": 100, "n00000004": 200}
SAMPLES = sum(CLASSES.values())

# The user's own script: it knows nothing of redoxfs.
TRAIN = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
import rank

here, me = Path(__file__).parent, int(os.environ["RANK"])
(here / f"node{{me}}").symlink_to(sys.argv[1])
rank.train(Path(sys.argv[1]), me, int(os.environ["WORLD_SIZE"]), {EPOCHS}, "env://", here / f"rank{{me}}.jsonl")
"""

SSHD = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
ListenAddress {ip}:22
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
SetEnv {environment}
"""

SSH = """
Host host{node}
HostName {ip}
"""

SSH_ALL = """
Host *
User root
IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


class Nodes:
    """Two nodes with an sshd each. The page's names and paths stand for theirs."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.ips = [address.partition(":")[0] for address in network.addresses]
        self.mnt = folder / "mnt"
        self.mnt.mkdir()
        self.source = make_full_images(folder / "sets" / "data", CLASSES)
        self.servers: list[subprocess.Popen[bytes]] = []
        self.runtimes: list[Path] = []
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
        config = "".join(SSH.format(node=node, ip=ip) for node, ip in enumerate(self.ips))
        (folder / "ssh_config").write_text(config + SSH_ALL.format(folder=folder))
        (folder / "bin").mkdir()
        for name, command in (
            # ssh reads no configuration below $HOME, but that of the password file's home.
            ("ssh", f"{shutil.which('ssh')} -F {folder}/ssh_config"),
            # A venv that takes its packages from another one lacks their commands.
            ("torchrun", f"{sys.executable} -m torch.distributed.run"),
            ("accelerate", f"{sys.executable} -m accelerate.commands.accelerate_cli"),
        ):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (folder / "bin" / name).chmod(0o755)

    @contextmanager
    def up(self) -> Iterator["Nodes"]:
        Path("/run/sshd").mkdir(exist_ok=True)
        with ExitStack() as ends:
            for node, ip in enumerate(self.ips):
                ends.enter_context(self._server(node, ip))
            yield self

    @contextmanager
    def _server(self, node: int, ip: str) -> Iterator[None]:
        own = self.folder / str(node)
        own.mkdir(mode=0o700)
        # The path of a socket must be short. A longer one would lie in the folder that both nodes have here.
        runtime = tempfile.mkdtemp()
        self.runtimes.append(Path(runtime))
        environment = dict.fromkeys(("XDG_CACHE_HOME", "XDG_STATE_HOME"), str(own)) | {"XDG_RUNTIME_DIR": runtime}
        environment |= {
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            # torchrun leaves folders there.
            "TMPDIR": runtime,
        }
        config = self.folder / f"sshd_config{node}"
        words = " ".join(f"{name}={value}" for name, value in environment.items())
        config.write_text(SSHD.format(folder=self.folder, ip=ip, environment=words))
        # A copy of another test's mount would outlive the original.
        start = f"umount --all --lazy --types fuse.redoxfs; exec /usr/sbin/sshd -D -e -f {config}"
        command = [*self.network.inside(node), "unshare", "--mount", "sh", "-c", start]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
            self.servers.append(server)
            try:
                assert server.stderr is not None
                assert any(b"Server listening" in line for line in server.stderr)
                yield
            finally:
                server.terminate()
                shutil.rmtree(runtime)

    def adapted(self, text: str) -> str:
        pairs = [("/data/set-packed", self.source), ("/mnt/set", self.mnt), ("8GiB", "1MiB")]
        for there, here in [*pairs, *((f"host{node}", ip) for node, ip in enumerate(self.ips))]:
            assert there in text
            text = text.replace(there, str(here))
        return text

    def hide_source(self, node: int) -> None:
        space = f"--mount=/proc/{self.servers[node].pid}/ns/mnt"
        subprocess.run(["nsenter", space, "mount", "-t", "tmpfs", "none", self.source.parent], check=True)

    def left(self) -> list[str]:
        """Mounts and sockets on the nodes."""
        found = [str(path) for folder in self.runtimes for path in folder.rglob("*.sock")]
        for server in self.servers:
            table = parse_mountinfo(Path(f"/proc/{server.pid}/mountinfo").read_bytes())
            found += [mount.mountpoint for mount in table if mount.ours and mount.mountpoint == str(self.mnt)]
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("sshd is not installed")
    with Network(NODES).up() as network, Nodes(tmp_path, network).up() as nodes:
        yield nodes


def blocks(first_line: str) -> list[str]:
    """The indented blocks of the page that begin so."""
    found = re.findall(rf"^    {re.escape(first_line)}.*\n(?:    .*\n)*", PAGE, re.MULTILINE)
    return ["".join(line[4:] for line in text.splitlines(keepends=True)) for text in found]


SCRIPTS = dict(zip(("torchrun", "accelerate"), blocks("# node.sh"), strict=True))
(EVERYWHERE,) = blocks('for rank in 0 1; do ssh "host$rank" "cd')


def by_ssh(nodes: Nodes, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on all nodes by the line of the page, from node 0."""
    # As the page says; the shell's own startup files may change the PATH that sshd sets.
    venv = f"export PATH={nodes.folder}/bin:{Path(sys.executable).parent}:$PATH\n"
    (nodes.folder / "node.sh").write_text(venv + script)
    (nodes.folder / "train.py").write_text(TRAIN)
    return completed(
        [*nodes.network.inside(0), "bash", "-c", EVERYWHERE],
        cwd=nodes.folder,
        env=os.environ | {"PATH": f"{nodes.folder}/bin:{os.environ['PATH']}"},
    )


@pytest.mark.parametrize("launcher", SCRIPTS)
def test_ranks_of_two_nodes_get_every_sample_once(nodes: Nodes, launcher: str) -> None:
    done = by_ssh(nodes, nodes.adapted(SCRIPTS[launcher]))
    check_once(nodes, done)
    assert not nodes.left()


def test_ranks_that_mount_by_themselves_share_the_mount_of_their_node(nodes: Nodes) -> None:
    (line,) = blocks("torchrun … --no-python")
    agent = f'torchrun --nnodes 2 --node-rank "$1" --nproc-per-node 2 --master-addr {nodes.ips[0]}'
    line = line.replace("torchrun …", agent).replace("/data/set-packed", str(nodes.source))
    done = by_ssh(nodes, line.replace("/mnt/set", str(nodes.mnt)) + f"redoxfs umount {nodes.mnt}\n")
    check_once(nodes, done)
    assert done.stderr.count("as another process of this machine asked for") == RANKS - NODES
    assert not nodes.left()


def check_once(nodes: Nodes, done: subprocess.CompletedProcess[str]) -> None:
    """Two mounts came up, and in each epoch all ranks together got each sample once, with its label."""
    outs = sorted(nodes.folder.glob("rank*.jsonl"))
    assert len(outs) == RANKS, done.stdout + done.stderr
    assert done.stderr.count("all nodes have answered") == NODES
    given = [[json.loads(line) for line in out.read_text().splitlines()] for out in outs]
    for epoch in range(EPOCHS):
        pairs = [pair for rank in given for pair in rank[epoch]]
        assert all(asked.split("/")[1] == served.split("/")[1] for asked, served in pairs)
        counts = Counter(served for _, served in pairs)
        assert counts == dict.fromkeys(counts, 1)
        assert len(counts) == SAMPLES


def test_no_rank_starts_if_a_node_cannot_mount(nodes: Nodes) -> None:
    script = nodes.adapted(SCRIPTS["torchrun"]).replace("--insecure", "--insecure --join-timeout 3")
    # Node 1 does not have the dataset.
    nodes.hide_source(1)
    done = by_ssh(nodes, script)
    assert not list(nodes.folder.glob("rank*.jsonl"))
    assert f"SOURCE {nodes.source}: no such directory" in done.stderr
    assert f"no answer within 3 s from {nodes.ips[1]}:7420" in done.stderr
    assert not nodes.left()
