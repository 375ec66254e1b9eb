"""The pool on several nodes: each serves a class from its own chunks first, and takes from peers what it lacks.

A class is spread evenly over the nodes, and each node asks for about its part of it. So only the difference crosses
the network: about one sample in fifty where the paper's protocol moves two of three. Nothing needs a trace.

    request(sample) ─ some were taken before ─────→ Served, remote
                    ├ own chunks have the class ──→ Served, by this node's pool
                    └ else: Take ──→ handle() at the peer with the most left ──→ Given ──→ receive() → who gets what

A reservation goes the same way, and the sample is reserved instead of served.

Theory of operation. Samples are dealt to the nodes in parts. In each lap of a class every node has one part of it as
its own; on shared storage the parts go round, so that each node comes to read all of them. A class's lap is one for
all nodes: it is over when as many of its samples are *done*, handed to readers, as there are. A node knows what it did
itself, and learns with every Given what the peer has left and has done. What is done only grows within a lap, so old
news never ends a lap early; what is left is a hint, whom to ask. Where nobody is known to have any left and the lap is
not over, the rest is on its way to some node, which will have done it or have some left when it is asked again, or is
reserved somewhere; peers are then asked in turn.

Laps are told along: whoever is behind begins the lap that the other is in. That is safe, since nobody begins a lap
before all of the last one is done, a node's own samples and those that it took included. The pool beneath counts the
same laps: it begins one when it is first asked in it, passing over those in which this node has none of the class.

Fairness outranks a reservation. A sample reserved holds its lap open, and whoever finds nothing else gets it: a
request or another reservation of this node (`Served.preempted`), or a peer (`Handled.preempted`). Otherwise the lap's
last samples, reserved by threads that wait for others, would hold all of them up for good.

Lost nodes: no Take is sent to a peer that is lost, and nobody waits for one that is there already; what it brings
after all is taken in if its lap is not over. Of such a peer's samples nobody knows which were done. So the lap that a
class is in when a peer is lost, or has been restarted, is *incomplete*, as is one begun while a peer is lost: whoever
needs a sample of it, has none, and has asked every peer that is there twice around begins the next one, without what is
not known to be done (`missed`). Twice, since what was between two of them the first time has come by the second. If it
is a peer that needs one, and it does not know that, whoever knows asks on its behalf when asked in vain.
Nobody waits for a lap of which all samples are at lost peers: it is passed over. Whoever is told of a later lap begins
that, though it may have samples left: it was stopped, or cut off, while others went on. They are let go and `missed`,
those reserved too, whose reservations are `revoked`: what of a lap is served when the lap is over might have its next
turn before others.

A process that takes the place of another knows nothing. It joins in the lap that others have begun, without samples of
its own, as it cannot know which of them were done, and takes its part from the next on (`rejoin`). What its
predecessor did in the lap that is then incomplete still counts.

Exchange: an account for each class grows by a share with each turn, and falls by what comes, taken for need or on
purpose. From 1 on a Take is sent though nobody waits; what it brings has the next turns.

Memory: samples that were taken, and the room granted to answers under way, take no more than the limit. The first
sample of an answer goes right out to who waits for it, and so is sent whether or not there is room; should nobody wait
for it any more it is kept, past the limit. One reserved is in somebody else's budget, as in the pool; put back where
there is no room, it stays here without its bytes (`keeps`).

Three rules for whoever edits this file:

1. A sample counts as left at exactly one node, where it lies or where it was taken to, or is under way to one.
2. Messages and answers may come any number of times and in any order; an answer is kept until the other side has it.
3. While somebody waits for a class, a Take of it is unanswered at a peer that is not lost, unless all are: its answer,
   empty or not, is what looks again. `lost`, `found` and `restarted` look again themselves.

What all nodes have to know to go on another time is which samples were done in the lap that their class is in, by
whomever (`Ledger`, `restore`). What was taken and not done then is its part's again.

Which samples were taken is never undone: they are given to the next readers that ask, here or elsewhere. So a sample
may be here twice: taken, for this lap, and in the pool, for the next.
"""

from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.parts import parts_by_lap
from redoxfs.protocol.local_first.policy import BATCH, LocalFirst

__all__ = ["BATCH", "Given", "LocalFirst", "Take", "parts_by_lap"]
