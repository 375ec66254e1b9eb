"""What can go wrong, as the person at the shell sees it: one line and one exit code.

`EXITS` is the only place that maps exceptions to codes, and `redoxfs --help` prints it. It names the exceptions of
other rooms by text: the module of a raised exception is imported already, so looking it up costs no import, and
`redoxfs --help` need not load numpy to know that a class table can be wrong.
"""

import errno
import os
import resource
import sys
from typing import NamedTuple

from redoxfs.launch.errors import UNEXPECTED, CommandError, ReportedError, UsageError
from redoxfs.launch.say import plain, print_error


class Exit(NamedTuple):
    """One exit code, its meaning for a script, and the exceptions that it stands for ("module:Name")."""

    code: int
    meaning: str
    raised_as: tuple[str, ...] = ()


_HERE = "redoxfs.launch.errors:"

# The shell's own convention for "ended by SIGINT".
INTERRUPTED = 130

# Likewise for SIGPIPE, which ends other programs there.
UNREAD = 141

EXITS = (
    Exit(0, "done"),
    Exit(
        UNEXPECTED,
        "unexpected: a bug, or the daemon (see its log) or a worker process ended on its own",
        (
            _HERE + "DaemonError",
            _HERE + "NoProcessError",
            "redoxfs.node:NoThreadError",
            "redoxfs.native.sources:NotBuiltError",
            "redoxfs.packed.workers:WorkerEndedError",
        ),
    ),
    Exit(2, "usage, or a bad value of an option", (_HERE + "UsageError",)),
    Exit(
        3,
        "SOURCE cannot be used: missing, not a directory, no permission, no files, or itself a redoxfs mount",
        (_HERE + "SourceUnusableError", "redoxfs.dataset.errors:SourceError"),
    ),
    Exit(
        4,
        "MOUNTPOINT cannot be used: missing, not a directory, inside SOURCE, already a redoxfs mount "
        "(mount), or not one (umount, status, stats, top); or DST or FILE cannot be used: it holds something else, or "
        "is full (pack, catalog export, state save, mount --state, report); or DIR of --cache cannot be used; or the "
        "output cannot be written (> FILE)",
        (
            _HERE + "MountpointError",
            "redoxfs.fs:OccupiedError",
            _HERE + "DestinationError",
            "redoxfs.packed.packing:PackError",
        ),
    ),
    Exit(
        5,
        "too little memory; the message has the amount needed",
        (_HERE + "TooLittleMemoryError", "redoxfs.chunks:MemoryTooSmallError"),
    ),
    Exit(
        6,
        "--classes, --samples or --groups cannot be applied to this SOURCE",
        ("redoxfs.dataset.errors:ClassesError",),
    ),
    Exit(
        7,
        "FUSE is missing or not permitted: /dev/fuse, fusermount3, allow_other; or no mount came (serve)",
        (_HERE + "FuseUnavailableError", "redoxfs.fs:MountError"),
    ),
    Exit(8, "still in use (umount, cache rm)", (_HERE + "StillInUseError",)),
    Exit(
        9,
        "a packed dataset, a catalog or a cache is damaged, or has another format version",
        (
            _HERE + "DamagedError",
            "redoxfs.packed.index:DamagedDatasetError",
            "redoxfs.dataset.catalog_file:DamagedCatalogError",
        ),
    ),
    Exit(
        10,
        "another node did not answer, or has another dataset or other options",
        ("redoxfs.node.cluster:JoinError",),
    ),
    Exit(11, "doctor found a problem"),
    Exit(INTERRUPTED, "interrupted", ("builtins:KeyboardInterrupt",)),
    Exit(UNREAD, "nobody reads the output any more (| head), and nothing else is wrong"),
)


def code_of(error: BaseException) -> int:
    """The exit code of an exception: that of the nearest of its classes in the table, else 1."""
    error = _explained(error)
    if isinstance(error, ReportedError):
        return error.code
    exit_ = _exit_of(error)
    return UNEXPECTED if exit_ is None else exit_.code


def line_of(error: BaseException) -> str:
    """One line for stderr, even if the error quotes file names with line breaks."""
    error = _explained(error)
    if isinstance(error, KeyboardInterrupt):
        return "redoxfs: interrupted"
    text = str(error) or type(error).__name__
    if _exit_of(error) is None and not isinstance(error, CommandError):
        text = f"unexpected {type(error).__name__}: {text} (REDOXFS_DEBUG=1 shows where)"
    return f"redoxfs: {plain(text)}"


def described(error: BaseException) -> tuple[int, str]:
    """The exit code of an exception, and its line without what it begins with."""
    return code_of(error), line_of(error).removeprefix("redoxfs: ")


def reported(error: BaseException) -> int:
    """The exit code of an exception, once stderr has its line."""
    if os.environ.get("REDOXFS_DEBUG") == "1":
        import traceback

        print_error("".join(traceback.format_exception(error)).rstrip("\n"))
    print_error(line_of(error))
    return code_of(error)


def table_text() -> str:
    """The table for `--help`."""
    return "\n".join(["exit codes:"] + [f"  {exit_.code:>3}  {exit_.meaning}" for exit_ in EXITS])


def _explained(error: BaseException) -> BaseException:
    """An error, or what it comes from if that is around the command: then it is no bug."""
    if not isinstance(error, OSError):
        return error
    if error.errno in _LIMITS:
        kind, what = _LIMITS[error.errno]
        most, _ = resource.getrlimit(kind)
        return error if most == resource.RLIM_INFINITY else UsageError(f"{what.format(most)}; raise that limit")
    if error.errno == errno.ENOENT:
        try:
            os.getcwd()
        except FileNotFoundError:
            return UsageError(
                "the current directory was removed, and with it what relative paths name; go to another one (cd), "
                "or give whole paths"
            )
    return error


_LIMITS = {
    errno.EMFILE: (resource.RLIMIT_NOFILE, "{:,} files may be open at once (ulimit -n), and more are needed"),
    errno.EFBIG: (
        resource.RLIMIT_FSIZE,
        "a file may have {:,} bytes (ulimit -f), and more are needed, for shared memory too",
    ),
}


def _exit_of(error: BaseException) -> Exit | None:
    """The row of the table that names an exception, or the nearest of its classes."""
    for kind in type(error).__mro__:
        for exit_ in EXITS:
            if any(_named(name) is kind for name in exit_.raised_as):
                return exit_
    return None


def _named(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None)
