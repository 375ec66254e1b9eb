"""The pool policy: one virtual chunk with a slot per class, slots that are queues, and loads ahead of demand.

Theory of operation. All memory is one pool of bytes. A request for sample A is answered with any resident of A's class.
Chunks are read before any request waits for them: when a request leaves room for a chunk, the best of a few chunks
drawn at random is loaded. A loaded sample stays until it is served, so nothing is read twice in a lap. A chunk is
loaded on demand only where a class has nothing in memory.

Laps belong to classes: a class's lap ends when each of its samples has had its turn. Loading is ahead of serving, so it
reaches the end of the class's samples first, and then *runs over*: samples of the next lap may be loaded, and are kept
apart until that lap begins. A class never waits for another, however unevenly they are asked.

The chunks loaded for the next lap are drawn among all chunks, also those of which samples still wait for their turn in
memory. Those samples are marked (`Queues.stays`): each is *kept* when it has its turn, so it counts as loaded for the
next lap without being read. So a lap begins with a uniform draw, whatever was served last. Were only used-up chunks
drawn, those that came early in one lap would come early in the next. Were all samples kept that are in memory, those
that came late would come early.

A job may look at some files before an epoch, and the epoch gets their samples again. So the pool also keeps the first
samples of each pass, a hundredth of the tree at most, until it knows whether the job only looked at them
(`Pass.is_look_known`). Without that, a look at 0.5 % of the files costs a tenth of all chunks, read once more, with
memory for a tenth of the samples.

What shuffling needs of memory is the *stream*: all of the above. With the rest, whole chunks are *retained*: drawn at
random once, their samples are kept at each turn. A chunk that is to be retained comes with the stream, so it fills
memory without a read of its own. After that a request draws among the retained samples of the class that had no turn
yet, and the streamed ones that had none, in memory or not. So a retained sample is as early or late in a lap as any.
Where the draw says a streamed sample and none is in memory, one is read alone, and counted. How much of memory the
stream has is a rule (`retained`). Where memory has room for all samples, all are retained.

Where nodes share a dataset, the laps here cover the samples that are this node's own (``covered``), the same in every
lap. A class may have none.

``policy``       `PoolPolicy`: which sample answers a request
``loads``        which chunks to load, ahead of demand and on demand
``state``        all that it knows, how a lap begins, and how another process continues
``retained``     which chunks are retained, and how much of memory they have
``queues``       where each sample of a class is in its lap
``chunk_order``  which chunks have samples to load, for this lap or the next
``passes``       runs of opens without a path twice, which get no sample twice; on one node
``pace``         how often each class is asked

Rules for whoever edits these files:

1. A sample is in exactly one section of its queue. One that a pass was given lies left of ``served``. A reserved one
   lies in "had its turn" and is in `PoolState._reserved`; it cannot be loaded, and holds its class's lap open. A
   request that finds nothing else preempts it: fairness outranks a reservation.
2. The sum of the bytes of all residents never exceeds the capacity. The answer to a demand load leaves at once, and a
   reserved sample leaves the pool: both count in another budget.
3. A resident leaves by being served or reserved. Retained samples also leave where open files need their room
   (`PoolPolicy.give_back`), whole chunks at random; and samples that were kept for a look that was none
   (`Served.gone`). Nothing else is evicted: memory that is full of classes that are
   not asked any more serves the others by loads on demand, a sample at a time where not even one more fits.
4. `ChunkOrder.this_lap` counts a chunk's fresh samples. `ChunkOrder.next_lap` counts the samples that may be loaded or
   marked for the next lap: of a class that runs over, neither loaded for it, nor marked, nor reserved.
5. Nothing that a chunk keeps from lap to lap may decide when it is loaded: not its size, its mix of classes, nor its
   place in a queue. Otherwise it is early in each lap, or late in each.

The resident to serve is drawn at random among those that have arrived. In order of age, samples that are neighbors on
storage would come out together: fifty pairs in a batch where a permutation has two. Which samples have arrived is
guessed from counts, because decisions that depend on real arrivals could not be repeated. Where all are younger, the
oldest is served: it is the first to arrive.
"""

from redoxfs.protocol.pool.policy import PoolPolicy
from redoxfs.protocol.pool.retained import retained_bytes_for
from redoxfs.protocol.pool.state import LOADS_PER_REQUEST, SAMPLES_AT_A_TIME

__all__ = ["LOADS_PER_REQUEST", "SAMPLES_AT_A_TIME", "PoolPolicy", "retained_bytes_for"]
