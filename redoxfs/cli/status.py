"""`redoxfs status`: show what a mount has done so far, from the file that it serves about itself.

The file is the interface: `--json` prints it as it is, and the table shows what people look for first. The table omits
a counter that the daemon does not report, rather than showing zero, and omits open files, errors and changed files
where there are none.
"""

import json
import stat
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs.cli.table import print_table
from redoxfs.launch.control import asking_socket, checked_live, reading, send_control
from redoxfs.launch.control_files import parsed_stats, read_control_at, understood
from redoxfs.launch.path_status import path_status
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.sizes import counted, format_bytes, format_seconds
from redoxfs.telemetry.split_line import HINT, split_lines

if TYPE_CHECKING:
    # `redoxfs mount` imports this module, too.
    from redoxfs.cli.options.watching import StatusOptions

# What `mount` and `status` print where the slot policy has one chunk for each virtual chunk.
ALL_IN_MEMORY = "memory for all samples: each chunk is read once an epoch, nothing needs redirecting"


def run(options: "StatusOptions") -> int:
    """Print the status of the mount at MOUNTPOINT."""
    path, text, received = read_stats(options.mountpoint, options.timeout_s)
    with understood(path):
        stats = parsed_stats(text)
        shown = rows(stats)
    if options.json:
        # What a daemon writes is ASCII, where JSON has an escape for all that a terminal obeys.
        print(text.decode().rstrip("\n") if text.isascii() else json.dumps(json.loads(text)))
        return 0
    from redoxfs.doctor.histories import received_verdict, verdict_at

    print((received_verdict if received else verdict_at)(path, options.timeout_s).line)
    print_table(f"redoxfs at {path}", shown)
    return 0


def read_stats(asked: str, timeout_s: float) -> tuple[Path, bytes, bool]:
    """The mountpoint of the mount at a path, and its stats.json. Raises DaemonError, MountpointError.

    A path may also be the socket that `redoxfs serve` received its mount from; then the last value is True. That mount
    need not be visible here.
    """
    found = path_status(asked, timeout_s)
    if stat.S_ISSOCK(found.seen.mode):
        return *_received(found.path, timeout_s), True
    mount = checked_live(found)
    with reading(mount, "statistics", timeout_s):
        return mount.path, read_control_at(mount.path, "stats.json", timeout_s), False


def _received(path: Path, timeout_s: float) -> tuple[Path, bytes]:
    with asking_socket(path, timeout_s):
        answer = send_control(control_path(path), "stats", timeout_s=timeout_s)
        return path, json.dumps({name: value for name, value in answer.items() if name != "ok"}).encode()


def rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The table's rows, (name, value), for everything in `stats`."""
    opens = stats.get("opens", 0)
    redirected = stats.get("redirected", 0)
    share = f" ({redirected / opens:.1%})" if opens else ""
    shown: list[tuple[str, str | None]] = [
        ("source", stats.get("source")),
        ("daemon", _joined(stats, "pid {pid}", "pid")),
        ("restarts", _restarts(stats)),
        ("node", _joined(stats, "{node}, one of {nodes}", "node", "nodes")),
        ("peers", peers(stats)),
        ("policy", stats.get("policy")),
        ("dataset", _dataset(stats)),
        ("laps", _laps(stats)),
        ("splits", _splits(stats)),
        ("opens", _joined(stats, "{opens:,}", "opens")),
        ("redirected", _joined(stats, "{redirected:,}" + share, "redirected")),
        ("not redirected", _joined(stats, "{exact:,}", "exact")),
        ("copied", _copied(stats)),
        ("sessions", _sessions(stats)),
        ("chunk loads", _chunk_loads(stats)),
        ("bytes read", _bytes(stats, "bytes_read")),
        ("cache", _cache(stats)),
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
    # Those that are texts may be anything from another user's daemon.
    return [(name, str(value)) for name, value in shown if value is not None]


def _copied(stats: dict[str, Any]) -> str | None:
    """Opens by programs that get exact files, and those that do so now."""
    if not stats.get("copied"):
        return None
    now = f", now by {', '.join(stats['copying'])}" if stats.get("copying") else ""
    return f"{counted(stats['copied'], 'open')}{now}"


def _sessions(stats: dict[str, Any]) -> str | None:
    """The sessions of processes that take turns, if they are several: one of them may not be the job."""
    found = stats.get("sessions") or {}
    if len(found) < 2:
        return None
    shown = [f"{session} ({', '.join(names)})" for session, names in list(found.items())[:SESSIONS_SHOWN]]
    return f"{len(found)} take turns: {', '.join(shown)}{', …' if len(found) > SESSIONS_SHOWN else ''}"


SESSIONS_SHOWN = 4

# With more peers than this in trouble, the trouble is one, and stats.json lists them all.
_MOST_PEERS_NAMED = 8


def peers(stats: dict[str, Any]) -> str | None:
    """The number of other nodes that are ready, and each that is not; None where there are no others."""
    others = stats.get("peers")
    if not others:
        return None
    states = Counter(peer.get("state") for peer in others)
    troubled = [peer for peer in others if peer.get("state") != "ready"]
    shown = [f"{states['ready']} ready"] if states["ready"] else []
    for peer in troubled[:_MOST_PEERS_NAMED]:
        reason = f" ({peer['reason']})" if peer.get("reason") else ""
        shown.append(f"{peer.get('address')} {peer.get('state')}{reason}")
    if len(troubled) > _MOST_PEERS_NAMED:
        shown.append(f"and {len(troubled) - _MOST_PEERS_NAMED} more that are not ready")
    return ", ".join(shown)


def from_other_nodes(stats: dict[str, Any]) -> str | None:
    """The samples that came from other nodes, and their share of all opens; None where there are no others."""
    if not stats.get("peers") or "remote_samples" not in stats:
        return None
    samples, opens = stats["remote_samples"], stats.get("opens", 0)
    share = f" ({samples / opens:.1%})" if opens else ""
    requests = f" in {counted(stats['remote_requests'], 'request')}" if "remote_requests" in stats else ""
    size = f", {format_bytes(stats['remote_bytes_in'])}" if "remote_bytes_in" in stats else ""
    exchange = f"; --exchange {stats['exchange']:.3g}" if stats.get("exchange") else ""
    return f"{counted(samples, 'sample')}{share}{requests}{size}{exchange}"


def _restarts(stats: dict[str, Any]) -> str | None:
    """How often another daemon took the place of one; None where none did."""
    keeper = stats.get("keeper") or {}
    if not keeper.get("restarts"):
        return None
    death = keeper.get("last_death")
    died = "" if death is None else f"; last death: {death['how']}, {_time(death['at'])}"
    return f"{keeper['restarts']:,}{died}; opens, loads, waits and bytes are counted since the last restart"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _dataset(stats: dict[str, Any]) -> str | None:
    if not all(name in stats for name in ("samples", "classes", "chunks", "chunk_size")):
        return None
    content = f"{counted(stats['samples'], 'sample')}, {counted(stats['classes'], 'class', 'classes')}"
    return f"{content}, {counted(stats['chunks'], 'chunk')} of up to {counted(stats['chunk_size'], 'sample')}"


def _chunk_loads(stats: dict[str, Any]) -> str | None:
    if "chunk_loads" not in stats or "samples_loaded" not in stats:
        return None
    return f"{stats['chunk_loads']:,}; {counted(stats['samples_loaded'], 'sample')}"


def _cache(stats: dict[str, Any]) -> str | None:
    """How much is in the cache, and how much was read from it; None without --cache."""
    cache = stats.get("cache")
    if not cache:
        return None
    shown = f"{cache['samples']:,} of {counted(stats['samples'], 'sample')}, {format_bytes(cache['size_bytes'])}"
    shown += f"; {format_bytes(cache['read_bytes'])} read from it"
    if cache["failures"]:
        shown += f"; {counted(cache['failures'], 'copy', 'copies')} could not be used"
    return shown if cache["writes"] else f"{shown}; nothing more is written"


def _joined(stats: dict[str, Any], form: str, *names: str) -> str | None:
    return form.format_map(stats) if all(name in stats for name in names) else None


def _if_any(stats: dict[str, Any], name: str) -> str | None:
    return f"{stats[name]:,}" if stats.get(name) else None


def _laps(stats: dict[str, Any]) -> str | None:
    """The lap of each tree, and how many samples had their turn in it; of several nodes, by this node alone."""
    told, here = [], " at this node" if stats.get("nodes", 1) > 1 else ""
    for tree, lap in stats.get("laps", {}).items():
        turns = f"{lap['turns']:,} of {counted(lap['samples'], 'sample')}"
        told.append(f"{tree or 'the whole tree'} is in lap {lap['number']:,}, {turns}{here}")
    return "; ".join(told) or None


def _splits(stats: dict[str, Any]) -> str | None:
    """What the job keeps apart; None: nothing that was seen."""
    lines = list(split_lines(stats))
    return f"{'; '.join(lines)}: {HINT}" if lines else None


def _waits(stats: dict[str, Any]) -> str | None:
    waits = _joined(
        stats,
        "{demand_loads:,} started a load, {in_flight_waits:,} joined one in progress",
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
    if stats.get("retained_samples"):
        samples = counted(stats["retained_samples"], "sample")
        shown += f"; {format_bytes(stats['retained_bytes'])} stay for every epoch ({samples})"
    return shown
