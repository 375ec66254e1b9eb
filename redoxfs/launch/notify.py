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


def notify_when_readable(path: Path, timeout_s: float, **news: object) -> None:
    """Send variables once another process has read a file of this daemon's own mount; end this process if it cannot.

    The daemon must not read the file: a thread of it that waits for its own mount keeps it from ending.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return

    def wait() -> None:
        try:
            command = [sys.executable, "-ISc", _READ, os.fspath(path)]
            subprocess.run(command, check=True, timeout=timeout_s, capture_output=True)
        except (OSError, subprocess.SubprocessError) as failure:
            notify(STATUS=f"{path} cannot be read: {failure}")
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            notify(**news)

    threading.Thread(target=wait, name="notify", daemon=True).start()
