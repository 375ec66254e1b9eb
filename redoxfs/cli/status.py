"""`redoxfs status`: what a mount has done so far, from the file that it serves about itself.

The file is the interface: `--json` prints it as it is, and the table shows what a person asks first. A
counter the daemon does not tell is left out of the table rather than shown as zero.
"""

import argparse
import json
import os
from typing import Any

from redoxfs.cli.exits import DaemonError, MountpointError
from redoxfs.cli.place import CONTROL_FOLDER, our_mount_at
from redoxfs.cli.probe import read_file
from redoxfs.cli.sizes import format_bytes
from redoxfs.cli.table import print_table


def run(arguments: argparse.Namespace) -> int:
    """Print the status of the mount at MOUNTPOINT."""
    place = our_mount_at(arguments.mountpoint, arguments.timeout)
    if place.is_stale:
        raise MountpointError(f"{place.path}: its daemon was killed; to clear it: redoxfs umount {place.path}")
    try:
        text = read_file(place.path / CONTROL_FOLDER / "stats.json", arguments.timeout)
    except TimeoutError:
        raise DaemonError(f"{place.path}: the daemon does not answer within {arguments.timeout:g} s") from None
    except OSError as failure:
        raise MountpointError(f"{place.path}: its statistics cannot be read: {failure.strerror}") from None
    if arguments.json:
        print(os.fsdecode(text).rstrip("\n"))
        return 0
    print_table(f"redoxfs at {place.path}", rows(json.loads(text)))
    return 0


def rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The table's rows: (what, value) of whatever `stats` tells."""
    opens = stats.get("opens", 0)
    redirected = stats.get("redirected", 0)
    share = f" ({redirected / opens:.1%})" if opens else ""
    shown: list[tuple[str, str | None]] = [
        ("source", stats.get("source")),
        ("daemon", _joined(stats, "pid {pid}", "pid")),
        ("policy", stats.get("policy")),
        ("dataset", _joined(stats, "{samples:,} samples, {classes:,} classes, {chunks:,} chunks", *_DATASET)),
        *((f"lap of {tree or 'all'}", f"{lap:,}") for tree, lap in stats.get("lap", {}).items()),
        ("opens", _joined(stats, "{opens:,}", "opens")),
        ("redirected", _joined(stats, "{redirected:,}" + share, "redirected")),
        ("served as asked", _joined(stats, "{exact:,}", "exact")),
        (
            "chunk loads",
            _joined(stats, "{chunk_loads:,}; {samples_loaded:,} samples", "chunk_loads", "samples_loaded"),
        ),
        ("bytes read", _bytes(stats, "bytes_read")),
        ("bytes served", _bytes(stats, "bytes_served")),
        ("waits for a load", _joined(stats, _WAITS, "demand_loads", "in_flight_waits", "wait_seconds")),
        ("memory", _memory(stats)),
        ("open files", _joined(stats, "{open_files:,}", "open_files")),
        ("errors", _joined(stats, "{errors:,}", "errors")),
        ("changed files", _joined(stats, "{changed:,}", "changed")),
    ]
    return [(name, value) for name, value in shown if value is not None]


_DATASET = ("samples", "classes", "chunks")
_WAITS = "{demand_loads:,} that they started, {in_flight_waits:,} under way already; {wait_seconds:.1f} s in all"


def _joined(stats: dict[str, Any], form: str, *names: str) -> str | None:
    return form.format_map(stats) if all(name in stats for name in names) else None


def _bytes(stats: dict[str, Any], name: str) -> str | None:
    return format_bytes(stats[name]) if name in stats else None


def _memory(stats: dict[str, Any]) -> str | None:
    used, limit = stats.get("memory_used_bytes"), stats.get("memory_limit_bytes")
    if used is None or limit is None:
        return None
    return f"{format_bytes(used)} of {format_bytes(limit)}"
