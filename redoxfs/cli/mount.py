"""`redoxfs mount`: serve in the foreground, or in the background and return when the mount answers."""

import argparse
import os
import sys

from redoxfs.cli.exits import described
from redoxfs.launch.background import Work, log_to, start
from redoxfs.launch.daemon import Job, prepare, server
from redoxfs.launch.deadline import read_file
from redoxfs.launch.errors import DaemonError
from redoxfs.launch.path_status import CONTROL_FOLDER
from redoxfs.launch.runtime_paths import open_log
from redoxfs.launch.say import say
from redoxfs.launch.sizes import format_bytes
from redoxfs.launch.source import ALL_IN_MEMORY, KEPT


def run(arguments: argparse.Namespace) -> int:
    """Mount; returns 0 once the mount answers (or, with -f, once it has ended)."""
    job = prepare(arguments)
    work = server(job)
    if arguments.foreground:
        _serve_here(job, work)
    else:
        _serve_behind(job, work)
    return 0


def _serve_here(job: Job, work: Work) -> None:
    if job.arguments.log is None:
        log_to(sys.stderr)
    else:
        log_fd, _ = open_log(job.arguments.log, job.target.path)
        log_to(os.fdopen(log_fd, "a", errors="backslashreplace"))

    def on_ready() -> None:
        for line in _summary(job):
            say(line)
        say(f"to end it: Ctrl-C, or redoxfs umount {job.target.path}")
        os.close(job.turn)

    work(on_ready, say)


def _serve_behind(job: Job, work: Work) -> None:
    log_fd, log_path = open_log(job.arguments.log, job.target.path)
    timeout_s = job.arguments.timeout + (job.arguments.join_timeout if job.members is not None else 0)
    pid = start(work, log_fd=log_fd, log_path=log_path, timeout_s=timeout_s, say=say, describe=described)
    try:
        # "Ready" says that the daemon's loop runs; what the caller needs is an answer through the kernel.
        read_file(job.target.path / CONTROL_FOLDER / "stats.json", job.arguments.timeout)
    except OSError as failure:
        raise DaemonError(
            f"{job.target.path}: does not answer ({failure.strerror}); daemon: pid {pid}, log: {log_path}"
        ) from None
    for line in _summary(job):
        say(line)
    say(f"the daemon is pid {pid} and logs to {log_path}")
    say(f"to end it: redoxfs umount {job.target.path}")


def _summary(job: Job) -> list[str]:
    catalog, plan = job.dataset.catalog, job.plan
    where = "over itself" if job.source.path == job.target.path else f"at {job.target.path}"
    line = f"{job.source.path} is served {where}"
    if not len(catalog.class_of):
        return [f"{line}, every file as it is"]
    data = format_bytes(int(catalog.sample_bytes.sum()))
    held = f"{format_bytes(job.memory_bytes)} of memory hold {plan.held_share:.0%} of the samples"
    stays = plan.about["policy"] == "pool" and plan.sharing is None and plan.held_share == 1
    return [
        line,
        f"{len(catalog.class_of):,} samples ({data}) of {len(catalog.class_names):,} classes "
        f"in {plan.about['chunks']:,} chunks of {plan.about['chunk_size']} samples",
        ALL_IN_MEMORY
        if plan.about.get("chunks_per_virtual_chunk") == 1
        else f"{held}{KEPT if stays else ' at a time'}",
    ]
