"""The orders in which simulated jobs ask for samples, one per epoch and node."""

import numpy as np

from redoxfs.arrays import Int32


def orders(samples: int, nodes: int, *, seed: int, epoch: int) -> list[Int32]:
    """int32[samples / nodes] for each node: a random permutation, dealt in turn as by DistributedSampler.

    Where ``nodes`` does not divide it, the permutation continues from its start, so that all have equally many. The
    numbers are numpy's, not torch's: only their randomness matters here.
    """
    whole = np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)
    whole = np.resize(whole, samples + -samples % nodes)
    return [np.ascontiguousarray(whole[node::nodes]) for node in range(nodes)]
