"""The values of `-o`: the mount options that mean something here, and what becomes of each.

The daemon's mount is always ro,nosuid,nodev. Options that ask for that, and those that only mean something to fstab,
mount(8) or a filesystem that is written to, are accepted and dropped, so that a line from /etc/fstab works. All others
are refused: an option that is silently ignored surprises later, and some (max_read) would break the mount.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from redoxfs.launch.errors import UsageError

_PASSED = frozenset({"allow_other", "default_permissions", "noatime", "nodiratime", "noexec"})
"""To the kernel."""

_NAMED = (
    *("allow_other", "default_permissions", "direct_io", "page_cache", "noatime", "nodiratime", "noexec"),
    *("ro", "nosuid", "nodev", "exec", "relatime", "async"),
)
"""To whoever gives an unknown one. Those in the second line are always so."""

_DROPPED = frozenset(
    {
        *("atime", "diratime", "norelatime", "strictatime", "nostrictatime"),
        *("lazytime", "nolazytime", "sync", "dirsync", "silent", "loud"),
        *("defaults", "auto", "noauto", "nofail", "_netdev"),
        *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
    }
)
"""They are for a filesystem that is written to, or for fstab and mount(8)."""

# mount(8): "x-" options are for programs in user space and never reach a filesystem.
_FSTAB_PREFIXES = ("x-", "X-", "comment=", "user=")

# The labels of SELinux. mount(8) passes them on where the kernel has it.
_PASSED_PREFIXES = ("context=", "fscontext=", "defcontext=", "rootcontext=")

# As mount(8) splits: at a comma that is neither in double quotes nor behind a backslash.
_PART = re.compile(r'(?:\\.|"(?:\\.|[^"\\])*"|[^,"\\])+', re.DOTALL)
_ESCAPED = re.compile(r'\\([,"])|"')


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """Options for the kernel's mount, and whether opens bypass the page cache; None: as programs read."""

    kernel: frozenset[str]
    bypass: bool | None

    @property
    def options(self) -> frozenset[str]:
        """All of them by their names."""
        ours = {None: set[str](), True: {"direct_io"}, False: {"page_cache"}}
        return self.kernel | ours[self.bypass]


def split_options(text: str) -> list[str]:
    """The options of a comma-separated list, with their quotes. Raises UsageError if a quote is not closed."""
    parts = _PART.findall(text)
    if sum(map(len, parts)) + text.count(",") - sum(part.count(",") for part in parts) != len(text):
        raise UsageError(f"-o {text}: a quote is not closed")
    return [part for part in map(str.strip, parts) if part]


def unquoted(text: str) -> str:
    """The value of an option, without quotes, and without the backslash of a comma or a quote."""
    return _ESCAPED.sub(lambda found: found[1] or "", text)


def is_known(option: str) -> bool:
    """Whether `-o` takes an option."""
    return option in _NAMED or option in _DROPPED or option.startswith(_FSTAB_PREFIXES + _PASSED_PREFIXES)


def parse_fuse_options(values: Iterable[str]) -> FuseOptions:
    """The options of every `-o`, each a comma-separated list. Raises UsageError for an unknown one."""
    names = [name for value in values for name in split_options(value)]
    for name in names:
        if name == "rw":
            raise UsageError("-o rw: redoxfs is read-only; change the files in SOURCE itself")
        if not is_known(name):
            raise UsageError(f"-o {name}: not a mount option of redoxfs; known are {', '.join(_NAMED)}")
    kernel = {name for name in names if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    if "allow_other" in kernel:
        # Without it every user would read with the daemon's rights, whatever the modes of the files.
        kernel.add("default_permissions")
    if {"direct_io", "page_cache"} <= set(names):
        raise UsageError("-o direct_io and -o page_cache exclude each other")
    bypass = True if "direct_io" in names else False if "page_cache" in names else None
    return FuseOptions(frozenset(kernel), bypass)
