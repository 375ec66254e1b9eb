"""Defaults, limits and choices of options: all that a grammar needs to know of what its options are for."""

from typing import NamedTuple

# Slow storage answers within seconds, even a parallel filesystem under load; lost storage never does. A minute tells
# one from the other.
DEFAULT_TIMEOUT_S = 60.0

LONG_TIMEOUT_S = 600.0
"""For commands that make a daemon do what may take a minute or longer."""

# All nodes of a job start at once, but some wait for an image to be pulled or a disk to be mounted.
DEFAULT_JOIN_TIMEOUT_S = 300.0

# A peer answers in milliseconds unless its storage is slow. One that takes this long is better skipped.
DEFAULT_PEER_TIMEOUT_S = 10.0

# No storage that is well takes as long, not even under load.
DEFAULT_SLOW_OPEN_S = 10.0

# The paper's own choice of P (section 5).
DEFAULT_PREFETCH_WINDOW = 6000

# IANA has not assigned this port.
DEFAULT_PORT = 7420

# Nodes are numbered in seven bits.
MOST_NODES = 127


class PolicyTraits(NamedTuple):
    """What a mount must know of a policy before there is a plan (`redoxfs.node.PLANNERS` makes it).

    ``streams``       any samples of a class do: chunks are the smallest that read well, archives are read as they lie,
                      and nodes may exchange samples or have storage of their own
    ``draws``         it can serve a sampler
    ``needs_order``   it prefetches by the orders of samplers
    ``reads_some``    with memory for a part of the samples, an epoch reads a part: `inspect` tells how much
    """

    streams: bool = False
    draws: bool = False
    needs_order: bool = False
    reads_some: bool = False


POLICIES = {"pool": PolicyTraits(streams=True, draws=True, reads_some=True), "slot": PolicyTraits(needs_order=True)}
"""The policies by their names in --policy."""

STORAGES = ("shared", "local")
ARCHIVE_LAYOUTS = ("auto", "tree", "folders", "none")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
