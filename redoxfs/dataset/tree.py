"""The source directory as arrays: every directory, regular file and symlink of a scan.

Invariants:

- Entry 0 is the root. Entries are in breadth-first order, so the children of a directory are one contiguous
  range, sorted by the bytes of their names, and `parent` never decreases.
- Names are bytes from the kernel and need not be UTF-8.
- A tree never changes. Any thread may read it.

There is no object per entry. Columns take about 100 bytes an entry, also for 13 million entries; they can be
memory-mapped, and a question about all entries is one numpy expression. A dict of paths would take ten times the
memory and would have to be rebuilt at each mount.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# The kernel follows this many symlinks in one path resolution (MAXSYMLINKS) before it returns ELOOP.
MAX_LINKS_FOLLOWED = 40
# The mount's control folder has this name, so an entry of this name in the source is hidden.
CONTROL_NAME = b".redoxfs"


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All N entries of a source directory, in columns.

    Times are nanoseconds since 1970, sizes bytes. `first_child` and `children` are 0 except for directories.
    `extension` indexes `extensions`: the last suffix of a name with its dot, in lower case, b"" for none. `link_entry`
    lists the L symlinks by entry, ascending; their targets are in a blob of their own. `link_device` and `link_inode`
    identify the file at the end of each (0, 0 if there is none). `roots` are the absolute paths of the root, so that
    an absolute symlink back into it is recognized.
    """

    names: NDArray[np.uint8]
    name_at: NDArray[np.int64]  # [N + 1]
    parent: NDArray[np.int32]  # [N]; the root is its own parent
    first_child: NDArray[np.int32]
    children: NDArray[np.int32]
    mode: NDArray[np.uint32]
    uid: NDArray[np.uint32]
    gid: NDArray[np.uint32]
    nlink: NDArray[np.uint32]
    size: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    ctime_ns: NDArray[np.int64]
    inode: NDArray[np.uint64]
    device: NDArray[np.uint64]
    extension: NDArray[np.int32]
    link_entry: NDArray[np.int32]  # [L]
    link_names: NDArray[np.uint8]
    link_at: NDArray[np.int64]  # [L + 1]
    link_device: NDArray[np.uint64]
    link_inode: NDArray[np.uint64]
    extensions: tuple[bytes, ...]
    roots: tuple[bytes, ...]
    skipped: int  # sockets, fifos and devices, which are not in the tree
    control_left_out: int = 0  # 1 where the root has an entry called CONTROL_NAME, which is not in the tree either

    def __len__(self) -> int:
        return len(self.parent)

    def name(self, entry: int) -> bytes:
        """The entry's own name; b"" for the root."""
        return self.names[self.name_at[entry] : self.name_at[entry + 1]].tobytes()

    def path(self, entry: int) -> bytes:
        """The entry's path relative to the root; b"" for the root itself."""
        parts = []
        while entry != 0:
            parts.append(self.name(entry))
            entry = int(self.parent[entry])
        return b"/".join(reversed(parts))

    def children_of(self, directory: int) -> range:
        """The entries in a directory, sorted by name; empty for anything else."""
        first = int(self.first_child[directory])
        return range(first, first + int(self.children[directory]))

    def names_of(self, entries: range) -> list[bytes]:
        """The names of a contiguous range of entries, such as `children_of` returns, with one copy for all."""
        offsets = self.name_at[entries.start : entries.stop + 1].tolist()
        blob = self.names[offsets[0] : offsets[-1]].tobytes()
        base = offsets[0]
        return [blob[a - base : b - base] for a, b in pairwise(offsets)]

    def lookup(self, parent: int, name: bytes) -> int:
        """The entry called `name` in the directory `parent`, or -1."""
        candidates = self.children_of(parent)
        names, name_at = self.names.data, self.name_at.data

        def name_of(entry: int) -> bytes:
            return bytes(names[name_at[entry] : name_at[entry + 1]])

        at = bisect_left(candidates, name, key=name_of)
        if at < len(candidates) and name_of(candidates[at]) == name:
            return candidates[at]
        return -1

    def find(self, path: bytes) -> int:
        """The entry at `path` relative to the root, or -1. Does not follow symlinks and does not know ".."."""
        entry = 0
        for part in path.split(b"/"):
            if part in (b"", b"."):
                continue
            entry = self.lookup(entry, part)
            if entry < 0:
                return -1
        return entry

    def is_dir(self, entry: int) -> bool:
        return stat.S_ISDIR(int(self.mode[entry]))

    def is_file(self, entry: int) -> bool:
        return stat.S_ISREG(int(self.mode[entry]))

    def is_link(self, entry: int) -> bool:
        return stat.S_ISLNK(int(self.mode[entry]))

    def kind_mask(self, kind: int) -> NDArray[np.bool_]:
        """Which entries are of a kind of the stat module (S_IFDIR, S_IFREG, S_IFLNK): bool[N]."""
        return (self.mode & np.uint32(0o170000)) == np.uint32(kind)

    def link_target(self, entry: int) -> bytes:
        """The text of the symlink `entry`. KeyError if the entry is not a symlink."""
        at = int(np.searchsorted(self.link_entry, entry))
        if at == len(self.link_entry) or int(self.link_entry[at]) != entry:
            raise KeyError(entry)
        return self.link_names[self.link_at[at] : self.link_at[at + 1]].tobytes()

    def resolve(self, entry: int) -> int:
        """The entry at the end of a chain of symlinks from `entry`, from the arrays alone.

        Follows symlinked directories on the way. -1 if the chain leaves the tree, dangles or loops. Returns an entry
        that is not a symlink unchanged.
        """
        if not self.is_link(entry):
            return entry
        at, todo = int(self.parent[entry]), [self.name(entry)]
        followed = 0
        while todo:
            part = todo.pop()
            if part == b"..":
                if not self.is_dir(at):
                    return -1
                if at == 0:
                    # Above the root. The path may come back in by the root's own name.
                    above = self.roots[0].split(b"/")[:-1] if self.roots else []
                    todo += [piece for piece in reversed(above) if piece]
                    if not self._enter_root(todo):
                        return -1
                else:
                    at = int(self.parent[at])
                continue
            if not self.is_dir(at):
                return -1
            step = self.lookup(at, part)
            if step < 0:
                return -1
            if not self.is_link(step):
                at = step
                continue
            followed += 1
            if followed > MAX_LINKS_FOLLOWED:
                return -1
            target = self.link_target(step)
            todo += [piece for piece in reversed(target.split(b"/")) if piece not in (b"", b".")]
            if target.startswith(b"/"):
                if not self._enter_root(todo):
                    return -1
                at = 0
        return at

    def _enter_root(self, todo: list[bytes]) -> bool:
        """Remove one of the root's absolute paths from the end of `todo` (components, next one last).

        Returns False if none fits.

        Components ".." above the root are folded as text, because those directories are not in the tree.
        """
        ahead: list[bytes] = []
        rest = todo[:]
        wanted = [[piece for piece in root.split(b"/") if piece] for root in self.roots]
        while True:
            if ahead in wanted:
                todo[:] = rest
                return True
            if not rest:
                return False
            part = rest.pop()
            if part == b"..":
                ahead = ahead[:-1]
            else:
                ahead.append(part)
