"""Jobs of the scripts and the page of Slurm, on a cluster of three nodes, and the ways in which they end."""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest
from images import make_full_images
from netspaces import why_not
from slurm import CODE, FREEZER, PREFIX, Node, Slurm, slurm_of

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "mount" / "slurm"
RANK = f"{CODE}/tests/slurm_rank.py"
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
def cluster(*, is_site: bool, own_tmp: bool = False) -> Iterator[Slurm]:
    """A cluster as it is, or with the Prolog and the Epilog installed as docs/slurm.md says.

    ``own_tmp``: each job has a /tmp of its own.
    """
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if (reason := f"{missing[0]} is not installed" if missing else why_not()) is not None:
        pytest.skip(reason)
    more = block("Prolog=") if is_site else "PrologFlags=Alloc\n" if own_tmp else ""
    if own_tmp:
        more = edited(more, {"PrologFlags=Alloc": "PrologFlags=Alloc,Contain\nJobContainerType=job_container/tmpfs"})
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
        texts = [out.read_text() for out in self.slurm.home.glob(f"out-{self.id}-*")]
        # A rank may be in the middle of its last line.
        lines = [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(int(epoch), asked, served) for epoch, asked, served in map(str.split, lines)]

    def script_in(self, node: Node) -> list[int]:
        """The processes of the batch script, the first first."""
        name = f"job{int(self.id):05}/slurm_script"
        return sorted(pid for pid, words in node.processes().items() if words[-1].endswith(name))

    def kill(self) -> None:
        """Kill all of its processes, on all nodes at once."""
        mark = f"SLURM_JOB_ID={self.id}".encode()
        running = [pid for node in self.slurm.workers for pid in node.processes()]
        own = [pid for pid in running if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in own:
                # Some end with others.
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

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


def check_all_idle(slurm: Slurm) -> None:
    """No node was drained."""
    for node in slurm.workers:
        slurm.until_idle(node.name)


# Ends: each function brings one about, and returns Slurm's word for it


def cancelled(job: Job) -> str:
    job.slurm.ok("scancel", job.id)
    return "CANCELLED"


def timed_out(job: Job) -> str:
    # Slurm refuses a time that is over when the controller reads it. It looks at the times each half minute.
    job.slurm.ok("scontrol", "update", f"JobId={job.id}", "EndTime=now+10", root=True)
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
