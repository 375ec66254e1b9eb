"""The pool policy: one virtual chunk with a slot per class, slots that are queues, and loads ahead of demand.

Theory of operation. All memory is one pool of so many bytes. A request for sample A is answered with any resident of
A's class. Chunks are read before anybody waits for them: whenever a request leaves room for one, the best of a few
chunks drawn at random is loaded. Each sample that is loaded stays until it is served, so nothing is read twice in a
lap. Only where a class has nothing in memory is a chunk loaded on demand.

Laps belong to classes: a class's lap ends when each of its samples has had its turn. Loading is ahead of serving, so
it comes to the end of the class's samples first, and then *runs over*: samples of the next lap may be loaded, and are
kept apart until that begins. A class never waits for another, however unevenly they are asked.

Where memory has room for all samples, a sample that has its turn is *kept*: loaded for the next lap without being read.
So all of them are read once, and drawn at random in each lap. With less memory it would be the samples of the end of a
lap that are kept, and they would come first in the next.

Where nodes share a dataset, each lap of a class is of one *part* of its samples alone: the part that is this node's in
that lap (`parts_by_lap`). Otherwise all samples are one part, and every lap is of it.

The samples of each class are one stretch of `_queue`, cut in five by `_begun`, `_next` to `_loaded` and the next
class's begin; `_at` says where each sample is:

    begun      next        served      arrived    loaded      the next class's
      | for the  | had its   | resident, | resident, | fresh: not |
      | next lap | turn, or  | arrived   | younger   | loaded     |
                 | has none

Every step of a sample is one swap across one border, so all is O(1) and the youngest stay in order of age:
fresh → younger (loaded), younger → arrived (enough requests went by), arrived → had its turn (served), had its turn, or
has none in this lap → for the next lap (loaded, or kept). When the three sections on the right are empty the lap is
over: what was loaded for the next lap becomes its younger section, the next part's other samples its fresh one. Where
there is one part nothing has to be moved for that; otherwise the stretch is sorted anew, once a lap. A lap whose part
has no sample of the class is passed over, though it counts.

Rules for whoever edits this file:

1. A sample is in exactly one section. One reserved by a stat lies in "had its turn" and is in `_reserved`; it cannot
   be loaded, and holds its class's lap open. A request that finds nothing else takes it: fairness outranks a
   reservation.
2. The sum of the bytes of all residents never exceeds the capacity. An asked sample goes right out, and one reserved
   leaves the pool: both are in somebody else's budget.
3. A resident leaves by being served or reserved. Nothing is evicted: memory that is full of classes that nobody asks
   for any more serves the others by loads on demand, a sample at a time where not even one more fits.
4. `_this_lap[chunk]` counts the chunk's fresh samples, `_next_lap[chunk]` those that may be loaded for the next lap:
   of a class that runs over, in "had its turn, or has none", of the next lap's part, and not reserved. `_chunks` has
   the chunks with samples for this lap first, then those with samples for the next lap alone, then the others.
5. `_had` says which samples of the lap's part are no longer resident or fresh in it, left of `_served`: those that had
   their turn, and those that are RESERVED. It is kept beside `_at` because `turns` is asked for every second, and would
   otherwise look at every sample for it; and because a look at chunks must tell the two apart at once.

Which resident goes out is drawn at random among those that have arrived: in order of age, samples that are neighbours
on storage would come out together, fifty pairs in a batch where a permutation has two. What has arrived is guessed from
counts, since a decision that depends on what has really arrived could not be repeated. Where all are younger, the
oldest goes out: it is the first to arrive.
"""

from redoxfs.protocol.pool.policy import LOADS_PER_REQUEST, SAMPLES_AT_A_TIME, PoolPolicy

__all__ = ["LOADS_PER_REQUEST", "SAMPLES_AT_A_TIME", "PoolPolicy"]
