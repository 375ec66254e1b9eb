"""The node plugin of Kubernetes: the real gRPC service, real mounts, and a sidecar without any privilege.

`tests/kube.py` stands for the kubelet. No kubelet has called the plugin.
"""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import kube
import process_limits
import pytest
from forks import EXECUTED
from kube import CAPABILITIES, READERS, SIDECAR_UID, WRITER, Node, Pod, await_line, has_ended, running_node
from machine import Machine
from patience import PATIENCE_S, completed

from redoxfs.csi.errors import CsiError
from redoxfs.csi.records import Record, Records
from redoxfs.csi.v1 import csi_pb2 as pb
from redoxfs.launch.errors import FuseUnavailableError
from redoxfs.launch.handover import RETRY_S, receive_mount, receive_settings
from redoxfs.linux.descriptors import opened
from redoxfs.linux.fuse_device import MAX_READ_BYTES

pytestmark = [pytest.mark.mount, pytest.mark.skipif(bool(kube.why_not()), reason=str(kube.why_not()))]

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ALL = list(range(40))


# The plugin's command, with a signal before each line of Python that its main thread runs after the start, and after.
TOLD_WHILE_IT_WAITS = """
import os, signal, sys, threading
import redoxfs.cli.csi as command
from redoxfs import csi
from redoxfs.cli.arguments import parse

class Plugin:
    def __init__(self, *_):
        pass
    def start(self):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    def stop(self):
        print("stopped")

csi.Plugin = Plugin
words = ["csi", "--endpoint", "unix:///x", "--node-id", "n", "--kubelet-dir", sys.argv[1]]
sys.exit(command.run(parse(words).options))
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


@pytest.fixture(scope="module")
def unchanged() -> Iterator[Node]:
    """A node that no call changes, such as one that is refused: one is enough for all tests of these."""
    with running_node() as node:
        yield node
        assert not node.leftovers()


@pytest.fixture
def pod(node: Node) -> Pod:
    return Pod(node)


# The services, after the table of csi-sanity


def check_serves_anew(node: Node, pod: Pod, sidecar: subprocess.Popen[str]) -> None:
    """Another sidecar serves the volume once this one has ended, and nothing is left after the unpublish."""
    node.end(sidecar)
    pod.serving()
    assert pod.samples() == ALL
    pod.end()


def test_the_plugin_tells_who_it_is(unchanged: Node) -> None:
    told = unchanged.call("Identity", "GetPluginInfo", pb.GetPluginInfoRequest())
    assert told.name == "redoxfs"
    assert told.vendor_version
    assert not unchanged.call("Identity", "GetPluginCapabilities", pb.GetPluginCapabilitiesRequest()).capabilities
    assert unchanged.call("Identity", "Probe", pb.ProbeRequest()).ready.value
    assert unchanged.call("Node", "NodeGetInfo", pb.NodeGetInfoRequest()).node_id == "node-1"


def test_capabilities_that_are_not_told_are_unimplemented(unchanged: Node) -> None:
    assert not unchanged.call("Node", "NodeGetCapabilities", pb.NodeGetCapabilitiesRequest()).capabilities
    for method in ("NodeStageVolume", "NodeUnstageVolume", "NodeGetVolumeStats", "NodeExpandVolume"):
        # A volume's id is field 1 in the requests of all of them.
        code, _ = unchanged.refusal("Node", method, pb.NodeUnpublishVolumeRequest(volume_id="x"))
        assert code == grpc.StatusCode.UNIMPLEMENTED


def changed(pod: Pod, **fields: Any) -> pb.NodePublishVolumeRequest:
    request = pod.request()
    for name, value in fields.items():
        if value is None:
            request.ClearField(name)
        elif isinstance(value, str):
            setattr(request, name, value)
        else:
            getattr(request, name).CopyFrom(value)
    return request


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"volume_id": None}, "volume_id is missing"),
        ({"target_path": None}, "target_path is missing"),
        ({"volume_capability": None}, "volume_capability is missing"),
        ({"volume_capability": CAPABILITIES(mount=CAPABILITIES.MountVolume())}, "access mode is missing"),
        ({"volume_capability": CAPABILITIES(block=CAPABILITIES.BlockVolume())}, "volumeMode Filesystem"),
        ({"target_path": "/etc"}, "not that of a pod's volume"),
        ({"target_path": "/var/lib/kubelet/pods/../../../../etc/volumes/kubernetes.io~csi/x/mount"}, "not that of"),
        ({"volume_context": None}, "podInfoOnMount"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(unchanged: Node, fields: dict[str, Any], words: str) -> None:
    code, line = unchanged.refusal("Node", "NodePublishVolume", changed(Pod(unchanged), **fields))
    assert (code, line.count("\n")) == (INVALID, 0)
    assert words in line
    assert not unchanged.leftovers()


@pytest.mark.parametrize(("volume_id", "target"), [("", "/x"), ("x", ""), ("x", "/etc"), ("x", "/")])
def test_an_unpublish_that_makes_no_sense_is_refused(unchanged: Node, volume_id: str, target: str) -> None:
    request = pb.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target)
    assert unchanged.refusal("Node", "NodeUnpublishVolume", request)[0] == INVALID


def test_another_pods_target_is_refused(unchanged: Node) -> None:
    pod, other = Pod(unchanged), Pod(unchanged)
    code, line = unchanged.refusal("Node", "NodePublishVolume", changed(pod, target_path=str(other.target)))
    assert code == INVALID
    assert "but the volume context of pod" in line


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"chunk_size": "0"}, "'0' is not a whole number from 1"),
        ({"memory": "banana"}, "--memory banana: not a size"),
        ({"remote_memory": "0"}, "less than one byte"),
        ({"cache_size": "x"}, "--cache-size x: not a size"),
        ({"nodes": ""}, "'' is not a node"),
        ({"metrics_label": "a=b\n1=c"}, "--metrics-label '1=c': write NAME=VALUE"),
        ({"policy": "lifo"}, "invalid choice: 'lifo'"),
        ({"resume": "yes"}, '\'yes\' is neither "true" nor "false"'),
        ({"mount_options": "rw"}, "redoxfs is read-only"),
        ({"mount_options": "suid"}, "not a mount option of redoxfs"),
        ({"mount_options": 'context="a:b:c:s0,c1"'}, "cannot choose its SELinux labels"),
        ({"mount_options": "rootcontext=x\\,fd=5"}, "cannot choose its SELinux labels"),
        ({"source": "/data"}, "'source': redoxfs has no such option"),
        ({"log": "/etc/passwd"}, "'log': redoxfs has no such option"),
        ({"foreground": "true"}, "no such option"),
        ({"empty_dir": "../../x"}, "is not the name of a volume"),
        ({"memory": "a\nb"}, "--memory 'a\\nb': not a size"),
        ({"memory": "--"}, "--memory --: not a size"),
        ({"chunk_size": "--"}, "'--' is not a whole number from 1"),
        ({"catalog": "/a\0b"}, "contains a zero character"),
        ({"policy": "\u20ac" * 100_000}, "invalid choice: '\u20ac"),
    ],
)
def test_a_bad_attribute_is_refused_in_one_line(unchanged: Node, attributes: dict[str, str], words: str) -> None:
    code, line = unchanged.refusal("Node", "NodePublishVolume", Pod(unchanged).request(**attributes))
    assert (code, line.count("\n")) == (INVALID, 0)
    assert words in line
    assert not unchanged.leftovers()


@pytest.mark.parametrize("quoted", ["a", "\u20ac", "\U0001f600", "\udcff"])
def test_a_refusal_fits_into_an_event_and_a_status_whatever_it_quotes(quoted: str) -> None:
    """gRPC drops some of those that take more than 8 KiB, where a byte beyond ASCII takes three."""
    line = str(CsiError(INVALID, f"begins {quoted * 100_000} ends"))
    assert len(line.encode()) < 1024
    assert re.fullmatch("begins .+ … .+ ends", line)


@pytest.mark.skipif(process_limits.FOLDER is None, reason="this process may not limit a control group's processes")
def test_a_publish_without_a_thread_for_the_volume_is_tried_again(node: Node, pod: Pod) -> None:
    # A thread that answers is there then.
    node.call("Identity", "Probe", pb.ProbeRequest())
    with process_limits.limited([node.plugin.pid]) as limit:
        limit.reach()
        code, line = node.refusal("Node", "NodePublishVolume", pod.request())
        assert (code, line.count("\n")) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 0)
        assert "no thread is left to wait for its sidecar" in line
        assert not node.leftovers()
        limit.lift()
    pod.publish()
    pod.unpublish()


def test_a_volume_to_write_to_is_refused(node: Node, pod: Pod) -> None:
    code, line = node.refusal("Node", "NodePublishVolume", pod.request(WRITER, readonly=False))
    assert code == INVALID
    assert "set readOnly: true" in line
    for mode, readonly in ((WRITER, True), (READERS, False)):
        node.call("Node", "NodePublishVolume", pod.request(mode, readonly=readonly))
        pod.unpublish()


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://127.0.0.1:1", "not a Unix socket"),
        ("unix://csi.sock", "not a Unix socket"),
        ("unix:///missing/csi.sock", "No such file or directory"),
        ("unix:///" + "x" * 107, "longer than the 107 bytes of a socket's path"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_in_one_line(machine: Machine, endpoint: str, words: str) -> None:
    assert words in machine.refused(2, "csi", "--endpoint", endpoint, "--node-id", "n")


@pytest.mark.parametrize("folder", [".", "/missing/kubelet"])
def test_a_folder_of_the_kubelet_that_cannot_be_is_refused_in_one_line(machine: Machine, folder: str) -> None:
    words = ("--endpoint", f"unix://{machine.folder}/csi.sock", "--node-id", "n", "--kubelet-dir", folder)
    assert f"--kubelet-dir {folder}: is not the absolute path of a folder" in machine.refused(2, "csi", *words)


def test_a_plugin_that_does_not_see_the_threads_of_pods_says_so(machine: Machine) -> None:
    command = machine.command("csi", "--endpoint", "unix:///missing/csi.sock", "--node-id", "n")
    for own_pids, lines in (((), 1), (("unshare", "--pid", "--fork", "--kill-child"), 2)):
        words = [*own_pids, *EXECUTED, *command]
        done = completed(words, env=machine.environment)
        assert (done.returncode, done.stderr.count("\n")) == (2, lines)
        assert ("set hostPID: true" in done.stderr) == bool(own_pids)
    assert "\n      hostPID: true\n" in (Path(__file__).parents[1] / "mount/kubernetes/plugin.yaml").read_text()


# Publish and serve


def test_a_sidecar_without_privileges_serves_every_sample(node: Node, pod: Pod) -> None:
    pod.publish()
    assert pod.probe() != 0
    waiting = pod.reader()
    sidecar = pod.serving()
    status = Path(f"/proc/{sidecar.pid}/status").read_text()
    assert f"Uid:\t{SIDECAR_UID}\t{SIDECAR_UID}\t{SIDECAR_UID}" in status
    for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{kind}:\t{0:016x}" in status
    assert pod.probe() == 0
    # It began before the sidecar, and waited for it.
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out.count("\n")) == (0, 40), err
    assert pod.samples() == ALL
    mount = pod.top()
    assert mount is not None
    assert mount.super_options >= {"ro", "allow_other", "default_permissions", f"max_read={MAX_READ_BYTES}"}
    widened = Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
    assert widened.read_text() == f"{MAX_READ_BYTES >> 10}\n"
    pod.unpublish()
    assert has_ended(sidecar)
    assert sidecar.wait() == 0
    assert not node.leftovers()


def test_attributes_reach_the_sidecar_whose_options_override(node: Node, pod: Pod) -> None:
    pod.publish(
        chunk_size="4",
        seed="7",
        policy="slot",
        memory="1GiB",
        samples="*.jpg\n*.jpeg",
        mount_options="direct_io,noexec",
    )
    pod.serving("--memory", "64MiB", "--policy", "pool")
    done = node.run(*node.command("status", "--json", pod.socket, drop=kube.DROP))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["chunk_size"], told["memory_limit_bytes"]) == (4, 64 << 20)
    assert told["policy"] == "pool", "what is typed overrides, also if it is the default"
    assert told["options"] == ["direct_io", "noexec"]
    assert pod.records()[0]["options"] == ["allow_other", "default_permissions", "noexec"]


def test_publish_is_idempotent_also_with_a_sidecar(node: Node, pod: Pod) -> None:
    pod.publish()
    mount = pod.top()
    pod.publish()
    assert (pod.top(), len(node.mounts())) == (mount, 1)
    pod.serving()
    pod.publish()
    assert (pod.top(), len(node.mounts())) == (mount, 1)
    assert pod.samples() == ALL
    code, line = node.refusal("Node", "NodePublishVolume", pod.request(seed="1"))
    assert code == grpc.StatusCode.ALREADY_EXISTS
    assert "with other attributes" in line


def test_unpublish_is_idempotent_and_removes_the_target(pod: Pod) -> None:
    pod.unpublish()
    pod.publish()
    assert pod.outer_target.is_dir()
    pod.unpublish()
    assert not pod.outer_target.exists()
    pod.end()


def test_two_pods_are_served_at_once_and_apart(node: Node) -> None:
    pods = [Pod(node), Pod(node)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Pod.publish, pods))
        list(pool.map(Pod.serving, pods))
        assert list(pool.map(Pod.samples, pods)) == [ALL, ALL]
    pods[0].unpublish()
    assert pods[1].samples() == ALL
    pods[1].unpublish()
    assert not node.leftovers()


def epoch_of(pod: Pod, opens: int, order: Random) -> list[list[str]]:
    """What two workers of a pod got for each file of an epoch."""
    names = [str(path.relative_to(pod.node.outer / "data")) for path in (pod.node.outer / "data").glob("train/*/*.jpg")]
    order.shuffle(names)
    workers = [pod.worker(opens) for _ in range(2)]
    for rank, worker in enumerate(workers):
        assert worker.stdin is not None
        worker.stdin.write("".join(f"{name}\n" for name in names[rank::2]))
        worker.stdin.close()
        worker.stdin = None
    outputs = [worker.communicate(timeout=PATIENCE_S) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [line.split() for out, _ in outputs for line in out.splitlines()]


# With threads of their own, as callers of any mount have, an epoch with one open of a file is that of other tests.
@pytest.mark.parametrize(("host_pid", "opens"), [(True, 2), (False, 1), (False, 2)])
def test_epochs_of_pods_with_pids_of_their_own_are_exact(host_pid: bool, opens: int) -> None:
    with running_node(within=() if host_pid else kube.OWN_PIDS) as node:
        pods = [Pod(node), Pod(node)]
        for pod in pods:
            pod.publish()
            pod.serving("--classes", "dir", within=kube.OWN_PIDS)

        def train(pod: Pod) -> None:
            for epoch in range(3):
                got = epoch_of(pod, opens, Random(epoch))
                assert [len(set(each)) for each in got] == [1] * 40, "all opens of a file are alike"
                assert sorted(int(each[0]) for each in got) == ALL

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train, pods))
        for pod in pods:
            pod.unpublish()
        assert not node.leftovers()


def test_a_pod_without_its_empty_dir_is_published_later(node: Node, pod: Pod) -> None:
    request = pod.request(empty_dir="later")
    code, line = node.refusal("Node", "NodePublishVolume", request)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "has no emptyDir 'later' yet" in line
    assert not node.leftovers()
    pod.empty_dir.with_name("later").mkdir()
    node.call("Node", "NodePublishVolume", request)


def test_a_second_volume_of_a_pod_needs_an_empty_dir_of_its_own(node: Node, pod: Pod) -> None:
    """Else each would get the other's sidecar, and with it its dataset."""
    pod.publish()
    second = pod.request(classes="dir")
    second.target_path = second.target_path.replace("/data/", "/val/")
    pod.outer_target.parent.with_name("val").mkdir()
    code, line = node.refusal("Node", "NodePublishVolume", second)
    assert code == INVALID
    assert line.startswith("emptyDir 'redoxfs' of pod default/train is for volume 'data': give volume 'val' one of its")
    pod.serving()
    assert pod.samples() == ALL
    pod.end()


def test_a_foreign_mount_at_the_target_is_left_alone(node: Node, pod: Pod) -> None:
    pod.outer_target.mkdir()
    assert node.run("mount", "-t", "tmpfs", "x", pod.outer_target).returncode == 0
    code, line = node.refusal("Node", "NodePublishVolume", pod.request())
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "a tmpfs filesystem is mounted there" in line
    assert "tmpfs" in node.run("stat", "-f", "-c", "%T", pod.outer_target).stdout


# Ends of the sidecar


HOLD = """
import sys, time
file = open(sys.argv[1] + "/train/n02121808/cat3.jpg", "rb")
print("open", flush=True)
sys.stdin.readline()
import os
import re
os.listdir(sys.argv[1] + "/train")
os.statvfs(sys.argv[1])
"""


def test_readers_of_a_killed_sidecar_get_errors_and_a_new_one_serves(node: Node, pod: Pod) -> None:
    pod.publish()
    sidecar = pod.serving()
    inside = node.start(
        *("unshare", "--mount", "--propagation", "private", "python3", "-c", HOLD, pod.outer_target),
        stdin=-1,
    )
    assert inside.stdout is not None
    assert inside.stdout.readline() == "open\n"
    node.end(sidecar)
    assert "Transport endpoint is not connected" in pod.error()
    pod.serving()
    # A container that starts now gets the new mount. One that was running has the dead one, and can end.
    assert pod.samples() == ALL
    assert len(node.mounts()) == 1
    _, err = inside.communicate("\n", timeout=PATIENCE_S)
    assert inside.returncode == 1
    assert "Transport endpoint is not connected" in err
    pod.end()


def test_a_dead_sidecar_does_not_keep_a_volume(node: Node, pod: Pod) -> None:
    pod.publish()
    node.end(pod.serving())
    pod.publish()
    pod.end()


def test_a_hung_sidecar_keeps_neither_the_volume_nor_its_readers(node: Node, pod: Pod) -> None:
    pod.publish()
    sidecar = pod.serving()
    sidecar.send_signal(signal.SIGSTOP)
    reader = pod.reader()
    pod.publish()
    pod.end()
    node.end(sidecar)
    assert has_ended(reader)


def test_a_sidecar_that_fails_before_it_serves_loses_nothing(node: Node, pod: Pod) -> None:
    pod.publish()
    waiting = pod.reader()
    (node.outer / "data").rename(node.outer / "elsewhere")
    sidecar = pod.sidecar()
    _, err = sidecar.communicate(timeout=PATIENCE_S)
    assert (sidecar.returncode, err.count("\n")) == (3, 1)
    assert "no such directory" in err
    (node.outer / "elsewhere").rename(node.outer / "data")
    pod.serving()
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out.count("\n")) == (0, 40), err


def test_a_sidecar_that_dies_with_the_descriptor_is_replaced(node: Node, pod: Pod) -> None:
    pod.publish()
    received = receive_mount(pod.empty_dir / "socket", PATIENCE_S)
    # The first request, which nobody gets again.
    assert os.read(received.fd, 2 * MAX_READ_BYTES)
    received.close()
    assert "Transport endpoint is not connected" in pod.error()
    pod.serving()
    assert pod.samples() == ALL
    assert len(node.mounts()) == 1


def test_a_sidecar_that_dies_with_the_descriptor_before_the_first_request_loses_nothing(pod: Pod) -> None:
    pod.publish()
    waiting = pod.reader()
    receive_mount(pod.empty_dir / "socket", PATIENCE_S).close()
    pod.serving()
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out.count("\n")) == (0, 40), err


def test_a_mount_that_was_taken_back_from_a_living_sidecar_is_not_shared(pod: Pod) -> None:
    pod.publish()
    received = receive_mount(pod.empty_dir / "socket", PATIENCE_S)
    with opened(os.dup(received.fd)) as kept:
        received.close()
        # It is for the next one, until somebody reads from it.
        receive_settings(pod.empty_dir / "socket", PATIENCE_S)
        assert os.read(kept, 2 * MAX_READ_BYTES)
        with pytest.raises(FuseUnavailableError, match="another process has this mount"):
            receive_settings(pod.empty_dir / "socket", PATIENCE_S)


def test_a_sidecar_that_ends_before_it_has_the_mount_loses_nothing(pod: Pod) -> None:
    pod.publish()
    waiting = pod.reader()
    with client_of(pod) as client:
        # As if it had ended when the answer comes, however quick that is.
        client.shutdown(socket.SHUT_RD)
        client.send(b'{"redoxfs": 1, "ask": "mount"}')
    # Its answer comes after that of the one before.
    assert receive_settings(pod.empty_dir / "socket", PATIENCE_S) == ()
    pod.serving()
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out.count("\n")) == (0, 40), err


def test_a_second_sidecar_is_refused_while_the_first_lives(pod: Pod) -> None:
    pod.publish()
    first = pod.serving()
    for how in (signal.SIGCONT, signal.SIGSTOP):
        first.send_signal(how)
        second = pod.sidecar()
        _, err = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 7
        assert "another process has this mount, and has not ended" in err
    first.send_signal(signal.SIGCONT)
    assert pod.samples() == ALL


def test_sigterm_ends_a_sidecar_and_its_mount_is_dead(node: Node, pod: Pod) -> None:
    pod.publish()
    sidecar = pod.serving()
    assert node.end(sidecar, signal.SIGTERM) == 0
    assert "Transport endpoint is not connected" in pod.error()
    pod.end()


def test_a_sidecar_without_a_plugin_says_what_is_missing(pod: Pod) -> None:
    # Nobody listens within any limit, so none is too short.
    sidecar = pod.sidecar("--timeout", "0.1")
    _, err = sidecar.communicate(timeout=PATIENCE_S)
    assert (sidecar.returncode, err.count("\n")) == (7, 1)
    assert "is the volume published on this node" in err


# Ends of the plugin


def test_a_restart_of_the_plugin_is_not_noticed_by_readers(node: Node, pod: Pod) -> None:
    pod.publish()
    sidecar = pod.serving()
    mount = pod.top()
    for how in (signal.SIGTERM, signal.SIGKILL):
        assert node.end(node.plugin, how) == (0 if how == signal.SIGTERM else -how)
        assert pod.samples() == ALL
        node.start_plugin()
        pod.publish()
        assert pod.top() == mount
        assert pod.samples() == ALL
    check_serves_anew(node, pod, sidecar)


def test_a_plugin_that_ends_before_the_sidecar_comes_mounts_again(node: Node) -> None:
    for number, how in enumerate((signal.SIGTERM, signal.SIGKILL), 1):
        pod = Pod(node)
        pod.publish()
        node.end(node.plugin, how)
        sidecar = pod.sidecar()
        node.start_plugin()
        await_line(sidecar, "is served to the mount")
        assert pod.samples() == ALL
        assert len(node.mounts()) == number


def test_a_signal_that_does_not_wake_the_main_thread_ends_the_plugin(tmp_path: Path) -> None:
    """As one that comes just before it waits, or to a thread of gRPC. Python runs handlers in the main thread."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD_WHILE_IT_WAITS, tmp_path], timeout=PATIENCE_S, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"stopped\n"), done.stderr


def test_a_crash_between_record_and_mount_leaves_nothing(node: Node, pod: Pod) -> None:
    pod.publish()
    node.end(node.plugin)
    assert node.run("umount", pod.outer_target).returncode == 0
    node.start_plugin()
    assert not pod.records()
    pod.publish()
    pod.serving()
    assert pod.samples() == ALL


@pytest.mark.parametrize(
    "text", ["", "[]", '{"target_path": "/x"}', "[" * 100_000], ids=["none", "list", "other", "deep"]
)
def test_a_record_that_is_none_does_not_keep_the_plugin_from_starting(node: Node, pod: Pod, text: str) -> None:
    pod.publish()
    node.end(node.plugin)
    (node.outer / "plugin/volumes/x.json").write_text(text)
    node.start_plugin()
    assert len(pod.records()) == 1
    pod.end()


def test_a_crash_between_mount_and_socket_is_completed(node: Node, pod: Pod) -> None:
    pod.publish()
    node.end(node.plugin)
    (pod.empty_dir / "socket").unlink()
    node.start_plugin()
    pod.serving()
    assert pod.samples() == ALL
    pod.end()


def test_a_volume_whose_record_is_lost_can_be_published_and_unpublished(node: Node, pod: Pod) -> None:
    pod.publish()
    node.end(node.plugin)
    for path in (node.outer / "plugin/volumes").iterdir():
        path.write_text("{")
    node.start_plugin()
    assert not pod.records()
    other = Pod(node)
    other.publish()
    pod.publish()
    pod.serving()
    assert pod.samples() == ALL
    pod.unpublish()
    other.unpublish()
    assert not node.leftovers()


def test_a_repeated_publish_that_fails_leaves_a_mount_that_programs_use(node: Node, pod: Pod) -> None:
    pod.publish()
    sidecar = pod.serving()
    node.end(node.plugin)
    (record,) = (node.outer / "plugin/volumes").iterdir()
    record.write_text("{")
    (pod.empty_dir / "socket").unlink()
    (pod.empty_dir / "socket").mkdir()
    node.start_plugin()
    code, _ = node.refusal("Node", "NodePublishVolume", pod.request())
    assert code == grpc.StatusCode.INTERNAL
    assert pod.samples() == ALL
    # The pod has mended it, and the sidecar is started again.
    (pod.empty_dir / "socket").rmdir()
    pod.publish()
    assert pod.samples() == ALL
    check_serves_anew(node, pod, sidecar)


def test_a_record_that_cannot_be_read_now_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "volumes"
    records = Records(folder)
    record = Record("id", "/target", "default/train", "redoxfs", (), ("allow_other",), "")
    records.write(record)
    (path,) = folder.iterdir()
    aside = path.rename(tmp_path / "aside")
    # Whoever reads this gets EIO.
    path.symlink_to("/proc/self/mem")
    assert list(records.read()) == []
    assert path.is_symlink()
    aside.rename(path)
    assert list(records.read()) == [record]
    records.close()


# What follows must hold wherever a kill hits, so the times need not hit anything in particular, and none is too short
# or too long for a busy machine.


@pytest.mark.parametrize("what", ["publish", "unpublish"])
def test_a_plugin_killed_in_the_middle_of_a_call_leaves_nothing(node: Node, what: str) -> None:
    for delay_s in (0.0, 0.003, 0.006, 0.009, 0.012, 0.02):
        pod = Pod(node)
        if what == "unpublish":
            pod.publish()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(getattr(pod, what))
            wait([call], delay_s)
            node.end(node.plugin)
            node.start_plugin()
        if call.exception() is not None:
            assert isinstance(call.exception(), grpc.RpcError)
        getattr(pod, what)()
        pod.unpublish()
        assert not node.leftovers(), delay_s


def test_a_sidecar_killed_while_it_starts_is_replaced(node: Node, pod: Pod) -> None:
    pod.publish()
    for delay_s in (0.3, 0.45, 0.6, 0.75, 0.9):
        sidecar = pod.sidecar()
        with suppress(subprocess.TimeoutExpired):
            sidecar.wait(delay_s)
        node.end(sidecar)
        sidecar = pod.serving()
        assert pod.samples() == ALL, delay_s
        node.end(sidecar)
    pod.end()


# Pods that are not to be trusted


def client_of(pod: Pod) -> socket.socket:
    """A program of the pod that connects to the socket."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(PATIENCE_S)
    folder = os.open(pod.empty_dir, os.O_PATH)
    try:
        client.connect(f"/proc/self/fd/{folder}/socket")
    finally:
        os.close(folder)
    return client


def test_an_empty_dir_that_is_a_symlink_is_refused(node: Node, pod: Pod, tmp_path: Path) -> None:
    pod.empty_dir.rmdir()
    pod.empty_dir.symlink_to(tmp_path)
    code, line = node.refusal("Node", "NodePublishVolume", pod.request())
    assert code == INVALID
    assert "emptyDir 'redoxfs'" in line
    assert os.listdir(tmp_path) == []
    assert not node.leftovers()


def test_a_symlink_in_place_of_the_socket_is_not_followed(node: Node, pod: Pod, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o600)
    for plant in (victim, tmp_path / "missing"):
        (pod.empty_dir / "socket").unlink(missing_ok=True)
        (pod.empty_dir / "socket").symlink_to(plant)
        pod.publish()
        assert stat.S_ISSOCK((pod.empty_dir / "socket").lstat().st_mode)
        assert (pod.empty_dir / "socket").lstat().st_mode & 0o777 == 0o666
        assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("kept", 0o600)
        assert os.listdir(tmp_path) == ["victim"]
        # Once the containers run, they can change it; the next plugin finds that.
        node.end(node.plugin)
        (pod.empty_dir / "socket").unlink()
        (pod.empty_dir / "socket").symlink_to(plant)
        node.start_plugin()
        assert stat.S_ISSOCK((pod.empty_dir / "socket").lstat().st_mode)
        assert os.listdir(tmp_path) == ["victim"]
        pod.end()


def test_a_folder_in_place_of_the_socket_fails_its_own_pod(node: Node, pod: Pod) -> None:
    (pod.empty_dir / "socket").mkdir()
    code, line = node.refusal("Node", "NodePublishVolume", pod.request())
    assert (code, line.count("\n")) == (grpc.StatusCode.INTERNAL, 0)
    assert not node.mounts()
    assert not pod.records()
    other = Pod(node)
    other.publish()


def test_a_target_that_is_a_symlink_is_refused(node: Node, pod: Pod, tmp_path: Path) -> None:
    pod.outer_target.symlink_to(tmp_path)
    code, _ = node.refusal("Node", "NodePublishVolume", pod.request())
    assert code == grpc.StatusCode.INTERNAL
    assert not node.mounts()


@pytest.mark.parametrize(
    "message",
    [b"", b"\0", b"[]", b'{"redoxfs": 2, "ask": "mount"}', b'{"redoxfs": 1, "ask": "root"}'],
    ids=["none", "no text", "no object", "another version", "another request"],
)
def test_a_message_that_makes_no_sense_harms_only_its_sender(pod: Pod, message: bytes) -> None:
    pod.publish()
    with client_of(pod) as client:
        if message:
            client.send(message)
            assert b'"error"' in client.recv(1 << 16)
    assert receive_settings(pod.empty_dir / "socket", PATIENCE_S) == ()


HANG = """
import os, struct, sys
from pathlib import Path
from redoxfs.launch.handover import receive_mount
fd = receive_mount(Path(sys.argv[1]), float(sys.argv[2])).fd
os.set_blocking(fd, True)
_, _, unique = struct.unpack_from("<IIQ", os.read(fd, 1 << 21))
# The answer to INIT (<linux/fuse.h>), version 7.31.
init = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
os.write(fd, struct.pack("<IiQ", 16 + len(init), 0, unique) + init)
print("hangs", flush=True)
while True:
    os.read(fd, 1 << 21)
"""
"""Serves a mount by taking requests and never answering: whoever made one cannot be killed."""


def test_a_pod_that_hangs_its_mount_cannot_fill_the_plugin(node: Node, pod: Pod) -> None:
    pod.publish()
    hanging = node.start(sys.executable, "-c", HANG, pod.socket, str(PATIENCE_S))
    assert hanging.stdout is not None
    assert hanging.stdout.readline() == "hangs\n"
    for _ in range(3):
        with pytest.raises(FuseUnavailableError, match="another process has this mount"):
            receive_settings(pod.empty_dir / "socket", PATIENCE_S)
    tasks = Path(f"/proc/{node.plugin.pid}/task").glob("*/children")
    assert sum(len(task.read_text().split()) for task in tasks) == 1
    pod.unpublish()
    node.end(hanging)
    assert not node.leftovers()


def test_the_plugin_pauses_after_each_request_of_a_pod(pod: Pod) -> None:
    """So a pod that asks without end takes neither the processor nor the log for itself."""
    pod.publish()
    asked = 5
    begin_s = time.monotonic()
    for _ in range(asked):
        receive_settings(pod.empty_dir / "socket", PATIENCE_S)
    assert time.monotonic() - begin_s >= (asked - 1) * RETRY_S


def test_a_silent_client_delays_neither_publish_nor_unpublish(node: Node, pod: Pod) -> None:
    pod.publish()
    other = Pod(node)
    with client_of(pod):
        other.publish()
        other.serving()
        assert other.samples() == ALL
        pod.publish()
        pod.unpublish()
        assert not pod.outer_target.exists()
        assert [mount.mountpoint for mount in node.mounts()] == [str(other.outer_target)]
