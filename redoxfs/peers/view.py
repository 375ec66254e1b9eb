"""Who is in the job, and what a node says of itself before it may take part.

Two nodes that serve different data, or serve it by different rules, would hand out wrong samples in silence. So each
tells the other in its first call what it serves, both compare, and a difference ends the start with one line.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from redoxfs.peers.v1 import peers_pb2 as pb

PROTOCOL_VERSION = 2
"""Changes with anything in proto/ or in what it means that another version would misread."""

INCARNATION_BITS = 63

ANEW = "laps from one"
RESUMED = "--resume"
"""What the laps of a view go on from; or a state that was loaded, by its name."""

SHOWN = 80
"""Characters of a value that go into a line: a peer can send a megabyte."""


@dataclass(frozen=True, slots=True)
class View:
    """The nodes of a job, ``host:port`` by node number. The launcher gives a new one a higher ``number``."""

    number: int
    addresses: tuple[str, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.addresses).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Identity:
    """What all nodes have to have in common: the ``dataset``'s fingerprint, and ``settings`` by name."""

    dataset: str
    settings: Mapping[str, str] = field(default_factory=dict)


class Difference(NamedTuple):
    """``field`` is ``here`` at this node and ``there`` at the other."""

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
    """What two nodes that should serve the same do not have in common, the weightiest first."""
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
    # Who has joined goes on, and whoever joins later with it.
    if not here.joined and not there.joined:
        pairs.append(("start point", here.beginning, there.beginning))
    return tuple(Difference(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs)


def refusal(address: str, found: Iterable[Difference]) -> str:
    """One line of what is wrong with the node at ``address``."""
    told = [f"another {_short(d.field)} ({_short(d.there)} there, {_short(d.here)} here)" for d in found]
    return f"{address}: has {' and '.join(told[:3])}"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
