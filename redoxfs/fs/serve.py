"""A mount from its first request to its clean end.

A mount ends by an unmount from outside, SIGTERM, SIGINT, or `stop` on the control socket. Each time, waiting requests
get `GRACE_S` and are then cancelled, so no end takes longer than that. Worker threads, descriptors and the control
socket are gone when `serve` returns. If the main loop itself fails, the mount is left in place, dead: programs get
ENOTCONN at once instead of the empty directory underneath, which they would take for an empty dataset.
"""

import errno
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyfuse3
import trio

from redoxfs import __version__
from redoxfs.chunks import ChunkStore
from redoxfs.dataset import Catalog
from redoxfs.fs.backlog import raise_backlog
from redoxfs.fs.operations import Operations
from redoxfs.fs.session import Session
from redoxfs.node import WAITING_OPENS, WAITING_READS, Node, Plan, Verb, serve_control
from redoxfs.node.state import StateFile, StateWriter

if TYPE_CHECKING:
    from redoxfs.node.cluster import ClusterConfig

TASKS = WAITING_OPENS + WAITING_READS + 64
"""pyfuse3's max_tasks: as many requests as may wait, and some that never wait."""

GRACE_S = 1.0
"""For requests that are waiting when the mount ends."""

NEVER = 2**31 - 1
"""Collections of a generation before one of the next: the largest count the collector takes."""

MOUNT_OPTIONS = frozenset({"ro", "nosuid", "nodev"})

log = logging.getLogger(__name__)


class MountError(Exception):
    """The kernel did not accept the mount."""


@dataclass(frozen=True, slots=True, eq=False)
class MountSpec:
    """Everything that a mount serves, and where.

    ``plan``            the policy, and the memory
    ``store``           of ``catalog``; reaches the source by no path that the mount might hide
    ``timeout_s``       the deadline of every wait for storage
    ``kernel_options``  mount(8)'s, besides ro, nosuid and nodev
    ``state_file``      where the progress of the laps is kept
    ``settings``        what the laps of a plan depend on, on all nodes together
    ``cluster``         the other nodes, if ``plan`` has any; they meet before anything is mounted
    """

    catalog: Catalog
    plan: Plan
    store: ChunkStore
    source: Path
    mountpoint: Path
    kernel_options: frozenset[str]
    direct_io: bool
    timeout_s: float
    control_path: Path
    state_file: StateFile | None
    settings: Callable[[Plan], Mapping[str, str]]
    cluster: "ClusterConfig | None" = None

    def about(self) -> dict[str, Any]:
        """Its part of stats.json."""
        options = sorted(self.kernel_options | ({"direct_io"} if self.direct_io else set()))
        return {"source": os.fspath(self.source), "mountpoint": os.fspath(self.mountpoint), "options": options}


def serve(spec: MountSpec, on_ready: Callable[[], None]) -> None:
    """Serve ``spec`` until it is unmounted or stopped; ``on_ready`` is called when the kernel has accepted the mount.

    Raises:
        MountError: the kernel refused the mount.
        redoxfs.node.cluster.JoinError: another node does not answer, or does not serve the same.
    """
    _collect_young_garbage_only()
    trio.run(_serve, spec, on_ready)


def _collect_young_garbage_only() -> None:
    """Keep Python's collector away from old objects, among which are all samples in memory.

    A full collection stops everything, for 0.2 s with 30,000 samples in memory and for seconds with a million, and
    finds next to nothing: cycles become garbage while young. `Node.renew`, where something large may be in cycles,
    collects by itself.
    """
    gc.collect()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def _serve(spec: MountSpec, on_ready: Callable[[], None]) -> None:
    catalog = spec.catalog

    def stats() -> dict[str, Any]:
        about = {"version": __version__, "pid": os.getpid(), **spec.about()}
        of_peers = {} if host is None else host.stats()
        return {**about, "verdict": catalog.verdict.line, **node.stats(), **of_peers, **state.stats()}

    operations = Operations(catalog.tree, direct_io=spec.direct_io, stats=stats, answering=on_ready)
    node = Node(catalog, spec.plan, spec.store, timeout_s=spec.timeout_s, kernel=operations)
    operations.attach(node)
    state = StateWriter(spec.state_file, lambda: spec.settings(node.plan), len(catalog.class_of), node)
    host = None
    async with AsyncExitStack() as ends:
        ends.callback(node.stop)
        ends.callback(state.final)
        node.start()
        if spec.cluster is not None:
            # gRPC is imported only for several nodes, and after the fork, which it does not survive.
            from redoxfs.node.cluster import joined

            host = await ends.enter_async_context(
                joined(node, catalog, spec.plan, spec.cluster, state, timeout_s=spec.timeout_s)
            )
        verbs: dict[str, Verb] = {
            "state-save": state.save,
            "state-load": state.load,
            "state-hand-over": state.hand_over,
        }
        if host is not None:
            verbs |= {"trace": host.trace, "nodes": host.view}
        await _run(operations, spec, verbs, state)


async def _run(operations: Operations, spec: MountSpec, verbs: Mapping[str, Verb], state: StateWriter) -> None:
    """Mount, serve requests until the end, and unmount."""
    options = MOUNT_OPTIONS | spec.kernel_options | {f"fsname={_fsname(spec.source)}", "subtype=redoxfs"}
    try:
        pyfuse3.init(operations, os.fspath(spec.mountpoint), set(options))
    except RuntimeError as error:
        raise MountError(f"{spec.mountpoint} could not be mounted") from error
    logging.getLogger("pyfuse3").addFilter(_is_news)
    session = Session()
    clean = False
    try:
        if not session.quick:
            log.info(
                "the fast session loop is untested with pyfuse3 %s; using pyfuse3's own loop",
                pyfuse3.__version__,
            )
        if not raise_backlog(spec.mountpoint):
            log.warning(
                "could not raise the kernel's limit on closes in progress: when many files are closed at once, "
                "an open right after a close may get the sample of the open before it"
            )
        with trio.CancelScope() as serving:
            async with trio.open_nursery() as nursery:
                stop = _Stop(serving, nursery)
                await nursery.start(serve_control, spec.control_path, {"stop": stop.asked, **verbs})
                await nursery.start(_stop_on_signals, stop)
                await nursery.start(state.run)
                await session.run(TASKS)
                nursery.cancel_scope.cancel()
        clean = True
    finally:
        pyfuse3.close(unmount=clean)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop messages that a reply had no receiver: its program was killed while it waited, or the mount has ended."""
    return os.strerror(errno.ENOENT) not in record.getMessage()


class _Stop:
    """Ends the main loop, and cancels requests that still wait after `GRACE_S`."""

    def __init__(self, serving: trio.CancelScope, nursery: trio.Nursery) -> None:
        self._serving = serving
        self._nursery = nursery
        self._asked = False

    def ask(self) -> None:
        if not self._asked:
            self._asked = True
            pyfuse3.terminate()
            self._nursery.start_soon(self._cancel_late)

    async def asked(self, _data: bytes) -> dict[str, Any]:
        """`ask`, as a verb of the control socket."""
        self.ask()
        return {}

    async def _cancel_late(self) -> None:
        await trio.sleep(GRACE_S)
        self._serving.cancel()


async def _stop_on_signals(stop: _Stop, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("ending on %s", signal.Signals(number).name)
            stop.ask()


def _fsname(source: Path) -> str:
    """The device that mount(8) shows: ASCII, and without a comma, which would end the option."""
    return os.fspath(source).encode("ascii", "replace").decode().replace(",", "?").replace("\\", "?")
