"""Hosts and addresses of nodes: their syntax, and lookups on this machine and in the DNS.

Lookups go through `Here`, so that tests need neither.
"""

import ipaddress
import itertools
import re
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from redoxfs.launch.defaults import DEFAULT_PORT, MOST_NODES
from redoxfs.launch.errors import UsageError

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?", re.ASCII)

# One item of a Slurm hostlist. A text matches it in one way only, so matching takes linear time, even on failure.
# Possessive quantifiers would express that, but with them Python 3.11.2, as in Debian 12, accepts "a," as a hostlist.
_HOSTS = r"(?:[^\[\],\s]|\[[^\[\]\s]+\])+"

# The interval at which a name is resolved, or node 0 called, until it answers as it should.
RETRY_S = 0.5


def _resolve(host: str) -> list[str]:
    return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Here:
    """This machine: its name, its addresses, its resolver and its clock."""

    name: str = field(default_factory=socket.gethostname)
    resolve: Callable[[str], Sequence[str]] = _resolve
    is_own: Callable[[str], bool] = _is_own
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port", "[IPv6]:port", or of either without the port. Raises UsageError."""
    match = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::([^:]*))?", text, re.DOTALL)
    if match is None:
        raise UsageError(f"{text!r} is not a node; write host:port, or [address]:port for IPv6")
    host = match[1] if match[1] is not None else match[2]
    port = DEFAULT_PORT if match[3] is None else port_of(match[3], text)
    return checked_host(host, text, in_brackets=match[1] is not None), port


def checked_host(host: str, text: str, *, in_brackets: bool) -> str:
    if in_brackets or not host.strip("0123456789."):
        # 10.1 and 010.0.0.1 mean something to the resolver, but hardly what the user meant.
        try:
            address = ipaddress.IPv6Address(host) if in_brackets else ipaddress.IPv4Address(host)
        except ValueError:
            raise UsageError(f"{text!r} is not a node: {host!r} is not an address") from None
        if address.is_unspecified or address.is_multicast:
            raise UsageError(f"{text!r} is not a node: no machine has the address {host}")
        return str(address)
    if not _HOST.fullmatch(host) or any(not 1 <= len(part) <= 63 for part in host.removesuffix(".").split(".")):
        raise UsageError(f"{text!r} is not a node: {host!r} is not a host name")
    return host.lower()


def port_of(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise UsageError(f"{whole!r}: {text!r} is not a port from 1 to 65535")
    return int(text)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_literal(host: str) -> bool:
    return ":" in host or not host.strip("0123456789.")


def check_members(addresses: Sequence[str]) -> None:
    if len(addresses) > MOST_NODES:
        raise UsageError(f"{len(addresses)} nodes are more than {MOST_NODES}")
    for node, address in enumerate(addresses):
        if address in addresses[:node]:
            raise UsageError(f"{address} is listed twice, as node {addresses.index(address)} and as node {node}")


def is_loopback(host: str, resolve: Callable[[str], Sequence[str]]) -> bool:
    try:
        found = [host] if is_literal(host) else resolve(host)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def needs_insecure(addresses: Collection[str], resolve: Callable[[str], Sequence[str]] = _resolve) -> bool:
    """Whether messages to ``addresses`` may leave this machine: one is, or may be, not a loopback address."""
    return not all(is_loopback(split_address(address)[0], resolve) for address in addresses)


# Hostlists


def expand(hostlist: str) -> list[str]:
    """The hosts of a Slurm hostlist such as `n[001-003,07],gpu1,r[1-2]c[0-3]`, in its order. Raises UsageError."""
    hosts: list[str] = []
    if not re.fullmatch(rf"{_HOSTS}(?:,{_HOSTS})*", hostlist):
        raise UsageError(f"{hostlist!r} is not a list of hosts such as n[01-03],gpu1")
    for item in re.findall(_HOSTS, hostlist):
        choices = [
            _numbers(part[1:-1], hostlist) if part.startswith("[") else [part]
            for part in re.findall(r"[^\[\]]+|\[[^\[\]]+\]", item)
        ]
        for parts in itertools.product(*choices):
            hosts.append("".join(parts))
            if len(hosts) > MOST_NODES:
                raise UsageError(f"{hostlist!r} has more than {MOST_NODES} hosts")
    return hosts


def _numbers(text: str, hostlist: str) -> list[str]:
    """The numbers in `001-003,07`, each as wide as the first of its range."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"{hostlist!r} is not a list of hosts: {part!r} is not a range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_NODES:
            raise UsageError(f"{hostlist!r} has more than {MOST_NODES} hosts")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers
