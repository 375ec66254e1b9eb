"""Ports of the loopback address for servers that a test starts.

Each stays bound until the test is over, by a socket that does not listen. So the kernel gives it to nobody else who
asks for any port, as tests beside this one do, and a server that sets SO_REUSEADDR, as gRPC's does, can listen at it.
"""

import socket

_held: list[socket.socket] = []


def reserve(count: int) -> list[int]:
    """Different ports that nobody listens at."""
    ports = []
    for _ in range(count):
        holder = socket.socket()
        _held.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        ports.append(int(holder.getsockname()[1]))
    return ports


def release() -> None:
    """Give back all that were reserved."""
    while _held:
        _held.pop().close()
