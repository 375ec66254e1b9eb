"""Copies of samples on a local disk. Mounts make them as they read slow storage, and read them in later epochs.

``segments``  the two files of a segment: bytes of files, and an index of checked batches
``folder``    DIR: a folder for each dataset, locks, sizes; listing and removing
``copies``    the samples that are in a dataset's segments, as a store
``writer``    writes samples after readers have got them
``store``     the chunk store that reads copies if there are any, and else the source
``check``     `redoxfs cache verify`
"""

from redoxfs.cache.check import verify
from redoxfs.cache.folder import CacheError, Entry, InUseError, Root, key_of
from redoxfs.cache.store import CacheStore

__all__ = ["CacheError", "CacheStore", "Entry", "InUseError", "Root", "key_of", "verify"]
