"""Chooses for each open whether reads go through the page cache.

A training program reads a small file with one or two reads. Those cost less without the page cache: the kernel
allocates no pages, and nothing has to drop them afterwards. If a program reads in small pieces, the page cache is
better: its readahead makes one request of many. So the choice follows what programs do. The session counts the reads of
each file that is opened without the page cache.

A large file is always read through the page cache, because the kernel then reads ahead.
"""

MOST_BYTES = 1 << 20
"""The size of the largest file that one read returns whole."""

MOST_READS = 3
"""Reads of a file, on average, above which the page cache pays. `open().read()` needs two, of which the second finds
the end of the file. A further read costs about a third of what the page cache costs."""

WINDOW = 64
"""Files that decide together."""

BETWEEN_PROBES = 64
"""While the page cache pays, one open of so many goes without it, since only then are the reads of a program seen."""


class PageCache:
    """The choice, for one mount.

    Args:
        bypass: always, or never; None: as programs read.
    """

    def __init__(self, bypass: bool | None = None) -> None:
        self._fixed: bool | None = bypass
        self._bypass = True
        self._opens = 0
        self._files = 0
        self._reads = 0

    def cannot_map(self) -> None:
        """The kernel has no shared mmap of files that bypass the page cache (before Linux 6.6)."""
        if self._fixed is None:
            self._fixed = False

    def shares(self, size: int, differs: bool = False) -> bool:
        """Whether the reads of an open file of ``size`` bytes go through the page cache; -1: an exact file.

        ``differs``: other programs may open the same path as another file meanwhile. The kernel has one set of pages
        for both.
        """
        if self._fixed is not None:
            return not self._fixed
        if differs:
            return False
        if not 0 <= size <= MOST_BYTES:
            return True
        if self._bypass:
            return False
        self._opens += 1
        return self._opens % BETWEEN_PROBES != 0

    def closed(self, reads: int) -> None:
        """A file was read ``reads`` times without the page cache, and is closed; 0: it was not."""
        if reads:
            self._files += 1
            self._reads += reads
            if self._files == WINDOW:
                self._bypass = self._reads <= MOST_READS * WINDOW
                self._files = self._reads = 0
