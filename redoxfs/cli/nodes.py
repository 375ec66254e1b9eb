"""`redoxfs nodes`: which nodes share a dataset with this one, and which are to do so from now on.

A node that is gone keeps its chunks until the launcher says that it will not come back: each of the others is then told
the new list, in any order. Laps begin anew.
"""

import argparse
import json

from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import UsageError
from redoxfs.launch.members import Listed, parse_nodes


def run(arguments: argparse.Namespace) -> int:
    """Print the view, the new one if there is to be one."""
    data = b""
    if arguments.set is not None:
        listed = parse_nodes(arguments.set)
        if not isinstance(listed, Listed):
            raise UsageError(f"--set {arguments.set}: expected a list of nodes: host:port,host:port,…")
        data = json.dumps(listed.addresses).encode()
    told = ask_daemon(live_mount(arguments.mountpoint, arguments.timeout), "nodes", data)
    if arguments.json:
        print(json.dumps({"view": told["view"], "nodes": told["nodes"]}))
    else:
        print(f"view {told['view']}: {', '.join(told['nodes'])}")
    return 0
