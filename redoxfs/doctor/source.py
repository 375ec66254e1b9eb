"""What SOURCE is, and the advice that follows: redirection, packing, chunks and memory.

The verdict is that of the scan which `mount` and `inspect` make, with the same code. It runs in a child with a
deadline, since a first scan of slow storage may take long. Redoing it costs little: scans are kept.
"""

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redoxfs.chunks import UNKNOWN_SPEED
from redoxfs.doctor.estimate import DAEMON_FILES_PER_S, DEFAULT_CHUNK, READERS, WORTH, Estimate, chunk_size
from redoxfs.doctor.estimate import estimate as estimated
from redoxfs.doctor.result import Result, advice, ok, problem, warning
from redoxfs.doctor.storage import Probe
from redoxfs.launch.deadline import run_in_child
from redoxfs.launch.memory import available_memory, default_memory
from redoxfs.launch.options import DatasetOptions, MemoryOptions
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.sizes import counted, format_bytes, format_needed, format_time
from redoxfs.launch.source import evidence, open_dataset, open_root

_TEN_PERCENT = 0.1
"""docs/options.md, "Memory": the share of the samples to begin with."""


_OPTION = re.compile(r"--classes (dir|any)\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """A dataset, as `mount` would serve it. Sizes in bytes; ``shards`` is 0 if it is not packed."""

    mode: str
    line: str
    evidence: tuple[str, ...]
    saw: tuple[str, ...]
    files: int
    samples: int
    classes: int
    total_bytes: int
    file_bytes: int
    shards: int
    chunk_size: int
    least_memory: int
    tenth_memory: int

    @property
    def redirects(self) -> bool:
        return self.samples > 0


def look(source: PathStatus, timeout_s: float) -> Facts | Result:
    """The dataset in SOURCE, or why it cannot be served."""

    def answer() -> bytes:
        _quiet()
        try:
            return json.dumps(_facts(source, timeout_s)).encode("ascii")
        except Exception as error:  # it is reported, and the child ends
            return json.dumps({"error": str(error) or type(error).__name__}).encode("ascii")

    inspect = f"redoxfs inspect {shlex.quote(source.asked)}"
    try:
        found = json.loads(run_in_child(answer, timeout_s))
    except TimeoutError:
        return warning("dataset", f"the scan takes longer than {timeout_s:g} s, so there is no advice", inspect)
    except OSError as failure:
        return problem("dataset", str(failure.strerror), inspect)
    if "error" in found:
        return problem("dataset", found["error"], inspect)
    known: dict[str, Any] = {**found, "evidence": tuple(found["evidence"]), "saw": tuple(found["saw"])}
    return Facts(**known)


def _facts(source: PathStatus, timeout_s: float) -> dict[str, Any]:
    import stat

    from redoxfs.node import pool_memory_for

    root_fd = open_root(source)
    dataset = open_dataset(
        source, root_fd, DatasetOptions(), MemoryOptions(), timeout_s=timeout_s, measure_storage=False
    )
    catalog = dataset.catalog
    regular = catalog.tree.kind_mask(stat.S_IFREG)
    return {
        "mode": str(catalog.verdict.mode),
        "line": catalog.verdict.line,
        "evidence": evidence(catalog.verdict),
        "saw": list(catalog.verdict.saw),
        "files": int(regular.sum()),
        "samples": len(catalog.class_of),
        "classes": len(catalog.class_names),
        "total_bytes": int(catalog.sample_bytes.sum()),
        "file_bytes": int(catalog.tree.size[regular].sum()),
        "shards": 0 if dataset.index is None else len(dataset.index.positions.shard_names),
        "chunk_size": dataset.chunk_size,
        "least_memory": pool_memory_for(catalog, dataset.cells, 0.0),
        "tenth_memory": pool_memory_for(catalog, dataset.cells, _TEN_PERCENT),
    }


def _quiet() -> None:
    """The scan's own lines would stand between those of the report."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)


def advise(source: Path, facts: Facts, probe: Probe | None, available: int | None = None) -> list[Result]:
    """What to do with the dataset, each with a command. ``available``: bytes of memory, by default what there is."""
    left = available_memory() if available is None else available
    found = [_redirection(source, facts)]
    guess = None if probe is None else estimated(probe, facts.files, facts.file_bytes)
    if probe is not None and guess is not None:
        found += [_estimate(guess), _packing(source, facts, guess, chunk_size(probe, _mean(facts)), left)]
    if facts.redirects:
        found.append(_memory(source, facts, left))
    return found


def _mean(facts: Facts) -> float:
    return facts.total_bytes / facts.samples if facts.samples else facts.file_bytes / max(1, facts.files)


def _redirection(source: Path, facts: Facts) -> Result:
    values = {"mode": facts.mode, "samples": facts.samples, "classes": facts.classes}
    where = shlex.quote(os.fspath(source))
    if facts.redirects:
        why = f" ({facts.evidence[0]})" if facts.evidence else ""
        what = f"{facts.samples:,} of {counted(facts.files, 'file')} in {counted(facts.classes, 'class', 'classes')}"
        return advice("redirection", f"possible for {what}{why}", f"redoxfs mount {where} MOUNTPOINT", **values)
    # The verdict names the option that changes it, if one does.
    named = _OPTION.search(facts.line)
    option = "" if named is None else f"--classes {named[1]} "
    return warning("redirection", facts.line, f"redoxfs inspect {option}{where}", **values)


def _about(seconds: float) -> str:
    """What is estimated has no third digit."""
    return format_time(seconds, digits=2)


def _estimate(guess: Estimate) -> Result:
    what = f"an epoch of {counted(guess.files, 'file')}, {format_bytes(guess.bytes)}, takes about"
    ways = [f"{_about(guess.packed)} through redoxfs {'packed' if guess.directory else 'from this packed copy'}"]
    if guess.plain_one and guess.plain_eight and guess.directory:
        ways = [
            f"{_about(guess.plain_one)} as plain files with 1 worker",
            f"{_about(guess.plain_eight)} with {READERS}",
            f"{_about(guess.directory)} through redoxfs from the directory",
            *ways,
        ]
    return ok(
        "estimate",
        f"{what} {', '.join(ways)}. This follows from the reads above{_assumed(guess)}, a cold cache, and about "
        f"{DAEMON_FILES_PER_S:,.0f} files a second that one daemon serves; training itself comes on top",
        plain_1_s=guess.plain_one,
        plain_8_s=guess.plain_eight,
        directory_s=guess.directory,
        packed_s=guess.packed,
        bandwidth_is_assumed=guess.bandwidth_is_assumed,
    )


def _assumed(guess: Estimate) -> str:
    if not guess.bandwidth_is_assumed:
        return ""
    return f", long reads of {format_bytes(int(UNKNOWN_SPEED.bytes_per_s))}/s, which could not be measured"


def _packing(source: Path, facts: Facts, guess: Estimate, chunk: int, available: int) -> Result:
    where = shlex.quote(os.fspath(source))
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
        option = "" if chunk == DEFAULT_CHUNK else f"--chunk-size {chunk} "
        why = "" if option == "" else f", in chunks of {chunk}, which this storage reads well"
        if guess.bandwidth_is_assumed:
            why += f", if long reads come at {format_bytes(int(UNKNOWN_SPEED.bytes_per_s))}/s"
        return advice(
            "packing",
            f"worth it: about {gain:.1f} times as fast as the better of plain files with {READERS} workers and redoxfs "
            f"from the directory{why}{cached}. redoxfs mount --cache DIR, with DIR on a local disk, needs no pack, "
            "and is as fast from the second epoch on",
            f"redoxfs pack {option}{where} DST && redoxfs mount DST MOUNTPOINT",
            **values,
        )
    gain = guess.plain_eight / guess.directory
    if gain >= WORTH:
        return advice(
            "packing",
            f"not needed: redoxfs from the directory is about {gain:.1f} times as fast as plain files with {READERS} "
            f"workers, as it reads more files at the same time{cached}",
            f"redoxfs mount {where} MOUNTPOINT",
            **values,
        )
    return ok(
        "packing",
        "no use: this storage serves small files about as fast as redoxfs can, or faster; read it without redoxfs"
        f"{cached}",
        **values,
    )


def _memory(source: Path, facts: Facts, available: int) -> Result:
    where = shlex.quote(os.fspath(source))
    values = {"least": facts.least_memory, "tenth": facts.tenth_memory, "available": available}
    default = default_memory(available)
    if facts.least_memory > available:
        return problem(
            "memory needed",
            f"{format_needed(facts.least_memory)} at least, and {format_bytes(available)} can be taken",
            "give it more memory, or smaller chunks: redoxfs pack --chunk-size",
            **values,
        )
    if facts.least_memory > default:
        needed = format_needed(facts.least_memory)
        return advice(
            "memory needed",
            f"{needed} at least, more than the default of {format_bytes(default)}",
            f"redoxfs mount --memory {needed} {where} MOUNTPOINT",
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
        f"redoxfs mount --memory {tenth} {where} MOUNTPOINT",
        **values,
    )
