"""The value of `-o`: which mount options mean something here, and what becomes of each.

One table says it. The daemon's mount is always ro,nosuid,nodev; options that ask for what it does anyway, and
those that only mean something to fstab and mount(8), are taken and dropped, so that a line from /etc/fstab
works. All else is refused: an option that does nothing in silence is a surprise kept for later, and some
(max_read) would break the mount.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from redoxfs.launch.errors import UsageError

_OURS = "ours"
_PASSED = "passed to the kernel"
_IMPLIED = "so anyway"
_FSTAB = "for fstab and mount(8)"

_KNOWN = {
    "allow_other": _PASSED,
    "default_permissions": _PASSED,
    "direct_io": _OURS,
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
class MountOptions:
    """What `-o` came to: options for the kernel's mount, and whether files open with direct_io."""

    kernel: frozenset[str]
    direct_io: bool


def parse_mount_options(values: Iterable[str]) -> MountOptions:
    """The options of every `-o` given, each a list with commas. Raises UsageError for an unknown one."""
    names = [name for value in values for name in (part.strip() for part in value.split(",")) if name]
    for name in names:
        if name == "rw":
            raise UsageError("-o rw: redoxfs is read-only; change the files in SOURCE itself")
        if name not in _KNOWN and not name.startswith(_FSTAB_PREFIXES):
            known = ", ".join(name for name, fate in _KNOWN.items() if fate is not _FSTAB)
            raise UsageError(f"-o {name}: no such mount option here; known are {known}")
    kernel = {name for name in names if _KNOWN.get(name) is _PASSED}
    if "allow_other" in kernel:
        # Without it every user would read with the daemon's rights, whatever the modes of the files say.
        kernel.add("default_permissions")
    return MountOptions(frozenset(kernel), "direct_io" in names)
