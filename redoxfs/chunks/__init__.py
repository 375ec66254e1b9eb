"""The layout of samples in physical chunks, and the stores that read a chunk's bytes.

``layout``         samples → (chunk, slot), chunk → virtual chunk: the aligned layout that keeps labels right
``store``          the interface of every chunk store
``directory``      the store that reads files in place
``storage_speed``  what a read costs
``measurement``    measures what a read costs
``beneath``        opens a file under a directory descriptor and never outside it
"""

from redoxfs.chunks.directory import DirectoryStore
from redoxfs.chunks.layout import (
    Cells,
    Layout,
    MemoryTooSmallError,
    build_cells,
    deal,
    divisors,
    fit,
    memory_for_share,
)
from redoxfs.chunks.measurement import measure_storage
from redoxfs.chunks.storage_speed import UNKNOWN_SPEED, StorageSpeed, even_bytes, speed_of_reads
from redoxfs.chunks.store import BackgroundRead, ChunkStore, FileBytes, NativeRead, Payload, Read, SourceFile, Stamp
from redoxfs.linux.beneath import open_beneath

__all__ = [
    "UNKNOWN_SPEED",
    "BackgroundRead",
    "Cells",
    "ChunkStore",
    "DirectoryStore",
    "FileBytes",
    "Layout",
    "MemoryTooSmallError",
    "NativeRead",
    "Payload",
    "Read",
    "SourceFile",
    "Stamp",
    "StorageSpeed",
    "build_cells",
    "deal",
    "divisors",
    "even_bytes",
    "fit",
    "measure_storage",
    "memory_for_share",
    "open_beneath",
    "speed_of_reads",
]
