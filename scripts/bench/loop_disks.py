"""A disk for each node, with the same files: one image of a filesystem, attached once for each of them.

Each disk is a loop device with a mount of its own. So its reads can be capped and counted, and pages that one node has
cached are not there for another, as they would be with one directory for all. The image itself lies in the page cache
of the machine, which no cap applies to: it never limits. Needs root and mkfs.ext4.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 10

READAHEAD_BYTES = 1 << 20
"""As the largest read of NFS. So a small file takes one read."""


def make(image: Path, size_bytes: int) -> None:
    """An image with an empty filesystem. It takes space as it fills."""
    if shutil.which("mkfs.ext4") is None:
        raise SystemExit("this benchmark needs mkfs.ext4 (e2fsprogs)")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    # No journal, so that it can be mounted read-only several times. Small filesystems would get blocks of 1 KiB.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal", str(image))


@contextmanager
def attached(image: Path, folder: Path, *, read_only: bool = True) -> Iterator["Disk"]:
    """The filesystem of an image, mounted on ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    mode = ["--read-only"] if read_only else []
    disk = Disk(_run("losetup", "--find", "--show", *mode, str(image)).strip(), folder, "ro" if read_only else "rw")
    try:
        _run("blockdev", "--setra", str(READAHEAD_BYTES // 512), disk.device)
        disk.mount()
        try:
            yield disk
        finally:
            disk.unmount()
    finally:
        _run("losetup", "--detach", disk.device)


@dataclass(frozen=True, slots=True)
class Disk:
    """A loop device, and where its filesystem is mounted."""

    device: str
    folder: Path
    mode: str

    def mount(self) -> None:
        _run("mount", "-o", self.mode, self.device, str(self.folder))

    def unmount(self) -> None:
        """A process that was killed may have a file open for a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(["umount", self.folder], check=False, capture_output=True).returncode:
            if time.monotonic() > deadline:
                subprocess.run(["umount", "--lazy", self.folder], check=False, capture_output=True)
                return
            time.sleep(0.05)

    def forget(self) -> None:
        """Drop all that the kernel has cached of it. No file may be open."""
        self.unmount()
        self.mount()


def _run(*words: str) -> str:
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{words[0]}: {error.stderr.strip()}") from None
