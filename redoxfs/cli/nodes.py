"""`redoxfs nodes`: show which nodes share a dataset with this one, or set a new list of them.

A node that is lost keeps its chunks until the launcher decides that it will not come back. Each of the others is then
given the new list, in any order. Laps begin anew.
"""

import json

from redoxfs.cli.options.nodes import NodesOptions
from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import UsageError
from redoxfs.launch.members import Listed, parse_nodes
from redoxfs.launch.say import show


def run(options: NodesOptions) -> int:
    """Print the view, after setting a new one if there is one to set."""
    data = b""
    if options.new_list is not None:
        listed = parse_nodes(options.new_list)
        if not isinstance(listed, Listed):
            raise UsageError(f"--set {options.new_list}: expected a list of nodes: host:port,host:port,…")
        data = json.dumps(listed.addresses).encode()
    answer = ask_daemon(live_mount(options.mountpoint, options.timeout_s), "nodes", data, options.timeout_s)
    if options.json:
        print(json.dumps({"view": answer["view"], "nodes": answer["nodes"]}))
    else:
        show(f"view {answer['view']}: {', '.join(answer['nodes'])}")
    return 0
