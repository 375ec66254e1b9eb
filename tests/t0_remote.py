"""The distributed slot protocol: the paper's running examples, and what it does about each event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import RemoteAnswer, RemoteRead, Served, SlotNode, SlotPolicy
from redoxfs.protocol.remote import Delivered, Hit, homes_by_vc
from redoxfs.protocol.trace import OFF_TRACE, HomeTrace, OwnTrace

SLOTS = 4
ROOM = 8 * 100
"""An answer may fill an eighth of the remote memory; so much never stands in the way."""


def two_nodes(
    cells: list[list[int]], vc_start: list[int], *, window: int, room: int = ROOM, size: int = 1
) -> tuple[SlotNode, SlotNode]:
    """VC v lives at node v % 2, so VC 1 has the home of the paper's example."""
    array = np.array(cells, np.int32)
    policies = [SlotPolicy(array, np.array(vc_start, np.int32), samples=array.size, seed=seed) for seed in (0, 1)]
    homes = homes_by_vc(policies[0].columns, array.shape[1], 2)
    sizes = np.full(array.size, size, np.int32)
    nodes = [
        SlotNode(i, policy, homes, sizes, remote_memory_bytes=room, window=window) for i, policy in enumerate(policies)
    ]
    return nodes[0], nodes[1]


def vc_1_of(chunks: int) -> tuple[list[list[int]], list[int]]:
    """A VC 0 of one chunk, and VC 1 of ``chunks``: sample 4 * i + o lies in slot o of chunk i."""
    return np.arange(SLOTS * (1 + chunks)).reshape(-1, SLOTS).tolist(), [0, 1, 1 + chunks]


def sent_by(node: SlotNode, sample: int) -> RemoteRead:
    message = node.request(sample)
    assert isinstance(message, RemoteRead)
    return message


def answer_of(node: SlotNode, message: RemoteRead) -> RemoteAnswer:
    answer = node.handle(message).answer
    assert answer is not None
    return answer


def read(requester: SlotNode, home: SlotNode, sample: int) -> tuple[int, tuple[int, ...]]:
    """A request that needs a message: the sample served, and those prefetched."""
    answer = answer_of(home, sent_by(requester, sample))
    ((_, _, served),) = requester.receive(answer)
    return served, answer.prefetched


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
    assert handled.answer == RemoteAnswer(1, 0, of_chunk[3], (of_chunk[0], of_chunk[1]))
    assert node0.receive(handled.answer) == (Delivered(1, 0, of_chunk[3]),)

    # Read 12 finds its sample in node 0's remote VC. Read 15 is sent: 17 is remembered as prefetched, 16 conflicts
    # with 15 itself, and 19 and 20 are prefetched: the one was left from the first load, the other came with 15.
    assert node0.request(file[12]) == Served(of_chunk[0])
    message = sent_by(node0, file[15])
    assert message.hits == (Hit(of_chunk[0], 1),)
    handled = node1.handle(message)
    ((second, _),) = handled.loads
    assert handled.answer == RemoteAnswer(1, 1, SLOTS * second + 3, (of_chunk[2], SLOTS * second + 0))
    node0.receive(handled.answer)

    served, prefetched = read(node0, node1, file[16])
    assert served % SLOTS == 3
    assert prefetched == ()
    assert [node0.request(file[n]) for n in (17, 19, 20)] == [
        Served(of_chunk[1]),
        Served(of_chunk[2]),
        Served(SLOTS * second),
    ]


def test_what_was_prefetched_in_an_overlapping_window_still_conflicts() -> None:
    # §3.6: windows [(a), b, c, c', d] and [(b), c, c', d, c'']. Slots: a 3, b 2, c and those in conflict 0, d 1.
    node0, node1 = two_nodes(*vc_1_of(5), window=5)
    a, b, c, c1, d, c2 = 4 + 3, 8 + 2, 4 + 0, 8 + 0, 4 + 1, 12 + 0
    for node in (node0, node1):
        node.follow(0, epoch=0, order=np.array([a, b, c, c1, d, c2]))
    node1.request(b)  # takes slot 2 out of memory, so that b is not prefetched
    served, first = read(node0, node1, a)
    assert [sample % SLOTS for sample in (served, *first)] == [3, 0, 1]
    # b loads a chunk, which fills slots 0 and 1 again: c and d are prefetched already, c' and c'' conflict with c.
    served, second = read(node0, node1, b)
    assert (served % SLOTS, second) == (2, ())
    assert [node0.request(c), node0.request(d)] == [Served(sample) for sample in first]


def test_without_prefetch_an_answer_brings_one_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=1)
    for node in (node0, node1):
        node.follow(0, epoch=0, order=np.arange(4, 12))
    answers = [read(node0, node1, sample) for sample in range(4, 12)]
    assert sorted(served for served, _ in answers) == list(range(4, 12))
    assert not any(prefetched for _, prefetched in answers)


def test_a_node_reads_its_own_virtual_chunks_by_itself() -> None:
    node0, _ = two_nodes(*vc_1_of(2), window=5)
    served = node0.request(2)
    assert isinstance(served, Served)
    assert served.is_demanded


def test_an_answer_brings_no_more_than_the_room_that_was_sent() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5, room=8 * 25, size=10)
    for node in (node0, node1):
        node.follow(0, epoch=0, order=np.array([4, 5, 6, 7]))
    message = sent_by(node0, 4)
    assert message.room_bytes == 25
    assert node0.used_bytes() == 25, "set aside until the answer is there"
    answer = answer_of(node1, message)
    assert [sample % SLOTS for sample in answer.prefetched] == [1, 2]
    node0.receive(answer)
    assert node0.used_bytes() == 20


def test_a_request_off_the_trace_is_served_and_nothing_is_prefetched_for_it() -> None:
    node0, node1 = two_nodes(*vc_1_of(2), window=5)
    node0.follow(0, epoch=0, order=np.array([4, 5]))
    node1.follow(0, epoch=0, order=np.array([4, 5]))
    message = sent_by(node0, 6)
    assert message.position == OFF_TRACE
    answer = answer_of(node1, message)
    assert answer.sample is not None
    assert answer.prefetched == ()


def test_a_home_that_has_not_been_told_of_the_epoch_serves_without_prefetch() -> None:
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
    assert first.answer is not None
    assert len(node0.receive(first.answer)) == 1
    assert node0.receive(first.answer) == (), "a repeated answer serves nobody"


def test_an_answer_is_kept_until_the_requester_has_it() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    node0.follow(0, epoch=0, order=np.array([4, 5, 9]))
    node1.follow(0, epoch=0, order=np.array([4, 5, 9]))
    first = sent_by(node0, 4)
    brought = answer_of(node1, first)
    second = sent_by(node0, 8)
    handled = node1.handle(second)
    assert handled.settled == (), "the first answer has not arrived"
    for answer in (brought, handled.answer):
        assert answer is not None
        node0.receive(answer)
    node0.request(5)
    third = node1.handle(sent_by(node0, 9))
    assert handled.answer is not None
    assert set(third.settled) == {brought.sample, handled.answer.sample, *brought.prefetched}
    assert node1.handle(first).answer is None


def test_a_request_that_crosses_its_prefetched_sample_is_given_that_one() -> None:
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
    assert set(node0.receive(early)) == {Delivered(1, 0, early.sample or 0), Delivered(1, 1, ahead)}
    assert node0.used_bytes() == 0


def test_a_sample_that_finds_its_request_answered_takes_the_place_of_the_prefetched_one() -> None:
    node0, node1 = two_nodes(*vc_1_of(3), window=5)
    order = np.array([4, 5, 9])
    for node in (node0, node1):
        node.follow(0, epoch=0, order=order)
    first, second = sent_by(node0, 4), sent_by(node0, 5)
    late = answer_of(node1, second)  # overtakes the first message
    node1.request(6)
    node1.request(6)  # a load, which fills slot 1 once more
    early = answer_of(node1, first)
    (ahead,) = early.prefetched
    assert late.sample is not None
    assert Delivered(1, 1, ahead) in node0.receive(early)
    assert node0.receive(late) == ()
    assert node0.used_bytes() == 1
    assert node0.request(9) == Served(late.sample)
    assert node0.used_bytes() == 0


def test_a_report_that_is_overtaken_costs_no_sample() -> None:
    node0, node1 = two_nodes(*vc_1_of(4), window=5)
    order = np.array([4, 5, 8, 9, 12])
    for node in (node0, node1):
        node.follow(0, epoch=0, order=order)
    _, (ahead,) = read(node0, node1, 4)
    assert node0.request(5) == Served(ahead)
    reports, overtakes = sent_by(node0, 8), sent_by(node0, 9)
    assert reports.hits == (Hit(ahead, 1),)
    # The home believes that the sample sent ahead is under way for 9, and learns from the report that it is not.
    assert answer_of(node1, overtakes).sample is None
    answer = answer_of(node1, reports)
    delivered = node0.receive(answer)
    assert sorted(d.number for d in delivered) == [1, 2]


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=30))
def test_positions_count_the_requests_at_one_home(order: list[int], asked: list[int]) -> None:
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
def test_a_position_that_the_trace_does_not_have_is_known_as_such(position: int) -> None:
    trace = HomeTrace(np.arange(3), np.arange(3))
    assert not trace.pass_by(position)
    assert trace.pass_by(2)
