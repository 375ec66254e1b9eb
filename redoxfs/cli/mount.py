"""`redoxfs mount`: serve in the foreground; or in the background, and return when the mount answers."""

import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from redoxfs.cli.arguments import rendered
from redoxfs.cli.exits import described, reported
from redoxfs.cli.options.building import built, flat
from redoxfs.cli.status import ALL_IN_MEMORY
from redoxfs.launch.background import Work, start
from redoxfs.launch.control_files import WRONG, read_control_at
from redoxfs.launch.daemon import LiveMountError, Prepared, job_of, prepare, work_of
from redoxfs.launch.errors import DaemonError
from redoxfs.launch.forks import forked
from redoxfs.launch.fuse_options import parse_fuse_options
from redoxfs.launch.keeper import Ends
from redoxfs.launch.logs import log_to
from redoxfs.launch.notify import notify, when_readable
from redoxfs.launch.options import MountOptions, paths_in
from redoxfs.launch.path_status import CONTROL_FOLDER
from redoxfs.launch.runtime_paths import open_log
from redoxfs.launch.say import say, say_by
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.launch.turn import KEEPER, began_before, end_turn, take_part
from redoxfs.linux.mount_table import mount_of, read_mounts
from redoxfs.linux.pids import sees_all_pids

# Slurm numbers the steps that srun does not start, such as an interactive shell, from here (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

_OF_LOG = ("--log", "--log-format", "--log-level", "--slow-open")
"""What a mount logs, and where: one mount serves processes that ask for different logs."""


def run(options: MountOptions) -> int:
    """Mount; returns 0 once the mount answers (or, with -f, once it has ended)."""
    if options.foreground and options.log is None and options.log_format == "json":
        log_to(sys.stderr, options.log_format, options.log_level)
        say_by(logging.getLogger("redoxfs").info)
    try:
        prepared = prepare(options)
    except LiveMountError as live:
        return _share(live, options)
    work = work_of(prepared, _request(options, prepared.recipe.source, prepared.recipe.target))
    if options.foreground:
        return _serve_here(prepared, work)
    _serve_behind(prepared, work)
    return 0


def _share(live: LiveMountError, options: MountOptions) -> int:
    """Return once the mount that is there answers, if it is the one that was asked for. Raises LiveMountError."""
    source, target = live.source, live.target
    try:
        stats = json.loads(read_control_at(target.path, "stats.json", options.timeout_s))
        there = _of_mount([str(word) for word in stats["request"]["words"]])
        answered_at_s = float(stats["request"]["answered_at_boottime_s"])
    except (OSError, *WRONG):
        raise live from None
    here = _of_mount(_request(options, source.name, target.path))
    if there != here:
        words = [[word for word in some if word not in others] for some, others in ((there, here), (here, there))]
        has, asked = (" ".join(each) or "none" for each in words)
        raise LiveMountError(source, target, f", with other options: {has} there, {asked} here") from None
    # Without a job it may be left from another run, in the middle of an epoch.
    if job_of(options) is None and not began_before(answered_at_s):
        raise live
    say(f"{source.name} is served at {target.path} already, as another process of this machine asked for")
    say(f"to end it: redoxfs umount {shlex.quote(str(target.path))}")
    return 0


def _request(options: MountOptions, source: str, target: Path) -> list[str]:
    """What is asked for, in words that make an equal mount from any directory (`_OF_LOG` may differ)."""
    fuse = parse_fuse_options(options.fuse_options)
    return rendered(
        replace(
            absolute(options),
            source=source,
            mountpoint=str(target),
            job=job_of(options),
            fuse_options=tuple(sorted(fuse.options)),
            foreground=False,
            keeper=False if options.keeper is False else None,
        )
    )


def absolute(options: MountOptions) -> MountOptions:
    """The same options, with every path but SOURCE and MOUNTPOINT from the root."""
    given = flat(options)
    return built(MountOptions, given | {name: os.path.abspath(path) for name, path in paths_in(given).items()})


def _of_mount(words: list[str]) -> list[str]:
    """Without what each process that asks for a mount decides for itself. They are the same for equal mounts."""
    options, paths = words[: words.index("--")], words[words.index("--") :]
    return [word for word in options if word.partition("=")[0] not in _OF_LOG] + paths


def _serve_here(prepared: Prepared, work: Work) -> int:
    options, target, log_fd = prepared.recipe.options, prepared.recipe.target, sys.stderr.fileno()
    if options.log is None:
        _log(options)(sys.stderr)
    else:
        log_fd, _ = open_log(options.log, target)
        _log(options)(os.fdopen(log_fd, "a", errors="backslashreplace"))

    def on_ready() -> None:
        if prepared.keeper is None:
            # Whoever runs this command may have asked for a signal at its own end.
            os.close(prepared.turn)
        else:
            end_turn(prepared.turn)
        lines = summary(prepared)
        for line in lines:
            say(line)

        def on_readable() -> None:
            say(f"to end it: Ctrl-C, or redoxfs umount {shlex.quote(str(target))}")
            notify(READY=1, STATUS="; ".join(lines))

        when_readable(target / CONTROL_FOLDER / "stats.json", options.timeout_s, on_readable)

    def on_news(line: str) -> None:
        say(line)
        notify(STATUS=line)

    if prepared.keeper is None:
        try:
            return work(on_ready, on_news)
        finally:
            notify(STOPPING=1)
    command = os.getpid()

    def be_daemon() -> int:
        ends.forget()
        # A Ctrl-C is for the keeper too, which passes it on as SIGTERM. So is the end of the terminal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.chdir("/")
        try:
            take_part(prepared.turn, command)
            code = work(on_ready, on_news)
        except BaseException as error:
            code = reported(error)
        if code == 0:
            notify(STOPPING=1)
        logging.shutdown()
        return code

    ends = Ends()
    with forked(be_daemon, signal.SIGTERM) as daemon:
        return prepared.keeper.become(daemon, log_fd, options.log_format, ends=ends)


def _log(options: MountOptions) -> Callable[[TextIO], None]:
    return partial(log_to, log_format=options.log_format, level=options.log_level)


def _serve_behind(prepared: Prepared, work: Work) -> None:
    options, target = prepared.recipe.options, prepared.recipe.target
    log_fd, log_path = open_log(options.log, target)
    timeout_s = options.timeout_s + (0 if prepared.recipe.members is None else options.cluster.sharing.join_timeout_s)
    keeper, parent = prepared.keeper, os.getpid()

    def keep(be_daemon: Callable[[], int]) -> int:
        assert keeper is not None
        nonlocal parent
        take_part(prepared.turn, parent, KEEPER)
        parent = os.getpid()
        with forked(be_daemon, signal.SIGTERM) as daemon:
            keeper.become(daemon, log_fd, options.log_format, ends=None)

    def daemon_work(on_ready: Callable[[], None], on_news: Callable[[str], None]) -> int:
        def ready() -> None:
            end_turn(prepared.turn)
            on_ready()

        take_part(prepared.turn, parent)
        return work(ready, on_news)

    pid = start(
        daemon_work,
        log_fd=log_fd,
        log_path=log_path,
        timeout_s=timeout_s,
        say=say,
        describe=described,
        keep=None if keeper is None else keep,
        log=_log(options),
    )
    try:
        # "Ready" means that the daemon's loop runs; the caller needs an answer through the kernel.
        read_control_at(target, "stats.json", options.timeout_s)
    except OSError as failure:
        raise DaemonError(
            f"{target}: does not answer ({failure.strerror}); daemon: pid {pid}, log: {log_path}"
        ) from None
    for line in summary(prepared):
        say(line)
    say(f"the daemon is pid {pid} and logs to {log_path}")
    say(f"to end it: redoxfs umount {shlex.quote(str(target))}")
    notice = step_notice(os.environ)
    if notice is not None:
        say(notice)


def step_notice(environ: Mapping[str, str]) -> str | None:
    """A line for a daemon that will end with a job step of Slurm; None elsewhere.

    It is no error: a step may mount and then train, as one that runs torchrun does. A batch script has no step's number
    in its environment, and ends with the job.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    if not (step.isascii() and step.isdigit()) or int(step) >= _FIRST_SPECIAL_STEP:
        return None
    return (
        f"this mount ends with step {job}.{step} of Slurm, which started this command; to have it for the whole job, "
        "run it in a step of its own: srun --overlap --ntasks-per-node=1 redoxfs mount -f --keeper … &"
    )


IN_THE_SCRIPT = "in the script: DataLoader(dataset, sampler=redoxfs.torch.RedoxSampler(dataset), …), without shuffle"
"""What a mount for a sampler needs."""

OUT_OF_SIGHT = (
    "other containers can use this mount: programs whose pids redoxfs cannot see from here share their open files, as "
    "one program"
)
"""What two opens of a path by nobody that is known mean."""


def summary(prepared: Prepared) -> list[str]:
    """What is served, in lines for the person at the shell."""
    catalog, plan = prepared.dataset.catalog, prepared.plan
    source, target = prepared.recipe.source, prepared.recipe.target
    where = f"at {target}" if prepared.receive is None else f"to the mount that came from {target}"
    line = f"{source} is served {'over itself' if source == str(target) else where}"
    if not len(catalog.class_of):
        return [f"{line}, and nothing is redirected"]
    data = format_bytes(int(catalog.sample_bytes.sum()))
    held = f"{format_bytes(prepared.recipe.memory_bytes)} of memory hold {plan.held_share:.0%} of the samples"
    stays = plan.retained is not None and plan.sharing is None and plan.held_share == 1
    return [
        line,
        f"{counted(len(catalog.class_of), 'sample')} ({data}) "
        f"of {counted(len(catalog.class_names), 'class', 'classes')} "
        f"in {counted(plan.about['chunks'], 'chunk')} of up to {counted(plan.about['chunk_size'], 'sample')}",
        ALL_IN_MEMORY
        if plan.about.get("chunks_per_virtual_chunk") == 1
        else f"{held}{': each is read once, and stays there' if stays else ' at a time'}",
        *([IN_THE_SCRIPT] if catalog.is_for_sampler else []),
        *([OUT_OF_SIGHT] if _is_seen_from_elsewhere(target) else []),
    ]


def _is_seen_from_elsewhere(target: Path) -> bool:
    """Whether programs may use the mount whose threads have no numbers here, as where a container mounts for others."""
    try:
        mount = mount_of(target, read_mounts())
        return mount is not None and mount.is_shared and not sees_all_pids()
    except OSError:
        return False
