"""Mutual TLS: both sides present a certificate of the CA, and each is held to the list of nodes.

gRPC sees that the certificate of whoever is called is for the host that was called. That the certificate of a caller is
for the host of the node that it says it is, is for us to see: without that, one node's key would open all doors as any
node. Names are taken from where they belong, the subject's alternative names; gRPC takes no other either. Nodes that
share a host share its name, and can pass for each other.

The files are read once. A connection outlives the certificate that it began with, but another one cannot be made after
that: a certificate should be good for as long as the job runs. gRPC can be told of a new one for a server alone, so a
node would go on calling with the old one.
"""

import copy
import ipaddress
import os
import ssl
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import grpc

from redoxfs.peers.channel import CHANNEL_OPTIONS, listen
from redoxfs.peers.view import View

FILE_BYTES = 1 << 20
"""More than any chain of certificates has."""

_KINDS = ("peer_dns", "peer_ip")
"""What gRPC calls the names and the addresses that a certificate is for."""


class TlsError(ValueError):
    """The files of TLS cannot be used: one line."""


class Tls:
    """A `Transport`.

    Args:
        cert_file: this node's certificate, and those between it and the CA.
        key_file: its key.
        ca_file: the certificates that all nodes' are to be of.
        view: which host each node has to prove that it is.
        node: where it is known, the certificate has to be for this node's own host.

    Raises:
        TlsError: a file cannot be read, or others cannot believe this node by them.
    """

    interceptors: Sequence[grpc.ServerInterceptor] = ()

    def __init__(
        self,
        cert_file: str | os.PathLike[str],
        key_file: str | os.PathLike[str],
        ca_file: str | os.PathLike[str],
        view: View,
        *,
        node: int | None = None,
    ) -> None:
        self._cert_file = os.fspath(cert_file)
        self._cert = _read(cert_file, "certificate")
        self._key = _read(key_file, "key", secret=True)
        self._ca = _read(ca_file, "CA")
        self._names, self._addresses = _check(self._cert_file, os.fspath(key_file), os.fspath(ca_file))
        self._hosts: Sequence[str] = ()
        self._take(view, node)

    def for_view(self, view: View, *, node: int | None = None) -> "Tls":
        """The same for another list of nodes; reads no file. Raises TlsError."""
        other = copy.copy(self)
        other._take(view, node)
        return other

    def _take(self, view: View, node: int | None) -> None:
        self._hosts = tuple(host_of(address) for address in view.addresses)
        if node is not None and not is_for(self._hosts[node], self._names, self._addresses):
            raise TlsError(
                f"{self._cert_file}: the certificate is for {_shown([*self._names, *self._addresses])}, and this node, "
                f"{node}, is {self._hosts[node]}"
            )

    def channel(self, address: str) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self._ca, self._key, self._cert)
        return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)

    def listen(self, server: grpc.Server, address: str) -> None:
        credentials = grpc.ssl_server_credentials([(self._key, self._cert)], self._ca, require_client_auth=True)
        listen(address, lambda: server.add_secure_port(address, credentials))

    def why_not(self, context: grpc.ServicerContext, node: int) -> str | None:
        """Why the caller is not ``node``; None if it is. Numbers that no node has are for others to refuse."""
        if node >= len(self._hosts):
            return None
        told: Mapping[str, Any] = context.auth_context()
        names, addresses = ([str(each, errors="replace") for each in told.get(kind, ())] for kind in _KINDS)
        host = self._hosts[node]
        if is_for(host, names, addresses):
            return None
        return f"the certificate that was shown is for {_shown([*names, *addresses])}, and node {node} is {host}"


def host_of(address: str) -> str:
    """The host of "host:port" or "[IPv6]:port"."""
    return address.rpartition(":")[0].strip("[]")


def is_for(host: str, names: Iterable[str], addresses: Iterable[str]) -> bool:
    """Whether a certificate for ``names`` and ``addresses`` is one for ``host``, by the rules that gRPC has, too."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return any(_matches(host.lower().rstrip("."), name.lower().rstrip(".")) for name in names)
    return any(_is_same(address, other) for other in addresses)


def _matches(host: str, name: str) -> bool:
    if not name.startswith("*."):
        return bool(name) and host == name
    first, _, rest = host.partition(".")
    # One label, and never all names below a top level domain.
    return bool(first) and rest == name[2:] and "." in rest


def _is_same(address: ipaddress.IPv4Address | ipaddress.IPv6Address, other: str) -> bool:
    try:
        return address == ipaddress.ip_address(other)
    except ValueError:
        return False


def _shown(names: Sequence[str]) -> str:
    """Names for people: a certificate may have thousands, of any length."""
    told = ", ".join(name[:80] if name.isprintable() else ascii(name[:80]) for name in names[:3])
    return f"{told}, …" if len(names) > 3 else told or "no host"


def _read(path: str | os.PathLike[str], what: str, *, secret: bool = False) -> bytes:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise TlsError(f"{os.fspath(path)}: the {what} is no regular file")
            # As ssh does: whoever can read it can pass for this node, so a warning would come too late. A file of
            # another owner is that owner's business, as where root hands a key to a group.
            if secret and found.st_uid == os.geteuid() and found.st_mode & 0o077:
                raise TlsError(
                    f"{os.fspath(path)}: the {what} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}); "
                    "to prevent that: chmod 600"
                )
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{os.fspath(path)}: the {what} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES:
        raise TlsError(f"{os.fspath(path)}: the {what} is longer than {FILE_BYTES} bytes")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """A pipe in place of a file must not be waited for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check(cert_file: str, key_file: str, ca_file: str) -> tuple[list[str], list[str]]:
    """The names and the addresses that the certificate is for, once all is good.

    This shakes hands with itself, as client and as server: what is wrong is seen here, and not at every other node.
    """
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    for context in (client, server):
        context.verify_mode = ssl.CERT_REQUIRED
        _load(context, cert_file, key_file, ca_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server)
    ends = (caller, server.wrap_bio(to_server, to_client, server_side=True))
    waiting = set(ends)
    while waiting:
        for end in ends:
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                told = error.verify_message.rstrip(".")
                raise TlsError(f"{cert_file}: the certificate is not good, by {ca_file}: {told}") from None
            except ssl.SSLError as error:
                raise TlsError(f"{cert_file}: the certificate is not good: {_told(error)}") from None
    found: dict[str, list[str]] = {"DNS": [], "IP Address": []}
    shown: Mapping[str, Any] = caller.getpeercert() or {}
    for kind, name in shown.get("subjectAltName", ()):
        found.setdefault(kind, []).append(name)
    return found["DNS"], found["IP Address"]


def _load(context: ssl.SSLContext, cert_file: str, key_file: str, ca_file: str) -> None:
    def ask() -> NoReturn:
        raise TlsError(f"{key_file}: the key is encrypted, and there is nobody to ask for its password")

    try:
        context.load_verify_locations(ca_file)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{ca_file}: the CA is no PEM certificate: {_told(error)}") from None
    try:
        context.load_cert_chain(cert_file, key_file, ask)
    except (ssl.SSLError, OSError) as error:
        mismatched = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
        why = "do not belong together" if mismatched else f"are no PEM certificate and its key: {_told(error)}"
        raise TlsError(f"{cert_file} and {key_file}: {why}") from None


def _told(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else error.strerror or str(error)
