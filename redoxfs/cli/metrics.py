"""`redoxfs metrics`: the metrics of all mounts of this user on this machine, which have no --metrics of their own."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from redoxfs.cli.options.watching import MetricsOptions
from redoxfs.launch.addresses import joined
from redoxfs.launch.control import send_control
from redoxfs.launch.errors import CommandError
from redoxfs.launch.metrics import labels_of, listen, parse_listen
from redoxfs.launch.runtime_paths import control_path_of_daemon
from redoxfs.launch.say import say
from redoxfs.linux.mount_table import Mount, read_mounts

ANSWER_S = 5.0
"""For a daemon to answer. Prometheus itself waits for 10 s."""

AT_ONCE = 16
"""Daemons that are asked at the same time: one that hangs delays no other."""


def run(options: MetricsOptions) -> int:
    """Answer scrapes until a signal."""
    # After the options are checked.
    labels = labels_of(options.metrics_label)
    listening = listen("--listen", options.listen)
    from redoxfs.telemetry.prometheus import MountCollector, Scraped, Server

    def scraped(mount: Mount) -> Scraped | None:
        try:
            path = control_path_of_daemon(Path(mount.mountpoint))
            stats = send_control(path, "stats", timeout_s=ANSWER_S)
        except (OSError, ValueError, CommandError):
            return Scraped(mount.mountpoint, None)
        return None if stats.get("metrics") else Scraped(mount.mountpoint, stats)

    def scrape() -> Sequence[Scraped]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return [mount for mount in threads.map(scraped, own_mounts()) if mount is not None]

    server = Server(listening, MountCollector(scrape, labels))
    # The usual end.
    with suppress(KeyboardInterrupt):
        server.end_by_signals()
        say(f"metrics of all mounts of this user: http://{joined(*parse_listen(options.listen))}/metrics")
        server.serve()
    return 0


def own_mounts() -> list[Mount]:
    """The redoxfs mounts of this user, each filesystem once."""
    found: dict[str, Mount] = {}
    for mount in read_mounts():
        if mount.ours and mount.owner is not None and mount.owner[0] == os.geteuid():
            found.setdefault(mount.device, mount)
    return [*found.values()]
