"""Several nodes resume from the files of all, each with its part of the turns, and from states that were saved."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from patience import until_in_trio
from resuming_nodes import (
    ALL,
    NODES,
    PEER_TIMEOUT_S,
    POLICIES,
    PREFETCHES,
    SAMPLES,
    all_ready,
    dataset_at,
    ended,
    job_at,
)

from redoxfs.launch.errors import UsageError
from redoxfs.launch.source import Dataset
from redoxfs.node.state import decode
from redoxfs.protocol import SlotNode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    with dataset_at(tmp_path_factory.mktemp("data")) as dataset:
        yield dataset


@pytest.mark.parametrize("policy", POLICIES)
async def test_nodes_that_end_lose_nothing(tmp_path: Path, dataset: Dataset, policy: str) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        served: Counter[str] = Counter()
        done = prefetched = 0
        # The parts of epochs between two ends.
        for parts in ([], [ALL[:18]], [ALL[18:]], [ALL, ALL[:33]], [ALL[33:]], [ALL]):
            lives = await job.started(resumes=True)
            line = "resumed: lap" if done else "there is nothing to resume at any node"
            assert all(line in life.said[0] and len(life.said) == 1 for life in lives)
            assert sum(life.node.given for life in lives) == done
            if policy == PREFETCHES:
                made, at_each = done % SAMPLES // NODES, SAMPLES // NODES
                place = done // SAMPLES, at_each - made, at_each
                assert [life.membership.place()["epochs"] for life in lives] == [place] * NODES
            for part in parts:
                served += await job.read(lives, part)
                done += len(part)
            if done == SAMPLES:
                policies = [life.node.shared_policy for life in lives]
                prefetched = sum(policy.prefetched for policy in policies if isinstance(policy, SlotNode))
            # A sample that a stat reserved had no turn, whichever node it came from.
            for entry in job.entries[::5]:
                told = lives[0].node.stat(entry, 1000)
                if not isinstance(told, tuple):
                    await told
            await ended(lives)
        assert served == Counter(job.names * 4)
        assert bool(prefetched) == (policy == PREFETCHES), "the order goes on in the middle of an epoch"


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_only_samples_of_killed_nodes_that_they_had_not_written_come_twice(
    tmp_path: Path, dataset: Dataset, policy: str
) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        lives = await job.started()
        before: Counter[str] = Counter()
        # They write at different times.
        for at, life in enumerate(lives):
            before += await job.read(lives, ALL[10 * at : 10 * at + 10])
            life.write()
        before += await job.read(lives, ALL[30:36])
        for life in lives:
            await life.kill()
        assert before == dict.fromkeys(before, 1)
        assert sum(job.given()) < len(before) == 36
        had = np.bitwise_or.reduce([np.unpackbits(turns.had, count=SAMPLES) for turns in job.kept()])
        assert had.sum() == sum(job.given())
        lives = await job.started(resumes=True)
        assert all(f"resumed: lap 1, {had.sum()} of 60 samples had their turn" in life.said[0] for life in lives)
        assert "samples that a killed node served in its last 1 s may be served again" in lives[0].said[0]
        written = {name for name, had_turn in zip(job.names, had, strict=True) if had_turn}
        assert written < set(before)
        # The rest of the lap: samples are numbered class by class.
        after = await job.read(lives, np.flatnonzero(~had.astype(np.bool_)).tolist())
        assert after == dict.fromkeys(set(job.names) - written, 1)
        assert await job.read(lives, ALL) == job.once()


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_saved_state_is_loaded_by_any_number_of_nodes(tmp_path: Path, dataset: Dataset, policy: str) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        lives = await job.started()
        before = await job.read(lives, ALL[:24])
        saved = await job.save(lives[1], "saved")
        assert decode(saved).turns.given == 24
        await job.read(lives, ALL[24:40])
        for life in lives:
            await life.state.load(saved)
        await all_ready(lives)
        assert sum(job.given()) == 24, "each has its part in its file at once"
        assert before + await job.read(lives, ALL[24:]) == job.once()
        assert await job.read(lives, ALL) == job.once()
        assert sum(life.node.given for life in lives) == 2 * SAMPLES
        await ended(lives)
        lives = await job.started(2)
        for life in lives:
            await life.state.load(saved)
        await all_ready(lives)
        assert before + await job.read(lives, ALL[24:]) == job.once()
        await ended(lives)
        life = await job.start(0, is_alone=True)
        await life.up()
        await life.state.load(saved)
        assert before + await job.read([life], ALL[24:]) == job.once()


async def test_nodes_that_loaded_different_states_refuse_each_other(
    tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Until all load the same state: laps that began differently must not be merged."""
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        await job.read(lives, ALL[:15])
        one = await job.save(lives[0], "one")
        await job.read(lives, ALL[15:27])
        two = await job.save(lives[0], "two")
        for life, saved in zip(lives, (one, two, one), strict=True):
            await life.state.load(saved)
        await until_in_trio(lambda: "refused" in [peer["state"] for peer in lives[0].membership.stats()["peers"]])
        assert "has another start point (the state " in caplog.text
        for life in lives:
            await life.state.load(two)
        await all_ready(lives)
        assert (await job.read(lives, ALL[27:])).total() == SAMPLES - 27


async def test_a_save_needs_all_nodes_and_a_restarted_one_resumes_nothing(
    tmp_path: Path, dataset: Dataset, clock: trio.testing.MockClock
) -> None:
    clock.rate = 1.0
    async with job_at(tmp_path, dataset, patience_s=math.inf) as job:
        lives = await job.started(2)
        await job.read(lives, ALL[:27])
        lives[1].write()
        await lives[1].kill()

        async def pass_time() -> None:
            while True:
                clock.jump(PEER_TIMEOUT_S)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_time)
            with pytest.raises(ValueError, match=f"no answer from {job.addresses[1]}, which served samples as well"):
                await job.save(lives[0], "saved")
            nursery.cancel_scope.cancel()
        assert not (tmp_path / "saved").exists()
        lives[1] = await job.start(1, ranks=range(2), resumes=True)
        await lives[1].up()
        assert lives[1].said == ["the other nodes continued without this node, so it joins them and resumes nothing"]
        assert lives[1].node.given == 0
        await all_ready(lives)
        await job.save(lives[0], "saved")
        assert (await job.read(lives, ALL)).total() == SAMPLES


async def test_a_node_without_a_file_is_named_and_its_samples_come_again(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        served = await job.read(lives, ALL[:27])
        await ended(lives)
        lost = job.given()[1]
        (tmp_path / "1.state.1").unlink()
        lives = await job.started(resumes=True)
        line = f"no state from {job.addresses[1]}: what it served in these laps is served again"
        assert all(life.said[1:] == [line] for life in lives)
        served += await job.read(lives, ALL[27:])
        served += await job.read(lives, ALL)
        assert set(served) == set(job.names)
        assert len([name for name, times in served.items() if times == 3]) <= lost


async def test_a_damaged_or_foreign_file_is_refused_and_stays(tmp_path: Path, dataset: Dataset) -> None:
    """Also one of another number of nodes."""
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        await job.read(lives, ALL[:27])
        await ended(lives)
        path = tmp_path / "1.state.1"
        good = path.read_bytes()
        with pytest.raises(UsageError, match="number of nodes was 3 when it was written, and is 2 now; to start over"):
            await job.start(1, ranks=range(2), resumes=True)
        path.write_bytes(good[:-1])
        with pytest.raises(UsageError, match=r"1\.state\.1: it is truncated or damaged"):
            await job.start(1, resumes=True)
        assert path.read_bytes() == good[:-1]
        path.write_bytes(good)
        job.policy = "slot"
        with pytest.raises(UsageError, match="--policy was pool when it was written, and is slot now"):
            await job.start(1, resumes=True)
        assert path.read_bytes() == good


async def test_a_new_view_restarts_the_files_too(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        await job.read(lives, ALL[:27])
        for life in lives:
            await life.membership.view(json.dumps(job.addresses).encode())
        assert job.given() == [0, 0, 0]
        await all_ready(lives)
        served = await job.read(lives, ALL[:18])
        await ended(lives)
        lives = await job.started(resumes=True)
        assert served + await job.read(lives, ALL[18:]) == job.once()


@pytest.mark.parametrize("set_back_s", [0, 3600])
async def test_turns_of_earlier_laps_are_not_merged_with_these(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, set_back_s: int
) -> None:
    """A node that gives no sample writes nothing, and its old file stays. Clocks may be set back meanwhile."""
    now_ns = time.time_ns
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started(2)
        await job.read(lives, ALL)
        await job.read(lives, ALL[:45])
        await ended(lives)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - set_back_s * 1_000_000_000)
        lives = await job.started(2)
        served = await job.read(lives[:1], ALL[:9])
        await ended(lives)
        lives = await job.started(2, resumes=True)
        for life in lives:
            assert "resumed: lap 1, 9 of 60 samples" in life.said[0]
            assert f"no state from {job.addresses[1]}:" in life.said[1]
        served += await job.read(lives, ALL[9:])
        assert served == job.once()
        # After a turn the file belongs to these laps, and the next resume uses it.
        await ended(lives)
        lives = await job.started(2, resumes=True)
        assert all("resumed: lap 1, 60 of 60 samples" in life.said[0] and len(life.said) == 1 for life in lives)


async def test_nodes_killed_when_only_one_has_loaded_lose_no_sample(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started(2)
        await job.read(lives, ALL)
        served = await job.read(lives, ALL[:15])
        saved = await job.save(lives[0], "saved")
        await job.read(lives, ALL[15:])
        await job.read(lives, ALL[:30])
        for life in lives:
            life.write()
        await lives[0].state.load(saved)
        for life in lives:
            await life.kill()
        lives = await job.started(2, resumes=True)
        assert all("no state from" in life.said[1] for life in lives)
        for _ in range(2):
            served += await job.read(lives, ALL)
        assert set(served) == set(job.names)


@pytest.mark.parametrize("how", ["anew", "from a state"])
@pytest.mark.parametrize("resumes", [False, True], ids=["", "--resume"])
async def test_a_node_that_joins_a_later_view_begins_where_that_does(
    tmp_path: Path, dataset: Dataset, how: str, *, resumes: bool
) -> None:
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        before = await job.read(lives, ALL[:36])
        saved = await job.save(lives[0], "saved")
        await job.read(lives, ALL[36:])
        await job.read(lives, ALL[:15])
        lives[2].write()
        await lives[2].kill()
        if how == "anew":
            before.clear()
            for addresses in (job.addresses[:2], job.addresses):
                for life in lives[:2]:
                    await life.membership.view(json.dumps(addresses).encode())
        else:
            for life in lives[:2]:
                await life.state.load(saved)
        lives[2] = await job.start(2, resumes=resumes)
        await lives[2].up()
        assert not any("resumed: " in line for line in lives[2].said)
        assert any("the other nodes continue from the state" in line for line in lives[2].said) == (how != "anew")
        await all_ready(lives)
        assert before + await job.read(lives, ALL[before.total() :]) == job.once()
        # From then on the files belong to these laps, by the number that each node has now.
        await ended(lives)
        lives = await job.started(resumes=True)
        assert all("resumed: lap 1, 60 of 60" in life.said[0] and len(life.said) == 1 for life in lives)


async def test_renumbered_nodes_keep_their_files_by_their_new_numbers(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        lives = await job.started()
        await lives.pop(1).kill()
        ranks = (0, 2)
        for life in lives:
            await life.membership.view(json.dumps([job.addresses[at] for at in ranks]).encode())
        await all_ready(lives)
        served = await job.read(lives, ALL[:30])
        await ended(lives)
        lives = [await job.start(at, ranks=ranks, resumes=True) for at in ranks]
        for life in lives:
            await life.up()
            assert "resumed: lap 1, 30 of 60" in life.said[0]
            assert len(life.said) == 1
        assert served + await job.read(lives, ALL[30:]) == job.once()
        # A view of one node is like a mount on its own.
        await lives[1].kill()
        await lives[0].membership.view(json.dumps(job.addresses[:1]).encode())
        served = await job.read(lives[:1], ALL[:21])
        await lives[0].end()
        alone = await job.start(0, is_alone=True, resumes=True)
        await alone.up()
        assert alone.node.given == 21
        assert served + await job.read([alone], ALL[21:]) == job.once()
