"""The pool on several nodes: each serves a class from its own chunks first, and takes from peers what it lacks.

A class is spread evenly over the nodes, and each node asks for about its part of it. So only the difference crosses the
network: about one sample in fifty, where the paper's protocol moves two of three; and what is exchanged on purpose. No
trace is needed.

    request(sample) ─ some were taken before ─────→ Served, remote
                    ├ own chunks have the class ──→ Served, by this node's pool
                    └ else: Take ──→ handle() at the peer with the most left ──→ Given ──→ receive() → deliveries

A reservation goes the same way, except that the sample is reserved instead of served.

Theory of operation. Samples are dealt to the nodes in parts. Each node owns one of them, the same in each lap, so that
it can retain samples of it. A class's lap is one for all nodes: it is over when as many of its samples are *done*,
handed to readers, as there are. A node knows its own count, and each Given brings the peer's: how many it has left and
has done. Within a lap, done only grows, so old news never ends a lap early. Left is a hint about whom to ask. If no
peer is known to have any left and the lap is not over, the rest is on its way to some node or reserved somewhere, and
peers are asked in turn.

Laps spread with messages: a node that is behind begins the lap that the other is in. That is safe, since no node begins
a lap before all of the last one is done, including its own samples and those that it took. The pool beneath counts the
same laps: it begins one when it is first asked in it, and skips laps in which this node has none of the class.

Fairness outranks a reservation. A reserved sample holds its lap open, and whatever finds nothing else preempts it: a
request or another reservation of this node (`Served.preempted`), or a peer (`Handled.preempted`). Otherwise a lap's
last samples, reserved by threads that wait for others, would block all of them for good.

Lost nodes: no Take is sent to a lost peer, and no request waits for one that was sent there. If its answer comes, it is
used while its lap lasts. Nobody knows which of the lost peer's samples were done. So a lap is *incomplete* if a peer is
lost or restarted during it, or if it begins while a peer is lost. A node that needs a sample of an incomplete lap, has
none, and has asked every peer that is there twice, begins the next lap without the rest, which counts as `missed`.
Twice, because samples that were between two peers in the first round have arrived by the second. If a peer needs a
sample and does not know that the lap is incomplete, a node that knows asks on its behalf after an empty answer. A lap
whose samples are all at lost peers is skipped. Where storage is shared, nobody waits for a class whose samples are all
at lost peers: an open gets the very sample that it asks for, which no lap counts (`degraded`), and a stat none. Once
all peers are lost, no stat waits: those that waited are repeated, and get what is here or nothing. A node that learns
of a later lap begins it, even if it has samples left: it was stopped or cut off while others went on. Those samples are
dropped and `missed`, and their reservations are `revoked`: a sample of the old lap that is served after it might have
its next turn before others.

A process that replaces another knows nothing. It joins the lap that others have begun, without samples of its own, as
it cannot know which of them were done. It takes its part from the next lap on (`rejoin`). Turns of the process before
it still count in the lap that is then incomplete.

Exchange: an account for each class grows by a share with each turn of a lap, and falls with each sample that comes,
whether it was needed or not. From 1 on a Take is sent though no request waits; its samples have the next turns. What is
given stays here as well where the pool keeps it (`Handled.kept`).

Memory: taken samples and the room granted to answers under way stay within the limit. The first sample of an answer
goes straight to a waiting request, and so is sent whether or not there is room. If no request waits for it any more, it
is kept, past the limit. A reserved sample counts in another budget, as in the pool. If it is put back where there is no
room, it stays here without its bytes (`keeps`).

Three rules for whoever edits this file:

1. A sample counts as left at exactly one node, where it lies or where it was taken to, or is under way to one.
2. Messages and answers may come any number of times and in any order; an answer is kept until it is acknowledged.
3. While a request waits for a class, a Take of it is unanswered at a peer that is not lost, unless all are lost. Its
   answer, empty or not, triggers the next look. `lost`, `found` and `restarted` look again themselves.

To resume later, nodes need to know which samples were done in the lap that their class is in, by any of them (`Ledger`,
`restore`). A sample that was taken and not done belongs to its part again.

A taken sample is never returned: the next reader that asks, here or elsewhere, gets it. So a sample may be here twice:
taken, for this lap, and in the pool, for the next.

``policy``        `LocalFirst`: turns, what peers get, and what to ask them for
``laps``          how laps begin and end
``passing``       what is held back, and epochs that are told; ``passes``: runs of opens, and what left a node in them
``state``         all that it knows, and how another process continues from it; ``repeated``: the pool meanwhile
``taken``         samples that came from peers, and their memory
``reservations``  samples that stats reserved
``waiting``       requests and stats that wait for a peer
``exchange``      how many samples to take on purpose
``parts``         which samples are which node's own
``peer``          what a node knows of a peer
``messages``      Take and Given
"""

from redoxfs.protocol.local_first.exchange import exchange_for
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.policy import BATCH, LocalFirst

__all__ = ["BATCH", "Given", "LocalFirst", "Take", "exchange_for"]
