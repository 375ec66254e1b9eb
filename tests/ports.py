"""Ports of the loopback address for servers that a test starts.

A socket that does not listen stays bound to each port until the test ends. The kernel then gives the port to no other
process that asks for any port, such as another test, while a server that sets SO_REUSEADDR, as gRPC does, can listen.
"""

import socket

_held: list[socket.socket] = []


def reserve(count: int, held: list[socket.socket] = _held) -> list[int]:
    """``count`` different ports without a listener. They are reserved while the sockets in ``held`` are open.

    What serves several tests needs a list of its own.
    """
    ports = []
    for _ in range(count):
        holder = socket.socket()
        held.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        ports.append(int(holder.getsockname()[1]))
    return ports


def reserve_addresses(count: int) -> list[str]:
    """HOST:PORT of such ports, for the nodes of a job."""
    return [f"127.0.0.1:{port}" for port in reserve(count)]


def reserve_two() -> int:
    """A port without a listener, like the next one: the first of the two."""
    while True:
        (port,) = reserve(1)
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", port + 1))
        except (OSError, OverflowError):
            holder.close()
            continue
        _held.append(holder)
        return port


def release() -> None:
    """Release all reserved ports."""
    while _held:
        _held.pop().close()
