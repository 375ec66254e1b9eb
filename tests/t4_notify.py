"""What a mount in the foreground tells systemd, over a real socket of each kind."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import PATIENCE_S, Machine
from ports import reserve


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0", 1))
        listener.settimeout(PATIENCE_S)
        yield listener


def heard(listener: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listener.recv(1 << 16).decode().split("\n"))


@contextmanager
def foreground(machine: Machine, *arguments: str | Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command = machine.command("mount", "--foreground", *arguments)
    environment = machine.environment | variables
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize(("kind", "keeper"), [("file", False), ("abstract", False), ("file", True)])
def test_ready_is_sent_when_the_mount_answers(machine: Machine, source: Path, kind: str, keeper: bool) -> None:
    address = f"@{uuid.uuid4()}" if kind == "abstract" else str(machine.sockets / "notify")
    words: list[str | Path] = ["--keeper" if keeper else "--no-keeper", source, machine.mnt]
    with listening(address) as listener, foreground(machine, *words, NOTIFY_SOCKET=address) as running:
        news = heard(listener)
        # It answers at that moment, and the process that systemd knows is the daemon or its keeper.
        stats = machine.stats()
        assert (stats["keeper"] or stats)["pid"] == running.pid
        assert news.pop("READY") == "1"
        assert news.pop("STATUS").startswith(f"{source} is served at {machine.mnt}; 40 samples")
        assert not news
        running.send_signal(signal.SIGTERM)
        assert heard(listener) == {"STOPPING": "1"}
        assert running.wait(PATIENCE_S) == 0
    assert machine.nothing_is_left()


def test_a_daemon_that_is_replaced_does_not_say_that_the_mount_stops(machine: Machine, source: Path) -> None:
    address = str(machine.sockets / "notify")
    words: list[str | Path] = ["--keeper", source, machine.mnt]
    with listening(address) as listener, foreground(machine, *words, NOTIFY_SOCKET=address) as running:
        assert heard(listener)["READY"] == "1"
        machine.ok("restart", machine.mnt)
        machine.kill(signal.SIGKILL)
        assert machine.stats()["keeper"]["restarts"] == 2
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard(listener)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
    assert machine.nothing_is_left()


def test_a_mount_that_waits_for_a_node_says_so_and_is_not_ready(machine: Machine, source: Path) -> None:
    address = f"@{uuid.uuid4()}"
    ports = reserve(2)
    words = ["--nodes", ",".join(f"127.0.0.1:{port}" for port in ports), "--node-rank", "0"]
    with (
        listening(address) as listener,
        foreground(machine, source, machine.mnt, *words, NOTIFY_SOCKET=address) as running,
    ):
        assert heard(listener) == {"STATUS": f"waiting for 127.0.0.1:{ports[1]}"}
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == -signal.SIGTERM
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard(listener)
    assert machine.nothing_is_left()


# Nothing answers within any limit, so none is too short.
WAITS = """
import signal, sys
from pathlib import Path
from redoxfs.launch.notify import notify, when_readable
when_readable(Path(sys.argv[1]), 0.2, lambda: notify(READY=1))
signal.pause()
"""


@pytest.mark.parametrize("kind", ["missing", "hanging"])
def test_a_mount_that_cannot_be_read_is_ended_and_never_ready(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "stats.json"
    if kind == "hanging":
        # Without a writer, an open waits.
        os.mkfifo(path)
    address = f"@{uuid.uuid4()}"
    with listening(address) as listener:
        done = subprocess.run(
            [sys.executable, "-c", WAITS, path], env=os.environ | {"NOTIFY_SOCKET": address}, timeout=PATIENCE_S
        )
        assert done.returncode == -signal.SIGTERM
        news = heard(listener)
        assert news.keys() == {"STATUS"}
        assert news["STATUS"].startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "vsock:2:1", "relative"])
def test_a_supervisor_that_does_not_listen_changes_nothing(machine: Machine, source: Path, address: str) -> None:
    with foreground(machine, source, machine.mnt, NOTIFY_SOCKET=address) as running:
        assert running.stderr is not None
        assert any(line.startswith("to end it") for line in running.stderr)
        machine.ok("umount", machine.mnt)
        assert running.wait(PATIENCE_S) == 0
    assert machine.nothing_is_left()


def test_a_mount_in_the_background_tells_nothing(machine: Machine, source: Path) -> None:
    address = f"@{uuid.uuid4()}"
    with listening(address) as listener:
        machine.environment["NOTIFY_SOCKET"] = address
        machine.ok("mount", source, machine.mnt)
        machine.ok("umount", machine.mnt)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1)
    assert os.listdir(machine.mnt) == []
