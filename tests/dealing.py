"""The order in which several workers run the tests: none is left alone with long ones at the end.

xdist (`--dist worksteal`) gives each worker an equal number of tests in a row, and a worker that has run all of its own
takes the last half of what another has left. So each begins with files of its own from the upper tiers, whose fixtures
it then makes once, and what others take is quick.

Tests that mostly wait are not dealt apart. A simulation with what each test cost and waited ended a second sooner for
it with seven workers on two cores, and ten seconds sooner for the seventh worker.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")

QUICK = ("t0", "t1", "t2", "t3")

WHOLE = ("t1_native_sanitizers.py",)
"""Files of these tiers whose tests share what takes seconds to make: each worker that took some would make it anew."""


def dealt(items: Sequence[T], file_of: Callable[[T], str], workers: int) -> list[T]:
    """``items`` in another order, of which each worker gets an equal part."""
    files: dict[str, list[T]] = {}
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    quick: list[T] = []
    parts: list[list[T]] = [[] for _ in range(workers)]
    for name in sorted(files, key=lambda name: (name in WHOLE, name[:2]), reverse=True):
        part = quick if name.startswith(QUICK) and name not in WHOLE else min(parts, key=len)
        part += files[name]
    rest, left = iter(quick), len(items)
    for place, part in enumerate(parts):
        size = left // (workers - place)
        part += islice(rest, max(0, size - len(part)))
        left -= size
    return list(chain.from_iterable(parts))
