"""Jobs on a real Slurm of three nodes: what docs/slurm.md says to type, and what is left after every kind of end."""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from images import make_full_images
from netspaces import why_not
from slurm import FREEZER, PREFIX, UID, Node, Slurm, slurm_of

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "mount" / "slurm"
RANK = Path(__file__).with_name("slurm_rank.py")
# WordNet ids are proof for --classes auto.
CLASSES = {"n00000001": 20, "n00000005": 50, "n00000044": 130}
SAMPLES = sum(CLASSES.values())
PAGE = (ROOT / "docs" / "slurm.md").read_text()
NODES = 3
EPOCHS = 2
# More than any test waits for.
ENDLESS = 1_000_000


def block(beginning: str) -> str:
    """The commands or the file that docs/slurm.md shows, by how it begins."""
    [found] = [
        text
        for each in re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)
        if (text := dedent(each).strip()).startswith(beginning)
    ]
    return found + "\n"


@contextmanager
def cluster(*, is_site: bool) -> Iterator[Slurm]:
    """A cluster as it is, or with the Prolog and the Epilog installed as docs/slurm.md says."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if (reason := f"{missing[0]} is not installed" if missing else why_not()) is not None:
        pytest.skip(reason)
    more = block("Prolog=") if is_site else ""
    # Production uses cgroups, and of version 2 they need systemd.
    with slurm_of(NODES, proctrack="cgroup" if FREEZER.is_dir() else "linuxproc", more=more) as slurm:
        make_full_images(slurm.home / "data", CLASSES)
        if is_site:
            _, *rest = block("python3 -m venv").splitlines(keepends=True)
            # `slurm_of` has installed redoxfs.
            assert rest[0] == f"{PREFIX}/bin/pip install .\n"
            commands = "".join(rest[1:]).replace("/etc/slurm", str(slurm.folder))
            subprocess.run(["bash", "-ec", commands], cwd=ROOT, check=True)
        yield slurm


@pytest.fixture(scope="module")
def plain() -> Iterator[Slurm]:
    with cluster(is_site=False) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def site() -> Iterator[Slurm]:
    with cluster(is_site=True) as slurm:
        yield slurm


class Job:
    """A submitted job, with what its ranks were given."""

    def __init__(self, slurm: Slurm, *words: str | Path) -> None:
        self.slurm = slurm
        self.id = slurm.submit("--no-requeue", "--output=%j.out", *words)

    @property
    def output(self) -> str:
        return (self.slurm.home / f"{self.id}.out").read_text()

    def given(self) -> list[tuple[int, str, str]]:
        """The epoch, the path asked for and the path served, of all ranks."""
        lines = [line for out in self.slurm.home.glob(f"out-{self.id}-*") for line in out.read_text().splitlines()]
        return [(int(epoch), asked, served) for epoch, asked, served in map(str.split, lines)]

    def script_in(self, node: Node) -> list[int]:
        """The processes of the batch script, the first first."""
        name = f"job{int(self.id):05}/slurm_script"
        return sorted(pid for pid, words in node.processes().items() if words[-1].endswith(name))

    def until_training(self) -> None:
        """Until every rank has finished `EPOCHS` epochs. AssertionError: the job ended before."""

        def trains() -> bool:
            assert self.slurm.state(self.id) in ("PENDING", "CONFIGURING", "RUNNING"), self.slurm.log()
            return any(epoch >= EPOCHS for epoch, _, _ in self.given())

        self.slurm.until(trains, f"job {self.id} trains")

    def check_samples(self) -> None:
        given = self.given()
        for _, asked, served in given:
            assert asked.split("/")[1] == served.split("/")[1], f"{asked} gave {served}"
        for epoch in range(EPOCHS):
            counts = Counter(served for when, _, served in given if when == epoch)
            assert counts == dict.fromkeys(counts, 1), f"epoch {epoch}: a sample came twice"
            assert len(counts) == SAMPLES

    def until_ended(self, *states: str) -> None:
        """Checks how it ended, and that nothing of it is left."""
        assert self.slurm.until_ended(self.id) in states, self.slurm.log()
        self.slurm.until_nothing_is_left()


def example(slurm: Slurm, epochs: int) -> Path:
    """The sbatch example, edited as docs/slurm.md says."""
    changes = {
        "SOURCE=/data/set-packed\n": f"SOURCE={slurm.home}/data\n",
        'train.py "$MOUNT"': f'{RANK} "$MOUNT" {epochs}',
    }
    return written(slurm, f"train-{epochs}.sbatch", edited((SCRIPTS / "train.sbatch").read_text(), changes))


def for_site(slurm: Slurm, epochs: int, tasks_per_node: int = 1) -> Path:
    """The script of docs/slurm.md that asks the site for its mount."""
    text = edited(
        block("#!/bin/bash\n#SBATCH --nodes=3\n"),
        {
            "--ntasks-per-node=8": f"--ntasks-per-node={tasks_per_node}",
            "/data/set-packed": f"{slurm.home}/data",
            'train.py "/run/redoxfs/$SLURM_JOB_ID"': f"{RANK} /run/redoxfs/$SLURM_JOB_ID {epochs}",
        },
    )
    return written(slurm, f"site-{epochs}.sbatch", text)


def edited(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def written(slurm: Slurm, name: str, text: str) -> Path:
    path = slurm.home / name
    path.write_text(text)
    return path


def daemons_of(node: Node) -> list[int]:
    return [pid for pid, words in node.daemons().items() if words[0] != "redoxfs-keeper"]


def daemon_of(node: Node) -> int:
    [pid] = daemons_of(node)
    return pid


# The sbatch example


@pytest.mark.parametrize("nodes", [NODES, 1])
def test_the_example_trains_on_every_sample_once(plain: Slurm, nodes: int) -> None:
    job = Job(plain, f"--nodes={nodes}", example(plain, EPOCHS))
    job.until_ended("COMPLETED")
    job.check_samples()


def test_two_jobs_share_the_nodes_and_one_may_be_cancelled(plain: Slurm) -> None:
    endless, short = Job(plain, example(plain, ENDLESS)), Job(plain, example(plain, EPOCHS))
    plain.until(lambda: plain.state(short.id) == "COMPLETED", "the short job completes")
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


# Each end


def cancelled(job: Job) -> str:
    job.slurm.ok("scancel", job.id)
    return "CANCELLED"


def timed_out(job: Job) -> str:
    job.slurm.ok("scontrol", "update", f"JobId={job.id}", "EndTime=now", root=True)
    return "TIMEOUT"


def script_killed(job: Job) -> str:
    [node] = [node for node in job.slurm.workers if job.script_in(node)]
    os.kill(job.script_in(node)[0], signal.SIGKILL)
    return "FAILED"


def kill_daemon(job: Job) -> None:
    """Until another daemon begins."""
    node = job.slurm.workers[1]
    killed = daemon_of(node)
    os.kill(killed, signal.SIGKILL)
    job.slurm.until(lambda: [pid for pid in daemons_of(node) if pid != killed], "another daemon begins")


def daemons_killed(job: Job) -> str:
    """The third within a minute has no successor. A minute is the keeper's; two successors begin in some seconds."""
    kill_daemon(job)
    kill_daemon(job)
    os.kill(daemon_of(job.slurm.workers[1]), signal.SIGKILL)
    return "FAILED"


def daemon_replaced(job: Job) -> str:
    """Its readers wait, and read on, until somebody cancels the job."""
    before = len(job.given())
    kill_daemon(job)
    job.slurm.until(lambda: len(job.given()) > before, "the job goes on")
    job.slurm.ok("scancel", job.id)
    return "CANCELLED"


def daemon_stopped(job: Job) -> str:
    """Its readers hang, and so the job, until somebody cancels it."""
    os.kill(daemon_of(job.slurm.workers[1]), signal.SIGSTOP)
    job.slurm.ok("scancel", job.id)
    return "CANCELLED"


@pytest.mark.parametrize("end", [cancelled, timed_out, script_killed, daemon_replaced, daemons_killed, daemon_stopped])
def test_the_example_leaves_nothing_however_it_ends(plain: Slurm, end: Callable[[Job], str]) -> None:
    job = Job(plain, example(plain, ENDLESS))
    job.until_training()
    job.until_ended(end(job))
    job.check_samples()


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


@pytest.mark.parametrize("kind", ["plain", "site"])
def test_a_node_whose_slurmd_dies_is_clean_once_it_is_back(request: pytest.FixtureRequest, kind: str) -> None:
    slurm: Slurm = request.getfixturevalue(kind)
    job = Job(slurm, example(slurm, ENDLESS) if kind == "plain" else for_site(slurm, ENDLESS))
    job.until_training()
    slurm.kill_slurmd("n3")
    assert slurm.until_ended(job.id) == "NODE_FAIL"
    slurm.until(lambda: not [what for what in slurm.left() if not what.startswith("n3:")], "the others are clean")
    slurm.start_slurmd("n3")
    slurm.until_nothing_is_left()
    job.check_samples()
    check_all_idle(slurm)


@pytest.mark.parametrize("kind", ["plain", "site"])
def test_a_node_without_power_leaves_nothing_on_the_others(kind: str) -> None:
    with cluster(is_site=kind == "site") as slurm:
        job = Job(slurm, example(slurm, ENDLESS) if kind == "plain" else for_site(slurm, ENDLESS))
        job.until_training()
        slurm.power_off("n3")
        job.until_ended("NODE_FAIL")
        job.check_samples()


# The Prolog and the Epilog


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
    site.until(lambda: site.state(short.id) == "COMPLETED", "the short job completes")
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
    ending.slurm.until(lambda: site.state(ending.id) == "COMPLETED", "the job with that number ends")
    assert site.state(other.id) == "RUNNING"
    site.ok("scancel", other.id)
    other.until_ended("CANCELLED")


def check_all_idle(slurm: Slurm) -> None:
    """No node was drained."""
    for node in slurm.workers:
        slurm.until_idle(node.name)


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
