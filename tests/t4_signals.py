"""Signals that a job step gets, or a shell whose terminal closes: they change nothing, or end a mount cleanly."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from forks import EXECUTED
from machine import PATIENCE_S, Machine, contents, has_ended
from patience import until
from ports import reserve_addresses

WITHOUT_EFFECT = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def foreground(machine: Machine, *arguments: str | Path) -> subprocess.Popen[str]:
    """A mount in the foreground that answers."""
    process = subprocess.Popen(
        machine.command("mount", "-f", *arguments, machine.mnt),
        env=machine.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("to end it"):
            return process
    raise AssertionError(process.wait())


def send_to_all(machine: Machine, number: signal.Signals) -> None:
    for pid in machine.processes_of():
        os.kill(pid, number)


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
def test_signals_for_the_training_change_nothing(machine: Machine, source: Path, keeper: str) -> None:
    whole = contents(source)
    machine.ok("mount", keeper, source, machine.mnt)
    before = machine.processes_of()
    for _ in range(2):
        for number in (*WITHOUT_EFFECT, signal.SIGHUP):
            send_to_all(machine, number)
        assert contents(machine.mnt) == whole
        assert machine.processes_of() == before
        if keeper == "--keeper":
            # Another daemon bears them as well.
            machine.ok("restart", machine.mnt)
            before = machine.processes_of()
    machine.umount()


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
def test_a_mount_in_the_foreground_ends_cleanly_with_its_terminal(machine: Machine, source: Path, keeper: str) -> None:
    process = foreground(machine, keeper, source)
    assert process.stderr is not None
    pids = [os.pidfd_open(pid) for pid in machine.processes_of()]
    for number in WITHOUT_EFFECT:
        send_to_all(machine, number)
    assert contents(machine.mnt) == contents(source)
    # A terminal that closes sends it to the whole group.
    os.killpg(process.pid, signal.SIGHUP)
    assert {has_ended(pid) for pid in pids} == {True}
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()
    assert machine.nothing_is_left()


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
def test_a_mount_under_nohup_outlives_its_terminal(machine: Machine, source: Path, keeper: str) -> None:
    machine.before = ("env", "--ignore-signal=HUP", *EXECUTED)
    process = foreground(machine, keeper, source)
    machine.before = ()
    assert process.stderr is not None
    os.killpg(process.pid, signal.SIGHUP)
    assert contents(machine.mnt) == contents(source)
    machine.ok("umount", machine.mnt)
    process.wait(PATIENCE_S)
    process.stderr.close()
    assert machine.nothing_is_left()


def test_a_cluster_that_starts_ends_whole_at_a_hangup_and_bears_other_signals(
    machine: Machine, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "nodes"
    command = machine.command("cluster", "up", source, folder, "--nodes", "2", "--memory", "1MiB")
    process = subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)
    nodes = [folder / str(node) for node in range(2)]
    until(lambda: all(node.is_dir() for node in nodes) or process.poll() is not None)
    for number in WITHOUT_EFFECT:
        process.send_signal(number)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=PATIENCE_S)
    if process.returncode == 0:
        # It was up before the signal came.
        machine.ok("cluster", "down", folder)
    else:
        assert process.returncode == 130, said
    until(machine.nothing_is_left, lambda: (machine.mounts(), machine.daemons()))


# Runs when a Python begins: the signal comes when the last folder has just been made.
SITE = """
import os, pathlib, signal
make = pathlib.Path.mkdir
def mkdir(path, *arguments, **keywords):
    make(path, *arguments, **keywords)
    if path.name == "1":
        os.kill(os.getpid(), signal.SIGUSR1)
pathlib.Path.mkdir = mkdir
"""


def test_a_cluster_bears_signals_from_when_its_folders_are_there(
    machine: Machine, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    machine.environment["PYTHONPATH"] = str(tmp_path / "site")
    machine.ok("cluster", "up", source, tmp_path / "nodes", "--nodes", "2", "--memory", "1MiB")
    machine.ok("cluster", "down", tmp_path / "nodes")
    assert machine.nothing_is_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_the_first_process_of_a_container_can_be_ended_before_it_serves(machine: Machine, source: Path) -> None:
    """The kernel gives that process no signal for which it has no handler."""
    machine.before = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "unchanged")
    nodes = ("--nodes", ",".join(reserve_addresses(2)), "--node-rank", "0")
    command = machine.command("mount", "-f", *nodes, source, machine.mnt)
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as container:
        try:
            assert container.stderr is not None
            assert any(line.startswith("waiting for") for line in container.stderr)
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            assert container.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            container.kill()
    machine.before = ()
    assert machine.nothing_is_left()
