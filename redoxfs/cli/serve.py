"""`redoxfs serve`: run the filesystem on a mount that `redoxfs csi` made, in a container without privileges.

The volume brings options of its own. An option of this command line overrides the volume's.
"""

import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from redoxfs.cli.arguments import parse
from redoxfs.cli.mount import summary
from redoxfs.cli.options.building import built, flat
from redoxfs.cli.options.kubernetes import ServeOptions
from redoxfs.launch.daemon import prepare, work_of
from redoxfs.launch.errors import UsageError
from redoxfs.launch.handover import receive_mount, receive_settings
from redoxfs.launch.logs import log_to
from redoxfs.launch.options import MountOptions
from redoxfs.launch.say import say, say_by


def run(options: ServeOptions) -> int:
    """Serve until the mount has ended, or a signal comes; returns 0 then."""
    log_to(sys.stderr, options.mount.log_format, options.mount.log_level)
    if options.mount.log_format == "json":
        say_by(logging.getLogger("redoxfs").info)
    path, timeout_s = Path(os.path.abspath(options.fd_socket)), options.mount.timeout_s
    mount = replace(_merged(options, receive_settings(path, timeout_s)), mountpoint=os.fspath(path), foreground=True)
    prepared = prepare(mount, partial(receive_mount, path, timeout_s))
    work = work_of(prepared)

    def on_ready() -> None:
        for line in summary(prepared):
            say(line)
        os.close(prepared.turn)

    return work(on_ready, say)


def _merged(own: ServeOptions, arguments: tuple[str, ...]) -> MountOptions:
    """The options of the volume, and over them those that were given here."""
    try:
        volume: MountOptions = parse(["mount", *arguments, "--", own.mount.source]).options
    except UsageError as error:
        raise UsageError(f"the volume's attributes: {error}") from None
    given = {name: value for name, value in flat(own.mount).items() if name in own.given}
    return built(MountOptions, flat(volume) | given)
