"""A meeting at node 0, for nodes that only know the address of node 0.

torchrun gives no more. The nodes meet once, before anything else listens on that port, and leave no socket open.
"""

import errno
import ipaddress
import json
import os
import selectors
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redoxfs.launch.addresses import RETRY_S, Here, is_literal, is_loopback, joined, split_address
from redoxfs.launch.defaults import MOST_NODES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.say import say

# For one attempt to connect: a lost packet is sent again within this time.
_CONNECT_S = 5.0

# For a caller to send its line: a connection that sends nothing is not from a node.
_LINE_S = 10.0

# A node's line is about 100 bytes; node 0 answers with the addresses of all nodes.
_LINE_BYTES = 4 << 10
_ANSWER_BYTES = 128 << 10

# Connections to node 0 that may be open besides those of all nodes.
_STRANGERS = 64


def rendezvous(
    master: str, *, rank: int, nodes: int, port: int, timeout_s: float, here: Here | None = None
) -> tuple[str, ...]:
    """The addresses of all nodes, where each node only knows ``master``, the address of node 0.

    Every other node connects to node 0 and sends a line of JSON, `{"rank", "nodes", "address"}`. It receives a line
    with all `nodes` once the last has called, or with an `error`. A node's address is the one it calls from, with its
    own ``port``. Node 0 refuses a caller whose line is invalid or contradicts it, and keeps waiting for the others.
    Raises UsageError.
    """
    here = here or Here()
    deadline = here.clock() + timeout_s
    if rank == 0:
        say(f"node 0 waits at {master} for {nodes - 1} other nodes (--join-timeout)")
        with _listen(master, here) as listening:
            return _Meeting(listening, master, nodes, here).held(deadline, timeout_s)
    say(f"node {rank} calls node 0 at {master} (--join-timeout)")
    return _attend(master, rank, nodes, port, deadline, timeout_s, here)


def _listen(master: str, here: Here) -> socket.socket:
    """A socket that listens where the others look for node 0.

    If the name does not resolve to an address of this machine, it listens at all addresses: the name may stand for a
    service in front of us, and many machines resolve their own name to a loopback address.
    """
    host, port = split_address(master)
    try:
        found = [host] if is_literal(host) else here.resolve(host)
    except OSError:
        found = []
    is_local = is_literal(host) or host == "localhost"
    bindable = [each for each in found if is_local or not ipaddress.ip_address(each).is_loopback]
    try:
        for address in bindable:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                return socket.create_server((address, port), family=family)
            except OSError as failure:
                if failure.errno != errno.EADDRNOTAVAIL:
                    raise
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as failure:
        reason = os.strerror(failure.errno) if failure.errno else str(failure)
        raise UsageError(
            f"node 0 cannot listen at {master}: {reason}; to choose another port: --nodes auto:PORT"
        ) from None


@dataclass(slots=True)
class _Caller:
    where: str
    until: float
    received: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    address: str = ""


class _Meeting:
    """Node 0's side. A node that hangs up before the end does not count, and may call again."""

    def __init__(self, listening: socket.socket, own: str, nodes: int, here: Here) -> None:
        self._listening = listening
        self._own = own
        self._nodes = nodes
        self._here = here
        self._callers: dict[socket.socket, _Caller] = {}
        self._refused = ""

    def held(self, deadline: float, timeout_s: float) -> tuple[str, ...]:
        self._listening.setblocking(False)
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(self._listening, selectors.EVENT_READ)
                while len(members := self._members()) < self._nodes:
                    left_s = deadline - self._here.clock()
                    if left_s <= 0:
                        missing = ", ".join(str(rank) for rank in range(self._nodes) if rank not in members)
                        raise UsageError(
                            f"{len(members)} of {self._nodes} nodes were at {self._own} within {timeout_s:g} s; "
                            f"missing: {missing}{self._refused}"
                        )
                    self._turn(ready, min(left_s, 1.0))
            addresses = tuple(members[rank] for rank in range(self._nodes))
            _check_reachable(addresses)
            self._send_all({"nodes": addresses})
            return addresses
        except UsageError as error:
            self._send_all({"error": str(error)})
            raise
        finally:
            for call in self._callers:
                call.close()

    def _members(self) -> dict[int, str]:
        others = {each.rank: each.address for each in self._callers.values() if each.rank is not None}
        return {0: self._own, **others}

    def _turn(self, ready: selectors.BaseSelector, wait_s: float) -> None:
        for key, _ in ready.select(wait_s):
            if key.fileobj is self._listening:
                self._accept(ready)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._receive(key.fileobj, ready)
        for call, caller in list(self._callers.items()):
            if caller.rank is None and self._here.clock() >= caller.until:
                self._refuse(call, f"sent no line within {_LINE_S:g} s", ready)

    def _accept(self, ready: selectors.BaseSelector) -> None:
        try:
            call, (host, port, *_) = self._listening.accept()
        except OSError:
            return
        if len(self._callers) >= MOST_NODES + _STRANGERS:
            call.close()
            return
        call.setblocking(False)
        self._callers[call] = _Caller(joined(host, port), self._here.clock() + _LINE_S)
        ready.register(call, selectors.EVENT_READ)

    def _receive(self, call: socket.socket, ready: selectors.BaseSelector) -> None:
        caller = self._callers[call]
        try:
            part = call.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(call, ready)
            return
        caller.received += part
        line, end, more = bytes(caller.received).partition(b"\n")
        try:
            if more or len(line) >= _LINE_BYTES:
                raise ValueError("sent more than one short line")
            if end:
                self._enter(caller, line)
        except ValueError as error:
            self._refuse(call, str(error), ready)

    def _enter(self, caller: _Caller, line: bytes) -> None:
        """Enter a caller as the node of its line. Raises ValueError."""
        try:
            sent = json.loads(line)
            rank, nodes, address = sent["rank"], sent["nodes"], sent["address"]
            if type(rank) is not int or type(nodes) is not int:
                raise TypeError
            address = joined(*split_address(address))
        except (ValueError, KeyError, TypeError, RecursionError, UsageError):
            raise ValueError("sent no line of a redoxfs node") from None
        members = self._members()
        if nodes != self._nodes:
            raise ValueError(f"node {rank} at {address} counts {nodes} nodes, and node 0 counts {self._nodes}")
        if not 0 <= rank < nodes:
            raise ValueError(f"{address} claims to be node {rank} of {nodes}")
        if rank in members:
            raise ValueError(f"{members[rank]} and {address} both claim to be node {rank}")
        for other, taken in members.items():
            if taken == address:
                raise ValueError(
                    f"nodes {other} and {rank} are both at {address}; on one machine, list each with its port"
                )
        caller.rank, caller.address = rank, address

    def _refuse(self, call: socket.socket, why: str, ready: selectors.BaseSelector) -> None:
        line = f"{self._callers[call].where} was refused: {why}"
        self._refused = f"; {line}"
        say(line)
        _send(call, {"error": f"node 0 at {self._own} refused this node: {why}"})
        self._drop(call, ready)

    def _drop(self, call: socket.socket, ready: selectors.BaseSelector) -> None:
        ready.unregister(call)
        del self._callers[call]
        call.close()

    def _send_all(self, message: Mapping[str, object]) -> None:
        for call, caller in self._callers.items():
            if caller.rank is not None:
                _send(call, message)


def _send(call: socket.socket, message: Mapping[str, object]) -> None:
    """Send one line to a caller. If it is gone, all nodes will miss it later."""
    try:
        call.settimeout(_LINE_S)
        call.sendall(json.dumps(message).encode("ascii") + b"\n")
    except OSError:
        pass


def _check_reachable(addresses: Sequence[str]) -> None:
    """Raises UsageError if some nodes called from a loopback address. Node 0 may be known by different addresses."""
    loopback = [is_loopback(split_address(address)[0], lambda _: ()) for address in addresses[1:]]
    if any(loopback) and not all(loopback):
        rank = loopback.index(True) + 1
        raise UsageError(f"node {rank} is at {addresses[rank]}, where nodes on other machines cannot reach it")


def _attend(
    master: str, rank: int, nodes: int, port: int, deadline: float, timeout_s: float, here: Here
) -> tuple[str, ...]:
    """The other nodes' side: call until node 0 answers."""
    trouble = "no answer"
    while (left_s := deadline - here.clock()) > 0:
        try:
            with socket.create_connection(split_address(master), timeout=min(left_s, _CONNECT_S)) as call:
                own = call.getsockname()
                # While nothing listens, a connection to a port of this machine may connect to itself.
                if own != call.getpeername():
                    own_line = {"rank": rank, "nodes": nodes, "address": joined(own[0], port)}
                    call.sendall(json.dumps(own_line).encode("ascii") + b"\n")
                    answer = _line_of(call, deadline, here)
                    if answer:
                        return _nodes_in(answer, master, nodes)
                    trouble = "it hung up"
        except OSError as failure:
            trouble = failure.strerror or str(failure)
        here.sleep(max(0.0, min(RETRY_S, deadline - here.clock())))
    raise UsageError(f"node 0 at {master} had no list of all nodes within {timeout_s:g} s: {trouble}")


def _line_of(call: socket.socket, deadline: float, here: Here) -> bytes:
    """The line of the answer, or b"" if the other side hangs up before its end. Raises OSError."""
    received = bytearray()
    while b"\n" not in received and len(received) <= _ANSWER_BYTES:
        call.settimeout(max(0.001, deadline - here.clock()))
        part = call.recv(1 << 16)
        if not part:
            return b""
        received += part
    return bytes(received)


def _nodes_in(answer: bytes, master: str, nodes: int) -> tuple[str, ...]:
    try:
        reply = json.loads(answer)
        error = reply.get("error")
        addresses = tuple(joined(*split_address(address)) for address in reply.get("nodes", ()))
    except (ValueError, AttributeError, TypeError, RecursionError, UsageError):
        raise UsageError(f"the answer at {master} is not that of a redoxfs node that waits for others") from None
    if isinstance(error, str):
        raise UsageError(error or f"node 0 at {master} refused this node, and did not say why")
    if len(addresses) != nodes:
        raise UsageError(f"node 0 at {master} lists {len(addresses)} nodes, not {nodes}")
    return addresses
