"""Which processes of the machine this one can see."""

import os
from pathlib import Path

_FIRST = "pid:[4026531836]"
"""The pid namespace of the machine itself has this number in each kernel (PROC_PID_INIT_INO)."""


def sees_all_pids(proc: Path = Path("/proc")) -> bool:
    """Whether this process is in the machine's own pid namespace, where each thread has a number. Raises OSError."""
    return os.readlink(proc / "self/ns/pid") == _FIRST
