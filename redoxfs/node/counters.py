"""The counters of a node, since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Plain sums. `redoxfs.telemetry` declares each for users.

    ``opens`` = ``redirected`` + ``exact`` + those that failed, which ``errors`` counts along with failed reads. An open
    or a read counts when its answer is known: one that waits as this process ends is for the next, which counts it.
    """

    opens: int = 0
    redirected: int = 0
    exact: int = 0
    copied: int = 0
    joined: int = 0
    chunk_loads: int = 0
    samples_loaded: int = 0
    samples_reread: int = 0
    bytes_read: int = 0
    bytes_served: int = 0
    demand_loads: int = 0
    in_flight_waits: int = 0
    reservations_taken: int = 0
    remote_requests: int = 0
    remote_samples: int = 0
    degraded: int = 0
    errors: int = 0
