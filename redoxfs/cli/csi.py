"""`redoxfs csi`: the node plugin of Kubernetes."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from redoxfs.cli.arguments import mount_options, parse
from redoxfs.cli.options.kubernetes import CsiOptions
from redoxfs.launch.fuse_options import parse_fuse_options
from redoxfs.launch.logs import log_to
from redoxfs.launch.members import parse_nodes
from redoxfs.launch.metrics import labels_of
from redoxfs.launch.options import MountOptions
from redoxfs.launch.sizes import parse_size

log = logging.getLogger(__name__)


def run(options: CsiOptions) -> int:
    """Serve Kubernetes until SIGTERM or SIGINT; returns 0 then."""
    # gRPC's core logs for its own developers, and reads the variable when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from redoxfs.csi import Kind, Plugin, VolumeOptions

    log_to(sys.stderr, options.log_format, options.log_level)
    if os.getpid() == 1:
        # The first process of a pid namespace. With hostPID this is one of the node's processes.
        log.warning(
            "the kernel will not tell threads of pods apart, so programs that open a file twice get two samples: "
            "set hostPID: true in the plugin's pod"
        )
    kinds = {name: (option, Kind(values)) for name, option, values in mount_options()}
    plugin = Plugin(options.endpoint, options.node_id, Path(options.kubelet_dir), VolumeOptions(kinds, check))
    # The kernel's handler writes at once, in any thread. A handler in Python runs once this thread does, which never
    # ends its wait for a lock if the signal comes just before it, or to another thread.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    plugin.start()
    os.read(told, 1)
    plugin.stop()
    return 0


def check(arguments: Sequence[str]) -> Sequence[str]:
    """The values of -o among arguments of `redoxfs mount`. Raises UsageError unless they make sense.

    Each value is checked by itself. Whether it fits to the files, the memory or the own options of the sidecar, which
    may override it, only the sidecar knows. It also checks the patterns of --samples and --groups, and its log says in
    a line what is wrong.
    """
    options: MountOptions = parse(["mount", *arguments, "--", "SOURCE"]).options
    check_values(options)
    return options.fuse_options


def check_values(options: MountOptions) -> None:
    """Raises UsageError unless each value that is parsed late makes sense by itself."""
    for option, size in (
        ("--memory", options.memory.memory_size),
        ("--remote-memory", options.cluster.sharing.remote_memory),
        ("--cache-size", options.cache.cache_size),
    ):
        if size is not None:
            parse_size(size, 1 << 40, option)
    if options.cluster.nodes is not None:
        parse_nodes(options.cluster.nodes)
    labels_of(options.metrics_label)
    parse_fuse_options(options.fuse_options)
