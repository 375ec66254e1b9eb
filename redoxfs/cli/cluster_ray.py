"""`redoxfs cluster --ray`: the nodes of a Ray cluster, each with a mount.

As with `redoxfs mount`, the mount outlives the command, so that a job can be any Ray driver after it, and ends by
`redoxfs cluster down --ray`; with -f it ends with the command. The actors that outlive the command are known to Ray by
the mountpoint, so `status` and `down` work from any machine of the cluster.
"""

import importlib
import shlex
import signal
import time
from dataclasses import replace
from typing import Any

from redoxfs.cli.options.nodes import ClusterDownOptions, ClusterUpOptions
from redoxfs.launch.errors import UNEXPECTED, CommandError, MountpointError, ReportedError, UsageError
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted

# Between two looks at the nodes, of a command that stays in the foreground.
_LOOK_EVERY_S = 5.0

_HEALTHY = ("mounting", "serving")


def up(options: ClusterUpOptions) -> int:
    """Mount on all nodes; with -f, return when the mount has ended."""
    api, folder = _connected(), options.folder
    down_command = f"redoxfs cluster down --ray {shlex.quote(folder)}"
    stays = options.mount.foreground
    if api.find(folder) is not None:
        raise MountpointError(f"{folder}: is mounted on Ray already; to end it: {down_command}")
    mount = replace(options.mount, mountpoint=folder, foreground=False)
    # Ray handles both, and a shell without job control has the command ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with api.bring_up(mount, resource=options.resource, is_detached=not stays) as mounted:
        count = len(mounted.addresses)
        say(f"{counted(count, 'Ray node')} {'serves' if count == 1 else 'serve'} {mount.source} at {folder}")
        say(f"to end {'it' if count == 1 else 'them'}: {'Ctrl-C' if stays else down_command}")
        if not stays:
            mounted.leave()
            return 0
        try:
            _watch(mounted)
        except KeyboardInterrupt:
            return 0
    raise ReportedError(UNEXPECTED, f"{folder}: no Ray node serves it any more")


def stats(folder: str) -> dict[int, dict[str, Any] | CommandError]:
    """The `stats.json` of each node, or why there is none. Raises MountpointError."""
    return {
        each.node: MountpointError(f"{each.address}: {each.state}{each.reason and ': '}{each.reason}")
        if each.stats is None
        else each.stats
        for each in _found(_connected(), folder).status()
    }


def down(options: ClusterDownOptions) -> int:
    """End the mount on all nodes."""
    if options.lazy:
        raise UsageError("--lazy is not for --ray: the mounts end also where programs use them")
    _found(_connected(), options.folder).close()
    return 0


def _connected() -> Any:
    """`redoxfs.ray`, with a connection to the cluster. Raises UsageError.

    It is imported by its name, because it stands above this room: it uses the grammar of the command line.
    """
    try:
        api = importlib.import_module("redoxfs.ray")
    except ModuleNotFoundError as missing:
        raise UsageError(f"--ray: {missing}") from None
    api.connect()
    return api


def _found(api: Any, folder: str) -> Any:
    mounted = api.find(folder)
    if mounted is None:
        raise MountpointError(f"{folder}: redoxfs cluster up --ray has mounted nothing there")
    return mounted


def _watch(mounted: Any) -> None:
    """Report each change of a node's state, until none is healthy."""
    known = dict.fromkeys(mounted.addresses, "serving")
    while any(state in _HEALTHY for state in known.values()):
        time.sleep(_LOOK_EVERY_S)
        for each in mounted.status():
            if each.state != known[each.address]:
                known[each.address] = each.state
                say(f"[{each.node}] {each.address}: {each.state}{each.reason and ': '}{each.reason}")
