"""Bytes that a node has lost and cannot read itself are sent again, outside of any turn."""

import errno
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
import trio
import trio.testing
from patience import PATIENCE_S, until_in_trio
from t2_peers import (
    CALL_S,
    SILENCE_S,
    FakeService,
    Losing,
    Lossy,
    addresses,
    file,
    join_all,
    jump_once,
    pair,
    payload_of,
    replaced,
    running,
    say,
    told,
)

from redoxfs.chunks.store import Payload
from redoxfs.peers import Bounds, Peers, Plaintext, View
from redoxfs.peers.parts import PART_BYTES
from redoxfs.peers.peers import MOST_REREADS, threads_for
from redoxfs.peers.server import REREAD_BYTES, SERVICE
from redoxfs.peers.v1 import peers_pb2 as pb

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.peers.client.LONGEST_PAUSE_S", 0.05)


async def lines_of(asking: Peers, samples: Sequence[int]) -> list[str]:
    """The errors of requests for ``samples``, which all fail."""
    lines = []
    for sample in samples:
        with pytest.raises(OSError, match="does not send a sample again") as found:
            await asking.reread(0, sample)
        assert found.value.errno == errno.EIO
        lines.append(str(found.value.strerror))
    return lines


async def test_samples_of_every_shape_are_sent_again_over_losses() -> None:
    random_ = random.Random(3)
    shelf: dict[int, Payload] = {
        n: payload_of(random_, n, 3 * PART_BYTES if n % 10 == 9 else 30_000) for n in range(20)
    }
    shelf[40] = (file(random_.randbytes(4 * PART_BYTES + 1)), OSError(errno.ENOENT, "gone"), file(b""))
    shelf[41] = ()
    losing = [Losing("Reread", lambda: random_.random() < 0.3, before=before) for before in (True, False)]
    home, requester = FakeService(shelf), FakeService()
    async with pair(home, requester, transport=Lossy(*losing)) as (at_home, asking):
        found: dict[int, list[object]] = {}

        async def reread(sample: int) -> None:
            found[sample] = told(await asking.reread(0, sample))

        async with trio.open_nursery() as nursery:
            for sample in shelf:
                nursery.start_soon(reread, sample)
        assert found == {sample: told(payload) for sample, payload in shelf.items()}
        assert not home.handled
        assert list(home.left) == list(shelf), "no sample was given"
        assert asking.stats()["bytes_in"] <= at_home.stats()["bytes_out"]
    assert all(each.lost for each in losing), "the test lost nothing"


async def test_requests_for_one_sample_at_once_are_one_read() -> None:
    home = FakeService({7: (file(b"seven"),)})
    home.gate = trio.Event()
    async with pair(home, FakeService()) as (at_home, asking):
        found: list[Payload] = []

        async def reread() -> None:
            found.append(await asking.reread(0, 7))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(reread)
            rereads = at_home._server._rereads
            await until_in_trio(lambda: (answer := rereads._answers.get(1, {}).get(7)) and answer.users >= 3)
            home.gate.set()
        assert [told(payload) for payload in found] == [told(home.shelf[7])] * 3
        assert home.reread_samples == [7]


async def test_samples_that_are_not_fetched_keep_little_memory() -> None:
    size = REREAD_BYTES // 4
    lost = Losing("Reread", lambda: True)
    home = FakeService({n: (file(bytes(size)),) for n in range(9)})
    async with pair(home, FakeService(), transport=Lossy(lost)) as (_, asking):
        async with trio.open_nursery() as nursery:
            for sample in range(9):
                nursery.start_soon(asking.reread, 0, sample)
            await until_in_trio(lambda: len(set(home.reread_samples)) >= 9)
            nursery.cancel_scope.cancel()
        # Those that are in use, beside the ones that are kept, are let go by the server's threads.
        await until_in_trio(lambda: len(home.unreleased) <= 4)


async def test_samples_that_are_read_again_leave_threads_for_a_hello() -> None:
    peers, channels, calls_each = 17, 3, 60
    view = View(1, addresses(peers + 1))
    calls_at_once = channels * calls_each
    assert calls_at_once > threads_for(peers)
    home = FakeService({n: (file(b"%d" % n),) for n in range(calls_at_once)})
    home.gate = trio.Event()
    async with running(view, 0, home) as at_home:
        calls: list[Any] = []

        async def until_all_wait_or_are_refused() -> None:
            await until_in_trio(lambda: len(home.reread_samples) + sum(call.done() for call in calls) >= calls_at_once)

        def talk() -> Counter[grpc.StatusCode]:
            with ExitStack() as ends:
                for node in range(1, channels + 1):
                    channel = ends.enter_context(Plaintext().channel(view.addresses[0]))
                    introduction = replaced(at_home._introduction, node=node, incarnation=5)
                    hello = pb.HelloRequest(caller=introduction).SerializeToString()
                    say(channel, "Hello", hello)
                    caller = pb.Caller(node=node, incarnation=5, view=1)
                    method: Any = channel.unary_unary(f"/{SERVICE}/Reread", None, None)
                    for sample in range((node - 1) * calls_each, node * calls_each):
                        request = pb.RereadRequest(caller=caller, sample=sample).SerializeToString()
                        calls.append(method.future(request, timeout=CALL_S))
                trio.from_thread.run(until_all_wait_or_are_refused)
                say(ends.enter_context(Plaintext().channel(view.addresses[0])), "Hello", hello)
                trio.from_thread.run_sync(home.gate.set)
                return Counter(call.code() for call in calls)

        codes = await trio.to_thread.run_sync(talk)
        # Their callers ask again.
        assert codes.keys() == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert codes[grpc.StatusCode.OK] == MOST_REREADS


async def test_a_lost_peer_sends_nothing_and_nobody_waits_for_long(clock: trio.testing.MockClock) -> None:
    clock.rate = 1.0
    view = View(1, addresses(2))
    home, requester = FakeService({0: (file(b"0"),)}), FakeService()
    home.gate = trio.Event()
    # Only the silence of the other ends a request: the deadline of a call is beyond that of the test.
    async with running(view, 1, requester, timeout_s=10 * PATIENCE_S) as asking:
        async with running(view, 0, home) as at_home, trio.open_nursery() as nursery:
            await join_all(at_home, asking)
            lines: list[str] = []

            async def reread() -> None:
                lines.extend(await lines_of(asking, [0]))

            nursery.start_soon(reread)
            await until_in_trio(lambda: home.reread_samples)
            at_home.close()
            await jump_once(clock, lambda: asking._clients[0]._is_unreached, SILENCE_S)
            await requester.until(lambda: requester.silences == [0])
        lines += await lines_of(asking, [0])
        assert len(lines) == 2
        assert all(line.startswith(f"{view.addresses[0]} does not send a sample again: ") for line in lines)


async def test_another_process_of_the_peer_sends_what_was_asked_for() -> None:
    """It needs to know nothing of what was given before."""
    view = View(1, addresses(2))
    homes = [FakeService({0: (file(b"0"),)}) for _ in range(2)]
    homes[0].gate = trio.Event()
    found: list[Payload] = []
    async with running(view, 1, FakeService()) as asking, trio.open_nursery() as nursery:
        async with running(view, 0, homes[0]) as at_home:
            await join_all(at_home, asking)

            async def reread() -> None:
                found.append(await asking.reread(0, 0))

            nursery.start_soon(reread)
            await until_in_trio(lambda: homes[0].reread_samples)
        async with running(view, 0, homes[1]) as at_home:
            await join_all(at_home)
            await until_in_trio(lambda: found)
        assert told(found[0]) == told(homes[1].shelf[0])


async def test_an_answer_that_is_none_is_an_error_of_the_read() -> None:
    class Aborting(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            if not details.method.endswith("/Reread"):
                return continuation(details)
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, context: context.abort(grpc.StatusCode.ABORTED, "was answered before")
            )

    async with pair(FakeService({0: (file(b"0"),)}), FakeService(), transport=Lossy(Aborting())) as (_, asking):
        (line,) = await lines_of(asking, [0])
        assert line.endswith("was answered before")


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        (Bounds(3, 1, lies_at=np.array([1, 0, 1])), "sample 0 lies at node 1, not at node 0"),
        (Bounds(0, 1, lies_at=np.zeros(0, np.int8)), "sample 0 of 0"),
        (Bounds(3, 1), "every node can read every sample"),
    ],
)
async def test_a_sample_of_another_node_is_refused(bounds: Bounds, line: str) -> None:
    home = FakeService({0: (file(b"0"),)})
    async with pair(home, FakeService(), bounds=bounds) as (_, asking):
        client = asking._clients[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.reread, 0, 0)
            await until_in_trio(lambda: client.counts.retries)
            nursery.cancel_scope.cancel()
        with pytest.raises(Exception, match=line):
            await client._reread(0)
        assert not home.reread_samples


async def test_a_sample_larger_than_memory_is_not_fetched() -> None:
    home = FakeService({0: (file(bytes(2 * PART_BYTES)),)})
    view = View(1, addresses(2))
    async with running(view, 0, home) as at_home, running(view, 1, FakeService(), max_answer_bytes=99) as asking:
        await join_all(at_home, asking)
        with pytest.raises(Exception, match="a sample of 2097152 bytes, and at most 99 are allowed"):
            await asking._clients[0]._reread(0)


async def test_only_a_peer_of_the_view_gets_samples() -> None:
    view = View(1, addresses(2))
    home = FakeService({0: (file(b"0"),)})
    async with running(view, 0, home) as at_home, running(view, 1, FakeService()) as asking:
        await join_all(at_home, asking)
        channel = Plaintext().channel(view.addresses[0])
        call: Any = channel.unary_unary("/redoxfs.v1.Peers/Reread", None, None)
        with pytest.raises(grpc.RpcError) as refused:
            await trio.to_thread.run_sync(lambda: call(b"", timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        channel.close()
        assert not home.reread_samples
