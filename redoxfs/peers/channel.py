"""How nodes reach each other: gRPC's options, and what the calls go over.

`Plaintext` is unencrypted, and whoever reaches the port is believed to be the node that it says it is: for a network
that only the job can reach. The other `Transport` is `redoxfs.peers.tls`.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from redoxfs.peers.view import View

MESSAGE_LIMIT_BYTES = 4 << 20
"""A part of 1 MiB and a header; headers of 2 MiB describe some 50,000 files."""

HEADER_LIMIT_BYTES = 2 << 20

REQUEST_LIMIT_BYTES = 2 << 20
"""What a node takes from another at once: a part of a trace and its head, or 100,000 hits. The bytes of samples go the
other way."""

STREAMS = 64
"""Calls at once over one connection, twice what a peer makes; more than that wait at the caller."""

SHOWN = 300
"""Characters of what gRPC says that go into a line."""

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""A peer that vanished without a word is noticed by these, whether or not a call is under way."""

RECONNECT_MS = 1_000
"""The longest time between attempts. gRPC's own, up to two minutes, is for clients of services with thousands."""

LIMITS = [
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = [
    *LIMITS,
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
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
    ("grpc.max_receive_message_length", REQUEST_LIMIT_BYTES),
    ("grpc.max_concurrent_streams", STREAMS),
    # Two servers at one port would each get a part of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]

_MEANINGS = {
    "Hostname Verification Check failed": "its certificate is not for this host",
    "does not match SSL server name": "its certificate is not for this host",
    "WRONG_VERSION_NUMBER": "it does not talk TLS",
    "Socket closed": "it closes the connection, as where one of two talks TLS, or has no certificate that is believed",
}

_NOT_VERIFIED = re.compile("CERTIFICATE_VERIFY_FAILED: ([^:]*)")


class Transport(Protocol):
    """What the calls go over, the same at all nodes."""

    def channel(self, address: str) -> grpc.Channel:
        """To the node at ``address``; connects when it is first used."""

    def listen(self, server: grpc.Server, address: str) -> None:
        """Have ``server`` listen at ``address``. Raises OSError."""

    def why_not(self, context: grpc.ServicerContext, node: int) -> str | None:
        """Why whoever makes a call is not ``node``, as it says; None if it is, or nobody can know."""

    def for_view(self, view: View) -> "Transport":
        """The same for another list of nodes. Raises ValueError."""

    @property
    def interceptors(self) -> Sequence[grpc.ServerInterceptor]: ...


class Plaintext:
    """No encryption, no authentication."""

    interceptors: Sequence[grpc.ServerInterceptor] = ()

    def channel(self, address: str) -> grpc.Channel:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    def listen(self, server: grpc.Server, address: str) -> None:
        listen(address, lambda: server.add_insecure_port(address))

    def why_not(self, context: grpc.ServicerContext, node: int) -> str | None:
        del context, node
        return None

    def for_view(self, view: View) -> "Plaintext":
        del view
        return self


def listen(address: str, add_port: Callable[[], int]) -> None:
    """``add_port``, which has a server listen at ``address``. Raises OSError."""
    try:
        bound = add_port()
    except RuntimeError:
        bound = 0
    if not bound:
        raise _why_not(address)


def one_line(text: str) -> str:
    """``text``, which may be a peer's, as one line that is no longer than a line should be."""
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words[:SHOWN])
    return f"{shown}…" if len(words) > SHOWN else shown


def reason_of(details: str | None) -> str:
    """Why a peer cannot be reached, in short; what gRPC says of it is the whole path that the error took."""
    text = details or ""
    found = _NOT_VERIFIED.search(text)
    if found is not None:
        return f"its certificate is not good: {one_line(found[1])}"
    for sign, meaning in _MEANINGS.items():
        if sign in text:
            return meaning
    return one_line(text.rpartition(": ")[2]).lower() or "cannot be reached"


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
