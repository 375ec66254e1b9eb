"""The history of a live mount, read from it, and the verdict that follows.

The daemon of another user may say anything. So a verdict about its mount names no command that is made of the words
which that daemon was asked for, it says: root might run it.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redoxfs.doctor.mount import Watched, check_waits
from redoxfs.doctor.period import period_of
from redoxfs.doctor.result import Result, ok, problem
from redoxfs.doctor.verdict import NAME, judge
from redoxfs.launch.control import send_control
from redoxfs.launch.control_files import WRONG, plain_stats, read_control_at
from redoxfs.launch.errors import CommandError
from redoxfs.launch.memory import available_memory
from redoxfs.launch.runtime_paths import control_path
from redoxfs.linux.mount_table import mount_of, read_mounts
from redoxfs.telemetry.history_form import Read, read


def history_text(path: Path, timeout_s: float) -> bytes:
    """history.json of the mount at ``path``. Raises OSError.

    If it is another user's, without what the mount was asked for.
    """
    text = read_control_at(path, "history.json", timeout_s)
    return text if _is_own(path) else _without_request(text)


def _is_own(path: Path) -> bool:
    mount = mount_of(path, read_mounts())
    return mount is not None and mount.owner is not None and mount.owner[0] == os.geteuid()


def _without_request(text: bytes) -> bytes:
    try:
        value = json.loads(text)
        value["stats"].pop("request", None)
        return json.dumps(value).encode()
    except WRONG:
        # Whoever understands it says what is wrong.
        return text


def received_history_text(socket: Path, timeout_s: float) -> bytes:
    """Likewise of the mount that a socket received. Raises OSError, ValueError, KeyError."""
    answer = send_control(control_path(Path(os.path.realpath(socket))), "history", timeout_s=timeout_s)
    return str(answer["text"]).encode()


def verdict_of(text: bytes) -> Result:
    """The verdict about a mount of this machine, which wrote a history.json."""
    try:
        return judge(understood(text), _free_bytes())
    except WRONG as error:
        return ok(NAME, f"cannot say, because its history is not understood: {type(error).__name__}", cause="unknown")


def _free_bytes() -> int | None:
    try:
        return available_memory()
    except (OSError, CommandError, ValueError):
        return None


def verdict_at(path: Path, timeout_s: float) -> Result:
    """The verdict about the mount at ``path``. Never raises for what it finds there."""
    return _verdict(history_text, path, timeout_s)


def received_verdict(socket: Path, timeout_s: float) -> Result:
    """Likewise about the mount that a socket received."""
    return _verdict(received_history_text, socket, timeout_s)


def _verdict(text_of: Callable[[Path, float], bytes], path: Path, timeout_s: float) -> Result:
    try:
        return verdict_of(text_of(path, timeout_s))
    except (OSError, CommandError, *WRONG) as failure:
        reason = getattr(failure, "strerror", None) or failure
        return ok(NAME, f"cannot say, because its history cannot be read: {reason}", cause="unknown")


def understood(text: bytes) -> Read:
    """A history whose texts may be shown. Raises one of `WRONG`."""
    value: dict[str, Any] = json.loads(text)
    return read({**value, "stats": plain_stats(value["stats"])})


def dead(daemon: Result) -> Result:
    """The verdict where ``daemon`` says that it does not answer."""
    return problem(NAME, f"the daemon of this mount: {daemon.found}", daemon.command, cause="daemon")


def waits_in(history: Read) -> Result | None:
    """How much programs waited in the period that the verdict is about; None if none has opened a file."""
    period = period_of(history)
    if period is None:
        return None
    # The counters of another process begin at zero.
    after = {**history.stats, **period.grown, "waiting_opens": 0, "waiting_reads": 0, "pid": 1}
    return check_waits(Watched({**after, "pid": 0}, after, period.seconds), f" {period.name}")
