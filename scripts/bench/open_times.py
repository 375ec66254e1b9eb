"""What the time of each open costs: a look at the clock at its receipt, and a count in a histogram after its reply.

    python scripts/bench/open_times.py

Prints ns for each open. An open takes some 40 us, of which 1 % are 400 ns.
"""

import time
import timeit

from redoxfs.fs.open_times import OpenTimes
from redoxfs.telemetry import Outcome

TIMES, REPEATS = 1_000_000, 5


def best_ns(statement: str, **names: object) -> float:
    """The time of a statement, without that of the loop."""
    return (_best_ns(statement, names) - _best_ns("pass", {})) / TIMES


def _best_ns(statement: str, names: dict[str, object]) -> float:
    return 1e9 * min(timeit.repeat(statement, globals=names, number=TIMES, repeat=REPEATS))


if __name__ == "__main__":
    opens = OpenTimes().opens
    counted = "done(outcome, ns, 4711, 1234, 99, 0)"
    names = {"done": opens.done, "outcome": Outcome.RESIDENT, "ns": time.monotonic_ns()}
    done = best_ns(counted, **names)
    opens.start()
    read = best_ns(counted, **names)
    opens.stop()
    # In C it costs no call of Python's, so this is an upper bound.
    receipt = best_ns("clock()", clock=time.monotonic_ns)
    print(f"count {done:.0f} ns, look at the clock {receipt:.0f} ns at most: {done + receipt:.0f} ns for each open")
    print(f"record for readers of the access log: {read - done:.0f} ns more, before a line is made")
