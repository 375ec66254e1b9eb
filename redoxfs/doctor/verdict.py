"""Does this mount help, is it right, what now: one line about a live mount, from its history.

`judge` is the only place that decides. `doctor`, `status` and `report` print what it says, so that they agree, but for
how much more memory to take: a report may be of another machine. It is a
function of history.json, and of the memory that is free where the mount is, without I/O and clock. A verdict names the
cause, and a command that mends it when it is run as printed. If a mount is as it should be, it says so without a
warning; if that cannot be told, it says why not.

The checks are tried in order, and the first that finds something decides: a mount whose storage hangs has no other
trouble that matters.
"""

import re
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

from redoxfs.doctor import again
from redoxfs.doctor.period import Period, period_of, still_s
from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.launch.sizes import counted, format_bytes, format_needed, format_time
from redoxfs.telemetry import storage_bytes
from redoxfs.telemetry.history_form import Read

NAME = "verdict"

MUCH_WAITING = 0.5
"""So many programs wait at once, on average, or more: what they wait for is the limit."""

HANGS_S = 5.0
"""If programs wait and nothing came for so long, storage hangs. A disk that spins up takes some seconds."""

DRAWN_SHARE = 0.05
"""Of the opens of a mount for a sampler that one drew, or less: none does. A sample may have several files, and
validation needs no sampler."""

REREAD_SHARE = 0.05
"""Of the opens whose sample had left memory before its turn, or more: memory is too small."""

FEW_CHUNKS = 4
"""Memory for fewer chunks leaves no room to read ahead while readers use one."""

LONG_READ_BYTES = 1 << 20
"""A read as long is limited by the bandwidth of storage, not by its number of reads."""

DEEP = 64
"""If reads gain from so many in flight, each takes long, and storage does not limit their number."""

FAST_READ_S = 300e-6
"""Where reading a whole file takes less, a program reads it faster by itself: an open through redoxfs takes 100 to
150 us, and the program's own read comes on top (docs/performance.md)."""

SLOW_PEER = 3.0
"""A node whose answers take so many times as long as those of the others, or more, lags."""

_FEWER = "keep fewer files open at the same time, or mount with a smaller --chunk-size"
"""Where more memory would not help, or is not there: open files and chunks that are read share it."""

_OFFERED_DIR = re.compile(r"if the directory is the label[^:;]*: --classes dir")
_OFFERED_STEM = re.compile(r"--groups stem --classes dir")


def judge(history: Read, free_bytes: int | None = None) -> Result:
    """The verdict. Raises what damaged statistics raise (`redoxfs.launch.control_files.WRONG`).

    ``free_bytes``: the memory that can be taken on the machine of the mount; None: that is not known.
    """
    stats = history.stats
    found = _hangs(history) or _redirects_nothing(stats) or _begins(history)
    if found is not None:
        return found
    period = period_of(history)
    if period is None:
        return ok(NAME, "cannot say, because no program has opened a file here yet", cause="unused")
    small_memory = partial(_small_memory, free_bytes=free_bytes)
    for check in (_fails, _without_sampler, small_memory, _waits_for_node, _slow_storage, _fast_storage):
        found = check(stats, period)
        if found is not None:
            return found
    return ok(NAME, f"well: {_figures(period)}", cause="well")


def _figures(period: Period, *, is_well: bool = False) -> str:
    """What the mount did. ``is_well``: the sentence says already that there is nothing wrong with waiting."""
    good = "which is little" if period.waiting_mean < MUCH_WAITING else "which is much"
    return (
        f"{rate(period.opens_per_s)} files/s {period.name}, and {period.waiting_mean:.1f} programs waited at once on "
        f"average{'' if is_well else f', {good}'}"
    )


def rate(per_s: float) -> str:
    """A number of things a second, in words."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _hangs(history: Read) -> Result | None:
    stats = history.stats
    waits, seconds = _waits(stats), still_s(history)
    if waits is None or seconds < HANGS_S:
        return None
    wait = f"{waits}, and nothing came for {seconds:.0f} s"
    lost = [str(peer.get("address")) for peer in stats.get("peers") or [] if peer.get("state") != "ready"]
    if lost:
        command = f"redoxfs doctor --nodes {','.join(map(shlex.quote, lost))}"
        return problem(NAME, f"{wait}: {', '.join(lost)} does not answer", command, cause="node")
    source = str(stats.get("source"))
    is_hidden = source == stats.get("mountpoint")
    command = "dmesg | tail, and look at the server" if is_hidden else f"redoxfs doctor {shlex.quote(source)}"
    return problem(NAME, f"storage hangs: {wait}", command, cause="storage hangs")


def _waits(stats: Mapping[str, Any]) -> str | None:
    """How many programs wait now, in words; None if none does."""
    waiting = int(stats.get("waiting_opens") or 0) + int(stats.get("waiting_reads") or 0)
    return f"{counted(waiting, 'open')} {'waits' if waiting == 1 else 'wait'}" if waiting else None


def _begins(history: Read) -> Result | None:
    """The first opens wait. They are counted as opens or not yet, and are no files that programs got."""
    waits = _waits(history.stats)
    times = (history.points[-1].stats.get("open_seconds") or {}).values()
    if waits is None or any(each["count"] for each in times):
        return None
    return ok(NAME, f"cannot say yet: {waits}, and none was answered so far", cause="unknown")


def _redirects_nothing(stats: Mapping[str, Any]) -> Result | None:
    if stats.get("samples") or "samples" not in stats:
        return None
    why = str(stats.get("verdict")).removeprefix("not redirecting: ")
    found = f"this mount redirects nothing, so it gains nothing, because {why}"
    if "--classes none" in why:
        return warning(NAME, found, again.without(stats, "--classes"), cause="not redirected")
    options = fitting(why)
    if options.get("classes") == "sampler":
        # Such a mount is of one node, with the pool.
        options = {} if (stats.get("nodes") or 1) > 1 else options | {"policy": None}
    command = again.mount_again(stats, **options) if options else None
    return warning(NAME, found, command, cause="not redirected")


def fitting(why: str) -> dict[str, str | None]:
    """The options to choose where a verdict says ``why`` nothing is redirected: those that it offers on a condition
    which a person can check; else a sampler, which never gives a wrong label. Never --classes any: that the data has no
    labels is what nobody can see. None where only a table would do, which a person has to write first, and where
    nothing would."""
    if _OFFERED_STEM.search(why):
        return {"groups": "stem", "classes": "dir"}
    if _OFFERED_DIR.search(why):
        return {"classes": "dir"}
    return {"classes": "sampler"} if "--classes sampler" in why else {}


def _fails(stats: Mapping[str, Any], period: Period) -> Result | None:
    errors = int(period.get("errors"))
    if not errors:
        return None
    command = f"redoxfs debug {shlex.quote(str(stats.get('mountpoint')))} -o bundle.tar.gz"
    what = f"{counted(errors, 'open or read', 'opens and reads')} failed {period.name}"
    return problem(NAME, f"{what}; the log names up to 100 files a minute", command, cause="errors")


def _without_sampler(stats: Mapping[str, Any], period: Period) -> Result | None:
    opens, turns = int(period.get("opens")), period.get("turns")
    if stats.get("classes_mode") != "sampler" or turns > DRAWN_SHARE * opens:
        return None
    none = "none drawn by a sampler" if not turns else f"only {turns:,.0f} drawn by a sampler"
    return warning(
        NAME,
        f"{counted(opens, 'open')} {period.name}, {none}: each read its own file, and nothing was read ahead; pass "
        "sampler=redoxfs.torch.RedoxSampler(dataset) to the DataLoader, or do without --classes sampler",
        again.without(stats, "--classes"),
        cause="no sampler",
    )


def _small_memory(stats: Mapping[str, Any], period: Period, free_bytes: int | None = None) -> Result | None:
    opens = period.get("opens")
    limit = int(stats.get("memory_limit_bytes") or 0)
    samples_read = period.get("samples_loaded") + period.get("samples_reread")
    # A sample that is read in place of a lost node was never in memory here.
    reread = period.get("samples_reread") - period.get("degraded")
    mean = period.get("bytes_read") / samples_read if samples_read else 0.0
    chunk_bytes = mean * float(stats.get("chunk_size") or 0)
    if reread >= REREAD_SHARE * opens:
        why = f"{reread / opens:.0%} of the samples had left memory before their turn, and were read again"
    elif period.waiting_mean >= MUCH_WAITING and limit < FEW_CHUNKS * chunk_bytes:
        why = f"it has room for {limit / chunk_bytes:.1f} chunks, so little is read ahead"
    else:
        return None
    all_bytes = mean * float(stats.get("samples") or 0) * 4 / 3
    more = min(max(2 * limit, int(0.1 * all_bytes), int(16 * chunk_bytes)), int(all_bytes))
    if free_bytes is not None:
        # The training has the other half. What the mount uses is free once it has ended.
        more = min(more, int(stats.get("memory_used_bytes") or 0) + free_bytes // 2)
    command = again.mount_again(stats, memory=format_needed(more)) if more > limit else _FEWER
    found = f"memory is too small: {format_bytes(limit)}: {why} ({_figures(period)})"
    return warning(NAME, found, command, cause="memory")


def _waits_for_node(stats: Mapping[str, Any], period: Period) -> Result | None:
    peers = [peer for peer in stats.get("peers") or [] if (peer.get("answer_seconds") or {}).get("count")]
    if period.waiting_mean < MUCH_WAITING or not peers:
        return None
    times = period.grown.get("open_seconds") or {}
    waits = {name: float(times[name]["sum"]) for name in ("in_flight", "demand", "remote") if name in times}
    if waits.get("remote", 0.0) <= sum(waits.values()) / 2:
        return None
    means = {str(peer["address"]): peer["answer_seconds"]["sum"] / peer["answer_seconds"]["count"] for peer in peers}
    slowest = max(means, key=means.__getitem__)
    others = sorted(mean for address, mean in means.items() if address != slowest)
    mean_of_others = others[len(others) // 2] if others else 0.0
    took, figures = format_time(means[slowest]), _figures(period)
    if means[slowest] >= SLOW_PEER * mean_of_others:
        beside = f", and those of the others {format_time(mean_of_others)}" if others else ""
        asked, found = [slowest], f"node {slowest} lags: its answers take {took}{beside} ({figures})"
    else:
        asked, found = [*means], f"the other nodes are slow: {figures}, most for their answers, which take {took}"
    return warning(NAME, found, f"redoxfs doctor --nodes {','.join(map(shlex.quote, asked))}", cause="node")


def _from_storage(period: Period) -> float:
    """Samples that loads read from storage: without copies of --cache, which `reads` leaves out too."""
    copied = float((period.grown.get("cache") or {}).get("read_samples") or 0)
    return max(0.0, period.get("samples_loaded") - copied)


def _slow_storage(stats: Mapping[str, Any], period: Period) -> Result | None:
    """Programs wait for storage."""
    if period.waiting_mean < MUCH_WAITING:
        return None
    cache, of_cache = stats.get("cache") or {}, period.grown.get("cache") or {}
    if cache.get("writes") and of_cache.get("written_bytes"):
        filled = f"{cache.get('samples', 0):,} of {counted(stats.get('samples', 0), 'sample')}"
        return _well(f"the cache fills ({filled}), and later epochs read it", period)
    reads, size = period.get("reads"), storage_bytes(period.grown)
    if not reads:
        what = f"cannot say what programs wait for, because no chunk was read from storage: {_figures(period)}"
        return ok(NAME, what, cause="unknown")
    bandwidth = f"{format_bytes(int(size / period.seconds))}/s"
    if reads < _from_storage(period) / 2 or size / reads >= LONG_READ_BYTES:
        what = f"the bandwidth of storage is the limit: {bandwidth}, in reads of {format_bytes(int(size / reads))}"
        return _well(what, period)
    took = format_time(period.get("read_seconds") / reads)
    if int(period.grown.get("reads_limit") or 0) >= DEEP:
        what = f"latency: a read takes {took}, and redoxfs has up to {period.grown['reads_limit']} in flight"
        return _well(what, period, "latency")
    what = f"storage serves only {rate(reads / period.seconds)} reads/s, and each file is one"
    packed = "" if again.is_packed(stats) else "; packed, a read gets many files"
    return warning(NAME, f"IOPS-limited: {what} ({_figures(period)}){packed}", again.pack(stats), cause="IOPS")


def _well(what: str, period: Period, cause: str = "well") -> Result:
    return ok(NAME, f"well: {what}; {_figures(period, is_well=True)}", cause=cause)


def _fast_storage(stats: Mapping[str, Any], period: Period) -> Result | None:
    reads = period.get("reads")
    if reads < _from_storage(period) / 2 or not reads or reads < period.get("opens") / 2:
        return None
    took = period.get("read_seconds") / reads
    if took >= FAST_READ_S:
        return None
    source = shlex.quote(str(stats.get("source")))
    return warning(
        NAME,
        f"redoxfs would slow this down: do not use it: storage, or its page cache, delivers a file in "
        f"{format_time(took, digits=2)}, which is less than redoxfs takes to answer ({_figures(period)}); read "
        f"{source} as it is",
        f"redoxfs umount {shlex.quote(str(stats.get('mountpoint')))}",
        cause="fast disk",
    )
