"""Where a daemon listens for scrapes: the values of --metrics and --metrics-label, and the socket."""

import ipaddress
import re
import socket
from collections.abc import Sequence

from redoxfs.launch.addresses import joined, port_of
from redoxfs.launch.errors import UsageError

LOCALHOST = "127.0.0.1"

_BACKLOG = 16

_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of PORT, HOST:PORT or [IPv6]:PORT. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host = LOCALHOST
    in_brackets = host.startswith("[") and host.endswith("]")
    if not host or (":" in host) != in_brackets:
        raise UsageError(f"{text!r} is not an address; write HOST:PORT, [IPv6]:PORT, or PORT alone for this machine")
    if in_brackets:
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise UsageError(f"{text!r}: {host[1:-1]!r} is not an address") from None
    try:
        # As the resolver is asked for it.
        host.encode("idna")
    except UnicodeError:
        raise UsageError(f"{text!r}: {host!r} is not a host name") from None
    return host, port_of(port, text)


def listen(option: str, address: str) -> socket.socket:
    """A socket that listens at the ``address`` that ``option`` names. Raises UsageError: one line."""
    host, port = parse_listen(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as failure:
        reason = (failure.strerror or str(failure)).partition(" (while")[0]
        raise UsageError(f"{option} {joined(host, port)}: cannot listen there: {reason}") from None


def moved(address: str, by: int) -> str:
    """The address whose port is ``by`` higher: of another node on this machine. Raises UsageError."""
    host, port = parse_listen(address)
    return joined(host, port_of(str(port + by), address))


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """The labels of NAME=VALUE texts. Raises UsageError."""
    from redoxfs.telemetry import METRICS

    taken = {"mount", "node", "le", *(label for metric in METRICS for label in metric.labels)}
    labels: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not _LABEL.fullmatch(name):
            raise UsageError(f"--metrics-label {text!r}: write NAME=VALUE, with letters, digits and _ in NAME")
        if name in taken or name in labels:
            raise UsageError(f"--metrics-label {text!r}: there is another label {name}")
        labels[name] = value
    return labels
