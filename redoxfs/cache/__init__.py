"""Copies of samples on a local disk, made from what mounts read from slow storage, and read instead of it.

``segments``  the two files of a segment: bytes of files, and an index of checked batches
``folder``    DIR: a folder for each dataset, locks, sizes, what `redoxfs cache` shows and removes
``copies``    the samples that are in a dataset's segments, as a store
``writer``    writes what was read, behind the readers
``store``     the chunk store that reads copies where they are, and else the source
``check``     `redoxfs cache verify`
"""

from redoxfs.cache.check import verify
from redoxfs.cache.folder import CacheError, Entry, InUseError, Root, key_of
from redoxfs.cache.store import CacheStore

__all__ = ["CacheError", "CacheStore", "Entry", "InUseError", "Root", "key_of", "verify"]
