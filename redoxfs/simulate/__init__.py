"""The protocol core at the paper's scale and beyond, without data: what a policy would read, wait for and send.

`redoxfs.protocol` makes all decisions, in layouts of `redoxfs.chunks.layout`. This package generates datasets and
orders of access, drives the core through epochs, and counts. The paper's tables are in `scripts/research/`.

``policies``  loads, waits and messages for any dataset, memory and number of nodes
``cluster``   the drivers: one node or several, in step; ``pool_cluster`` for the pool
``classes``, ``orders``  generated datasets and jobs
"""
