"""The packed form of a dataset: plain tar shards in the order of the chunks, and an index.

``headers``    the tar header of a tree entry, which depends on the tree alone
``positions``  the shard and offset of each entry
``index``      the folder on disk: its arrays and its manifest, checked before use
``shard``      writes one shard, and checks one
``packing``    `redoxfs pack`: all shards, on all cores, resumable
``verifying``  `redoxfs verify`
``workers``    spreads shards over processes
``sharded``    what every store of shards has in common
``store``      the chunk store that reads shards in a folder

Tar archives that somebody else wrote are served by the same means, without checksums:

``archives``          reads their headers
``archive_cache``     keeps what was read
``archive_sets``      which of them belong together, by their names
``archive_tree``      the tree of their members
``archive_contents``  the contents of short members
``archive_samples``   the samples, which are kept too
``archive_store``     the chunks, and the chunk store
"""

from typing import TYPE_CHECKING

from redoxfs.late import names_of

if TYPE_CHECKING:
    from redoxfs.packed.index import MANIFEST, DamagedDatasetError, Index, is_packed, load_index, shards_at
    from redoxfs.packed.packing import PackError, pack
    from redoxfs.packed.store import PackedStore
    from redoxfs.packed.verifying import verify
else:
    __getattr__ = names_of(
        __name__,
        index="MANIFEST DamagedDatasetError Index is_packed load_index shards_at",
        packing="PackError pack",
        store="PackedStore",
        verifying="verify",
    )

__all__ = [
    "MANIFEST",
    "DamagedDatasetError",
    "Index",
    "PackError",
    "PackedStore",
    "is_packed",
    "load_index",
    "pack",
    "shards_at",
    "verify",
]
