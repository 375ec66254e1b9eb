"""The health of a live mount, from its statistics (SEMANTICS.md describes the counters)."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.launch.deadline import read_file
from redoxfs.launch.path_status import CONTROL_FOLDER, PathStatus
from redoxfs.launch.sizes import counted, format_bytes, format_seconds

MUCH_WAITING = 0.5
"""Programs that wait, on average since the mount answered, and this share of them or more at once: storage is the
limit."""

MANY_PEERS = 8
"""More than these in trouble have one trouble in common."""


def check_daemon(mount: PathStatus, timeout_s: float) -> tuple[Result, dict[str, Any]]:
    """Whether the daemon answers, and its statistics; {} if it does not."""
    where = shlex.quote(str(mount.path))
    if mount.is_stale:
        return problem("daemon", "it was killed, and the mount is dead", f"redoxfs umount {where}, and mount again"), {}
    try:
        stats: dict[str, Any] = json.loads(read_file(mount.path / CONTROL_FOLDER / "stats.json", timeout_s))
    except TimeoutError:
        return problem("daemon", f"it does not answer within {timeout_s:g} s", _debug(where)), {}
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        return problem("daemon", f"its statistics cannot be read: {reason}", "run this as the user who mounted"), {}
    return ok("daemon", f"pid {stats.get('pid')} of redoxfs {stats.get('version')} answers"), stats


def _debug(where: str) -> str:
    return f"redoxfs debug {where} -o bundle.tar.gz"


def check_mount(stats: dict[str, Any], now_s: float | None = None) -> list[Result]:
    """What the statistics say. ``now_s`` is the time since boot."""
    where = shlex.quote(str(stats.get("mountpoint")))
    found = [
        _errors(stats, where),
        _changed(stats, where),
        _waits(stats, time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s),
        _memory(stats),
    ]
    if stats.get("keeper"):
        found.append(_keeper(stats["keeper"], where))
    if stats.get("peers"):
        found.append(_peers(stats["peers"], where))
    missed = stats.get("missed", 0)
    if missed:
        found.append(
            warning("missed samples", f"{counted(missed, 'sample')} of lost nodes came in no lap", "redoxfs nodes")
        )
    return found


def _errors(stats: dict[str, Any], where: str) -> Result:
    errors = stats.get("errors", 0)
    if errors:
        return problem(
            "errors",
            f"{counted(errors, 'open or read', 'opens and reads')} failed",
            f"{_debug(where)}; the log names each file",
        )
    return ok("errors", "no open or read has failed")


def _changed(stats: dict[str, Any], where: str) -> Result:
    changed = stats.get("changed", 0)
    if changed:
        command = f"redoxfs umount {where} && redoxfs mount --rescan …"
        return warning("changed files", f"{counted(changed, 'file')} differ from the scan", command)
    return ok("changed files", "none has changed since the scan")


def _waits(stats: dict[str, Any], now_s: float) -> Result:
    waited, began = stats.get("wait_seconds", 0.0), (stats.get("request") or {}).get("answered_at_boottime_s")
    now = stats.get("waiting_opens", 0) + stats.get("waiting_reads", 0)
    elapsed = max(1e-9, now_s - began) if began else None
    shown = f"{format_seconds(waited)} in all over {stats.get('opens', 0):,} opens; {now:,} wait now"
    if elapsed is not None and waited / elapsed >= MUCH_WAITING:
        return warning(
            "waits",
            f"{shown}: on average {waited / elapsed:.1f} programs wait, so storage is the limit",
            "redoxfs doctor SOURCE measures the storage, and says whether packing helps",
            wait_seconds=waited,
            waiting=now,
        )
    return ok("waits", shown, wait_seconds=waited, waiting=now)


def _memory(stats: dict[str, Any]) -> Result:
    used, limit = stats.get("memory_used_bytes", 0), stats.get("memory_limit_bytes", 0)
    shown = f"{format_bytes(used)} of {format_bytes(limit)}"
    if limit and used > limit:
        return warning("mount's memory", f"{shown}: open files take more than --memory", "mount with more --memory")
    return ok("mount's memory", shown, used=used, limit=limit)


def _keeper(keeper: dict[str, Any], where: str) -> Result:
    if keeper.get("pid") is None:
        mend = f"redoxfs umount {where}, and mount again, when the job has ended"
        return warning("keeper", "it was killed: if the daemon dies, the mount is dead", mend)
    restarts, death = keeper.get("restarts", 0), keeper.get("last_death")
    if death:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(death["at"]))
        return warning(
            "keeper", f"{counted(restarts, 'restart')}; the last daemon died at {at}: {death['how']}", _debug(where)
        )
    return ok("keeper", f"pid {keeper['pid']}, {counted(restarts, 'restart')}")


def _peers(peers: list[dict[str, Any]], where: str) -> Result:
    lost = [peer for peer in peers if peer.get("state") != "ready"]
    if not lost:
        return ok("peers", f"{len(peers)} ready")
    shown = [
        f"{peer.get('address')} {peer.get('state')}{' (' + str(peer['reason']) + ')' if peer.get('reason') else ''}"
        for peer in lost[:MANY_PEERS]
    ]
    more = f" and {len(lost) - MANY_PEERS} more" if len(lost) > MANY_PEERS else ""
    return problem(
        "peers",
        f"{len(lost)} of {len(peers)} are not ready: {', '.join(shown)}{more}",
        f"start redoxfs there again; or continue without them: redoxfs nodes {where} --set LIST",
    )


def addresses_of(stats: dict[str, Any]) -> list[str]:
    """Of the other nodes."""
    return [str(peer["address"]) for peer in stats.get("peers") or []]


def source_of(stats: dict[str, Any]) -> Path | None:
    """The directory that is served; None if the mount hides it."""
    source, mountpoint = stats.get("source"), stats.get("mountpoint")
    return None if source is None or source == mountpoint else Path(source)
