"""`redoxfs cluster`: several real nodes on this machine, to try out what several machines would do.

With --ray, the nodes are those of a Ray cluster (`redoxfs.cli.cluster_ray`).

Nothing here is simulated. Each node is a `redoxfs mount` of its own, at DIR/0, DIR/1, …, and they talk over loopback.
They start together, since each waits for all others. Later commands find the nodes in the mount table.
"""

import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redoxfs.cli import cluster_ray, status, umount
from redoxfs.cli.arguments import rendered
from redoxfs.cli.exits import INTERRUPTED, code_of, line_of
from redoxfs.cli.jobs import end_as_by_ctrl_c
from redoxfs.cli.options.mounts import UmountOptions
from redoxfs.cli.options.nodes import ClusterDownOptions, ClusterStatusOptions, ClusterUpOptions
from redoxfs.cli.table import print_table
from redoxfs.launch.control_files import parsed_stats, understood
from redoxfs.launch.errors import CommandError, MountpointError, ReportedError, UsageError
from redoxfs.launch.members import check_sharing
from redoxfs.launch.memory import available_memory, default_memory
from redoxfs.launch.metrics import moved
from redoxfs.launch.options import ClusterOptions
from redoxfs.launch.path_status import PathStatus, path_status
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, parse_size
from redoxfs.linux.ends import end_of
from redoxfs.linux.mount_table import read_mounts, topmost_at

# Numbers in stats.json that are no counters to add up: they identify the node, its dataset and its plan.
_NOT_COUNTED = frozenset(
    {
        "pid",
        "pid_namespace",
        "node",
        "nodes",
        "exchange",
        "samples",
        "classes",
        "chunks",
        "chunk_size",
        "virtual_chunks",
        "chunks_per_virtual_chunk",
        "seed",
    }
)

# The prefix of the line on stderr with the reason why a command ended.
_REASON = "redoxfs: "

# The prefix of the line on how to end a single node, which would take its chunks away from the others.
_OWN_END = "to end it: "


def run(options: ClusterUpOptions | ClusterStatusOptions | ClusterDownOptions) -> int:
    """Start nodes, show them, or end them."""
    match options:
        case ClusterUpOptions():
            return _up(options)
        case ClusterStatusOptions():
            return _status(options)
        case ClusterDownOptions():
            return _down(options)


# up


@dataclass(slots=True)
class _Start:
    """A `redoxfs mount` that was started, in a session of its own: it gets a Ctrl-C from us alone."""

    node: int
    mountpoint: Path
    process: subprocess.Popen[bytes]
    ended: int  # its pidfd
    heard: bytearray = field(default_factory=bytearray)
    reason: str = ""

    def hear(self, part: bytes) -> None:
        """Print the lines of node 0; keep the last reason of any node."""
        *lines, rest = bytes(self.heard + part).split(b"\n")
        self.heard[:] = rest
        for line in lines:
            text = line.decode(errors="backslashreplace")
            if text.startswith(_REASON):
                self.reason = text.removeprefix(_REASON)
            elif self.node == 0 and not text.startswith(_OWN_END):
                # The others print the same.
                say(f"[{self.node}] {text}")


def _up(options: ClusterUpOptions) -> int:
    if options.ray:
        return cluster_ray.up(options)
    mount = options.mount
    if options.resource is not None or mount.cluster.insecure:
        raise UsageError(f"{'--insecure' if options.resource is None else '--resource'} is for --ray")
    assert options.count is not None
    check_sharing(mount.cluster.sharing, mount.memory.policy)
    memory_bytes = _memory_of(options)
    folder = _folder(options, source=path_status(mount.source, mount.timeout_s))
    mountpoints = [folder / str(node) for node in range(options.count)]
    # A command that a shell without job control runs with & ignores SIGINT, and nodes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_as_by_ctrl_c()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        # They may reach every process of a job step, and none of the nodes must be missing.
        signal.signal(number, signal.SIG_IGN)
    made: list[Path] = []
    starts: list[_Start] = []
    try:
        made.extend(filter(_make, (folder, *mountpoints)))
        with _free_ports(options.count) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            for node, mountpoint in enumerate(mountpoints):
                command = _command(options, addresses, memory_bytes, node, mountpoint)
                starts.append(_start(command, node, mountpoint))
            _await(starts)
    except BaseException:
        _end(starts, mount.timeout_s)
        _remove_empty(made)
        raise
    finally:
        for start in starts:
            os.close(start.ended)
            if start.process.stderr is not None:
                start.process.stderr.close()
    if mount.foreground:
        _remove_empty(made)
    else:
        if options.count == 1:
            say(f"1 node serves {mount.source} at {mountpoints[0]}")
        else:
            say(f"{options.count} nodes serve {mount.source} at {mountpoints[0]} … {mountpoints[-1]}")
        say(f"to end them: redoxfs cluster down {shlex.quote(str(folder))}")
    return 0


def _folder(options: ClusterUpOptions, *, source: PathStatus) -> Path:
    """DIR, absolute and fit to have mountpoints made in it. Raises MountpointError."""
    folder = path_status(options.folder, options.mount.timeout_s)
    if folder.ours is not None:
        raise MountpointError(f"{folder.asked}: lies on the redoxfs mount at {folder.ours.mountpoint}")
    if source.path in (folder.path, *folder.path.parents):
        raise MountpointError(f"{folder.asked}: lies inside SOURCE ({source.path}); name a folder elsewhere")
    there = sorted(_mounted(folder.path))
    if there:
        raise MountpointError(
            f"{folder.path}: nodes {', '.join(map(str, there))} are mounted there; "
            f"to end them: redoxfs cluster down {shlex.quote(str(folder.path))}"
        )
    return folder.path


def _make(path: Path) -> bool:
    """Make a folder; whether it was missing."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    except OSError as failure:
        raise MountpointError(f"{path}: cannot be made: {failure.strerror}") from None
    return True


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in reversed(folders):
        try:
            folder.rmdir()
        except OSError:
            continue  # it is not empty, or still a mountpoint


@contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Different free ports of the loopback address, reserved until the end of the context.

    Sockets that do not listen reserve them. A node can still listen there, as gRPC's sockets have SO_REUSEADDR, too.
    """
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(int(holder.getsockname()[1]))
        yield ports


def _memory_of(options: ClusterUpOptions) -> int:
    """Bytes for each node; by default all nodes together take what one mount takes. Raises UsageError."""
    available = available_memory()
    if options.mount.memory.memory_size is not None:
        return parse_size(options.mount.memory.memory_size, available, "--memory")
    return max(1, default_memory(available) // (options.count or 1))


def _command(
    options: ClusterUpOptions, addresses: Sequence[str], memory_bytes: int, node: int, mountpoint: Path
) -> list[str]:
    """The command that starts one node: the common options, with an address, a mountpoint and a log of its own."""
    common = options.mount
    own = replace(
        common,
        mountpoint=str(mountpoint),
        memory=replace(common.memory, memory_size=str(memory_bytes)),
        cluster=ClusterOptions(nodes=",".join(addresses), node_rank=node, sharing=common.cluster.sharing),
        log=None if common.log is None else f"{common.log}.{node}",
        metrics=None if common.metrics is None else moved(common.metrics, node),
    )
    return [sys.executable, "-m", "redoxfs", "mount", *rendered(own)]


def _start(command: Sequence[str], node: int, mountpoint: Path) -> _Start:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    return _Start(node, mountpoint, process, end_of(process.pid))


def _await(starts: Sequence[_Start]) -> None:
    """Wait until all have ended with 0. Raises ReportedError with the reason of the first that does not."""
    with selectors.DefaultSelector() as ready:
        for start in starts:
            ready.register(start.ended, selectors.EVENT_READ, start)
            ready.register(_stderr(start), selectors.EVENT_READ, start)
        left = len(starts)
        while left:
            for key, _ in ready.select():
                one: _Start = key.data
                has_ended = key.fd == one.ended
                if not _hear(one) or has_ended:
                    ready.unregister(key.fileobj)
                if has_ended:
                    left -= 1
                    _check_end(one)


def _check_end(start: _Start) -> None:
    code = start.process.wait()
    if code:
        # The shell's own convention for a process ended by a signal.
        code = code if code > 0 else 128 - code
        reason, start.reason = start.reason or f"ended with {code}", ""
        raise ReportedError(code, f"node {start.node}: {reason}")


def _stderr(start: _Start) -> int:
    assert start.process.stderr is not None
    return start.process.stderr.fileno()


def _hear(start: _Start) -> bool:
    """Read what is available of its stderr; False if that has ended."""
    while True:
        try:
            part = os.read(_stderr(start), 1 << 16)
        except BlockingIOError:
            return True
        if not part:
            if start.heard:
                start.hear(b"\n")
            return False
        start.hear(part)


def _end(starts: Sequence[_Start], timeout_s: float) -> None:
    """Interrupt the commands that still run, and unmount what they mounted.

    The signal is SIGINT because `redoxfs mount` then says that it was interrupted.
    """
    running = [start for start in starts if start.process.poll() is None]
    for start in running:
        start.process.send_signal(signal.SIGINT)
    for start in running:
        try:
            start.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            say(f"[{start.node}] has not ended within {timeout_s:g} s: pid {start.process.pid}")
    for start in starts:
        _hear(start)
        if start.reason and start.process.returncode not in (None, INTERRUPTED):
            say(f"[{start.node}] {start.reason}")
    # An interrupted one may have mounted already, and nothing was mounted there before.
    for start in starts:
        if _is_ours(start.mountpoint):
            try:
                _unmount(start.mountpoint, lazy=False, timeout_s=timeout_s)
            except CommandError as error:
                if _is_ours(start.mountpoint):
                    say(f"[{start.node}] {error}")


# status


def _status(options: ClusterStatusOptions) -> int:
    found: dict[int, dict[str, Any] | CommandError] = {}
    if options.ray:
        where = f"at {options.folder} on Ray"
        found |= cluster_ray.stats(options.folder)
    else:
        folder, mounted = _nodes_below(options.folder, options.timeout_s)
        where = f"below {folder}"
        for node, mountpoint in sorted(mounted.items()):
            try:
                text = status.read_stats(str(mountpoint), options.timeout_s)[1]
                with understood(mountpoint):
                    told = parsed_stats(text)
                    _node_line(told)
                found[node] = told
            except CommandError as error:
                found[node] = error
    reports = [
        {"node": node, "error": str(stats)} if isinstance(stats, CommandError) else stats
        for node, stats in found.items()
    ]
    total = summed(reports)
    if options.json:
        print(json.dumps({"nodes": reports, "sum": total}, indent=2))
    else:
        lines = [
            (f"node {node}", str(stats) if isinstance(stats, CommandError) else _node_line(stats))
            for node, stats in found.items()
        ]
        print_table(f"{counted(len(found), 'redoxfs node')} {where}", [*_sum_rows(reports, total), *lines])
    for stats in found.values():
        if isinstance(stats, CommandError):
            raise stats
    return 0


def summed(stats: Sequence[dict[str, Any]]) -> dict[str, int | float]:
    """The counters of all nodes, each added up."""
    total: dict[str, int | float] = {}
    for each in stats:
        for name, value in each.items():
            if type(value) in (int, float) and name not in _NOT_COUNTED:
                total[name] = total.get(name, 0) + value
    return total


def _sum_rows(stats: Sequence[dict[str, Any]], total: dict[str, int | float]) -> list[tuple[str, str]]:
    """The rows that `status` shows for one mount, for all together. With peers, it includes what came from them."""
    common = {name: value for each in stats for name, value in each.items() if name in ("source", "policy")}
    has_peers = {"peers": [peer for each in stats for peer in each.get("peers", ())]}
    return [row for row in status.rows({**common, **total, **has_peers}) if row[0] != "peers"]


def _node_line(stats: dict[str, Any]) -> str:
    others = status.from_other_nodes(stats)
    peers = status.peers(stats)
    parts = [
        f"peers: {peers}" if peers else "no peers",
        counted(stats.get("opens", 0), "open"),
        f"from other nodes: {others}" if others else None,
        f"{stats['degraded']:,} degraded" if stats.get("degraded") else None,
        counted(stats["errors"], "error") if stats.get("errors") else None,
    ]
    return "; ".join(part for part in parts if part)


# down


def _down(options: ClusterDownOptions) -> int:
    if options.ray:
        return cluster_ray.down(options)
    folder, mounted = _nodes_below(options.folder, options.timeout_s)
    failures: list[CommandError] = []
    for node, mountpoint in sorted(mounted.items()):
        try:
            _unmount(mountpoint, lazy=options.lazy, timeout_s=options.timeout_s)
        except CommandError as error:
            failures.append(error)
            say(f"[{node}] {line_of(error).removeprefix(_REASON)}")
    _remove_empty([path for path in folder.iterdir() if _node_of(path) is not None])
    if failures:
        raise ReportedError(
            code_of(failures[0]), f"{folder}: {len(failures)} of {len(mounted)} nodes could not be ended"
        )
    return 0


def _unmount(mountpoint: Path, *, lazy: bool, timeout_s: float) -> None:
    umount.run(UmountOptions(str(mountpoint), lazy=lazy, timeout_s=timeout_s))


# Which nodes there are


def _nodes_below(asked: str, timeout_s: float) -> tuple[Path, dict[int, Path]]:
    """DIR, and the mountpoints in it by their numbers, alive or dead. Raises MountpointError if there are none."""
    folder = path_status(asked, timeout_s)
    if folder.trouble is not None:
        raise MountpointError(f"DIR {asked}: {folder.trouble}")
    mounted = _mounted(folder.path)
    if not mounted:
        raise MountpointError(f"{asked}: no nodes of a cluster are mounted there, as {folder.path}/0, …")
    return folder.path, mounted


def _mounted(folder: Path) -> dict[int, Path]:
    """The redoxfs mounts at folder/0, folder/1, …, from the mount table alone, which lists even dead ones."""
    mounts = read_mounts()
    found = {}
    for mount in mounts:
        path = Path(mount.mountpoint)
        node = _node_of(path)
        on_top = topmost_at(path, mounts) if node is not None and path.parent == folder else None
        if node is not None and on_top is not None and on_top.ours:
            found[node] = path
    return found


def _is_ours(path: Path) -> bool:
    on_top = topmost_at(path, read_mounts())
    return on_top is not None and on_top.ours


def _node_of(path: Path) -> int | None:
    """The number that a node's mountpoint is named after."""
    name = path.name
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None
