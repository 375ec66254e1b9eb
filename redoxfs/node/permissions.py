"""Owners and modes of files that are not those of the scan any more, as far as reads have shown.

With -o allow_other the kernel checks the mode that a file had at the scan, and the bytes are those of now. So a store
that guards (`redoxfs.chunks.DirectoryStore`, and that of archives) compares the two at each read and gives out no bytes
that fewer users may read. What it saw is noted here, and the kernel is told. Used from the node's task alone.
"""

from collections.abc import Callable

from redoxfs.chunks.store import Access
from redoxfs.dataset import Tree


class Permissions:
    """``told`` is called with an entry whose owner or mode has changed. ``now`` has these, by entry."""

    def __init__(self, tree: Tree, told: Callable[[int], None]) -> None:
        self._mode: memoryview[int] = tree.mode.data
        self._uid: memoryview[int] = tree.uid.data
        self._gid: memoryview[int] = tree.gid.data
        self._told = told
        self.now: dict[int, Access] = {}

    def of(self, entry: int) -> Access:
        """What is known of a file, and what the kernel checks."""
        return self.now.get(entry) or self._scanned(entry)

    def saw(self, entry: int, access: Access) -> None:
        """A read has shown ``access``."""
        if access == self.of(entry):
            return
        if access == self._scanned(entry):
            del self.now[entry]
        else:
            self.now[entry] = access
        self._told(entry)

    def saw_as_scanned(self, entry: int) -> None:
        """A read found no fewer readers than at the scan."""
        if self.now.pop(entry, None) is not None:
            self._told(entry)

    def _scanned(self, entry: int) -> Access:
        return Access(self._mode[entry] & 0o7777, self._uid[entry], self._gid[entry])
