"""A stock pyfuse3 behind a socket pair, for the requests that the session forwards.

libfuse takes ``/dev/fd/N`` as a mountpoint and speaks FUSE on that descriptor, one request or reply a message. Here it
is one end of a SOCK_SEQPACKET pair. The session has the other. It begins with a copy of the kernel's INIT, whose reply
it keeps to itself.

pyfuse3 writes its replies in the thread that also empties the socket, so a full socket would stop both for ever. It
cannot fill up: pyfuse3 has at most `TASKS` requests in work, all but a few of their answers are some hundred bytes
long, the session asks for none of more than 64 KiB, and it reads them whenever it takes requests. Without root the
socket may have less than `ROOM_BYTES`, but 400 kB, the usual limit, have room too.
"""

import socket

import pyfuse3

from redoxfs.fs.operations import Operations

TASKS = 256
"""pyfuse3's max_tasks: as many of these requests as may wait for another node at once."""

ROOM_BYTES = 1 << 20
"""For messages that were sent and not yet received. A short one takes about 1 kB."""

_SO_SNDBUFFORCE = 32


class Relay:
    """pyfuse3 with ``operations``; there can be one in a process. ``fd``: the session's end, which is not blocking."""

    def __init__(self, operations: Operations) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        for end in (self._ours, theirs):
            _make_room(end)
        pyfuse3.init(operations, f"/dev/fd/{theirs.fileno()}", set())
        theirs.detach()  # pyfuse3 closes it
        self.fd = self._ours.fileno()

    async def run(self) -> None:
        """Handle requests until `stop`, and until all are answered."""
        await pyfuse3.main(max_tasks=TASKS)

    def stop(self) -> None:
        """Receive nothing more; in the thread of `run`."""
        pyfuse3.terminate()

    def close(self) -> None:
        """Close both ends; after `run`."""
        pyfuse3.close(unmount=False)
        self._ours.close()


def _make_room(end: socket.socket) -> None:
    try:
        end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, ROOM_BYTES // 2)  # the kernel doubles it
    except PermissionError:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES // 2)
