"""The connections between nodes: gRPC's options, and the transport.

`Plaintext` is unencrypted and trusts anyone who can reach the port: it is for a network that only the job can reach.
The other `Transport` is `redoxfs.peers.tls`.
"""

import errno
import ipaddress
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
"""The largest request: a part of a trace and its head, or 100,000 hits. The bytes of samples are in replies."""

STREAMS = 64
"""Calls at once over one connection: twice what a peer makes. More wait at the caller."""

SHOWN = 300
"""The most characters of a gRPC message in a line."""

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""These detect a peer that vanished silently, whether or not a call is in progress."""

CONNECT_MS = 1_000
"""The shortest deadline of an attempt to connect."""

RECONNECT_MS = 250
"""The longest time between attempts: a node whose daemon died listens again after a second or so. gRPC's default, up to
two minutes, is for services with thousands of clients."""

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
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
    # The client alone repeats messages. gRPC's own retries may leave the wait for a reply without an end.
    ("grpc.enable_retries", 0),
    # Nodes of a job connect directly, never through the proxy that the environment names for the internet.
    ("grpc.enable_http_proxy", 0),
    # Each channel has its own connection, whatever other connections the process has.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER_OPTIONS: Sequence[tuple[str, int]] = [
    *LIMITS,
    ("grpc.max_receive_message_length", REQUEST_LIMIT_BYTES),
    ("grpc.max_concurrent_streams", STREAMS),
    # Otherwise two servers at one port would each get a part of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]

_MEANINGS = {
    "Hostname Verification Check failed": "its certificate is not for this host",
    "does not match SSL server name": "its certificate is not for this host",
    "WRONG_VERSION_NUMBER": "it does not use TLS",
    "Socket closed": "it closed the connection: only one of the two uses TLS, or a certificate is not trusted",
}

_NOT_VERIFIED = re.compile("CERTIFICATE_VERIFY_FAILED: ([^:]*)")


class Transport(Protocol):
    """Carries the calls; the same at all nodes."""

    def channel(self, address: str) -> grpc.Channel:
        """A channel to the node at ``address``, which connects when it is first used."""

    def listen(self, server: grpc.Server, address: str) -> None:
        """Have ``server`` listen at ``address``. Raises OSError."""

    def why_not(self, context: grpc.ServicerContext, node: int) -> str | None:
        """Why the caller is not ``node``, as it claims; None if it is, or if the transport cannot know."""

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
        return None

    def for_view(self, view: View) -> "Plaintext":
        return self


def listening_at(addresses: Sequence[str], node: int) -> str:
    """Where a node of a list listens.

    On Debian the name of a machine is a loopback address there, where no other machine can call it. Then the node
    listens at all addresses of the machine, unless all nodes are on the loopback.
    """
    own = addresses[node]
    if not _is_loopback(own) or all(map(_is_loopback, addresses)):
        return own
    return f"[::]:{own.rpartition(':')[2]}"


def _is_loopback(address: str) -> bool:
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(name[0]).is_loopback for *_, name in found)


def listen(address: str, add_port: Callable[[], int]) -> None:
    """Call ``add_port``, which makes a server listen at ``address``. Raises OSError if it fails."""
    try:
        bound = add_port()
    except RuntimeError:
        bound = 0
    if not bound:
        raise _why_not(address)


def one_line(text: str) -> str:
    """``text``, which may come from a peer, as one line of limited length."""
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words[:SHOWN])
    return f"{shown}…" if len(words) > SHOWN else shown


def reason_of(details: str | None) -> str:
    """Why a peer cannot be reached, in short. gRPC's own text has the whole path that the error took."""
    text = details or ""
    found = _NOT_VERIFIED.search(text)
    if found is not None:
        return f"its certificate cannot be verified: {one_line(found[1])}"
    for sign, meaning in _MEANINGS.items():
        if sign in text:
            return meaning
    return one_line(text.rpartition(": ")[2]).lower() or "cannot be reached"


def _why_not(address: str) -> OSError:
    """The system's error for listening at ``address``, which gRPC does not return."""
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
