"""`redoxfs pack` to an object store: each shard is uploaded in parts, as it is made.

The positions in a shard are known before its first byte is read, so its bytes are made in order, from many files that
are read at the same time, and no copy of it lies on a local disk. An upload in parts has no name until it is complete.

The order of the steps makes a killed pack harmless:

1. The draft goes to .packing/plan.json in the store. It depends on the source and the options alone, so a second run
   knows whether it may resume.
2. Each shard is uploaded under its own name, and then a record of it: of which draft it is, its version, and its
   checksums. A second run keeps a shard if the store has the version of its record, and uploads it again if not.
3. The source's directories are checked once more, the index is uploaded, and last the manifest.

Parts of a shard whose upload was killed stay in the store without a name, until the store's own rule removes them.
"""

import io
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from redoxfs.chunks import Cells
from redoxfs.dataset import Catalog, array_files
from redoxfs.objects.address import Address
from redoxfs.objects.errors import ObjectError
from redoxfs.objects.writer import Writer
from redoxfs.packed.headers import header_of
from redoxfs.packed.index import (
    FOLDER,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    PACKING,
    SUM_BLOCK_BYTES,
    DamagedDatasetError,
    Sums,
    arrays_of,
    describe,
    parse_manifest,
    save_arrays,
    seal,
)
from redoxfs.packed.packing import (
    DRAFT,
    Packed,
    PackError,
    Totals,
    carry_out,
    draft_of,
    facts_of,
    must_be_unchanged,
    must_resume,
    packed_before,
    planned_shards,
    seen_by_workers,
)
from redoxfs.packed.positions import assign_positions
from redoxfs.packed.shard import READS_IN_FLIGHT, ShardMap, StoppedError, read_exactly, source_file
from redoxfs.packed.workers import Done, Tally, Work

PIECE_BYTES = 1 << 20
"""Files are read in pieces of this length, or of so many small files: READS_IN_FLIGHT of them at a time."""

PIECE_FILES = 16

RESUME = "run the same command again to resume"


def pack_to(
    catalog: Catalog,
    cells: Cells,
    root_fd: int,
    address: Address,
    *,
    shard_bytes: int,
    seed: int,
    asked: dict[str, Any],
    jobs: int,
    timeout_s: float,
    on_progress: Callable[[Done, Totals], None] = lambda _done, _totals: None,
) -> Packed:
    """As `redoxfs.packed.packing`, to an address. ``timeout_s``: the deadline of a request."""
    tree = catalog.tree
    positions = assign_positions(catalog, cells, shard_bytes=shard_bytes)
    manifest = describe(catalog, cells, positions, seed=seed, asked=asked)
    totals = Totals.of(tree)
    writer = Writer(address, timeout_s)
    folder = Path(tempfile.mkdtemp(prefix="redoxfs-pack-"))
    try:
        (folder / FOLDER).mkdir()
        records = save_arrays(folder / FOLDER, arrays_of(catalog, cells, positions))
        draft = draft_of(manifest, records)
        there = _manifest_at(writer)
        if there is not None:
            packed = packed_before(there, manifest, records, str(address))
            _clear(writer)
            return packed
        _claim(writer, draft)
        (folder / DRAFT).write_bytes(draft)
        work = Work(_prepare, (seen_by_workers(root_fd), folder, address, timeout_s), _carry_out, may_hang=True)
        sums, kept, rewritten = carry_out(work, tree, positions, jobs, lambda done: on_progress(done, totals))
        must_be_unchanged(tree, root_fd)
        records = {**records, "sums": array_files.save(folder / FOLDER, "sums", sums)}
        for path in sorted((folder / FOLDER).iterdir()):
            writer.put(f"{FOLDER}/{path.name}", path)
        writer.put(MANIFEST, seal({**manifest, "arrays": records}))
        _clear(writer)
    except ObjectError as error:
        raise PackError(f"{error.strerror}; {RESUME}") from None
    except OSError as error:
        raise PackError(f"{error.filename or folder}: {error.strerror or error}; {RESUME}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Packed(len(positions.shard_names), kept, rewritten, sum(positions.shard_bytes))


# The destination


def _manifest_at(writer: Writer) -> dict[str, Any] | None:
    """The manifest that is there, if there is one. Raises PackError if it is damaged."""
    text = writer.read_if_there(MANIFEST, MANIFEST_MAX_BYTES)
    try:
        return None if text is None else parse_manifest(text, writer.address.of(MANIFEST))
    except DamagedDatasetError as error:
        raise PackError(f"{error}; remove {writer.address}, or name a new folder") from None


def _claim(writer: Writer, draft: bytes) -> None:
    """Note what is being packed there, or find that it is the same. Raises PackError."""
    name = f"{PACKING}/{DRAFT}"
    there = writer.read_if_there(name, MANIFEST_MAX_BYTES)
    if there is None:
        if any(not found.startswith(f"{PACKING}/") for found in writer.names(most=1)):
            raise PackError(f"{writer.address}: is not empty and is not a packed dataset; name a new folder")
        if writer.put_if_absent(name, draft):
            return
        there = writer.read_if_there(name, MANIFEST_MAX_BYTES)
    must_resume(there, draft, str(writer.address))


def _clear(writer: Writer) -> None:
    """Remove the records. The dataset is complete without them, so a failure is none."""
    try:
        writer.delete_below(PACKING)
    except ObjectError:
        return


# The shards


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    shards: ShardMap
    root_fd: int
    writer: Writer
    draft: str


def _prepare(argument: tuple[Path, Path, Address, float]) -> _State:
    root, folder, address, timeout_s = argument
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    draft = json.dumps(facts_of((folder / DRAFT).read_bytes()), sort_keys=True).encode()
    return _State(planned_shards(folder), root_fd, Writer(address, timeout_s), xxhash.xxh3_128_hexdigest(draft))


def _carry_out(state: _State, shard: int, tally: Tally) -> tuple[Sums, bool, bool]:
    """Keep or upload a shard. Return its checksums, whether it was there, and whether it was complete."""
    shards, writer = state.shards, state.writer
    name = shards.positions.shard_names[shard]
    record = f"{PACKING}/{name}.record"
    recorded = _own_record(state, writer.read_if_there(record, MANIFEST_MAX_BYTES))
    known = None if recorded is None else _known_sums(state, shard, *recorded)
    if known is not None:
        files = [entry for entry in shards.entries(shard).tolist() if shards.tree.is_file(entry)]
        tally.add(len(shards.entries(shard)), int(shards.tree.size[files].sum()))
        return known, True, True
    sums = np.zeros(len(shards.blocks(shard)), np.uint64)
    with ThreadPoolExecutor(READS_IN_FLIGHT, thread_name_prefix="redoxfs-pack") as pool:
        tag = writer.put_parts(name, _bytes_of(state, shard, sums, tally, pool))
    head = json.dumps({"e_tag": tag, "draft": state.draft}).encode()
    writer.put(record, head + b"\n" + sums.tobytes())
    return sums, recorded is not None, False


def _own_record(state: _State, recorded: bytes | None) -> tuple[str | None, bytes] | None:
    """The version and the checksums in a record of this pack; None if there is none.

    The draft of another pack may have been removed, or replaced by a pack that began at the same time, and its records
    not. Those of an earlier version of redoxfs do not say of which draft they are.
    """
    text, _, data = (recorded or b"").partition(b"\n")
    try:
        head = json.loads(text)
        return (head["e_tag"], data) if head["draft"] == state.draft else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _known_sums(state: _State, shard: int, tag: str | None, data: bytes) -> Sums | None:
    """The checksums of a recorded shard, if the store still has that version of it."""
    positions = state.shards.positions
    if tag is None or len(data) != 8 * len(state.shards.blocks(shard)):
        return None
    version = state.writer.version_of(positions.shard_names[shard])
    if version is None or (version.e_tag, version.size) != (tag, positions.shard_bytes[shard]):
        return None
    return np.frombuffer(data, np.uint64)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a shard: ``padding`` zeros, then of ``entry`` the header (if ``offset`` is 0) and ``size`` bytes.

    ``block``: the number of the first checksum, in the shard.
    """

    padding: int
    entry: int
    offset: int
    size: int
    block: int


def _pieces(shards: ShardMap, shard: int) -> Iterator[list[_Piece]]:
    """All bytes of a shard but the zeros at its end, in order; each list is read by one thread."""
    tree, positions = shards.tree, shards.positions
    batch: list[_Piece] = []
    batch_bytes = at = block = 0
    for entry in shards.entries(shard).tolist():
        begin = int(positions.data_at[entry]) - len(header_of(tree, entry))
        size = int(tree.size[entry]) if tree.is_file(entry) else 0
        for offset in range(0, max(size, 1), PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset)
            batch.append(_Piece(begin - at if not offset else 0, entry, offset, length, block))
            block += length > 0
            batch_bytes += length
            if batch_bytes >= PIECE_BYTES or len(batch) >= PIECE_FILES:
                yield batch
                batch, batch_bytes = [], 0
        at = int(positions.data_at[entry]) + size
    if batch:
        yield batch


def _bytes_of(state: _State, shard: int, sums: Sums, tally: Tally, pool: ThreadPoolExecutor) -> Iterator[bytes]:
    """The bytes of a shard in order, read ahead. Fills in ``sums``."""
    shards = state.shards
    waiting: deque[Future[bytes]] = deque()
    batches = _pieces(shards, shard)
    done = 0
    while True:
        for batch in islice(batches, READS_IN_FLIGHT - len(waiting)):
            waiting.append(pool.submit(_read, state, batch, sums, tally))
        if not waiting:
            break
        data = waiting.popleft().result()
        done += len(data)
        yield data
    yield bytes(shards.positions.shard_bytes[shard] - done)


def _read(state: _State, batch: list[_Piece], sums: Sums, tally: Tally) -> bytes:
    tree = state.shards.tree
    into = io.BytesIO()
    for piece in batch:
        if tally.stopping():
            raise StoppedError
        into.write(bytes(piece.padding))
        is_file = tree.is_file(piece.entry)
        if not piece.offset:
            into.write(header_of(tree, piece.entry))
        if is_file:
            data = _read_file(state, piece)
            if data:
                sums[piece.block] = xxhash.xxh3_64_intdigest(data)
                into.write(data)
        is_last = not is_file or piece.offset + piece.size >= int(tree.size[piece.entry])
        tally.add(int(is_last), piece.size)
    return into.getvalue()


def _read_file(state: _State, piece: _Piece) -> bytes:
    tree = state.shards.tree
    with source_file(tree, piece.entry, state.root_fd) as source:
        return read_exactly(source, piece.offset, piece.size, tree.path(piece.entry)) if piece.size else b""


assert PIECE_BYTES == SUM_BLOCK_BYTES, "a piece of a large file is one block"
