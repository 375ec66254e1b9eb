"""`redoxfs report`: one page of HTML about mounts, and tables of figures."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from redoxfs.cli.options.examining import ReportOptions
from redoxfs.doctor.histories import history_text, received_history_text
from redoxfs.launch.control import asking_socket, live_mount, reading
from redoxfs.launch.deadline import MOST_BYTES, look, read_file
from redoxfs.launch.errors import DestinationError, UsageError
from redoxfs.launch.outputs import check_replaceable, outside
from redoxfs.launch.say import show
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.linux import durable
from redoxfs.linux.descriptors import opened
from redoxfs.report import BEGIN, Input, MountRun, UnknownInputError, judged, page, recognized


def run(options: ReportOptions) -> int:
    """Write the page."""
    path = outside(options.output, options.timeout_s)
    check_replaceable(path, f"-o {options.output}", BEGIN.encode(), "page of redoxfs report")
    inputs = [_input(asked, options.timeout_s) for asked in options.inputs]
    try:
        text = page(inputs).encode()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        # gmtime raises OSError for a year that no machine knows.
        names = ", ".join(options.inputs)
        raise UsageError(f"{names}: cannot be shown: {type(error).__name__}: {error}") from error
    _write(path, options.output, text)
    runs = [each for each in inputs if isinstance(each, MountRun)]
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        show(of + judged(run.history).line)
    mounts = sum(isinstance(each, MountRun) for each in inputs)
    told = [counted(mounts, "mount")] if mounts else []
    if len(inputs) > mounts:
        told.append(counted(len(inputs) - mounts, "table"))
    show(f"{options.output}: {', '.join(told)}; {format_bytes(len(text))}")
    return 0


def _input(asked: str, timeout_s: float) -> Input:
    """A mount's history, or the content of a file. Raises UsageError, DaemonError, MountpointError."""
    seen = look(asked, timeout_s)
    if seen.error == errno.ENOENT or stat.S_ISREG(seen.mode):
        data = _of_file(asked, timeout_s)
    else:
        data = _of_mount(asked, timeout_s, is_socket=stat.S_ISSOCK(seen.mode))
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{asked}: is not JSON: {error}") from None
    try:
        return recognized(asked, value)
    except UnknownInputError as refusal:
        raise UsageError(f"{asked}: {refusal}") from None


def _of_file(asked: str, timeout_s: float) -> bytes:
    try:
        return read_file(Path(asked), timeout_s)
    except OSError as failure:
        reason = f"has more than {format_bytes(MOST_BYTES)}" if failure.errno == errno.EFBIG else failure.strerror
        raise UsageError(f"{asked}: {reason or failure}") from None


def _of_mount(asked: str, timeout_s: float, *, is_socket: bool) -> bytes:
    if is_socket:
        path = Path(os.path.realpath(asked))
        with asking_socket(path, timeout_s):
            return received_history_text(path, timeout_s)
    mount = live_mount(asked, timeout_s)
    with reading(mount, "history", timeout_s):
        return history_text(mount.path, timeout_s)


def _write(path: Path, asked: str, text: bytes) -> None:
    try:
        with opened(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            durable.replace(folder, path.name, text)
    except OSError as failure:
        raise DestinationError(f"-o {asked}: {failure.strerror}") from None
