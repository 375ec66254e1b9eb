"""A mount from its first request to its clean end.

A mount ends by an unmount from outside, SIGTERM, SIGINT, or `stop` on the control socket. Each time, waiting requests
get `GRACE_S` and are then cancelled, so no end takes longer than that. Worker threads, descriptors and the control
socket are gone when `serve` returns. If the main loop itself fails, the mount is left in place, dead: programs get
ENOTCONN at once instead of the empty directory underneath, which they would take for an empty dataset.
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio

from redoxfs import __version__
from redoxfs.chunks import ChunkStore
from redoxfs.dataset import Catalog
from redoxfs.dataset.columns import native_tree
from redoxfs.fs.access_log import AccessLog, access_of
from redoxfs.fs.clock import RunningClock
from redoxfs.fs.open_times import OpenTimes
from redoxfs.fs.operations import Operations
from redoxfs.fs.page_cache import PageCache
from redoxfs.fs.recorder import Recorder
from redoxfs.fs.relay import Relay
from redoxfs.fs.requests import KernelCaches, Requests
from redoxfs.fs.slow_opens import SlowOpens
from redoxfs.linux.fuse_device import MAX_READ_BYTES, MountError, clone, mount
from redoxfs.linux.huge_pages import refuse_large_huge_pages
from redoxfs.linux.mount_table import is_mounted, of_mount, source_text
from redoxfs.linux.pids import pid_namespace
from redoxfs.native import Session, Shared, Tree
from redoxfs.node import Journal, Node, Past, Plan, Verb, serve_control
from redoxfs.node.callers import Callers
from redoxfs.node.drawing import Drawing
from redoxfs.node.opened_ahead import OpenedAhead
from redoxfs.node.programs import Programs
from redoxfs.node.recent import RecentTurns
from redoxfs.node.state import DATASET, StateFile, StateWriter
from redoxfs.node.threads import start_spare
from redoxfs.node.told_epochs import ToldEpochs

if TYPE_CHECKING:
    from redoxfs.fs.metrics import Metrics
    from redoxfs.node.cluster import ClusterConfig, Membership

GRACE_S = 1.0
"""For requests that are waiting when the mount ends."""

MOST_PEERS = 256
"""That a node keeps counts of for each class. A later list of nodes may be longer than the present one."""

NEVER = 2**31 - 1
"""Collections of a generation before one of the next: the largest count the collector takes."""

_ENDS = (signal.SIGTERM, signal.SIGINT)

_WITHOUT_EFFECT = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""They may reach every process of a job step (Slurm's --signal), and mean something to the training alone."""

log = logging.getLogger(__name__)


class Channel(Protocol):
    """A mount to the kernel: `redoxfs.linux.fuse_device.Device`, or one whose mount belongs to another process.

    ``fd`` is the descriptor of its requests, ``number`` that of its device (major:minor), None if it is not known.
    ``is_dead``: when it was to be ended, the kernel had ended the connection, and the mount was still there.
    """

    fd: int

    @property
    def number(self) -> str | None: ...

    @property
    def is_dead(self) -> bool: ...

    def widen_readahead(self) -> None:
        """Allow long reads through the page cache; called after INIT."""

    def end(self) -> None:
        """Close the descriptor and end the mount, as far as it is ours."""

    def close(self) -> None:
        """Close the descriptor. The mount stays, dead."""


class Keeper(Protocol):
    """The process that starts another daemon when this one dies: `redoxfs.launch.keeper.Keeper`.

    ``shared_fd``     the memfd of the session's shared memory
    ``history_fd``    the memfd of the history; -1 for none
    ``turns_fd``      likewise, of the last turns
    ``devices``       of the mount that a former daemon made: its descriptor, and a clone for each helper thread. Then
                      `MountSpec.receive` returns the mount, and nothing is mounted. Empty: this daemon makes the mount
    ``mounted_at_s``  when a former daemon made the mount, by CLOCK_BOOTTIME; None: this daemon makes it
    ``crashed``       the former daemon ended by its own fault: by a signal such as SIGSEGV, or with an error
    ``restarting``    another daemon takes the mount over when this one has ended: the mount stays
    """

    shared_fd: int
    history_fd: int
    turns_fd: int
    devices: tuple[int, ...]
    mounted_at_s: float | None
    crashed: bool
    restarting: bool

    def hold(self, devices: Sequence[int]) -> None:
        """Give the keeper ``devices``, from which another daemon can go on.

        Called once, by the daemon that made the mount, before it takes the first request.
        """

    def restart(self) -> None:
        """Set ``restarting``. The caller then ends the daemon."""

    def gave_up_state(self) -> None:
        """The state file belongs to another mount. A later daemon of this one must not write it."""

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json."""


@dataclass(frozen=True, slots=True, eq=False)
class MountSpec:
    """Everything that a mount serves, and where.

    ``plan``            the policy, and the memory
    ``store``           of ``catalog``; reaches the source by no path that the mount might hide
    ``timeout_s``       the deadline of every wait for storage
    ``options``         of mount(8), besides ro, nosuid and nodev, as the user gave them
    ``kernel_options``  those of them that the kernel gets
    ``bypass``          whether opens bypass the page cache; None: as programs read
    ``fuse_threads``    threads that answer hot requests, beside the main thread
    ``state_file``      where the progress of the laps is kept
    ``settings``        what the laps of a plan depend on, on all nodes together
    ``cluster``         the other nodes, if ``plan`` has any; they meet before anything is mounted
    ``job``             which the mount belongs to; the mount table lists it
    ``request``         what was asked for, in the words of a command line
    ``source_kind``     what ``source`` is: a directory, a packed dataset, archives, …
    ``receive``         returns a mount that another process made; None: mount at ``mountpoint``
    ``held``            of `redoxfs.linux.fuse_device.hold`, since the mountpoint was checked
    ``keeper``          starts another daemon when this one dies; None: then the mount is dead
    ``metrics``         serves metrics for Prometheus
    ``slow_open_s``     an open that takes as long is logged; 0: none is
    ``seed``            what a sampler's draws follow from
    ``look``            called every second: makes anew what the mount keeps in the runtime folder. May raise
                        CannotListenError
    ``sees_callers``    the kernel numbers threads as this process sees them
    ``programs``        those that get exact files
    """

    catalog: Catalog
    plan: Plan
    store: ChunkStore
    source: str
    mountpoint: Path
    options: frozenset[str]
    kernel_options: frozenset[str]
    bypass: bool | None
    fuse_threads: int
    timeout_s: float
    control_path: Path
    state_file: StateFile | None
    settings: Callable[[Plan], Mapping[str, str]]
    cluster: "ClusterConfig | None" = None
    job: str | None = None
    request: tuple[str, ...] = ()
    source_kind: str = "directory"
    receive: Callable[[], Channel] | None = None
    held: int | None = None
    keeper: Keeper | None = None
    metrics: "Metrics | None" = None
    slow_open_s: float = 0.0
    seed: int = 0
    look: Callable[[], None] = lambda: None
    sees_callers: bool = True
    programs: Programs | None = None

    def about(self) -> dict[str, Any]:
        """Its part of stats.json."""
        options = sorted(self.options)
        return {
            "source": self.source,
            "source_kind": self.source_kind,
            "mountpoint": os.fspath(self.mountpoint),
            "options": options,
            "metrics": None if self.metrics is None else self.metrics.address,
        }


def serve(spec: MountSpec, on_ready: Callable[[], None]) -> bool:
    """Serve ``spec`` until it is unmounted or stopped; ``on_ready`` is called when the kernel has accepted the mount.

    Returns whether the mount is gone, or another daemon's. If not, the kernel has ended its connection, and it is dead.

    Raises:
        redoxfs.linux.fuse_device.MountError: the kernel refused the mount, or another redoxfs mount is there.
        redoxfs.node.NoThreadError: at a limit of processes.
        redoxfs.node.cluster.JoinError: another node does not answer, or does not serve the same.
    """
    for number in _WITHOUT_EFFECT:
        signal.signal(number, signal.SIG_IGN)
    refuse_large_huge_pages()
    _collect_young_garbage_only()
    start_spare()
    return trio.run(_serve, spec, on_ready, clock=RunningClock())


def _collect_young_garbage_only() -> None:
    """Keep Python's collector away from old objects, among which are all samples in memory.

    A full collection stops everything, for 0.2 s with 30,000 samples in memory and for seconds with a million, and
    finds next to nothing: cycles become garbage while young. `Node.renew`, where something large may be in cycles,
    collects by itself.
    """
    gc.collect()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def _serve(spec: MountSpec, on_ready: Callable[[], None]) -> bool:
    catalog = spec.catalog
    namespace = pid_namespace()
    answered_at_s: float | None = None

    def stats() -> dict[str, Any]:
        request = {"words": spec.request, "answered_at_boottime_s": answered_at_s}
        process = {"pid": os.getpid(), "pid_namespace": namespace}
        about = {"version": __version__, **process, **spec.about(), "request": request}
        of_peers = {} if host is None else host.stats()
        of_node = node.stats()
        of_node["bytes_served"] += caches.bytes_served
        of_keeper = {"keeper": None if spec.keeper is None else spec.keeper.stats()}
        of_paths = {"split_paths": recorder.split_paths()}
        of_parts = {**of_node, **of_paths, **times.stats(), **of_peers, **state.stats(), **epochs.stats()}
        of_verdict = {"verdict": catalog.verdict.line, "classes_mode": catalog.verdict.mode}
        return {**about, **of_keeper, **of_verdict, **of_parts}

    async def join(before: tuple[Mapping[str, Any], Sequence[int]] | None) -> "Membership | None":
        """Come together with the other nodes, if there are any."""
        if spec.cluster is None:
            return None
        # gRPC is imported only for several nodes, and after the fork, which it does not survive.
        from redoxfs.node.cluster import joined

        joining = joined(node, spec.cluster, state, timeout_s=spec.timeout_s, past=before)
        return await ends.enter_async_context(joining)

    caches = KernelCaches()
    times = OpenTimes(spec.slow_open_s, lambda record: slow_opens.tell(record))
    shared = None if spec.keeper is None else Shared(spec.keeper.shared_fd, checkpoint_bytes=_checkpoint_room(catalog))
    journal = None if shared is None else Journal(shared)
    plan, past = spec.plan, None
    if journal is not None and spec.keeper is not None and spec.keeper.devices:
        past = Past.of(journal)
        place = past.state.place
        if spec.cluster is not None and place is not None and tuple(place["addresses"]) != spec.cluster.view.addresses:
            from redoxfs.node.cluster import continued_plan

            plan = continued_plan(spec.cluster, place)
    recent = RecentTurns(-1 if spec.keeper is None else spec.keeper.turns_fd)
    node = Node(
        catalog,
        plan,
        spec.store,
        timeout_s=spec.timeout_s,
        kernel=caches,
        callers=Callers(sees=spec.sees_callers, programs=spec.programs),
        journal=journal,
        recent=recent,
    )
    state = StateWriter(spec.state_file, lambda: spec.settings(node.plan), len(catalog.class_of), node)
    ahead = OpenedAhead(node, state)
    dataset = spec.settings(node.plan)[DATASET]
    drawing = Drawing(node, catalog, dataset, seed=spec.seed)
    epochs = ToldEpochs(node, catalog.class_trees, dataset=dataset)
    tree = native_tree(catalog)
    of_record = partial(access_of, tree, node)
    slow_opens = SlowOpens(of_record)
    host: Membership | None = None
    outlives = spec.keeper is not None and spec.keeper.history_fd >= 0
    recorder = Recorder(node, catalog, stats, spec.keeper.history_fd if spec.keeper and outlives else None)
    async with AsyncExitStack() as ends:
        ends.callback(slow_opens.tell_left_out)
        ends.callback(node.stop)
        ends.callback(state.final)
        node.start()
        if past is None:
            host = await join(None)

        async def tell(_data: bytes) -> dict[str, Any]:
            return stats()

        async def tell_history(_data: bytes) -> dict[str, Any]:
            return {"text": (await recorder.text()).decode()}

        verbs: dict[str, Verb] = {
            "stats": tell,
            "history": tell_history,
            "log-level": _log_level,
            "state-save": state.save,
            "state-load": state.load,
            "state-save-less": ahead.save_less,
            "state-take-back": ahead.take_back,
            "turns-since": ahead.turns_since,
            "samples": drawing.samples,
            "draw": drawing.draw,
            "epoch": epochs.begin,
            "epoch-of-rank": epochs.begin_of_rank,
            "epoch-tree": epochs.tree_of,
        }
        if past is None:
            recent.forget(node.given)
            node.checkpoint()
        with (
            _signals_noted() as noted,
            closing(Relay(Operations(catalog.tree, node, stats=stats, history=recorder.text))) as relay,
            _mounted(spec, tree, relay, shared) as (device, session),
        ):

            def answering() -> None:
                nonlocal answered_at_s
                device.widen_readahead()
                # A command that began while there was no daemon came after the mount.
                former_s = None if spec.keeper is None else spec.keeper.mounted_at_s
                answered_at_s = time.clock_gettime(time.CLOCK_BOOTTIME) if former_s is None else former_s
                on_ready()

            async def hand_over(data: bytes) -> Mapping[str, Any]:
                if device.number is not None and is_mounted(device.number):
                    state.refuse_to_hand_over(data, f"the mount at {spec.mountpoint} (pid {os.getpid()})")
                    return {}
                told = await state.hand_over(data)
                if spec.keeper is not None and not state.has_file:
                    spec.keeper.gave_up_state()
                return told

            verbs["state-hand-over"] = hand_over
            caches.attach(session)
            access_log = AccessLog(session, times.opens, of_record)
            requests = Requests(node, session, answering, PageCache(spec.bypass), journal, times, access_log, recorder)
            if past is not None:
                recovered = node.recover(past)
                # Before any checkpoint: it does not have the answers of requests that are still there.
                requests.go_on(recovered)
                if past.state.place is not None:
                    host = await join((past.state.place, recovered.turned))
            recorder.start()
            if host is not None:
                verbs |= {"trace": host.prefetch.hand_in, "nodes": host.view}
            try:
                async with nullcontext() if spec.metrics is None else spec.metrics.served(stats):
                    besides = (access_log.run, slow_opens.run)
                    await _run(spec, device, requests, relay, verbs, state, recorder, noted, besides)
                access_log.end(is_followed=spec.keeper is not None and spec.keeper.restarting)
            finally:
                # The other nodes, and the end of this one, may still find something out of date.
                caches.detach()
        if requests.refused_minor:
            raise MountError(
                f"Linux {os.uname().release} has version 7.{requests.refused_minor} of FUSE; redoxfs needs 7.31, which "
                "Linux 5.4 has"
            )
        return not device.is_dead


async def _run(
    spec: MountSpec,
    device: Channel,
    requests: Requests,
    relay: Relay,
    verbs: Mapping[str, Verb],
    state: StateWriter,
    recorder: Recorder,
    noted: Sequence[int],
    besides: Sequence[Callable[[], Awaitable[None]]],
) -> None:
    """Serve requests until the end. ``noted`` are signals that asked for the end before; ``besides`` run meanwhile."""

    async def stop(_data: bytes) -> dict[str, Any]:
        requests.stop()
        return {}

    async def restart(_data: bytes) -> dict[str, Any]:
        if spec.keeper is None:
            raise ValueError("no keeper would start another daemon")
        log.info("another daemon was asked for")
        spec.keeper.restart()
        requests.stop()
        return {}

    async with trio.open_nursery() as nursery:
        path = spec.control_path if device.number is None else of_mount(spec.control_path, device.number)
        control = partial(serve_control, path, device=device.number, look=spec.look)
        await nursery.start(control, {"stop": stop, "restart": restart, **verbs})
        await nursery.start(_stop_on_signals, requests, spec.keeper)
        if noted:
            requests.stop()
        await nursery.start(state.run)
        nursery.start_soon(relay.run)
        for task in besides:
            nursery.start_soon(task)
        nursery.start_soon(recorder.run)
        await requests.run(GRACE_S)
        # For the next daemon, if there is one.
        recorder.add()
        relay.stop()
        nursery.cancel_scope.cancel()


async def _log_level(data: bytes) -> dict[str, Any]:
    """Log from the level in ``data`` on, unless it is empty. Raises ValueError for one that is not known."""
    asked, root = data.decode("ascii", "replace"), logging.getLogger()
    before = logging.getLevelName(root.level).lower()
    if asked:
        if asked.upper() not in logging.getLevelNamesMapping():
            raise ValueError(f"{asked!r} is not a level of the log")
        root.setLevel(asked.upper())
        log.warning("the level of the log was changed", extra={"fields": {"level": asked.lower(), "before": before}})
    return {"level": logging.getLevelName(root.level).lower(), "before": before}


def _checkpoint_room(catalog: Catalog) -> int:
    """Room for a checkpoint, in bytes: some for each sample and for the orders of access of other nodes, for each class
    and peer, and for open files and what threads hold. What is not written takes no memory."""
    return (16 << 20) + 80 * len(catalog.class_of) + 12 * MOST_PEERS * len(catalog.class_names)


def _ends() -> tuple[signal.Signals, ...]:
    """The signals that end this mount. A daemon in the background, or with a keeper, has no terminal to lose."""
    return _ENDS if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*_ENDS, signal.SIGHUP)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Signals that arrive when the kernel has the mount and nothing serves it yet, which must not leave it dead.

    Once it has ended they have no effect: systemd, for one, tells the keeper and the daemon, so the daemon hears twice.
    """
    noted: list[int] = []
    before = {number: signal.signal(number, lambda one, _: noted.append(one)) for number in _ends()}
    try:
        yield noted
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in before:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _mounted(spec: MountSpec, tree: Tree, relay: Relay, shared: Shared | None) -> Iterator[tuple[Channel, Session]]:
    """The mount and its session. If the block raises, the mount stays: dead, or the keeper's."""
    device: Channel
    if spec.receive is None:
        fsname = source_text(spec.source, spec.job)
        device = mount(spec.mountpoint, fsname=fsname, options=spec.kernel_options, held=spec.held)
    else:
        device = spec.receive()
    is_made = False
    try:
        with _cloned(spec, device) as clones:
            session = Session(
                device.fd,
                relay.fd,
                tree,
                max_read=MAX_READ_BYTES,
                helpers=spec.fuse_threads,
                clones=clones,
                shared=shared,
                blames=spec.keeper is not None and spec.keeper.crashed,
            )
            is_made = True
            with closing(session):
                yield device, session
    except BaseException:
        if is_made:
            device.close()
        else:
            device.end()
        raise
    if spec.keeper is not None and spec.keeper.restarting:
        device.close()
    else:
        device.end()


@contextmanager
def _cloned(spec: MountSpec, device: Channel) -> Iterator[Sequence[int]]:
    """A descriptor for each helper; fewer where the device cannot be opened, as beside a job: then they share it.

    Those that no keeper holds are closed at the end: while one is open, a dead mount is not dead.
    """
    if spec.keeper is not None and spec.keeper.devices:
        yield spec.keeper.devices[1:]
        return
    clones: list[int] = []
    with ExitStack() as ends:
        try:
            for _ in range(spec.fuse_threads):
                clones.append(clone(device.fd))
                ends.callback(os.close, clones[-1])
        except OSError:
            if spec.keeper is not None:
                raise
        if spec.keeper is not None:
            # The kernel takes an answer only on the descriptor that the request came from.
            spec.keeper.hold((device.fd, *clones))
            ends.pop_all()
        yield clones


async def _stop_on_signals(
    requests: Requests, keeper: Keeper | None, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(*_ends()) as signals:
        task_status.started()
        is_ending = False
        async for number in signals:
            if not is_ending:
                log.info("ending", extra={"fields": {"signal": signal.Signals(number).name}})
            is_ending = True
            if keeper is not None:
                # Whoever asked for another daemon before wants none now.
                keeper.restarting = False
            requests.stop()
