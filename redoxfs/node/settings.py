"""What a node is told at its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``memory_bytes`` for all samples in memory; ``timeout_s`` is the deadline of every wait for storage."""

    memory_bytes: int
    chunk_size: int
    seed: int
    timeout_s: float
    policy: str = "slot"
