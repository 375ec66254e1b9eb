"""docs/ray.md on a real Ray cluster of three nodes: labels, every sample once, and what is left after each kill."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from images import make_full_images
from patience import PATIENCE_S, completed, until
from ports import reserve

from redoxfs.cli.arguments import parse
from redoxfs.linux.mount_table import parse_mountinfo

pytest.importorskip("ray")

import redoxfs.ray

PAGE = Path(__file__).parents[1] / "docs" / "ray.md"
TESTS = Path(__file__).parent

NODES = 3
EPOCHS = 2
CLASSES = {"n00000001": 30, "n00000002": 60, "n00000003": 90, "n00000004": 120}
SAMPLES = sum(CLASSES.values())
MEMORY = "1MiB"

# A driver that mounts, and then answers each line with the status of its nodes, until the end of its input.
DRIVER = """
import dataclasses, json, os, sys

# Ray prints the lines of actors from a thread, also in the middle of an answer.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import redoxfs.ray

def tell(what):
    print(json.dumps(what), file=answers, flush=True)

try:
    mounted = redoxfs.ray.mount(sys.argv[1], sys.argv[2], **{"memory": "1MiB", **json.loads(sys.argv[3])})
except redoxfs.ray.NodeError as error:
    tell({"error": str(error), "code": error.code})
    sys.exit(1)
with mounted:
    tell({"addresses": mounted.addresses})
    for line in sys.stdin:
        tell([dataclasses.asdict(each) for each in mounted.status()])
tell("ended")
"""

READ_ALL = """
import json, sys
from pathlib import Path
from images import path_in

root = Path(sys.argv[1])
pairs = []
for path in sorted(root.glob("train/*/*")):
    try:
        pairs.append([str(path.relative_to(root)), path_in(path.read_bytes())])
    except OSError as failure:
        pairs.append([str(path.relative_to(root)), failure.errno])
print(json.dumps(pairs))
"""


class Cluster:
    """Three Ray nodes. ``mnt`` is the mountpoint; each node sees its own mount there, and all see ``source``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = make_full_images(folder / "sets" / "data", CLASSES)
        self.mnt = folder / "made" / "mnt"
        self.environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_metrics_collection": "0",
            # The machine may do other things. So a node that answers late is not dead, a process that starts slowly is
            # waited for, and Ray's are as good as others: by default they have a thirtieth of a processor's time.
            "RAY_health_check_timeout_ms": str(PATIENCE_S * 1000),
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(PATIENCE_S),
            "RAY_worker_register_timeout_seconds": str(PATIENCE_S),
            "RAY_worker_niceness": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "HOME": str(folder),
            "PYTHONPATH": str(TESTS),
            "PYTHONWARNINGS": "default",
        }
        self.helper = subprocess.Popen(
            [sys.executable, TESTS / "ray_nodes.py", folder, str(NODES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            text=True,
        )
        told = json.loads(self._line())
        self.environment |= {"RAY_ADDRESS": told["address"], "XDG_RUNTIME_DIR": str(folder / "0")}
        self.namespaces = [f"/proc/{self.helper.pid}/fd/{fd}" for fd in told["namespaces"]]

    def _line(self) -> str:
        assert self.helper.stdout is not None
        return self.helper.stdout.readline()

    def remove(self, node: int) -> None:
        assert self.helper.stdin is not None
        self.helper.stdin.write(f"remove {node}\n")
        self.helper.stdin.flush()
        assert json.loads(self._line()) == {"removed": node}

    def close(self) -> None:
        self.helper.communicate(timeout=PATIENCE_S)
        assert not self.processes()

    def inside(self, node: int, *words: str | Path) -> list[str]:
        return ["nsenter", f"--mount={self.namespaces[node]}", *map(str, words)]

    def run(self, node: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return completed(self.inside(node, *words), env=self.environment, cwd=self.folder)

    def read_all(self, node: int) -> list[tuple[str, str | int]]:
        done = self.run(node, sys.executable, "-c", READ_ALL, self.mnt)
        assert done.returncode == 0, done.stderr
        return [(asked, served) for asked, served in json.loads(done.stdout)]

    def mounts(self, node: int) -> list[str]:
        table = parse_mountinfo(self.run(node, "cat", "/proc/self/mountinfo").stdout.encode())
        return [mount.mountpoint for mount in table if mount.ours and mount.mountpoint.startswith(str(self.folder))]

    def processes(self, name: str = "redoxfs", node: int | None = None) -> list[int]:
        """Processes with ``name`` in their words, of a node, or of all with this cluster's folder in their words."""
        space = None if node is None else os.stat(self.namespaces[node]).st_ino
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes()
                here = os.stat(process / "ns" / "mnt").st_ino
            except OSError:
                continue
            ours = os.fsencode(self.folder) in words if space is None else here == space
            if ours and name.encode() in words:
                found.append(int(process.name))
        return sorted(pid for pid in found if pid != self.helper.pid and pid != os.getpid())

    def supervisors(self) -> list[int]:
        return self.processes("redoxfs.launch.supervisor")

    def actor(self, node: int) -> int:
        (pid,) = self.processes("ray::RedoxfsNode", node)
        return pid

    def _processes_of_redoxfs(self, node: int) -> list[int]:
        names = ("redoxfs.launch", "redoxfs\0mount", "ray::RedoxfsNode")
        return [pid for name in names for pid in self.processes(name, node)]

    def check_nothing_is_left(self, *nodes: int) -> None:
        # Ray may end a process a moment after it has said so.
        until(lambda: not any(map(self._processes_of_redoxfs, nodes or range(NODES))), "a process is left")
        for node in nodes or range(NODES):
            assert not self.mounts(node)
            assert not [*(self.folder / str(node)).rglob("*.sock"), *(self.folder / str(node)).rglob("*.owner")]

    def check_all_nodes_run(self) -> None:
        """A node that Ray takes for dead ends. Ray would wait for its return in each test that comes."""
        for node in range(NODES):
            assert self.processes("raylet/raylet", node), f"Ray node {node} has ended"

    @contextmanager
    def driver(self, **options: Any) -> Iterator["Driver"]:
        driver = Driver(self, options)
        try:
            driver.first = driver.hear()
            yield driver
        finally:
            driver.process.kill()
            driver.process.communicate()


class Driver:
    """A process that mounts with ``options``. ``first`` is what came of that."""

    def __init__(self, cluster: Cluster, options: dict[str, Any]) -> None:
        words = (sys.executable, "-c", DRIVER, cluster.source, cluster.mnt, json.dumps(options))
        self.process = subprocess.Popen(
            cluster.inside(0, *words),
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first: Any = None

    def hear(self) -> Any:
        """The driver's next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)

    def status(self) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def states(self) -> list[str]:
        return [each["state"] for each in self.status()]

    def pid(self, node: int) -> int:
        return int(self.status()[node]["stats"]["pid"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        assert self.hear() == "ended"
        assert self.process.wait(PATIENCE_S) == 0


@contextmanager
def ended(pids: Sequence[int]) -> Iterator[None]:
    """At the end of the block, wait until these processes have ended."""
    ends = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for end in ends:
            waiting = select.poll()
            waiting.register(end, select.POLLIN)
            assert waiting.poll(PATIENCE_S * 1000), "a process has not ended"
    finally:
        for end in ends:
            os.close(end)


def check_once(pairs: Sequence[tuple[str, str | int]]) -> None:
    assert all(asked.split("/")[1] == str(served).split("/")[1] for asked, served in pairs)
    assert Counter(Counter(served for _, served in pairs).values()) == {1: SAMPLES}


def labels_right(pairs: Sequence[tuple[str, str | int]]) -> bool:
    return len(pairs) == SAMPLES and all(
        isinstance(served, str) and asked.split("/")[1] == served.split("/")[1] for asked, served in pairs
    )


class SharedCluster:
    """The cluster that tests use one after the other, until one leaves something in it. ``ends`` ends it."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        self._cluster: Cluster | None = None

    def clean(self) -> Cluster:
        """The cluster. AssertionError: something is left in it; the next test gets a new one."""
        if self._cluster is None:
            self._cluster = self._ends.enter_context(new_cluster())
        try:
            self._cluster.check_nothing_is_left()
            self._cluster.check_all_nodes_run()
        except AssertionError:
            self._cluster = None
            self._ends.close()
            raise
        return self._cluster


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedCluster]:
    with ExitStack() as ends:
        yield SharedCluster(ends)


@pytest.fixture
def cluster(shared: SharedCluster) -> Cluster:
    return shared.clean()


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    # A short path: below it are sockets.
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        cluster = Cluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


def block(first_line: str) -> str:
    """The indented block of the page that begins with this line."""
    found = re.search(rf"^    {re.escape(first_line)}\n(?:(?:    .*)?\n)*", PAGE.read_text(), re.MULTILINE)
    assert found is not None, first_line
    return "".join(line[4:] or "\n" for line in found[0].splitlines(keepends=True)).rstrip() + "\n"


def adapted(text: str, cluster: Cluster) -> str:
    """A block with the paths of this cluster."""
    for there, here in (("/data/set-packed", cluster.source), ("/mnt/set", cluster.mnt), ("8GiB", MEMORY)):
        assert there in text
        text = text.replace(there, str(here))
    return text


def test_ray_train_gets_every_sample_once_with_the_right_label(cluster: Cluster) -> None:
    job = cluster.folder / "job"
    job.mkdir()
    (job / "job.py").write_text(adapted(block("# job.py"), cluster))
    (job / "train.py").write_text(
        f"import ray_train\n\n\ndef train_loop(config):\n    ray_train.train_loop({{**config, 'out': {str(job)!r}}})\n"
    )
    done = cluster.run(0, *shlex.split(f"{sys.executable} {job}/job.py"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    ranks = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(job.glob("rank*.jsonl"))]
    assert len(ranks) == NODES
    for epoch in range(EPOCHS):
        check_once([(asked, served) for rank in ranks for asked, served in rank[epoch]])
    cluster.check_nothing_is_left()


def test_cluster_up_status_and_down_work_on_ray(cluster: Cluster) -> None:
    _, up, status, _, down = block(
        "export RAY_ADDRESS=10.0.0.1:6379    # on a node of the cluster, this is not needed"
    ).splitlines()

    def redoxfs(line: str, node: int) -> subprocess.CompletedProcess[str]:
        words = shlex.split(line.replace("/mnt/set", str(cluster.mnt)))
        return cluster.run(node, sys.executable, "-m", *words)

    done = redoxfs(adapted(up, cluster), 0)
    assert done.returncode == 0, done.stderr
    assert f"3 Ray nodes serve {cluster.source} at {cluster.mnt}" in done.stderr
    again = redoxfs(adapted(up, cluster), 1)
    assert (again.returncode, again.stderr.count("\n")) == (4, 1), again.stderr
    for node in range(NODES):
        check_once(cluster.read_all(node))
    told = redoxfs(f"{status} --json", 2)
    assert json.loads(told.stdout)["sum"]["opens"] == NODES * SAMPLES, told.stderr
    with ended(cluster.supervisors()):
        done = redoxfs(down, 1)
    assert done.returncode == 0, done.stderr
    cluster.check_nothing_is_left()
    missing = redoxfs(down, 1)
    assert (missing.returncode, missing.stderr.count("\n")) == (4, 1), missing.stderr


def test_cluster_up_in_the_foreground_ends_the_mount_with_ctrl_c(cluster: Cluster) -> None:
    words = ("cluster", "up", "--ray", "-f", "--memory", MEMORY, "--resource", "disk", cluster.source, cluster.mnt)
    with subprocess.Popen(
        cluster.inside(0, sys.executable, "-m", "redoxfs", *words),
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            assert command.stderr is not None
            assert any(line == f"2 Ray nodes serve {cluster.source} at {cluster.mnt}\n" for line in command.stderr)
            assert command.stderr.readline() == "to end them: Ctrl-C\n"
            assert [len(cluster.mounts(node)) for node in range(NODES)] == [0, 1, 1]
            with ended(cluster.supervisors()):
                command.send_signal(signal.SIGINT)
            assert command.wait(PATIENCE_S) == 0
        finally:
            command.kill()
    cluster.check_nothing_is_left()


def test_an_address_without_a_cluster_is_one_line(tmp_path: Path) -> None:
    (port,) = reserve(1)
    done = completed(
        [sys.executable, "-m", "redoxfs", "cluster", "status", "--ray", tmp_path],
        env=os.environ | {"RAY_ADDRESS": f"127.0.0.1:{port}"},
    )
    assert done.returncode == 2
    assert done.stderr == f"redoxfs: no Ray cluster answers at RAY_ADDRESS=127.0.0.1:{port}\n"


def test_nothing_is_left_of_a_mount_whose_driver_is_killed(cluster: Cluster) -> None:
    with cluster.driver() as driver:
        assert driver.states() == ["serving"] * NODES
        pids = [driver.pid(node) for node in range(NODES)]
        actors = [cluster.actor(node) for node in range(NODES)]
        with ended([*pids, *cluster.supervisors(), *actors]):
            driver.process.kill()
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("who", ["actor", "daemon", "supervisor"])
def test_ray_mounts_again_where_a_process_was_killed(cluster: Cluster, who: str) -> None:
    with cluster.driver() as driver:
        pid = driver.pid(1)
        supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        actor = cluster.actor(1)
        with ended([pid, supervisor, actor]):
            os.kill({"actor": actor, "daemon": pid, "supervisor": supervisor}[who], signal.SIGKILL)
        for node in (0, 2):
            assert labels_right(cluster.read_all(node))
        until(lambda: driver.status()[1]["state"] not in ("lost", "mounting"), "the node is mounted again")
        status = driver.status()
        assert [each["state"] for each in status] == ["serving"] * NODES, status
        assert status[1]["stats"]["pid"] != pid
        assert labels_right(cluster.read_all(1))
        driver.end()
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("who", ["actor", "daemon"])
def test_without_restarts_a_killed_mount_leaves_nothing_on_its_node(cluster: Cluster, who: str) -> None:
    with cluster.driver(max_restarts=0) as driver:
        pid, actor = driver.pid(1), cluster.actor(1)
        with ended(cluster.processes("redoxfs.launch", 1)):
            os.kill(actor if who == "actor" else pid, signal.SIGKILL)
        assert not cluster.mounts(1)
        node = driver.status()[1]
        if who == "daemon":
            assert (node["state"], node["reason"]) == ("failed", "its daemon was killed (SIGKILL)")
        else:
            assert node["state"] == "lost"
        for number in (0, 2):
            assert labels_right(cluster.read_all(number))
        driver.end()
    cluster.check_nothing_is_left()


@pytest.mark.parametrize(
    ("what", "reason", "code"),
    [
        ("source", r"SOURCE \S+: no such directory", 3),
        ("mountpoint", r"\S+: a live redoxfs mount is there already.*", 4),
        ("memory", r".* of memory is too little for this dataset.*", 5),
    ],
)
def test_a_node_that_cannot_mount_takes_all_down_and_is_named(
    cluster: Cluster, what: str, reason: str, code: int
) -> None:
    redoxfs = f"XDG_RUNTIME_DIR={cluster.folder}/1 {sys.executable} -m redoxfs"
    do, undo, options = {
        "source": (f"mount -t tmpfs none {cluster.source.parent}", f"umount {cluster.source.parent}", {}),
        "mountpoint": (
            f"mkdir -p {cluster.mnt} && {redoxfs} mount {cluster.source} {cluster.mnt} --memory {MEMORY}",
            f"{redoxfs} umount {cluster.mnt}",
            {},
        ),
        "memory": ("true", "true", {"memory": "1KiB"}),
    }[what]
    done = cluster.run(1, "sh", "-c", do)
    assert done.returncode == 0, done.stderr
    try:
        with cluster.driver(**options) as driver:
            assert re.fullmatch(rf"Ray node 127\.0\.1\.[123]: {reason}", driver.first["error"]), driver.first
            assert driver.first["code"] == code
            if what != "memory":
                assert "127.0.1.2" in driver.first["error"]
        cluster.check_nothing_is_left(0, 2)
    finally:
        cluster.run(1, "sh", "-c", undo)
    cluster.check_nothing_is_left()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("mount('/a', '/b', nodes='auto')", "takes no nodes="),
        ("mount('/a', '/b', no_such=1)", "unrecognized arguments: --no-such=1"),
        ("mount('data', '/b')", "source data: the nodes have no common working directory"),
        ("mount('/a', '/b', cache='c')", "cache c: the nodes have no common working directory"),
        ("mount('/a', '/b', catalog='c')", "catalog c: the nodes have no common working directory"),
        ("mount('s3://b/a')", "source s3://b/a: cannot be mounted over itself; give a mountpoint"),
        ("mount('s3://user:key@b/a', '/b')", "s3://…: an address must not contain a user, a key or a signature"),
        ("mount('/a', 's3://b/a')", "mountpoint s3://b/a: the nodes have no common working directory"),
        ("mount('s3://b/a', '/b', resource='none')", "no Ray node has the resource none"),
        ("mount('/a', '/b', resource='none')", "no Ray node has the resource none"),
        ("mount('/a', '/b', policy='pool', sampler='torch-random,seed=1')", "--sampler is for --policy slot"),
    ],
)
def test_a_bad_argument_is_one_line(cluster: Cluster, code: str, line: str) -> None:
    done = cluster.run(0, sys.executable, "-c", f"import redoxfs.ray; redoxfs.ray.{code}")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("redoxfs.launch.errors.UsageError: ")
    assert line in last


def test_a_list_is_the_option_for_each_or_one_with_commas() -> None:
    words = redoxfs.ray._words({"exact_for": ["a", "b"], "samples": ["*.a", "*.b"], "memory": "1MiB", "resume": True})
    asked = parse(["mount", *words, "--", "/source", "/mnt"]).options
    assert asked.exact_for == ("a", "b")
    assert asked.dataset.samples == ("*.a", "*.b")
    assert asked.memory.memory_size == "1MiB"


def test_a_command_without_ray_says_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from redoxfs.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "cluster", "up", "--ray", "/a", str(tmp_path)]
    done = completed(words)
    assert done.returncode == 2
    assert done.stderr == "redoxfs: --ray: Ray is not installed here; to install it: pip install 'redoxfs[ray]'\n"


def test_the_others_go_on_when_a_ray_node_is_removed() -> None:
    with new_cluster() as cluster, cluster.driver() as driver:
        pids = [driver.pid(2), *cluster.processes("redoxfs.launch", 2)]
        with ended(pids):
            cluster.remove(2)
        cluster.check_nothing_is_left(2)
        # The first reads may wait for --peer-timeout; then the lost node is passed over.
        for node in (0, 1):
            assert labels_right(cluster.read_all(node))
        assert driver.states() == ["serving", "serving", "lost"]
        driver.end()
        cluster.check_nothing_is_left()
