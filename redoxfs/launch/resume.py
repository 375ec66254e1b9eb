"""What `redoxfs mount --resume` goes on from: how far the laps of a mount are, and on what that depends."""

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs.launch.control import send_control
from redoxfs.launch.errors import UsageError
from redoxfs.launch.path_status import Place, find
from redoxfs.launch.runtime_paths import control_path, kept_path
from redoxfs.launch.say import say
from redoxfs.launch.source import Dataset, fingerprint_of, layout_of

if TYPE_CHECKING:
    from redoxfs.node import Plan
    from redoxfs.node.state import StateFile


def settings_of(dataset: Dataset, arguments: argparse.Namespace, plan: "Plan") -> dict[str, str]:
    """A text for each thing that the laps of a plan depend on, those of all nodes together.

    Memory, chunks and the number of nodes are not among them for the pool.
    """
    from redoxfs.node.state import DATASET

    told: dict[str, Any] = {DATASET: fingerprint_of(dataset), "--policy": plan.about["policy"]}
    if "virtual_chunks" in plan.about:
        told["number of virtual chunks, which follows from --memory,"] = plan.about["virtual_chunks"]
        told |= {"--chunk-size": dataset.chunk_size, "--seed": arguments.seed}
        told["the layout of chunks"] = layout_of(dataset)
    return {name: str(value) for name, value in told.items()}


def state_file_of(arguments: argparse.Namespace, source: Place, target: Place) -> "StateFile | None":
    """Where the mount keeps its state; None where it cannot, which is told.

    Raises UsageError: a file was asked for, and cannot be.
    """
    from redoxfs.node.state import StateFile

    if arguments.state is not None:
        path = outside(arguments.state, arguments.timeout, option="--state ")
        for of in (source, target):
            if of.path in path.parents:
                raise UsageError(
                    f"--state {arguments.state}: lies inside {of.path}, which is to be served; keep it out"
                )
        try:
            file = StateFile(path)
        except OSError as failure:
            raise UsageError(f"--state {arguments.state}: {failure.strerror}") from None
    else:
        path = kept_path(target.path, "state")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = StateFile(path)
        except OSError as failure:
            say(f"{path}: {failure.strerror}; this mount cannot be resumed (another place for it: --state FILE)")
            return None
    if not os.access(path.parent, os.W_OK):
        say(f"{path}: cannot be written; what happens from here on cannot be resumed")
    return file


def take_over(file: "StateFile", target: Place, timeout_s: float) -> None:
    """Have a daemon that was detached from the mountpoint, if there is one, write its turns and leave the file."""
    by_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    asked = b"%d %s" % (by_ns, os.fsencode(file.base))
    try:
        send_control(control_path(target.path), "state-hand-over", asked, timeout_s)
    except TimeoutError:
        say(f"a mount that was detached from {target.path} does not answer; it may still write {file.base}")
    except (OSError, ValueError):
        # Nobody listens, or one that knows no such thing.
        return


def resume(file: "StateFile | None", plan: "Plan", settings: Mapping[str, str], samples: int) -> bytes:
    """What the last mount there left, empty where it left nothing; what there is of one node alone goes into ``plan``.

    Several nodes have to meet before they can go on from it.

    Raises UsageError: there is a state, and it is of something else or damaged. It is left as it is.
    """
    from redoxfs.node.state import WRITE_EVERY_S, StateError, decode, of_one_node, read_bytes, summary, told_of

    if file is None or not os.path.lexists(file.path):
        say("there is nothing to resume" + (" here" if plan.nodes > 1 else "") + (f": no {file.path}" if file else ""))
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
        raise UsageError(f"--resume: {file.path}: {refusal}; to begin anew, mount without --resume") from None
    if plan.nodes == 1:
        told = told_of(summary(state.turns, samples))
        say(f"resumed: {told}; if the daemon was killed, what it served in its last {WRITE_EVERY_S:g} s may come twice")
    return data


def outside(name: str, timeout_s: float, option: str = "") -> Path:
    """The whole path of a file, in a folder that no redoxfs mount serves: its daemon would wait for itself."""
    path = os.path.abspath(name)
    folder = find(os.path.dirname(path), timeout_s)
    if not os.path.basename(path) or name.endswith("/"):
        raise UsageError(f"{option}{name}: is no name of a file")
    if folder.ours is not None:
        raise UsageError(f"{option}{name}: lies in the redoxfs mount at {folder.ours.mountpoint}; choose another place")
    if folder.trouble is not None:
        raise UsageError(f"{option}{name}: {folder.path}: {folder.trouble}")
    return folder.path / os.path.basename(path)
