"""The protocol core at the paper's scale and beyond, without data: what a policy would read, wait for and send.

`redoxfs.protocol` makes all decisions, in layouts of `redoxfs.chunks.layout`. This package generates datasets and
orders of access, drives the core through epochs, and counts.

``breakdown``      the paper's table of what each optimization brings (§5.3)
``policies``       loads, waits and messages for any dataset, memory and number of nodes
``chunk_size``     loads, bytes and time over the chunk size (§5.5)
``remote_memory``  what prefetching uses and saves, over the limit of remote memory (§5.4)
``randomness``     the bound of §4, and measured shuffle quality (`redoxfs.telemetry.quality`)
``related``        other systems as access policies, beside slot and pool
``plots``          pictures of three of them
``cluster``        the drivers: one node or several, in step; ``pool_cluster`` for the pool
``plain``          the paper's data organization; ``classes``, ``orders``: generated datasets and jobs
"""
