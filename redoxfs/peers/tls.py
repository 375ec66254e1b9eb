"""Mutual TLS: both sides present a certificate from the CA, and each is checked against the list of nodes.

gRPC checks that the callee's certificate is for the host that was called. This checks that the caller's certificate is
for the host of the node that it claims to be. Otherwise the key of one node could impersonate any node. Names are taken
from the subject alternative names alone, as gRPC does. Nodes on one host share its name, and can impersonate each
other.

The files are read once. A connection outlives its certificate, but no new connection can be made after the certificate
expires, so it must be valid for as long as the job runs. gRPC can replace the certificate of a server only; the calls
of this node would still use the old one.
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
"""More than any certificate chain."""

_KINDS = ("peer_dns", "peer_ip")
"""gRPC's names for the host names and the addresses of a certificate."""


class TlsError(ValueError):
    """The TLS files cannot be used: one line."""


class Tls:
    """A `Transport`.

    Args:
        cert_file: this node's certificate, and the intermediate certificates.
        key_file: its key.
        ca_file: the CA certificates that sign all nodes' certificates.
        view: the host of each node, which it has to prove.
        node: this node's number, where it is known: its certificate must be for its own host.

    Raises:
        TlsError: a file cannot be read, or other nodes could not verify this node.
    """

    interceptors: Sequence[grpc.ServerInterceptor] = ()

    # The recipe of a mount has them (`redoxfs.launch.recipe`).
    _cert_file: str
    _cert: bytes
    _key: bytes
    _ca: bytes
    _names: Sequence[str]
    _addresses: Sequence[str]
    _hosts: Sequence[str]

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
        self._hosts = ()
        self._take(view, node)

    def for_view(self, view: View, *, node: int | None = None) -> "Tls":
        """The same for another list of nodes, without reading files. Raises TlsError."""
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
        """Why the caller is not ``node``; None if it is. Numbers without a node are refused elsewhere."""
        if node >= len(self._hosts):
            return None
        shown: Mapping[str, Any] = context.auth_context()
        names, addresses = ([str(each, errors="replace") for each in shown.get(kind, ())] for kind in _KINDS)
        host = self._hosts[node]
        if is_for(host, names, addresses):
            return None
        return f"the certificate that it presented is for {_shown([*names, *addresses])}, and node {node} is {host}"


def host_of(address: str) -> str:
    """The host of "host:port" or "[IPv6]:port"."""
    return address.rpartition(":")[0].strip("[]")


def is_for(host: str, names: Iterable[str], addresses: Iterable[str]) -> bool:
    """Whether a certificate for ``names`` and ``addresses`` is valid for ``host``, by the rules of gRPC."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return any(_matches(host.lower().rstrip("."), name.lower().rstrip(".")) for name in names)
    return any(_is_same(address, other) for other in addresses)


def _matches(host: str, name: str) -> bool:
    if not name.startswith("*."):
        return bool(name) and host == name
    first, _, rest = host.partition(".")
    # The wildcard is one label, and never all names below a top-level domain.
    return bool(first) and rest == name[2:] and "." in rest


def _is_same(address: ipaddress.IPv4Address | ipaddress.IPv6Address, other: str) -> bool:
    try:
        return address == ipaddress.ip_address(other)
    except ValueError:
        return False


def _shown(names: Sequence[str]) -> str:
    """Names for a message: a certificate may have thousands, of any length."""
    text = ", ".join(name[:80] if name.isprintable() else ascii(name[:80]) for name in names[:3])
    return f"{text}, …" if len(names) > 3 else text or "no host"


def _read(path: str | os.PathLike[str], what: str, *, secret: bool = False) -> bytes:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise TlsError(f"{os.fspath(path)}: the {what} is not a regular file")
            # As ssh does: a user who can read the key can impersonate this node, so a warning would come too late. A
            # file of another owner is that owner's choice, such as a key that root gives to a group.
            if secret and found.st_uid == os.geteuid() and found.st_mode & 0o077:
                raise TlsError(
                    f"{os.fspath(path)}: others can read the {what} (mode {stat.S_IMODE(found.st_mode):04o}); "
                    "to prevent that: chmod 600"
                )
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{os.fspath(path)}: cannot read the {what}: {error.strerror}") from None
    if len(data) > FILE_BYTES:
        raise TlsError(f"{os.fspath(path)}: the {what} is longer than {FILE_BYTES} bytes")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, in case the file is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check(cert_file: str, key_file: str, ca_file: str) -> tuple[list[str], list[str]]:
    """The names and the addresses of the certificate, if the files are valid.

    This does a handshake with itself, as client and as server, so that an error shows here and not at every other node.
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
                why = error.verify_message.rstrip(".")
                raise TlsError(f"{cert_file}: {ca_file} does not verify the certificate: {why}") from None
            except ssl.SSLError as error:
                raise TlsError(f"{cert_file}: the certificate is not valid: {_reason(error)}") from None
    found: dict[str, list[str]] = {"DNS": [], "IP Address": []}
    shown: Mapping[str, Any] = caller.getpeercert() or {}
    for kind, name in shown.get("subjectAltName", ()):
        found.setdefault(kind, []).append(name)
    return found["DNS"], found["IP Address"]


def _load(context: ssl.SSLContext, cert_file: str, key_file: str, ca_file: str) -> None:
    def ask() -> NoReturn:
        raise TlsError(f"{key_file}: the key is encrypted; redoxfs needs one without a password")

    try:
        context.load_verify_locations(ca_file)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{ca_file}: the CA is not a PEM certificate: {_reason(error)}") from None
    try:
        context.load_cert_chain(cert_file, key_file, ask)
    except (ssl.SSLError, OSError) as error:
        mismatched = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
        why = "do not match" if mismatched else f"are not a PEM certificate and its key: {_reason(error)}"
        raise TlsError(f"{cert_file} and {key_file}: {why}") from None


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else error.strerror or str(error)
