"""The health of a live mount, from its statistics (SEMANTICS.md describes the counters)."""

import pwd
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redoxfs.doctor import again
from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.doctor.verdict import MUCH_WAITING
from redoxfs.launch.control import send_control
from redoxfs.launch.control_files import WRONG, parsed_stats, plain_stats, read_control_at
from redoxfs.launch.errors import CommandError
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.runtime_paths import control_path_of_daemon
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.telemetry import Rates
from redoxfs.telemetry.split_line import HINT, split_lines

INTERVAL_S = 1.0
"""Between two looks at the statistics."""

MANY_PEERS = 8
"""More than these in trouble have one trouble in common."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The statistics of a mount, twice, ``seconds`` apart."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    seconds: float


def check_daemon(mount: PathStatus, timeout_s: float) -> tuple[Result, Watched | None]:
    """Whether the daemon answers, and its statistics; None if it does not."""
    where = shlex.quote(str(mount.path))
    if mount.is_stale:
        return problem(
            "daemon", "it was killed, and the mount is dead", f"redoxfs umount {where}, and mount again"
        ), None
    try:
        watched = _watched(mount, timeout_s)
    except TimeoutError:
        return problem("daemon", f"it does not answer within {timeout_s:g} s", _debug(where)), None
    except PermissionError:
        owner = _owner(mount)
        return problem(
            "daemon", f"only {owner} may read its statistics", f"sudo -u {shlex.quote(owner)} redoxfs doctor {where}"
        ), None
    except (OSError, *WRONG) as failure:
        reason = getattr(failure, "strerror", None) or failure
        return problem("daemon", f"its statistics cannot be read: {reason}", _debug(where)), None
    return ok("daemon", f"pid {watched.after.get('pid')} of redoxfs {watched.after.get('version')} answers"), watched


def _owner(mount: PathStatus) -> str:
    """The name of the user who mounted, or the number, as sudo takes it."""
    if mount.mount is None or mount.mount.owner is None:
        return "the user who mounted"
    uid, _ = mount.mount.owner
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _watched(mount: PathStatus, timeout_s: float) -> Watched:
    before, began_s = parsed_stats(read_control_at(mount.path, "stats.json", timeout_s)), time.monotonic()
    time.sleep(INTERVAL_S)
    after = parsed_stats(read_control_at(mount.path, "stats.json", timeout_s))
    return Watched(before, after, time.monotonic() - began_s)


def _debug(where: str) -> str:
    return f"redoxfs debug {where} -o bundle.tar.gz"


def check_mount(watched: Watched, path: Path | None = None) -> list[Result]:
    """What the statistics say of the mount at ``path``; None: where they say that it is."""
    try:
        return _found(watched, shlex.quote(str(path or watched.after.get("mountpoint"))))
    except WRONG:
        return [problem("statistics", "they are not those of a redoxfs mount")]


def _found(watched: Watched, where: str) -> list[Result]:
    stats = watched.after
    found = [
        _errors(stats, where),
        _changed(stats, where),
        check_waits(watched),
        _memory(stats),
    ]
    # A report has the names of a cache without values where the mount has none.
    if (stats.get("cache") or {}).get("samples") is not None:
        found.append(_cache(stats["cache"], stats.get("samples", 0)))
    if stats.get("keeper"):
        found.append(_keeper(stats["keeper"], where))
    if stats.get("peers"):
        found.append(_peers(stats["peers"], where))
    found += [warning("splits", line, HINT) for line in split_lines(stats)]
    missed = stats.get("missed", 0)
    if missed:
        found.append(
            warning(
                "missed samples", f"{counted(missed, 'sample')} of lost nodes came in no lap", f"redoxfs nodes {where}"
            )
        )
    return found


def _errors(stats: Mapping[str, Any], where: str) -> Result:
    errors = stats.get("errors", 0)
    if errors:
        return problem(
            "errors",
            f"{counted(errors, 'open or read', 'opens and reads')} failed",
            f"{_debug(where)}; the log names up to 100 files a minute",
        )
    return ok("errors", "no open or read has failed since this daemon began")


def _changed(stats: Mapping[str, Any], where: str) -> Result:
    changed = stats.get("changed", 0)
    if changed:
        found = f"{counted(changed, 'file')} differ from the scan"
        return warning("changed files", found, again.scan_again(stats, where))
    return ok("changed files", "none that was read has changed since the scan")


def check_waits(watched: Watched, period: str = "") -> Result:
    """How many programs waited at once; ``period`` says when, if not now."""
    before, after = watched.before, watched.after
    if "open_seconds" not in after:
        return ok("waits", f"redoxfs {after.get('version')} does not measure them")
    rates = Rates.between(before, after, watched.seconds)
    now = _waiting(after)
    # Waits that have not ended count too: of those who wait at both looks, some did so all the time.
    mean = max(rates.waiting_mean, min(_waiting(before), now))
    opens = f"{rates.opens_per_s:,.0f} opens/s"
    shown = f"in {watched.seconds:.1f} s{period} with {opens}, {mean:.1f} programs waited on average"
    values = {"waiting_mean": mean, "waiting": now, "remote_share": rates.remote_share}
    good = "which is little" if mean < MUCH_WAITING else "which is much: the verdict says what they wait for"
    return ok("waits", f"{shown}, {good}", **values)


def _waiting(stats: Mapping[str, Any]) -> int:
    return int(stats["waiting_opens"] + stats["waiting_reads"])


def _memory(stats: Mapping[str, Any]) -> Result:
    used, limit = stats.get("memory_used_bytes", 0), stats.get("memory_limit_bytes", 0)
    shown = f"{format_bytes(used)} of {format_bytes(limit)}"
    if limit and used > limit:
        return warning("mount's memory", f"{shown}: open files take more than --memory", "mount with more --memory")
    return ok("mount's memory", shown, used=used, limit=limit)


def _cache(cache: dict[str, Any], samples: int) -> Result:
    kept, failures = cache.get("samples", 0), cache.get("failures", 0)
    shown = f"{kept:,} of {counted(samples, 'sample')}, {format_bytes(cache.get('size_bytes', 0))}"
    if failures:
        damaged = f"{shown}; {counted(failures, 'copy', 'copies')} could not be used and were read from SOURCE"
        return warning("cache", damaged, "redoxfs cache verify DIR, and look at its disk", **cache)
    if not cache.get("writes", True) and kept < samples:
        more = "mount with more --cache-size, or redoxfs cache rm what no job needs; the log says why it stopped"
        return warning("cache", f"{shown}: it is full, or its disk fails; the rest is read from SOURCE", more, **cache)
    return ok("cache", shown, **cache)


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


def own_stats(path: Path, timeout_s: float) -> Mapping[str, Any] | None:
    """What this user's own daemon of the mount says, over the control socket in a private folder; None without one."""
    try:
        return plain_stats(send_control(control_path_of_daemon(path), "stats", timeout_s=timeout_s))
    except (OSError, CommandError, *WRONG):
        return None


def addresses_of(stats: Mapping[str, Any]) -> list[str]:
    """Of the other nodes."""
    return [str(peer["address"]) for peer in stats.get("peers") or []]


def source_of(stats: Mapping[str, Any]) -> str | None:
    """The directory, or the address, that is served; None if the mount hides it."""
    source, mountpoint = stats.get("source"), stats.get("mountpoint")
    return None if source is None or source == mountpoint else str(source)
