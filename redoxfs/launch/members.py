"""Who the nodes are: from --nodes, and what the launcher put into the environment, to a numbered list.

The list is the same at every node and stays as it is. There are three sources of it: --nodes has it; Slurm or torchrun
know it (`auto`); a name in the DNS has the address of every node. torchrun tells only where node 0 is, so the nodes
meet there once (`rendezvous`), before anything else listens at that port.

All of it runs before the daemon is forked, in one thread, and leaves no socket open. What is asked of this machine and
of the DNS comes in as `Here`, so that tests need neither.
"""

import argparse
import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redoxfs.launch.addresses import (
    AGAIN_S,
    DEFAULT_PORT,
    MOST_NODES,
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
from redoxfs.launch.errors import UsageError
from redoxfs.launch.rendezvous import rendezvous
from redoxfs.launch.sizes import format_bytes, parse_size

if TYPE_CHECKING:
    from redoxfs.peers import Transport

# What says a node's number where --node-rank does not: of Slurm, torchrun, and an indexed job of Kubernetes.
_RANKS = ("SLURM_NODEID", "GROUP_RANK", "JOB_COMPLETION_INDEX")

# A step of a Slurm job may have some of the job's nodes, and SLURM_NODEID counts those.
_HOSTLISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")

_TORCHRUN = ("MASTER_ADDR", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

_TLS = ("--tls-cert", "--tls-key", "--tls-ca")

# The paper's own choice of P (section 5).
DEFAULT_PREFETCH_WINDOW = 6000

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
            "--tls-cert": arguments.tls_cert is not None,
        }.items():
            if is_given:
                raise UsageError(f"{option} needs --nodes: one node alone has nobody to share with")
        return None
    if arguments.insecure and arguments.tls_cert is not None:
        raise UsageError("--insecure is plaintext, and --tls-cert is TLS: only one of them can be")
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
    """Raises UsageError if what nodes are to do for each other is not of their policy, or a file of TLS is missing."""
    files = {name: getattr(arguments, name[2:].replace("-", "_")) for name in _TLS}
    missing = [name for name, file in files.items() if file is None]
    if 0 < len(missing) < len(files):
        raise UsageError(f"{', '.join(name for name in _TLS if name not in missing)} needs {' and '.join(missing)}")
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


def _check_plaintext(addresses: Collection[str], arguments: argparse.Namespace, here: Here) -> None:
    if not arguments.insecure and arguments.tls_cert is None and needs_insecure(addresses, here.resolve):
        raise UsageError(
            "the nodes would talk in plaintext over a network, where others can read and forge what they say; "
            "to prevent that: --tls-cert, --tls-key and --tls-ca; if all on it may: --insecure"
        )


def transport_of(arguments: argparse.Namespace, members: Membership) -> "Transport":
    """What the nodes talk over: TLS where its files are given. Reads them. Raises UsageError.

    The meeting of `rendezvous`, before that, is in plaintext: it has nothing but the list, which each node compares
    with every other, and of which each proves its own entry, before they serve each other anything.
    """
    from redoxfs.peers import Plaintext, Tls, TlsError, View

    if arguments.tls_cert is None:
        return Plaintext()
    try:
        return Tls(
            arguments.tls_cert, arguments.tls_key, arguments.tls_ca, View(1, members.addresses), node=members.rank
        )
    except TlsError as error:
        raise UsageError(str(error)) from None


def parse_nodes(text: str) -> Listed | Auto | Dns:
    """What the value of --nodes means. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if kind == "auto":
        return Auto(port_of(rest, text) if colon else DEFAULT_PORT)
    if kind == "dns" and not rest.isdigit():
        return Dns(*split_address(rest))
    addresses = tuple(joined(*split_address(entry)) for entry in text.split(","))
    check_members(addresses)
    return Listed(addresses)


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
    return not is_literal(host) and host.partition(".")[0] == name.partition(".")[0]


def _is_address_of(host: str, here: Here) -> bool:
    try:
        return any(here.is_own(address) for address in ([host] if is_literal(host) else here.resolve(host)))
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
                addresses = tuple(joined(split_address(host)[0], source.port) for host in expand(environ[variable]))
                check_members(addresses)
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
    master = joined(checked_host(host, host, in_brackets=":" in host), source.port)
    if nodes == 1:
        return Membership((master,), 0)
    _check_plaintext([master], arguments, here)
    addresses = rendezvous(
        master, rank=rank, nodes=nodes, port=source.port, timeout_s=arguments.join_timeout, here=here
    )
    return Membership(addresses, rank)


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
        here.sleep(min(AGAIN_S, left_s))
    own = [place for place, host in enumerate(hosts) if here.is_own(host)]
    if len(own) != 1:
        which = f"{len(own)} are" if own else "none is"
        raise UsageError(f"--nodes dns:{source.name}: of {', '.join(hosts)}, {which} an address of this machine")
    return Membership(tuple(joined(host, source.port) for host in hosts), own[0])
