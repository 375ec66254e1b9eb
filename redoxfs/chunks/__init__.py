"""How samples lie in physical chunks, and how the bytes of a chunk are read.

``layout``     samples → (chunk, slot), chunk → virtual chunk: the aligned layout that keeps labels safe
``store``      what every place that chunks can be read from offers
``directory``  the store that reads the files where they lie
``storage``    what a read costs there
``beneath``    opening a file under a directory descriptor and never outside it
"""

from redoxfs.chunks.beneath import open_beneath
from redoxfs.chunks.directory import DirectoryStore
from redoxfs.chunks.layout import (
    Cells,
    Layout,
    MemoryTooSmallError,
    build_cells,
    build_layout,
    deal,
    fit,
    memory_for_share,
)
from redoxfs.chunks.measurement import measure_storage
from redoxfs.chunks.storage_speed import StorageSpeed
from redoxfs.chunks.store import ChunkStore, FileBytes, Payload, Read, SourceFile, Stamp

__all__ = [
    "Cells",
    "ChunkStore",
    "DirectoryStore",
    "FileBytes",
    "Layout",
    "MemoryTooSmallError",
    "Payload",
    "Read",
    "SourceFile",
    "Stamp",
    "StorageSpeed",
    "build_cells",
    "build_layout",
    "deal",
    "fit",
    "measure_storage",
    "memory_for_share",
    "open_beneath",
]
