"""Jobs that mount by themselves on a real Slurm: what docs/slurm.md says to type, and what is left after every end."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from slurm import FREEZER, UID, Slurm
from slurm_jobs import (
    ENDLESS,
    EPOCHS,
    NODES,
    SAMPLES,
    Job,
    cancelled,
    cluster,
    daemon_replaced,
    daemon_stopped,
    daemons_killed,
    edited,
    example,
    script_killed,
    timed_out,
    written,
)
from slurm_rank import CODE_OF_AN_END

DAEMON_AND_KEEPER = 2


@pytest.fixture(scope="module")
def shared() -> Iterator[Slurm]:
    with cluster(is_site=False) as slurm:
        yield slurm


@pytest.fixture
def plain(shared: Slurm) -> Iterator[Slurm]:
    yield shared
    shared.end_jobs()


# The sbatch example


@pytest.mark.parametrize("nodes", [NODES, 1])
def test_the_example_trains_on_every_sample_once(plain: Slurm, nodes: int) -> None:
    job = Job(plain, f"--nodes={nodes}", example(plain, EPOCHS))
    job.until_ended("COMPLETED")
    job.check_samples()


def test_two_jobs_share_the_nodes_and_one_may_be_cancelled(plain: Slurm) -> None:
    endless, short = Job(plain, example(plain, ENDLESS)), Job(plain, example(plain, EPOCHS))
    assert plain.until_ended(short.id) == "COMPLETED", plain.log()
    short.check_samples()
    assert [len(node.mounts()) for node in plain.workers] == [1, 1, 1]
    before = len(endless.given())
    plain.until(lambda: len(endless.given()) > before, "the other job goes on")
    endless.until_training()
    plain.ok("scancel", endless.id)
    endless.until_ended("CANCELLED")
    endless.check_samples()


def test_a_mount_that_fails_ends_the_job_with_its_reason(plain: Slurm) -> None:
    script = example(plain, EPOCHS)
    text = script.read_text()
    script.write_text(edited(text, {f"{plain.home}/data\n": "/nowhere\n"}))
    job = Job(plain, script)
    job.until_ended("FAILED")
    assert "redoxfs: SOURCE /nowhere: " in job.output
    assert not job.given()


@pytest.mark.parametrize("end", [cancelled, timed_out, script_killed, daemon_replaced, daemons_killed, daemon_stopped])
def test_the_example_leaves_nothing_however_it_ends(plain: Slurm, end: Callable[[Job], str]) -> None:
    job = Job(plain, example(plain, ENDLESS))
    job.until_training()
    job.until_ended(end(job))
    job.check_samples()


@pytest.mark.parametrize("asked", ["USR1@90", "B:USR1@90"])
def test_a_signal_before_the_time_limit_reaches_the_training_and_ends_no_mount(plain: Slurm, asked: str) -> None:
    """All processes of the steps get it, or the batch script alone (B), which passes it on to the training."""
    job = Job(plain, f"--signal={asked}", example(plain, ENDLESS))
    job.until_training()
    before = [node.daemons() for node in plain.workers]
    assert [len(daemons) for daemons in before] == [DAEMON_AND_KEEPER] * NODES
    # Slurm looks every half minute at the time that is left.
    plain.ok("scontrol", "update", f"JobId={job.id}", "EndTime=now+90seconds", root=True)
    told = [plain.home / f"told-{job.id}-{rank}" for rank in range(NODES)]

    def all_told() -> bool:
        # The second while Slurm's message is on its way.
        assert plain.state(job.id) in ("RUNNING", "SIGNALING"), plain.log()
        return all(path.exists() for path in told)

    plain.until(all_told, "the training gets the signal")
    plain.ok("scontrol", "update", f"JobId={job.id}", "EndTime=now+1hour", root=True)
    began = len(job.given())
    plain.until(lambda: len(job.given()) > began + SAMPLES, "an epoch after the signal")
    assert [node.daemons() for node in plain.workers] == before
    assert [len(node.mounts()) for node in plain.workers] == [1] * NODES
    (plain.home / f"end-{job.id}").touch()
    # With the training's exit code.
    job.until_ended("FAILED")
    assert f"={CODE_OF_AN_END}:0" in plain.ok("scontrol", "show", "job", job.id)
    job.check_samples()
    epochs = Counter(epoch for epoch, _, _ in job.given())
    assert epochs == dict.fromkeys(epochs, SAMPLES), "an epoch was cut short"


def test_a_job_that_is_requeued_clears_what_its_killed_processes_left(plain: Slurm) -> None:
    """It keeps its number, and so the names of its folders."""
    job = Job(plain, example(plain, ENDLESS))
    job.until_training()
    plain.ok("scontrol", "update", f"JobId={job.id}", "Requeue=1", root=True)
    job.kill()
    assert plain.until_ended(job.id) == "FAILED"
    assert [len(node.mounts()) for node in plain.workers] == [1] * NODES
    for path in (*plain.home.glob(f"out-{job.id}-*"), *plain.home.glob(f"meet-{job.id}-*")):
        path.unlink()
    plain.ok("scontrol", "requeue", job.id, root=True)
    # Slurm would wait two minutes.
    plain.ok("scontrol", "update", f"JobId={job.id}", "StartTime=now", root=True)
    job.until_training()
    job.until_ended(cancelled(job))


# Steps


@pytest.mark.skipif(not FREEZER.is_dir(), reason="proctrack/cgroup needs cgroups of version 1 here")
def test_a_daemon_in_the_background_of_a_step_ends_with_it_and_says_so(plain: Slurm) -> None:
    script = written(
        plain,
        "step.sbatch",
        f"""#!/bin/bash
mkdir /tmp/set
srun redoxfs mount {plain.home}/data /tmp/set
ls /tmp/set
redoxfs umount /tmp/set
rm -r /tmp/set /tmp/redoxfs-{UID}
""",
    )
    job = Job(plain, script)
    job.until_ended("COMPLETED")
    assert job.output.count("this mount ends with step") == 1
    assert "Transport endpoint is not connected" in job.output


def test_a_batch_script_may_mount_in_the_background(plain: Slurm) -> None:
    script = written(
        plain,
        "batch.sbatch",
        f"""#!/bin/bash
mkdir /tmp/set
redoxfs mount {plain.home}/data /tmp/set
srun ls /tmp/set
redoxfs umount --all --job $SLURM_JOB_ID
rm -r /tmp/set /tmp/redoxfs-{UID}
""",
    )
    job = Job(plain, script)
    job.until_ended("COMPLETED")
    assert "ends with step" not in job.output
    assert "\ntrain\n" in job.output
