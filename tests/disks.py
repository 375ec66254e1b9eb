"""Disks of a test: a small one in memory, and one on a block device that can lose its end."""

import array
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import until

BLOCK_BYTES = 4096
FIBMAP = 1
"""A request of ioctl(2), from linux/fs.h."""


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[Path]:
    """A filesystem in memory, with ``options`` of tmpfs, over a folder that is made if it is missing."""
    place.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", place], capture_output=True).returncode:
        pytest.skip("a small disk takes the right to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


class Disk:
    """A filesystem on a block device that can lose its end: reads there are I/O errors of the device."""

    def __init__(self, folder: Path, size_bytes: int = 8 << 20) -> None:
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            pytest.skip("needs mkfs.ext4, and the right to mount a loop device")
        self.image = folder / "image"
        self.place = folder / "disk"
        self._whole = b""
        self.place.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(size_bytes)
        made = self._run("mkfs.ext4", "-q", "-b", str(BLOCK_BYTES), "-O", "^has_journal", self.image)
        if made.returncode or self.attach().returncode:
            pytest.skip("needs mkfs.ext4, and the right to mount a loop device")

    def attach(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        return self._run("mount", "-o", ",".join(["loop", *options]), self.image, self.place)

    def detach(self) -> None:
        self._run("umount", self.place).check_returncode()
        # Another test may just have made a mount namespace, with a copy of the mount. Then the device is still in use.
        until(lambda: not self._run("losetup", "--associated", self.image).stdout, "the device is still in use")

    def lose(self, from_byte: int) -> None:
        """Cut off the device after ``from_byte``."""
        self._whole = self.image.read_bytes()
        os.truncate(self.image, from_byte)

    def restore(self) -> None:
        with open(self.image, "r+b") as file:
            file.write(self._whole)

    def blocks_of(self, path: Path, begin: int, size: int) -> list[int]:
        """The position of a part of a file on the device."""
        blocks = []
        with open(path, "rb") as file:
            for number in range(begin // BLOCK_BYTES, (begin + size - 1) // BLOCK_BYTES + 1):
                asked = array.array("i", [number])
                fcntl.ioctl(file, FIBMAP, asked)
                blocks.append(asked[0])
        return blocks

    @staticmethod
    def _run(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, capture_output=True, check=False)
