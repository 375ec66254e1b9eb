"""Jobs on a real Slurm with the Prolog and the Epilog of docs/slurm.md, and what is left after every end."""

import os
from collections.abc import Callable, Iterator
from textwrap import dedent

import pytest
from slurm import UID, Slurm
from slurm_jobs import (
    ENDLESS,
    EPOCHS,
    NODES,
    Job,
    cancelled,
    check_all_idle,
    cluster,
    daemon_of,
    daemon_replaced,
    daemon_stopped,
    daemons_of,
    for_site,
    script_killed,
    timed_out,
    written,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Slurm]:
    with cluster(is_site=True) as slurm:
        yield slurm


@pytest.fixture
def site(shared: Slurm) -> Iterator[Slurm]:
    yield shared
    shared.end_jobs()


def test_a_job_that_asks_is_given_one_daemon_a_node(site: Slurm) -> None:
    job = Job(site, for_site(site, ENDLESS, tasks_per_node=2))
    job.until_training()
    assert [node.mounts() for node in site.workers] == [[f"/run/redoxfs/{job.id}"]] * NODES
    assert [len(daemons_of(node)) for node in site.workers] == [1] * NODES
    assert {os.stat(f"/proc/{daemon_of(node)}").st_uid for node in site.workers} == {UID}
    job.until_ended(cancelled(job))
    job.check_samples()
    assert len(list(site.home.glob(f"out-{job.id}-*"))) == 2 * NODES
    assert (site.home / f"slurm-{job.id}.redoxfs.log").read_text().count("is served at /run/redoxfs/") == NODES


def test_a_job_of_the_site_ends_by_itself(site: Slurm) -> None:
    job = Job(site, for_site(site, EPOCHS))
    job.until_ended("COMPLETED")
    job.check_samples()


def test_two_jobs_have_their_own_mounts(site: Slurm) -> None:
    endless, short = Job(site, for_site(site, ENDLESS)), Job(site, for_site(site, EPOCHS))
    assert site.until_ended(short.id) == "COMPLETED", site.log()
    short.check_samples()
    site.until(lambda: len(site.workers[0].mounts()) == 1, "the short job's mount ends")
    before = len(endless.given())
    site.until(lambda: len(endless.given()) > before, "the other job goes on")
    endless.until_training()
    endless.until_ended(cancelled(endless))
    endless.check_samples()


def test_a_job_without_the_comment_has_no_mount(site: Slurm) -> None:
    script = written(site, "none.sbatch", "#!/bin/bash\nls /run/redoxfs/$SLURM_JOB_ID\n")
    for comment in ("", "redoxfs-like words", "for the redoxfs group"):
        job = Job(site, f"--comment={comment}", script)
        job.until_ended("FAILED")
        assert not (site.home / f"slurm-{job.id}.redoxfs.log").exists()
    check_all_idle(site)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "redoxfs: no SOURCE"),
        ("data", "redoxfs: no SOURCE"),
        ("/nowhere", "redoxfs: SOURCE /nowhere: "),
        ("{data} --no-such-option", "unrecognized arguments: --no-such-option"),
        ("{data} -o allow_other", "allow_other"),
        ("{data} --log /run/log", "/run/log"),
        ("{data} $(touch /tmp/run) `touch /tmp/run`; touch /tmp/run & touch /tmp/run", "unrecognized arguments"),
        ("/* *", "unrecognized arguments: * (see"),
    ],
)
def test_a_bad_request_is_the_users_fault_and_not_the_nodes(site: Slurm, words: str, reason: str) -> None:
    script = written(site, "bad.sbatch", "#!/bin/bash\nls /run/redoxfs/$SLURM_JOB_ID\n")
    job = Job(site, f"--comment=redoxfs {words.format(data=site.home / 'data')}", script)
    job.until_ended("FAILED")
    log = (site.home / f"slurm-{job.id}.redoxfs.log").read_text()
    assert reason in log
    assert "No such file or directory" in job.output
    check_all_idle(site)


def test_a_log_that_cannot_be_opened_holds_no_node(site: Slurm) -> None:
    script = written(
        site, "pipe.sbatch", "#!/bin/bash\nls /run/redoxfs/$SLURM_JOB_ID /run/redoxfs/$SLURM_JOB_ID.d/log\n"
    )
    job = Job(site, "--hold", f"--comment=redoxfs {site.home / 'data'}", script)
    pipe = site.home / f"slurm-{job.id}.redoxfs.log"
    # Whoever opens it for writing waits for a reader.
    os.mkfifo(pipe)
    os.chown(pipe, UID, UID)
    site.ok("scontrol", "release", job.id)
    job.until_ended("COMPLETED")
    assert "\ntrain\n" in job.output
    check_all_idle(site)


def test_a_job_cannot_fill_run(site: Slurm) -> None:
    text = """#!/bin/bash
        fusermount3 -u /run/redoxfs/$SLURM_JOB_ID
        for folder in /run/redoxfs/$SLURM_JOB_ID /run/redoxfs/$SLURM_JOB_ID.d; do
            head -c 1G /dev/zero >$folder/big
        done
        """
    job = Job(site, f"--comment=redoxfs {site.home / 'data'}", written(site, "big.sbatch", dedent(text)))
    job.until_ended("FAILED")
    assert job.output.count("No space left on device") == 2
    check_all_idle(site)


def test_the_epilog_leaves_another_program_with_the_jobs_number(site: Slurm) -> None:
    ending = Job(site, "--hold", for_site(site, EPOCHS))
    text = f"#!/bin/bash\ntouch up\nexec python -c 'import time; time.sleep({ENDLESS})' --job {ending.id}\n"
    other = Job(site, "--nodelist=n1", written(site, "other.sbatch", text))
    site.until((site.home / "up").exists, "the other program runs")
    site.ok("scontrol", "release", ending.id)
    assert site.until_ended(ending.id) == "COMPLETED", site.log()
    assert site.state(other.id) == "RUNNING"
    site.ok("scancel", other.id)
    other.until_ended("CANCELLED")


@pytest.mark.parametrize("end", [cancelled, timed_out, script_killed, daemon_replaced])
def test_the_epilog_leaves_nothing_however_a_job_ends(site: Slurm, end: Callable[[Job], str]) -> None:
    job = Job(site, for_site(site, ENDLESS))
    job.until_training()
    job.until_ended(end(job))
    job.check_samples()
    check_all_idle(site)


def test_the_epilog_kills_a_daemon_that_hangs(site: Slurm) -> None:
    job = Job(site, for_site(site, ENDLESS))
    job.until_training()
    job.until_ended(daemon_stopped(job))
    job.check_samples()
    # Slurm drains a node where it could not kill a process in time, such as a reader that waited for the daemon.
    for node in site.workers:
        site.command("scontrol", "update", f"NodeName={node.name}", "State=RESUME", root=True)
    check_all_idle(site)
