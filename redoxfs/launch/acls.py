"""Access control lists (POSIX.1e) of the source that close what modes open.

The kernel checks the modes of a mount, and redoxfs passes on no lists. A file with a list shows its mask as the mode of
its group, so a list may close to a group or to a user what the mode opens. A few files and directories are looked at,
as a warning alone depends on it.
"""

import os
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from redoxfs.dataset import Tree

NAME = "system.posix_acl_access"

LOOKED_AT = 64
"""Files, with the directories above them."""

USER, GROUP_OBJ, GROUP, MASK = 0x02, 0x04, 0x08, 0x10
"""Tags of entries, of the kernel's posix_acl_xattr.h."""

_HEAD, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_VERSION = 2

READ, SEARCH = 4, 1


@dataclass(frozen=True, slots=True)
class Acl:
    """The entries of a list: tag and permissions."""

    entries: tuple[tuple[int, int], ...]

    @staticmethod
    def of(value: bytes) -> "Acl | None":
        """From an extended attribute; None for one of another kind."""
        body = value[_HEAD.size :]
        if len(value) < _HEAD.size or _HEAD.unpack_from(value)[0] != _VERSION or len(body) % _ENTRY.size:
            return None
        return Acl(tuple((tag, bits) for tag, bits, _ in _ENTRY.iter_unpack(body)))

    def closes(self, mode: int, right: int) -> bool:
        """Whether somebody lacks ``right``, of three bits, whom a mode with the mask in place of the group gives it."""
        mask = next((bits for tag, bits in self.entries if tag == MASK), 7)
        for tag, bits in self.entries:
            lacks = not bits & mask & right
            if tag == GROUP_OBJ and lacks and mode >> 3 & right:
                return True
            # A user or a group that is named is one of the group, or of all others, by the mode.
            if tag in (USER, GROUP) and lacks and (mode | mode >> 3) & right:
                return True
        return False


def closed_by_a_list(root_fd: int, tree: Tree, entries: npt.NDArray[np.integer]) -> bytes | None:
    """The path of one of ``entries``, or of a directory above, whose list closes what its mode opens; None: none."""
    places = np.linspace(0, max(len(entries) - 1, 0), min(len(entries), LOOKED_AT)).astype(np.int64)
    looked: set[int] = set()
    for file in entries[places].tolist():
        entry = int(file)
        while entry not in looked:
            looked.add(entry)
            path = tree.path(entry)
            try:
                value = os.getxattr(b"/proc/self/fd/%d/%s" % (root_fd, path), NAME)
            except OSError:
                value = b""
            found = Acl.of(value)
            if found is not None and found.closes(int(tree.mode[entry]), SEARCH if tree.is_dir(entry) else READ):
                return path
            entry = int(tree.parent[entry])
    return None
