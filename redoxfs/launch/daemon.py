"""`redoxfs mount`: check, scan, decide, go into the background, return when the mount answers.

What can be refused is refused in the foreground, before there is a daemon, and the cheap checks come before the scan.
Where several nodes share a dataset the daemons come together before there is a mount. Two things must happen before
the kernel's mount: the descriptor of SOURCE is opened, and all that Python will import is imported, since a daemon
that waits for its own mount waits for ever.
"""

import argparse
import fcntl
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.launch.background import Work
from redoxfs.launch.errors import MountpointError, SourceUnusableError, TooLittleMemoryError
from redoxfs.launch.fuse_access import check_fuse
from redoxfs.launch.members import Membership, check_nodes, membership, remote_memory_of, transport_of
from redoxfs.launch.mount_options import MountOptions, parse_mount_options
from redoxfs.launch.path_status import Place, find, settled
from redoxfs.launch.resume import resume, settings_of, state_file_of, take_over
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.say import say
from redoxfs.launch.sizes import format_bytes, format_needed
from redoxfs.launch.source import (
    Dataset,
    check_source,
    dataset_of,
    fingerprint_of,
    layout_of,
    memory_of,
    open_root,
    say_verdict,
)

if TYPE_CHECKING:
    from redoxfs.dataset import Catalog
    from redoxfs.node import Plan, Share
    from redoxfs.node.cluster import ClusterConfig
    from redoxfs.node.state import StateFile
    from redoxfs.peers import Identity, Transport


@dataclass(frozen=True, slots=True)
class Job:
    """All that was decided in the foreground."""

    arguments: argparse.Namespace
    source: Place
    target: Place
    options: MountOptions
    memory_bytes: int
    dataset: Dataset
    plan: "Plan"
    members: Membership | None
    transport: "Transport | None"
    turn: int
    state_file: "StateFile | None"
    kept: bytes | None
    settings: Callable[["Plan"], Mapping[str, str]]


def prepare(arguments: argparse.Namespace) -> Job:
    options = parse_mount_options(arguments.mount_options)
    check_nodes(arguments)
    turn = _await_turn(arguments)
    source, target = _places(arguments)
    root_fd = open_root(source)
    # Who may not read SOURCE can seldom write to it; of the two, that it cannot be read is what there is to say.
    _check_writable(target)
    check_fuse(options)
    state_file = state_file_of(arguments, source, target)
    memory_bytes = memory_of(arguments)
    members = membership(arguments)
    if members is not None:
        say(f"this is node {members.rank}, {members.addresses[members.rank]}, of {', '.join(members.addresses)}")
        if state_file is not None:
            state_file.number(members.rank, len(members.addresses))
    transport = None if members is None else transport_of(arguments, members)
    dataset = dataset_of(source, root_fd, arguments, probe=True, members=members)
    say_verdict(dataset.catalog.verdict)
    plan = _plan(dataset, memory_bytes, arguments, members)
    settings = partial(settings_of, dataset, arguments)
    now = settings(plan)
    if state_file is not None:
        take_over(state_file, target, arguments.timeout)
    kept = resume(state_file, plan, now, len(dataset.catalog.class_of)) if arguments.resume else None
    return Job(
        arguments,
        source,
        target,
        options,
        memory_bytes,
        dataset,
        plan,
        members,
        transport,
        turn,
        state_file,
        kept,
        settings,
    )


def _await_turn(arguments: argparse.Namespace) -> int:
    """A descriptor whose lock makes this the only process that is about to mount there.

    Every rank of a job may run the same `redoxfs mount`, and the kernel would stack all their mounts. It is a record
    lock because a fork does not inherit those: it ends with this process, or where its descriptor is closed, and the
    daemon has no part in it. There is no deadline: who has the lock may be scanning, and ends it whatever happens.
    """
    asked = arguments.source if arguments.mountpoint is None else arguments.mountpoint
    path = find(asked, arguments.timeout).path
    turn = os.open(control_path(path).with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say(f"waiting for another redoxfs mount of {path} that is under way")
        fcntl.lockf(turn, fcntl.LOCK_EX)
    return turn


def _places(arguments: argparse.Namespace) -> tuple[Place, Place]:
    """SOURCE and MOUNTPOINT, fit for use; stale mounts at either are cleared on the way."""
    source = settled(arguments.source, arguments.timeout)
    target = source if arguments.mountpoint is None else settled(arguments.mountpoint, arguments.timeout)
    if target.is_our_root:
        raise MountpointError(
            f"{target.asked}: a live redoxfs mount is there already; to end it: redoxfs umount {target.path}"
        )
    check_source(source)
    if target.ours is not None:
        raise MountpointError(f"{target.asked}: lies inside the redoxfs mount at {target.ours.mountpoint}")
    if target.trouble is not None:
        raise MountpointError(f"{target.asked}: {target.trouble}")
    if source.path in target.path.parents:
        raise MountpointError(
            f"{target.asked}: lies inside SOURCE ({source.path}); mount over SOURCE itself, or elsewhere"
        )
    for own in (sys.prefix, sys.base_prefix, os.path.dirname(__file__)):
        if target.path in [Path(os.path.realpath(own)), *Path(os.path.realpath(own)).parents]:
            raise MountpointError(f"{target.asked}: holds what runs redoxfs ({own}); mount over a folder that does not")
    return source, target


def _check_writable(target: Place) -> None:
    if os.geteuid() != 0 and not target.seen.writable:
        raise MountpointError(f"{target.asked}: not writable for you, and fusermount3 asks for that")


def _plan(dataset: Dataset, memory_bytes: int, arguments: argparse.Namespace, members: Membership | None) -> "Plan":
    from redoxfs.chunks import MemoryTooSmallError
    from redoxfs.node import plan_pool, plan_slot

    share = None
    if members is not None:
        share = _share(dataset, arguments, members.rank, len(members.addresses), memory_bytes)
    try:
        plan = plan_slot if arguments.policy == "slot" else plan_pool
        return plan(dataset.catalog, dataset.cells, memory_bytes=memory_bytes, seed=arguments.seed, share=share)
    except MemoryTooSmallError as error:
        raise TooLittleMemoryError(
            f"{format_bytes(error.given_bytes)} of memory is too little for this dataset in chunks of "
            f"{dataset.chunk_size}; it takes at least --memory {format_needed(error.needed_bytes)}"
            f"{_what_is_large(dataset.catalog, error.needed_bytes)}"
        ) from None


def _what_is_large(catalog: "Catalog", needed_bytes: int) -> str:
    """Why a dataset needs so much, where that is one sample of it; else nothing."""
    sample = int(catalog.sample_bytes.argmax())
    size_bytes = int(catalog.sample_bytes[sample])
    if size_bytes * 3 <= needed_bytes:
        return ""
    path = os.fsdecode(catalog.tree.path(int(catalog.members[catalog.member_at[sample]])))
    return f", since {path} ({format_bytes(size_bytes)}) must fit twice: among what is loaded and among what is open"


def _share(dataset: Dataset, arguments: argparse.Namespace, node: int, nodes: int, memory_bytes: int) -> "Share":
    from redoxfs.node import Share

    is_shared = arguments.storage == "shared"
    return Share(
        node=node,
        nodes=nodes,
        memory_bytes=remote_memory_of(arguments, memory_bytes),
        shared_storage=is_shared,
        part_of=None if is_shared else dataset.parts_where_data_lies(node, nodes),
        timeout_s=arguments.peer_timeout,
        exchange=arguments.exchange,
        window=arguments.prefetch_window,
    )


def _joining(job: Job, on_news: Callable[[str], None]) -> "ClusterConfig | None":
    if job.members is None or job.transport is None:
        return None
    from redoxfs.node.cluster import ClusterConfig
    from redoxfs.peers import View

    def plan_for(node: int, nodes: int) -> "Plan":
        # A view is given later; what is wrong with it goes to who gave it.
        try:
            members = Membership(("",) * nodes, node) if nodes > 1 else None
            if job.arguments.storage == "local":
                job.dataset.parts_where_data_lies(node, nodes)
            return _plan(job.dataset, job.memory_bytes, job.arguments, members)
        except (TooLittleMemoryError, SourceUnusableError) as error:
            raise ValueError(str(error)) from error

    return ClusterConfig(
        view=View(1, job.members.addresses),
        plan_for=plan_for,
        identity=partial(_identity, job),
        timeout_s=job.arguments.join_timeout,
        sampler=job.arguments.sampler,
        report=lambda missing: on_news(_who_is_missing(missing)),
        transport=job.transport.for_view,
        kept=job.kept,
        say=on_news,
    )


def _identity(job: Job, plan: "Plan") -> "Identity":
    """What all nodes must have in common."""
    from redoxfs.peers import Identity

    settings = {
        "--policy": plan.about["policy"],
        "--chunk-size": plan.about["chunk_size"],
        "--seed": job.arguments.seed,
        "--storage": job.arguments.storage,
        "--sampler": job.arguments.sampler,
        "layout": layout_of(job.dataset),
    }
    chunks_per_vc = plan.about.get("chunks_per_virtual_chunk")
    if chunks_per_vc is not None:
        settings["number of chunks to a virtual chunk, which follows from --memory,"] = chunks_per_vc
    return Identity(fingerprint_of(job.dataset), {name: str(value) for name, value in settings.items()})


def _who_is_missing(addresses: Sequence[str]) -> str:
    return f"waiting for {', '.join(addresses)}" if addresses else "all nodes are there"


def server(job: Job) -> Work:
    """What the daemon does. Its imports are done here: once mounted, Python's own files may lie below."""
    from redoxfs.fs import serve

    socket = control_path(job.target.path)
    _allow_open_files()
    try:
        store = job.dataset.store()
    except OSError as failure:
        name = os.path.basename(os.fsdecode(failure.filename or b""))
        raise SourceUnusableError(f"{job.source.path / name}: {failure.strerror}") from None

    def work(on_ready: Callable[[], None], on_news: Callable[[str], None]) -> None:
        serve(
            catalog=job.dataset.catalog,
            plan=job.plan,
            store=store,
            source=job.source.path,
            timeout_s=job.arguments.timeout,
            mountpoint=job.target.path,
            mount_options=job.options.kernel,
            direct_io=job.options.direct_io,
            control_path=socket,
            state_file=job.state_file,
            settings=job.settings,
            on_ready=on_ready,
            joining=_joining(job, on_news),
        )

    return work


def _allow_open_files() -> None:
    """As many as this user may have: each shard and each open file that is served as it is takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
