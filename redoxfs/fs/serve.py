"""A mount from its first request to its clean end.

Ends: an unmount from outside, SIGTERM, SIGINT, or `stop` on the control socket. In each case requests that wait are
given a moment and then cancelled, so that no end takes longer than that; worker threads, descriptors and the
control socket are gone when `serve` returns. If the main loop itself fails the mount is left, dead: programs
get ENOTCONN at once instead of the empty directory underneath, which they would take for an empty dataset.
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
"""pyfuse3's max_tasks: as many as may wait, and some that never do."""

GRACE_S = 1.0
"""For requests that wait when the end comes."""

NEVER = 2**31 - 1
"""Collections of a generation before one of the next: as many as the collector can count."""

MOUNT_OPTIONS = frozenset({"ro", "nosuid", "nodev"})

log = logging.getLogger(__name__)


class MountError(Exception):
    """The kernel did not take the mount."""


@dataclass(frozen=True, slots=True)
class _Mount:
    source: Path
    mountpoint: Path
    options: frozenset[str]
    direct_io: bool

    def as_dict(self) -> dict[str, Any]:
        options = sorted(self.options | ({"direct_io"} if self.direct_io else set()))
        return {"source": os.fspath(self.source), "mountpoint": os.fspath(self.mountpoint), "options": options}


def serve(
    *,
    catalog: Catalog,
    plan: Plan,
    store: ChunkStore,
    source: Path,
    timeout_s: float,
    mountpoint: Path,
    mount_options: frozenset[str],
    direct_io: bool,
    control_path: Path,
    state_file: StateFile | None,
    settings: Callable[[Plan], Mapping[str, str]],
    on_ready: Callable[[], None],
    joining: "ClusterConfig | None" = None,
) -> None:
    """Serve ``catalog`` at ``mountpoint`` until it is unmounted or told to stop.

    Args:
        plan: the policy, and the memory.
        store: of ``catalog``; reaches the source without a path that the mount might hide.
        timeout_s: the deadline of every wait for storage.
        mount_options: of mount(8), beside ro, nosuid and nodev.
        state_file: where it is kept how far the laps are.
        settings: what the laps of a plan depend on, of all nodes together.
        on_ready: called when the kernel has taken up the mount.
        joining: the other nodes, if ``plan`` has any. They come together before the kernel hears of the mount.

    Raises:
        MountError: the kernel refused.
        redoxfs.node.cluster.JoinError: another node does not answer, or does not serve the same.
    """
    mount = _Mount(source, mountpoint, mount_options, direct_io)
    _look_for_young_garbage_alone()
    trio.run(_serve, catalog, plan, store, timeout_s, mount, control_path, state_file, settings, on_ready, joining)


def _look_for_young_garbage_alone() -> None:
    """Python's collector stays away from old objects, among which all samples in memory are.

    To look at them all stops everything, for 0.2 s with 30,000 samples in memory and for seconds with a million, and
    finds next to nothing: what is dropped in cycles here is dropped young. Where something large may be, `Node.renew`,
    it is looked for.
    """
    gc.collect()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def _serve(
    catalog: Catalog,
    plan: Plan,
    store: ChunkStore,
    timeout_s: float,
    mount: _Mount,
    control_path: Path,
    state_file: StateFile | None,
    settings: Callable[[Plan], Mapping[str, str]],
    on_ready: Callable[[], None],
    joining: "ClusterConfig | None",
) -> None:
    def stats() -> dict[str, Any]:
        about = {"version": __version__, "pid": os.getpid(), **mount.as_dict()}
        of_peers = {} if host is None else host.stats()
        return {**about, "verdict": catalog.verdict.line, **node.stats(), **of_peers, **state.stats()}

    operations = Operations(catalog.tree, direct_io=mount.direct_io, stats=stats, answering=on_ready)
    node = Node(catalog, plan, store, timeout_s=timeout_s, kernel=operations)
    operations.attach(node)
    state = StateWriter(state_file, lambda: settings(node.plan), len(catalog.class_of), node)
    host = None
    async with AsyncExitStack() as ends:
        ends.callback(node.stop)
        ends.callback(state.final)
        node.start()
        if joining is not None:
            # gRPC, for those who need it; and after the fork, which it does not bear.
            from redoxfs.node.cluster import joined

            host = await ends.enter_async_context(joined(node, catalog, plan, joining, state, timeout_s=timeout_s))
        verbs: dict[str, Verb] = {
            "state-save": state.save,
            "state-load": state.load,
            "state-hand-over": state.hand_over,
        }
        if host is not None:
            verbs |= {"trace": host.trace, "nodes": host.view}
        await _run(operations, mount, control_path, verbs, state)


async def _run(
    operations: Operations, mount: _Mount, control_path: Path, verbs: Mapping[str, Verb], state: StateWriter
) -> None:
    """The kernel's mount, from its beginning to its end."""
    options = MOUNT_OPTIONS | mount.options | {f"fsname={_fsname(mount.source)}", "subtype=redoxfs"}
    try:
        pyfuse3.init(operations, os.fspath(mount.mountpoint), set(options))
    except RuntimeError as error:
        raise MountError(f"{mount.mountpoint} could not be mounted") from error
    logging.getLogger("pyfuse3").addFilter(_is_news)
    session = Session()
    clean = False
    try:
        if not session.quick:
            log.info("the session loop was not tested with pyfuse3 %s, which runs as it comes", pyfuse3.__version__)
        if not raise_backlog(mount.mountpoint):
            log.warning(
                "the kernel's limit of closes under way could not be raised: when many files are closed at once, "
                "an open right after it may get the sample of the open before"
            )
        with trio.CancelScope() as serving:
            async with trio.open_nursery() as nursery:
                stop = _Stop(serving, nursery)
                await nursery.start(serve_control, control_path, {"stop": stop.asked, **verbs})
                await nursery.start(_stop_on_signals, stop)
                await nursery.start(state.run)
                await session.run(TASKS)
                nursery.cancel_scope.cancel()
        clean = True
    finally:
        pyfuse3.close(unmount=clean)


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a reply found nobody: its program was killed while it waited, or the mount went."""
    return os.strerror(errno.ENOENT) not in record.getMessage()


class _Stop:
    """Ends the main loop, and what still waits in it after `GRACE_S`."""

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
    """What mount(8) shows as the device: ASCII, and without a comma, which would end the option."""
    return os.fspath(source).encode("ascii", "replace").decode().replace(",", "?").replace("\\", "?")
