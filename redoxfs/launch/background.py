"""Running the daemon in the background, with the parent waiting until the mount answers.

The parent learns the outcome over a pipe: lines to print, then "ready", or the exit code and the line of an error, or
end of file if the daemon died. It is a plain fork, not a new interpreter: the catalog is in memory already and is
shared. Only the forking thread survives in a child, and every lock that another thread held stays locked, so there
must be no other threads.
"""

import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from redoxfs.launch.errors import UNEXPECTED, DaemonError, ReportedError
from redoxfs.launch.forks import forked
from redoxfs.launch.logs import log_to

Work = Callable[[Callable[[], None], Callable[[str], None]], int]
"""What the daemon runs. Its arguments: a function to call when it is ready, and one for lines to the user. It returns
the daemon's exit code."""

Keep = Callable[[Callable[[], int]], int]
"""Called in a child of the command with what the daemon's process runs: forks that process, and becomes its keeper."""

Described = Callable[[BaseException], tuple[int, str]]
"""The exit code of an exception, and its line for the user."""


def start(
    work: Work,
    *,
    log_fd: int,
    log_path: Path,
    timeout_s: float,
    say: Callable[[str], None],
    describe: Described,
    keep: Keep | None = None,
    log: Callable[[TextIO], None] = log_to,
) -> int:
    """Run `work(on_ready, on_news)` in a daemon and return the daemon's pid once it has called `on_ready`.

    The daemon is a child, or with ``keep`` the child of one. Lines that it passes to `on_news` before that go to `say`.
    ``log`` sends its log to a stream.

    Raises ReportedError with the error that `work` raised before that, DaemonError if it ended without one or was not
    ready in time.
    """
    if threading.active_count() != 1:
        raise RuntimeError(f"threads at the fork: {threading.enumerate()}")
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()

    def be_child() -> int:
        os.close(read_end)

        def be_daemon() -> int:
            return _be_daemon(work, write_end, log_fd, describe, log)

        if keep is None:
            return be_daemon()
        try:
            return keep(be_daemon)
        except OSError as error:
            # There is no daemon that could say it.
            code, line = describe(error)
            os.write(write_end, json.dumps({"code": code, "line": line}).encode("ascii") + b"\n")
            return code

    try:
        with forked(be_child, signal.SIGTERM) as child:
            os.close(write_end)
            message = _outcome(read_end, timeout_s, say)
    except TimeoutError:
        raise DaemonError(f"the mount did not answer within {timeout_s:g} s; the daemon's log: {log_path}") from None
    finally:
        os.close(read_end)
    if message is None:
        _, status = os.waitpid(child, 0)
        raise DaemonError(f"the daemon ended early ({_ending(status)}); its log: {log_path}")
    if "line" in message:
        os.waitpid(child, 0)
        raise ReportedError(message["code"], f"{message['line']}; the daemon's log: {log_path}")
    return int(message["pid"])


def _be_daemon(work: Work, write_end: int, log_fd: int, describe: Described, log: Callable[[TextIO], None]) -> int:
    """Run the child to its end; returns its exit code."""
    code = UNEXPECTED
    try:
        # Until the mount answers, the daemon stays in the process group of the command: an automounter lets only that
        # one pass to the mountpoint. A Ctrl-C there is for the command, which passes it on as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A working directory would keep an unrelated mount or disk busy.
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(null)
        os.close(log_fd)
        log(sys.stderr)
        code = _work_and_report(work, write_end, describe)
        logging.shutdown()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    return code


def _work_and_report(work: Work, write_end: int, describe: Described) -> int:
    is_over = False

    def send(message: dict[str, object], *, last: bool = True) -> None:
        nonlocal is_over
        if is_over:
            return
        is_over = last
        try:
            os.write(write_end, json.dumps(message).encode("ascii") + b"\n")
        except BrokenPipeError:
            # The parent was interrupted; its SIGTERM will arrive soon.
            logging.getLogger(__name__).info("the command that started this mount has ended")
        finally:
            if last:
                os.close(write_end)

    def on_ready() -> None:
        os.setsid()
        send({"ready": True, "pid": os.getpid()})

    try:
        return work(on_ready, lambda line: send({"news": line}, last=False))
    except BaseException as error:
        code, line = describe(error)
        logging.getLogger(__name__).log(logging.ERROR, "redoxfs: %s", line, exc_info=code == UNEXPECTED)
        send({"code": code, "line": line})
        return code


def _outcome(fd: int, timeout_s: float, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The last message of the child; None if it ended without one. Raises TimeoutError."""
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    deadline_s = time.monotonic() + timeout_s
    ahead = b""
    while ready.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
        part = os.read(fd, 1 << 16)
        if not part:
            return None
        *lines, ahead = (ahead + part).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if "news" not in message:
                return message
            say(message["news"])
    raise TimeoutError


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"status {os.waitstatus_to_exitcode(status)}"
