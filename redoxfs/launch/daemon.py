"""All that happens before a daemon serves: check, scan, decide, and bind the result to what the daemon runs.

Everything that can be refused is refused in the foreground, before there is a daemon, and cheap checks come before the
scan. Where several nodes share a dataset, the daemons meet before anything is mounted. Two things must happen before
the kernel's mount: opening the descriptor of SOURCE, and importing all modules. A daemon that reads through its own
mount waits forever.
"""

import errno
import gc
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs import __version__
from redoxfs.launch.archives import check_hidden, with_archives
from redoxfs.launch.background import Work
from redoxfs.launch.cache import check_cache, resolved_cache, with_cache
from redoxfs.launch.deadline import Child
from redoxfs.launch.defaults import POLICIES
from redoxfs.launch.errors import (
    UNEXPECTED,
    CommandError,
    MountpointError,
    SourceUnusableError,
    TooLittleMemoryError,
    UsageError,
)
from redoxfs.launch.fuse_access import check_fuse
from redoxfs.launch.fuse_options import FuseOptions, parse_fuse_options
from redoxfs.launch.keeper import Keeper, NewKeeper, has_keeper, import_path_below, new_keeper
from redoxfs.launch.open_files import allow_open_files, opened_store
from redoxfs.launch.options import ClusterOptions, MountOptions
from redoxfs.launch.path_status import PathStatus, path_status, path_status_cleared
from redoxfs.launch.recipe import Recipe, RecipeMemory
from redoxfs.launch.resume import resume, settings_of, state_file_in, state_file_of, take_over
from redoxfs.launch.runtime_paths import control_path, make_folder_again
from redoxfs.launch.say import say
from redoxfs.launch.sizes import format_bytes, format_needed
from redoxfs.launch.source import (
    Dataset,
    Opening,
    Reading,
    check_source,
    fingerprint_of,
    layout_of,
    memory_of,
    open_dataset,
    open_root,
    say_verdict,
)
from redoxfs.launch.stacks import answer_with_stacks
from redoxfs.launch.turn import await_turn
from redoxfs.linux.fuse_device import hold
from redoxfs.objects import is_address

if TYPE_CHECKING:
    from redoxfs.dataset import Catalog
    from redoxfs.fs import Channel
    from redoxfs.fs.metrics import Metrics
    from redoxfs.launch.members import Membership
    from redoxfs.node import Plan, Share
    from redoxfs.node.cluster import ClusterConfig
    from redoxfs.node.state import StateFile
    from redoxfs.peers import Identity


MOST_TIMES = 1 << 10
"""No --memory is advised that is so many times what a node needs beside samples from other nodes."""

PRECISION = 1000
"""The --memory that is advised is above the least by one part in so many, at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """All that was decided in the foreground.

    ``recipe`` is what another daemon is to have of it. ``turn`` is the descriptor of `await_turn`, ``receive`` that of
    `prepare`; then the target of ``recipe`` is the socket.
    ``held`` is a descriptor of the mountpoint since it was checked. ``is_received``: another program made the mount,
    perhaps for all users.
    ``keeper`` is what the process that forks the daemon becomes, if there is to be a keeper. ``metrics`` has its
    port already.
    """

    recipe: Recipe
    dataset: Dataset
    plan: "Plan"
    state_file: "StateFile | None"
    receive: "Callable[[], Channel] | None"
    turn: int = -1
    kept: bytes | None = None
    held: int | None = None
    is_received: bool = False
    keeper: "NewKeeper | None" = None
    metrics: "Metrics | None" = None


class LiveMountError(MountpointError):
    """A redoxfs mount is at MOUNTPOINT, and lives, as far as one can see without asking it."""

    def __init__(self, source: PathStatus, target: PathStatus, difference: str = "") -> None:
        super().__init__(
            f"{target.asked}: a live redoxfs mount is there already{difference}; "
            f"to end it: redoxfs umount {shlex.quote(str(target.path))}"
        )
        self.source = source
        self.target = target


def prepare(options: MountOptions, receive: "Callable[[], Channel] | None" = None) -> Prepared:
    """Check, scan and decide. Progress and decisions go to stderr. Raises CommandError, and errors of the dataset.

    ``receive`` returns a mount that another process made. Its mountpoint may not be visible here: the MOUNTPOINT of
    ``options`` is then the socket that the mount comes from, and stands for it in the names of the log, the state file
    and the control socket.
    """
    allow_open_files()
    fuse = parse_fuse_options(options.fuse_options)
    if options.cluster != ClusterOptions():
        from redoxfs.launch.members import check_nodes

        check_nodes(options.cluster, options.memory.policy)
    options = replace(options, cache=resolved_cache(options.cache))
    if options.mountpoint is None and is_address(options.source):
        raise UsageError(f"{options.source}: an object store cannot be mounted over itself; give MOUNTPOINT")
    with Child() as child:
        turn = await_turn(options, child)
        if receive is None:
            source, target = _paths(options, child)
        else:
            assert options.mountpoint is not None
            source = path_status(options.source, options.timeout_s, child)
            source = with_archives(source, options.timeout_s, options.dataset, child)
            check_source(source)
            check_cache(options.cache, *_source_of(source))
            target = path_status(options.mountpoint, options.timeout_s, child)
    if receive is not None:
        return _prepared(options, fuse, source, target, open_root(source), turn, receive, is_kept=False)
    try:
        held = hold(target.path)
    except OSError as failure:
        raise MountpointError(f"MOUNTPOINT {target.asked}: {failure.strerror}") from None
    is_kept = has_keeper(options) and _can_import(target.path, is_asked_for=options.keeper is True)
    root_fd = open_root(source)
    # Whoever cannot read SOURCE can seldom write to it; of the two, report that it cannot be read.
    if os.geteuid() != 0 and not target.seen.writable:
        raise MountpointError(f"{target.asked}: not writable for you, which fusermount3 requires")
    check_cache(options.cache, ("MOUNTPOINT", target.path), *_source_of(source))
    check_fuse(fuse, target.path)
    return _prepared(options, fuse, source, target, root_fd, turn, None, held=held, is_kept=is_kept)


def _source_of(source: PathStatus) -> list[tuple[str, Path]]:
    return [] if source.address is not None else [("SOURCE", source.path)]


def _prepared(
    options: MountOptions,
    fuse: FuseOptions,
    source: PathStatus,
    target: PathStatus,
    root_fd: int,
    turn: int,
    receive: "Callable[[], Channel] | None",
    *,
    held: int | None = None,
    is_kept: bool,
) -> Prepared:
    metrics = _metrics(options)
    state_file = state_file_of(options.state, source, target, options.timeout_s)
    memory_bytes = memory_of(options.memory.memory_size)
    members = transport = None
    if options.cluster != ClusterOptions():
        # What several nodes need is imported for several nodes alone.
        from redoxfs.launch.members import membership, transport_of

        members = membership(options.cluster, options.memory.policy)
    if members is not None:
        say(f"this is node {members.rank}, {members.addresses[members.rank]}, of {', '.join(members.addresses)}")
        if state_file is not None:
            state_file.number(members.rank, len(members.addresses))
        transport = transport_of(options.cluster.sharing, members)
    _import_all()
    opening = Opening(
        source,
        root_fd,
        options.dataset,
        options.memory,
        options.timeout_s,
        measure_storage=True,
        members=members,
        is_storage_local=options.cluster.sharing.storage == "local",
        is_cached=options.cache.cache is not None,
    )
    dataset = open_dataset(opening)
    say_verdict(dataset.catalog.verdict)
    if dataset.index is None and (receive is not None or "allow_other" in fuse.options):
        _say_closed_by_a_list(source, dataset)
    if dataset.catalog.is_for_sampler and (members is not None or not POLICIES[options.memory.policy].draws):
        given = "--nodes" if members is not None else f"--policy {options.memory.policy}"
        raise UsageError(f"{given}: a mount for a sampler (--classes sampler) is of one node, with --policy pool")
    if state_file is not None and not take_over(state_file, target, options.timeout_s):
        if options.state is not None or options.resume:
            raise UsageError(f"{state_file.base}: another mount keeps its state there; give this one another --state")
        say(
            f"{state_file.base}: another mount keeps its state there; this one cannot be resumed (or give it a --state)"
        )
        state_file = None
    keeper = None
    state_path = None if state_file is None else state_file.base
    if is_kept:
        memory = RecipeMemory()
        dataset = memory.keep_dataset(dataset)
        address = None if members is None else members.addresses[members.rank]
        keeper = new_keeper(memory, root_fd, state_path, turn, target.path, address)
    plan = _plan(dataset, memory_bytes, options, members)
    now = settings_of(dataset, options.dataset.seed, plan)
    kept = resume(state_file, plan, now, len(dataset.catalog.class_of)) if options.resume else None
    return Prepared(
        recipe=Recipe(
            options=options,
            source=source.name,
            target=target.path,
            memory_bytes=memory_bytes,
            texts=dataset.texts,
            control_path=control_path(target.path),
            state_path=state_path,
            members=members,
            transport=transport,
        ),
        dataset=dataset,
        plan=plan,
        state_file=state_file,
        receive=receive,
        turn=turn,
        kept=kept,
        held=held,
        is_received=receive is not None,
        keeper=keeper,
        metrics=metrics,
    )


def _say_closed_by_a_list(source: PathStatus, dataset: Dataset) -> None:
    from redoxfs.launch.acls import closed_by_a_list

    catalog = dataset.catalog
    path = closed_by_a_list(dataset.root_fd, catalog.tree, catalog.members)
    if path is not None:
        say(
            f"{source.asked}: an access control list closes {os.fsdecode(path) or '.'} to users whom its mode admits; "
            "redoxfs ignores lists, so they may read it through this mount"
        )


def succeeding(recipe: Recipe, dataset: Dataset, state_fd: int, receive: "Callable[[], Channel]") -> Prepared:
    """What a former daemon of the mount had prepared. It has chosen already; nothing is checked or scanned again."""
    allow_open_files()
    _import_all()
    options = recipe.options
    members = recipe.members
    state_file = None
    # Without a folder, a former daemon gave the file up to another mount.
    if recipe.state_path is not None and state_fd >= 0:
        state_file = state_file_in(state_fd, recipe.state_path)
    if state_file is not None and members is not None:
        state_file.number(members.rank, len(members.addresses))
    metrics = None
    try:
        metrics = _metrics(options)
    except UsageError as error:
        # Programs wait for the mount, so it goes on without metrics if it has to.
        log.warning("no metrics: %s", error)
    plan = _plan(dataset, recipe.memory_bytes, options, members)
    return Prepared(recipe, dataset, plan, state_file, receive, metrics=metrics)


def _import_all() -> None:
    """Import what the daemon runs: after all checks that are cheap, and before the scan."""
    gc.disable()
    import redoxfs.fs  # noqa: F401

    # Modules never become garbage. A collection in the daemon would copy each page of theirs that the fork shares.
    gc.freeze()
    gc.enable()


def _metrics(options: MountOptions) -> "Metrics | None":
    """What serves metrics, with its port. Raises UsageError."""
    if options.metrics is None and not options.metrics_label:
        return None
    from redoxfs.launch.addresses import joined
    from redoxfs.launch.metrics import labels_of, listen

    labels = labels_of(options.metrics_label)
    if options.metrics is None:
        return None
    listening = listen("--metrics", options.metrics)
    from redoxfs.fs.metrics import Metrics

    return Metrics(listening, joined(*listening.getsockname()[:2]), labels)


def job_of(options: MountOptions) -> str | None:
    """The job that a mount belongs to."""
    asked = os.environ.get("SLURM_JOB_ID", "") if options.job is None else options.job
    return asked or None


def _paths(options: MountOptions, child: Child) -> tuple[PathStatus, PathStatus]:
    """SOURCE and MOUNTPOINT, checked; stale mounts at either are cleared first."""
    source = target = path_status_cleared(options.source, options.timeout_s, child)
    if options.mountpoint is not None:
        target = path_status_cleared(options.mountpoint, options.timeout_s, child)
    if target.is_our_root:
        raise LiveMountError(source, target)
    source = with_archives(source, options.timeout_s, options.dataset, child)
    check_source(source)
    if source.archives is not None and target.trouble is not None and options.mountpoint is None:
        raise UsageError(f"{options.source}: archives cannot be mounted over themselves; give MOUNTPOINT")
    if target.ours is not None:
        raise MountpointError(f"{target.asked}: lies inside the redoxfs mount at {target.ours.mountpoint}")
    if target.seen.error == errno.ENOENT:
        raise MountpointError(
            f"MOUNTPOINT {target.asked} does not exist; make it: mkdir -p {shlex.quote(target.asked)}"
        )
    if target.trouble is not None:
        raise MountpointError(f"MOUNTPOINT {target.asked}: {target.trouble}")
    if source.address is None and source.path in target.path.parents:
        raise MountpointError(
            f"{target.asked}: lies inside SOURCE ({source.path}); mount over SOURCE itself, or elsewhere"
        )
    if source.address is not None:
        from redoxfs.launch.objects import hidden_credentials

        if (hidden := hidden_credentials(source.address, target.path)) is not None:
            raise MountpointError(
                f"{target.asked}: would hide {hidden}, where redoxfs looks for credentials; mount over another folder"
            )
    if source.archives is not None and (hidden := check_hidden(source.archives, target.path)) is not None:
        raise MountpointError(f"{target.asked}: would hide {hidden} from the mount itself; mount over another folder")
    for own in (sys.prefix, sys.base_prefix, os.path.dirname(__file__)):
        if target.path in [Path(os.path.realpath(own)), *Path(os.path.realpath(own)).parents]:
            raise MountpointError(f"{target.asked}: holds redoxfs or its Python ({own}); mount over another folder")
    if source.path != target.path:
        with suppress(OSError), os.scandir(target.path) as entries:
            if next(entries, None) is not None:
                say(f"MOUNTPOINT {target.asked}: is not empty; what is there is hidden until the mount ends")
    return source, target


def _can_import(target: Path, *, is_asked_for: bool) -> bool:
    """Whether another daemon would find its modules while nobody answers below the mount; if not, with a line.

    Raises MountpointError if a keeper is asked for, and it would not.
    """
    folder = import_path_below(target)
    if folder is None:
        return True
    trouble = f"Python looks for modules in {folder}, so no daemon could be started again"
    if is_asked_for:
        raise MountpointError(f"{target}: {trouble}; take it out of PYTHONPATH, or mount with --no-keeper")
    say(f"{target}: {trouble}: this mount is dead when its daemon dies (to avoid that, take it out of PYTHONPATH)")
    return False


def _plan(dataset: Dataset, memory_bytes: int, options: MountOptions, members: "Membership | None") -> "Plan":
    from redoxfs.chunks import MemoryTooSmallError
    from redoxfs.node import PLANNERS

    planner = PLANNERS[options.memory.policy]

    def with_memory(memory_bytes: int) -> dict[str, Any]:
        share = None
        if members is not None:
            share = _share(dataset, options, members.rank, len(members.addresses), memory_bytes)
        return {"memory_bytes": memory_bytes, "seed": options.dataset.seed, "share": share}

    try:
        return planner.plan(dataset.catalog, dataset.cells, **with_memory(memory_bytes))
    except MemoryTooSmallError as error:
        needed, check = error.needed_bytes, planner.check
        if members is not None and check is not None:
            of_node = _sufficient(needed, lambda size: check(dataset.catalog, dataset.cells, **with_memory(size)))
            if of_node is None:
                raise TooLittleMemoryError(
                    f"--remote-memory {options.cluster.sharing.remote_memory} leaves too little of any --memory for "
                    "this node's own samples"
                ) from None
            needed = of_node
        raise TooLittleMemoryError(
            f"{format_bytes(error.given_bytes)} of memory is too little for this dataset in chunks of "
            f"{dataset.chunk_size}; it needs at least --memory {format_needed(needed)}"
            f"{_largest_sample(dataset.catalog, needed)}"
        ) from None


def _sufficient(needed_bytes: int, check: Callable[[int], None]) -> int | None:
    """About the least --memory that ``check`` takes; None: it takes none. Samples from other nodes have a part of it,
    which grows with it."""
    from redoxfs.chunks import MemoryTooSmallError

    def takes(memory_bytes: int) -> bool:
        try:
            check(memory_bytes)
        except MemoryTooSmallError:
            return False
        return True

    low = high = needed_bytes
    while not takes(high):
        low, high = high, 2 * high
        if high > MOST_TIMES * needed_bytes:
            return None
    while high - low > high // PRECISION:
        middle = (low + high) // 2
        low, high = (low, middle) if takes(middle) else (middle, high)
    return high


def _largest_sample(catalog: "Catalog", needed_bytes: int) -> str:
    """A clause that names the sample for which a dataset needs so much memory; empty if no single sample does."""
    sample = int(catalog.sample_bytes.argmax())
    size_bytes = int(catalog.sample_bytes[sample])
    if size_bytes * 3 <= needed_bytes:
        return ""
    path = os.fsdecode(catalog.tree.path(int(catalog.members[catalog.member_at[sample]])))
    return f", because {path} ({format_bytes(size_bytes)}) must fit twice: once loaded and once open"


def _share(dataset: Dataset, options: MountOptions, node: int, nodes: int, memory_bytes: int) -> "Share":
    from redoxfs.launch.members import remote_memory_of
    from redoxfs.node import Share

    sharing = options.cluster.sharing
    is_shared = sharing.storage == "shared"
    return Share(
        node=node,
        nodes=nodes,
        memory_bytes=remote_memory_of(sharing, memory_bytes),
        shared_storage=is_shared,
        part_of=None if is_shared else dataset.parts_where_data_lies(node, nodes),
        timeout_s=sharing.peer_timeout_s,
        exchange=sharing.exchange,
        window=sharing.prefetch_window,
        needs_less=sharing.remote_memory is None,
    )


def _cluster_config(prepared: Prepared, on_news: Callable[[str], None]) -> "ClusterConfig | None":
    recipe, options, dataset = prepared.recipe, prepared.recipe.options, prepared.dataset
    if recipe.members is None or recipe.transport is None:
        return None
    from redoxfs.launch.members import Membership
    from redoxfs.node.cluster import ClusterConfig
    from redoxfs.peers import View

    def plan_for(node: int, nodes: int) -> "Plan":
        # A new view comes over the control socket; its sender gets the error.
        try:
            members = Membership(("",) * nodes, node) if nodes > 1 else None
            if options.cluster.sharing.storage == "local":
                dataset.parts_where_data_lies(node, nodes)
            return _plan(dataset, recipe.memory_bytes, options, members)
        except (TooLittleMemoryError, SourceUnusableError) as error:
            raise ValueError(str(error)) from error

    return ClusterConfig(
        view=View(1, recipe.members.addresses),
        node=recipe.members.rank,
        plan_for=plan_for,
        identity=partial(_identity, options, dataset),
        timeout_s=options.cluster.sharing.join_timeout_s,
        sampler=options.cluster.sharing.sampler,
        report=lambda missing: on_news(f"waiting for {', '.join(missing)}" if missing else "all nodes have answered"),
        transport=recipe.transport.for_view,
        kept=prepared.kept,
        say=on_news,
    )


def _identity(options: MountOptions, dataset: Dataset, plan: "Plan") -> "Identity":
    """What all nodes must have in common."""
    from redoxfs.peers import Identity

    settings = {
        "--policy": plan.about["policy"],
        "--chunk-size": plan.about["chunk_size"],
        "--seed": options.dataset.seed,
        "--storage": options.cluster.sharing.storage,
        "--sampler": options.cluster.sharing.sampler,
        "layout": layout_of(dataset),
    }
    chunks_per_vc = plan.about.get("chunks_per_virtual_chunk")
    if chunks_per_vc is not None:
        settings["number of chunks to a virtual chunk, which follows from --memory,"] = chunks_per_vc
    return Identity(fingerprint_of(dataset), {name: str(value) for name, value in settings.items()})


def work_of(prepared: Prepared, request: Sequence[str] = (), *, keeper: "Callable[[], Keeper] | None" = None) -> Work:
    """What the daemon runs.

    Its modules are imported here: once mounted, Python's own files may lie below the mount.

    Args:
        request: what it reports that it was asked for.
        keeper: returns the keeper that a former daemon had. Called in the daemon.
    """
    from redoxfs.fs import MountSpec, serve
    from redoxfs.node.control import CannotListenError
    from redoxfs.node.programs import Programs

    recipe, options, dataset = prepared.recipe, prepared.recipe.options, prepared.dataset
    is_first = keeper is None
    threads = options.fuse_threads
    fuse_threads = default_fuse_threads(len(os.sched_getaffinity(0))) if threads is None else threads
    if prepared.keeper is not None:
        keeper = prepared.keeper.of_daemon
        of_successor = replace(
            options,
            # Each device that the keeper holds is of one thread.
            fuse_threads=fuse_threads,
            job=job_of(options) or "",
            # Programs would wait while a resolver is asked for a name.
            metrics=None if prepared.metrics is None else prepared.metrics.address,
        )
        prepared.keeper.recipe.finish(replace(recipe, options=of_successor, request=tuple(request)), __version__)
    fuse = parse_fuse_options(options.fuse_options)
    guards = prepared.is_received or "allow_other" in fuse.options
    store = opened_store(dataset, Reading(recipe.memory_bytes, options.timeout_s, guards), recipe.source)
    store = with_cache(
        store,
        dataset,
        options.cache,
        source=recipe.source,
        memory_bytes=recipe.memory_bytes,
        is_first=is_first,
        reads=None if prepared.plan.sharing is None else prepared.plan.sharing.reads,
    )

    def work(on_ready: Callable[[], None], on_news: Callable[[str], None]) -> int:
        answer_with_stacks()
        kept_by = None if keeper is None else keeper()

        def look_at_runtime_folder() -> None:
            try:
                make_folder_again(recipe.control_path)
            except CommandError as error:
                raise CannotListenError(str(error)) from None
            if kept_by is not None:
                kept_by.look()

        def ready() -> None:
            if kept_by is not None:
                kept_by.serves()
            on_ready()

        spec = MountSpec(
            catalog=dataset.catalog,
            plan=prepared.plan,
            store=store,
            source=recipe.source,
            mountpoint=recipe.target,
            options=fuse.options,
            kernel_options=fuse.kernel,
            bypass=fuse.bypass,
            fuse_threads=fuse_threads,
            timeout_s=options.timeout_s,
            control_path=recipe.control_path,
            state_file=prepared.state_file,
            settings=partial(settings_of, dataset, options.dataset.seed),
            cluster=_cluster_config(prepared, on_news),
            job=job_of(options),
            request=tuple(request),
            source_kind=dataset.kind,
            receive=prepared.receive,
            held=prepared.held,
            keeper=kept_by,
            metrics=prepared.metrics,
            slow_open_s=options.slow_open_s,
            seed=options.dataset.seed,
            programs=Programs(options.exact_for, options.redirect_for),
            look=look_at_runtime_folder,
            # A mount that was received, and not from a former daemon, was made in another container, as a rule.
            sees_callers=prepared.receive is None or kept_by is not None,
        )
        if not serve(spec, ready):
            return UNEXPECTED
        return 0 if kept_by is None else kept_by.exit_code

    return work


def default_fuse_threads(cores: int) -> int:
    """Below four cores, one thread that receives requests and decides beats two; each takes a core while it looks."""
    return 0 if cores < 4 else min(4, cores // 4)
