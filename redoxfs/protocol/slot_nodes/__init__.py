"""The paper's distributed slot protocol (§3.5, §3.6, Alg. 1, 4, 5, 6) on top of `SlotPolicy`, sans-IO.

Every virtual chunk has a home, the node that all its physical chunks live at; the home's SlotPolicy alone decides
about them. A node that wants a sample of another home's VC sends a `RemoteRead` and gets a `RemoteAnswer`: one sample
for the request, and *prefetched* ones for requests that its trace will make within the window, as far as they are in
the home's memory and fit in the requester's. Those wait in the requester's remote VC, one slot for each (VC, O), and
go to whichever of its requests reaches that (VC, O) first. Without prefetch (Alg. 4) is a window of one request.

    request(sample) ─ own VC ─────────────────────────────────→ Served, by this node's SlotPolicy
                    ├ in the stash ──────────────────────────→ Served; the home gave it before, and is told nothing
                    ├ valid in the remote VC ────────────────→ Served, a claim: reported with the next message
                    ├ claimed by a request that was cancelled → Pending; what is under way for that one is for this one
                    └ else: RemoteRead, a claim ─→ handle() at the home ─→ RemoteAnswer ─→ receive() → who gets what

A reservation goes the same way, and the sample is reserved instead of served. Put back, it goes to the *stash* of its
(VC, O), as does what comes for a request that was cancelled: it was claimed, and so nobody but this node can serve it.

Theory of operation. A *claim* is one sample of a (VC, O) that a requester wants from the home, for a request or for a
reservation. The requester tells the home of every claim exactly once: by a RemoteRead or, where a prefetched sample
answered it, in ``hits`` of its next message. Taking, putting back, cancelling, and what the stash answers are no
claims: the home has given that sample, to it the sample is served, and its laps go on. A home keeps for each
(requester, VC, O) whether it has sent a sample ahead, that is one more sample than it knows claims. That set is the
conflict rule of Alg. 5: anything in it is not prefetched again. A claim in the set ends the membership, whichever way
it came:

- a hit: the sample that was sent ahead is consumed;
- a RemoteRead: the sample sent ahead and this message crossed. The answer has no sample of its own (None): the one
  under way is for this claim;
- a hit that is not in the set: a RemoteRead that was made later overtook its report and took the membership. The home
  owes a sample, and sends it now.

Samples sent and claims made therefore always balance, in whatever order messages and answers arrive: a sample that
arrives goes to a claim that somebody waits for, else to one that was cancelled (the stash), else into the slot. A
requester has at most one sample more than claims in any (VC, O), which is why its slot is free when one arrives. The
slot is empty while claims are open, so whoever waits was told of no sample that another might take.

A position of the trace is spent by one claim, and the home learns with the claim that it is past; it sends nothing
ahead for a position that was spent, or that sample would wait until the next epoch and make this one inexact. So
claims and positions have to balance as well. A path that is reserved and put back has spent its position. If another
path then takes that sample from the stash, its own position is left over, and is spent by the claim that the first
path makes when it comes back: to the home a position is no more than that one claim of this (VC, O) will come. Only
where no such claim will come, as the sample in the stash was claimed off the trace, is the position reported as
``passed``. What is left over when an epoch ends is void.

Lost nodes: a request of a home that is lost is answered by what was given before, else by the very sample asked for,
which whoever opens it reads alone (`degraded`). It is no claim, and its position is reported as ``passed``. Whoever
waited for that home is answered likewise; what still comes for its claim goes to the stash. A reservation that waits
goes on waiting, as its sample could be reserved twice; whoever made it has a deadline.

A home that was started again knows of no claim and has sent nothing ahead. Its whole knowledge will be the messages
that it answers, and those are the ones that are not answered yet, and those to come. So the claims that nothing has
come for are made to be exactly those of the unanswered messages, their hits included: where such a message has no claim
that anybody waits for, one for nobody is made, and where somebody waits for a claim that no message will tell, it is
told again. What is here of that home was given by a process that is no more, and so is stash.

Laps are the home's; with each sample it tells the lap that it is given in, which goes wherever the sample goes. So
whoever hands it to a reader can note what had its turn in which lap (`Ledger`), and nobody else does: what lies in a
remote VC or the stash when all nodes end had no turn.

Memory: the remote VCs, the stash and the rooms granted to answers under way never exceed the limit. Samples reserved
and those that somebody waits for do not count. A sample that does not fit stays here without its bytes (`keeps`).

Three rules for whoever edits this file:

1. Whatever gives a sample to a requester, or learns of a claim, goes through the set, or the balance is lost.
2. Both sides take every message and every answer any number of times and in any order. A home keeps an answer until
   the requester has said that it has it: an answer that is decided twice would be a sample lost.
3. No sample is reserved twice at once at one node. The home may give the last sample of a lap and then, in the next
   lap, the same again; where that could be, `reserve` says that none is left.

Why a set and not the paper's array of the window, shifted with the serial number: requests of several workers arrive
out of trace order, and a shifted array forgets what was prefetched for a request that another one overtook.
"""

from redoxfs.protocol.slot_nodes.messages import Hit, RemoteAnswer, RemoteRead
from redoxfs.protocol.slot_nodes.node import SlotNode, homes_by_vc

__all__ = ["Hit", "RemoteAnswer", "RemoteRead", "SlotNode", "homes_by_vc"]
