"""Times of files, as the catalog has them: in nanoseconds, in 64 bits.

A time that these cannot express (before 1677, after 2262) is the nearest that they can. Some servers and broken clocks
have such times. native/times.h does the same.
"""

import os

LEAST_NS, MOST_NS = -(2**63), 2**63 - 1


def mtime_ns(found: os.stat_result) -> int:
    return min(max(found.st_mtime_ns, LEAST_NS), MOST_NS)


def ctime_ns(found: os.stat_result) -> int:
    return min(max(found.st_ctime_ns, LEAST_NS), MOST_NS)
