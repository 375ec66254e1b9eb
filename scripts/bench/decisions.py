"""What a decision of the core costs: CPU time for each request and memory for each sample, under both policies.

    scripts/bench/decisions.py [--samples 13000000] [--classes 21000] [--chunk-size 64] [--resident 10%]
                               [--requests 1000000] [--policy slot] [--policy pool] [--json FILE]

It uses no data and no mount. The classes have one size, the chunks are aligned with them, memory holds --resident of
the samples, and the requests come in random order, epoch after epoch. The pool keeps passes, and retains what a mount
with so much memory would. It needs no root.

How to read the result:

- "us per decision" is CPU time over all requests. It includes the choice of what to load, and begins with empty memory.
- "longest decision ms" is wall time, since every reader waits for it.
- "state bytes per sample" is what a policy allocates, without the arrays that it is given.

Aims at the default size: 20 µs a decision, 16 bytes a sample.
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable

import mounts
import numpy as np
import numpy.typing as npt
from results import options_of, tell

from redoxfs.chunks import build_cells, fit, memory_for_share
from redoxfs.protocol import Policy, PoolPolicy, SlotPolicy, retained_bytes_for

SAMPLE_BYTES = 100_000
"""All samples have one size, so that a share of the samples is the same share of the bytes."""

POLICIES = ("slot", "pool")

Makers = dict[str, Callable[[], Policy]]


def share(text: str) -> float:
    """Parse a share: 10% or 0.1."""
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share of the samples, such as 10%")
    return value


def makers_of(samples: int, classes: int, chunk_size: int, resident: float) -> Makers:
    """A function for each policy that makes it, on the same chunks."""
    class_of = (np.arange(samples) * classes // samples).astype(np.int32)
    sizes = np.full(samples, SAMPLE_BYTES, np.int64)
    cells = build_cells(class_of, sizes, chunk_size=chunk_size, seed=0)

    def slot() -> Policy:
        layout = fit(cells, sizes, memory_for_share(cells, sizes, resident))
        return SlotPolicy(layout.cells, layout.vc_start, samples=samples, seed=0)

    def pool() -> Policy:
        capacity_bytes = int(resident * samples) * SAMPLE_BYTES
        retained_bytes = retained_bytes_for(class_of, sizes, chunk_size, capacity_bytes)
        policy = PoolPolicy(
            cells.cells, class_of, sizes, capacity_bytes=capacity_bytes, retained_bytes=retained_bytes, seed=0
        )
        policy.keep_passes(np.zeros(samples, np.int8), 1)
        return policy

    return {"slot": slot, "pool": pool}


def measure(make: Callable[[], Policy], samples: int, requests: int) -> dict[str, float]:
    began = time.process_time()
    make()
    built_s = time.process_time() - began
    gc.collect()
    tracemalloc.start()
    policy = make()
    gc.collect()
    state_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    loads = demanded = read = 0
    cpu_s = longest_s = 0.0
    for order in orders(samples, requests):
        began = time.process_time()
        for sample in order:
            before = time.perf_counter()
            served = policy.request(sample)
            longest_s = max(longest_s, time.perf_counter() - before)
            if served.loads:
                loads += len(served.loads)
                demanded += served.is_demanded
                read += sum([len(load.samples) for load in served.loads])
        cpu_s += time.process_time() - began
    return {
        "built_s": built_s,
        "us_per_decision": cpu_s / requests * 1e6,
        "longest_decision_ms": longest_s * 1e3,
        "state_bytes_per_sample": state_bytes / samples,
        "samples_per_load": read / max(1, loads),
        "demand_load_share": demanded / requests,
    }


def orders(samples: int, requests: int) -> list[list[int]]:
    """Requests for each epoch: a random order of all samples. The last epoch may be cut short."""
    random = np.random.default_rng(1)
    left = requests
    found = []
    while left > 0:
        epoch: npt.NDArray[np.integer] = random.permutation(samples)[:left]
        found.append(epoch.tolist())
        left -= samples
    return found


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--samples", type=int, default=13_000_000)
    parser.add_argument("--classes", type=int, default=21_000)
    parser.add_argument("--chunk-size", type=int, default=64)
    parser.add_argument("--resident", type=share, default=0.1, help="share of the samples that memory holds")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--policy", action="append", choices=POLICIES, help="may be repeated (default: both)")
    arguments = parser.parse_args()
    makers = makers_of(arguments.samples, arguments.classes, arguments.chunk_size, arguments.resident)
    result = {
        "machine": mounts.machine(),
        "samples": arguments.samples,
        "classes": arguments.classes,
        "chunk_size": arguments.chunk_size,
        "resident": arguments.resident,
        "requests": arguments.requests,
        "rows": [
            {"policy": name, **measure(makers[name], arguments.samples, arguments.requests)}
            for name in POLICIES
            if name in (arguments.policy or POLICIES)
        ],
    }
    tell(result, arguments.json, *result["rows"][0])


if __name__ == "__main__":
    main()
