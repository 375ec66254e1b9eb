"""Nodes connected over mutual TLS: refusals, names, and files."""

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
import trio.testing
from certificates import Authority, Files, openssl
from grpc_health.v1 import health_pb2
from hypothesis import given
from hypothesis import strategies as st
from t2_peers import (
    CALL_S,
    FakeService,
    addresses,
    file,
    join_all,
    jump_once,
    quiet,
    replaced,
    running,
    take,
    told,
)

from redoxfs.chunks.store import Payload
from redoxfs.launch.errors import UsageError
from redoxfs.launch.members import Membership, transport_of
from redoxfs.launch.options import SharingOptions
from redoxfs.peers import JoinTimeoutError, Peers, Plaintext, RefusedError, Tls, TlsError, Transport, View
from redoxfs.peers.channel import reason_of
from redoxfs.peers.server import HEALTH_SERVICE, SERVICE
from redoxfs.peers.tls import is_for
from redoxfs.peers.translation import ask
from redoxfs.peers.v1 import peers_pb2 as pb

HERE = "IP:127.0.0.1"
ELSEWHERE = "IP:127.0.0.2"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.at(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.at(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="module")
def here(ca: Authority) -> Files:
    return ca.issue("here", HERE)


def tls(ca: Authority, files: Files, view: View, **options: Any) -> Tls:
    return Tls(files.cert, files.key, ca.file, view, **options)


def elsewhere(view: View) -> View:
    """The same, with node 1 at another address of this machine."""
    return View(view.number, (view.addresses[0], view.addresses[1].replace("127.0.0.1", "127.0.0.2")))


@asynccontextmanager
async def couple(
    view: View, home: FakeService, requester: FakeService, *transports: Transport
) -> AsyncIterator[tuple[Peers, Peers]]:
    async with (
        running(view, 0, home, transport=transports[0]) as at_home,
        running(view, 1, requester, transport=transports[1]) as asking,
    ):
        yield at_home, asking


async def test_nodes_with_certificates_serve_each_other(ca: Authority) -> None:
    first, second = ca.issue("first", HERE, "DNS:n0"), ca.issue("second", ELSEWHERE)
    shelf: dict[int, Payload] = {n: (file(bytes([n]) * 700_000),) for n in range(5)}
    home, requester = FakeService(shelf), FakeService()
    view = elsewhere(View(1, addresses(2)))
    both = tls(ca, first, view, node=0), tls(ca, second, view, node=1)
    async with couple(view, home, requester, *both) as (at_home, asking):
        await join_all(at_home, asking)
        asking.send(take(0, 5))
        await requester.until(lambda: len(requester.got) == 5)
        assert {s: told(p) for s, p in requester.got.items()} == {s: told(p) for s, p in shelf.items()}


async def test_names_are_resolved_and_checked_against_the_list(ca: Authority) -> None:
    named = ca.issue("named", "DNS:LOCALHOST")
    ports = [address.rpartition(":")[2] for address in addresses(2)]
    view = View(1, (f"localhost:{ports[0]}", f"localhost:{ports[1]}"))
    both = tls(ca, named, view, node=0), tls(ca, named, view, node=1)
    async with couple(view, FakeService(), FakeService(), *both) as nodes:
        await join_all(*nodes)


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ("plaintext", "here", "it closed the connection: only one of the two uses TLS"),
        ("here", "plaintext", "it does not use TLS"),
        ("here", "stranger", "its certificate cannot be verified: unable to get local issuer certificate"),
        ("here", "elsewhere", "its certificate is not for this host"),
    ],
)
@pytest.mark.slow
async def test_a_node_without_a_valid_certificate_is_named(
    ca: Authority, other_ca: Authority, here: Files, mine: str, theirs: str, words: str, clock: trio.testing.MockClock
) -> None:
    view = View(1, addresses(2))
    kinds: dict[str, Callable[[], Transport]] = {
        "plaintext": Plaintext,
        "here": lambda: tls(ca, here, view),
        "stranger": lambda: tls(other_ca, other_ca.issue("stranger", HERE), view),
        "elsewhere": lambda: tls(ca, ca.issue("elsewhere", ELSEWHERE), view),
    }

    clock.rate = 1.0
    home, requester = FakeService({0: (file(b"zero"),)}), FakeService()
    transports = kinds[mine](), kinds[theirs]()
    async with couple(view, home, requester, *transports) as nodes:
        # The reason that a node of the first kind reports about one of the second.
        error = await trio.to_thread.run_sync(call, transports[0], view.addresses[1])
        assert words in reason_of(error.details())
        async with trio.open_nursery() as nursery:
            for node, peers in enumerate(nodes):
                nursery.start_soon(in_vain, peers, view.addresses[1 - node], clock)
    assert not home.handled


async def in_vain(peers: Peers, other: str, clock: trio.testing.MockClock) -> str:
    """The message of a failed join: at its deadline, in one line, with the name of the peer."""
    (client,) = peers._clients.values()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump_once, clock, lambda: client.reason, 20)
        with pytest.raises((JoinTimeoutError, RefusedError)) as error:
            await peers.join(quiet, 20)
        nursery.cancel_scope.cancel()
    assert other in str(error.value)
    assert str(error.value).isprintable(), "one line"
    return str(error.value)


def call(transport: Transport, address: str, method: str = "Hello", request: bytes = b"") -> grpc.RpcError:
    """The error of a call."""
    with transport.channel(address) as channel:
        calls: Any = channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        with pytest.raises(grpc.RpcError) as error:
            calls(request, timeout=CALL_S)
        return error.value


async def test_a_certificate_cannot_impersonate_another_node(ca: Authority, here: Files) -> None:
    """Node 2 claims to be node 1, and node 1 a node that is not in the list."""
    second, third = ca.issue("node1", "DNS:n1", ELSEWHERE), ca.issue("node2", "IP:127.0.0.3", "DNS:*.x.y")
    ports = [address.rpartition(":")[2] for address in addresses(3)]
    view = View(1, tuple(f"127.0.0.{node + 1}:{port}" for node, port in enumerate(ports)))
    host = FakeService({0: (file(b"zero"),)})
    async with running(view, 0, host, transport=tls(ca, here, view)) as at_home:
        # As if all had met.
        at_home._joined = True
        caller = pb.Caller(node=1, incarnation=5, view=1)
        at_home._know(replaced(at_home._introduction, node=1, incarnation=5))
        hello = pb.HelloRequest(caller=replaced(at_home._introduction, node=1, incarnation=5))
        requests = {
            "Hello": hello.SerializeToString(),
            "Ask": ask(caller, take(0, 1)),
            "Part": pb.PartRequest(caller=caller, part=1).SerializeToString(),
            "Follow": pb.FollowRequest(caller=caller).SerializeToString(),
        }
        impostor = tls(ca, third, view, node=2)
        for method, request in requests.items():
            error = await trio.to_thread.run_sync(call, impostor, view.addresses[0], method, request)
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert error.details() == (
                "the certificate that it presented is for *.x.y, 127.0.0.3, and node 1 is 127.0.0.2"
            )
        assert not host.handled
        assert not host.restarts
        # The same calls, by the node itself.
        await trio.to_thread.run_sync(answered, tls(ca, second, view, node=1), view.addresses[0], requests)
        assert host.handled == [0]
        unheard = pb.AskRequest(caller=pb.Caller(node=7, incarnation=5, view=1)).SerializeToString()
        error = await trio.to_thread.run_sync(call, impostor, view.addresses[0], "Ask", unheard)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


def answered(transport: Transport, address: str, requests: dict[str, bytes]) -> None:
    with transport.channel(address) as channel:
        for method in ("Hello", "Ask"):
            calls: Any = channel.unary_unary(f"/{SERVICE}/{method}", None, None)
            assert calls(requests[method], timeout=CALL_S)
        health: Any = channel.unary_unary(f"/{HEALTH_SERVICE}/Check", None, None)
        assert health_pb2.HealthCheckResponse.FromString(health(b"", timeout=CALL_S)).status


async def test_the_join_of_an_impersonator_names_the_peer(
    ca: Authority, here: Files, clock: trio.testing.MockClock
) -> None:
    clock.rate = 1.0
    view = elsewhere(View(1, addresses(2)))
    impostor = tls(ca, ca.issue("third", "IP:127.0.0.3"), view)
    async with couple(view, FakeService(), FakeService(), tls(ca, here, view), impostor) as (_, posing):
        said = await in_vain(posing, view.addresses[0], clock)
        assert "the certificate that it presented is for 127.0.0.3" in said


# Names


@pytest.mark.parametrize(
    ("host", "name", "fits"),
    [
        ("n1", "n1", True),
        ("n1", "N1.", True),
        ("n1", "n2", False),
        ("n1.x.y", "*.x.y", True),
        ("n1.a.x.y", "*.x.y", False),
        ("x.y", "*.x.y", False),
        ("n1.x", "*.x", False),
        ("n1", "*", False),
        ("n1", "", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "*.0.0.1", False),
    ],
)
def test_certificate_names_match_hosts_as_in_grpc(host: str, name: str, fits: bool) -> None:
    assert is_for(host, [name], []) is fits


def test_addresses_match_in_any_notation() -> None:
    assert is_for("fe80::1", [], ["10.0.0.1", "fe80:0::1"])
    assert not is_for("10.0.0.1", ["10.0.0.1"], ["10.0.0.2", "what"])


@given(st.text(max_size=20), st.lists(st.text(max_size=20)))
def test_any_certificate_name_can_be_compared(host: str, names: list[str]) -> None:
    assert isinstance(is_for(host, names, names), bool)


# Files


def refused(words: str, cert: Path, key: Path, ca: Path, *, node: int = 0) -> None:
    with pytest.raises(TlsError, match=words) as error:
        Tls(cert, key, ca, View(1, ("127.0.0.1:1", "n1:2")), node=node)
    assert str(error.value).isprintable(), "one line"
    assert str(error.value).startswith((str(cert), str(key), str(ca)))


def test_unusable_files_are_one_line(ca: Authority, other_ca: Authority, here: Files, tmp_path: Path) -> None:
    good = here.cert, here.key, ca.file
    no = tmp_path / "none"
    refused("none: cannot read the certificate: No such file", no, here.key, ca.file)
    refused("none: cannot read the key: No such file", here.cert, no, ca.file)
    refused("none: cannot read the CA: No such file", here.cert, here.key, no)
    refused(": cannot read the CA: Is a directory", here.cert, here.key, tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused("fifo: the certificate is not a regular file", fifo, here.key, ca.file)
    noise = tmp_path / "noise"
    noise.write_bytes(b"-----BEGIN CERTIFICATE-----\nnoise")
    noise.chmod(0o600)
    refused("noise: the CA is not a PEM certificate", here.cert, here.key, noise)
    refused("are not a PEM certificate and its key", noise, here.key, ca.file)
    refused("are not a PEM certificate and its key", here.cert, noise, ca.file)
    noise.write_bytes(bytes((1 << 20) + 1))
    refused("noise: the CA is longer than", here.cert, here.key, noise)
    stranger = other_ca.issue("mismatched", HERE)
    refused("here.pem and .*mismatched.key: do not match", here.cert, stranger.key, ca.file)
    refused("ca.pem does not verify the certificate: unable to get local", stranger.cert, stranger.key, ca.file)
    encrypted = tmp_path / "encrypted.key"
    openssl("ec", "-in", here.key, "-out", encrypted, "-aes128", "-passout", "pass:secret")
    refused("encrypted.key: the key is encrypted", here.cert, encrypted, ca.file)
    assert Tls(*good, View(1, ("127.0.0.1:1",)), node=0)


def test_certificates_that_peers_would_refuse_are_reported(ca: Authority) -> None:
    expired = ca.issue("expired", HERE, expired=True)
    refused("certificate has expired", expired.cert, expired.key, ca.file)
    half = ca.issue("half", HERE, usage=["serverAuth"])
    refused("purpose", half.cert, half.key, ca.file)
    whole = ca.issue("whole", HERE, usage=["serverAuth", "clientAuth"])
    assert Tls(whole.cert, whole.key, ca.file, View(1, ("127.0.0.1:1",)), node=0)
    bare = ca.issue("bare", subject="127.0.0.1")
    refused("is for no host, and this node, 0, is 127.0.0.1", bare.cert, bare.key, ca.file)
    many = ca.issue("many", *(f"DNS:m{n}" for n in range(9)))
    refused("is for m0, m1, m2, …, and this node, 1, is n1", many.cert, many.key, ca.file, node=1)


def test_a_key_that_others_can_read_is_refused_as_ssh_does(ca: Authority, tmp_path: Path) -> None:
    files = ca.issue("open", HERE)
    for mode in (0o604, 0o640, 0o620):
        files.key.chmod(mode)
        why = f"others can read the key .mode {mode:04o}.; to prevent that: chmod 600"
        refused(why, files.cert, files.key, ca.file)
    files.key.chmod(0o400)
    link = tmp_path / "link"
    link.symlink_to(files.key)
    assert Tls(files.cert, link, ca.file, View(1, ("127.0.0.1:1",)), node=0)


def test_the_same_files_serve_another_list(ca: Authority, here: Files) -> None:
    one = tls(ca, here, View(1, ("127.0.0.1:1", "n1:2")), node=0)
    other = one.for_view(View(2, ("n1:2", "127.0.0.1:1")), node=1)
    with pytest.raises(TlsError, match="this node, 0, is n1"):
        one.for_view(View(2, ("n1:2", "127.0.0.1:1")), node=0)
    assert (one._hosts, other._hosts) == (("127.0.0.1", "n1"), ("n1", "127.0.0.1"))
    plain = Plaintext()
    assert plain.for_view(View(2, ())) is plain


# The options


def test_the_command_line_chooses_the_transport(ca: Authority, here: Files) -> None:
    members = Membership(("127.0.0.1:1", "n1:2"), 0)
    sharing = SharingOptions(tls_cert=str(here.cert), tls_key=str(here.key), tls_ca=str(ca.file))
    assert isinstance(transport_of(SharingOptions(), members), Plaintext)
    assert isinstance(transport_of(sharing, members), Tls)
    with pytest.raises(
        UsageError, match=re.escape(f"{here.cert}: the certificate is for 127.0.0.1, and this node, 1,")
    ):
        transport_of(sharing, Membership(members.addresses, 1))
