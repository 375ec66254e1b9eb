"""How samples lie in physical chunks, and how the bytes of a chunk are read.

``layout``     samples → (chunk, slot), chunk → virtual chunk: the aligned layout that keeps labels safe
``store``      what every place that chunks can be read from offers
``directory``  the store that reads the files where they lie
``beneath``    opening a file under a directory descriptor and never outside it
"""

from redoxfs.chunks.beneath import open_beneath
from redoxfs.chunks.directory import DirectoryStore
from redoxfs.chunks.layout import Layout, MemoryTooSmallError, build_layout, memory_for_share
from redoxfs.chunks.store import ChunkStore, FileBytes, Read, Stamp

__all__ = [
    "ChunkStore",
    "DirectoryStore",
    "FileBytes",
    "Layout",
    "MemoryTooSmallError",
    "Read",
    "Stamp",
    "build_layout",
    "memory_for_share",
    "open_beneath",
]
