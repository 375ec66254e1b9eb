"""Going into the background, with the parent waiting until the mount answers.

The parent learns over a pipe how it went: "ready", or the exit code and the line of what went wrong, or
nothing at all when the daemon died without a word. A plain fork, not a new interpreter: the catalog is in
memory already and is shared. Only the forking thread lives on in a child, with every lock of the others as it
was; so there must be no others.
"""

import json
import logging
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

from redoxfs.cli.exits import UNEXPECTED, DaemonError, ReportedError, code_of, line_of

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Work = Callable[[Callable[[], None]], None]


def log_to(stream: TextIO) -> None:
    """Everything that is logged from here on goes to `stream`."""
    logging.basicConfig(format=_LOG_FORMAT, level=logging.INFO, stream=stream, force=True)


def start(work: Work, *, log_fd: int, log_path: Path, timeout_s: float) -> int:
    """Run `work(on_ready)` in a child and return the child's pid once it has called `on_ready`.

    Raises ReportedError with what `work` raised before that, DaemonError if it just ended or was not ready in
    time.
    """
    if threading.active_count() != 1:
        raise RuntimeError(f"threads at the fork: {threading.enumerate()}")
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _be_daemon(work, write_end, log_fd)
    os.close(write_end)
    try:
        message = _first_message(read_end, timeout_s)
    except (KeyboardInterrupt, TimeoutError) as stop:
        os.kill(child, signal.SIGTERM)
        if isinstance(stop, KeyboardInterrupt):
            raise
        raise DaemonError(f"the mount did not answer within {timeout_s:g} s; the daemon's log: {log_path}") from None
    finally:
        os.close(read_end)
    if not message:
        _, status = os.waitpid(child, 0)
        raise DaemonError(f"the daemon ended early ({_ending(status)}); its log: {log_path}")
    told = json.loads(message)
    if "line" in told:
        os.waitpid(child, 0)
        raise ReportedError(told["code"], f"{told['line']}; the daemon's log: {log_path}")
    return child


def _be_daemon(work: Work, write_end: int, log_fd: int) -> NoReturn:
    """The child, up to its end, by os._exit: what the parent registered for its exit is the parent's."""
    code = UNEXPECTED
    try:
        os.setsid()
        # A working directory would keep a mount or a disk busy that has nothing to do with this one.
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(null)
        os.close(log_fd)
        log_to(sys.stderr)
        code = _work_and_tell(work, write_end)
        logging.shutdown()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _work_and_tell(work: Work, write_end: int) -> int:
    told = False

    def tell(message: dict[str, object]) -> None:
        nonlocal told
        if not told:
            told = True
            try:
                os.write(write_end, json.dumps(message).encode("ascii") + b"\n")
            except BrokenPipeError:
                # The parent was interrupted; its SIGTERM is on the way.
                logging.getLogger(__name__).info("nobody waits for the mount any more")
            finally:
                os.close(write_end)

    try:
        work(lambda: tell({"ready": True}))
    except BaseException as error:
        code, line = code_of(error), line_of(error)
        logging.getLogger(__name__).log(logging.ERROR, "%s", line, exc_info=code == UNEXPECTED)
        tell({"code": code, "line": line.removeprefix("redoxfs: ")})
        return code
    return 0


def _first_message(fd: int, timeout_s: float) -> bytes:
    """The line the child wrote; b"" if it ended without one. A line fits in one write of a pipe."""
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    if not ready.poll(timeout_s * 1000):
        raise TimeoutError
    return os.read(fd, 1 << 16)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"status {os.waitstatus_to_exitcode(status)}"
