"""The nodes of a job, and the introduction that each gives before it may take part.

Two nodes that serve different data, or serve it by different rules, would silently give wrong samples. So the first
call between two nodes describes what each serves. Both compare, and a difference ends the start with one line.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from redoxfs.peers.v1 import peers_pb2 as pb

PROTOCOL_VERSION = 6
"""Incremented with each change in proto/, or in its meaning, that another version would misread."""

INCARNATION_BITS = 63

ANEW = "laps from one"
RESUMED = "--resume"
"""What the laps of a view start from; or the name of a state that was loaded."""

SHOWN = 80
"""The most characters of a value in a line: a peer can send a megabyte."""


@dataclass(frozen=True, slots=True)
class View:
    """The nodes of a job: ``host:port`` by node number. A later view of the job has a higher ``number``."""

    number: int
    addresses: tuple[str, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.addresses).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties that all nodes share: the ``dataset``'s fingerprint, and ``settings`` by name."""

    dataset: str
    settings: Mapping[str, str] = field(default_factory=dict)


class Difference(NamedTuple):
    """A ``field`` with value ``here`` at this node and ``there`` at the other."""

    field: str
    here: str
    there: str


def introduce(
    view: View, node: int, incarnation: int, identity: Identity, start_point: str, lap_lineage: str
) -> pb.Introduction:
    return pb.Introduction(
        version=PROTOCOL_VERSION,
        node=node,
        nodes=len(view.addresses),
        incarnation=incarnation,
        view=view.number,
        view_digest=view.digest,
        dataset=identity.dataset,
        settings=dict(identity.settings),
        beginning=start_point,
        origin=lap_lineage,
    )


def differences(here: pb.Introduction, there: pb.Introduction) -> tuple[Difference, ...]:
    """The differences between two nodes that should serve the same, the most important first."""
    pairs = [
        ("protocol version", str(here.version), str(there.version)),
        ("view", f"{here.view}, {here.view_digest}", f"{there.view}, {there.view_digest}"),
        ("number of nodes", str(here.nodes), str(there.nodes)),
        ("dataset", here.dataset, there.dataset),
        *(
            (name, here.settings.get(name, "none"), there.settings.get(name, "none"))
            for name in sorted({*here.settings, *there.settings})
        ),
    ]
    # A node that joins later continues with those that have joined, whatever it would have started from. In view 2 or
    # later it was told where that one starts, and nodes that did not see each other may have begun from two states.
    if here.view > 1 or not (here.joined or there.joined):
        pairs.append(("start point", here.beginning, there.beginning))
    return tuple(Difference(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs)


def refusal(address: str, found: Iterable[Difference]) -> str:
    """One line that says why the node at ``address`` is refused."""
    lines = [f"another {_short(d.field)} ({_short(d.there)} there, {_short(d.here)} here)" for d in found]
    return f"{address}: has {' and '.join(lines[:3])}"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
