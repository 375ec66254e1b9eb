"""Asking the daemon of a mount: what `trace`, `nodes` and `state` do alike, and how `status` begins."""

from typing import Any

from redoxfs.cli.exits import DaemonError, MountpointError, UsageError
from redoxfs.cli.place import Place, our_mount_at
from redoxfs.cli.runtime_paths import control_path


def live_mount(asked: str, timeout_s: float) -> Place:
    """The mount at ``asked``. Raises MountpointError unless a daemon serves it."""
    place = our_mount_at(asked, timeout_s)
    if place.is_stale:
        raise MountpointError(f"{place.path}: its daemon was killed; to clear it: redoxfs umount {place.path}")
    return place


def ask_daemon(place: Place, verb: str, data: bytes = b"") -> dict[str, Any]:
    """What the daemon of the mount answers.

    Raises:
        MountpointError: it is somebody else's.
        DaemonError: it does not answer.
        UsageError: it refuses.
    """
    from redoxfs.node import send_control

    try:
        return send_control(control_path(place.path), verb, data)
    except FileNotFoundError:
        raise MountpointError(f"{place.path}: has no control socket of yours; ask as who mounted it") from None
    except OSError as failure:
        raise DaemonError(f"{place.path}: the daemon does not answer: {failure.strerror or failure}") from None
    except ValueError as refusal:
        raise UsageError(f"{place.path}: {refusal}") from None
