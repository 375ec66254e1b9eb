"""Who the nodes are: from --nodes, and what the launcher put into the environment, to a numbered list.

The list is the same at every node and stays as it is. There are three sources of it: --nodes has it; Slurm or torchrun
know it (`auto`); a name in the DNS has the address of every node. torchrun tells only where node 0 is, so the nodes
meet there once (`rendezvous`), before anything else listens at that port.

All of it runs before the daemon is forked, in one thread, and leaves no socket open. What is asked of this machine and
of the DNS comes in as `Here`, so that tests need neither.
"""

import argparse
import errno
import ipaddress
import itertools
import json
import os
import re
import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from redoxfs.cli.arguments import DEFAULT_PORT, DEFAULT_PREFETCH_WINDOW, MOST_NODES
from redoxfs.cli.exits import UsageError
from redoxfs.cli.plan import say
from redoxfs.cli.sizes import format_bytes, parse_size

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?", re.ASCII)

# One item of a Slurm hostlist. Nothing in it is tried twice, however long a text it does not fit.
_HOSTS = r"(?:[^\[\],\s]++|\[[^\[\]\s]++\])++"

# What says a node's number where --node-rank does not: of Slurm, torchrun, and an indexed job of Kubernetes.
_RANKS = ("SLURM_NODEID", "GROUP_RANK", "JOB_COMPLETION_INDEX")

# A step of a Slurm job may have some of the job's nodes, and SLURM_NODEID counts those.
_HOSTLISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")

_TORCHRUN = ("MASTER_ADDR", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

# How often a name is resolved, or node 0 called, until it answers as it should.
_AGAIN_S = 0.5

# For one attempt to connect: a packet lost on the way is sent again within this.
_CONNECT_S = 5.0

# For a caller to say its line: a connection that says nothing is not of ours.
_LINE_S = 10.0

# A line of a node is about 100 bytes; node 0 answers with as many addresses as there may be nodes.
_LINE_BYTES = 4 << 10
_ANSWER_BYTES = 128 << 10

# Connections that may be open to node 0 besides those of all nodes.
_STRANGERS = 64

# A share of --memory is set aside for samples from other nodes.
_REMOTE_SHARE = 8


@dataclass(frozen=True, slots=True)
class Membership:
    """All nodes, each as "host:port" (IPv6 in brackets), and which of them this one is."""

    addresses: tuple[str, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Listed:
    """--nodes host:port,…"""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Auto:
    """--nodes auto"""

    port: int


@dataclass(frozen=True, slots=True)
class Dns:
    """--nodes dns:NAME"""

    name: str
    port: int


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
    """This machine, as far as it matters who it is, and its clock."""

    name: str = field(default_factory=socket.gethostname)
    resolve: Callable[[str], Sequence[str]] = _resolve
    is_own: Callable[[str], bool] = _is_own
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def membership(
    arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ, here: Here | None = None
) -> Membership | None:
    """The nodes that --nodes stands for; None if it is this node alone.

    May take as long as --join-timeout, where nodes have to meet or a name does not have all its addresses yet. Raises
    UsageError.
    """
    here = here or Here()
    source = check_nodes(arguments)
    if source is None:
        return None
    if isinstance(source, Listed):
        members = Membership(source.addresses, _rank_in(source.addresses, arguments.node_rank, environ, here))
    elif isinstance(source, Dns):
        members = _from_dns(source, arguments.node_count, arguments.join_timeout, here)
    else:
        members = _from_launcher(source, arguments, environ, here)
    if arguments.node_count not in (None, len(members.addresses)):
        raise UsageError(f"--node-count {arguments.node_count}, but there are {len(members.addresses)} nodes")
    if len(members.addresses) == 1:
        return None
    _check_plaintext(members.addresses, arguments, here)
    return members


def check_nodes(arguments: argparse.Namespace) -> Listed | Auto | Dns | None:
    """What --nodes says, if all that is said along with it fits; asks nobody. Raises UsageError."""
    check_sharing(arguments)
    if arguments.nodes is None:
        for option, is_given in {
            "--node-rank": arguments.node_rank is not None,
            "--node-count": arguments.node_count is not None,
            "--insecure": arguments.insecure,
            "--exchange": arguments.exchange > 0,
            "--storage local": arguments.storage == "local",
            "--remote-memory": arguments.remote_memory is not None,
            "--sampler": arguments.sampler is not None,
        }.items():
            if is_given:
                raise UsageError(f"{option} needs --nodes: one node alone has nobody to share with")
        return None
    source = parse_nodes(arguments.nodes)
    if arguments.node_rank is not None:
        if not isinstance(source, Listed):
            raise UsageError(f"--node-rank is a place in a list, and --nodes {arguments.nodes} is none")
        if arguments.node_rank >= len(source.addresses):
            raise UsageError(
                f"--node-rank {arguments.node_rank}, but --nodes has {len(source.addresses)}, counted from 0"
            )
    if isinstance(source, Dns) and arguments.node_count is None:
        raise UsageError(f"--nodes {arguments.nodes} needs --node-count: how many addresses the name has to have")
    return source


def check_sharing(arguments: argparse.Namespace) -> None:
    """Raises UsageError if what nodes are to do for each other is not of their policy."""
    if arguments.policy == "slot":
        if arguments.exchange:
            raise UsageError("--exchange is of --policy pool; with --policy slot every sample has one home")
        if arguments.storage == "local":
            raise UsageError("--storage local is of --policy pool; --policy slot needs --storage shared")
    else:
        if arguments.sampler is not None:
            raise UsageError("--sampler is of --policy slot; --policy pool does not look ahead")
        if arguments.prefetch_window != DEFAULT_PREFETCH_WINDOW:
            raise UsageError("--prefetch-window is of --policy slot; --policy pool does not look ahead")
    if arguments.remote_memory is not None:
        parse_size(arguments.remote_memory, 1 << 40)


def remote_memory_of(arguments: argparse.Namespace, memory_bytes: int) -> int:
    """Bytes of --memory for samples from other nodes: --remote-memory, or its default. Raises UsageError."""
    if arguments.remote_memory is None:
        return max(1, memory_bytes // _REMOTE_SHARE)
    size = parse_size(arguments.remote_memory, memory_bytes)
    if size > memory_bytes:
        raise UsageError(
            f"--remote-memory {arguments.remote_memory} is of --memory, which is {format_bytes(memory_bytes)}"
        )
    return size


def needs_insecure(addresses: Collection[str], resolve: Callable[[str], Sequence[str]] = _resolve) -> bool:
    """Whether what goes to ``addresses`` may leave this machine: one is, or may be, no loopback address."""
    return not all(_is_loopback(split_address(address)[0], resolve) for address in addresses)


def _check_plaintext(addresses: Collection[str], arguments: argparse.Namespace, here: Here) -> None:
    if not arguments.insecure and needs_insecure(addresses, here.resolve):
        raise UsageError(
            "the nodes would talk in plaintext over a network, where others can read and forge what they say; "
            "if all on it may: --insecure"
        )


def _is_loopback(host: str, resolve: Callable[[str], Sequence[str]]) -> bool:
    try:
        found = [host] if _is_literal(host) else resolve(host)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


# Addresses


def parse_nodes(text: str) -> Listed | Auto | Dns:
    """What the value of --nodes means. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if kind == "auto":
        return Auto(_port(rest, text) if colon else DEFAULT_PORT)
    if kind == "dns" and not rest.isdigit():
        return Dns(*split_address(rest))
    addresses = tuple(_joined(*split_address(entry)) for entry in text.split(","))
    _check_members(addresses)
    return Listed(addresses)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port", "[IPv6]:port", or of either without the port. Raises UsageError."""
    match = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::([^:]*))?", text, re.DOTALL)
    if match is None:
        raise UsageError(f"{text!r} is no node; write host:port, or [address]:port for IPv6")
    host = match[1] if match[1] is not None else match[2]
    port = DEFAULT_PORT if match[3] is None else _port(match[3], text)
    return _checked_host(host, text, in_brackets=match[1] is not None), port


def _checked_host(host: str, text: str, *, in_brackets: bool) -> str:
    if in_brackets or not host.strip("0123456789."):
        # 10.1 and 010.0.0.1 mean something to the resolver, but hardly what was meant.
        try:
            address = ipaddress.IPv6Address(host) if in_brackets else ipaddress.IPv4Address(host)
        except ValueError:
            raise UsageError(f"{text!r} is no node: {host!r} is no address") from None
        if address.is_unspecified or address.is_multicast:
            raise UsageError(f"{text!r} is no node: {host} is nobody's own address")
        return str(address)
    if not _HOST.fullmatch(host):
        raise UsageError(f"{text!r} is no node: {host!r} is no host name")
    return host.lower()


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise UsageError(f"{whole!r}: {text!r} is no port from 1 to 65535")
    return int(text)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_literal(host: str) -> bool:
    return ":" in host or not host.strip("0123456789.")


def _check_members(addresses: Sequence[str]) -> None:
    if len(addresses) > MOST_NODES:
        raise UsageError(f"{len(addresses)} nodes are more than {MOST_NODES}")
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            raise UsageError(f"{address} is listed twice, as node {addresses.index(address)} and as node {place}")


# The list, and what Slurm and torchrun say


def _rank_in(addresses: Sequence[str], asked: int | None, environ: Mapping[str, str], here: Here) -> int:
    if asked is not None:
        return asked
    hosts = [split_address(address)[0] for address in addresses]
    named = [place for place, host in enumerate(hosts) if _is_name_of(host, here.name)]
    for variable in _RANKS:
        if not environ.get(variable):
            continue
        rank = _number(environ, variable)
        if rank >= len(addresses):
            raise UsageError(f"{variable}={rank}, but there are {len(addresses)} nodes; say which it is: --node-rank")
        if len(named) == 1 and named[0] != rank:
            raise UsageError(
                f"{variable}={rank}, and node {rank} is {addresses[rank]}, but this machine, {here.name}, is "
                f"node {named[0]}; say which it is: --node-rank"
            )
        return rank
    if len(named) != 1:
        named = [place for place in named or range(len(hosts)) if _is_address_of(hosts[place], here)]
    if len(named) != 1:
        found = f"nodes {', '.join(map(str, named))} are" if named else "none of the nodes is"
        raise UsageError(f"{found} this machine, {here.name}; say which it is: --node-rank")
    return named[0]


def _is_name_of(host: str, name: str) -> bool:
    """Whether both are the same name, one of them perhaps without its domain."""
    host, name = host.lower().rstrip("."), name.lower().rstrip(".")
    if "." in host and "." in name:
        return host == name
    return not _is_literal(host) and host.partition(".")[0] == name.partition(".")[0]


def _is_address_of(host: str, here: Here) -> bool:
    try:
        return any(here.is_own(address) for address in ([host] if _is_literal(host) else here.resolve(host)))
    except OSError:
        return False


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ[variable]
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"{variable}={text!r} is no number")
    return int(text)


def _from_launcher(source: Auto, arguments: argparse.Namespace, environ: Mapping[str, str], here: Here) -> Membership:
    for variable in _HOSTLISTS:
        if environ.get(variable):
            try:
                addresses = tuple(_joined(split_address(host)[0], source.port) for host in expand(environ[variable]))
                _check_members(addresses)
            except UsageError as error:
                raise UsageError(f"{variable}: {error}") from None
            return Membership(addresses, _rank_in(addresses, None, environ, here))
    missing = [variable for variable in _TORCHRUN if not environ.get(variable)]
    if missing:
        about = f"torchrun's {', '.join(missing)}" if len(missing) < len(_TORCHRUN) else "what torchrun would set"
        raise UsageError(
            f"--nodes auto: the environment has neither Slurm's {_HOSTLISTS[-1]} nor {about}; name the nodes instead"
        )
    rank, world, local = (_number(environ, variable) for variable in _TORCHRUN[1:])
    if not local or not world or world % local or world // local > MOST_NODES:
        raise UsageError(f"--nodes auto: WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local}: that is no number of nodes")
    nodes = world // local
    if rank >= nodes:
        raise UsageError(f"--nodes auto: GROUP_RANK={rank}, but WORLD_SIZE and LOCAL_WORLD_SIZE make {nodes} nodes")
    host = environ["MASTER_ADDR"]
    master = _joined(_checked_host(host, host, in_brackets=":" in host), source.port)
    if nodes == 1:
        return Membership((master,), 0)
    _check_plaintext([master], arguments, here)
    addresses = rendezvous(
        master, rank=rank, nodes=nodes, port=source.port, timeout_s=arguments.join_timeout, here=here
    )
    return Membership(addresses, rank)


def expand(hostlist: str) -> list[str]:
    """The hosts of a Slurm hostlist such as `n[001-003,07],gpu1,r[1-2]c[0-3]`, in its order. Raises UsageError."""
    hosts: list[str] = []
    if not re.fullmatch(rf"{_HOSTS}(?:,{_HOSTS})*+", hostlist):
        raise UsageError(f"{hostlist!r} is no list of hosts such as n[01-03],gpu1")
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
    """`001-003,07` as the numbers in it, as wide as each range's first."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"{hostlist!r} is no list of hosts: {part!r} is no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_NODES:
            raise UsageError(f"{hostlist!r} has more than {MOST_NODES} hosts")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers


# A name in the DNS


def _from_dns(source: Dns, count: int, timeout_s: float, here: Here) -> Membership:
    """The nodes in the order of their addresses, once there are as many as there should be."""
    deadline = here.clock() + timeout_s
    while True:
        trouble = ""
        try:
            found = {ipaddress.ip_address(address) for address in here.resolve(source.name)}
        except OSError as failure:
            found, trouble = set(), f" ({failure.strerror or failure})"
        # A node may have an address of each kind; those of one kind count the nodes.
        kinds = [sorted((each for each in found if each.version == version), key=int) for version in (4, 6)]
        hosts = next(([str(address) for address in kind] for kind in kinds if len(kind) == count), None)
        if hosts is not None:
            break
        left_s = deadline - here.clock()
        if left_s <= 0:
            raise UsageError(
                f"--nodes dns:{source.name}: has {max(map(len, kinds))} addresses after {timeout_s:g} s, not the "
                f"{count} of --node-count{trouble}"
            )
        here.sleep(min(_AGAIN_S, left_s))
    own = [place for place, host in enumerate(hosts) if here.is_own(host)]
    if len(own) != 1:
        which = f"{len(own)} are" if own else "none is"
        raise UsageError(f"--nodes dns:{source.name}: of {', '.join(hosts)}, {which} an address of this machine")
    return Membership(tuple(_joined(host, source.port) for host in hosts), own[0])


# A meeting at node 0


def rendezvous(
    master: str, *, rank: int, nodes: int, port: int, timeout_s: float, here: Here | None = None
) -> tuple[str, ...]:
    """The addresses of all nodes, when each knows only ``master``, that of node 0.

    Every other node calls node 0 there, says a line of JSON, `{"rank", "nodes", "address"}`, and gets one with all
    `nodes` once the last has called, or an `error`. Its address is the one it calls from, with its own ``port``. Node 0
    refuses who contradicts it or makes no sense, and goes on waiting for the others. Raises UsageError.
    """
    here = here or Here()
    deadline = here.clock() + timeout_s
    if rank == 0:
        say(f"node 0 waits at {master} for {nodes - 1} others (--join-timeout)")
        with _listen(master, here) as listening:
            return _Meeting(listening, master, nodes, here).held(deadline, timeout_s)
    say(f"node {rank} calls node 0 at {master} (--join-timeout)")
    return _attend(master, rank, nodes, port, deadline, timeout_s, here)


def _listen(master: str, here: Here) -> socket.socket:
    """A socket that listens where the others look for node 0.

    Where the name is not to be had as an address of this machine, that is at all of them: the name may stand for a
    service in front of us, and many machines know themselves by a loopback address.
    """
    host, port = split_address(master)
    try:
        found = [host] if _is_literal(host) else here.resolve(host)
    except OSError:
        found = []
    is_local = _is_literal(host) or host == "localhost"
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
        raise UsageError(f"node 0 cannot listen at {master}: {reason}; for another port: --nodes auto:PORT") from None


@dataclass(slots=True)
class _Caller:
    where: str
    until: float
    heard: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    address: str = ""


class _Meeting:
    """Node 0's side. Whoever hangs up before the end was never there, and may call again."""

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
            self._tell_all({"nodes": addresses})
            return addresses
        except UsageError as error:
            self._tell_all({"error": str(error)})
            raise
        finally:
            for caller in self._callers:
                caller.close()

    def _members(self) -> dict[int, str]:
        told = {each.rank: each.address for each in self._callers.values() if each.rank is not None}
        return {0: self._own, **told}

    def _turn(self, ready: selectors.BaseSelector, wait_s: float) -> None:
        for key, _ in ready.select(wait_s):
            if key.fileobj is self._listening:
                self._accept(ready)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj, ready)
        for caller, said in list(self._callers.items()):
            if said.rank is None and self._here.clock() >= said.until:
                self._refuse(caller, f"said no line within {_LINE_S:g} s", ready)

    def _accept(self, ready: selectors.BaseSelector) -> None:
        try:
            caller, (host, port, *_) = self._listening.accept()
        except OSError:
            return
        if len(self._callers) >= MOST_NODES + _STRANGERS:
            caller.close()
            return
        caller.setblocking(False)
        self._callers[caller] = _Caller(_joined(host, port), self._here.clock() + _LINE_S)
        ready.register(caller, selectors.EVENT_READ)

    def _hear(self, caller: socket.socket, ready: selectors.BaseSelector) -> None:
        said = self._callers[caller]
        try:
            part = caller.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(caller, ready)
            return
        said.heard += part
        line, end, more = bytes(said.heard).partition(b"\n")
        try:
            if more or len(line) >= _LINE_BYTES:
                raise ValueError("said more than one short line")
            if end:
                self._enter(said, line)
        except ValueError as error:
            self._refuse(caller, str(error), ready)

    def _enter(self, said: _Caller, line: bytes) -> None:
        """Take a caller in as the node it says it is. Raises ValueError."""
        try:
            told = json.loads(line)
            rank, nodes, address = told["rank"], told["nodes"], told["address"]
            if type(rank) is not int or type(nodes) is not int:
                raise TypeError
            address = _joined(*split_address(address))
        except (ValueError, KeyError, TypeError, RecursionError, UsageError):
            raise ValueError("said no line of a redoxfs node") from None
        members = self._members()
        if nodes != self._nodes:
            raise ValueError(f"node {rank} at {address} counts {nodes} nodes, and node 0 counts {self._nodes}")
        if not 0 <= rank < nodes:
            raise ValueError(f"{address} says it is node {rank} of {nodes}")
        if rank in members:
            raise ValueError(f"{members[rank]} and {address} both say they are node {rank}")
        for other, taken in members.items():
            if taken == address:
                raise ValueError(
                    f"nodes {other} and {rank} are both at {address}; several nodes on one machine: list their ports"
                )
        said.rank, said.address = rank, address

    def _refuse(self, caller: socket.socket, why: str, ready: selectors.BaseSelector) -> None:
        line = f"{self._callers[caller].where} was refused: {why}"
        self._refused = f"; {line}"
        say(line)
        _tell(caller, {"error": f"node 0 at {self._own} refused this node: {why}"})
        self._drop(caller, ready)

    def _drop(self, caller: socket.socket, ready: selectors.BaseSelector) -> None:
        ready.unregister(caller)
        del self._callers[caller]
        caller.close()

    def _tell_all(self, message: Mapping[str, object]) -> None:
        for caller, said in self._callers.items():
            if said.rank is not None:
                _tell(caller, message)


def _tell(caller: socket.socket, message: Mapping[str, object]) -> None:
    """One line to a caller. One who is gone will be missed later, by all."""
    try:
        caller.settimeout(_LINE_S)
        caller.sendall(json.dumps(message).encode("ascii") + b"\n")
    except OSError:
        pass


def _check_reachable(addresses: Sequence[str]) -> None:
    """Node 0 is called by a name that each may know by another address; the others are as they were seen."""
    loopback = [_is_loopback(split_address(address)[0], lambda _: ()) for address in addresses[1:]]
    if any(loopback) and not all(loopback):
        rank = loopback.index(True) + 1
        raise UsageError(f"node {rank} is at {addresses[rank]}, where nodes on other machines cannot reach it")


def _attend(
    master: str, rank: int, nodes: int, port: int, deadline: float, timeout_s: float, here: Here
) -> tuple[str, ...]:
    """The other nodes' side: call until node 0 has answered."""
    trouble = "nobody answers"
    while (left_s := deadline - here.clock()) > 0:
        try:
            with socket.create_connection(split_address(master), timeout=min(left_s, _CONNECT_S)) as call:
                own = call.getsockname()
                # Where nobody listens yet, a connection to a port of this machine may meet itself.
                if own != call.getpeername():
                    told = {"rank": rank, "nodes": nodes, "address": _joined(own[0], port)}
                    call.sendall(json.dumps(told).encode("ascii") + b"\n")
                    answer = _line_of(call, deadline, here)
                    if answer:
                        return _nodes_in(answer, master, nodes)
                    trouble = "it hung up"
        except OSError as failure:
            trouble = failure.strerror or str(failure)
        here.sleep(max(0.0, min(_AGAIN_S, deadline - here.clock())))
    raise UsageError(f"node 0 at {master} had no list of all nodes within {timeout_s:g} s: {trouble}")


def _line_of(call: socket.socket, deadline: float, here: Here) -> bytes:
    """The one line that comes, or b"" if the other side hangs up before its end. Raises OSError."""
    heard = bytearray()
    while b"\n" not in heard and len(heard) <= _ANSWER_BYTES:
        call.settimeout(max(0.001, deadline - here.clock()))
        part = call.recv(1 << 16)
        if not part:
            return b""
        heard += part
    return bytes(heard)


def _nodes_in(answer: bytes, master: str, nodes: int) -> tuple[str, ...]:
    try:
        told = json.loads(answer)
        error = told.get("error")
        addresses = tuple(_joined(*split_address(address)) for address in told.get("nodes", ()))
    except (ValueError, AttributeError, TypeError, RecursionError, UsageError):
        raise UsageError(f"what answers at {master} is no redoxfs node that waits for others") from None
    if isinstance(error, str):
        raise UsageError(error)
    if len(addresses) != nodes:
        raise UsageError(f"node 0 at {master} lists {len(addresses)} nodes, not {nodes}")
    return addresses
