"""The turns of the pool policy: which sample answers a request."""

from collections.abc import Iterable

import numpy as np

from redoxfs.protocol.events import Load, Served
from redoxfs.protocol.pool.chunk_order import add
from redoxfs.protocol.pool.loads import Loads
from redoxfs.protocol.pool.queues import HAD_TURN, RESERVED
from redoxfs.protocol.pool.state import DELIVERED_PER_REQUEST


class PoolPolicy(Loads):
    """Which sample answers a request, and which chunks to load ahead. For its arguments see `PoolState`."""

    def request(self, sample: int) -> Served:
        """A turn for a sample of ``sample``'s class."""
        cls = self._class_of[sample]
        self._now += DELIVERED_PER_REQUEST
        self._asked[cls] += 1
        self._requests_to_note -= 1
        if self._requests_to_note < 0:
            self._requests_to_note = self._pace.note()
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            reserved = self._reserved.get(cls)
            if reserved:
                return self._turn_of_reserved(self.choose_victim(reserved), preempted=True)
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._turn_of_reserved(self._reserve_fresh(cls), preempted=False)
        # Before the answer has its turn: the answer itself must not be loaded for the next lap.
        loads = self._load_ahead() if self._free_bytes >= self._room_for_next_bytes else ()
        answer = self._take_out(cls, place)
        return Served(answer, loads, False, False, self._had_a_turn(cls, answer))

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample of ``sample``'s class: a resident, else one that a load on demand would read."""
        cls = self._class_of[sample]
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            if self._reserved.get(cls):
                return None
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._reserve_fresh(cls)
        chosen = self._take_out(cls, place)
        self._queues.had[chosen] = RESERVED
        self._reserved.setdefault(cls, {})[chosen] = True
        self._count_for_next_lap(cls, chosen, -1)
        return chosen

    def take(self, reserved: int) -> Served:
        """The turn of a sample that `reserve` reserved."""
        self._now += DELIVERED_PER_REQUEST
        return self._turn_of_reserved(reserved, preempted=False)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation: the sample is resident again if it was loaded and still fits, else fresh again."""
        cls = self._class_of[reserved]
        self._count_for_next_lap(cls, reserved, 1)
        if self._forget_reservation(reserved) and self._bytes[reserved] <= self._free_bytes:
            self._queues.make_resident_again(cls, reserved)
            self._free_bytes -= self._bytes[reserved]
            return True
        self._queues.make_fresh_again(cls, reserved)
        chunk = self._chunk_of[reserved]
        self._this_lap[chunk] += 1
        self._chunks.file(chunk)
        return False

    def let_go(self, kept: int) -> None:
        """A sample that was just served, and kept for the next lap, leaves memory after all."""
        cls = self._class_of[kept]
        self._queues.let_go(cls, kept)
        self._free_bytes += self._bytes[kept]
        self._count_for_next_lap(cls, kept, 1)

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s class, oldest first."""
        return self._reserved.get(self._class_of[sample], ())

    def reserve_again(self, sample: int) -> None:
        """After `restore`: a sample that had no turn in its lap is reserved, and not in memory."""
        cls = self._class_of[sample]
        self._count_for_next_lap(cls, sample, -1)
        self._reserved.setdefault(cls, {})[sample] = False
        self._queues.reserve_fresh(cls, sample)
        chunk = self._chunk_of[sample]
        self._this_lap[chunk] -= 1
        if not self._this_lap[chunk]:
            self._chunks.file(chunk)
        if self._queues.is_all_loaded(cls):
            self._run_over(cls)

    def skip(self, cls: int, lap: int) -> list[int]:
        """End a class's laps before ``lap`` as if all their samples had their turn, reserved ones included.

        The class is then in ``lap``, or in the first lap after it that has any of its samples. Nothing happens if it is
        there already, or if no lap has any.

        Returns:
            The samples that were in memory for the laps that are over: residents no more.
        """
        if self._lap[cls] >= lap or not self._parts.has_any(cls):
            return []
        touched = self._chunk_array[self._queues.fresh(cls)]
        add(self._chunks.this_lap_array, touched, -1)
        if self._runs_over[cls]:
            chunks = self._chunk_array[self._open_to_next_lap(cls)]
            add(self._chunks.next_lap_array, chunks, -1)
            touched = np.concatenate([touched, chunks])
            self._runs_over[cls] = 0
            self._running_over -= 1
        self._reserved.pop(cls, None)
        is_next_skipped = self._parts.lap_after(cls, int(self._lap[cls])) < lap
        let_go = self._queues.skip(cls, next_lap=is_next_skipped)
        if is_next_skipped:
            self._lap[cls] = lap - 1
            self._parts.enter(cls, lap - 1)
        self._free_bytes += self._size_bytes(let_go)
        self._chunks.file_all(touched)
        self._run_over(cls)
        self._begin_lap(cls)
        return let_go

    # Turns

    def _turn_of_reserved(self, sample: int, *, preempted: bool) -> Served:
        """Give a reserved sample its turn. It stays in `_reserved`, out of all loads, until the loads of its turn are
        decided.
        """
        cls = self._class_of[sample]
        loads: tuple[Load, ...] = () if self._reserved[cls][sample] else (self._load_on_demand(sample),)
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
        return Served(sample, loads, preempted, kept=self._had_a_turn(cls, sample))

    def _reserve_fresh(self, cls: int) -> int:
        """Reserve the fresh sample of a class without residents that is best read now."""
        chosen = self._choose_for(cls)
        self.reserve_again(chosen)
        return chosen

    def _resident_place(self, cls: int) -> int:
        """The queue place of a class's next answer; -1 where nothing is resident for this lap."""
        queues = self._queues
        served, arrived, loaded = queues.served[cls], queues.arrived[cls], queues.loaded[cls]
        if arrived < loaded:
            before = arrived
            arrived_by = self._now - self._in_flight
            while arrived < loaded and self._arrival[self._chunk_of[queues.queue[arrived]]] <= arrived_by:
                arrived += 1
            if arrived != before:
                queues.arrived[cls] = arrived
        if served < arrived:
            return served + self._draw(arrived - served)
        return served if served < loaded else -1

    def _take_out(self, cls: int, place: int) -> int:
        """Take the resident at ``place`` out of memory."""
        sample = self._queues.take_out(cls, place)
        self._free_bytes += self._bytes[sample]
        return sample

    def _forget_reservation(self, sample: int) -> bool:
        """True where the sample was in memory when it was reserved."""
        cls = self._class_of[sample]
        of_class = self._reserved[cls]
        was_loaded = of_class.pop(sample)
        if not of_class:
            del self._reserved[cls]
        return was_loaded
