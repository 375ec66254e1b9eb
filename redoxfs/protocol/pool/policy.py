"""The turns of the pool policy: which sample answers a request."""

from collections.abc import Iterable

import numpy as np

from redoxfs.arrays import Flags, Numbers
from redoxfs.protocol.events import Load, Served
from redoxfs.protocol.pool.loads import Loads
from redoxfs.protocol.pool.passes import MOST_TURNS, Pass, PassFigures
from redoxfs.protocol.pool.queues import HAD_TURN, NOT_YET, RESERVED
from redoxfs.protocol.pool.state import DELIVERED_PER_REQUEST
from redoxfs.protocol.serving import ServingPolicy

NOT_LOADED, LOADED, RETAINED = 0, 1, 2
"""What a sample was when it was reserved. The room of a retained one is kept for it."""

CHUNKS_TRIED = 256
"""How many retained chunks are looked at to give back memory. While the first lap fills it, most have nothing there."""

ALONE_SHARE = 1 / 100
"""If more of a lap's opens were read alone, though a retained sample was in memory, the stream gets more of memory."""

GROWTH, GROWTH_TIMES = 1 / 4, 2
"""By how much the stream grows at a time, and how many times as large it may become. Where classes are asked one after
another, samples are read alone whatever its size."""

LOOKS_AT_ONCE = 64
"""How many samples leave memory at a time, of those that were kept because a job might only have looked at them."""

LOOKED_AT = 8_192
"""At how many opens of a pass a stat looks first, for one that its path may have."""

NOTED = 0xFFFFFFFE
"""The part of the clock that is noted with each open: `Passes` reads it as the number of turns."""


class PoolPolicy(Loads, ServingPolicy):
    """Which sample answers a request, and which chunks to load ahead. For its arguments see `PoolState`."""

    def request(self, sample: int) -> Served:
        cls = self._class_of[sample]
        self._now += DELIVERED_PER_REQUEST
        self._asked[cls] += 1
        self._requests_to_note -= 1
        if self._requests_to_note < 0:
            self._note_pace()
        tree = None
        if self._pass_of is not None:
            tree = self._pass_of[cls]
            last = self._asked_at[sample]
            if last > tree.since or tree.watches:
                self._look(tree, last)
            if self._lap_of_class[cls] < tree.lap:
                self._begin_lap_of_pass(cls, tree)
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            victim = self._begin_lap_or_preempt(cls, tree)
            if victim is not None:
                return self._turn_of_reserved(victim, sample, preempted=True)
            place = self._resident_place(cls)
        if place < 0:
            return self._turn_of_reserved(self._reserve_fresh(cls), sample, preempted=False)
        # Before the answer has its turn: the answer itself must not be loaded for the next lap.
        loads: tuple[Load, ...] = ()
        gone: tuple[int, ...] = ()
        if self._free_bytes >= self._room_for_next_bytes:
            loads = self._load_ahead()
            if loads and tree is not None and tree.looked_at and tree.is_look_known:
                gone = self._let_looks_go(tree)
        answer = self._take_out(cls, place)
        if tree is not None:
            self._note_open(tree, sample, answer)
        return Served(answer, loads, False, False, self._had_a_turn(cls, answer), gone)

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample of ``sample``'s class: a resident, else one that a load on demand would read."""
        cls = self._class_of[sample]
        tree = None if self._pass_of is None else self._pass_of[cls]
        if tree is not None:
            if tree.end_laps():
                self._end_laps(tree)
            if self._lap_of_class[cls] < tree.lap:
                self._begin_lap_of_pass(cls, tree)
            if self._asked_at[sample] > tree.since and tree.is_long:
                # An epoch is over, and what is left in the lap may be for the paths that it lacked.
                ahead = self._reserve_ahead(cls, tree, sample)
                if ahead is not None:
                    return ahead
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            if tree is None:
                if self._reserved.get(cls):
                    return None
                self._begin_lap(cls)
            elif self._may_begin_lap(cls):
                self._begin_lap_of_pass(cls, tree)
            elif self._asked_at[sample] > tree.since:
                # The pass has all samples of the class. Its open begins another pass, however short this one is.
                return self._reserve_ahead(cls, tree, sample)
            else:
                return None
            place = self._resident_place(cls)
        if place < 0:
            return self._reserve_fresh(cls)
        is_retained = place < self._queues.stream[cls]
        # A saved read counts with the turn, which it may not get.
        chosen = self._take_out(cls, place, saves=0)
        if is_retained:
            self._hold_room(self._bytes[chosen])
        self._queues.had[chosen] = RESERVED
        self._reserved.setdefault(cls, {})[chosen] = RETAINED if is_retained else LOADED
        self._count_for_next_lap(cls, chosen, -1)
        return chosen

    def take(self, reserved: int, path: int = -1) -> Served:
        """The turn of a sample that `reserve` reserved, for an open of ``path``: needed where passes are kept."""
        self._now += DELIVERED_PER_REQUEST
        if self._pass_of is not None:
            cls = self._class_of[reserved]
            tree = self._pass_of[cls]
            last = self._asked_at[path]
            if last > tree.since or tree.watches:
                self._look(tree, last)
            if self._lap_of_class[cls] < tree.lap:
                self._begin_lap_of_pass(cls, tree)
        return self._turn_of_reserved(reserved, path, preempted=False)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation: the sample is resident again if it was loaded and still fits, else fresh again."""
        cls = self._class_of[reserved]
        if reserved in self._ahead:
            self._forget_reservation(reserved)
            self._queues.had[reserved] = HAD_TURN
            self._queues.stays[reserved] = 0
            self._count_for_next_lap(cls, reserved, 1)
            return False
        self._count_for_next_lap(cls, reserved, 1)
        found, size_bytes = self._forget_reservation(reserved), self._bytes[reserved]
        if found and size_bytes <= self._free_bytes:
            self._queues.make_resident_again(cls, reserved, retained=found == RETAINED)
            self._free_bytes -= size_bytes
            if found == RETAINED:
                self._retained_bytes += size_bytes * self._is_retained[reserved]
            return True
        self._queues.make_fresh_again(cls, reserved)
        chunk = self._chunk_of[reserved]
        self._this_lap[chunk] += 1
        self._chunks.file(chunk)
        return False

    def let_go(self, kept: int) -> None:
        """A sample that was just served, and kept for the next lap, leaves memory after all."""
        cls = self._class_of[kept]
        if self._queues.let_go(kept):
            self._retained_bytes -= self._bytes[kept] * self._is_retained[kept]
        self._free_bytes += self._bytes[kept]
        self._count_for_next_lap(cls, kept, 1)

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s class, oldest first, but for those that another pass is to get."""
        return self._reserved_in_lap(self._class_of[sample])

    def reserve_again(self, sample: int) -> None:
        cls = self._class_of[sample]
        if self._pass_of is not None and self._queues.had[sample] == HAD_TURN:
            self._reserve_had(cls, sample)
            return
        self._count_for_next_lap(cls, sample, -1)
        self._reserved.setdefault(cls, {})[sample] = NOT_LOADED
        self._queues.reserve_fresh(cls, sample)
        chunk = self._chunk_of[sample]
        self._this_lap[chunk] -= 1
        if not self._this_lap[chunk]:
            self._chunks.file(chunk)
        if self._queues.is_all_loaded(cls):
            self._run_over(cls)

    def skip(self, cls: int, lap: int) -> list[int]:
        """End a class's laps before ``lap`` as if all their samples had their turn, reserved ones included.

        The class is then in ``lap``. Nothing happens if it is there already, or if no lap has any of its samples.

        Returns:
            The samples that were in memory for the laps that are over: residents no more.
        """
        if self._lap[cls] >= lap or not len(self._queues.members(cls)):
            return []
        touched = self._leave_counts(cls)
        for sample in [*self._reserved.get(cls, ())]:
            self._forget_reservation(sample)
        before_bytes = self._retained_in(cls)
        is_next_skipped = self._lap_of_class[cls] < lap - 1
        let_go = self._queues.skip(cls, next_lap=is_next_skipped)
        if is_next_skipped:
            self._lap[cls] = lap - 1
        self._free_bytes += self._size_bytes(let_go)
        self._retained_bytes -= before_bytes - self._retained_in(cls)
        self._chunks.file_all(touched)
        self._run_over(cls)
        self._begin_lap(cls)
        if self._progress is not None:
            self._progress.count_again()
        return let_go

    # For a node among several, which keeps the passes itself

    def begin_lap_without(self, cls: int, lap: int, held: Flags) -> None:
        """Begin ``lap`` of a class. Samples that had their turn come into it, but for those in ``held``, bool[S].
        What is left stays left, and reserved ones stay reserved.
        """
        touched = self._leave_counts(cls)
        self._queues.rearrange(cls, held[self._queues.members(cls)])
        self._stay_if_retained(cls)
        self._count_again(cls, touched)
        self._lap[cls] = lap

    def are_left(self, cls: int, members: Numbers) -> Flags:
        """bool[n]: which of some samples of a class are in its lap, had no turn in it, and are not reserved."""
        return (self._queues.had_array[members] == NOT_YET) & (
            self._queues.at_array[members] >= self._queues.served[cls]
        )

    def leave_out(self, sample: int) -> bool:
        """The lap goes on without a sample that is left. Returns whether it leaves memory. What is retained stays."""
        cls, queues, chunk = self._class_of[sample], self._queues, self._chunk_of[sample]
        was_resident = queues.is_resident(cls, sample)
        if not was_resident:
            # As if it came, and left at once.
            self._load(chunk, [sample], [])
        self._take_out(cls, queues.at_array[sample], saves=0)
        if was_resident and self._stays(cls, sample):
            return False
        queues.stays[sample] = 0
        self._count_for_next_lap(cls, sample, 1)
        return was_resident

    def give_copy(self, sample: int) -> Served:
        """Give a sample, and leave it where it is: it has no turn by that. It is not loaded if it is reserved."""
        is_resident = self.is_resident(sample)
        if is_resident or self._queues.had[sample] == RESERVED:
            return Served(sample, kept=is_resident)
        load = Load(self._chunk_of[sample], (sample,))
        self._now += DELIVERED_PER_REQUEST
        return Served(sample, (load,))

    # Turns

    def _turn_of_reserved(self, sample: int, path: int, *, preempted: bool) -> Served:
        """Give a reserved sample its turn, for an open of ``path``. It stays in `_reserved`, out of all loads, until
        the loads of its turn are decided.
        """
        cls = self._class_of[sample]
        loads: tuple[Load, ...] = () if self._reserved[cls][sample] else (self._load_on_demand(sample),)
        if self._reserved[cls][sample] == RETAINED:
            self._reserved[cls][sample] = LOADED
            self.reads_saved += 1
            self._hold_room(-self._bytes[sample])
        if self._bytes[sample] > self._free_bytes:
            self._queues.stays[sample] = 0
        # Its room, if it stays, is not for other samples.
        kept_bytes = self._bytes[sample] * self._queues.stays[sample]
        self._free_bytes -= kept_bytes
        if self._free_bytes >= self._room_for_next_bytes:
            loads += self._load_ahead()
        self._free_bytes += kept_bytes
        self._forget_reservation(sample)
        self._queues.had[sample] = HAD_TURN
        self._count_for_next_lap(cls, sample, 1)
        if self._pass_of is not None:
            self._note_open(self._pass_of[cls], path, sample)
        return Served(sample, loads, preempted, kept=self._had_a_turn(cls, sample))

    def _begin_lap_or_preempt(self, cls: int, tree: Pass | None) -> int | None:
        """Nothing is left in a class's lap but what is reserved: returns one of these, else begins the next lap."""
        reserved = self._reserved_in_lap(cls)
        if reserved:
            return self.choose_victim(reserved)
        if tree is None:
            self._begin_lap(cls)
            return None
        self._begin_lap_of_pass(cls, tree)
        if self._queues.is_over(cls):
            # All that the pass allows is reserved, for paths that were not opened in it either.
            reserved = self._reserved_in_lap(cls)
            if reserved:
                return self.choose_victim(reserved)
            return self._give_twice(cls, tree)
        return None

    def _reserve_fresh(self, cls: int) -> int:
        """Reserve the fresh sample of a class that is best read now. It has no residents, or retained ones alone."""
        self.reads_alone += self._queues.served[cls] < self._queues.stream[cls]
        chosen = self._choose_for(cls)
        self.reserve_again(chosen)
        return chosen

    def _resident_place(self, cls: int) -> int:
        """The queue place of a class's next answer; -1 where nothing is resident for this lap.

        A retained sample and one that is streamed are equally likely, whether the latter is in memory or not. Otherwise
        retained samples would be early in every lap. So -1 may also mean that a streamed one has to be read.
        """
        queues = self._queues
        served, arrived, loaded = queues.stream[cls], queues.arrived[cls], queues.loaded[cls]
        if arrived < loaded:
            before = arrived
            arrived_by = self._now - self._in_flight
            while arrived < loaded and self._arrival[self._chunk_of[queues.queue[arrived]]] <= arrived_by:
                arrived += 1
            if arrived != before:
                queues.arrived[cls] = arrived
        retained = queues.served[cls]
        if retained < served:
            place = retained + self._draw(queues.begun[cls + 1] - retained)
            if place < served:
                return place
        if served < arrived:
            return served + self._draw(arrived - served)
        return served if served < loaded else -1

    def _take_out(self, cls: int, place: int, saves: int = 1) -> int:
        """Take the resident at ``place`` out of memory. ``saves``: how many reads it saves if it was retained."""
        is_retained = place < self._queues.stream[cls]
        sample = self._queues.take_out(cls, place)
        self._free_bytes += self._bytes[sample]
        if is_retained:
            self.reads_saved += saves
            self._retained_bytes -= self._bytes[sample] * self._is_retained[sample]
        return sample

    def _hold_room(self, size_bytes: int) -> None:
        """Keep the room of a retained sample while it is reserved; negative: give it back."""
        self._free_bytes -= size_bytes
        self._retained_bytes += size_bytes
        self._put_aside_bytes += size_bytes

    # Passes

    @property
    def has_passes(self) -> bool:
        return self._passes is not None

    def begin_pass(self, tree: int | None, number: int = 0) -> bool:
        """The job says that an epoch of a tree begins, or of all: the next open of it begins a pass, whatever its path
        is. Returns whether there are passes."""
        if self._passes is None:
            return False
        for run in self._passes.trees if tree is None else [self._passes.trees[tree]]:
            if run.begin_now():
                self._end_laps(run)
            self._begin_pass(run, run.turn)
        return True

    def passes(self) -> list[PassFigures]:
        """The pass of each tree, if they are kept."""
        return [] if self._passes is None else [tree.figures() for tree in self._passes.trees]

    @property
    def samples_held_back(self) -> int:
        """How many samples laps began without, as a pass had been given them."""
        return 0 if self._passes is None else self._passes.held_back

    @property
    def passes_given_twice(self) -> int:
        """How many samples a pass was given again, as it allowed no other."""
        return 0 if self._passes is None else self._passes.given_twice

    def _look(self, tree: Pass, last: int) -> None:
        """Before an open of a path that was last opened by the tree's open number ``last``."""
        since = tree.look(last)
        if tree.ends_laps:
            self._end_laps(tree)
        if since > tree.since:
            self._begin_pass(tree, since)

    def _begin_pass(self, tree: Pass, since: int) -> None:
        """The pass began later than was known. What was served before that is not held back any more."""
        passes = self._passes
        assert passes is not None
        samples, numbers = tree.entries(tree.since, since)
        passes.in_pass_array[samples] = False
        tree.move(since)
        if tree.turn > MOST_TURNS:
            passes.make_room(tree)
        passes.keep(tree)
        classes = self._class_array[samples]
        comes = (numbers <= passes.began_array[classes]) & (self._lap[classes] >= tree.lap)
        had = self._queues.had_array[samples]
        if self._ahead:
            self._ahead.difference_update(samples[comes & (had == RESERVED)].tolist())
        samples = samples[comes & (had == HAD_TURN)]
        if len(samples):
            self.come_into_lap(samples)

    def _note_open(self, tree: Pass, path: int, answer: int) -> None:
        """The open of ``path`` got ``answer``. Last what another process looks at first."""
        turn = tree.turn + 1
        tree.log[turn % tree.room] = answer
        self._in_pass[answer] = 1
        self._pass_head[2] = (self._now & NOTED) << 31 | path
        self._asked_at[path] = tree.turn = turn
        if turn <= tree.look_until:
            self._keep_look(tree, answer, turn)
        elif turn == tree.full_at:
            tree.is_full()
            assert self._passes is not None
            self._passes.keep(tree)

    def _keep_look(self, tree: Pass, sample: int, turn: int) -> None:
        """A sample that may have been looked at before an epoch stays in memory: the epoch gets it again. Its chunk
        would be read for that, with few others."""
        size_bytes = self._bytes[sample]
        if size_bytes > min(self._free_bytes, self._looks_room_bytes):
            return
        if self._queues.stays[sample] or self._is_retained[sample]:
            return
        self._count_for_next_lap(self._class_of[sample], sample, -1)
        self._queues.stays[sample] = 1
        self._looks_room_bytes -= size_bytes
        if not tree.looked_at:
            tree.look_from, tree.has_looked = turn, False
        tree.looked_at.append(sample)

    def _let_looks_go(self, tree: Pass) -> tuple[int, ...]:
        """What the pass was given first leaves memory, some of it at a time. What was looked at before it stays."""
        queues = self._queues
        gone: list[int] = []
        while tree.looked_at and len(gone) < LOOKS_AT_ONCE:
            sample = tree.looked_at.popleft()
            cls = self._class_of[sample]
            self._looks_room_bytes += self._bytes[sample]
            # Those that were looked at are of no pass now.
            if self._in_pass[sample] and queues.is_for_next_lap(cls, sample):
                self.let_go(sample)
                gone.append(sample)
        return tuple(gone)

    def _reserved_in_lap(self, cls: int) -> Iterable[int]:
        """The samples of a class that are reserved and had no turn in the lap, oldest first."""
        reserved = self._reserved.get(cls, ())
        return [sample for sample in reserved if sample not in self._ahead] if self._ahead else reserved

    def _may_begin_lap(self, cls: int) -> bool:
        """Whether the class's next lap would have a sample that the pass allows."""
        assert self._passes is not None
        members = self._queues.members(cls)
        had = self._queues.had_array[members] == HAD_TURN
        return bool((had & ~self._passes.in_pass_array[members]).any())

    def _reserve_ahead(self, cls: int, tree: Pass, path: int) -> int | None:
        """Reserve a sample that the pass was given, and that is allowed once ``path``, which it has, is opened; None if
        none is."""
        last = self._asked_at[path]
        since = tree.would_begin(last)
        own = tree.log[last % tree.room]
        if since == last and own >= 0 and self._class_of[own] == cls and self._queues.had[own] == HAD_TURN:
            # That of the path's own last open, which no other path needs.
            self._reserve_had(cls, own)
            return own
        first = tree.since + self._draw(since - tree.since)
        for after, until in ((first, min(since, first + LOOKED_AT)), (tree.since, since)):
            samples, _ = tree.entries(after, until)
            samples = samples[(self._class_array[samples] == cls) & (self._queues.had_array[samples] == HAD_TURN)]
            if len(samples):
                chosen = int(samples[self._draw(len(samples))])
                self._reserve_had(cls, chosen)
                return chosen
        return None

    def _reserve_had(self, cls: int, sample: int) -> None:
        """Reserve a sample that had its turn in the lap."""
        found = NOT_LOADED
        if self._queues.is_resident(cls, sample):
            self.let_go(sample)
            found = LOADED
        self._count_for_next_lap(cls, sample, -1)
        self._queues.had[sample] = RESERVED
        self._reserved.setdefault(cls, {})[sample] = found
        self._ahead.add(sample)

    def _give_twice(self, cls: int, tree: Pass) -> int | None:
        """The pass was given all samples of a class, although it has no more opens than the class has paths: records of
        it were lost. The class is open to all."""
        assert self._passes is not None
        self._passes.given_twice += 1
        members = self._queues.members(cls)
        self._passes.open_to_all(cls, tree)
        reserved = self._reserved.get(cls)
        if reserved and len(reserved) == len(members):
            return self.choose_victim(reserved)
        self._begin_lap_of_pass(cls, tree)
        return None

    # What is retained

    def give_back(self, wanted_bytes: int) -> tuple[list[int], int]:
        """Let retained samples go, whole chunks drawn at random, for at least so many bytes if there are. The capacity
        is smaller by their bytes, until `take_back` or `restore`.

        Returns:
            The samples, which are residents no more, and their bytes. They are retained again once they are read again.
        """
        gone: list[int] = []
        before_bytes, chunks = self._retained_bytes, self._retained_chunks
        for left in range(len(chunks), max(0, len(chunks) - CHUNKS_TRIED), -1):
            if before_bytes - self._retained_bytes >= wanted_bytes:
                break
            drawn = int(self._random_retained.random() * left)
            chunks[drawn], chunks[left - 1] = chunks[left - 1], chunks[drawn]
            gone += self._let_go_chunk(chunks[left - 1])
        freed_bytes = before_bytes - self._retained_bytes
        self._lend(freed_bytes)
        self._free_bytes -= freed_bytes
        self.given_back += len(gone)
        return gone, freed_bytes

    def take_back(self, size_bytes: int) -> None:
        """So many of the bytes that were given back may be used again."""
        self._lend(-size_bytes)
        self._free_bytes += size_bytes

    def _let_go_chunk(self, chunk: int) -> list[int]:
        """A chunk's retained samples leave memory; those that had no turn in this lap are fresh."""
        queues, gone = self._queues, []
        for sample in self._cells[chunk].tolist():
            cls = self._class_of[sample]
            if sample < 0 or not self._is_retained[sample] or not queues.is_retained(cls, sample):
                continue
            if queues.had[sample]:
                self.let_go(sample)
            else:
                queues.make_fresh(cls, sample)
                self._this_lap[chunk] += 1
                self._free_bytes += self._bytes[sample]
                self._retained_bytes -= self._bytes[sample]
            gone.append(sample)
        self._chunks.file(chunk)
        return gone

    def _note_pace(self) -> None:
        """Update the pace. Once a lap, look at whether the stream is large enough."""
        self._requests_to_note = self._pace.note(self._room_samples())
        requests = (self._now - self._noted_at) // DELIVERED_PER_REQUEST
        if requests < self._pace.window:
            return
        alone = self.reads_alone - self._reads_alone_before
        self._noted_at, self._reads_alone_before = self._now, self.reads_alone
        if alone > ALONE_SHARE * requests:
            self._stream_more()

    def _stream_more(self) -> None:
        """Retain fewer chunks. What is in memory of them leaves with its turn."""
        stream_bytes = self._capacity_bytes - self._retained_limit_bytes
        until_bytes = min(int(stream_bytes * (1 + GROWTH)), GROWTH_TIMES * self._most_room_bytes)
        while self._retained_chunks and self._capacity_bytes - self._retained_limit_bytes < until_bytes:
            # They are in random order.
            self._stream_chunk(self._retained_chunks.pop())

    def _stream_chunk(self, chunk: int) -> None:
        for sample in self._cells[chunk].tolist():
            cls = self._class_of[sample]
            if sample < 0 or not self._is_retained[sample]:
                continue
            if self._queues.is_retained(cls, sample):
                self._retained_bytes -= self._bytes[sample]
            self._is_retained[sample] = 0
            self._retained_limit_bytes -= self._bytes[sample]
            if self._queues.stays[sample]:
                self._queues.stays[sample] = 0
                if self._queues.had[sample] != RESERVED:
                    self._count_for_next_lap(cls, sample, 1)

    def _retained_in(self, cls: int) -> int:
        """The bytes of a class's retained samples in memory."""
        queues = self._queues
        if not self._retained_bytes:
            return 0
        kept = queues.queue_array[queues.begun[cls] : queues.kept[cls]]
        waiting = queues.queue_array[queues.served[cls] : queues.stream[cls]]
        samples = np.concatenate([kept, waiting])
        return int(self._bytes_array[samples[self._retained_array[samples]]].sum())

    def _forget_reservation(self, sample: int) -> int:
        """Returns what the sample was when it was reserved."""
        cls = self._class_of[sample]
        of_class = self._reserved[cls]
        found = of_class.pop(sample)
        self._ahead.discard(sample)
        if found == RETAINED:
            self._hold_room(-self._bytes[sample])
        if not of_class:
            del self._reserved[cls]
        return found
