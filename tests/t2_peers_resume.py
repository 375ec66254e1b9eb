"""Nodes that restart together exchange their files; a node that restarts alone joins the others."""

from typing import Any

import grpc
import pytest
import trio
from patience import PATIENCE_S, until_in_trio
from t2_peers import (
    CALL_S,
    SILENCE_S,
    FakeService,
    Losing,
    Lossy,
    addresses,
    file,
    first,
    join_all,
    jump_once,
    quiet,
    running,
    take,
)

from redoxfs.peers import JoinTimeoutError, RefusedError, View
from redoxfs.peers.fields import split_payload
from redoxfs.peers.parts import PART_BYTES
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.peers.view import RESUMED

pytestmark = pytest.mark.slow

LONGEST_BYTES = 4 * PART_BYTES
RESUMES: dict[str, Any] = {"start_point": RESUMED, "max_turns_bytes": LONGEST_BYTES}


def keeping(kept: bytes) -> FakeService:
    host = FakeService({0: (file(b"zero"),)})
    host.files = kept, kept[::-1]
    return host


async def test_resuming_nodes_exchange_files_before_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.peers.client.LONGEST_PAUSE_S", 0.1)
    losing = [Losing("Turns", first(3), before=True), Losing("Turns", first(3))]
    files = [b"short", bytes(range(256)) * (2 * PART_BYTES // 256) + b"and more", b""]
    view = View(1, addresses(3))
    hosts = [keeping(data) for data in files]
    hosts[0].gate = trio.Event()
    async with (
        running(view, 0, hosts[0], **RESUMES) as one,
        running(view, 1, hosts[1], transport=Lossy(*losing), **RESUMES) as two,
        running(view, 2, hosts[2], **RESUMES) as three,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(one.join, quiet, PATIENCE_S)
        await join_all(two, three)
        await until_in_trio(lambda: all(host.resumed for host in hosts))
        for node, host in enumerate(hosts):
            others = {view.addresses[other]: files[other] for other in range(3) if other != node}
            assert host.resumed == [others]
        two.send(take(0, 1))
        client = two._clients[0]
        await until_in_trio(lambda: client.counts.retries)
        assert not hosts[0].handled, "it does not know its start yet"
        hosts[0].gate.set()
        await hosts[1].until(lambda: 0 in hosts[1].got)
        assert await three.turns() == {view.addresses[n]: files[n][::-1] for n in (0, 1)}
        assert not any(host.rejoined for host in hosts)
    assert all(each.lost == 3 for each in losing), "the test lost nothing"


async def test_resuming_and_new_nodes_refuse_each_other() -> None:
    view = View(1, addresses(2))
    async with running(view, 0, FakeService(), **RESUMES) as resumes, running(view, 1, FakeService()) as begins:
        lines = {}

        async def refused(node: int) -> None:
            with pytest.raises(RefusedError) as found:
                await (resumes, begins)[node].join(quiet, PATIENCE_S)
            lines[node] = str(found.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, 0)
            nursery.start_soon(refused, 1)
        assert lines == {
            0: f"{view.addresses[1]}: has another start point (laps from one there, --resume here)",
            1: f"{view.addresses[0]}: has another start point (--resume there, laps from one here)",
        }


async def test_a_restarted_node_resumes_with_waiting_peers_or_joins() -> None:
    view = View(1, addresses(3))
    hosts = [keeping(b"0"), keeping(b"1"), keeping(b"2")]
    hosts[0].laps = hosts[2].laps = [4, 7]
    async with (
        running(view, 0, hosts[0], **RESUMES) as one,
        running(view, 1, keeping(b"x"), **RESUMES) as dies,
        trio.open_nursery() as nursery,
    ):
        # It dies before the third node is there: no laps have begun.
        nursery.start_soon(one.join, quiet, PATIENCE_S)
        nursery.start_soon(dies.join, quiet, PATIENCE_S)
        await until_in_trio(lambda: one._clients[1].state == dies._clients[0].state == "ready")
        dies.close()
        async with running(view, 1, hosts[1], **RESUMES) as two, running(view, 2, hosts[2], **RESUMES) as three:
            await join_all(two, three)
            await until_in_trio(lambda: one._joined)
            assert hosts[1].resumed == [{view.addresses[0]: b"0", view.addresses[2]: b"2"}]
            assert [host.rejoined for host in hosts] == [[], [], []]
            two.close()
            # Now the others have begun: with --resume or without, it continues their laps.
            for options in (RESUMES, {}):
                again = keeping(b"1")
                again.laps = [0, 0]
                async with running(view, 1, again, **options) as back:
                    await back.join(quiet, PATIENCE_S)
                    assert (again.rejoined, again.resumed) == ([[4, 7]], [])
        nursery.cancel_scope.cancel()


async def test_an_unusable_file_fails_the_start_in_one_line() -> None:
    view = View(1, addresses(2))
    host = keeping(b"0")
    host.why_not_resumed = "h:1: cannot use its state: it is damaged"
    async with (
        running(view, 0, host, **RESUMES) as here,
        running(view, 1, keeping(b"1"), **RESUMES) as there,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(there.join, quiet, PATIENCE_S)
        with pytest.raises(RefusedError, match="h:1: cannot use its state: it is damaged"):
            await here.join(quiet, PATIENCE_S)


async def test_a_too_long_file_is_not_fetched(caplog: pytest.LogCaptureFixture, clock: trio.testing.MockClock) -> None:
    clock.rate = 1.0
    view = View(1, addresses(2))
    host = keeping(bytes(LONGEST_BYTES + 1))
    async with (
        running(view, 0, keeping(b"0"), timeout_s=20.0, **RESUMES) as here,
        running(view, 1, host, **RESUMES) as there,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(there.join, quiet, PATIENCE_S)
        nursery.start_soon(jump_once, clock, lambda: "malformed reply to Turns" in caplog.text, 20)
        with pytest.raises(JoinTimeoutError, match="no answer within"):
            await here.join(quiet, 20)
        assert here.stats()["bytes_in"] == 0
        nursery.cancel_scope.cancel()
    assert f"malformed reply to Turns: {PART_BYTES} bytes of {LONGEST_BYTES + 1} from 0" in caplog.text


async def test_a_peer_that_does_not_send_its_turns_is_named(clock: trio.testing.MockClock) -> None:
    clock.rate = 1.0
    view = View(1, addresses(2))
    losing = Losing("Turns", lambda: True, before=True)
    async with (
        running(view, 0, keeping(b"0"), timeout_s=20.0) as here,
        running(view, 1, keeping(b"1"), transport=Lossy(losing)) as there,
        trio.open_nursery() as nursery,
    ):
        await join_all(here, there)
        nursery.start_soon(jump_once, clock, lambda: losing.lost, 20)
        with pytest.raises(TimeoutError) as error:
            await here.turns()
        assert error.value.args[0] == [view.addresses[1]]


async def test_a_part_of_no_current_file_is_empty() -> None:
    """As after a restart of the peer: the fetch starts over, since the length is different."""
    view = View(1, addresses(2))
    async with running(view, 0, keeping(b"0" * 10)) as here, running(view, 1, keeping(b"1")) as there:
        await join_all(here, there)
        client = there._clients[0]
        request = client._caller

        def part(offset: int) -> bytes:
            with grpc.insecure_channel(view.addresses[0]) as channel:
                call: Any = channel.unary_unary("/redoxfs.v1.Peers/Turns", None, None)
                data = pb.TurnsRequest(caller=request, now=True, offset=offset).SerializeToString()
                return bytes(split_payload(call(data, timeout=CALL_S))[1])

        assert await trio.to_thread.run_sync(part, 0) == b"0" * 10
        assert await trio.to_thread.run_sync(part, 4) == b""


async def test_turns_of_a_node_without_a_start_are_refused() -> None:
    view = View(1, addresses(3))
    hosts = [keeping(b"0"), keeping(b"1"), keeping(b"2")]
    hosts[1].gate = trio.Event()
    async with (
        running(view, 0, hosts[0], **RESUMES) as one,
        running(view, 1, hosts[1], **RESUMES) as two,
        running(view, 2, hosts[2], **RESUMES) as three,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(two.join, quiet, PATIENCE_S)
        await join_all(one, three)
        told: list[bytes] = []

        async def ask() -> None:
            told.append((await one.turns())[view.addresses[1]])

        nursery.start_soon(ask)
        client = one._clients[1]
        await until_in_trio(lambda: client.counts.retries)
        assert not told
        hosts[1].gate.set()
        await until_in_trio(lambda: told)
        assert told == [b"1"]


async def test_a_node_in_a_later_view_does_not_use_its_own_file() -> None:
    view = View(4, addresses(3))
    later = {
        "renews": True,
        "max_turns_bytes": LONGEST_BYTES,
        "lap_lineage": "later",
        "start_point": "the state ab",
    }
    hosts = [keeping(b"all of it"), keeping(b"all of it"), keeping(b"own")]
    async with (
        running(view, 0, hosts[0], **later) as one,
        running(view, 1, hosts[1], **later) as two,
        running(View(1, view.addresses), 2, hosts[2], lap_lineage="mine", **RESUMES) as comes,
    ):
        await join_all(one, two, comes)
        assert (hosts[2].resumed, hosts[2].followed, hosts[2].rejoined) == ([], [b"all of it"], [])
        assert [host.lineages for host in hosts] == [["later"]] * 3
        assert comes.start_point == one.start_point, "a process that takes over is not refused"
        # And a process that replaces it does not.
        comes.close()
        again = keeping(b"own")
        async with running(View(1, view.addresses), 2, again, lap_lineage="mine", **RESUMES) as comes:
            await comes.join(quiet, PATIENCE_S)
            assert (again.resumed, again.followed, again.rejoined) == ([], [], [[]])
            assert again.lineages == ["later"]


async def test_a_refused_node_is_accepted_with_the_same_state() -> None:
    view = View(2, addresses(2))
    loaded = {"renews": True, "start_point": "the state ab"}
    async with running(view, 0, keeping(b"0"), **loaded) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.join, quiet, PATIENCE_S)
        async with running(view, 1, keeping(b"1"), **{**loaded, "start_point": "the state cd"}) as other:
            nursery.start_soon(other.join, quiet, PATIENCE_S)
            await until_in_trio(lambda: here._clients[1].state == other._clients[0].state == "refused")
            assert here._clients[1].reason.endswith("has another start point (the state cd there, the state ab here)")
            other.close()
            async with running(view, 1, keeping(b"1"), **loaded) as right:
                await right.join(quiet, PATIENCE_S)
                await until_in_trio(lambda: here._joined)
                assert here._clients[1].state == "ready"
            nursery.cancel_scope.cancel()


async def test_nodes_that_have_begun_from_different_states_refuse_each_other(clock: trio.testing.MockClock) -> None:
    """The first began alone, as the other was not there."""
    clock.rate = 1.0
    view = View(2, addresses(2))
    async with running(view, 0, keeping(b"0"), renews=True, start_point="the state ab") as here:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.join, quiet, PATIENCE_S)
            await jump_once(clock, lambda: here._clients[1]._is_unreached, SILENCE_S)
        assert here._joined
        async with running(view, 1, keeping(b"1"), renews=True, start_point="the state cd") as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.join, quiet, PATIENCE_S)
                await until_in_trio(lambda: here._clients[1].state == other._clients[0].state == "refused")
                nursery.cancel_scope.cancel()
            assert not other._joined


async def test_new_nodes_take_the_greatest_lap_lineage() -> None:
    view = View(1, addresses(3))
    hosts = [keeping(b"") for _ in range(3)]
    async with (
        running(view, 0, hosts[0], lap_lineage="b") as one,
        running(view, 1, hosts[1], lap_lineage="c") as two,
        running(view, 2, hosts[2], lap_lineage="a") as three,
    ):
        await join_all(one, two, three)
        assert [host.lineages for host in hosts] == [["c"]] * 3
        one.close()
        again = keeping(b"")
        async with running(view, 0, again, lap_lineage="z") as back:
            await back.join(quiet, PATIENCE_S)
            assert again.lineages == ["c"], "the others have continued"
