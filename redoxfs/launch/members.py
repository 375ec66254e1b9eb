"""Which nodes share the dataset: from --nodes and the launcher's environment to a numbered list.

The list is the same on every node and does not change. It has three sources: --nodes itself; Slurm or torchrun
(`auto`); or a DNS name with an address for every node. torchrun gives only the address of node 0, so the nodes meet
there once (`rendezvous`), before anything else listens on that port.

All of it runs before the fork of the daemon, in one thread, and leaves no socket open. Questions to this machine and
to the DNS go through `Here`, so that tests need neither.
"""

import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redoxfs.launch.addresses import (
    RETRY_S,
    Here,
    check_members,
    checked_host,
    expand,
    is_literal,
    joined,
    needs_insecure,
    port_of,
    split_address,
)
from redoxfs.launch.defaults import DEFAULT_PORT, DEFAULT_PREFETCH_WINDOW, MOST_NODES, POLICIES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.options import ClusterOptions, SharingOptions
from redoxfs.launch.rendezvous import rendezvous
from redoxfs.launch.sizes import format_bytes, parse_size

if TYPE_CHECKING:
    from redoxfs.peers import Transport

# Variables with a node's number, used without --node-rank: Slurm's, torchrun's, and of an indexed Kubernetes job.
_RANKS = ("SLURM_NODEID", "GROUP_RANK", "JOB_COMPLETION_INDEX")

# A step of a Slurm job may have only some of the job's nodes, and SLURM_NODEID counts those.
_HOSTLISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")

_TORCHRUN = ("MASTER_ADDR", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

_TLS = ("--tls-cert", "--tls-key", "--tls-ca")

# One part in this many of --memory is reserved for samples from other nodes.
REMOTE_PART = 8


@dataclass(frozen=True, slots=True)
class Membership:
    """All nodes, each as "host:port" (IPv6 in brackets), and the number of this one."""

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


def membership(
    options: ClusterOptions, policy: str, environ: Mapping[str, str] = os.environ, here: Here | None = None
) -> Membership | None:
    """The nodes that --nodes stands for; None if it is this node alone.

    Takes up to --join-timeout where nodes have to meet or a name lacks some of its addresses. Raises UsageError.
    """
    here = here or Here()
    source = check_nodes(options, policy)
    if source is None:
        return None
    if isinstance(source, Listed):
        members = Membership(source.addresses, _rank_in(source.addresses, options.node_rank, environ, here))
    elif isinstance(source, Dns):
        assert options.node_count is not None
        members = _from_dns(source, options.node_count, options.sharing.join_timeout_s, here)
    else:
        members = _from_launcher(source, options, environ, here)
    if options.node_count not in (None, len(members.addresses)):
        raise UsageError(f"--node-count {options.node_count}, but there are {len(members.addresses)} nodes")
    if len(members.addresses) == 1:
        return None
    _check_plaintext(members.addresses, options, here)
    return members


def check_nodes(options: ClusterOptions, policy: str) -> Listed | Auto | Dns | None:
    """The meaning of --nodes, if all options for several nodes fit together; no lookup. Raises UsageError."""
    sharing = options.sharing
    check_sharing(sharing, policy)
    if options.nodes is None:
        for option, is_given in {
            "--node-rank": options.node_rank is not None,
            "--node-count": options.node_count is not None,
            "--insecure": options.insecure,
            "--exchange": bool(sharing.exchange),
            "--storage local": sharing.storage == "local",
            "--remote-memory": sharing.remote_memory is not None,
            "--sampler": sharing.sampler is not None,
            "--tls-cert": sharing.tls_cert is not None,
        }.items():
            if is_given:
                raise UsageError(f"{option} needs --nodes: a single node has no others to share with")
        return None
    if options.insecure and sharing.tls_cert is not None:
        raise UsageError("--insecure means plaintext and --tls-cert means TLS; give one of them")
    source = parse_nodes(options.nodes)
    if options.node_rank is not None:
        if not isinstance(source, Listed):
            raise UsageError(f"--node-rank is a place in a list, and --nodes {options.nodes} is not a list")
        if options.node_rank >= len(source.addresses):
            raise UsageError(
                f"--node-rank {options.node_rank}, but --nodes has {len(source.addresses)}, counted from 0"
            )
    if isinstance(source, Dns) and options.node_count is None:
        raise UsageError(f"--nodes {options.nodes} needs --node-count: the number of addresses to wait for")
    return source


def check_sharing(sharing: SharingOptions, policy: str) -> None:
    """Raises UsageError if an option does not belong to the policy, or a file of TLS is missing."""
    files = dict(zip(_TLS, (sharing.tls_cert, sharing.tls_key, sharing.tls_ca), strict=True))
    missing = [name for name, file in files.items() if file is None]
    if 0 < len(missing) < len(files):
        raise UsageError(f"{', '.join(name for name in _TLS if name not in missing)} needs {' and '.join(missing)}")
    if POLICIES[policy].needs_order:
        if sharing.exchange:
            raise UsageError("--exchange is for --policy pool; with --policy slot every sample has one home")
        if sharing.storage == "local":
            raise UsageError("--storage local is for --policy pool; --policy slot needs --storage shared")
    else:
        if sharing.sampler is not None:
            raise UsageError("--sampler is for --policy slot; --policy pool does not look ahead")
        if sharing.prefetch_window != DEFAULT_PREFETCH_WINDOW:
            raise UsageError("--prefetch-window is for --policy slot; --policy pool does not look ahead")
    if sharing.remote_memory is not None:
        parse_size(sharing.remote_memory, 1 << 40, "--remote-memory")


def remote_memory_of(sharing: SharingOptions, memory_bytes: int) -> int:
    """Bytes of --memory for samples from other nodes: --remote-memory, or its default. Raises UsageError."""
    if sharing.remote_memory is None:
        return max(1, memory_bytes // REMOTE_PART)
    size = parse_size(sharing.remote_memory, memory_bytes, "--remote-memory")
    if size > memory_bytes:
        raise UsageError(
            f"--remote-memory {sharing.remote_memory} is more than --memory, which is {format_bytes(memory_bytes)}"
        )
    return size


def _check_plaintext(addresses: Collection[str], options: ClusterOptions, here: Here) -> None:
    if not options.insecure and options.sharing.tls_cert is None and needs_insecure(addresses, here.resolve):
        raise UsageError(
            "the nodes would talk in plaintext over a network, where others can read and forge their messages; "
            "use --tls-cert, --tls-key and --tls-ca, or accept it with --insecure"
        )


def transport_of(sharing: SharingOptions, members: Membership) -> "Transport":
    """The transport between the nodes: TLS if its files are given. Reads them. Raises UsageError.

    The meeting of `rendezvous`, before that, is in plaintext. It exchanges only the list. Each node compares that with
    every other node and proves its own entry before they serve each other anything.
    """
    from redoxfs.peers import Plaintext, Tls, TlsError, View

    cert, key, ca = sharing.tls_cert, sharing.tls_key, sharing.tls_ca
    if cert is None or key is None or ca is None:
        return Plaintext()
    try:
        return Tls(cert, key, ca, View(1, members.addresses), node=members.rank)
    except TlsError as error:
        raise UsageError(str(error)) from None


def parse_nodes(text: str) -> Listed | Auto | Dns:
    """The meaning of a value of --nodes. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if kind == "auto":
        return Auto(port_of(rest, text) if colon else DEFAULT_PORT)
    if kind == "dns" and not rest.isdigit():
        return Dns(*split_address(rest))
    addresses = tuple(joined(*split_address(entry)) for entry in text.split(","))
    check_members(addresses)
    return Listed(addresses)


# The list, and the environment of Slurm and torchrun


def _rank_in(addresses: Sequence[str], asked: int | None, environ: Mapping[str, str], here: Here) -> int:
    if asked is not None:
        return asked
    hosts = [split_address(address)[0] for address in addresses]
    named = [node for node, host in enumerate(hosts) if _is_name_of(host, here.name)]
    for variable in _RANKS:
        if not environ.get(variable):
            continue
        rank = _number(environ, variable)
        if rank >= len(addresses):
            raise UsageError(f"{variable}={rank}, but there are {len(addresses)} nodes; set --node-rank")
        if len(named) == 1 and named[0] != rank:
            raise UsageError(
                f"{variable}={rank}, and node {rank} is {addresses[rank]}, but this machine, {here.name}, is "
                f"node {named[0]}; set --node-rank"
            )
        return rank
    if len(named) != 1:
        named = [node for node in named or range(len(hosts)) if _is_address_of(hosts[node], here)]
    if len(named) != 1:
        found = f"nodes {', '.join(map(str, named))} are" if named else "none of the nodes is"
        raise UsageError(f"{found} this machine, {here.name}; set --node-rank")
    return named[0]


def _is_name_of(host: str, name: str) -> bool:
    """Whether both are the same name; one of them may lack its domain."""
    host, name = host.lower().rstrip("."), name.lower().rstrip(".")
    if "." in host and "." in name:
        return host == name
    return not is_literal(host) and host.partition(".")[0] == name.partition(".")[0]


def _is_address_of(host: str, here: Here) -> bool:
    try:
        return any(here.is_own(address) for address in ([host] if is_literal(host) else here.resolve(host)))
    except OSError:
        return False


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ[variable]
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"{variable}={text!r} is not a number")
    return int(text)


def _from_launcher(source: Auto, options: ClusterOptions, environ: Mapping[str, str], here: Here) -> Membership:
    for variable in _HOSTLISTS:
        if environ.get(variable):
            try:
                addresses = tuple(joined(split_address(host)[0], source.port) for host in expand(environ[variable]))
                check_members(addresses)
            except UsageError as error:
                raise UsageError(f"{variable}: {error}") from None
            return Membership(addresses, _rank_in(addresses, None, environ, here))
    missing = [variable for variable in _TORCHRUN if not environ.get(variable)]
    if missing:
        about = f"torchrun's {', '.join(missing)}" if len(missing) < len(_TORCHRUN) else "torchrun's variables"
        raise UsageError(
            f"--nodes auto: the environment has neither Slurm's {_HOSTLISTS[-1]} nor {about}; list the nodes instead"
        )
    rank, world, local = (_number(environ, variable) for variable in _TORCHRUN[1:])
    if not local or not world or world % local or world // local > MOST_NODES:
        raise UsageError(f"--nodes auto: WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local} do not give a number of nodes")
    nodes = world // local
    if rank >= nodes:
        raise UsageError(f"--nodes auto: GROUP_RANK={rank}, but WORLD_SIZE and LOCAL_WORLD_SIZE make {nodes} nodes")
    host = environ["MASTER_ADDR"]
    master = joined(checked_host(host, host, in_brackets=":" in host), source.port)
    if nodes == 1:
        return Membership((master,), 0)
    _check_plaintext([master], options, here)
    addresses = rendezvous(
        master, rank=rank, nodes=nodes, port=source.port, timeout_s=options.sharing.join_timeout_s, here=here
    )
    return Membership(addresses, rank)


# A name in the DNS


def _from_dns(source: Dns, count: int, timeout_s: float, here: Here) -> Membership:
    """The nodes in the order of their addresses, once there are ``count``."""
    deadline = here.clock() + timeout_s
    while True:
        trouble = ""
        try:
            found = {ipaddress.ip_address(address) for address in here.resolve(source.name)}
        except OSError as failure:
            found, trouble = set(), f" ({failure.strerror or failure})"
        # A node may have an IPv4 and an IPv6 address, so only one kind is counted.
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
        here.sleep(min(RETRY_S, left_s))
    own = [node for node, host in enumerate(hosts) if here.is_own(host)]
    if len(own) != 1:
        which = f"{len(own)} are addresses" if own else "none is an address"
        raise UsageError(f"--nodes dns:{source.name}: of {', '.join(hosts)}, {which} of this machine")
    return Membership(tuple(joined(host, source.port) for host in hosts), own[0])
