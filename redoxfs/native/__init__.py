"""The C half of redoxfs: it moves bytes and decides nothing.

- `Session` owns the FUSE descriptor. It answers by itself what needs no decision, and hands everything else over as
  events, in the order of the requests.
- `Reader` is a pool of threads that carry out described reads: files under a directory (`Files`), and ranges of packed
  shards (`Shards`).
- `Buffer` holds the bytes of one file.
- `Shared` is memory that outlives a daemon, and from which the next one goes on.
- `Sections` moves samples between the sections of the pool's queues.
- `Histogram` counts how long something took. `Opens` also records opens while somebody reads the records.
- `scan_directories` reads directories for a scan, and `index_archives` the headers of tar archives.

The core of each is plain C without Python (buffer.c, tree.c, reader.c, session.c), so that sanitizers and fuzzers run
it alone; py_*.c are the types around it.
"""

from redoxfs.native import sources

try:
    import redoxfs.native._native as _native
except ImportError as _error:
    raise sources.not_loaded(_error) from _error
sources.check(getattr(_native, "SOURCES", ""), sources.sums())

# After the check: an older extension may lack some of these.
from redoxfs.native._native import (  # noqa: E402
    EVENTS_AT_ONCE,
    INIT,
    INTERRUPT,
    LOG_POLL,
    LOG_READ,
    LOG_RELEASE,
    LOG_TRY,
    OPEN,
    READ,
    RELEASE,
    STAT,
    Buffer,
    Files,
    Histogram,
    Opens,
    Reader,
    Sections,
    Session,
    Shards,
    Shared,
    Tree,
    index_archives,
    scan_directories,
)

__all__ = [
    "EVENTS_AT_ONCE",
    "INIT",
    "INTERRUPT",
    "LOG_POLL",
    "LOG_READ",
    "LOG_RELEASE",
    "LOG_TRY",
    "OPEN",
    "READ",
    "RELEASE",
    "STAT",
    "Buffer",
    "Files",
    "Histogram",
    "Opens",
    "Reader",
    "Sections",
    "Session",
    "Shards",
    "Shared",
    "Tree",
    "index_archives",
    "scan_directories",
]
