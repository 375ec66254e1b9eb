"""Which programs are not the job: those that copy, compare or index files want each file under its own name.

A backup of a redirected file has the bytes of another sample under its name, and takes a turn from the job. So the
programs named here get exact files. A program is known by its name, as `ps -o comm` shows it, which a thread's `status`
in /proc has. The kernel keeps 15 bytes of a name. Called from the node's task alone.

Not named: programs that a job itself may read with, such as cat and dd (`pipe:cat shard.tar`), and those that unpack.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from redoxfs.linux.pids import field_of, status_of

NAME_BYTES = 15
"""Of a program's name at the kernel."""

COPY = (
    *("cp", "mv", "install", "rsync", "scp", "sftp", "sftp-server", "tar", "bsdtar", "cpio", "pax", "zip"),
    *("7z", "7za", "7zr", "7zz", "rclone", "restic", "borg", "duplicity", "kopia", "rdiff-backup", "bup", "tarsnap"),
    *("casync", "unison", "syncthing", "lftp", "aws", "s5cmd", "s3cmd", "gsutil", "azcopy", "bacula-fd", "mksquashfs"),
    *("dcp", "dsync", "dtar", "dcmp", "bbcp"),
)
COMPARE = (
    *("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "b3sum", "cksum", "sum"),
    *("xxhsum", "xxh32sum", "xxh64sum", "xxh128sum", "md5deep", "sha256deep", "hashdeep", "rhash"),
    *("cmp", "diff", "fdupes", "jdupes", "rdfind", "fclones", "rmlint"),
)
SEARCH = (
    *("grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "ugrep", "file"),
    *("tracker-extract", "tracker-miner-fs", "localsearch-3", "localsearch-extractor-3"),
    *("baloo_file", "baloo_file_extractor", "recollindex", "updatedb", "tumblerd"),
    *("clamscan", "clamd", "aide", "tripwire"),
)
EXACT_FOR = frozenset({*COPY, *COMPARE, *SEARCH})
"""Programs that get exact files by default."""

IN_PYTHON = frozenset({"borg", "duplicity", "rdiff-backup", "bup", "aws", "s3cmd", "gsutil"})
"""Those that Python runs. Nothing else that Python runs is taken for a program by a name that it happens to have."""

ALL = "all"


class Programs:
    """The programs that get exact files.

    Args:
        more, fewer: names beside those of `EXACT_FOR`, of any program, and names that are not meant; `ALL` of these is
            all of `EXACT_FOR`.
        proc: the directory where the kernel lists threads.
    """

    def __init__(self, more: Iterable[str] = (), fewer: Iterable[str] = (), proc: Path = Path("/proc")) -> None:
        without = {_short(name) for name in fewer}
        asked = {_short(name) for name in more} - without
        self._names = asked if ALL in without else {_short(name) for name in EXACT_FOR} - without | asked
        self._run_by_python = {_short(name) for name in IN_PYTHON} | asked
        self._proc = proc

    def name_of(self, thread: int) -> str | None:
        """The name of the program that ``thread`` runs, if it gets exact files.

        None if it does not, or cannot be seen: it has ended, or /proc hides other users' processes.
        """
        try:
            process, status = self._process_of(thread)
            text = os.fsdecode(field_of(status, b"Name"))
        except (OSError, ValueError):
            return None
        if text not in self._names or (text not in self._run_by_python and self._is_python(process)):
            return None
        return text

    def session_of(self, thread: int) -> tuple[int, str] | None:
        """The number of the session of processes that ``thread`` is in, and the name of its program; or None."""
        try:
            _, status = self._process_of(thread)
            return int(field_of(status, b"NSsid").split()[0]), os.fsdecode(field_of(status, b"Name"))
        except (OSError, ValueError, IndexError):
            return None

    def _process_of(self, thread: int) -> tuple[int, bytes]:
        """The process of a thread, which may have a name of its own, and what /proc has of the process."""
        status = status_of(thread, self._proc)
        process = int(field_of(status, b"Tgid"))
        return process, status if process == thread else status_of(process, self._proc)

    def _is_python(self, process: int) -> bool:
        try:
            return os.path.basename(os.readlink(f"{self._proc}/{process}/exe")).startswith("python")
        except OSError:
            # Of another user.
            return False


def _short(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:NAME_BYTES])
