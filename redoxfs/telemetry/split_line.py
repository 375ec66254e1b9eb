"""What people are told of a job that keeps a set of paths apart (`redoxfs.telemetry.split_watch`)."""

from collections.abc import Iterator, Mapping
from typing import Any

HINT = (
    "if they are splits that the script makes, give each a directory, or a table with a column split; "
    "or mount with --classes sampler"
)


def split_line(tree: str, paths: int, samples: int) -> str:
    """One line: about ``paths`` of the ``samples`` paths of ``tree`` come apart from the others."""
    of = "the whole tree" if tree in (".", "") else tree
    about = f"about {paths:,} of {samples:,} come apart in each epoch"
    return f"the job reads two sets of paths of {of}; samples cross them ({about})"


def split_lines(stats: Mapping[str, Any]) -> Iterator[str]:
    """A line for each tree of stats.json of which a set comes apart."""
    laps = stats.get("laps") or {}
    for tree, paths in (stats.get("split_paths") or {}).items():
        if paths and tree in laps:
            yield split_line(tree, paths, laps[tree]["samples"])
