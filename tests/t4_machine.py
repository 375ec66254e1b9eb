"""What the tests say of what is left behind does not hold vacuously."""

import os
import subprocess
from pathlib import Path

import netspaces
import pytest
from machine import Machine

from redoxfs.linux.detach import detach
from redoxfs.linux.mount_table import read_mounts


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
def test_a_daemon_that_is_left_running_is_found(machine: Machine, source: Path, keeper: str) -> None:
    assert machine.nothing_is_left()
    machine.ok("mount", source, machine.mnt, keeper)
    assert not machine.nothing_is_left()
    left = machine.processes_of()
    assert left == machine.daemons()
    assert len(left) == (2 if keeper == "--keeper" else 1)
    # Its mount has gone, and it stays for the sake of an open file.
    with open(machine.mnt / "README") as file:
        detach(machine.mnt)
        for socket in machine.sockets.rglob("*.sock"):
            socket.unlink()
        assert machine.mounts() == []
        assert machine.daemons() == left
        assert not machine.nothing_is_left()
        assert file.read() == "a dataset\n"


def test_a_node_that_is_left_running_is_found_in_its_network(machine: Machine, source: Path) -> None:
    if reason := netspaces.why_not():
        pytest.skip(reason)
    with netspaces.Network(2).up() as network:
        mountpoints = network.mount(machine, source, ["--no-keeper"])
        assert machine.daemons() == machine.processes_of(*mountpoints)
        for node, mountpoint in enumerate(mountpoints):
            command = [*network.inside(node), "ip", "-brief", "address", "show", "dev", "eth0"]
            assert network.addresses[node].partition(":")[0] in subprocess.check_output(command, text=True)
            its_own = os.stat(f"/proc/{machine.pid(mountpoint)}/ns/net").st_ino
            assert its_own != os.stat("/proc/self/ns/net").st_ino


def test_no_mount_of_anybody_else_is_seen(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a mount namespace needs root")
    assert os.stat("/proc/self/ns/mnt").st_ino != os.stat(f"/proc/{os.getppid()}/ns/mnt").st_ino
    assert [
        mount for mount in read_mounts() if mount.ours and Path(mount.mountpoint).parts[:3] != tmp_path.parts[:3]
    ] == []
