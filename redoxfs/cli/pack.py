"""`redoxfs pack`: write SOURCE to DST as tar shards in the order of its chunks."""

import os
import shlex
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.cli.jobs import end_as_by_ctrl_c, processes
from redoxfs.cli.options.datasets import PackOptions
from redoxfs.cli.progress import showing
from redoxfs.launch.archives import with_archives
from redoxfs.launch.errors import DestinationError, SourceUnusableError, UsageError
from redoxfs.launch.path_status import EXACT_FOLDER, path_status
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_bytes, format_seconds, parse_size
from redoxfs.launch.source import (
    DEFAULT_CHUNK_SIZE,
    catalog_of,
    cells_of,
    check_redirects,
    check_source,
    holds_packed,
    open_root,
    say_verdict,
)
from redoxfs.objects import Address, AddressError, is_address, parse_address

if TYPE_CHECKING:
    from redoxfs.packed.packing import Packed


def run(options: PackOptions) -> int:
    """Pack, or resume an interrupted pack."""
    end_as_by_ctrl_c()
    begin = time.monotonic()
    source = path_status(options.source, options.timeout_s)
    if source.address is not None:
        raise SourceUnusableError(f"{source.asked}: redoxfs packs a directory of files")
    source = with_archives(source, options.timeout_s, options.dataset)
    if source.archives is not None:
        raise SourceUnusableError(
            f"{source.asked}: redoxfs packs a directory of files; mount it, and give MOUNTPOINT/{EXACT_FOLDER}"
        )
    check_source(source)
    address = _address(options.dst)
    dst = _destination(options.dst, source.path) if address is None else address
    shard_bytes = parse_size(options.shard_size, None, "--shard-size")
    root_fd = open_root(source)
    if holds_packed(source, root_fd):
        raise SourceUnusableError(f"{source.asked}: is a packed dataset already")
    asked = options.dataset
    catalog = catalog_of(source, root_fd, asked, timeout_s=options.timeout_s)
    say_verdict(catalog.verdict)
    check_redirects(catalog, asked.classes, source.asked)
    cells = cells_of(catalog, asked.chunk_size or DEFAULT_CHUNK_SIZE, asked.seed)
    try:
        with showing("packing") as show:
            packed = _pack_to(dst, options.timeout_s)(
                catalog,
                cells,
                root_fd,
                shard_bytes=shard_bytes,
                seed=asked.seed,
                asked={
                    "classes": asked.classes or "auto",
                    "samples": list(asked.samples),
                    "groups": asked.groups,
                    "shard_size": shard_bytes,
                },
                jobs=processes(options.jobs),
                on_progress=lambda done, totals: show(done.files, done.size, totals.size),
            )
    except KeyboardInterrupt:
        say(f"{dst} holds an unfinished pack; run the same command again to resume")
        raise
    files = int(catalog.tree.kind_mask(stat.S_IFREG).sum())
    content = f"{counted(files, 'file')} in {counted(packed.shards, 'shard')}, {format_bytes(packed.size)}"
    if packed.already:
        say(f"{dst} holds this dataset already: {content}; to check it: redoxfs verify {shlex.quote(str(dst))}")
        return 0
    if packed.kept:
        say(f"{counted(packed.kept, 'shard')} of an interrupted pack {_were(packed.kept)} complete and kept")
    if packed.rewritten:
        say(f"{counted(packed.rewritten, 'shard')} {_were(packed.rewritten)} damaged and rewritten")
    seconds = time.monotonic() - begin
    say(f"packed {content}, in {format_seconds(seconds)}, {format_bytes(int(packed.size / seconds))}/s")
    say(f"to serve it: redoxfs mount {shlex.quote(str(dst))} MOUNTPOINT")
    return 0


def _pack_to(dst: "Path | Address", timeout_s: float) -> "Callable[..., Packed]":
    """What packs to a folder, or to an address."""
    if isinstance(dst, Path):
        from redoxfs.packed import pack

        return partial(pack, dst=dst)
    from redoxfs.objects.client import NoObstoreError, obstore
    from redoxfs.objects.upload import pack_to

    try:
        obstore()
    except NoObstoreError as error:
        raise DestinationError(str(error)) from None
    return partial(pack_to, address=dst, timeout_s=timeout_s)


def _address(asked: str) -> Address | None:
    """The address that DST is; None if it is a path."""
    if not is_address(asked):
        return None
    try:
        address = parse_address(asked)
    except AddressError as error:
        raise UsageError(str(error)) from None
    if address.is_read_only:
        raise DestinationError(f"{asked}: redoxfs only reads from a web server; name a bucket of s3://, gs:// or az://")
    return address


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _destination(asked: str, source: Path) -> Path:
    if not asked:
        raise DestinationError("DST is empty; name a folder")
    # The folder itself may be missing; the one above it must exist.
    path = Path(asked)
    parent = Path(os.path.realpath(path.parent))
    dst = Path(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise DestinationError(f"{asked}: {parent} is not a directory")
    if os.path.lexists(dst) and not os.path.isdir(dst):
        raise DestinationError(f"{asked}: is not a directory")
    if dst == source or source in dst.parents:
        raise DestinationError(f"{asked}: lies inside SOURCE ({source}); name a folder elsewhere")
    if dst in source.parents:
        raise DestinationError(f"{asked}: holds SOURCE ({source}); name a folder of its own")
    return dst
