"""The distributed slot protocol: the paper's running examples, and the reaction to each event."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import (
    Delivered,
    Hit,
    Pending,
    RemoteAnswer,
    RemoteRead,
    Served,
    SlotNode,
    SlotPolicy,
    homes_by_vc,
)
from redoxfs.protocol.slot_nodes.requester import MOST_PASSED
from redoxfs.protocol.trace import OFF_TRACE, HomeTrace, OwnTrace

SLOTS = 4
ROOM = 8 * 100
"""An answer may fill an eighth of the remote memory; this much never limits it."""


def two_nodes(
    cells: list[list[int]],
    vc_start: list[int],
    *,
    window: int,
    room: int = ROOM,
    size: int = 1,
    order: Sequence[int] | None = None,
) -> tuple[SlotNode, SlotNode]:
    """VC v lives at node v % 2, so VC 1 has the home of the paper's example. Both know the ``order`` of node 0."""
    array = np.array(cells, np.int32)
    policies = [SlotPolicy(array, np.array(vc_start, np.int32), samples=array.size, seed=seed) for seed in (0, 1)]
    homes = homes_by_vc(policies[0].columns, array.shape[1], 2)
    sizes = np.full(array.size, size, np.int32)
    nodes = [
        SlotNode(i, policy, homes, sizes, remote_memory_bytes=room, window=window) for i, policy in enumerate(policies)
    ]
    if order is not None:
        for node in nodes:
            node.follow(0, epoch=0, order=np.array(order))
    return nodes[0], nodes[1]


def vc_1_of(chunks: int) -> tuple[list[list[int]], list[int]]:
    """A VC 0 of one chunk, and VC 1 of ``chunks``: sample 4 * i + o lies in slot o of chunk i."""
    return np.arange(SLOTS * (1 + chunks)).reshape(-1, SLOTS).tolist(), [0, 1, 1 + chunks]


def sent_by(node: SlotNode, sample: int) -> RemoteRead:
    """The message of a request. Tickets and messages are counted alike where no request needs two of them."""
    assert isinstance(node.request(sample), Pending)
    return taken_out(node)


def taken_out(node: SlotNode) -> RemoteRead:
    (message,) = node.outbox
    node.outbox.clear()
    assert isinstance(message, RemoteRead)
    return message


def answer_of(node: SlotNode, message: RemoteRead) -> RemoteAnswer:
    answer = node.handle(message).answer
    assert isinstance(answer, RemoteAnswer)
    return answer


def received(node: SlotNode, answer: RemoteAnswer) -> tuple[Delivered, ...]:
    delivered = node.receive(answer)
    assert delivered is not None
    return delivered


def read(requester: SlotNode, home: SlotNode, sample: int) -> tuple[int, tuple[int, ...]]:
    """A request that needs a message: the sample served, and those prefetched."""
    answer = answer_of(home, sent_by(requester, sample))
    ((_, served),) = received(requester, answer)
    assert served is not None
    return served.sample, answer.prefetched


def remote(sample: int) -> Served:
    return Served(sample, remote=True)


def reserve_remote(requester: SlotNode, home: SlotNode, sample: int) -> int:
    """A reservation that needs a message; returns the reserved sample."""
    assert isinstance(requester.reserve(sample), Pending)
    ((_, served),) = received(requester, answer_of(home, taken_out(requester)))
    assert served is not None
    return served.sample


def test_the_running_example_of_remote_reads() -> None:
    # §3.7, figure (e): requests of node 0 at node 1, by their serial numbers; all are mapped to VC 1.
    node0, node1 = two_nodes(*vc_1_of(4), window=5)
    offsets = {10: 3, 12: 0, 15: 3, 16: 3, 17: 1, 19: 2, 20: 0}
    chunk_of_read = {10: 1, 12: 2, 15: 2, 16: 3, 17: 3, 19: 4, 20: 4}
    file = {read: SLOTS * chunk_of_read[read] + offset for read, offset in offsets.items()}
    order = np.array(list(file.values()))
    for node in (node0, node1):
        node.follow(0, epoch=0, order=order)

    # The VC is empty, so read 10 loads a chunk. Reads 15 and 16 conflict with it; 12 and 17 are prefetched.
    message = sent_by(node0, file[10])
    handled = node1.handle(message)
    ((chunk, loaded),) = handled.loads
    of_chunk = [SLOTS * chunk + offset for offset in range(SLOTS)]
    assert sorted(loaded) == of_chunk
    assert handled.answer == RemoteAnswer(1, 0, of_chunk[3], (of_chunk[0], of_chunk[1]), (1, 1, 1))
    assert received(node0, handled.answer) == (Delivered(0, remote(of_chunk[3])),)

    # Read 12 finds its sample in node 0's remote VC. Read 15 is sent: 17 is remembered as prefetched, 16 conflicts
    # with 15 itself, and 19 and 20 are prefetched: the one was left from the first load, the other came with 15.
    assert node0.request(file[12]) == remote(of_chunk[0])
    message = sent_by(node0, file[15])
    assert message.hits == (Hit(of_chunk[0], 1),)
    handled = node1.handle(message)
    ((second, _),) = handled.loads
    assert handled.answer == RemoteAnswer(1, 1, SLOTS * second + 3, (of_chunk[2], SLOTS * second + 0), (1, 1, 1))
    node0.receive(handled.answer)

    served, prefetched = read(node0, node1, file[16])
    assert served % SLOTS == 3
    assert prefetched == ()
    assert [node0.request(file[n]) for n in (17, 19, 20)] == [
        remote(of_chunk[1]),
        remote(of_chunk[2]),
        remote(SLOTS * second),
    ]
    # Left out, while there was a sample: 17 for 15, as it is remembered; 17, 19 and 20 for 16.
    assert (node0.prefetched, node1.conflicts) == (4, 4)


def test_overlapping_windows_conflict() -> None:
    # §3.6: windows [(a), b, c, c', d] and [(b), c, c', d, c'']. Slots: a 3, b 2, c and those in conflict 0, d 1.
    a, b, c, c1, d, c2 = 4 + 3, 8 + 2, 4 + 0, 8 + 0, 4 + 1, 12 + 0
    node0, node1 = two_nodes(*vc_1_of(5), window=5, order=[a, b, c, c1, d, c2])
    node1.request(b)  # takes slot 2 out of memory, so that b is not prefetched
    served, first = read(node0, node1, a)
    assert [sample % SLOTS for sample in (served, *first)] == [3, 0, 1]
    # b loads a chunk, which fills slots 0 and 1 again: c and d are prefetched already, c' and c'' conflict with c.
    served, second = read(node0, node1, b)
    assert (served % SLOTS, second) == (2, ())
    assert node1.conflicts == 1 + 4
    assert [node0.request(c), node0.request(d)] == [remote(sample) for sample in first]


def test_an_answer_without_prefetch_brings_one_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=1, order=range(4, 12))
    answers = [read(node0, node1, sample) for sample in range(4, 12)]
    assert sorted(served for served, _ in answers) == list(range(4, 12))
    assert not any(prefetched for _, prefetched in answers)


def test_a_node_reads_its_own_virtual_chunks_by_itself() -> None:
    node0, _ = two_nodes(*vc_1_of(2), window=5)
    served = node0.request(2)
    assert isinstance(served, Served)
    assert served.is_demanded


def test_an_answer_fits_in_the_room_of_its_message() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5, room=8 * 25, size=10, order=[4, 5, 6, 7])
    message = sent_by(node0, 4)
    assert message.room_bytes == 25
    assert node0.used_bytes() == 25, "granted until the answer is there"
    answer = answer_of(node1, message)
    assert [sample % SLOTS for sample in answer.prefetched] == [1, 2]
    node0.receive(answer)
    assert node0.used_bytes() == 20


def test_a_request_off_the_trace_prefetches_nothing() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5)
    node0.follow(0, epoch=0, order=np.array([4, 5]))
    node1.follow(0, epoch=0, order=np.array([4, 5]))
    message = sent_by(node0, 6)
    assert message.position == OFF_TRACE
    answer = answer_of(node1, message)
    assert answer.sample is not None
    assert answer.prefetched == ()


def test_a_home_without_a_trace_does_not_prefetch() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5)
    node0.follow(0, epoch=3, order=np.array([4, 5]))
    assert read(node0, node1, 4)[1] == ()


def test_a_repeated_message_gets_the_answer_that_was_given() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5)
    message = sent_by(node0, 4)
    first = node1.handle(message)
    again = node1.handle(message)
    assert again.answer == first.answer
    assert again.loads == ()
    assert (first.repeated, again.repeated) == (False, True)
    assert first.answer is not None
    assert len(node0.receive(first.answer) or ()) == 1
    assert node0.receive(first.answer) is None, "a repeated answer serves nobody"


def test_an_answer_is_kept_until_it_is_acknowledged() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    node0.follow(0, epoch=0, order=np.array([4, 5, 9]))
    node1.follow(0, epoch=0, order=np.array([4, 5, 9]))
    first = sent_by(node0, 4)
    brought = answer_of(node1, first)
    second = sent_by(node0, 8)
    assert second.acked_below == 0, "the first answer has not arrived"
    late = answer_of(node1, second)
    assert node1.handle(first).answer == brought
    for answer in (brought, late):
        node0.receive(answer)
    node0.request(5)
    third = sent_by(node0, 9)
    assert third.acked_below == 2
    answer_of(node1, third)
    for message in (first, second):
        handled = node1.handle(message)
        assert handled.answer is None
        assert handled.repeated


def test_a_request_gets_the_prefetched_sample_it_crosses() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5)
    order = np.array([4, 5])
    for node in (node0, node1):
        node.follow(0, epoch=0, order=order)
    first, second = sent_by(node0, 4), sent_by(node0, 5)
    early = answer_of(node1, first)
    (ahead,) = early.prefetched
    late = answer_of(node1, second)
    assert late.sample is None
    # The answers arrive in the wrong order.
    assert node0.receive(late) == ()
    assert received(node0, early) == (Delivered(0, remote(early.sample or 0)), Delivered(1, remote(ahead)))
    assert node0.used_bytes() == 0


def test_a_late_sample_takes_the_prefetched_one_s_slot() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5, order=[4, 5, 9])
    first, second = sent_by(node0, 4), sent_by(node0, 5)
    late = answer_of(node1, second)  # overtakes the first message
    node1.request(6)
    node1.request(6)  # a load, which fills slot 1 once more
    early = answer_of(node1, first)
    (ahead,) = early.prefetched
    assert late.sample is not None
    assert Delivered(1, remote(ahead)) in received(node0, early)
    assert node0.receive(late) == ()
    assert node0.used_bytes() == 1
    assert node0.request(9) == remote(late.sample)
    assert node0.used_bytes() == 0


def test_a_late_sample_takes_the_prefetched_one_s_memory() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=5, room=8, order=[4, 5, 9])
    first = sent_by(node0, 4)
    others = [sent_by(node0, 6) for _ in range(7)]
    second = sent_by(node0, 5)
    assert [message.room_bytes for message in (first, *others, second)] == [1] * 8 + [0]
    late = answer_of(node1, second)
    assert late.sample is not None
    for _ in range(2):
        node1.request(7)  # a load, which fills slot 1 once more
    early = answer_of(node1, first)
    assert [ticket for ticket, _ in received(node0, early)] == [0, 8]
    assert sent_by(node0, 7).room_bytes == 0, "the answered request's sample, still under way, needs it"
    assert node0.receive(late) == ()
    assert node0.keeps(late.sample)


def test_an_overtaken_report_costs_no_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=5, order=[4, 5, 8, 9, 12])
    _, (ahead,) = read(node0, node1, 4)
    assert node0.request(5) == remote(ahead)
    reports, overtakes = sent_by(node0, 8), sent_by(node0, 9)
    assert reports.hits == (Hit(ahead, 1),)
    # The home believes that the sample sent ahead is under way for 9, and learns from the report that it is not.
    assert answer_of(node1, overtakes).sample is None
    answer = answer_of(node1, reports)
    assert sorted(ticket for ticket, _ in received(node0, answer)) == [1, 2]


def test_an_answer_lists_the_awaited_sample_first() -> None:
    assert RemoteAnswer(1, 0, 7, (5, 6), (1, 1, 1)).samples == (7, 5, 6)
    assert RemoteAnswer(1, 0, None, (5, 6), (1, 1)).samples == (5, 6)


def test_own_samples_are_reserved_by_the_policy() -> None:
    node0, _ = two_nodes(*vc_1_of(2), window=5)
    reserved = node0.reserve(2)
    assert reserved == 2
    assert not node0.put_back(2)
    assert node0.reserve(2) == 2
    served = node0.take(2)
    assert served.is_demanded
    assert not served.remote
    assert node0.outbox == []
    assert node0.chunk_of(6) == 1
    assert node0.laps(np.array([2, 6])).tolist() == [1, 1]


def test_a_remote_reservation_is_a_claim_without_a_turn() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5, order=[4, 5, 6])
    assert node0.reserve(4) == Pending(0)
    message = taken_out(node0)
    assert message.position == 0
    answer = answer_of(node1, message)
    assert [sample % SLOTS for sample in answer.samples] == [0, 1, 2]
    assert received(node0, answer) == (Delivered(0, remote(answer.samples[0])),)
    # From the remote VC at once; the next message reports it to the home.
    assert node0.reserve(5) == answer.samples[1]
    assert node0.used_bytes() == node0.held() == 1, "reserved samples do not count"
    assert node0.prefetched == 2
    for sample in answer.samples[:2]:
        assert node0.take(sample) == remote(sample)
    assert sent_by(node0, 8).hits == (Hit(answer.samples[1], 1),)


def test_a_put_back_sample_answers_without_a_message() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    reserved = reserve_remote(node0, node1, 4)
    assert node0.put_back(reserved)
    assert (node0.keeps(reserved), node0.used_bytes(), node0.held()) == (True, 1, 1)
    assert node0.reserve(8) == reserved
    assert node0.put_back(reserved)
    assert node0.request(12) == remote(reserved)
    assert (node0.keeps(reserved), node0.used_bytes(), node0.held()) == (False, 0, 0)
    message = sent_by(node0, 4)
    assert message.hits == (), "the home knows it"
    assert answer_of(node1, message).sample != reserved


def test_a_put_back_remote_sample_without_room_is_evicted() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5, room=9, size=10)
    reserved = reserve_remote(node0, node1, 4)
    assert not node0.put_back(reserved)
    assert (node0.keeps(reserved), node0.used_bytes(), node0.held()) == (False, 0, 1)
    assert node0.request(8) == remote(reserved)
    assert (node0.used_bytes(), node0.held()) == (0, 0)


def test_reserve_is_refused_where_the_home_may_repeat_a_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(1), window=5)
    assert node0.reserve(4) == Pending(0)
    assert node0.reserve(4) is None, "one is under way"
    node0.receive(answer_of(node1, taken_out(node0)))
    assert node0.reserve(4) is None, "one is reserved"
    # A request takes no turn from a reservation. The next lap begins, and its sample is the same.
    assert read(node0, node1, 4)[0] == 4
    assert node0.take(4) == remote(4)
    assert node0.reserve(4) == Pending(2)


def test_a_prefetched_sample_is_not_reserved_twice() -> None:
    node0, node1 = two_nodes(*vc_1_of(1), window=5, order=[5, 4])
    assert reserve_remote(node0, node1, 4) == 4
    for sample in (4, 6, 7):
        node1.request(sample)  # the lap of all slots but 5's is over, and 4 in memory for the next
    node0.follow(0, epoch=1, order=np.array([5, 4]))
    node1.follow(0, epoch=1, order=np.array([5, 4]))
    node1.request(5)
    node1.request(6)
    assert read(node0, node1, 5) == (5, (4,))
    assert node0.reserve(4) is None
    assert node0.request(4) == remote(4)
    assert node0.take(4) == remote(4)


def test_a_cancelled_request_s_sample_is_kept() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    message = sent_by(node0, 4)
    node0.cancel(0)
    node0.cancel(0)
    answer = answer_of(node1, message)
    assert node0.receive(answer) == ()
    assert answer.sample is not None
    assert node0.keeps(answer.sample)
    assert node0.request(8) == remote(answer.sample)
    assert node0.outbox == []


def test_a_request_waits_for_a_cancelled_one_s_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    assert node0.reserve(4) == Pending(0)
    message = taken_out(node0)
    node0.cancel(0)
    assert node0.reserve(12) == Pending(1)
    node0.cancel(1)
    assert node0.request(8) == Pending(2)
    assert node0.outbox == []
    answer = answer_of(node1, message)
    assert received(node0, answer) == (Delivered(2, remote(answer.sample or 0)),)
    assert reserve_remote(node0, node1, 4) != answer.sample


def test_a_cancelled_request_s_sample_goes_to_a_waiting_one() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    first, second = sent_by(node0, 4), sent_by(node0, 8)
    node0.cancel(0)
    answers = [answer_of(node1, message) for message in (first, second)]
    assert received(node0, answers[0]) == (Delivered(1, remote(answers[0].sample or 0)),)
    assert received(node0, answers[1]) == ()
    assert node0.request(12) == remote(answers[1].sample or 0)
    assert (node0.used_bytes(), node0.held()) == (0, 0)


def test_a_remote_request_preempts_a_stat_at_the_home() -> None:
    node0, node1 = two_nodes(*vc_1_of(1), window=5)
    assert node1.reserve(4) == 4
    handled = node1.handle(sent_by(node0, 5))
    assert handled.preempted == ()
    handled = node1.handle(sent_by(node0, 4))
    assert handled.preempted == (4,)
    assert isinstance(handled.answer, RemoteAnswer)
    assert handled.answer.sample == 4


def test_a_returning_path_spends_the_left_over_position() -> None:
    a, p, q = 4, 5, 9
    node0, node1 = two_nodes(*vc_1_of(4), window=5, order=[a, p, q])
    delayed = sent_by(node0, a)
    node0.put_back(reserve_remote(node0, node1, p))
    assert isinstance(node0.request(q), Served)
    message = sent_by(node0, p)
    assert (message.position, message.passed) == (2, ())
    node0.receive(answer_of(node1, message))
    for _ in range(2):
        node1.request(6)  # a load, which fills p's slot once more
    # The delayed message looks ahead at both requests, which were made: samples sent for them would be left over.
    assert answer_of(node1, delayed).prefetched == ()


def test_a_position_without_a_claim_is_reported() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=5, order=[6, 5, 4])
    node0.put_back(reserve_remote(node0, node1, 9))  # off the trace: by a walk of the tree
    assert isinstance(node0.request(5), Served)
    for _ in range(2):
        node1.request(7)  # a load, which fills 5's slot once more
    message = sent_by(node0, 6)
    assert message.passed == (1,)
    answer = answer_of(node1, message)
    assert [sample % SLOTS for sample in answer.prefetched] == [0], "for 4, not for 5"
    node0.receive(answer)
    assert sent_by(node0, 9).position == OFF_TRACE


def test_positions_that_pass_during_a_long_loss_are_reported_message_by_message() -> None:
    chunks = MOST_PASSED // SLOTS + 3
    remote = range(SLOTS, SLOTS * (1 + chunks))
    node0, _ = two_nodes(*vc_1_of(chunks), window=5, order=remote)
    node0.lost(1)
    *passing, before_last, last = remote
    for sample in passing:
        assert isinstance(node0.request(sample), Served)
    node0.found(1)
    first, second = sent_by(node0, before_last), sent_by(node0, last)
    assert len(first.passed) == MOST_PASSED
    assert [*first.passed, *second.passed] == list(range(len(passing)))


def test_positions_end_with_their_epoch() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=1)
    order = np.array([5, 9, 4])
    for node in (node0, node1):
        node.follow(0, epoch=0, order=order)
    node0.put_back(reserve_remote(node0, node1, 5))
    assert isinstance(node0.request(9), Served)
    node0.put_back(reserve_remote(node0, node1, 4))
    node0.follow(0, epoch=1, order=order)
    node1.follow(0, epoch=1, order=order)
    assert isinstance(node0.request(4), Served)
    message = sent_by(node0, 13)
    assert (message.epoch, message.position, message.passed) == (1, OFF_TRACE, (2,))


def test_an_old_claim_spends_no_position_of_the_next_epoch() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=5)
    for epoch, order in enumerate(([5], [9, 4])):
        for node in (node0, node1):
            node.follow(0, epoch=epoch, order=np.array(order))
        if epoch == 0:
            message = sent_by(node0, 5)
            node0.cancel(0)
    assert node0.request(9) == Pending(1)
    assert node0.outbox == []
    assert len(received(node0, answer_of(node1, message))) == 1
    assert sent_by(node0, 4).passed == (0,)


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=30))
def test_trace_positions_count_the_requests_at_one_home(order: list[int], asked: list[int]) -> None:
    homes = np.arange(10, dtype=np.int8) % 3
    trace = OwnTrace(np.array(order, np.int32), homes)
    left = {home: [s for s in order if s % 3 == home] for home in range(3)}
    for sample in asked:
        mine = left[sample % 3]
        expected = mine.index(sample) if sample in mine else OFF_TRACE
        assert trace.pass_by(sample) == expected
        if expected != OFF_TRACE:
            mine[expected] = -1


@pytest.mark.parametrize("position", [OFF_TRACE, 3])
def test_an_unknown_position_is_off_the_trace(position: int) -> None:
    trace = HomeTrace(np.arange(3), np.arange(3))
    assert not trace.pass_by(position)
    assert trace.pass_by(2)
