"""The paper's distributed slot protocol (§3.5, §3.6, Alg. 1, 4, 5, 6) on top of `SlotPolicy`, sans-IO.

Every virtual chunk has a home, the node that all its physical chunks live at. The home's SlotPolicy alone decides about
them. A node that wants a sample of another home's VC sends a `RemoteRead` and gets a `RemoteAnswer`: one sample for the
request, and *prefetched* ones for requests that its trace will make within the window, as far as they are in the home's
memory and fit in the requester's. Those wait in the requester's remote VC, one slot for each (VC, O), and go to the
first of its requests that reaches that (VC, O). Without prefetch (Alg. 4) is a window of one request.

    request(sample) ─ own VC ─────────────────────────────────→ Served, by this node's SlotPolicy
                    ├ in the stash ──────────────────────────→ Served; the home gave it before, and gets no message
                    ├ valid in the remote VC ────────────────→ Served, a claim: reported with the next message
                    ├ claimed by a request that was cancelled → Pending; the sample under way is for this request
                    └ else: RemoteRead, a claim ─→ handle() at the home ─→ RemoteAnswer ─→ receive() → deliveries

A reservation goes the same way, except that the sample is reserved instead of served. When it is put back, it goes to
the *stash* of its (VC, O), as does a sample that comes for a cancelled request: it was claimed, so only this node can
serve it.

Theory of operation. A *claim* is one sample of a (VC, O) that a requester wants from the home, for a request or for a
reservation. The requester reports every claim to the home exactly once: by a RemoteRead or, where a prefetched sample
answered it, in ``hits`` of its next message. Taking, putting back, cancelling, and answers from the stash are no
claims: for the home, the sample is served and its laps go on. For each (requester, VC, O) a home records whether it has
sent a sample ahead, that is one more sample than the claims it knows. That set is the conflict rule of Alg. 5: nothing
in it is prefetched again. A claim in the set ends the membership, in one of three ways:

- a hit: the sample that was sent ahead is consumed;
- a RemoteRead: the sample sent ahead and this message crossed. The answer has no sample of its own (None): the one
  under way is for this claim;
- a hit that is not in the set: a RemoteRead that was made later overtook its report and took the membership. The home
  owes a sample, and sends it now.

So samples sent and claims made always balance, in whatever order messages and answers arrive. A sample that arrives
goes to a claim that a request waits for, else to a cancelled one (the stash), else into the slot. A requester has at
most one sample more than claims in any (VC, O), so the slot is free when a sample arrives for it. The slot is empty
while claims are open, so no waiting request was promised a sample that another might take.

A claim spends one position of the trace, and reports to the home that the position is past. The home sends nothing
ahead for a spent position: that sample would wait until the next epoch and make this one inexact. So claims and
positions have to balance as well. A path that is reserved and put back has spent its position. If another path then
takes that sample from the stash, its own position is left over. The claim that the first path makes when it comes back
spends that one: to the home a position only means that one claim of this (VC, O) will come. The position is reported as
``passed`` only where no such claim will come, because the sample in the stash was claimed off the trace. Positions that
are left over when an epoch ends are void.

Lost nodes: a request for a lost home gets a sample that was given before, else the very sample asked for, which its
reader reads alone (`degraded`). It is no claim, and its position is reported as ``passed``. Requests that were waiting
for that home are answered in the same way; a sample that comes later for their claim goes to the stash. A waiting
reservation keeps waiting, as its sample could otherwise be reserved twice; its stat has a deadline.

A restarted home knows no claims and has sent nothing ahead. It will learn only from messages that are unanswered now,
and from those to come. So the requester makes its open claims exactly those of the unanswered messages, their hits
included. A message without a claim that a request waits for gets a claim for nobody; a waiting claim that no message
reports is reported again. Samples here that came from that home were given by a process that is gone, and go to the
stash.

Laps are the home's. Each sample comes with the lap that it is given in, and keeps it. So the node that hands it to a
reader can record which sample had its turn in which lap (`Ledger`), and no other node does. Samples in a remote VC or
the stash when all nodes end had no turn.

Memory: the remote VCs, the stash and the rooms granted to answers under way never exceed the limit. Reserved samples
and those that requests wait for do not count. A sample that does not fit stays here without its bytes (`keeps`).

``node``       `SlotNode`: one node, both requester and home
``requester``  remote VCs, stash, claims and positions
``home``       the requests of other nodes, and prefetch
``repeated``   the slot policy while another process continues from a state
``messages``   RemoteRead and RemoteAnswer

Three rules for whoever edits these files:

1. Whatever gives a sample to a requester, or learns of a claim, goes through the set, or the balance is lost.
2. Both sides accept every message and every answer any number of times and in any order. A home keeps an answer until
   the requester acknowledges it: an answer that is decided twice would be a sample lost.
3. No sample is reserved twice at once at one node. The home may give the last sample of a lap and then, in the next
   lap, the same again; where that could happen, `reserve` returns None.

A set, and not the paper's array of the window that shifts with the serial number: requests of several workers arrive
out of trace order, and a shifted array forgets what was prefetched for a request that another one overtook.
"""

from redoxfs.protocol.slot_nodes.messages import Hit, RemoteAnswer, RemoteRead
from redoxfs.protocol.slot_nodes.node import SlotNode, homes_by_vc

__all__ = ["Hit", "RemoteAnswer", "RemoteRead", "SlotNode", "homes_by_vc"]
