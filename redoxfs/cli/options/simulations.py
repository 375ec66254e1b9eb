"""The options of `redoxfs simulate`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoliciesOptions:
    files: int = 1_280_000
    seed: int = 0
    json: bool = False
    classes: int = 1000
    skew: float = 0.0
    policy: str = "pool"
    resident: float = 0.1
    chunk_size: int = 64
    nodes: int = 1
