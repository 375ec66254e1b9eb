"""Nodes that share a dataset, without a filesystem: real stores, real messages, all in one process."""

import errno
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio
import trio.testing
from patience import PATIENCE_S, until_in_trio
from ports import reserve
from resuming_nodes import config_of
from stores import NoKernel, opened_by, read_from
from t2_peers import THREAD_OF_GRPC, THREADS_OF_SERVER, ThreadLimit

from redoxfs.chunks import DirectoryStore, build_cells
from redoxfs.chunks.store import FileBytes, Stamp
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.launch.options import SamplerSpec
from redoxfs.node import Node, Plan, Share, plan_pool, plan_slot
from redoxfs.node.cluster import Membership, joined
from redoxfs.node.memory import dropped
from redoxfs.node.open_files import Handle
from redoxfs.node.state import StateWriter, encode
from redoxfs.node.told_epochs import ToldEpochs
from redoxfs.peers import View
from redoxfs.peers.bounds import LAST_PEER_LAP
from redoxfs.peers.client import Client
from redoxfs.protocol import Given, Handled, Take

pytestmark = pytest.mark.slow

# No peer is lost in these tests, and a slow one must not be taken for lost.
PEER_TIMEOUT_S = PATIENCE_S
CLASSES, PER_CLASS = 2, 24
FILE_BYTES = 4000

LITTLE_BYTES = 64_000
"""A third of the dataset."""


class Member(NamedTuple):
    """One of the nodes."""

    catalog: Catalog
    node: Node
    membership: Membership
    state: StateWriter

    async def open(self, entry: int, thread: int) -> int:
        return (await opened_by(self.node, entry, thread)).handle

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return await read_from(self.node, handle, offset, size)


def content(name: str) -> bytes:
    return name.encode().ljust(FILE_BYTES, b".")


def fill(root: Path) -> Path:
    """A dataset whose files contain their names."""
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(PER_CLASS):
            name = f"class{label}/{label}-{number}.jpg"
            (root / name).write_bytes(content(name))
    return root


@asynccontextmanager
async def sharing(
    roots: Sequence[Path],
    *,
    policy: str,
    classes: str = "dir",
    memory_bytes: int = 1 << 20,
    exchange: float = 0.0,
    sampler: SamplerSpec | None = None,
    kept: Sequence[bytes] | None = None,
    shared_storage: bool = True,
) -> AsyncIterator[list[Member]]:
    """A node for each of ``roots``, which have all met. ``kept``: the state file of each."""
    view = View(1, tuple(f"127.0.0.1:{port}" for port in reserve(len(roots))))
    members: dict[int, Member] = {}
    all_there, over = trio.Event(), trio.Event()

    async def run(number: int, root_fd: int) -> None:
        catalog = build_catalog(read_tree(root_fd), classes=classes)
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)

        def plan_for(node: int, nodes: int) -> Plan:
            share = None
            if nodes > 1:
                remote_bytes = memory_bytes // 8
                share = Share(
                    node, nodes, remote_bytes, shared_storage, None, PEER_TIMEOUT_S, exchange=exchange, window=6000
                )
            plan = plan_pool if policy == "pool" else plan_slot
            return plan(catalog, cells, memory_bytes=memory_bytes, seed=0, share=share)

        config = config_of(view, number, plan_for, sampler, None if kept is None else kept[number])
        plan = plan_for(number, len(roots))
        node = Node(catalog, plan, DirectoryStore(catalog, root_fd), timeout_s=PATIENCE_S, kernel=NoKernel())
        state = StateWriter(None, lambda: {"dataset": "d1"}, len(catalog.class_of), node)
        node.start()
        try:
            async with joined(node, config, state, timeout_s=PATIENCE_S) as membership:
                members[number] = Member(catalog, node, membership, state)
                if len(members) == len(roots):
                    all_there.set()
                await over.wait()
        finally:
            node.stop()

    fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY) for root in roots]
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number, fd in enumerate(fds):
                    nursery.start_soon(run, number, fd)
                await all_there.wait()
                yield [members[number] for number in range(len(roots))]
                over.set()
    finally:
        for fd in fds:
            os.close(fd)


# Nodes with a copy each


def copy_of(root: Path, place: Path) -> Path:
    """The same files with other inodes and other times."""
    shutil.copytree(root, place)
    for number, path in enumerate(place.rglob("*.jpg")):
        os.utime(path, ns=(number, number))
    return place


async def open_all_of_a_class(member: Member) -> list[int]:
    """Handles on all files of class 0. The other node gives about half of them."""
    catalog = member.catalog
    entries = [int(catalog.members[catalog.member_at[sample]]) for sample in np.flatnonzero(catalog.class_of == 0)]
    return [await member.open(entry, 1000 + entry) for entry in entries]


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_dropped_bytes_of_a_peers_copy_are_read_locally(tmp_path: Path, policy: str) -> None:
    root = fill(tmp_path / "data")
    copy = copy_of(root, tmp_path / "copy")
    async with sharing([root, copy], policy=policy, memory_bytes=LITTLE_BYTES) as (member, _):
        handles = await open_all_of_a_class(member)
        stats = member.node.stats()
        assert stats["dropped"] > len(handles) / 2
        assert stats["remote_samples"] > len(handles) / 4
        served = set()
        for handle in handles:
            head = await member.read(handle, 0, 100)
            assert head + await member.read(handle, 100, FILE_BYTES) == content(head.rstrip(b".").decode())
            served.add(head)
            member.node.close(handle)
        assert len(served) == len(handles) == PER_CLASS


@pytest.mark.parametrize("whose", ["here", "there"])
async def test_a_copy_that_differs_is_an_error_and_not_mixed(tmp_path: Path, whose: str) -> None:
    """The file changes at this node after it was served, or at the other node before."""
    root = fill(tmp_path / "data")

    def change(place: Path) -> None:
        for path in place.rglob("*.jpg"):
            path.write_bytes(b"!" * FILE_BYTES)

    copy = copy_of(root, tmp_path / "copy")
    async with sharing([root, copy], policy="pool", memory_bytes=LITTLE_BYTES) as (member, _):
        if whose == "there":
            change(copy)
        handles = await open_all_of_a_class(member)
        if whose == "here":
            change(root)
        stale = 0
        for handle in handles:
            try:
                whole = await member.read(handle, 0, 100) + await member.read(handle, 100, FILE_BYTES)
            except OSError as error:
                stale += error.errno == errno.ESTALE
            else:
                changed_there = whole == b"!" * FILE_BYTES
                assert changed_there or whole == content(whole.rstrip(b".").decode())
        assert stale > len(handles) / 4


# What nodes retain

SAMPLES = CLASSES * PER_CLASS


async def read_all(members: Sequence[Member]) -> None:
    """The members open their part of the files in turn, and close each. Each sample comes once."""
    came = set()
    for sample in range(SAMPLES):
        member = members[sample % len(members)]
        handle = await member.open(int(member.catalog.members[member.catalog.member_at[sample]]), 1)
        came.add(await member.read(handle, 0, FILE_BYTES))
        member.node.close(handle)
        while len(members) > 1 and member.node.shared_policy.unanswered():
            await trio.lowlevel.checkpoint()
    assert len(came) == SAMPLES


def loaded(members: Sequence[Member]) -> list[int]:
    """How many samples each has read from storage so far."""
    return [member.node.counters.samples_loaded + member.node.counters.samples_reread for member in members]


async def test_what_is_retained_fills_again_after_a_view_or_a_state(tmp_path: Path) -> None:
    """The nodes hold all samples together, and each gives half of its own to the other."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", exchange=0.5) as members:
        for round_, begin_anew in enumerate(("as mounted", "another view", "a state"), 1):
            if begin_anew != "as mounted":
                both = json.dumps((await members[0].membership.view(b""))["nodes"]).encode()
                turns = await members[0].membership.turns_of_all()
                state = encode({"dataset": "d1"}, turns, 0)
                async with trio.open_nursery() as nursery:
                    for member in members:
                        change = member.membership.view if begin_anew == "another view" else member.state.load
                        nursery.start_soon(change, both if begin_anew == "another view" else state)
            for _ in range(3):
                await read_all(members)
                assert sum(loaded(members)) == round_ * SAMPLES
            assert sum(member.node.stats()["retained_samples"] for member in members) == SAMPLES
        assert all(member.node.counters.remote_samples > SAMPLES for member in members)


async def test_of_a_sample_that_is_here_twice_the_one_that_was_loaded_is_dropped(tmp_path: Path) -> None:
    """One of this node's own may come back from a peer, and be reserved, after its next lap began here."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as members:
        node, sample = members[0].node, 3
        node.memory.expect_from_peer([sample])
        node.memory.reserve(sample, remote=True)
        node.memory.expect([sample])
        node.void([sample], ())
        assert (node.memory.holds_own(sample), node.memory.is_remote(sample)) == (False, True)
        node.void([sample], ())
        assert not node.memory.is_remote(sample)


async def test_a_reservation_that_ends_leaves_what_was_loaded_for_the_next_lap(tmp_path: Path) -> None:
    """Its own bytes were dropped, as memory was short."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as members:
        node = members[0].node
        entry = int(members[0].catalog.members[0])
        node.stat(entry, 1)
        (sample,) = node.binding.reserved_samples()
        node.memory.forget(sample)
        node.memory.expect([sample])
        # One of this node's own is not loaded while it is reserved. One that a peer gave is, if it is this node's own.
        node.unload(sample)
        assert node.memory.holds_own(sample)
        node.void((), [sample])
        assert node.memory.holds_own(sample)
        assert node.binding.counts()["reservations"] == 0


@pytest.mark.parametrize("has_bytes", [True, False])
async def test_a_peers_sample_that_goes_on_leaves_the_one_that_was_loaded(tmp_path: Path, has_bytes: bool) -> None:
    """``has_bytes``: there was room for what the peer gave. Else it is what was loaded that goes out."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as members:
        node, sample = members[0].node, 3
        memory, given = node.memory, Given(0, 0, 0, 1, (sample,), 0, 0)
        came = memory.expect_from_peer([sample]) if has_bytes else []
        loaded = memory.expect([sample])
        for content in (*came, *loaded):
            memory.arrive(content, (FileBytes(b"." * FILE_BYTES, Stamp(FILE_BYTES, 0, 1), changed=False),))
        (content,) = node.supply.give(Handled(given, remote=(sample,)))
        assert content.payload == loaded[0].payload
        assert (memory.holds_own(sample), memory.holds_remote(sample)) == (True, False)
        assert (memory.slots_bytes, memory.claims_bytes) == (FILE_BYTES, FILE_BYTES * has_bytes)
        memory.sent(content)
        (content,) = memory.expect_from_peer([sample])
        memory.arrive(content, loaded[0].payload)
        (own,) = node.supply.give(Handled(given))
        assert own is loaded[0]
        assert (memory.holds_own(sample), memory.holds_remote(sample)) == (False, True)
        memory.sent(own)
        assert memory.used_bytes == memory.remote_bytes == FILE_BYTES
        assert node.counters.samples_reread == 0


async def test_a_state_that_the_last_node_saves_has_its_passes(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as members:
        membership = members[0].membership
        own = json.dumps((await membership.view(b""))["nodes"][:1]).encode()
        await membership.view(own)
        assert membership.nodes == 1
        passes = (await membership.turns_of_all()).passes
        assert passes is not None
        assert passes.whole


async def test_what_a_lost_node_retained_is_read_by_those_that_a_view_gives_it_to(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", exchange=0.5) as (member, other):
        await read_all([member, other])
        other.node.freeze()
        alone = json.dumps([(await member.membership.view(b""))["nodes"][0]]).encode()
        await member.membership.view(alone)
        before = loaded([member])[0]
        for _ in range(2):
            await read_all([member])
            assert loaded([member])[0] - before == SAMPLES
        assert member.node.stats()["retained_samples"] == SAMPLES


# Laps


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_an_impossible_lap_of_a_peer_is_refused(tmp_path: Path, policy: str) -> None:
    """Otherwise the state file of a later lap would be refused."""
    root = fill(tmp_path / "data")
    about = {"dataset": "d1", "number of nodes": "2", "origin": "1.0."}

    async def main() -> None:
        async with sharing([root, root], policy=policy) as (member, _):
            turns = member.node.turns()
        far = turns._replace(laps=np.full_like(turns.laps, LAST_PEER_LAP + 1))
        async with sharing([root, root], policy=policy, kept=[encode(about, turns, 0), encode(about, far, 0)]):
            pass

    with pytest.raises(ExceptionGroup) as refused:
        trio.run(main)
    lines = [str(error) for error in refused.value.exceptions]
    assert any("cannot use its state: lap 536870913, where laps are 1 to 536870912" in line for line in lines)


# A lost node


async def test_all_that_waits_for_a_lost_node_is_answered_without_it(tmp_path: Path) -> None:
    """Opens that waited get a sample each. Stats that waited get what is left, or else a file's own size."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as (member, other):
        node, catalog = member.node, member.catalog
        *opened, last = [int(catalog.members[catalog.member_at[s]]) for s in np.flatnonzero(catalog.class_of == 0)]
        handles: dict[int, int] = {}
        sizes: list[int] = []

        async def keep_open(entry: int) -> None:
            handles[entry] = await member.open(entry, 1000 + entry)

        async def ask(entry: int) -> None:
            stating = node.stat(entry, 2000 + entry)
            assert isinstance(stating, Coroutine)
            sizes.append((await stating)[0])

        # It answers no messages from now on.
        other.node.freeze()
        node.stat(last, 1)
        assert node.binding.counts()["reservations"] == 1
        async with trio.open_nursery() as nursery:
            for entry in opened:
                nursery.start_soon(keep_open, entry)
            await trio.testing.wait_all_tasks_blocked()
            # One of those that wait will preempt the reservation. The others need all but one of the samples that
            # this node has in the next lap.
            waiting = len(node.pending.undecided)
            while len(handles) < len(opened) - waiting:
                await trio.lowlevel.checkpoint()
            closed = list(handles)[:3]
            for entry in closed:
                node.close(handles.pop(entry))
                nursery.start_soon(ask, entry)
            await trio.testing.wait_all_tasks_blocked()
            assert (len(handles), sizes) == (len(opened) - waiting - 3, [])
            member.membership._messages.lost(1)
        assert (len(handles), sizes) == (len(opened) - 3, [FILE_BYTES] * 3)
        assert node.binding.counts()["reservations"] == 1


async def test_an_open_that_waits_for_a_node_as_this_one_ends_counts_in_the_next_process(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as (member, other):
        # It answers no messages from now on.
        other.node.freeze()
        opened = 0

        async def open_one(entry: int) -> None:
            nonlocal opened
            await member.open(entry, 1000 + entry)
            opened += 1

        async with trio.open_nursery() as nursery:
            for sample in np.flatnonzero(member.catalog.class_of == 0):
                nursery.start_soon(open_one, int(member.catalog.members[member.catalog.member_at[sample]]))
            await until_in_trio(lambda: opened + len(member.node.pending.undecided) == PER_CLASS)
            assert opened < PER_CLASS
            nursery.cancel_scope.cancel()
        assert (member.node.counters.opens, member.node.counters.errors) == (opened, 0)


async def test_a_later_lap_of_a_peer_ends_reservations_before_anything_can_be_sent(tmp_path: Path) -> None:
    """A node that takes the place of another answers messages before it knows its peers."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool") as (member, _):
        node, messages, peers = member.node, member.membership._messages, member.membership._peers
        first = int(np.flatnonzero(member.catalog.class_of == 0)[0])
        node.stat(int(member.catalog.members[member.catalog.member_at[first]]), 1)
        assert node.binding.counts()["reservations"] == 1
        messages.attach(None)
        reply = messages.handle(Take(1, 0, 0, 0, 0, 3, 1, FILE_BYTES, 0, 0))
        if isinstance(reply, Awaitable):
            reply = await reply
        assert reply is not None
        messages.release(reply)
        assert node.binding.counts()["reservations"] == 0
        messages.attach(peers)


# Samples of other nodes that a stat reserved, where each node reads its own part alone


@pytest.mark.parametrize("is_undone", [False, True])
async def test_a_peers_sample_that_a_stat_reserved_leaves_memory_with_its_epoch(
    tmp_path: Path, is_undone: bool
) -> None:
    """``is_undone``: the thread of the stat has ended before."""
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", shared_storage=False) as (member, _):
        node, catalog, memory = member.node, member.catalog, member.node.memory
        entries = [int(catalog.members[catalog.member_at[s]]) for s in np.flatnonzero(catalog.class_of == 0)]
        # Until the other node has given more than the one that was needed.
        while not memory.counts()["in_remote_slots"]:
            entry = entries.pop()
            await member.open(entry, 1000 + entry)
        while memory.remote_bytes < FILE_BYTES * memory.counts()["in_remote_slots"]:
            await trio.lowlevel.checkpoint()
        claims_bytes = memory.claims_bytes
        node.stat(entries.pop(), 1)
        (sample,) = node.binding.reserved_samples()
        assert memory.is_remote(sample)
        assert memory.claims_bytes == claims_bytes + FILE_BYTES
        if is_undone:
            node._forget(1)
            assert memory.claims_bytes == claims_bytes + FILE_BYTES, "its turn is still to come"
        await ToldEpochs(node, catalog.class_trees).begin(b"")
        assert (memory.claims_bytes, memory.counts()["put_aside"]) == (claims_bytes, 0)


async def test_without_room_only_bytes_that_cannot_be_read_here_stay(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", shared_storage=False) as (member, _):
        node, memory = member.node, member.node.memory
        samples = range(CLASSES * PER_CLASS)
        own = next(sample for sample in samples if node.plan.owner(sample) is None)
        others = next(sample for sample in samples if node.plan.owner(sample) is not None)
        for sample in (own, others):
            (content,) = memory.expect_from_peer([sample])
            memory.arrive(content, (FileBytes(b"." * FILE_BYTES, Stamp(FILE_BYTES, 0, 1), changed=False),))
            memory.reserve(sample, remote=True)
            # As if a reservation had been undone, and the policy had no room.
            node.unload(sample)
        assert (memory.is_remote(own), memory.is_remote(others)) == (False, True)
        assert memory.claims_bytes == FILE_BYTES


async def test_bytes_that_another_node_sends_again_do_not_count_as_read_here(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", shared_storage=False) as (member, _):
        node = member.node
        handles = await open_all_of_a_class(member)
        await until_in_trio(lambda: not node.stats()["loads_in_flight"])
        for handle in handles:
            opened = node.files[handle]
            assert isinstance(opened, Handle)
            before = node.counters.bytes_read
            # As after the death of a daemon.
            opened.content = dropped(opened.content.sample, opened.content.stamps)
            node.memory.release(opened.path)
            assert (await member.read(handle, 0, 100)).startswith(b"class0/")
            is_own = node.plan.owner(opened.content.sample) is None
            assert node.counters.bytes_read == before + 100 * is_own


async def test_an_own_sample_that_comes_back_while_it_has_its_turn_here_leaves_nothing(tmp_path: Path) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root, root], policy="pool", exchange=1.0, shared_storage=False) as (member, other):
        node, catalog = member.node, member.catalog
        # It answers no messages from now on.
        other.node.freeze()
        entries = iter(catalog.members.tolist())
        while not node.shared_policy.unanswered():
            await member.open(next(entries), 1)
        (asked,) = node.shared_policy.unanswered()
        assert isinstance(asked, Take)
        samples = np.flatnonzero(catalog.class_of == asked.cls).tolist()
        had = node.turns().flags(CLASSES, CLASSES * PER_CLASS)
        own = next(sample for sample in samples if node.plan.owner(sample) is None and not had[sample])
        answer = Given(1, asked.number, asked.cls, asked.lap, (own,), 1, 0)
        assert member.membership._messages.receive(answer, ()) is not None
        assert node.memory.counts()["in_remote_slots"] == 0


@pytest.mark.parametrize("how", ["another view", "a state"])
async def test_opens_wait_for_bytes_over_a_change_of_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The node at which the bytes lie is asked again, since this node cannot read them."""
    root = fill(tmp_path / "data")

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    async with sharing([root, root], policy="pool", shared_storage=False) as members:
        member = members[0]
        claimed = member.node.memory._open.of
        served = []

        async def open_one(entry: int) -> None:
            data = await member.read(await member.open(entry, 1000 + entry), 0, FILE_BYTES)
            served.append(data.rstrip(b".").decode())
            assert data == content(served[-1])

        data = encode({"dataset": "d1"}, member.node.turns(), 0)
        with monkeypatch.context() as lossy:
            # Answers come, and no bytes.
            lossy.setattr(Client, "_deliver", lambda *_: None)
            lossy.setattr(Client, "_fetch", never)
            async with trio.open_nursery() as nursery:
                for sample in np.flatnonzero(member.catalog.class_of == 0):
                    nursery.start_soon(open_one, int(member.catalog.members[member.catalog.member_at[sample]]))
                await until_in_trio(lambda: any(each.remote and not each.arrived for each in claimed.values()))
                lossy.undo()
                for each in members:
                    if how == "a state":
                        await each.state.load(data)
                    else:
                        await each.membership.view(json.dumps(each.membership.place()["addresses"]).encode())
        assert len(served) == PER_CLASS
        assert all(name.startswith("class0/") for name in served)
        assert member.node.counters.errors == 0


async def test_a_node_that_gets_no_threads_for_another_view_serves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(tmp_path / "data")
    limit = ThreadLimit(monkeypatch, (THREAD_OF_GRPC, *THREADS_OF_SERVER))
    async with sharing([root, root], policy="pool") as (member, _):
        nodes = json.dumps((await member.membership.view(b""))["nodes"]).encode()
        limit.reach()
        with pytest.raises(ValueError, match=r"can't start .*; this node continues without the others"):
            await member.membership.view(nodes)
        limit.lift()
        assert member.membership.nodes == 1
        await read_all([member])
        # The address is free for the next view.
        await member.membership.view(nodes)
        assert member.membership.nodes == 2


@pytest.mark.parametrize("left", [2, 1])
async def test_what_waits_for_a_change_of_view_goes_by_the_nodes_that_it_leaves(tmp_path: Path, left: int) -> None:
    root = fill(tmp_path / "data")
    async with sharing([root] * 3, policy="pool") as members:
        membership, state = members[0].membership, members[0].state
        nodes = (await membership.view(b""))["nodes"][:left]
        data = encode({"dataset": "d1"}, members[0].node.turns(), 0)
        changing = membership._changing
        async with trio.open_nursery() as nursery, changing:
            nursery.start_soon(membership.view, json.dumps(nodes).encode())
            await until_in_trio(lambda: changing.statistics().tasks_waiting == 1)
            nursery.start_soon(state.load, data)
            await until_in_trio(lambda: changing.statistics().tasks_waiting == 2)
            if left == 1:
                nursery.start_soon(membership.turns_of_all)
                await until_in_trio(lambda: changing.statistics().tasks_waiting == 3)
        assert tuple((await membership.view(b""))["nodes"]) == tuple(nodes)


# Statistics


@pytest.mark.parametrize("policy", ["pool", "slot"])
@pytest.mark.parametrize("how", ["another view", "a state"])
async def test_statistics_are_available_during_a_change_of_view(tmp_path: Path, policy: str, how: str) -> None:
    """At every moment: with a sampler, the orders of an epoch are computed during the change."""
    root = fill(tmp_path / "data")
    sampler = SamplerSpec("torch-distributed", seed=0, ranks=6)
    async with sharing([root] * 3, policy=policy, sampler=sampler) as members:
        changing = members[0]
        data = encode({"dataset": "d1"}, changing.node.turns(), 0)
        nodes_then = 3
        if how == "another view":
            # Fewer nodes, and this one has another number among them.
            first, _, last = (await changing.membership.view(b""))["nodes"]
            data, nodes_then = json.dumps([last, first]).encode(), 2
        seen: list[dict[str, Any]] = []
        done = trio.Event()

        async def change() -> None:
            await (changing.state.load(data) if how == "a state" else changing.membership.view(data))
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            while not done.is_set():
                seen.append(changing.membership.stats())
                await trio.lowlevel.checkpoint()
            seen.append(changing.membership.stats())
        assert {stats["view"] for stats in seen} == {1, 2}
        for stats in seen:
            nodes = 3 if stats["view"] == 1 else nodes_then
            assert (stats["nodes"], len(stats["peers"])) == (nodes, nodes - 1)
