"""What SOURCE is, and the advice that follows: redirection, packing, chunks and memory.

The verdict is that of the scan which `mount` and `inspect` make, with the same code. It runs in a child with a
deadline, since a first scan of slow storage may take long. Redoing it costs little: scans are kept.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redoxfs.chunks import UNKNOWN_SPEED, divisors
from redoxfs.doctor.estimate import DAEMON_FILES_PER_S, DEFAULT_CHUNK, READERS, WORTH, Estimate, chunk_size
from redoxfs.doctor.estimate import estimate as estimated
from redoxfs.doctor.result import Level, Result, advice, ok, problem, warning
from redoxfs.doctor.storage import Probe
from redoxfs.doctor.verdict import NAME, fitting, rate
from redoxfs.launch.deadline import call_in_child
from redoxfs.launch.memory import available_memory, default_memory
from redoxfs.launch.options import DatasetOptions, MemoryOptions
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.sizes import counted, format_bytes, format_needed, format_time
from redoxfs.launch.source import Dataset, Opening, cells_of, evidence, open_dataset, open_root

_TEN_PERCENT = 0.1
"""docs/options.md, "Memory": the share of the samples to begin with."""

_GAINS_WITH_DEPTH = 2.0
"""Where eight reads in flight bring at least so many times the files of one, each takes long."""

_UNKNOWN = re.compile(r"none of [\d,]+ files? \([^)]*?(\.\w+), …\) counts as a sample")
"""The verdict of a scan that knows no extension there."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A dataset, as `mount` would serve it. Sizes in bytes; ``shards`` is 0 if it is not packed, and no archive.

    ``smaller``: where memory is too little for these chunks, the size of smaller ones that fit, and the least memory
    with them; None if none do.
    """

    mode: str
    line: str
    evidence: tuple[str, ...]
    files: int
    samples: int
    classes: int
    total_bytes: int
    file_bytes: int
    shards: int
    chunk_size: int
    least_memory: int
    tenth_memory: int
    is_archive: bool = False
    smaller: tuple[int, int] | None = None

    @property
    def redirects(self) -> bool:
        return self.samples > 0


def look(source: PathStatus, timeout_s: float) -> Facts | Result:
    """The dataset in SOURCE, or why it cannot be served."""

    def answer() -> Facts | str:
        _quiet()
        try:
            return _facts(source, timeout_s)
        except Exception as error:  # it is reported, and the child ends
            return str(error) or type(error).__name__

    inspect = f"redoxfs inspect {shlex.quote(source.asked)}"
    try:
        found = call_in_child(answer, timeout_s)
    except TimeoutError:
        return warning("dataset", f"the scan takes longer than {timeout_s:g} s, so there is no advice", inspect)
    except OSError as failure:
        return problem("dataset", str(failure.strerror), inspect)
    return problem("dataset", found, inspect) if isinstance(found, str) else found


def _facts(source: PathStatus, timeout_s: float) -> Facts:
    import stat

    from redoxfs.node import pool_memory_for

    root_fd = open_root(source)
    dataset = open_dataset(
        Opening(source, root_fd, DatasetOptions(), MemoryOptions(), timeout_s, measure_storage=False)
    )
    catalog = dataset.catalog
    regular = catalog.tree.kind_mask(stat.S_IFREG)
    least, available = pool_memory_for(catalog, dataset.cells, 0.0), available_memory()
    return Facts(
        mode=str(catalog.verdict.mode),
        line=catalog.verdict.line,
        evidence=tuple(evidence(catalog.verdict)),
        files=int(regular.sum()),
        samples=len(catalog.class_of),
        classes=len(catalog.class_names),
        total_bytes=int(catalog.sample_bytes.sum()),
        file_bytes=int(catalog.tree.size[regular].sum()),
        shards=0 if dataset.index is None else len(dataset.index.positions.shard_names),
        is_archive=dataset.kind == "archives",
        chunk_size=dataset.chunk_size,
        least_memory=least,
        tenth_memory=pool_memory_for(catalog, dataset.cells, _TEN_PERCENT),
        smaller=_that_fit(dataset, available) if least > available else None,
    )


def _that_fit(dataset: Dataset, available: int) -> tuple[int, int] | None:
    """The largest size of smaller chunks for which there is memory, and the least memory with them; None if none is."""
    from redoxfs.node import pool_memory_for

    catalog = dataset.catalog
    # `mount` splits the chunks of shards, but only into equal parts.
    for size in reversed(divisors(dataset.chunk_size)[:-1]):
        least = pool_memory_for(catalog, dataset.cells.split(size), 0.0)
        if least <= available and dataset.index is None:
            # `mount` puts the samples of a directory side by side anew, which takes longer than to split.
            least = pool_memory_for(catalog, cells_of(catalog, size, DatasetOptions().seed), 0.0)
        if least <= available:
            return size, least
    return None


def _quiet() -> None:
    """The scan's own lines would stand between those of the report."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)


def advise(source: Path, facts: Facts, probe: Probe | None, available: int | None = None) -> list[Result]:
    """What to do with the dataset, each with a command. ``available``: bytes of memory, by default what there is."""
    left = available_memory() if available is None else available
    guess = None if probe is None else estimated(probe, facts.files, facts.file_bytes)
    found = [_verdict(source, facts, probe, guess, left), _redirection(source, facts)]
    if probe is not None and guess is not None:
        found += [_estimate(guess, facts), _packing(source, facts, guess, _chunk(facts, probe), left)]
    if facts.redirects:
        memory = _memory(source, facts, left)
        # Nothing is to be mounted where redoxfs does not help.
        found.append(memory if found[0].level is not Level.WARNING else replace(memory, level=Level.OK, command=None))
    return found


def unusable(lines: Sequence[Result]) -> Result:
    """The verdict where ``lines`` are all that was found."""
    for line in lines:
        if line.level is Level.PROBLEM:
            hangs = "no answer" in line.found or "no read ended" in line.found or "not answer" in line.found
            what = f"the {line.name}{' hangs' if hangs else ' cannot be used'}: {line.found}"
            return problem(NAME, what, line.command, cause="storage hangs" if hangs else "source")
    last = lines[-1]
    return ok(NAME, f"cannot say, because {last.found}", cause="unknown")


def _verdict(source: Path, facts: Facts, probe: Probe | None, guess: Estimate | None, available: int) -> Result:
    """Whether redoxfs helps here, why, and what to do."""
    where = shlex.quote(os.fspath(source))
    values: dict[str, Any] = {"cause": "unknown"}
    if facts.redirects and facts.least_memory > available:
        found = (
            f"memory is too small: {format_needed(facts.least_memory)} are needed at least, and "
            f"{format_bytes(available)} can be taken"
        )
        return problem(NAME, found, _smaller_chunks(where, facts, available), cause="memory")
    if probe is None or guess is None:
        return ok(NAME, "cannot say, because the storage was not measured", **values)
    if facts.shards:
        how = f"an epoch takes about {_about(guess.packed)} through redoxfs, beside the training"
        if facts.is_archive:
            return _verdict_of_archives(where, facts, how, available)
        if not facts.redirects:
            why = facts.line.removeprefix("not redirecting: ")
            found = f"this copy redirects nothing, so it gains nothing, because {why}"
            return warning(NAME, found, "pack the dataset again, with other --classes", cause="not redirected")
        return advice(NAME, f"ready: it is packed, and {how}", _mount(where, facts, available), cause="packed")
    assert guess.plain_eight is not None
    assert guess.directory is not None
    plain = guess.plain_eight
    best = min(guess.directory, guess.packed)
    values |= {"plain_s": plain, "directory_s": guess.directory, "packed_s": guess.packed}
    cached = ""
    if facts.file_bytes < available:
        cached = "; the data fits in memory, so from the second epoch on plain files come from the page cache"
    if best > plain / WORTH:
        slower = best / plain
        what = f"would slow this down {_times(slower)}" if slower > WORTH else "would gain nothing here"
        why = f"the storage serves {rate(probe.per_s(READERS))} files/s to plain readers"
        return warning(
            NAME, f"redoxfs {what}: do not use it: {why}{cached}", **{**values, "cause": "fast disk", "slower": slower}
        )
    packs = guess.directory > WORTH * guess.packed
    gain = plain / (guess.packed if packs else guess.directory)
    how = "when packed" if packs else "from the directory"
    what = f"redoxfs reads this {_times(gain)} as fast {how}{_if_assumed(guess)}"
    values |= {"cause": _cause(probe), "gain": gain}
    if not facts.redirects:
        why = facts.line.removeprefix("not redirecting: ")
        option = _fitting(facts.line)
        command = None
        if option:
            command = f"redoxfs pack {option} {where} {_beside(source)}" if packs else f"redoxfs mount {option} {where}"
        what = f"as it is, redoxfs would redirect nothing and gain nothing, because {why}"
        return warning(NAME, what, command, **{**values, "cause": "not redirected"})
    command = (
        f"redoxfs pack {_option(_chunk(facts, probe))}{where} {_beside(source)}"
        if packs
        else _mount(where, facts, available)
    )
    return advice(NAME, f"{_words_of_cause(probe)}: {what}{cached}", command, **values)


def _mount(where: str, facts: Facts, available: int) -> str:
    """The command that mounts a dataset, with --memory where the default is too little."""
    least = facts.least_memory
    option = f"--memory {format_needed(least)} " if least > default_memory(available) else ""
    return f"redoxfs mount {option}{where}"


def _verdict_of_archives(where: str, facts: Facts, how: str, available: int) -> Result:
    """``how`` long an epoch takes. Options of the mount decide what is redirected, for nothing was packed."""
    if facts.redirects:
        found = f"ready: redoxfs reads these archives as they are, and {how}"
        return advice(NAME, found, f"{_mount(where, facts, available)} MOUNTPOINT", cause="packed")
    found = (
        "as they are, redoxfs would redirect nothing in these archives and gain nothing, because "
        f"{facts.line.removeprefix('not redirecting: ')}; if each sample has its label in a member of its own, such as "
        "KEY.cls: --classes member:cls"
    )
    option = _fitting(facts.line)
    command = f"redoxfs mount {option} {where} MOUNTPOINT" if option else None
    return warning(NAME, found, command, cause="not redirected")


def _smaller_chunks(where: str, facts: Facts, available: int) -> str | None:
    """The command with which the memory that there is suffices; None if there is none."""
    if facts.smaller is None or facts.smaller[1] > available:
        return None
    size, least = facts.smaller
    place = " MOUNTPOINT" if facts.is_archive else ""
    return f"redoxfs mount --chunk-size {size} --memory {format_needed(least)} {where}{place}"


def _cause(probe: Probe) -> str:
    """What limits plain readers: the number of reads a second, or the time of each."""
    return "latency" if probe.per_s(READERS) >= _GAINS_WITH_DEPTH * probe.per_s(1) else "IOPS"


def _words_of_cause(probe: Probe) -> str:
    first = next((each for each in probe.rounds if each.p50), None)
    if _cause(probe) == "latency" and first is not None and first.p50 is not None:
        return f"latency: one read takes {_about(first.p50)}"
    return f"IOPS-limited: at most {rate(probe.best.per_s if probe.best else 0)} reads/s"


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 9.95 else f"{factor:.1f} times"


def _if_assumed(guess: Estimate, words: str = ", if long reads come at {}/s") -> str:
    return words.format(format_bytes(int(UNKNOWN_SPEED.bytes_per_s))) if guess.bandwidth_is_assumed else ""


def _beside(source: Path) -> str:
    """Where a packed copy may lie."""
    return shlex.quote(f"{os.fspath(source).rstrip('/')}-packed")


def _chunk(facts: Facts, probe: Probe) -> int:
    """Samples in a packed chunk."""
    mean = facts.total_bytes / facts.samples if facts.samples else facts.file_bytes / max(1, facts.files)
    return chunk_size(probe, mean)


def _option(chunk: int) -> str:
    return "" if chunk == DEFAULT_CHUNK else f"--chunk-size {chunk} "


def _fitting(line: str) -> str:
    """The options to choose where a verdict says why nothing is redirected; "" if none can be typed as it is."""
    unknown = _UNKNOWN.search(line)
    if unknown is not None:
        return f"--samples {shlex.quote('*' + unknown[1])}"
    return " ".join(f"--{name} {value}" for name, value in fitting(line).items())


def _redirection(source: Path, facts: Facts) -> Result:
    values = {"mode": facts.mode, "samples": facts.samples, "classes": facts.classes}
    where = shlex.quote(os.fspath(source))
    if facts.redirects:
        why = f" ({facts.evidence[0]})" if facts.evidence else ""
        what = f"{facts.samples:,} of {counted(facts.files, 'file')} in {counted(facts.classes, 'class', 'classes')}"
        return ok("redirection", f"possible for {what}{why}", **values)
    is_packed = facts.shards and not facts.is_archive
    option = "" if is_packed else _fitting(facts.line)
    command = f"redoxfs inspect {option} {where}" if option else None
    return warning("redirection", facts.line, command, **values)


def _about(seconds: float) -> str:
    """What is estimated has no third digit."""
    return format_time(seconds, digits=2)


def _estimate(guess: Estimate, facts: Facts) -> Result:
    what = f"an epoch of {counted(guess.files, 'file')}, {format_bytes(guess.bytes)}, takes about"
    shards = "from these archives" if facts.is_archive else "from this packed copy"
    ways = [f"{_about(guess.packed)} through redoxfs {'packed' if guess.directory else shards}"]
    if guess.plain_one and guess.plain_eight and guess.directory:
        ways = [
            f"{_about(guess.plain_one)} as plain files with 1 worker",
            f"{_about(guess.plain_eight)} with {READERS}",
            f"{_about(guess.directory)} through redoxfs from the directory",
            *ways,
        ]
    # As it is, each open would read its own file.
    when = "" if facts.redirects else ", if it could redirect"
    assumed = _if_assumed(guess, ", long reads of {}/s, which could not be measured")
    return ok(
        "estimate",
        f"{what} {', '.join(ways)}{when}. This follows from the reads above{assumed}, a cold cache, and about "
        f"{DAEMON_FILES_PER_S:,.0f} files a second that one daemon serves; training itself comes on top",
        plain_1_s=guess.plain_one,
        plain_8_s=guess.plain_eight,
        directory_s=guess.directory,
        packed_s=guess.packed,
        bandwidth_is_assumed=guess.bandwidth_is_assumed,
    )


def _packing(source: Path, facts: Facts, guess: Estimate, chunk: int, available: int) -> Result:
    where = shlex.quote(os.fspath(source))
    if facts.is_archive:
        return ok("packing", f"not needed: redoxfs reads {counted(facts.shards, 'archive')} as they are")
    if facts.shards:
        return ok("packing", f"it is packed: {counted(facts.shards, 'shard')}, chunks of {facts.chunk_size} samples")
    assert guess.plain_one is not None
    assert guess.plain_eight is not None
    assert guess.directory is not None
    if not facts.redirects:
        return ok("packing", "no use, as nothing is redirected; see redirection")
    cached = ""
    if facts.file_bytes < available:
        cached = (
            f". The dataset fits in the memory that is free ({format_bytes(available)}): from the second epoch on, "
            "plain files come from the page cache, as fast as can be"
        )
    best = min(guess.plain_eight, guess.directory)
    gain = best / guess.packed
    values = {"gain": gain, "chunk_size": chunk}
    if gain >= WORTH:
        option = _option(chunk)
        why = f", in chunks of {chunk}, which this storage reads well" if option else ""
        return advice(
            "packing",
            f"worth it: about {gain:.1f} times as fast as the better of plain files with {READERS} workers and redoxfs "
            f"from the directory{why}{_if_assumed(guess)}{cached}. redoxfs mount --cache DIR, with DIR on a local "
            "disk, needs no pack, and is as fast from the second epoch on",
            f"redoxfs pack {option}{where} {_beside(source)}",
            **values,
        )
    gain = guess.plain_eight / guess.directory
    if gain >= WORTH:
        return advice(
            "packing",
            f"not needed: redoxfs from the directory is about {gain:.1f} times as fast as plain files with {READERS} "
            f"workers, as it reads more files at the same time{cached}",
            _mount(where, facts, available),
            **values,
        )
    return ok(
        "packing",
        "no use: this storage serves small files about as fast as redoxfs can, or faster; read it without redoxfs"
        f"{cached}",
        **values,
    )


def _memory(source: Path, facts: Facts, available: int) -> Result:
    path = shlex.quote(os.fspath(source))
    where = f"{path} MOUNTPOINT" if facts.is_archive else path
    values = {"least": facts.least_memory, "tenth": facts.tenth_memory, "available": available}
    default = default_memory(available)
    if facts.least_memory > available:
        smaller = _smaller_chunks(path, facts, available)
        return problem(
            "memory needed",
            f"{format_needed(facts.least_memory)} at least, and {format_bytes(available)} can be taken",
            f"give it more memory{'' if smaller is None else f', or smaller chunks: {smaller}'}",
            **values,
        )
    if facts.least_memory > default:
        needed = format_needed(facts.least_memory)
        return advice(
            "memory needed",
            f"{needed} at least, more than the default of {format_bytes(default)}",
            _mount(where, facts, available),
            **values,
        )
    if facts.tenth_memory <= default:
        return ok(
            "memory needed",
            f"{format_needed(facts.tenth_memory)} for 10% of the samples, with which to begin; the default of "
            f"{format_bytes(default)}, a quarter of what can be taken, is enough",
            **values,
        )
    tenth = format_needed(min(facts.tenth_memory, available // 2))
    return advice(
        "memory needed",
        f"{format_needed(facts.tenth_memory)} for 10% of the samples, with which to begin; the default is "
        f"{format_bytes(default)}, and {format_bytes(available)} can be taken",
        f"redoxfs mount --memory {tenth} {where}",
        **values,
    )
