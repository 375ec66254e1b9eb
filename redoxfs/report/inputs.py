"""What a JSON value is: the history of a mount, the result of a simulation, or that of a benchmark.

Simulations and benchmarks do not say what they are, so they are recognized by their fields. `SHAPES` has what a report
shows of each.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redoxfs.report import html
from redoxfs.report.charts import Table
from redoxfs.telemetry.history import Read, UnreadableError, is_history, read


class UnknownInputError(ValueError):
    """A JSON value that a report cannot show: one line."""


@dataclass(frozen=True, slots=True)
class MountRun:
    """The history of a mount, with a name for it."""

    name: str
    history: Read


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of a simulation or a benchmark: a table, and the number that each row is compared by.

    ``about``     where it was measured, and with which settings
    ``by``        the name of that number, ``by_kind`` the class of its color
    """

    name: str
    title: str
    about: str
    table: Table
    by: str
    by_kind: str
    lengths: Sequence[float | None]


Input = MountRun | Figures

Rows = Callable[[Any], Iterator[Mapping[str, Any]]]
Written = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of result.

    ``title``    what made it
    ``fields``   of the whole result; ``of_row`` of its first row
    ``rows``     yields its rows
    ``columns``  heading, path in a row, and how its value is written
    ``by``       the heading of the column that rows are compared by
    """

    title: str
    fields: frozenset[str]
    of_row: frozenset[str]
    rows: Rows
    columns: tuple[tuple[str, str, Written], ...]
    by: str
    by_kind: str = "served"

    def fits(self, value: Any) -> bool:
        if not isinstance(value, Mapping) or not self.fields <= value.keys():
            return False
        try:
            first = next(self.rows(value), None)
        except (LookupError, TypeError, AttributeError, ValueError):
            return False
        return first is not None and self.of_row <= first.keys()

    def figures(self, name: str, value: Mapping[str, Any]) -> Figures:
        rows = list(self.rows(value))
        cells = [[written(_at(row, path)) for _, path, written in self.columns] for row in rows]
        path = next(path for heading, path, _ in self.columns if heading == self.by)
        lengths = [_length(_at(row, path)) for row in rows]
        headings = [heading for heading, _, _ in self.columns]
        return Figures(name, self.title, about(value), Table(headings, cells), self.by, self.by_kind, lengths)


def recognized(name: str, value: Any) -> Input:
    """What ``value``, which came from ``name``, is. Raises UnknownInputError."""
    if is_history(value):
        try:
            return MountRun(name, read(value))
        except UnreadableError as error:
            raise UnknownInputError(str(error)) from None
    whole = {"rows": value} if isinstance(value, list) else value
    for shape in SHAPES:
        if shape.fits(whole):
            try:
                return shape.figures(name, whole)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise UnknownInputError(f"it is damaged: {type(error).__name__}: {error}") from None
    if isinstance(value, Mapping) and "open_seconds" in value and "pid" in value:
        raise UnknownInputError("it is stats.json, one snapshot; a report needs .redoxfs/history.json of the mount")
    raise UnknownInputError("it is no history.json, and no result of `redoxfs simulate --json` or of a benchmark")


def about(value: Mapping[str, Any]) -> str:
    """The machine and the settings of a benchmark, as far as it has them."""
    parts = []
    machine = value.get("machine")
    if isinstance(machine, Mapping):
        told = (("cores", "{} cores"), ("cpu", "{}"), ("kernel", "Linux {}"), ("python", "Python {}"))
        parts.append(", ".join(words.format(machine[key]) for key, words in told if key in machine))
    settings = (
        f"{key.replace('_', ' ')}: {each:,}" if isinstance(each, int) else f"{key.replace('_', ' ')}: {each}"
        for key, each in value.items()
        if isinstance(each, str | int | float) and not isinstance(each, bool)
    )
    return "; ".join([*parts, ", ".join(settings)]).strip("; ")


def _at(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _length(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _rows(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for row in value["rows"]:
        if not isinstance(row, Mapping):
            raise TypeError("a row is an object")
        yield row


def _named(place: str, name: str) -> Rows:
    """The objects at a place, by their keys, each as a row that has its key as ``name``."""

    def rows(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for key, row in value[place].items():
            yield {name: key, **row}

    return rows


def _itself(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield value


def _of(place: str) -> Rows:
    def rows(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield from value[place]

    return rows


def _rates(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind, by_readers in value["files_per_second"].items():
        for readers, files_per_s in by_readers.items():
            cpu_us = value["server_us_per_file"].get(kind)
            yield {"kind": kind, "readers": readers, "files_per_s": files_per_s, "cpu_us": cpu_us}


def _listings(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part, titles in value["seconds"].items():
        for title, of in titles.items():
            for where, seconds in of.items():
                yield {"tree": part, "program": title, "where": where, "seconds": seconds}


def _scans(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in ("local", "delayed"):
        for what, found in value.get(part, {}).items():
            if isinstance(found, Mapping) and "find_s" in found:
                yield {**found, "tree": part, "program": what}


def _estimates(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for profile in value["profiles"]:
        for row in profile["rows"]:
            yield {"profile": profile["profile"], **row}


def _text(value: Any) -> str:
    return html.NONE if value is None else str(value)


def _number(value: Any) -> str:
    return html.number(value) if isinstance(value, int | float) else _text(value)


def _us(value: Any) -> str:
    return html.seconds(value / 1e6) if isinstance(value, int | float) else html.NONE


def _per_s(value: Any) -> str:
    return html.number(value, "/s") if isinstance(value, int | float) else html.NONE


def _mb_per_s(value: Any) -> str:
    return html.rate(value * 1e6) if isinstance(value, int | float) else html.NONE


_SECONDS, _SIZE, _SHARE, _RATE = html.seconds, html.size, html.share, html.rate


def _shape(
    title: str, fields: str, rows: Rows, columns: Sequence[tuple[str, str, Written]], by: str, kind: str
) -> Shape:
    paths = frozenset(path.partition(".")[0] for _, path, _ in columns)
    return Shape(title, frozenset(fields.split()), paths, rows, tuple(columns), by, kind)


_QUALITY = (
    ("policy", "policy", _text),
    ("chunk size", "chunk_size", _text),
    ("memory", "resident", _SHARE),
    ("displacement", "displacement", _number),
    ("rank correlation", "rank_correlation", _number),
    ("mate pairs", "mate_pairs", _number),
    ("in the last 5 %", "mate_pairs_at_end", _number),
    ("if random", "mate_pairs_if_random", _number),
)

SHAPES: tuple[Shape, ...] = (
    _shape(
        "redoxfs simulate breakdown",
        "rows",
        _rows,
        (
            ("variant", "variant", _text),
            ("loads", "loads", _number),
            ("remote requests", "remote_requests", _number),
            ("loads in the paper", "paper_loads", _number),
            ("remote requests in the paper", "paper_remote_requests", _number),
        ),
        "loads",
        "storage",
    ),
    _shape(
        "redoxfs simulate policies",
        "resident_share loads_per_chunk",
        _itself,
        (
            ("policy", "policy", _text),
            ("files", "files", _number),
            ("nodes", "nodes", _number),
            ("in memory", "resident_share", _SHARE),
            ("loads per chunk", "loads_per_chunk", _number),
            ("read amplification", "read_amplification", _number),
            ("as packed", "read_amplification_packed", _number),
            ("waited for a load", "demand_load_share", _SHARE),
            ("from other nodes", "remote_share", _SHARE),
        ),
        "read amplification",
        "storage",
    ),
    _shape(
        "redoxfs simulate chunk-size",
        "rows",
        _rows,
        (
            ("chunk size", "chunk_size", _text),
            ("policy", "policy", _text),
            ("loads per chunk", "loads_per_chunk", _number),
            ("bytes read", "bytes_read", _SIZE),
            ("from storage", "bytes_per_s", _RATE),
            ("epoch", "epoch_seconds", _SECONDS),
        ),
        "epoch",
        "storage",
    ),
    _shape(
        "redoxfs simulate remote-memory",
        "rows",
        _rows,
        (
            ("limit", "limit_bytes", _SIZE),
            ("used at most", "peak_used_bytes", _SIZE),
            ("on average", "mean_used_bytes", _SIZE),
            ("remote requests", "remote_requests", _number),
            ("loads", "loads", _number),
        ),
        "remote requests",
        "remote",
    ),
    _shape(
        "redoxfs simulate related",
        "rows resident sample_bytes seek_time_s",
        _rows,
        (
            ("system", "title", _text),
            ("file reads", "file_reads", _number),
            ("chunk reads", "chunk_reads", _number),
            ("storage time", "storage_s", _SECONDS),
            ("messages", "messages", _number),
            ("between nodes", "sent_bytes", _SIZE),
            ("memory", "peak_share", _SHARE),
            ("samples seen", "seen_share", _SHARE),
            ("displacement", "displacement", _number),
            ("rank correlation", "rank_correlation", _number),
            ("mate pairs", "mate_pairs", _number),
            ("in the last 5 %", "mate_pairs_at_end", _number),
            ("if random", "mate_pairs_if_random", _number),
            ("same node", "same_node_share", _SHARE),
        ),
        "storage time",
        "storage",
    ),
    _shape("redoxfs simulate randomness", "bound quality", _of("quality"), _QUALITY, "mate pairs", "shuffle"),
    _shape(
        "scripts/bench/cache.py",
        "rows cache_on",
        _rows,
        (
            ("way", "way", _text),
            ("storage", "profile", _text),
            ("epoch", "epoch", _text),
            ("files", "files_per_s", _per_s),
            ("bytes", "mb_per_s", _mb_per_s),
            ("of no cache", "of_no_cache", _SHARE),
            ("of packed", "of_packed", _SHARE),
            ("in the cache", "kept", _SHARE),
        ),
        "files",
        "served",
    ),
    _shape(
        "scripts/bench/cache_kills.py",
        "rows kills epoch_s",
        _rows,
        (
            ("death", "kill", _text),
            ("after", "after_s", _SECONDS),
            ("in the cache", "kept", _SHARE),
            ("damaged", "damaged", _number),
            ("wrong labels", "wrong_labels", _number),
            ("not once", "not_once", _number),
            ("errors", "errors", _number),
            ("copies not used", "failures", _number),
        ),
        "in the cache",
        "served",
    ),
    _shape(
        "scripts/bench/epoch.py",
        "rows cap_mb",
        _rows,
        (
            ("way", "way", _text),
            ("storage", "profile", _text),
            ("readers", "readers", _text),
            ("files", "files_per_s", _per_s),
            ("bytes", "mb_per_s", _mb_per_s),
            ("read amplification", "amplification", _number),
        ),
        "files",
        "served",
    ),
    _shape(
        "scripts/bench/loaders.py",
        "rows cap_mb storage",
        _rows,
        (
            ("loader", "title", _text),
            ("bytes, cold", "bytes_4.cold_per_s", _per_s),
            ("bytes, warm", "bytes_4.warm_per_s", _per_s),
            ("2 workers", "bytes_2.cold_per_s", _per_s),
            ("decoded", "decoded_4.cold_per_s", _per_s),
            ("2 workers", "decoded_2.cold_per_s", _per_s),
            ("preparation", "prepare_s", _SECONDS),
            ("on the disk", "prepared_bytes", _SIZE),
            ("lines changed", "lines_changed", _number),
            ("exactly once", "exactly_once", _text),
            ("displacement", "displacement", _number),
            ("rank correlation", "rank_correlation", _number),
            ("pairs of neighbors", "mate_pairs", _number),
            ("left out", "left_out", _text),
        ),
        "bytes, cold",
        "served",
    ),
    _shape(
        "scripts/bench/latency.py",
        "rows mode file_bytes",
        _rows,
        (
            ("load", "load", _text),
            ("opens", "opens", _number),
            ("median", "open_us.median", _us),
            ("p99", "open_us.p99", _us),
            ("longest", "open_us.max", _us),
            ("p99 underneath", "underneath_us.p99", _us),
        ),
        "p99",
        "wait",
    ),
    _shape(
        "scripts/bench/full_path.py",
        "rows memory_share",
        _rows,
        (
            ("way", "title", _text),
            ("bytes of a file", "file_bytes", _SIZE),
            ("readers", "readers", _text),
            ("files", "files_per_s", _per_s),
            ("CPU of a file", "server_us_per_file", _us),
        ),
        "files",
        "served",
    ),
    _shape(
        "scripts/bench/fuse_rate.py",
        "files_per_second server_us_per_file",
        _rates,
        (
            ("filesystem", "kind", _text),
            ("readers", "readers", _text),
            ("files", "files_per_s", _per_s),
            ("CPU of a file", "cpu_us", _us),
        ),
        "files",
        "served",
    ),
    _shape(
        "scripts/bench/listing.py",
        "seconds catalog_bytes",
        _listings,
        (
            ("program", "program", _text),
            ("tree", "tree", _text),
            ("where", "where", _text),
            ("time", "seconds", _SECONDS),
        ),
        "time",
        "wait",
    ),
    _shape(
        "scripts/bench/scan.py",
        "cold files",
        _scans,
        (
            ("scan", "program", _text),
            ("tree", "tree", _text),
            ("time", "seconds", _SECONDS),
            ("find", "find_s", _SECONDS),
            ("processor", "cpu_s", _SECONDS),
            ("processor of find", "find_cpu_s", _SECONDS),
        ),
        "time",
        "wait",
    ),
    _shape(
        "scripts/bench/objects.py",
        "rows shards_bytes pack_mb_per_s",
        _rows,
        (
            ("nodes", "nodes", _text),
            ("bytes", "mb_per_s", _mb_per_s),
            ("bare requests", "bare_mb_per_s", _mb_per_s),
            ("of bare requests", "share", _SHARE),
            ("reads in flight", "depth", _number),
            ("fetched", "fetched_share", _SHARE),
        ),
        "bytes",
        "remote",
    ),
    _shape(
        "scripts/bench/mlperf.py",
        "rows sample_bytes ahead",
        _rows,
        (
            ("storage", "profile", _text),
            ("way", "way", _text),
            ("accelerator", "accelerator", _text),
            ("fed", "accelerators", _text),
            ("busy", "utilisation", _SHARE),
            ("samples", "samples_per_s", _per_s),
            ("without computation", "bare_samples_per_s", _per_s),
        ),
        "samples",
        "served",
    ),
    _shape(
        "scripts/bench/nodes.py",
        "rows mbit_per_s nodes",
        _rows,
        (
            ("way", "way", _text),
            ("epoch", "seconds", _SECONDS),
            ("sent", "sent_bytes", _SIZE),
            ("from other nodes", "remote_share", _SHARE),
            ("simulated", "simulated_share", _SHARE),
        ),
        "sent",
        "remote",
    ),
    _shape(
        "scripts/bench/overall.py",
        "rows settings reads_per_s",
        _rows,
        (
            ("setting", "setting", _text),
            ("model", "model", _text),
            ("way", "way", _text),
            ("epoch", "seconds", _SECONDS),
            ("of PyTorch's speed", "over_pytorch", _number),
            ("of CoorDL's speed", "over_coordl", _number),
            ("read amplification", "amplification", _number),
            ("limit", "limit", _text),
        ),
        "epoch",
        "served",
    ),
    _shape(
        "scripts/bench/peers.py",
        "rows sample_bytes",
        _rows,
        (
            ("requesters", "requesters", _text),
            ("batch", "batch", _text),
            ("peers", "peers_mb_per_s", _mb_per_s),
            ("bare TCP", "tcp_mb_per_s", _mb_per_s),
            ("of TCP", "share_of_tcp", _SHARE),
        ),
        "peers",
        "remote",
    ),
    _shape(
        "scripts/bench/convergence.py",
        "rows together epochs",
        _rows,
        (
            ("setting", "setting", _text),
            ("seeds", "seeds", _number),
            ("accuracy", "accuracy.mean", _SHARE),
            ("its deviation", "accuracy.deviation", _SHARE),
            ("less plain", "accuracy_less_plain.mean", _number),
            ("from", "accuracy_less_plain.low", _number),
            ("to", "accuracy_less_plain.high", _number),
            ("rank correlation", "rank_correlation", _number),
            ("redirected", "redirected", _SHARE),
        ),
        "accuracy",
        "shuffle",
    ),
    _shape(
        "scripts/bench/decisions.py",
        "policies requests",
        _named("policies", "policy"),
        (
            ("policy", "policy", _text),
            ("a decision", "us_per_decision", _us),
            ("the longest", "longest_decision_ms", lambda ms: _us(None if ms is None else ms * 1e3)),
            ("state of a sample", "state_bytes_per_sample", _SIZE),
            ("waited for a load", "demand_load_share", _SHARE),
        ),
        "a decision",
        "wait",
    ),
    _shape(
        "scripts/bench/index.py",
        "index_bytes warm_s",
        _itself,
        (
            ("samples", "samples", _number),
            ("bytes of the index", "index_bytes", _SIZE),
            ("first time", "first_s", _SECONDS),
            ("later", "warm_s", _SECONDS),
            ("aim", "aim_s", _SECONDS),
        ),
        "first time",
        "wait",
    ),
    _shape(
        "scripts/bench/soak.py",
        "opens_per_second rss_bytes_by_opens",
        _itself,
        (
            ("opens", "opens", _number),
            ("time", "seconds", _SECONDS),
            ("rate", "opens_per_second", _per_s),
            ("wrong", "wrong", _number),
            ("memory after warming up", "rss_after_warm_up_bytes.first", _SIZE),
            ("at the end", "rss_after_warm_up_bytes.last", _SIZE),
        ),
        "rate",
        "served",
    ),
    _shape(
        "scripts/bench/restarts.py",
        "rows how total",
        _rows,
        (
            ("setting", "setting", _text),
            ("deaths", "deaths", _number),
            ("opens", "opens", _number),
            ("errors", "errors", _number),
            ("wrong bytes", "wrong_bytes", _number),
            ("median pause", "pause_s.median", _SECONDS),
            ("longest pause", "pause_s.longest", _SECONDS),
        ),
        "longest pause",
        "wait",
    ),
    _shape(
        "scripts/bench/resume.py",
        "rows samples_not_once most_again",
        _rows,
        (
            ("setting", "name", _text),
            ("kills", "kills", _number),
            ("jobs", "jobs", _number),
            ("samples not once", "samples_not_once", _number),
            ("most again in an epoch", "most_again", _number),
            ("allowed", "allowed_again", _number),
            ("redirected", "redirected", _number),
        ),
        "samples not once",
        "wait",
    ),
    _shape(
        "scripts/bench/sampler.py",
        "rows files memory workers",
        _rows,
        (
            ("way", "way", _text),
            ("samples", "samples_per_s", _per_s),
            ("CPU of the daemon", "server_us_per_sample", _us),
            ("CPU of the loop", "loop_us_per_sample", _us),
            ("loads per chunk", "loads_per_chunk", _number),
            ("samples read again", "samples_reread", _number),
            ("redirected", "redirected", _number),
            ("wrong labels", "wrong_labels", _number),
            ("displacement", "displacement", _number),
            ("mate pairs", "mate_pairs", _number),
            ("of a permutation", "mate_pairs_if_random", _number),
        ),
        "samples",
        "served",
    ),
    _shape(
        "scripts/bench/telemetry.py",
        "rows left_out",
        _rows,
        (
            ("watched by", "setting", _text),
            ("opens", "opens_per_s", _per_s),
            ("of nothing's", "opens_ratio.median", _SHARE),
            ("CPU of an open", "us_per_open", _us),
            ("of nothing's CPU", "cpu_ratio.median", _SHARE),
            ("CPU of the watcher", "watcher_cpu_share", _SHARE),
        ),
        "CPU of an open",
        "wait",
    ),
    _shape(
        "scripts/bench/estimates.py",
        "profiles",
        _estimates,
        (
            ("way", "way", _text),
            ("storage", "profile", _text),
            ("estimated", "estimated_s", _SECONDS),
            ("measured", "measured_s", _SECONDS),
        ),
        "measured",
        "served",
    ),
)
