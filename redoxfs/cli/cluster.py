"""`redoxfs cluster`: several real nodes on this machine, to try out what several machines would do.

Nothing here is simulated: each node is a `redoxfs mount` of its own, at DIR/0, DIR/1, …, and they talk over loopback.
They have to start at once, since each waits for all others. The mount table alone says later which there are.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redoxfs.cli import status, umount
from redoxfs.cli.exits import INTERRUPTED, code_of, line_of
from redoxfs.cli.table import print_table
from redoxfs.launch.errors import CommandError, MountpointError, ReportedError
from redoxfs.launch.members import check_sharing
from redoxfs.launch.path_status import Place, find
from redoxfs.launch.say import say
from redoxfs.launch.sizes import available_memory, default_memory, parse_size
from redoxfs.linux.mount_table import read_mounts, topmost_at

# What stats.json says of a node that does not add up: what it is, and what its dataset and its plan are.
_NOT_COUNTED = frozenset(
    {
        "pid",
        "node",
        "nodes",
        "samples",
        "classes",
        "chunks",
        "chunk_size",
        "virtual_chunks",
        "chunks_per_virtual_chunk",
        "seed",
    }
)

# How a line on stderr begins that is why a command ended.
_REASON = "redoxfs: "

# And one that says how to end a node, which would take the others' chunks away.
_OWN_END = "to end it: "


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked of the cluster."""
    return {"up": _up, "status": _status, "down": _down}[arguments.what](arguments)


# up


@dataclass(slots=True)
class _Start:
    """A `redoxfs mount` that was started. It is in a session of its own: a Ctrl-C comes to it through us alone."""

    place: int
    mountpoint: Path
    process: subprocess.Popen[bytes]
    ended: int  # its pidfd
    heard: bytearray = field(default_factory=bytearray)
    reason: str = ""

    def hear(self, part: bytes) -> None:
        """Pass on the first one's lines; of all keep the one that says why it ended, which is the last."""
        *lines, rest = bytes(self.heard + part).split(b"\n")
        self.heard[:] = rest
        for line in lines:
            text = line.decode(errors="backslashreplace")
            if text.startswith(_REASON):
                self.reason = text.removeprefix(_REASON)
            elif self.place == 0 and not text.startswith(_OWN_END):
                # The others would say the same.
                say(f"[{self.place}] {text}")


def _up(arguments: argparse.Namespace) -> int:
    check_sharing(arguments)
    memory_bytes = _memory_of(arguments)
    folder = _folder(arguments, source=find(arguments.source, arguments.timeout))
    mountpoints = [folder / str(place) for place in range(arguments.nodes)]
    made = _make(folder, mountpoints)
    # A shell without job control lets what it runs with & ignore SIGINT, and that would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    starts: list[_Start] = []
    try:
        with _free_ports(arguments.nodes) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            for place, mountpoint in enumerate(mountpoints):
                command = _command(arguments, addresses, memory_bytes, place, mountpoint)
                starts.append(_start(command, place, mountpoint))
            _await(starts)
    except BaseException:
        _end(starts, arguments.timeout)
        _remove_empty(made)
        raise
    finally:
        for start in starts:
            os.close(start.ended)
            if start.process.stderr is not None:
                start.process.stderr.close()
    if arguments.foreground:
        _remove_empty(made)
    else:
        say(f"{arguments.nodes} nodes serve {arguments.source} at {mountpoints[0]} … {mountpoints[-1]}")
        say(f"to end them: redoxfs cluster down {folder}")
    return 0


def _folder(arguments: argparse.Namespace, *, source: Place) -> Path:
    """DIR, absolute and fit to have mountpoints made in it. Raises MountpointError."""
    place = find(arguments.folder, arguments.timeout)
    if place.ours is not None:
        raise MountpointError(f"{place.asked}: lies on the redoxfs mount at {place.ours.mountpoint}")
    if source.path in (place.path, *place.path.parents):
        raise MountpointError(f"{place.asked}: lies inside SOURCE ({source.path}); name a folder elsewhere")
    there = sorted(_mounted(place.path))
    if there:
        raise MountpointError(
            f"{place.path}: nodes {', '.join(map(str, there))} are mounted there; "
            f"to end them: redoxfs cluster down {place.path}"
        )
    return place.path


def _make(folder: Path, mountpoints: Sequence[Path]) -> list[Path]:
    """Make what is missing of them; returns what was made."""
    made: list[Path] = []
    for path in (folder, *mountpoints):
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as failure:
            _remove_empty(made)
            raise MountpointError(f"{path}: cannot be made: {failure.strerror}") from None
        made.append(path)
    return made


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in reversed(folders):
        try:
            folder.rmdir()
        except OSError:
            continue  # there is something in it, or it is still mounted on


@contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Different ports of the loopback address that nobody listens at, and that nobody else is given meanwhile.

    Sockets that do not listen hold them. Those do not keep a node from listening there: gRPC's have SO_REUSEADDR, too.
    """
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(int(holder.getsockname()[1]))
        yield ports


def _memory_of(arguments: argparse.Namespace) -> int:
    """Bytes for each node, the same for all; by default all have together what one mount takes. Raises UsageError."""
    available = available_memory()
    if arguments.memory is not None:
        return parse_size(arguments.memory, available)
    return max(1, default_memory(available) // int(arguments.nodes))


def _command(
    arguments: argparse.Namespace, addresses: Sequence[str], memory_bytes: int, place: int, mountpoint: Path
) -> list[str]:
    """What starts one node: the options of `mount` as they were typed, each node with a log of its own."""
    own = ["--nodes", ",".join(addresses), "--node-rank", str(place), "--memory", str(memory_bytes)]
    if arguments.log is not None:
        own += ["--log", f"{arguments.log}.{place}"]
    mount = [*own, *arguments.passed_on, "--", arguments.source, str(mountpoint)]
    return [sys.executable, "-m", "redoxfs", "mount", *mount]


def _start(command: Sequence[str], place: int, mountpoint: Path) -> _Start:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    return _Start(place, mountpoint, process, os.pidfd_open(process.pid))


def _await(starts: Sequence[_Start]) -> None:
    """Wait until all have ended well. Raises ReportedError with what the first says that does not."""
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
        raise ReportedError(code, f"node {start.place}: {reason}")


def _stderr(start: _Start) -> int:
    assert start.process.stderr is not None
    return start.process.stderr.fileno()


def _hear(start: _Start) -> bool:
    """Take what is there of its stderr; False if that has ended."""
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
    """Bring to an end what was started: what still runs is interrupted, and what has mounted is unmounted.

    It is SIGINT because `redoxfs mount` passes that on to its daemon; SIGTERM would leave the daemon to mount alone.
    """
    running = [start for start in starts if start.process.poll() is None]
    for start in running:
        start.process.send_signal(signal.SIGINT)
    for start in running:
        try:
            start.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            say(f"[{start.place}] has not ended within {timeout_s:g} s: pid {start.process.pid}")
    for start in starts:
        _hear(start)
        if start.reason and start.process.returncode not in (None, INTERRUPTED):
            say(f"[{start.place}] {start.reason}")
    # One that was interrupted may have mounted already, and nothing was mounted there before.
    for start in starts:
        if _is_ours(start.mountpoint):
            try:
                _unmount(start.mountpoint, lazy=False, timeout_s=timeout_s)
            except CommandError as error:
                if _is_ours(start.mountpoint):
                    say(f"[{start.place}] {error}")


# status


def _status(arguments: argparse.Namespace) -> int:
    folder, mounted = _nodes_below(arguments)
    told: list[dict[str, Any]] = []
    lines: list[tuple[str, str]] = []
    trouble: CommandError | None = None
    for place, mountpoint in sorted(mounted.items()):
        try:
            _, text = status.read_stats(str(mountpoint), arguments.timeout)
            stats = json.loads(text)
        except CommandError as error:
            trouble = trouble or error
            stats = {"mountpoint": str(mountpoint), "error": str(error)}
            lines.append((f"node {place}", str(error)))
        else:
            lines.append((f"node {place}", _node_line(stats)))
        told.append(stats)
    total = summed(told)
    if arguments.json:
        print(json.dumps({"nodes": told, "sum": total}, indent=2))
    else:
        print_table(f"{len(mounted)} redoxfs nodes below {folder}", [*_sum_rows(told, total), *lines])
    if trouble is not None:
        raise trouble
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
    """What `status` shows of one mount, of all together; that there are peers is no sum, but lets it tell of them."""
    common = {name: value for each in stats for name, value in each.items() if name in ("source", "policy")}
    has_peers = {"peers": [peer for each in stats for peer in each.get("peers", ())]}
    return [row for row in status.rows({**common, **total, **has_peers}) if row[0] != "peers"]


def _node_line(stats: dict[str, Any]) -> str:
    others = status.from_other_nodes(stats)
    peers = status.peers(stats)
    parts = [
        f"peers: {peers}" if peers else "no peers",
        f"{stats.get('opens', 0):,} opens",
        f"from other nodes: {others}" if others else None,
        f"{stats['degraded']:,} degraded" if stats.get("degraded") else None,
        f"{stats['errors']:,} errors" if stats.get("errors") else None,
    ]
    return "; ".join(part for part in parts if part)


# down


def _down(arguments: argparse.Namespace) -> int:
    folder, mounted = _nodes_below(arguments)
    failures: list[CommandError] = []
    for place, mountpoint in sorted(mounted.items()):
        try:
            _unmount(mountpoint, lazy=arguments.lazy, timeout_s=arguments.timeout)
        except CommandError as error:
            failures.append(error)
            say(f"[{place}] {line_of(error).removeprefix(_REASON)}")
    _remove_empty([path for path in folder.iterdir() if _place_of(path) is not None])
    if failures:
        raise ReportedError(
            code_of(failures[0]), f"{folder}: {len(failures)} of {len(mounted)} nodes could not be ended"
        )
    return 0


def _unmount(mountpoint: Path, *, lazy: bool, timeout_s: float) -> None:
    umount.run(argparse.Namespace(mountpoint=str(mountpoint), lazy=lazy, timeout=timeout_s))


# What is there


def _nodes_below(arguments: argparse.Namespace) -> tuple[Path, dict[int, Path]]:
    """DIR, and the mountpoints in it by their numbers, alive or dead. Raises MountpointError if there are none."""
    place = find(arguments.folder, arguments.timeout)
    if place.trouble is not None:
        raise MountpointError(f"{place.asked}: {place.trouble}")
    mounted = _mounted(place.path)
    if not mounted:
        raise MountpointError(f"{place.asked}: no nodes of a cluster are mounted there, as {place.path}/0, …")
    return place.path, mounted


def _mounted(folder: Path) -> dict[int, Path]:
    """The redoxfs mounts at folder/0, folder/1, …; asks the mount table alone, which answers even for a dead one."""
    mounts = read_mounts()
    found = {}
    for mount in mounts:
        path = Path(mount.mountpoint)
        place = _place_of(path)
        on_top = topmost_at(path, mounts) if place is not None and path.parent == folder else None
        if place is not None and on_top is not None and on_top.ours:
            found[place] = path
    return found


def _is_ours(path: Path) -> bool:
    on_top = topmost_at(path, read_mounts())
    return on_top is not None and on_top.ours


def _place_of(path: Path) -> int | None:
    """The number that a node's mountpoint is named after."""
    name = path.name
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None
