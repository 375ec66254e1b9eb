"""`redoxfs mount`: serve in the foreground; or in the background, and return when the mount answers."""

import os
import sys

from redoxfs.cli.exits import described
from redoxfs.cli.status import ALL_IN_MEMORY
from redoxfs.launch.background import Work, log_to, start
from redoxfs.launch.daemon import Prepared, prepare, work_of
from redoxfs.launch.deadline import read_file
from redoxfs.launch.errors import DaemonError
from redoxfs.launch.options import MountOptions
from redoxfs.launch.path_status import CONTROL_FOLDER
from redoxfs.launch.runtime_paths import open_log
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_bytes


def run(options: MountOptions) -> int:
    """Mount; returns 0 once the mount answers (or, with -f, once it has ended)."""
    prepared = prepare(options)
    work = work_of(prepared)
    if options.foreground:
        _serve_here(prepared, work)
    else:
        _serve_behind(prepared, work)
    return 0


def _serve_here(prepared: Prepared, work: Work) -> None:
    if prepared.options.log is None:
        log_to(sys.stderr)
    else:
        log_fd, _ = open_log(prepared.options.log, prepared.target.path)
        log_to(os.fdopen(log_fd, "a", errors="backslashreplace"))

    def on_ready() -> None:
        for line in _summary(prepared):
            say(line)
        say(f"to end it: Ctrl-C, or redoxfs umount {prepared.target.path}")
        os.close(prepared.turn)

    work(on_ready, say)


def _serve_behind(prepared: Prepared, work: Work) -> None:
    options, target = prepared.options, prepared.target.path
    log_fd, log_path = open_log(options.log, target)
    timeout_s = options.timeout_s + (0 if prepared.members is None else options.cluster.sharing.join_timeout_s)
    pid = start(work, log_fd=log_fd, log_path=log_path, timeout_s=timeout_s, say=say, describe=described)
    try:
        # "Ready" means that the daemon's loop runs; the caller needs an answer through the kernel.
        read_file(target / CONTROL_FOLDER / "stats.json", options.timeout_s)
    except OSError as failure:
        raise DaemonError(
            f"{target}: does not answer ({failure.strerror}); daemon: pid {pid}, log: {log_path}"
        ) from None
    for line in _summary(prepared):
        say(line)
    say(f"the daemon is pid {pid} and logs to {log_path}")
    say(f"to end it: redoxfs umount {target}")


def _summary(prepared: Prepared) -> list[str]:
    catalog, plan = prepared.dataset.catalog, prepared.plan
    source, target = prepared.source.path, prepared.target.path
    line = f"{source} is served {'over itself' if source == target else f'at {target}'}"
    if not len(catalog.class_of):
        return [f"{line}, every file exactly"]
    data = format_bytes(int(catalog.sample_bytes.sum()))
    held = f"{format_bytes(prepared.memory_bytes)} of memory hold {plan.held_share:.0%} of the samples"
    stays = plan.about["policy"] == "pool" and plan.sharing is None and plan.held_share == 1
    return [
        line,
        f"{counted(len(catalog.class_of), 'sample')} ({data}) "
        f"of {counted(len(catalog.class_names), 'class', 'classes')} "
        f"in {counted(plan.about['chunks'], 'chunk')} of up to {counted(plan.about['chunk_size'], 'sample')}",
        ALL_IN_MEMORY
        if plan.about.get("chunks_per_virtual_chunk") == 1
        else f"{held}{': each is read once, and stays there' if stays else ' at a time'}",
    ]
