"""Ray nodes on this machine, for t7_ray: a `ray.cluster_utils.Cluster` whose nodes do not see each other's mounts.

    ray_nodes.py FOLDER COUNT

Node I has the address 127.0.1.(I + 1), a mount namespace of its own, and FOLDER/I for caches, logs and sockets. When
all are up, a JSON line on stdout has the cluster's `address` and, for each node, a descriptor of its mount namespace in
this process. It keeps the namespace after the node, so that a test can look for what is left there. A line "remove I"
on stdin kills node I with all that Ray runs there; the end of stdin ends the cluster. Both answer with a line.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ray.cluster_utils import Cluster

# <sched.h> and <sys/mount.h>
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18

# The least that Ray accepts is a little less.
OBJECT_STORE_BYTES = 80 << 20


def enter_own_namespace() -> int:
    """Give this thread, and what it starts, a copy of its mount namespace; a descriptor of that."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    assert libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) == 0
    # A copy of another test's mount would outlive the original.
    subprocess.run(["umount", "--all", "--lazy", "--types", "fuse.redoxfs"], check=False)
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="ray") as session:
        # Ray notes the address of its newest cluster below this, in a folder that it makes only for its own sessions.
        os.environ["RAY_TMPDIR"] = session
        (Path(session) / "ray").mkdir()
        cluster = Cluster()
        nodes, namespaces = [], []
        for number in range(count):
            own = folder / str(number)
            own.mkdir(mode=0o700)
            namespaces.append(enter_own_namespace())
            homes = {name: str(own) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
            nodes.append(
                cluster.add_node(
                    node_ip_address=f"127.0.1.{number + 1}",
                    num_cpus=1,
                    resources={} if number == 0 else {"disk": 1},
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    temp_dir=session,
                    env_vars=homes,
                )
            )
        print(json.dumps({"address": cluster.address, "namespaces": namespaces}), flush=True)
        for line in sys.stdin:
            removed = int(line.removeprefix("remove "))
            cluster.remove_node(nodes[removed], allow_graceful=False)
            print(json.dumps({"removed": removed}), flush=True)
        cluster.shutdown()
    print(json.dumps({}), flush=True)


if __name__ == "__main__":
    main()
