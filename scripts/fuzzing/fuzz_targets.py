"""The parsers that are fuzzed: of each, valid inputs, how a changed one is sealed, and what may come of it.

A parser reads what another user, another node, a server or a damaged disk may have written. `run` yields the texts
that a person would be shown, or raises one of `declared`, whose text is one line for that person.

Seeds are made by redoxfs itself, so they follow its formats; `seeds/` has what a mount said of itself.
"""

import contextlib
import errno
import io
import json
import os
import socket
import struct
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFREG
from typing import Any, cast

import numpy as np
import trio
import xxhash
from fuzz_mutations import Parts
from rich.console import Console

from redoxfs.cache import folder as cache_folder
from redoxfs.cache import segments
from redoxfs.chunks import build_cells
from redoxfs.cli import mount as cli_mount
from redoxfs.cli import report as cli_report
from redoxfs.cli import status, top_screen, umount
from redoxfs.cli.options.examining import ReportOptions
from redoxfs.cli.table import print_table
from redoxfs.cli.top_view import MountView
from redoxfs.dataset import cache as scan_cache
from redoxfs.dataset import catalog_file, fingerprint
from redoxfs.dataset.errors import ClassesError
from redoxfs.dataset.table import check_table, read_table
from redoxfs.doctor import bundle
from redoxfs.doctor import mount as doctor_mount
from redoxfs.launch import control, handover
from redoxfs.launch.addresses import Here, expand
from redoxfs.launch.control_files import parsed_stats, understood
from redoxfs.launch.daemon import LiveMountError
from redoxfs.launch.errors import CommandError, UsageError
from redoxfs.launch.members import parse_nodes
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.rendezvous import _Caller, _Meeting, _nodes_in
from redoxfs.launch.say import plain
from redoxfs.node import checkpoint, drawing, opened_ahead, state, told_epochs
from redoxfs.node import control as node_control
from redoxfs.node.recent import RecentTurns
from redoxfs.objects import index as objects_index
from redoxfs.packed import index as packed_index
from redoxfs.packed.packing import PackError, packed_before
from redoxfs.protocol import PoolPolicy
from redoxfs.protocol.turns import Turns
from redoxfs.telemetry import access_log, history
from redoxfs.telemetry.prometheus import MountCollector, Scraped

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from packs import made_up_catalog, made_up_tree, seal_made_up  # noqa: E402

ROOM = Path(tempfile.gettempdir())
"""A folder of this process, in memory; `begin` sets it."""


def begin(room: Path) -> None:
    """Use ``room`` for the files of inputs, and let nothing that is parsed do anything else."""
    global ROOM
    ROOM = room

    def nothing(*_arguments: object, **_named: object) -> None:
        return None

    # A mutated path must not be written, nor a mutated number be signalled.
    put_in_place(state, replace_file=nothing)
    put_in_place(opened_ahead, replace_file=nothing)
    put_in_place(cli_report, _write=nothing)
    put_in_place(umount, end_of=nothing, keeper_of=nothing)


def put_in_place(module: types.ModuleType, **functions: object) -> None:
    """Replace functions that a module uses."""
    for name, function in functions.items():
        setattr(module, name, function)


class Target:
    """A parser, or a few that read the same thing.

    ``modules``   whose functions count as its own, if they are called
    ``words``     what its format has, for changes of bytes
    ``declared``  errors with a line for a person
    ``traced``    share of the inputs whose lines are looked at, which makes some parsers much slower
    """

    name = ""
    modules: tuple[str, ...] = ()
    words: Sequence[bytes] = ()
    declared: tuple[type[BaseException], ...] = ()
    needs_native = False
    needs_grpc = False
    traced = 1.0

    def seeds(self) -> list[Parts]:
        """Valid inputs."""
        raise NotImplementedError

    def seal(self, parts: Parts) -> Parts:
        """The parts with right checksums and lengths: forged rather than damaged."""
        return parts

    def run(self, parts: Parts) -> Iterable[str]:
        """Parse, and yield what is shown."""
        raise NotImplementedError


# What a mount says of itself


def _stats_seeds() -> list[Parts]:
    node, cache = ((HERE / f"seeds/stats-{kind}.json").read_bytes() for kind in ("node", "cache"))
    later = json.loads(node)
    for name in ("opens", "redirected", "chunk_loads", "samples_loaded", "bytes_read", "bytes_served", "errors"):
        later[name] += 7
    later["laps"]["train"]["number"] += 1
    return [{"first.json": node, "then.json": json.dumps(later).encode()}, {"first.json": cache, "then.json": cache}]


class Stats(Target):
    """stats.json: for `status`, `top`, `doctor`, `metrics`, `debug`, `umount` and a second `mount`."""

    name = "stats"
    modules = (
        "redoxfs.launch.control_files",
        "redoxfs.cli.status",
        "redoxfs.doctor.mount",
        "redoxfs.doctor.bundle",
        "redoxfs.cli.umount",
        "redoxfs.telemetry.split_line",
        "redoxfs.telemetry.rates",
    )
    words = (b'"peers"', b'"laps"', b"null", b"NaN", b"Infinity", b"-1", b"1e400", b"\\u001b", b"\\ud800", b"{", b"[")
    declared = (CommandError,)

    def seeds(self) -> list[Parts]:
        return _stats_seeds()

    def run(self, parts: Parts) -> Iterable[str]:
        first, then = parts["first.json"], parts["then.json"]
        yield from self._debug_and_umount(first)
        with contextlib.suppress(CommandError):
            yield from self._doctor(first, then)
        with understood("/mnt/data"):
            stats = parsed_stats(first)
            shown = status.rows(stats)
        buffer = io.BytesIO()
        out = io.TextIOWrapper(buffer, encoding="utf-8", errors="surrogateescape")
        with contextlib.redirect_stdout(out):
            print_table("redoxfs at /mnt/data", shown)
        out.flush()
        yield from buffer.getvalue().decode("utf-8", "surrogateescape").split("\n")

    def _doctor(self, first: bytes, then: bytes) -> Iterator[str]:
        with understood("/mnt/data"):
            before, after = parsed_stats(first), parsed_stats(then)
        watched = doctor_mount.Watched(before, after, 0.25)
        for result in doctor_mount.check_mount(watched, Path("/mnt/data")):
            yield result.line
        with understood("/mnt/data"):
            yield from map(plain, doctor_mount.addresses_of(after))
            yield plain(doctor_mount.source_of(after) or "")

    def _debug_and_umount(self, text: bytes) -> Iterator[str]:
        def read(*_: object) -> bytes:
            return text

        put_in_place(bundle, _read_control=read)
        packed = bundle.Bundle()
        bundle._stats(packed, cast("PathStatus", None), "stats-1.json", 1.0)
        yield from map(plain, packed.missing.values())
        put_in_place(umount, read_control=read)
        umount._daemon_of(cast("Any", None), 1.0)


class Top(Target):
    """stats.json, for `top`."""

    name = "top"
    modules = ("redoxfs.cli.top_view", "redoxfs.cli.top_screen")
    words = Stats.words
    traced = 0.2

    def seeds(self) -> list[Parts]:
        return _stats_seeds()

    def run(self, parts: Parts) -> Iterable[str]:
        console = Console(file=io.StringIO(), width=100, height=40, color_system=None, markup=False, highlight=False)
        view = MountView("/mnt/data")
        for at_s, text in enumerate((parts["first.json"], parts["then.json"])):
            try:
                told = dict(json.loads(text))  # as the process that asks does
            except (ValueError, TypeError, RecursionError):
                continue
            top_screen.take_in(view, float(at_s), told, console)
        for views in ([view], [view, view]):
            for line in console.render_lines(top_screen.screen(views, console, head="")):
                yield "".join(segment.text for segment in line)


class Metrics(Target):
    """stats.json of this user's mounts, for `redoxfs metrics`."""

    name = "metrics"
    modules = ("redoxfs.telemetry.prometheus", "redoxfs.telemetry.metric")
    declared = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
    """Only this user's own daemon is asked; a request that fails is answered with an error."""

    def seeds(self) -> list[Parts]:
        return _stats_seeds()

    def run(self, parts: Parts) -> Iterable[str]:
        scraped = [Scraped("/mnt/data", json.loads(parts["first.json"]))]
        return [str(len(list(MountCollector(lambda: scraped, {}).collect())))]


class History(Target):
    """history.json, and files of figures, for `redoxfs report`."""

    name = "history"
    modules = ("redoxfs.cli.report", "redoxfs.report.inputs", "redoxfs.telemetry.history_form")
    words = (b"null", b"NaN", b"1e400", b"-1", b'"points"', b'"time"', b'"laps"', b"<script>")
    declared = (CommandError,)

    def seeds(self) -> list[Parts]:
        rows = [{"policy": "pool", "epoch": {"reads": 3, "seconds": 0.5}}, {"policy": "slot", "epoch": {"reads": None}}]
        figures = {"machine": {"cores": 2, "cpu": "x", "kernel": "6", "python": "3"}, "seed": 1, "rows": rows}
        return [
            {"history.json": (HERE / "seeds/history.json").read_bytes()},
            {"history.json": json.dumps(figures).encode()},
        ]

    def run(self, parts: Parts) -> Iterable[str]:
        pages: list[bytes] = []
        put_in_place(
            cli_report,
            _of_file=lambda *_: parts["history.json"],
            look=lambda *_: types.SimpleNamespace(error=errno.ENOENT, mode=0),
            outside=lambda *_: ROOM / "page.html",
            _write=lambda _path, _asked, text: pages.append(text),
        )
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            cli_report.run(ReportOptions(("history.json",), "page.html"))
        # A verdict for each mount, and a line for the page.
        yield from out.getvalue().removesuffix("\n").split("\n")
        (page,) = pages
        text = page.decode()
        if "<script" in text or "\x1b" in text:
            yield "the page has \x1b or a script"


class AccessLog(Target):
    """Lines of the access log, for `redoxfs profile`."""

    name = "access-log"
    modules = ("redoxfs.telemetry.access_log",)
    words = (b"\t", b"\\x", b"failed:EIO", b"resident", b"-", b"Z", b"\xc2\x9b", b"99999999999999999999")
    declared = (ValueError,)

    def seeds(self) -> list[Parts]:
        line = b"2026-01-02T03:04:05.123456Z\t1234\tresident\t17\ttrain/a\\x0a.jpg\ttrain/b.jpg\n"
        failed = b"2026-01-02T03:04:05.123456Z\t1234\tfailed:EIO\t17\ttrain/a.jpg\t-\n"
        return [{"line": line}, {"line": failed}, {"line": access_log.lost_line(3)}]

    def run(self, parts: Parts) -> Iterable[str]:
        access_log.lost_of(parts["line"])
        access = access_log.parse(parts["line"])
        return [access_log.escaped(access.path).decode("utf-8", "surrogateescape")]


class HistoryBlock(Target):
    """The history in memory that a daemon takes over from one that died."""

    name = "history-block"
    modules = ("redoxfs.telemetry.history",)

    def seeds(self) -> list[Parts]:
        memory = bytearray(history.memory_bytes())
        kept = history.History(memory)
        stats = json.loads((HERE / "seeds/stats-node.json").read_bytes())
        for at in range(3):
            kept.add(stats, 1e9 + at)
        return [{"head": bytes(memory[:4096])}]

    def run(self, parts: Parts) -> Iterable[str]:
        memory = bytearray(history.memory_bytes())
        memory[: len(parts["head"])] = parts["head"][: len(memory)]
        block = history.History(memory[: history.memory_bytes()])
        with np.errstate(all="ignore"):
            block.add(json.loads((HERE / "seeds/stats-node.json").read_bytes()), 2e9)
        return [str(len(block))]


# Datasets


def _catalog() -> Any:
    """Two classes of three samples, of which one has two files, in a tree with a link and a file of no sample."""
    entries = [
        (0, b"a", S_IFDIR | 0o755), (0, b"b", S_IFDIR | 0o755), (0, b"l", S_IFLNK | 0o777), (0, b"r", S_IFREG | 0o644),
        *((1, b"%d.jpg" % at, S_IFREG | 0o644) for at in range(3)),
        *((2, b"%d.jpg" % at, S_IFREG | 0o644) for at in range(3)),
    ]  # fmt: skip
    size = np.array([0, 0, 0, 1, 9, 100, 200, 300, 2_000_000, 5, 7])
    tree = made_up_tree(entries, targets=[b"r"], size=cast("Sequence[int]", size))
    catalog = made_up_catalog(tree, [0, 0, 0, 1, 1, 1], [[5], [6], [7], [8], [9], [10]])
    told = replace(catalog.verdict, saw=("two classes",))
    return replace(catalog, verdict=told, class_trees=["train"], class_names=["train/a", "train/b"])


def _arrays_sealed(parts: Parts, manifest: dict[str, Any], prefix: str) -> None:
    known = manifest.get("arrays")
    for name, data in parts.items():
        if name.startswith(prefix) and isinstance(known, dict):
            record = known.get(name[len(prefix) :].removesuffix(".npy"))
            if isinstance(record, dict):
                record |= {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
                with contextlib.suppress(Exception):
                    stream = io.BytesIO(data)
                    np.lib.format.read_magic(stream)
                    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                    record |= {"shape": list(shape), "dtype": str(dtype)}


class Folder:
    """A folder that has the parts as files. Only files that differ from before are written."""

    def __init__(self, name: str) -> None:
        self.path = ROOM / name
        self._there: Parts = {}

    def holds(self, parts: Parts) -> Path:
        for name in self._there.keys() - parts.keys():
            (self.path / name).unlink()
            del self._there[name]
        for name, data in parts.items():
            if self._there.get(name) != data:
                path = self.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_bytes(data)
                self._there[name] = data
        return self.path


_PACKED: tuple[str, ...] = ("redoxfs.packed.index", "redoxfs.dataset.stored", "redoxfs.dataset.array_files")


def _packed_seed() -> Parts:
    catalog = _catalog()
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=2, seed=0)
    with tempfile.TemporaryDirectory(dir=ROOM) as made:
        seal_made_up(Path(made), catalog, cells)
        files = [packed_index.MANIFEST, *(f"{packed_index.FOLDER}/{name}.npy" for name in packed_index.ARRAYS)]
        return {name: (Path(made) / name).read_bytes() for name in files}


def _packed_sealed(parts: Parts) -> Parts:
    try:
        manifest = json.loads(parts[packed_index.MANIFEST])
        _arrays_sealed(parts, manifest, f"{packed_index.FOLDER}/")
        manifest.pop("checksum", None)
        return {**parts, packed_index.MANIFEST: packed_index.seal(manifest)}
    except (ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        return parts


def _told(catalog: Any) -> Iterator[str]:
    """Every path, text and number that a catalog gives out."""
    tree = catalog.tree
    for entry in range(len(tree)):
        tree.path(entry)
    for entry in tree.link_entry.tolist():
        tree.target(entry) if hasattr(tree, "target") else None
    fingerprint(catalog)
    for text in (catalog.verdict.line, *catalog.verdict.saw, *catalog.class_names, *catalog.class_trees):
        yield plain(text)


class Packed(Target):
    """The manifest and the index of a packed dataset."""

    name = "packed"
    traced = 0.3
    modules = _PACKED
    words = (b"tree-000000.tar", b"../x", b"1e400", b"Infinity", b"null", b'"shards"', b"<i8", b"|O", b"fortran_order")
    declared = (packed_index.DamagedDatasetError,)

    def seeds(self) -> list[Parts]:
        return [_packed_seed()]

    def seal(self, parts: Parts) -> Parts:
        return _packed_sealed(parts)

    def run(self, parts: Parts) -> Iterable[str]:
        self.folder = getattr(self, "folder", None) or Folder("packed")
        index = packed_index.load_index(self.folder.holds(parts), lambda _shard, _name: False)
        build_cells(index.catalog.class_of, index.catalog.sample_bytes, chunk_size=2, seed=0)
        return _told(index.catalog)


class Packing(Target):
    """A manifest in the folder that `pack` is to fill."""

    name = "packing"
    modules = ("redoxfs.packed.packing", "redoxfs.packed.index")
    declared = (packed_index.DamagedDatasetError, PackError)

    def seeds(self) -> list[Parts]:
        self.own = json.loads(_packed_seed()[packed_index.MANIFEST])
        del self.own["checksum"]
        return [{packed_index.MANIFEST: _packed_seed()[packed_index.MANIFEST]}]

    def seal(self, parts: Parts) -> Parts:
        return _packed_sealed(parts)

    def run(self, parts: Parts) -> Iterable[str]:
        self.folder = getattr(self, "folder", None) or Folder("packing")
        there = packed_index.read_manifest(self.folder.holds(parts))
        own = {name: value for name, value in self.own.items() if name != "arrays"}
        arrays = {name: value for name, value in self.own["arrays"].items() if name != "sums"}
        return [str(packed_before(there, own, arrays, "/packed").shards)]


class _Store:
    """An object store of some files, as `redoxfs.objects.client.Client` shows it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.address = types.SimpleNamespace(url="s3://bucket/packed", of=lambda name: f"s3://bucket/packed/{name}")

    def run(self, work: Any) -> Any:
        import asyncio

        return asyncio.run(work)

    async def get_small(self, name: str, most_bytes: int) -> tuple[bytes, Any]:
        return self._parts[name][:most_bytes], None

    async def head(self, name: str) -> Any:
        return types.SimpleNamespace(size=len(self._parts.get(name, b"")), etag="1")

    async def get(self, name: str, begin_: int, end: int, _version: Any) -> bytes:
        return self._parts[name][begin_:end]


class Objects(Packed):
    """The same in an object store, on its way to the cache."""

    name = "objects"
    modules = ("redoxfs.objects.index",)

    def seeds(self) -> list[Parts]:
        seed = _packed_seed()
        manifest = json.loads(seed[packed_index.MANIFEST])
        for shard in manifest["shards"]:
            seed[shard["name"]] = b""
        manifest["shards"] = [{**shard, "bytes": 0} for shard in manifest["shards"]]
        return [_packed_seed(), _packed_sealed({**seed, packed_index.MANIFEST: json.dumps(manifest).encode()})]

    def run(self, parts: Parts) -> Iterable[str]:
        with tempfile.TemporaryDirectory(dir=ROOM) as cache:
            return [str(objects_index.fetch(cast("Any", _Store(parts)), Path(cache)).was_kept)]


class CatalogFile(Target):
    """A catalog in a file, for `mount --catalog`."""

    name = "catalog"
    modules = ("redoxfs.dataset.catalog_file", "redoxfs.dataset.stored")
    words = (b'"constant": true', b'"length": 1099511627776', b"null", b"1e400")
    declared = (catalog_file.DamagedCatalogError, OSError)

    def seeds(self) -> list[Parts]:
        path = ROOM / "seed.catalog"
        catalog_file.write_catalog(path, _catalog(), asked={"classes": "dir"}, about={"redoxfs": "0"})
        data = path.read_bytes()
        head = catalog_file._HEAD.size
        (_, _, _, length, _) = catalog_file._HEAD.unpack(data[:head])
        description = data[head : head + length]
        return [{"description.json": description, "arrays": data[head + length :], "damage": b""}]

    def seal(self, parts: Parts) -> Parts:
        return {**parts, "damage": b""}

    def run(self, parts: Parts) -> Iterable[str]:
        description, arrays = parts["description.json"], parts["arrays"]
        lengths = (catalog_file.VERSION, catalog_file._HEAD.size + len(description) + len(arrays), len(description))
        digest = xxhash.xxh3_128(struct.pack("<QQQ", *lengths) + description + arrays).digest()
        data = bytearray(catalog_file._HEAD.pack(catalog_file.FORMAT, *lengths, digest) + description + arrays)
        path = ROOM / "file.catalog"
        path.write_bytes(_damaged(data, parts["damage"]))
        read = catalog_file.read_catalog(path)
        return [*_told(read.catalog), plain(str(read.asked)), plain(str(read.about))]


def _damaged(data: bytearray, damage: bytes) -> bytes:
    """``data`` with the changes of ``damage``, three bytes each: the place and the bits; the last cuts it short."""
    for at in range(0, len(damage) - 2, 3):
        place = int.from_bytes(damage[at : at + 2], "little") % max(1, len(data))
        if damage[at + 2] == 0:
            del data[place:]
        elif data:
            data[place] ^= damage[at + 2]
    return bytes(data)


class ScanCache(Target):
    """The folder of an earlier scan: damaged, since only this user can write to it."""

    name = "scan-cache"
    modules = ("redoxfs.dataset.cache",)
    needs_native = True

    def seeds(self) -> list[Parts]:
        source = self.source = ROOM / "source"
        for label in ("a", "b"):
            (source / label).mkdir(parents=True)
            for number in range(3):
                (source / label / f"{number}.jpg").write_bytes(b"x")
        self.root = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        scan_cache.load_or_scan(source, self.root, ROOM / "scans", clock_ns=lambda: 1 << 62)
        (place,) = (ROOM / "scans").iterdir()
        return [{path.name: path.read_bytes() for path in sorted(place.iterdir())}]

    def run(self, parts: Parts) -> Iterable[str]:
        self.folder = getattr(self, "folder", None) or Folder("scan")
        place = self.folder.holds(parts)
        place.chmod(0o700)
        earlier = scan_cache._earlier(place, str(self.source), self.root, None)
        return [str(earlier is None)]


class Table(Target):
    """A class table."""

    name = "class-table"
    modules = ("redoxfs.dataset.table",)
    words = (b",", b'"', b"\r\n", b"path", b"class", b"split", b"label", b"a/0.jpg", b"\xff", b"\xef\xbb\xbf", b"\x00")
    declared = (ClassesError,)

    def seeds(self) -> list[Parts]:
        self.tree = _catalog().tree
        return [
            {"table": b"path,class\na/0.jpg,cat\na/1.jpg,dog\n"},
            {"table": b'File Names,label,fold,age\na/0.jpg,"c,at",1,7\n\nb/2.jpg,dog,,8\n'},
            {"table": b"\xef\xbb\xbfimage;label\r\na/0.jpg;1\r\n"},
        ]

    def run(self, parts: Parts) -> Iterable[str]:
        path = ROOM / "table.csv"
        path.write_bytes(parts["table"])
        check_table(str(path))
        table = read_table(self.tree, str(path))
        return map(plain, (*table.saw, *table.pairs))


class Segments(Target):
    """The index of copies on a local disk."""

    name = "segments"
    modules = ("redoxfs.cache.segments", "redoxfs.cache.folder")
    words = (struct.pack("<Q", segments.KEPT), struct.pack("<Q", segments.TAKEN_BACK))

    def seeds(self) -> list[Parts]:
        seed = segments.seed_of("cached")
        kept = segments.encoded(segments.KEPT, [(3, 0, 100), (4, 100, 2_000_000)], [1, 2, 3], seed)
        back = segments.encoded(segments.TAKEN_BACK, [(3, 0, 0)], [], seed)
        about = json.dumps({"source": "/data", "used_at_s": 1e9}).encode()
        return [{"0.index": kept + back + kept, cache_folder.ABOUT.removesuffix(".json") + ".json": about}]

    def seal(self, parts: Parts) -> Parts:
        data, at = bytearray(parts["0.index"]), 0
        while at + segments._HEAD.size <= len(data):
            magic, files, blocks, zero, _ = segments._HEAD.unpack_from(data, at)
            end = at + segments.encoded_bytes(files, blocks)
            if magic not in (segments.KEPT, segments.TAKEN_BACK) or zero or end > len(data):
                at += 8
                continue
            head = bytes(data[at : at + segments._BEFORE_SUM])
            body = memoryview(bytes(data[at + segments._HEAD.size : end]))
            struct.pack_into("<Q", data, at + 24, segments._checksum(head, body, segments.seed_of("cached")))
            at = end
        return {**parts, "0.index": bytes(data)}

    def run(self, parts: Parts) -> Iterable[str]:
        self.folder = getattr(self, "folder", None) or Folder("cached")
        place = self.folder.holds(parts)
        fd = os.open(place / "0.index", os.O_RDONLY)
        try:
            for batch in segments.read_batches(fd, 0, segments.seed_of("cached")).batches:
                bool(batch.is_sound)
        finally:
            os.close(fd)
        entry = cache_folder._entry(place)
        return [] if entry is None else [plain(entry.source)]


# States and messages


class State(Target):
    """A state file, for --resume and `redoxfs state load`."""

    name = "state"
    modules = ("redoxfs.node.state",)
    declared = (state.StateError,)

    def seeds(self) -> list[Parts]:
        made = []
        for laps in ([3, 4], [1, 70_000], [1, 300]):
            turns = Turns(np.array(laps, np.int32), np.packbits(np.arange(20) % 2 == 0), 7)
            data = state.encode({"dataset": "fedcba", "--policy": "pool"}, turns, 99)
            head = state._HEAD.size
            text = state._HEAD.unpack_from(data)[2]
            made.append({
                "head": data[:head], "about.json": data[head : head + text], "rest": data[head + text : -16],
                "damage": b"", "raw": b"",
            })  # fmt: skip
        return made

    def seal(self, parts: Parts) -> Parts:
        head = bytearray(parts["head"])
        if len(head) == state._HEAD.size and not parts["raw"]:
            fields = list(state._HEAD.unpack(head))
            fields[2] = len(parts["about.json"])
            rest = len(parts["rest"])
            width = fields[6] or 1
            if fields[3] > rest or (rest - fields[3]) % width:
                fields[3] = rest % width
            fields[4] = (rest - fields[3]) // width
            with contextlib.suppress(struct.error):
                head = bytearray(state._HEAD.pack(*fields))
        return {**parts, "head": bytes(head), "damage": b""}

    def run(self, parts: Parts) -> Iterable[str]:
        data = parts["head"] + parts["about.json"] + parts["rest"]
        data = _damaged(bytearray(data + xxhash.xxh3_128_digest(data)), parts["damage"])
        path = ROOM / "state"
        path.write_bytes(data)
        read = state.decode(state.read_bytes(path))
        yield plain(state.line_of(state.summary(read.turns, 20)))
        yield plain(read.lap_lineage)
        read.check({"dataset": "fedcba", "--policy": "pool"})


class Checkpoint(Target):
    """The memory of a daemon that died."""

    name = "checkpoint"
    modules = ("redoxfs.node.checkpoint",)
    declared = (checkpoint.CheckpointError,)

    def seeds(self) -> list[Parts]:
        data = checkpoint.encode({"lap": 3, "seed": "x"}, {"laps": np.arange(5, dtype=np.int32)})
        about = checkpoint._HEAD.unpack_from(data)[2]
        head = checkpoint._HEAD.size
        return [{"about.json": data[head : head + about], "arrays": data[head + about : -16], "damage": b""}]

    def seal(self, parts: Parts) -> Parts:
        return {**parts, "damage": b""}

    def run(self, parts: Parts) -> Iterable[str]:
        about = parts["about.json"]
        size = checkpoint._HEAD.size + len(about) + len(parts["arrays"]) + 16
        data = checkpoint._HEAD.pack(checkpoint.MAGIC, checkpoint.LAYOUT, len(about), size) + about + parts["arrays"]
        checkpoint.decode(_damaged(bytearray(data + xxhash.xxh3_128_digest(data)), parts["damage"]))
        return ()


class _Sent:
    """A stream, and its socket, with what a client has sent."""

    def __init__(self, data: bytes) -> None:
        self._left = data
        self.socket = self

    async def receive_some(self, most: int) -> bytes:
        part, self._left = self._left[:most], self._left[most:]
        return part

    async def recvmsg(self, most: int, _room: int, _flags: int) -> tuple[bytes, list[Any], int, None]:
        return await self.receive_some(most), [], 0, None


class _Bugs:
    """Keeps the exception that the control socket logs as a bug."""

    def __init__(self) -> None:
        self.found: BaseException | None = None

    def __enter__(self) -> "_Bugs":
        self._log, node_control.log = node_control.log, cast("Any", self)
        return self

    def __exit__(self, *_error: object) -> None:
        node_control.log = self._log

    def exception(self, _words: str) -> None:
        self.found = sys.exception()


class Control(Target):
    """Requests at the control socket of a daemon, and the data of each verb."""

    name = "control"
    modules = (
        "redoxfs.node.control",
        "redoxfs.node.drawing",
        "redoxfs.node.opened_ahead",
        "redoxfs.node.told_epochs",
        "redoxfs.node.state",
        "redoxfs.node.cluster.views",
        "redoxfs.node.recent",
    )
    words = (
        b'{"do": "',
        b'"bytes": ',
        b'"mount": "0:52"',
        b"\n",
        b"state-load",
        b"turns-since",
        b"[7, 0, 1]",
        b"1e400",
    )

    def seeds(self) -> list[Parts]:
        catalog = _catalog()
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=2, seed=0)
        policy = PoolPolicy(cells.cells, catalog.class_of, catalog.sample_bytes, capacity_bytes=1 << 20, seed=0)
        plan = types.SimpleNamespace(policy=policy, nodes=1, sharing=None)
        node: Any = types.SimpleNamespace(
            ranks={}, plan=plan, recent=RecentTurns(), turns=policy.turns, kept_turns=policy.kept_turns
        )
        about = {"dataset": "fedcba"}
        writer = state.StateWriter(None, lambda: about, len(catalog.class_of), policy)
        ahead = opened_ahead.OpenedAhead(node, writer)
        draws: Any = drawing.Drawing(node, replace(catalog, verdict=replace(catalog.verdict, mode="sampler")), "id")

        epochs = told_epochs.ToldEpochs(node, catalog.class_trees)

        async def of_draw(data: bytes) -> dict[str, Any]:
            drawing._parsed(data)
            return {}

        views: Any = types.SimpleNamespace(
            _view=types.SimpleNamespace(number=1, addresses=("a:1", "b:1")), _own="a:1", _state=writer
        )
        views._changing = trio.Lock()

        async def change(*_: object) -> None:
            return None

        views._change = change
        self.verbs: dict[str, node_control.Verb] = {
            "state-load": writer.load,
            "state-save": writer.save,
            "state-save-less": ahead.save_less,
            "state-hand-over": writer.hand_over,
            "turns-since": ahead.turns_since,
            "state-take-back": ahead.take_back,
            "samples": draws.samples,
            "draw": of_draw,
            "epoch-of-rank": epochs.begin_of_rank,
            "epoch-tree": epochs.tree_of,
        }
        # Without grpc there are no other nodes.
        with contextlib.suppress(ImportError):
            from redoxfs.node.cluster.views import Membership

            self.verbs["nodes"] = partial(Membership.view, views)
        saved = state.encode(about, policy.turns(), 99)
        path = ROOM / "kept"
        path.write_bytes(saved)
        name = os.fsencode(path)
        return [
            {"line.json": json.dumps({"do": verb, "mount": "0:52"}).encode(), f"data{kind}": data}
            for verb, kind, data in (
                ("state-load", "", saved), ("state-save", "", name), ("state-save-less", "", b"0 " + name),
                ("state-hand-over", "", b"123 " + name), ("turns-since", ".json", b"[7, 0, 0]"),
                ("state-take-back", "", name + b"\0" + np.array([1, 1], "<i8").tobytes()),
                ("samples", "", np.arange(12, dtype="<i8").tobytes()), ("draw", ".json", b'[7, 0, 1, [0, 1], "id"]'),
                ("nodes", ".json", b'["a:1", "b:1"]'), ("nodes", ".json", b""),
                ("epoch-of-rank", ".json", b'["train", null, 2, 1]'), ("epoch-tree", "", b"train/cat"),
                ("epoch-of-rank", ".json", b'["train", 3, 2, 1, 7]'),
            )
        ]  # fmt: skip

    def seal(self, parts: Parts) -> Parts:
        with contextlib.suppress(ValueError, RecursionError):
            asked = json.loads(parts["line.json"])
            if isinstance(asked, dict):
                asked["bytes"] = sum(len(data) for name, data in parts.items() if name != "line.json")
                return {**parts, "line.json": json.dumps(asked).encode()}
        return parts

    def run(self, parts: Parts) -> Iterable[str]:
        sent = parts["line.json"] + b"\n" + b"".join(data for name, data in parts.items() if name != "line.json")
        incoming = node_control._Incoming(cast("trio.SocketStream", _Sent(sent)))
        with _Bugs() as bugs:
            answer = trio.run(node_control._answer, incoming, self.verbs, "0:52")
        if bugs.found is not None:
            raise bugs.found
        json.dumps(answer)
        return [plain(str(answer.get("error", "")))]


class Answers(Target):
    """Answers at a control socket, for a client."""

    name = "control-answer"
    modules = ("redoxfs.launch.control", "redoxfs.cli.status")
    declared = (OSError, ValueError)

    def seeds(self) -> list[Parts]:
        stats = (HERE / "seeds/stats-cache.json").read_bytes()
        return [
            {"answer.json": json.dumps({"ok": True, **json.loads(stats)}).encode()},
            {"answer.json": b'{"error": "no such state"}'},
        ]

    def run(self, parts: Parts) -> Iterable[str]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                theirs.send(parts["answer.json"] + b"\n")
            theirs.shutdown(socket.SHUT_WR)
            answer = control.answer_of(ours, 1.0)
        put_in_place(status, send_control=lambda *_, **__: answer, control_path=lambda path: path)
        _, text = status._received(Path("/run/redoxfs.sock"), 1.0)
        json.loads(text)
        return ()


class Meeting(Target):
    """The lines that nodes exchange when they meet, and lists of nodes."""

    name = "meeting"
    modules = ("redoxfs.launch.rendezvous", "redoxfs.launch.addresses", "redoxfs.launch.members")
    words = (b"[", b"]", b"-", b",", b":", b"n[001-999]", b"[::1]", b"dns:", b"auto:", b"0.0.0.0", b"65536")
    declared = (UsageError,)

    def seeds(self) -> list[Parts]:
        enter = b'{"rank": 1, "nodes": 3, "address": "10.0.0.2:7420"}'
        nodes = b'{"nodes": ["10.0.0.1:7420", "[fe80::1]:7420"]}'
        return [
            {"enter.json": enter, "nodes.json": nodes, "list": b"n[001-003,07],gpu1,r[1-2]c[0-3]"},
            {"enter.json": enter, "nodes.json": b'{"error": "no"}', "list": b"a:1,b,[::1]:7420"},
            {"enter.json": enter, "nodes.json": nodes, "list": b"dns:train.svc:7420"},
        ]

    def run(self, parts: Parts) -> Iterable[str]:
        text = parts["list"].decode("utf-8", "surrogateescape")
        for parse in cast("tuple[Callable[[str], object], ...]", (expand, parse_nodes)):
            try:
                parse(text)
            except UsageError as error:
                yield plain(str(error))
        meeting = _Meeting(cast("socket.socket", None), "10.0.0.1:7420", 3, Here(name="a"))
        caller = _Caller("10.0.0.9:1", 1.0)
        try:
            meeting._enter(caller, parts["enter.json"])
        except ValueError as error:
            yield plain(str(error))
        yield from _nodes_in(parts["nodes.json"], "10.0.0.1:7420", 2)


class Traces(Target):
    """Parts of the order of an epoch, from another node."""

    name = "traces"
    needs_grpc = True
    modules = ("redoxfs.peers.traces",)
    declared = (ValueError,)

    def seeds(self) -> list[Parts]:
        first, second = np.arange(4, dtype="<i4").tobytes(), np.arange(4, 8, dtype="<i4").tobytes()
        numbers = struct.pack("<qqq", 1, 32, 0), struct.pack("<qqq", 1, 32, 16)
        return [{"0": numbers[0], "1": first, "2": numbers[1], "3": second}]

    def run(self, parts: Parts) -> Iterable[str]:
        from redoxfs.peers.traces import TraceAssembly

        assembly = TraceAssembly(8)
        for at in ("0", "2"):
            serial, total, offset = struct.unpack("<qqq", (parts[at] + bytes(24))[:24])
            # As the message has them.
            if min(serial, total, offset) >= 0:
                assembly.take(1, serial, total, offset, memoryview(parts[str(int(at) + 1)]))
        return ()


class Handover(Target):
    """Messages between the plugin of Kubernetes and a sidecar, and the plugin's records of volumes."""

    name = "csi"
    needs_grpc = True
    modules = ("redoxfs.launch.handover", "redoxfs.csi.records")
    declared = (ValueError, TypeError)

    def seeds(self) -> list[Parts]:
        from redoxfs.csi import records

        record = {}
        for each in fields(records.Record):
            record[each.name] = "x" if each.type is str else ["x"]
        return [
            {
                "message.json": handover._encoded(mountpoint="/mnt", error=None),
                "record.json": json.dumps(record).encode(),
            }
        ]

    def run(self, parts: Parts) -> Iterable[str]:
        from redoxfs.csi import records

        with contextlib.suppress(ValueError, TypeError, RecursionError):
            records._record(json.loads(parts["record.json"]))
        handover._decoded(parts["message.json"])
        return ()


class SecondMount(Target):
    """stats.json, for a second process that asks for the same mount."""

    name = "second-mount"
    modules = ("redoxfs.cli.mount",)
    declared = (CommandError,)

    def seeds(self) -> list[Parts]:
        stats = (HERE / "seeds/stats-node.json").read_bytes()
        self.words_there = json.loads(stats)["request"]["words"]
        return [{"stats.json": stats}]

    def run(self, parts: Parts) -> Iterable[str]:
        names: Any = types.SimpleNamespace(name="/data", asked="/mnt/data", path=Path("/mnt/data"))
        shown: list[str] = []
        put_in_place(
            cli_mount,
            read_control_at=lambda *_: parts["stats.json"],
            _request=lambda *_: list(self.words_there),
            job_of=lambda *_: None,
            say=lambda line: shown.append(plain(line)),
        )
        live = LiveMountError(names, names)
        cli_mount._share(live, cast("Any", types.SimpleNamespace(timeout_s=1.0)))
        return shown


TARGETS: tuple[Target, ...] = (
    Stats(), Top(), Metrics(), History(), AccessLog(), HistoryBlock(), Packed(), Packing(), Objects(), CatalogFile(),
    ScanCache(), Table(), Segments(), State(), Checkpoint(), Control(), Answers(), Meeting(), Traces(), Handover(),
    SecondMount(),
)  # fmt: skip


def named(name: str) -> Target:
    """Raises KeyError."""
    return {target.name: target for target in TARGETS}[name]
