"""Mounts on the nodes of a Ray cluster, for as long as a driver lives.

    with redoxfs.ray.mount("/data/set-packed", "/mnt/set", memory="8GiB", insecure=True):
        trainer.fit()

Ray places one actor on each of its nodes, by a placement group (STRICT_SPREAD). Its bundles take no CPU and no GPU, so
a mount never keeps a job from being scheduled: each asks for a thousandth of the resource that Ray gives to every node
under the node's own name. Each actor runs `redoxfs mount` under a supervisor (`redoxfs.launch.supervisor`), which ends
the mount with the actor. Actors end with the driver's job, however that ends.

If a daemon is killed, its actor ends too. Ray restarts an actor on its node, up to ``max_restarts`` times, and its
constructor mounts again, with the address that it had. If the node is gone, the actor waits for it to come back, and
the other nodes go on. So the constructor gets all that a mount needs, and waits for nothing: `ready` does.

This module alone imports Ray, which is optional. It stands above the rooms, as any program that uses redoxfs does.
"""

import argparse
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

try:
    import ray
except ModuleNotFoundError:
    raise ModuleNotFoundError("Ray is not installed here; to install it: pip install 'redoxfs[ray]'") from None
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from redoxfs.cli.arguments import mount_parser, parse, rendered
from redoxfs.cli.options.building import flat
from redoxfs.launch.addresses import joined, split_address
from redoxfs.launch.defaults import DEFAULT_PORT, MOST_NODES
from redoxfs.launch.errors import UNEXPECTED, ReportedError, UsageError
from redoxfs.launch.members import check_sharing
from redoxfs.launch.options import MountOptions, paths_in
from redoxfs.launch.runtime_paths import open_log
from redoxfs.launch.supervisor import Supervised
from redoxfs.objects import AddressError, is_address, parse_address

# Ray's namespace for the actors of `redoxfs cluster up --ray`, which outlive the command.
_NAMESPACE = "redoxfs"

# A share of node:ADDRESS, of which every node has 1. Ray does not place bundles of nothing.
_SHARE = 0.001

# Mounts of several jobs may be on a node at the same time, each on a port of its own.
_PORTS = range(DEFAULT_PORT, DEFAULT_PORT + 100)

# Ports are found and then taken. Another job that starts at the same time may take one in between.
_ATTEMPTS = 5

# All bundles fit as long as the nodes are alive.
_PLACE_WAIT_S = 60.0

# `redoxfs status` answers at once unless a daemon hangs.
_STATUS_WAIT_S = 20.0

# For a connection to the head node of a cluster.
_CONNECT_WAIT_S = 5.0

# A daemon that hangs is killed after some seconds (`redoxfs.launch.supervisor`).
_END_WAIT_S = 30.0

# Options of `redoxfs mount` that are not the caller's, and why.
_OURS = {
    "nodes": "the nodes are those of the Ray cluster; resource= chooses among them",
    "node_rank": "Ray nodes are numbered here",
    "node_count": "the nodes are those of the Ray cluster; resource= chooses among them",
    "foreground": "the mount is an actor's",
    "keeper": "Ray restarts the actor when its daemon dies",
}


class NodeError(ReportedError):
    """A mount that did not come up, or did not end. The text names the Ray node; ``code`` is `redoxfs mount`'s."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What is known of one node.

    ``state`` is "mounting", "serving", "unmounted" (by `redoxfs umount`), "failed", or "lost": its actor does not
    answer. ``reason`` says why, in the last two. ``stats`` is the mount's `.redoxfs/stats.json`.
    """

    node: int
    address: str
    state: str
    reason: str
    stats: dict[str, Any] | None


def mount(
    source: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str] | None = None,
    *,
    resource: str | None = None,
    max_restarts: int = 3,
    **options: Any,
) -> "Mount":
    """Mount ``source`` at ``mountpoint`` on every node of the Ray cluster, and return once all of them answer.

    Args:
        source: an absolute path, or an address of an object store, which every node can read.
        mountpoint: an absolute path. It is made where it is missing. None: over ``source``, which is a path then.
        resource: mount only on nodes that have this resource of Ray, such as "GPU".
        max_restarts: how often Ray restarts a node's actor; -1: always.
        options: those of `redoxfs mount`, without the dashes: ``memory="8GiB"``, ``classes="dir"``, ``insecure=True``,
            ``chunk_size=64``, ``samples=["*.jpg", "*.png"]``, ``o="allow_other"``.

    Raises:
        UsageError: an option is invalid.
        NodeError: a node could not mount. Then nothing stays mounted on any node.
    """
    for name in options.keys() & _OURS.keys():
        raise UsageError(f"redoxfs.ray.mount() takes no {name}=: {_OURS[name]}")
    paths = [os.fspath(path) for path in (source, mountpoint) if path is not None]
    asked: MountOptions = parse(["mount", *_words(options), "--", *paths]).options
    return bring_up(asked, resource=resource, max_restarts=max_restarts)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as those of the command line. A list is the option for each, or one option with commas."""
    repeatable = {
        name
        for action in mount_parser()._actions
        if isinstance(action, argparse._AppendAction)
        for name in action.option_strings
    }
    words = []
    for name, value in options.items():
        option = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else (value,)
        if len(values) > 1 and option not in repeatable:
            values = (",".join(map(str, values)),)
        for each in values:
            if each is True:
                words.append(option)
            elif each is not None and each is not False:
                words += [option, str(each)] if len(name) == 1 else [f"{option}={each}"]
    return words


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as the driver knows it."""

    number: int
    address: str
    actor: Any

    @property
    def ip(self) -> str:
        return split_address(self.address)[0]

    def error(self, code: int, line: str) -> NodeError:
        return NodeError(code, f"Ray node {self.ip}: {line}")


class Mount:
    """A mount on several Ray nodes. As a context manager, it ends with the block."""

    def __init__(self, mountpoint: str, group: Any, nodes: Sequence[_Node]) -> None:
        self.mountpoint = mountpoint
        self._group = group
        self._nodes = tuple(nodes)
        self._is_closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the nodes listen for each other, as host:port, in the order of their numbers."""
        return tuple(node.address for node in self._nodes)

    def status(self, timeout_s: float = _STATUS_WAIT_S) -> list[NodeStatus]:
        """The state of each node now. It does not raise for what it finds."""
        answers = [node.actor.status.remote() for node in self._nodes]
        done, _ = ray.wait(answers, num_returns=len(answers), timeout=timeout_s) if answers else ([], [])
        found = []
        for node, answer in zip(self._nodes, answers, strict=True):
            told = ("lost", f"its actor does not answer within {timeout_s:g} s", None)
            if answer in done:
                try:
                    told = ray.get(answer)
                except ray.exceptions.RayError as error:
                    told = ("lost", _line_of(error), None)
            found.append(NodeStatus(node.number, node.address, *told))
        return found

    def leave(self) -> None:
        """Let a detached mount outlive this handle."""
        self._is_closed = True

    def close(self) -> None:
        """End the mount on all nodes, also where programs use it. Raises NodeError if a node does not confirm that.

        Nodes that Ray has lost are passed over: the mount ended with them.
        """
        if self._is_closed or not ray.is_initialized():
            return  # after ray.shutdown() the driver's job is over, and its mounts with it
        self._is_closed = True
        alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        ends = {node.actor.end.remote(): node for node in self._nodes if node.ip in alive}
        late: Sequence[Any] = ()
        if ends:
            # An actor that has died raises here, and its mount has ended with it.
            _, late = ray.wait(list(ends), num_returns=len(ends), timeout=_END_WAIT_S)
        for node in self._nodes:
            ray.kill(node.actor)
        remove_placement_group(self._group)
        for end in late:
            raise ends[end].error(UNEXPECTED, f"{self.mountpoint} has not ended within {_END_WAIT_S:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def bring_up(
    options: MountOptions, *, resource: str | None = None, max_restarts: int = 3, is_detached: bool = False
) -> Mount:
    """As `mount`, with options that are parsed. If detached, the mount outlives the driver, and `find` finds it."""
    check_sharing(options.cluster.sharing, options.memory.policy)
    _check_paths(options)
    mountpoint = os.path.normpath(options.mountpoint or options.source)
    if not ray.is_initialized():
        ray.init()
    ips = _ips(resource)
    group = placement_group(
        [{f"node:{ip}": _SHARE} for ip in ips],
        strategy="STRICT_SPREAD",
        name=_group_name(mountpoint) if is_detached else "",
        lifetime="detached" if is_detached else None,
    )
    mount = Mount(mountpoint, group, ())
    try:
        if not group.wait(_PLACE_WAIT_S):
            raise NodeError(
                UNEXPECTED, f"Ray has not placed an actor on each of {', '.join(ips)} within {_PLACE_WAIT_S:g} s"
            )
        for _ in range(_ATTEMPTS):
            mount = _started(options, mountpoint, group, ips, max_restarts, is_detached=is_detached)
            if _await(mount._nodes):
                return mount
            for node in mount._nodes:
                ray.kill(node.actor)
        raise NodeError(UNEXPECTED, f"other jobs took the ports from {_PORTS[0]} on, time and again")
    except BaseException:
        # The first reason is what the caller needs.
        with suppress(NodeError):
            mount.close()
        raise


def _check_paths(options: MountOptions) -> None:
    given = flat(options)
    if options.keeper:
        raise UsageError(f"--keeper: {_OURS['keeper']}")
    paths = {"source": options.source, "mountpoint": options.mountpoint, **paths_in(given)}
    if is_address(options.source):
        try:
            address = parse_address(options.source)
        except AddressError as error:
            raise UsageError(str(error)) from None
        if options.mountpoint is None:
            raise UsageError(f"source {address}: cannot be mounted over itself; give a mountpoint")
        del paths["source"]
    for name, path in paths.items():
        if path is not None and not os.path.isabs(path):
            raise UsageError(f"{name} {path}: the nodes have no common working directory; give an absolute path")


def _ips(resource: str | None) -> list[str]:
    """The addresses of the nodes to mount on."""
    ips = sorted(
        node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and (resource is None or node["Resources"].get(resource))
    )
    if not ips:
        raise UsageError(f"no Ray node has the resource {resource}" if resource else "no Ray node is alive")
    if len(ips) > MOST_NODES:
        raise UsageError(f"{len(ips)} Ray nodes are more than {MOST_NODES}; choose among them by a resource")
    return ips


def _started(
    options: MountOptions, mountpoint: str, group: Any, ips: Sequence[str], max_restarts: int, *, is_detached: bool
) -> Mount:
    """Find a free port on each node, and start the actors, which mount."""
    strategies = [PlacementGroupSchedulingStrategy(group, number) for number in range(len(ips))]
    search = ray.remote(num_cpus=0)(free_port)
    ports: list[int] = []
    found = [search.options(scheduling_strategy=each).remote(ip) for each, ip in zip(strategies, ips, strict=True)]
    for ip, port in zip(ips, found, strict=True):
        try:
            ports.append(ray.get(port))
        except ray.exceptions.RayError as error:
            raise NodeError(UNEXPECTED, f"Ray node {ip}: {_line_of(error)}") from None
    addresses = [joined(ip, port) for ip, port in zip(ips, ports, strict=True)]
    actor = ray.remote(num_cpus=0, max_concurrency=4)(RedoxfsNode)
    nodes = []
    for number, (strategy, address) in enumerate(zip(strategies, addresses, strict=True)):
        cluster = replace(options.cluster, nodes=",".join(addresses), node_rank=number)
        words = rendered(replace(options, foreground=True, cluster=cluster))
        named = {}
        if is_detached:
            name = f"{mountpoint} {number} {address}"
            named = {"name": name, "namespace": _NAMESPACE, "lifetime": "detached"}
        placed = actor.options(scheduling_strategy=strategy, max_restarts=max_restarts, **named)
        nodes.append(
            _Node(
                number,
                address,
                placed.remote(
                    words,
                    mountpoint,
                    address,
                    speaks=number == 0,
                    is_log_given=options.log is not None,
                    is_restarted=max_restarts != 0,
                ),
            )
        )
    return Mount(mountpoint, group, nodes)


def _await(nodes: Sequence[_Node]) -> bool:
    """Wait until all mounts answer; False if a port was taken. Raises NodeError with the reason of the first to fail.

    There is no deadline but those of `redoxfs mount`: a scan may take long, and Ray notices actors that die.
    """
    waiting = {node.actor.ready.remote(): node for node in nodes}
    while waiting:
        (first, *_), _ = ray.wait(list(waiting))
        node = waiting.pop(first)
        try:
            told = ray.get(first)
        except ray.exceptions.RayError as error:
            raise node.error(UNEXPECTED, _line_of(error)) from None
        if told == _TAKEN:
            return False
        if told is not None:
            raise node.error(*told)
    return True


def _line_of(error: BaseException) -> str:
    """The line of an error of Ray that says most."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return f"{type(cause or error).__name__}: {lines[0] if lines else 'no reason given'}"


# The mounts of `redoxfs cluster up --ray`


def connect() -> None:
    """Connect a command to the cluster at RAY_ADDRESS, or else to this machine's. Raises UsageError."""
    where = os.environ.get("RAY_ADDRESS", "")
    try:
        if ":" in where and "/" not in where:
            # Ray itself would try for minutes.
            socket.create_connection(split_address(where), _CONNECT_WAIT_S).close()
        ray.init("auto", namespace=_NAMESPACE, logging_level="ERROR")
    except OSError:
        raise UsageError(
            f"no Ray cluster answers at RAY_ADDRESS={where}"
            if where
            else "no Ray cluster runs on this machine; to use another: RAY_ADDRESS=HOST:PORT"
        ) from None


def find(mountpoint: str) -> Mount | None:
    """The detached mount at ``mountpoint``; None if there is none."""
    nodes = []
    for entry in ray.util.list_named_actors(all_namespaces=True):
        where, _, rest = entry["name"].rpartition(" ")[0].rpartition(" ")
        if entry["namespace"] == _NAMESPACE and where == os.path.normpath(mountpoint):
            address = entry["name"].rpartition(" ")[2]
            nodes.append(_Node(int(rest), address, ray.get_actor(entry["name"], _NAMESPACE)))
    try:
        group = get_placement_group(_group_name(mountpoint))
    except ValueError:
        return None
    return Mount(mountpoint, group, sorted(nodes, key=lambda node: node.number))


def _group_name(mountpoint: str) -> str:
    return f"redoxfs {os.path.normpath(mountpoint)}"


# On the nodes

_TAKEN = "taken"


def free_port(ip: str) -> int:
    """The first port for a daemon that nobody uses at this node's address ``ip``."""
    for port in _PORTS:
        held = _held(ip, port)
        if held is not None:
            held.close()
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {_PORTS[0]} to {_PORTS[-1]} are in use")


def _held(ip: str, port: int) -> socket.socket | None:
    """A socket that keeps the port from other jobs, and not from the daemon; None if the port is in use."""
    holder = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    try:
        holder.bind((ip, port))
    except OSError as failure:
        holder.close()
        if failure.errno != errno.EADDRINUSE:
            raise
        return None
    # It does not listen. gRPC's sockets have this option too, so one of them can still bind to the port and listen.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def _is_restarted() -> bool:
    """Whether Ray has restarted this actor."""
    with warnings.catch_warnings():
        # Ray's own use of a function that it has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class RedoxfsNode:
    """The actor: one node's mount, from the constructor to the end of the process."""

    def __init__(
        self,
        words: Sequence[str],
        mountpoint: str,
        address: str,
        *,
        speaks: bool,
        is_log_given: bool,
        is_restarted: bool,
    ) -> None:
        self._mountpoint = mountpoint
        self._is_restarted = is_restarted
        self._is_ending = False
        self._mount: Supervised | None = None
        self._port = None
        # After a restart, the daemon from before may still be ending. The supervisor waits for that.
        if not _is_restarted():
            self._port = _held(*split_address(address))
            if self._port is None:
                return
        if not is_log_given:
            log, path = open_log(None, Path(mountpoint))
            os.close(log)
            words = [f"--log={path}", *words]
        self._mount = Supervised(words, mountpoint, print if speaks else lambda _: None)
        threading.Thread(target=self._watch, daemon=True, name="redoxfs watch").start()

    def _watch(self) -> None:
        """Release the port when the daemon listens. End the actor with its daemon, so that Ray restarts both."""
        assert self._mount is not None
        self._mount.wait_ready()
        if self._port is not None:
            self._port.close()
        self._mount.wait_end()
        if self._mount.is_ready and self._mount.code and not self._is_ending:
            print(f"{self._mountpoint}: {self._mount.line}", file=sys.stderr, flush=True)
            if self._is_restarted:
                os._exit(1)

    def ready(self) -> tuple[int, str] | str | None:
        """Wait until the mount answers: None; or the exit code and the line of `redoxfs mount`; or _TAKEN."""
        if self._mount is None:
            return _TAKEN
        self._mount.wait_ready()
        if self._mount.is_ready:
            return None
        return self._mount.code or UNEXPECTED, self._mount.line

    def status(self) -> tuple[str, str, dict[str, Any] | None]:
        """State, reason and statistics, as in `NodeStatus`."""
        if self._mount is None:
            return "failed", "its port is in use by another program", None
        if self._mount.code is not None:
            return "failed" if self._mount.code else "unmounted", self._mount.line, None
        if not self._mount.is_ready:
            return "mounting", "", None
        command = [sys.executable, "-m", "redoxfs", "status", "--json", "--timeout=10", self._mountpoint]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return "failed", done.stderr.strip(), None
        return "serving", "", json.loads(done.stdout)

    def end(self) -> None:
        """End the mount; returns when nothing of it is left."""
        self._is_ending = True
        if self._mount is not None:
            self._mount.end()
            self._mount.wait_end()
