"""News for systemd, or another supervisor with its protocol: sd_notify(3).

A daemon in the foreground sends datagrams to the socket that $NOTIFY_SOCKET names. A news that cannot be sent is lost:
what it is about goes on.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_READ = "import sys; open(sys.argv[1], 'rb').read()"


def notify(**news: object) -> None:
    """Send variables, such as ``STATUS="scanning"``, if somebody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    # Other kinds of address, such as vsock, are for virtual machines.
    if not address.startswith(("/", "@")):
        return
    text = "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in news.items())
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # A full queue must not stop the daemon.
        sender.setblocking(False)
        sender.sendto(text.encode(errors="replace"), f"\0{address[1:]}" if address[0] == "@" else address)


def when_readable(path: Path, timeout_s: float, then: Callable[[], None]) -> None:
    """Where somebody listens, call once another process has read a file of this daemon's own mount, else at once.

    If the file cannot be read, end this process. The daemon must not read it: a thread of it that waits for its own
    mount keeps it from ending. While the other process reads, the mount is in use.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        then()
        return

    def wait() -> None:
        try:
            command = [sys.executable, "-ISc", _READ, os.fspath(path)]
            subprocess.run(command, check=True, timeout=timeout_s, capture_output=True)
        except (OSError, subprocess.SubprocessError) as failure:
            notify(STATUS=f"{path} cannot be read: {failure}")
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            then()

    threading.Thread(target=wait, name="notify", daemon=True).start()
