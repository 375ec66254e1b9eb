"""How nodes reach each other: the one place that knows of credentials and of gRPC's options.

Unencrypted, and whoever reaches the port is believed to be the node that it says it is: for a network that only the
job can reach. Another `Transport` is all that TLS takes.
"""

import errno
import os
import socket
from collections.abc import Sequence
from typing import Protocol

import grpc

MESSAGE_LIMIT_BYTES = 4 << 20
"""A part of 1 MiB and a header; headers of 2 MiB describe some 50,000 files."""

HEADER_LIMIT_BYTES = 2 << 20

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""A peer that vanished without a word is noticed by these, whether or not a call is under way."""

RECONNECT_MS = 1_000
"""The longest time between attempts. gRPC's own, up to two minutes, is for clients of services with thousands."""

LIMITS = [
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = [
    *LIMITS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
    # Nodes of a job talk to each other, never by the proxy that the environment names for the world outside.
    ("grpc.enable_http_proxy", 0),
    # Each channel has its own connection, whatever else this process talks to.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER_OPTIONS: Sequence[tuple[str, int]] = [
    *LIMITS,
    # Two servers at one port would each get a part of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]


class Transport(Protocol):
    """What the calls go over, the same at all nodes."""

    def channel(self, address: str) -> grpc.Channel:
        """To the node at ``address``; connects when it is first used."""

    def listen(self, server: grpc.Server, address: str) -> None:
        """Have ``server`` listen at ``address``. Raises OSError."""

    @property
    def interceptors(self) -> Sequence[grpc.ServerInterceptor]: ...


class Plaintext:
    """No encryption, no authentication."""

    interceptors: Sequence[grpc.ServerInterceptor] = ()

    def channel(self, address: str) -> grpc.Channel:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    def listen(self, server: grpc.Server, address: str) -> None:
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise _why_not(address)


def _why_not(address: str) -> OSError:
    """What the system says about listening at ``address``: gRPC does not tell."""
    host, _, port = address.rpartition(":")
    try:
        where = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, name in where:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(name)
                tried.listen()
    except socket.gaierror as error:
        return OSError(errno.EADDRNOTAVAIL, f"cannot listen at {address}: {error.strerror}")
    except OSError as error:
        number = error.errno or errno.EIO
        return OSError(number, f"cannot listen at {address}: {os.strerror(number)}")
    return OSError(errno.EIO, f"cannot listen at {address}")
