"""Defaults, limits and choices of options: all that a grammar needs to know of what its options are for."""

# Slow storage answers within seconds, even a parallel filesystem under load; lost storage never does. A minute tells
# one from the other.
DEFAULT_TIMEOUT_S = 60.0

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

POLICIES = ("pool", "slot")
STORAGES = ("shared", "local")
ARCHIVE_LAYOUTS = ("auto", "tree", "folders", "none")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
