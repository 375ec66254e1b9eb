"""`redoxfs status`: what a mount has done so far, from the file that it serves about itself.

The file is the interface: `--json` prints it as it is, and the table shows what a person asks first. A
counter the daemon does not tell is left out of the table rather than shown as zero, and so is what matters
only when there is some of it: open files, errors, changed files.
"""

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from redoxfs.cli.table import print_table
from redoxfs.launch.control import live_mount
from redoxfs.launch.deadline import read_file
from redoxfs.launch.errors import DaemonError, MountpointError
from redoxfs.launch.path_status import CONTROL_FOLDER
from redoxfs.launch.sizes import format_bytes, format_seconds
from redoxfs.launch.source import ALL_IN_MEMORY


def run(arguments: argparse.Namespace) -> int:
    """Print the status of the mount at MOUNTPOINT."""
    path, text = read_stats(arguments.mountpoint, arguments.timeout)
    if arguments.json:
        print(os.fsdecode(text).rstrip("\n"))
        return 0
    print_table(f"redoxfs at {path}", rows(json.loads(text)))
    return 0


def read_stats(asked: str, timeout_s: float) -> tuple[Path, bytes]:
    """Where the mount at a path is, and what it says of itself, as JSON. Raises DaemonError, MountpointError."""
    place = live_mount(asked, timeout_s)
    try:
        return place.path, read_file(place.path / CONTROL_FOLDER / "stats.json", timeout_s)
    except TimeoutError:
        raise DaemonError(f"{place.path}: the daemon does not answer within {timeout_s:g} s") from None
    except OSError as failure:
        raise MountpointError(f"{place.path}: its statistics cannot be read: {failure.strerror}") from None


def rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The table's rows: (what, value) of whatever `stats` tells."""
    opens = stats.get("opens", 0)
    redirected = stats.get("redirected", 0)
    share = f" ({redirected / opens:.1%})" if opens else ""
    shown: list[tuple[str, str | None]] = [
        ("source", stats.get("source")),
        ("daemon", _joined(stats, "pid {pid}", "pid")),
        ("node", _joined(stats, "{node}, one of {nodes}", "node", "nodes")),
        ("peers", peers(stats)),
        ("policy", stats.get("policy")),
        ("dataset", _joined(stats, _SIZES, "samples", "classes", "chunks", "chunk_size")),
        ("laps", _laps(stats)),
        ("opens", _joined(stats, "{opens:,}", "opens")),
        ("redirected", _joined(stats, "{redirected:,}" + share, "redirected")),
        ("served as asked", _joined(stats, "{exact:,}", "exact")),
        (
            "chunk loads",
            _joined(stats, "{chunk_loads:,}; {samples_loaded:,} samples", "chunk_loads", "samples_loaded"),
        ),
        ("bytes read", _bytes(stats, "bytes_read")),
        ("bytes served", _bytes(stats, "bytes_served")),
        ("waits for a load", _waits(stats)),
        ("from other nodes", from_other_nodes(stats)),
        ("to other nodes", format_bytes(stats["remote_bytes_out"]) if stats.get("remote_bytes_out") else None),
        ("prefetched", _if_any(stats, "prefetched")),
        ("conflicts", _if_any(stats, "conflicts")),
        ("degraded", _if_any(stats, "degraded")),
        ("missed", _if_any(stats, "missed")),
        ("memory", _memory(stats)),
        ("open files", _if_any(stats, "open_files")),
        ("errors", _if_any(stats, "errors")),
        ("changed files", _if_any(stats, "changed")),
    ]
    return [(name, value) for name, value in shown if value is not None]


# Who has more peers in trouble has one trouble, and stats.json has them all.
_MOST_PEERS_NAMED = 8


def peers(stats: dict[str, Any]) -> str | None:
    """How many other nodes are ready, and each that is not; None where there are no others."""
    told = stats.get("peers")
    if not told:
        return None
    states = Counter(peer.get("state") for peer in told)
    troubled = [peer for peer in told if peer.get("state") != "ready"]
    shown = [f"{states['ready']} ready"] if states["ready"] else []
    for peer in troubled[:_MOST_PEERS_NAMED]:
        reason = f" ({peer['reason']})" if peer.get("reason") else ""
        shown.append(f"{peer.get('address')} {peer.get('state')}{reason}")
    if len(troubled) > _MOST_PEERS_NAMED:
        shown.append(f"and {len(troubled) - _MOST_PEERS_NAMED} more that are not ready")
    return ", ".join(shown)


def from_other_nodes(stats: dict[str, Any]) -> str | None:
    """The samples that came from other nodes, and their share of what was opened; None where there are no others."""
    if not stats.get("peers") or "remote_samples" not in stats:
        return None
    samples, opens = stats["remote_samples"], stats.get("opens", 0)
    share = f" ({samples / opens:.1%})" if opens else ""
    requests = _joined(stats, " in {remote_requests:,} requests", "remote_requests") or ""
    size = f", {format_bytes(stats['remote_bytes_in'])}" if "remote_bytes_in" in stats else ""
    return f"{samples:,} samples{share}{requests}{size}"


_SIZES = "{samples:,} samples, {classes:,} classes, {chunks:,} chunks of {chunk_size} samples"


def _joined(stats: dict[str, Any], form: str, *names: str) -> str | None:
    return form.format_map(stats) if all(name in stats for name in names) else None


def _if_any(stats: dict[str, Any], name: str) -> str | None:
    return f"{stats[name]:,}" if stats.get(name) else None


def _laps(stats: dict[str, Any]) -> str | None:
    """The lap is that of a tree's slowest column: all before it are through."""
    told = [f"{tree or 'the whole tree'} is in lap {lap:,}" for tree, lap in stats.get("lap", {}).items()]
    return ", ".join(told) or None


def _waits(stats: dict[str, Any]) -> str | None:
    waits = _joined(
        stats,
        "{demand_loads:,} started a load, {in_flight_waits:,} joined one under way",
        "demand_loads",
        "in_flight_waits",
        "wait_seconds",
    )
    return f"{waits}; {format_seconds(stats['wait_seconds'])} waited in all" if waits else None


def _bytes(stats: dict[str, Any], name: str) -> str | None:
    return format_bytes(stats[name]) if name in stats else None


def _memory(stats: dict[str, Any]) -> str | None:
    used, limit = stats.get("memory_used_bytes"), stats.get("memory_limit_bytes")
    if used is None or limit is None:
        return None
    shown = f"{format_bytes(used)} of {format_bytes(limit)}"
    if stats.get("chunks") and stats.get("chunks_per_virtual_chunk") == 1:
        shown += f"; {ALL_IN_MEMORY}"
    return shown
