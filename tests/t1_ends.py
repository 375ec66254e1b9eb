"""The end of a process is seen with a pidfd, and without."""

import errno
import os
import select
import signal
import subprocess
import threading

import pytest
from patience import PATIENCE_S, until

from redoxfs.launch.deadline import look
from redoxfs.linux.ends import end_of


@pytest.fixture(params=["pidfd", "no pidfd"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "no pidfd":
        monkeypatch.setattr(os, "pidfd_open", refused)


def has_ended(fd: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


@pytest.mark.usefixtures("kernel")
def test_the_end_of_a_process_is_seen_also_of_a_zombie() -> None:
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        fd = end_of(process.pid)
        assert not has_ended(fd, 0.1)
        process.send_signal(signal.SIGKILL)
        # Nobody has waited for it yet.
        assert has_ended(fd, PATIENCE_S)
        os.close(fd)
    with pytest.raises(ProcessLookupError):
        end_of(process.pid)


@pytest.mark.usefixtures("kernel")
def test_nothing_goes_on_once_nobody_looks() -> None:
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        os.close(end_of(process.pid))
        until(lambda: all(thread.name != "redoxfs-end-of" for thread in threading.enumerate()))
        assert process.poll() is None
        process.kill()


@pytest.mark.usefixtures("kernel")
def test_a_look_in_a_child_needs_no_pidfd() -> None:
    before = set(threading.enumerate())
    assert look("/", PATIENCE_S).error == 0
    assert not set(threading.enumerate()) - before
