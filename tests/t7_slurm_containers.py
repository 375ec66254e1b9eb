"""Jobs on a real Slurm that gives each a /tmp of its own (job_container/tmpfs)."""

import pytest
from slurm import one_processor
from slurm_jobs import ENDLESS, EPOCHS, Job, cancelled, cluster, example, for_site, written

SAVED = """
redoxfs state save "/run/redoxfs/$SLURM_JOB_ID" /tmp/of-the-job
srun --nodes=1 --ntasks=1 ls /tmp
"""


@pytest.mark.parametrize("is_site", [True, False])
def test_a_job_with_a_tmp_of_its_own_is_served_and_leaves_nothing(*, is_site: bool) -> None:
    with one_processor(), cluster(is_site=is_site, own_tmp=True) as slurm:
        script = for_site if is_site else example
        short = script(slurm, EPOCHS)
        if is_site:
            short = written(slurm, "saves.sbatch", short.read_text() + SAVED)
        job = Job(slurm, short)
        job.until_ended("COMPLETED")
        job.check_samples()
        # Not in that of the node, which has the daemon.
        assert ("\nof-the-job\n" in job.output) == is_site
        job = Job(slurm, script(slurm, ENDLESS))
        job.until_training()
        job.until_ended(cancelled(job))
        job.check_samples()
