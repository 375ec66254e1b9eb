"""Reads that a store carries out in the background: their order, their number, and the memory that they hold."""

import select
from collections.abc import Callable, Iterator, Sequence

import pytest
import trio
from patience import PATIENCE_S

from redoxfs.chunks import BackgroundRead, FileBytes, Payload, Stamp
from redoxfs.node.loader import Loader
from redoxfs.node.transfers import Transfers


class Held(BackgroundRead):
    """A read that is under way until `finish`."""

    def __init__(self, number: int, held_bytes: int = 1) -> None:
        super().__init__((number,), held_bytes)
        self.number = number
        self.began = self.ended_early = False
        self._done: Callable[[Sequence[Payload]], None]

    def begin(self, done: Callable[[Sequence[Payload]], None]) -> Callable[[], None]:
        self.began = True
        self._done = done
        return self._end_early

    def finish(self) -> None:
        data = b"%d" % self.number
        self._done([(FileBytes(data, Stamp(len(data), 0, 1), changed=False),)])

    def _end_early(self) -> None:
        self.ended_early = True
        self._done(())


@pytest.fixture
def transfers() -> Iterator[Transfers]:
    transfers = Transfers(2, 100)
    yield transfers
    transfers.close(0)


def began(reads: Sequence[Held]) -> list[int]:
    return [read.number for read in reads if read.began]


def taken(transfers: Transfers) -> list[int]:
    return [read.samples[0] for read, _ in transfers.take(100)]


def is_readable(transfers: Transfers) -> bool:
    return bool(select.select([transfers.fileno()], [], [], 0)[0])


def test_so_many_reads_are_under_way_and_no_more(transfers: Transfers) -> None:
    reads = [Held(number) for number in range(5)]
    transfers.submit(reads, False)
    assert began(reads) == [0, 1]
    reads[1].finish()
    assert began(reads) == [0, 1, 2]
    transfers.set_threads(4)
    assert began(reads) == [0, 1, 2, 3, 4]
    assert transfers.counts()["running"] == 4


def test_reads_hold_so_much_memory_and_no_more(transfers: Transfers) -> None:
    transfers.set_threads(10)
    reads = [Held(0, 60), Held(1, 40), Held(2, 1), Held(3, 1000), Held(4, 1)]
    transfers.submit(reads, False)
    assert began(reads) == [0, 1]
    reads[0].finish()
    assert began(reads) == [0, 1, 2]
    reads[1].finish()
    assert began(reads) == [0, 1, 2]
    # A read that holds more than the limit goes alone.
    reads[2].finish()
    assert began(reads) == [0, 1, 2, 3]
    reads[3].finish()
    assert began(reads) == [0, 1, 2, 3, 4]


def test_awaited_reads_begin_first_and_are_taken_first(transfers: Transfers) -> None:
    reads = [Held(number) for number in range(8)]
    transfers.submit(reads[:4], False)
    transfers.submit(reads[4:6], True)
    transfers.submit(reads[6:], False)
    transfers.hasten(reads[3])
    for number in (0, 4, 3, 1, 2, 5, 6, 7):
        assert reads[number].began
        reads[number].finish()
    assert taken(transfers) == [4, 3, 0, 1, 2, 5, 6, 7]


def test_a_read_is_hastened_wherever_it_is(transfers: Transfers) -> None:
    reads = [Held(number) for number in range(3)]
    transfers.submit(reads, False)
    reads[0].finish()
    reads[1].finish()
    transfers.hasten(reads[1])
    transfers.hasten(reads[2])
    reads[2].finish()
    assert taken(transfers) == [1, 2, 0]
    transfers.hasten(reads[0])


def test_only_a_read_that_has_not_begun_is_cancelled(transfers: Transfers) -> None:
    reads = [Held(number) for number in range(4)]
    transfers.submit(reads, False)
    assert not transfers.cancel(reads[0])
    assert transfers.cancel(reads[2])
    assert not transfers.cancel(reads[2])
    reads[0].finish()
    assert began(reads) == [0, 1, 3]


def test_the_descriptor_is_readable_while_there_are_results(transfers: Transfers) -> None:
    reads = [Held(number) for number in range(2)]
    transfers.submit(reads, False)
    assert not is_readable(transfers)
    reads[0].finish()
    reads[1].finish()
    assert is_readable(transfers)
    assert len(transfers.take(1)) == 1
    assert is_readable(transfers)
    assert len(transfers.take(1)) == 1
    assert not is_readable(transfers)


def test_a_close_ends_reads_that_are_under_way() -> None:
    transfers = Transfers(2, 100)
    reads = [Held(number) for number in range(3)]
    transfers.submit(reads, False)
    transfers.close(0)
    assert [read.ended_early for read in reads] == [True, True, False]
    assert began(reads) == [0, 1]


def test_reads_that_cannot_begin_are_over_and_others_go_on(
    transfers: Transfers, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(Held):
        def begin(self, done: Callable[[Sequence[Payload]], None]) -> Callable[[], None]:  # never called
            raise RuntimeError("can't start new thread")

    reads = [Refused(0), Refused(1), Refused(2), Held(3)]
    transfers.submit(reads, True)
    assert began(reads) == [3]
    assert transfers.counts()["running"] == 1
    assert taken(transfers) == [0, 1, 2]
    assert len(caplog.records) == 3


def test_counts_are_of_reads_and_their_bytes_and_time(transfers: Transfers) -> None:
    reads = [Held(0, 30), Held(1, 50), Held(2, 7)]
    transfers.submit(reads, False)
    reads[0].finish()
    reads[1].finish()
    counts = transfers.counts()
    assert {name: counts[name] for name in ("queued", "running", "done", "reads", "amount", "threads")} == {
        "queued": 0,
        "running": 1,
        "done": 2,
        "reads": 2,
        "amount": 80,
        "threads": 2,
    }
    assert transfers.counts()["read_ns"] > counts["read_ns"] > 0


async def test_a_loader_delivers_what_a_store_carries_out_by_itself() -> None:
    delivered: list[int] = []
    loader = Loader(lambda read, _payloads: delivered.append(read.samples[0]), threads=2, most_held_bytes=100)
    reads = [Held(number) for number in range(4)]
    loader.submit(reads, awaited=True)
    assert loader.cancel(reads[3])
    for number in (1, 0, 2):
        await trio.to_thread.run_sync(reads[number].finish)
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < 3:
            await trio.lowlevel.checkpoint()
    assert sorted(delivered) == [0, 1, 2]
    loader.close()
