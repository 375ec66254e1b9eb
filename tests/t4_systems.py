"""The check that scripts/test-systems runs on each system, on this one."""

import sys
from pathlib import Path

from machine import Machine
from patience import completed

CHECK = Path(__file__).parents[1] / "scripts/system_check.py"


def test_the_check_of_a_system_passes_here_and_counts_a_planted_fault(machine: Machine) -> None:
    # Colons stand for spaces.
    command = [sys.executable, str(CHECK), f"{sys.executable} -m redoxfs", str(machine.folder), "pool", "planted:fault"]
    done = completed(command, env=machine.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, pool, fault, result = done.stdout.splitlines()
    assert pool.split()[:4] == ["pool", "480", "0", "480"]
    assert fault.split()[:5] == ["planted", "fault", "240", "1", "240"]
    assert fault.endswith("fails, as it must")
    assert result == "2 of 2 rows ok"
