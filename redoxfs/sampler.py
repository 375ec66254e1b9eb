"""The order of a mount for a sampler: `Draws`, for any framework. `redoxfs.torch.RedoxSampler` is PyTorch's.

A mount with `--classes sampler` returns each file as itself, and chooses the order. A training process tells which
files each index of its dataset has; the mount tells which sample of its own each file belongs to, and then draws
samples in blocks. The process opens them soon: their bytes are in memory until then.

A file is named by the number of its inode, which a listing of its directory has. So a million files cost as many
listings as they have directories, and no stat.

The next block is asked for when the one before it begins to be used, and its answer is read when that is used up. So a
loader does not wait for an answer, and there is no thread, which a worker would inherit in some state. Rejected: a
request for each batch, of which each costs as long as the daemon is busy with opens, some milliseconds.

This module stands above the rooms, as any program that uses redoxfs does.
"""

import base64
import json
import os
import pathlib
import secrets
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from redoxfs.launch.control import answer_of, ask_daemon, begin_control, device_of
from redoxfs.launch.errors import CommandError, DaemonError
from redoxfs.launch.path_status import PathStatus, our_mount_of
from redoxfs.launch.runtime_paths import control_path_of_daemon
from redoxfs.linux.mount_table import Mount, read_mounts

TIMEOUT_S = 60.0
"""For an answer of the daemon, or of the one after it."""

ATTEMPTS = 3
"""How often to ask a daemon that ends while it is asked."""

AT_A_TIME = 50_000
"""How many files to ask about at a time: an answer has a limit."""

Path: TypeAlias = str | os.PathLike[str]
Files: TypeAlias = Sequence[Path | Sequence[Path]]
"""The file of each index of a dataset, or its files."""


class SamplerError(RuntimeError):
    """A mount cannot give the order: one line."""


class _Known(NamedTuple):
    """What a mount knows of the files of a dataset.

    ``index_of``  int64[samples of the mount], -1 for those that the dataset does not have
    ``classes``   of the samples that it has
    ``identity``  of the files of the mount, which gives the samples their numbers
    """

    index_of: npt.NDArray[np.int64]
    classes: list[int]
    identity: str


class Draws:
    """Draws indices of a dataset, in the order that the mount of its files serves best.

    Several processes that have the same files draw from one lap: together they get each sample once.

    Args:
        mount: that the files lie in; `mount_of_files`.
        files: the file or the files of each index.

    Raises:
        SamplerError: the mount serves no sampler, or an index has files of no sample, or of several.
    """

    def __init__(self, mount: PathStatus, files: Files) -> None:
        self._begin_anew()
        self._mount = mount
        self._known = _look_up(mount, files)

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._token = secrets.randbits(63)
        self._number = 0
        # Of the last block; and the lap that the next request ends.
        self._lap = self._ended = 0
        self._block: list[int] = []
        # A request is kept until its answer was read, so that an error or a signal meanwhile loses no block.
        self._request: bytes | None = None
        self._answering: socket.socket | None = None
        # The socket that read the last request. To find it takes longer than a request, as the mount table is read.
        self._control: pathlib.Path | None = None

    def __getstate__(self) -> tuple[PathStatus, _Known]:
        """A copy has the same files, and draws blocks of its own."""
        return self._mount, self._known

    def __setstate__(self, state: tuple[PathStatus, _Known]) -> None:
        self._begin_anew()
        self._mount, self._known = state

    def __del__(self) -> None:
        self._hang_up()

    def begin_epoch(self) -> None:
        """An epoch begins that this process shares with others. What is left of the last one has no turn.

        Each of them says so before its first draw. Of a new process it is not known whether it begins an epoch, or goes
        on in one.
        """
        self._own_draws()
        if self._request is not None:
            # It must not be drawn after the others have begun.
            self._answer(self._request)
            self._request = None
        self._block.clear()
        self._ended = self._lap

    def next(self, left: int) -> int:
        """The next index, of ``left`` that this process draws in the epoch."""
        self._own_draws()
        while not self._block:
            if self._request is None:
                self._request = self._next_request(left)
            indices = self._known.index_of[self._answer(self._request)]
            # From the end.
            block = indices[indices >= 0][::-1].tolist()
            self._block, self._request = block, None
            if left > len(block):
                self._ask_ahead(left - len(block))
        return self._block.pop()

    def _own_draws(self) -> None:
        if self._process != os.getpid():
            # A fork. What was drawn belongs to the process that drew it.
            self._hang_up()
            self._begin_anew()

    def _next_request(self, count: int) -> bytes:
        self._number += 1
        known = self._known
        ended, self._ended = self._ended, 0
        asked = [self._token, self._number, count, known.classes, known.identity]
        return json.dumps([*asked, ended] if ended else asked).encode()

    def _ask_ahead(self, count: int) -> None:
        """Ask, and read the answer later."""
        self._request = self._next_request(count)
        # Another daemon is about to begin, perhaps; it is asked when the block is needed.
        with suppress(OSError):
            path, self._control = self._control or control_path_of_daemon(self._mount.path), None
            self._answering = begin_control(path, "draw", self._request, TIMEOUT_S, device=device_of(self._mount))
            self._control = path

    def _answer(self, request: bytes) -> npt.NDArray[np.int32]:
        answering, self._answering = self._answering, None
        if answering is not None:
            with answering, suppress(OSError, ValueError):
                return self._drawn_in(answer_of(answering, TIMEOUT_S))
        return self._ask(request)

    def _drawn_in(self, answer: dict[str, Any]) -> npt.NDArray[np.int32]:
        # A daemon that is older than this package says none.
        self._lap = int(answer.get("lap", 0))
        return _samples_in(answer)

    def _hang_up(self) -> None:
        if self._answering is not None:
            self._answering.close()

    def _ask(self, request: bytes) -> npt.NDArray[np.int32]:
        """The answer to ``request``. The same request has the same answer, also from a daemon that took over."""
        self._control = None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._drawn_in(ask_daemon(self._mount, "draw", request, TIMEOUT_S))
            except CommandError as error:
                # It died in the middle of an answer, perhaps; then the next attempt waits for another daemon.
                goes_on = isinstance(error, DaemonError) or self._is_mounted_anew()
                if attempt == ATTEMPTS or not goes_on:
                    raise SamplerError(str(error)) from None
        raise AssertionError

    def _is_mounted_anew(self) -> bool:
        """Whether another mount is there now. It is asked from now on: a request names the files that it is about."""
        mount = our_mount_of(self._mount.path, read_mounts())
        if mount is None or mount.path != self._mount.path:
            return False
        before, self._mount = self._mount, mount
        return device_of(mount) != device_of(before)


def _samples_in(answer: dict[str, Any]) -> npt.NDArray[np.int32]:
    return np.frombuffer(base64.b64decode(answer["samples"]), "<i4")


def mount_of_files(files: Files) -> PathStatus | None:
    """The mount of the first file; None where no redoxfs mount has any.

    Raises SamplerError if the first file does not exist, or only others lie in a mount.
    """
    mounts = read_mounts()
    for first in _paths_of(files[0]) if len(files) else ():
        mount = our_mount_of(pathlib.Path(os.path.realpath(first)), mounts)
        if mount is not None:
            return mount
        if not os.path.exists(first):
            raise SamplerError(f"{os.fspath(first)}: no such file")
    ours = {mount.device: mount for mount in mounts if mount.ours}
    folders = {os.path.dirname(path) for each in files for path in _paths_of(each)} if ours else set()
    for folder in folders:
        with suppress(OSError):
            other = ours.get(_device_of(os.stat(folder or ".")))
            if other is not None:
                raise SamplerError(
                    f"{_named(files, 0)}: it does not lie in the mount at {other.mountpoint}, and others do"
                )
    return None


def _look_up(mount: PathStatus, files: Files) -> _Known:
    inodes, index_of_file = _inodes(mount, files)
    found, classes, identities, of = [], set[int](), set[str](), 0
    for at in range(0, len(inodes), AT_A_TIME):
        try:
            answer = ask_daemon(mount, "samples", inodes[at : at + AT_A_TIME].astype("<i8").tobytes(), TIMEOUT_S)
        except CommandError as error:
            raise SamplerError(str(error)) from None
        found.append(_samples_in(answer))
        classes.update(answer["classes"])
        identities.add(answer["identity"])
        of = int(answer["of"])
    if len(identities) > 1:
        raise SamplerError(f"{mount.path}: the files of the mount have changed meanwhile")
    elsewhere = np.flatnonzero(inodes == 0)
    if len(elsewhere):
        raise SamplerError(
            f"{_named(files, index_of_file[elsewhere[0]])}: it does not lie in the mount at {mount.path}"
        )
    samples = np.concatenate(found)
    is_sample = samples >= 0
    sample_of = np.full(len(files), -1, np.int64)
    sample_of[index_of_file[is_sample]] = samples[is_sample]
    without = np.flatnonzero(sample_of < 0)
    if len(without):
        raise SamplerError(
            f"{_named(files, without[0])}: the mount at {mount.path} does not count it as a sample; see --samples"
        )
    other = np.flatnonzero(is_sample & (sample_of[index_of_file] != samples))
    if len(other):
        raise SamplerError(
            f"{_named(files, index_of_file[other[0]])}: its files are of several samples of the mount; "
            "mount with --groups"
        )
    index_of = np.full(of, -1, np.int64)
    index_of[sample_of] = np.arange(len(files))
    twice = np.flatnonzero(index_of[sample_of] != np.arange(len(files)))
    if len(twice):
        raise SamplerError(f"{_named(files, twice[0])}: two indices of the dataset have this file")
    return _Known(index_of, sorted(classes), *identities)


def _inodes(mount: PathStatus, files: Files) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """int64[files]: the inode of each file, and the index that it belongs to."""
    assert mount.mount is not None
    listed: dict[str, dict[str, int]] = {}
    inodes, indices = [], []
    for index, of_index in enumerate(files):
        for path in _paths_of(of_index):
            folder, name = os.path.split(os.fspath(path))
            inode_of = listed.get(folder)
            if inode_of is None:
                inode_of = listed[folder] = _listing(mount, folder)
            inode = inode_of.get(name)
            if inode is None:
                raise SamplerError(f"{path}: no such file")
            inodes.append(inode)
            indices.append(index)
    return np.array(inodes, np.int64), np.array(indices, np.int64)


def _listing(mount: PathStatus, folder: str) -> dict[str, int]:
    """The inode of each file in a folder; 0 for those that lie elsewhere."""
    assert mount.mount is not None
    try:
        is_there = _device_of(os.stat(folder or ".")) == mount.mount.device
        with os.scandir(folder or ".") as entries:
            return {
                entry.name: _linked(mount.mount, entry) if entry.is_symlink() else entry.inode() if is_there else 0
                for entry in entries
            }
    except OSError as error:
        raise SamplerError(f"{folder or '.'}: {error.strerror}") from None


def _linked(mount: Mount, link: "os.DirEntry[str]") -> int:
    """The inode of the file that a symlink leads to; 0 if it lies elsewhere."""
    try:
        status = link.stat()
    except OSError:
        return 0
    return status.st_ino if _device_of(status) == mount.device else 0


def _device_of(status: os.stat_result) -> str:
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def _paths_of(files: Path | Sequence[Path]) -> Iterable[Path]:
    return (files,) if isinstance(files, (str, os.PathLike)) else files


def _named(files: Files, index: int) -> str:
    return ", ".join(os.fspath(path) for path in _paths_of(files[int(index)]))
