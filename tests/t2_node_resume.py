"""One node resumes from its file, loads states that were saved, and takes back what was opened ahead."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from resuming_nodes import ALL, SAMPLES, Job, Life, dataset_at, job_at
from stores import opened_by, read_from

from redoxfs.launch.source import Dataset
from redoxfs.node.opened_ahead import OpenedAhead
from redoxfs.node.state import decode, read_bytes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    with dataset_at(tmp_path_factory.mktemp("data")) as dataset:
        yield dataset


async def mounted(job: Job, *, resumes: bool = False) -> Life:
    life = await job.start(0, is_alone=True, resumes=resumes)
    await life.up()
    return life


async def stat(life: Life, entries: Sequence[int]) -> None:
    for entry in entries:
        told = life.node.stat(entry, 1000)
        if not isinstance(told, tuple):
            await told


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_resuming_at_any_turn_is_exact(
    tmp_path: Path, dataset: Dataset, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        served: Counter[str] = Counter()
        for parts in ([], [ALL[:1]], [ALL[1:33]], [ALL[33:]], [ALL[:20]], [ALL[20:], ALL]):
            life = await mounted(job, resumes=True)
            given = served.total()
            assert ("resumed: lap" if given else "there is nothing to resume: no ") in capsys.readouterr().err
            assert life.node.given == given
            for part in parts:
                served += await job.read([life], part)
                if served.total() % SAMPLES == 0:
                    assert served == Counter(job.names * (served.total() // SAMPLES))
            # A sample that a stat reserves has had no turn.
            await stat(life, job.entries[::5])
            await life.end()
        assert served == Counter(job.names * 3)


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_a_loaded_state_ends_reservations_and_leaves_open_files(
    tmp_path: Path, dataset: Dataset, policy: str
) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        life = await mounted(job)
        before = await job.read([life], ALL[:20])
        saved = await job.save(life, "saved")
        after = await job.read([life], ALL[20:35])
        held = await opened_by(life.node, job.entries[3], 1000)
        first = await read_from(life.node, held.handle)
        await stat(life, job.entries[36:40])
        assert life.node.stats()["put_aside"] > 0
        told = await life.state.load(saved)
        assert life.node.stats()["put_aside"] == 0
        assert told["told"] == "lap 1, 20 of 60 samples had their turn"
        # By the thread that read path 34 last: an open of it is a turn now, and no second look.
        life.threads -= 1
        again = await job.read([life], [34, *ALL[20:34], *ALL[35:]])
        assert await read_from(life.node, held.handle) == first
        life.node.close(held.handle)
        assert before + again == job.once()
        assert after == dict.fromkeys(after, 1)
        assert set(after) <= set(again)
        assert await job.read([life], ALL) == job.once()
        stats = life.node.stats()
        assert (life.node.given, stats["put_aside"], stats["errors"]) == (2 * SAMPLES, 0, 0)


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_the_last_samples_that_were_opened_come_again(tmp_path: Path, dataset: Dataset, policy: str) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        life = await mounted(job)
        ahead, less = OpenedAhead(life.node, life.state), tmp_path / "less"
        before = await job.read([life], ALL[:10])
        opened_ahead = await job.read([life], ALL[10:20])
        told = await ahead.save_less(b"10 %s" % os.fsencode(less))
        assert (told["less"], told["given"]) == (10, 10)
        await job.read([life], ALL[20:30])
        await life.state.load(read_bytes(less))
        assert life.node.given == 10
        again = await job.read([life], ALL[10:])
        assert before + again == job.once()
        assert set(opened_ahead) <= set(again)
        assert await job.read([life], ALL) == job.once(), "later epochs are exact"


@pytest.mark.parametrize("policy", ["pool", "slot"])
async def test_opens_of_the_lap_before_come_again_with_those_after_them(
    tmp_path: Path, dataset: Dataset, policy: str
) -> None:
    async with job_at(tmp_path, dataset, policy) as job:
        life = await mounted(job)
        ahead, less = OpenedAhead(life.node, life.state), tmp_path / "less"
        before = await job.read([life], ALL[:-6])
        await job.read([life], ALL[-6:])
        await job.read([life], ALL[-4:])
        await ahead.save_less(b"10 %s" % os.fsencode(less))
        await life.state.load(read_bytes(less))
        assert life.node.given == SAMPLES - 6
        assert life.node.stats()["laps"]["."]["number"] == 1
        assert before + await job.read([life], ALL[-6:]) == job.once()


async def test_less_takes_no_more_than_the_opens_that_are_kept(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        life = await mounted(job)
        told = await OpenedAhead(life.node, life.state).save_less(b"65536 %s" % os.fsencode(tmp_path / "less"))
        assert (told["less"], told["given"]) == (0, 0)


async def test_without_resume_the_first_turn_replaces_the_state(tmp_path: Path, dataset: Dataset) -> None:
    async with job_at(tmp_path, dataset) as job:
        file = tmp_path / "0.state"
        life = await mounted(job)
        await job.read([life], ALL[:33])
        await life.end()
        first = read_bytes(file)
        await (await mounted(job)).end()
        assert read_bytes(file) == first, "a mount without reads keeps the old state"
        life = await mounted(job)
        assert await job.read([life], ALL) == job.once()
        await life.end()
        assert decode(read_bytes(file)).turns.given == SAMPLES


async def test_a_folder_that_vanishes_is_one_log_line(
    tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    async with job_at(kept, dataset) as job:
        life = await mounted(job)
        served = await job.read([life], ALL[:20])
        shutil.rmtree(kept)
        for part in (ALL[20:40], ALL[40:]):
            served += await job.read([life], part)
            life.write()
        assert served == job.once()
        await life.end()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "retrying every second: No such file" in caplog.text
