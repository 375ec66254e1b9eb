"""The values of `-o`: the mount options that mean something here, and what becomes of each.

The daemon's mount is always ro,nosuid,nodev. Options that ask for that, and those that only mean something to fstab
and mount(8), are accepted and dropped, so that a line from /etc/fstab works. All others are refused: an option that is
silently ignored surprises later, and some (max_read) would break the mount.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from redoxfs.launch.errors import UsageError

_OURS = "ours"
_PASSED = "passed to the kernel"
_IMPLIED = "always so"
_FSTAB = "for fstab and mount(8)"

_KNOWN = {
    "allow_other": _PASSED,
    "default_permissions": _PASSED,
    "direct_io": _OURS,
    "page_cache": _OURS,
    "noatime": _PASSED,
    "nodiratime": _PASSED,
    "noexec": _PASSED,
    "ro": _IMPLIED,
    "nosuid": _IMPLIED,
    "nodev": _IMPLIED,
    "exec": _IMPLIED,
    "relatime": _IMPLIED,
    "async": _IMPLIED,
    "defaults": _FSTAB,
    "auto": _FSTAB,
    "noauto": _FSTAB,
    "nofail": _FSTAB,
    "_netdev": _FSTAB,
}

# mount(8): "x-" options are for programs in user space and never reach a filesystem.
_FSTAB_PREFIXES = ("x-", "X-", "comment=")


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


def parse_fuse_options(values: Iterable[str]) -> FuseOptions:
    """The options of every `-o`, each a comma-separated list. Raises UsageError for an unknown one."""
    names = [name for value in values for name in (part.strip() for part in value.split(",")) if name]
    for name in names:
        if name == "rw":
            raise UsageError("-o rw: redoxfs is read-only; change the files in SOURCE itself")
        if name not in _KNOWN and not name.startswith(_FSTAB_PREFIXES):
            known = ", ".join(name for name, fate in _KNOWN.items() if fate is not _FSTAB)
            raise UsageError(f"-o {name}: not a mount option of redoxfs; known are {known}")
    kernel = {name for name in names if _KNOWN.get(name) is _PASSED}
    if "allow_other" in kernel:
        # Without it every user would read with the daemon's rights, whatever the modes of the files.
        kernel.add("default_permissions")
    if {"direct_io", "page_cache"} <= set(names):
        raise UsageError("-o direct_io and -o page_cache exclude each other")
    bypass = True if "direct_io" in names else False if "page_cache" in names else None
    return FuseOptions(frozenset(kernel), bypass)
