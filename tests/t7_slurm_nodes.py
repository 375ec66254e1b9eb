"""What a job on a real Slurm leaves behind when a node of it is lost. Slurm takes most of a minute to end it then."""

from collections.abc import Iterator

import pytest
from slurm_jobs import ENDLESS, Job, check_all_idle, cluster, example, for_site


@pytest.fixture(params=["plain", "site"])
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job that trains on a cluster of its own: one that mounts by itself, or whose site mounts."""
    is_site = request.param == "site"
    with cluster(is_site=is_site) as slurm:
        job = Job(slurm, (for_site if is_site else example)(slurm, ENDLESS))
        job.until_training()
        yield job


def test_a_node_whose_slurmd_dies_is_clean_once_it_is_back(job: Job) -> None:
    slurm = job.slurm
    slurm.kill_slurmd("n3")
    assert slurm.until_ended(job.id) == "NODE_FAIL"
    slurm.until(lambda: not [what for what in slurm.left() if not what.startswith("n3:")], "the others are clean")
    slurm.start_slurmd("n3")
    slurm.until_nothing_is_left()
    job.check_samples()
    check_all_idle(slurm)


def test_a_node_without_power_leaves_nothing_on_the_others(job: Job) -> None:
    job.slurm.power_off("n3")
    job.until_ended("NODE_FAIL")
    job.check_samples()
