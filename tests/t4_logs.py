"""The log of real daemons: its level while they serve, JSON from daemon, keeper and successor, and the command line."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machine import PATIENCE_S, Machine
from patience import NEVER_S


def lines(machine: Machine) -> list[dict[str, Any]]:
    """The log, each line of which is an object."""
    return [json.loads(line) for line in machine.log().splitlines()]


def change(machine: Machine, source: Path) -> int:
    """Change all files and have the daemon read them anew. Returns how many it knows to have changed."""
    for path in (source / "train").rglob("*.jpg"):
        with open(path, "ab") as file:
            file.write(b"more")
    for _ in range(2):
        for path in (machine.mnt / "train").rglob("*.jpg"):
            path.read_bytes()
    return machine.stats()["changed"]


def test_the_level_changes_while_a_daemon_serves(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt)
    assert machine.ok("log-level", machine.mnt).stdout == "info\n"
    assert "before, from info on" in machine.ok("log-level", machine.mnt, "error").stdout
    told = machine.log()
    assert change(machine, source) > 0
    assert machine.log() == told
    machine.ok("umount", machine.mnt)
    machine.ok("mount", source, machine.mnt, "--log-level", "error")
    machine.ok("log-level", machine.mnt, "warning")
    assert change(machine, source) > 0
    assert "WARNING redoxfs.node.supply: a file has changed since the scan path=train/n0" in machine.log()
    machine.refused(2, "log-level", machine.mnt, "loud")
    pid = machine.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        machine.refused(1, "log-level", machine.mnt, "info", "--timeout", str(NEVER_S))
    finally:
        os.kill(pid, signal.SIGCONT)
    machine.ok("umount", machine.mnt)


def test_json_is_logged_by_daemon_keeper_and_successor(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--keeper", "--log-format", "json", "--log-level", "debug")
    first = machine.pid()
    machine.kill(signal.SIGKILL)
    second = machine.pid()
    assert second != first
    assert change(machine, source) > 0
    told = {line["logger"]: line for line in lines(machine)}
    assert told["redoxfs.keeper"]["message"].startswith(f"the daemon (pid {first}) was killed by SIGKILL")
    assert told["redoxfs.keeper"]["level"] == "error"
    assert "redoxfs.launch.successor" in told
    assert told["redoxfs.node.supply"]["fields"]["path"].startswith("train/n0")
    assert machine.ok("log-level", machine.mnt).stdout == "debug\n"
    # The log is no part of what a mount is: another process of the job gets this mount with another format.
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize("option", ["--log-format=xml", "--log-level=loud"])
def test_an_unknown_format_or_level_is_refused(machine: Machine, source: Path, option: str) -> None:
    machine.refused(2, "mount", source, machine.mnt, option)


def test_json_in_the_foreground_has_no_other_lines(machine: Machine, source: Path) -> None:
    command = machine.command("mount", "-f", "--log-format", "json", source, machine.mnt)
    served = "is served at"
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr
        told = []
        try:
            for line in daemon.stderr:
                told.append(json.loads(line))
                if "to end it" in told[-1]["message"]:
                    machine.ok("umount", machine.mnt)
            daemon.wait(PATIENCE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 0
    assert any(served in line["message"] for line in told)
