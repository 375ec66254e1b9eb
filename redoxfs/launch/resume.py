"""The progress of a mount's laps, for `redoxfs mount --resume`: where it is kept, and what it depends on."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs.launch.control import send_control
from redoxfs.launch.errors import UsageError
from redoxfs.launch.outputs import check_replaceable, outside
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.runtime_paths import kept_by_other_hosts, kept_path, sockets_of_detached
from redoxfs.launch.say import say
from redoxfs.launch.source import Dataset, fingerprint_of, layout_of

if TYPE_CHECKING:
    from redoxfs.node import Plan
    from redoxfs.node.state import StateFile


def settings_of(dataset: Dataset, seed: int, plan: "Plan") -> dict[str, str]:
    """A text for each setting on which the laps of a plan depend, on all nodes together.

    For the pool, memory, chunks and the number of nodes are not among them.
    """
    from redoxfs.node.state import DATASET

    settings: dict[str, Any] = {DATASET: fingerprint_of(dataset), "--policy": plan.about["policy"]}
    if "virtual_chunks" in plan.about:
        settings["number of virtual chunks, which follows from --memory,"] = plan.about["virtual_chunks"]
        settings |= {"--chunk-size": dataset.chunk_size, "--seed": seed}
        settings["the layout of chunks"] = layout_of(dataset)
    return {name: str(value) for name, value in settings.items()}


def state_file_of(asked: str | None, source: PathStatus, target: PathStatus, timeout_s: float) -> "StateFile | None":
    """The file where the mount keeps its state; None, with a line on stderr, where there can be none.

    Raises UsageError, DestinationError if the file ``asked`` for cannot be used.
    """
    from redoxfs.node.state import MAGIC, StateFile

    if asked is not None:
        path = outside(asked, timeout_s, option="--state ")
        check_replaceable(path, f"--state {asked}", MAGIC, "state file")
        for of in (source, target):
            if of.path in path.parents:
                raise UsageError(f"--state {asked}: lies inside {of.path}, which will be served; choose another place")
        try:
            file = StateFile(path)
        except OSError as failure:
            raise UsageError(f"--state {asked}: {failure.strerror}") from None
    else:
        path = kept_path(target.path, "state")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = StateFile(path)
        except OSError as failure:
            say(f"{path}: {failure.strerror}; this mount cannot be resumed (choose another place with --state FILE)")
            return None
    if not os.access(path.parent, os.W_OK):
        say(f"{path}: cannot be written; progress from now on cannot be resumed")
    return file


def state_file_in(folder_fd: int, path: Path) -> "StateFile":
    """The file that a former daemon kept its state in, by a descriptor of its folder: its path may be hidden."""
    from redoxfs.node.state import StateFile

    file = StateFile(Path(f"/proc/self/fd/{folder_fd}/{path.name}"))
    file.base = file.path = path
    return file


def take_over(file: "StateFile", target: PathStatus, timeout_s: float) -> bool:
    """Ask daemons that were detached from the mountpoint to write their turns and release the file.

    False if a mount that is in use keeps it: one at the same mountpoint in another mount namespace.
    """
    by_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    asked = b"%d %s" % (by_ns, os.fsencode(file.base))
    for path in sockets_of_detached(target.path):
        try:
            send_control(path, "state-hand-over", asked, timeout_s=timeout_s)
        except TimeoutError:
            say(f"the daemon of a detached mount of {target.path} does not answer; it may still write {file.base}")
        except ValueError:
            return False
        except OSError:
            # No daemon listens.
            continue
    return True


def _of_other_hosts(file: "StateFile | None") -> str:
    """A clause that names the state of another host; empty if there is none."""
    others = [] if file is None else kept_by_other_hosts(file.base)
    return f"; to continue from that of another host: --state {others[0]}" if others else ""


def resume(file: "StateFile | None", plan: "Plan", settings: Mapping[str, str], samples: int) -> bytes:
    """The state that the last mount there left, empty if none. The state of a single node is restored into ``plan``.

    Several nodes must meet before they can continue from it.

    Raises UsageError if the state is of something else, or damaged. The file is left as it is.
    """
    from redoxfs.node.state import WRITE_EVERY_S, StateError, decode, line_of, of_one_node, read_bytes, summary

    if file is None or not os.path.lexists(file.path):
        say(
            "there is nothing to resume"
            + (" on this node" if plan.nodes > 1 else "")
            + (f": no {file.path}" if file else "")
            + _of_other_hosts(file)
        )
        return b""
    try:
        data = read_bytes(file.path)
        state = decode(data)
        state.check(of_one_node(settings, plan.nodes))
        if plan.nodes == 1:
            plan.policy.restore(state.turns)
    except OSError as failure:
        raise UsageError(f"--resume: {file.path}: {failure.strerror or failure}") from None
    except (StateError, ValueError) as refusal:
        raise UsageError(f"--resume: {file.path}: {refusal}; to start over, mount without --resume") from None
    if plan.nodes == 1:
        progress = line_of(summary(state.turns, samples))
        say(
            f"resumed: {progress}; if the daemon was killed, samples that it served in its last {WRITE_EVERY_S:g} s "
            "may be served again"
        )
    return data
