"""`redoxfs doctor`: find what is wrong on this machine, under SOURCE or with a mount, and say what mends it."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from redoxfs.cli.options.examining import DoctorOptions
from redoxfs.doctor.histories import dead, history_text, understood, verdict_at, waits_in
from redoxfs.doctor.left import left
from redoxfs.doctor.machine import check_machine, check_open_files
from redoxfs.doctor.mount import Watched, addresses_of, check_daemon, check_mount, own_stats, source_of
from redoxfs.doctor.network import check_nodes
from redoxfs.doctor.result import Level, Result, ok, problem
from redoxfs.doctor.source import advise, look, unusable
from redoxfs.doctor.storage import Probe, check_filesystem, probe, results
from redoxfs.doctor.verdict import NAME
from redoxfs.launch.addresses import split_address
from redoxfs.launch.archive_objects import are_archives, open_archive_objects
from redoxfs.launch.archives import with_archives
from redoxfs.launch.control_files import WRONG
from redoxfs.launch.errors import CommandError, SourceUnusableError, UsageError
from redoxfs.launch.objects import open_objects
from redoxfs.launch.options import DatasetOptions
from redoxfs.launch.path_status import PathStatus, path_status
from redoxfs.launch.say import read_or_not, say
from redoxfs.launch.sizes import format_bytes
from redoxfs.launch.source import check_source
from redoxfs.objects import Address

FOUND = 11
"""The exit code if a check found a problem."""

LOOK_S = 10.0
"""For a path or a daemon to answer at all; the time for a scan is that of --timeout."""


def run(options: DoctorOptions) -> int:
    """Check; returns 0 if nothing is wrong, `FOUND` if something is. The verdict comes first: it follows from all."""
    nodes = _nodes(options)
    if options.left:
        if options.path is not None or nodes:
            raise UsageError("doctor --left takes no PATH and no --nodes: it looks at this machine")
        return _show_left(options)
    if options.path is not None and sys.stderr.isatty():
        say(f"redoxfs: looking, and reading the storage for about {options.probe_s:g} s …")
    found = sorted(_checks(options, nodes), key=lambda result: result.name != NAME)
    problems = sum(each.level is Level.PROBLEM for each in found)
    checks = {"path": options.path, "problems": problems, "checks": [each.as_dict() for each in found]}
    with read_or_not(goes_on=problems > 0):
        if options.json:
            print(json.dumps(checks, indent=2))
        else:
            for result in found:
                print(result.line)
    return FOUND if problems else 0


def _show_left(options: DoctorOptions) -> int:
    found = left()
    if options.json:
        print(json.dumps({"checks": [each.as_dict() for each in found]}, indent=2))
        return 0
    for result in found:
        print(result.line)
    return 0


def _nodes(options: DoctorOptions) -> list[str]:
    """The addresses of --nodes. Raises UsageError."""
    if options.nodes is None:
        return []
    addresses = [word for word in options.nodes.split(",") if word]
    if not addresses:
        raise UsageError("doctor --nodes names no node; write host:port,…")
    for address in addresses:
        split_address(address)
    return addresses


def _checks(options: DoctorOptions, nodes: list[str]) -> Iterator[Result]:
    """All results, each as soon as it is known."""
    yield from check_machine()
    if options.path is not None:
        status = path_status(options.path, _look_s(options))
        if status.is_our_root:
            yield from _of_mount(status, options, nodes)
            return
        yield from _of_source(with_archives(status, _look_s(options)), options)
    if nodes:
        yield from check_nodes(nodes)


def _look_s(options: DoctorOptions) -> float:
    return min(LOOK_S, options.timeout_s)


def _of_mount(mount: PathStatus, options: DoctorOptions, nodes: list[str]) -> Iterator[Result]:
    daemon, watched = check_daemon(mount, _look_s(options))
    yield daemon
    if watched is None:
        yield dead(daemon)
    else:
        yield verdict_at(mount.path, _look_s(options))
        yield from _health(watched, mount.path, _look_s(options))
    if nodes:
        yield from check_nodes(nodes)
    if watched is None:
        return
    stats = own_stats(mount.path, _look_s(options))
    if stats is None:
        # It would have this user, perhaps root, connect to any address, and read any path.
        told = "another user's daemon may serve this mount, so nothing that it names was looked at"
        yield ok("source", f"{told}; to do that: redoxfs doctor SOURCE --nodes LIST")
        return
    if not nodes and (addresses := addresses_of(stats)):
        yield from check_nodes(addresses)
    source = source_of(stats)
    if source is not None:
        looked_at = with_archives(path_status(source, _look_s(options)), _look_s(options))
        yield from _of_storage(looked_at, options)[0]
    else:
        what = "is hidden by the mount over it, so its storage cannot be measured"
        yield ok("source", f"{stats['source']} {what}; to measure it, unmount first")


def _health(watched: Watched, path: Path, timeout_s: float) -> Iterator[Result]:
    """The checks of the statistics. If nothing happened while they were watched, the waits are those of the period that
    the verdict is about."""
    waits = None
    try:
        if watched.before["opens"] == watched.after["opens"] and not watched.after["waiting_opens"]:
            waits = waits_in(understood(history_text(path, timeout_s)))
    except (OSError, CommandError, *WRONG):
        # What was watched is shown as it is.
        pass
    for result in check_mount(watched, path):
        yield waits if waits is not None and result.name == waits.name else result


def _of_source(source: PathStatus, options: DoctorOptions) -> Iterator[Result]:
    lines, measured = _of_storage(source, options)
    yield from lines
    if source.address is not None and all(line.level is not Level.PROBLEM for line in lines):
        yield ok(NAME, "cannot say of an address until it is mounted; then: redoxfs doctor MOUNTPOINT", cause="unknown")
        return
    if measured is None or measured.trouble is not None:
        yield unusable(lines)
        return
    facts = look(source, options.timeout_s)
    if isinstance(facts, Result):
        yield facts
        yield unusable([facts])
        return
    if facts.shards and (open_files := check_open_files(shards=facts.shards)) != check_open_files():
        yield open_files
    yield from advise(Path(source.path), facts, measured)


def _of_storage(source: PathStatus, options: DoctorOptions) -> tuple[list[Result], Probe | None]:
    """The lines about the storage under a directory, and the probe; None if it cannot be read, or is no directory."""
    if source.address is not None:
        return [_of_address(source.address, options.timeout_s)], None
    try:
        check_source(source)
    except SourceUnusableError as refusal:
        command = f"ls -ld {shlex.quote(source.asked)}"
        return [problem("source", str(refusal), command)], None
    folder = source.path
    shards: tuple[str, ...] = ()
    if source.archives is not None:
        folder, shards = source.archives.root, source.archives.paths
    measured = probe(folder, options.probe_s, shards)
    return [check_filesystem(folder), *results(measured)], measured


def _of_address(address: Address, timeout_s: float) -> Result:
    """The line about an object store: that the dataset there can be read, and how fast."""
    try:
        if are_archives(address, DatasetOptions()):
            objects, _ = open_archive_objects(address, DatasetOptions(), timeout_s=timeout_s, measures=True)
        else:
            objects, _ = open_objects(address, timeout_s=timeout_s, measures=True)
    except CommandError as refusal:
        return problem("source", str(refusal), f"redoxfs inspect {shlex.quote(address.url)}")
    from redoxfs.chunks import UNKNOWN_SPEED

    speed = objects.measured
    if speed is None or speed == UNKNOWN_SPEED:
        return ok("storage", f"{address} answers; the dataset is too small to measure it")
    rates = f"{1 / speed.seek_s:,.0f} requests/s and {format_bytes(int(speed.bytes_per_s))}/s"
    return ok("storage", f"{address}: {rates}, with many requests in flight")
