"""`redoxfs debug`: write what a report of a fault needs to an archive, of a daemon that is well, hangs or is dead."""

import io
import os
import tarfile
import time
from pathlib import Path

from redoxfs.cli.jobs import end_as_by_ctrl_c
from redoxfs.cli.options.examining import DebugOptions
from redoxfs.doctor.bundle import Bundle, collect
from redoxfs.launch.errors import DestinationError
from redoxfs.launch.outputs import outside
from redoxfs.launch.path_status import our_mount_at
from redoxfs.launch.say import show
from redoxfs.launch.sizes import counted, format_bytes


def run(options: DebugOptions) -> int:
    """Write the archive; returns 0 once it is there, whatever is missing in it."""
    end_as_by_ctrl_c()
    mount = our_mount_at(options.mountpoint, options.timeout_s)
    path = outside(options.output, options.timeout_s)
    fd = _new(path, options.output)
    try:
        bundle = collect(mount, options.interval_s, options.timeout_s)
        try:
            with open(fd, "wb") as file:
                file.write(_archive(bundle))
        except OSError as failure:
            raise DestinationError(f"-o {options.output}: {failure.strerror}") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    size = format_bytes(path.stat().st_size)
    show(f"{options.output}: {counted(len(bundle.parts), 'file')}, {size}; paths of the dataset are in it")
    for name, why in bundle.missing.items():
        show(f"missing: {name} ({why})")
    return 0


def _new(path: Path, asked: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise DestinationError(f"-o {asked}: exists already; remove it, or choose another name") from None
    except OSError as failure:
        raise DestinationError(f"-o {asked}: {failure.strerror}") from None


def _archive(bundle: Bundle) -> bytes:
    stream = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in sorted(bundle.parts.items()):
            member = tarfile.TarInfo(f"redoxfs-debug/{name}")
            member.size, member.mtime, member.mode = len(data), now, 0o600
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()
