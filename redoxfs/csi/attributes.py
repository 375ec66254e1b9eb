"""From the attributes of a volume to arguments of `redoxfs mount`.

An attribute is an option without its dashes: ``chunk-size: "8"``. ``mount-options`` stands for -o. An option without a
value takes ``"true"`` or ``"false"``. An option that may be repeated takes a value on each line. The command line
tells which options there are, so every option of `redoxfs mount` is an attribute from the start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from redoxfs.csi.errors import invalid
from redoxfs.launch.errors import CommandError

EMPTY_DIR = "empty-dir"
"""The attribute of the plugin itself: the name of the pod's emptyDir in which the sidecar finds the socket."""

DEFAULT_EMPTY_DIR = "redoxfs"

SYSTEM_PREFIX = "csi.storage.k8s.io/"
"""Kubernetes adds attributes that begin so, about the pod (podInfoOnMount)."""

POD_UID = f"{SYSTEM_PREFIX}pod.uid"
POD_NAME = f"{SYSTEM_PREFIX}pod.name"
POD_NAMESPACE = f"{SYSTEM_PREFIX}pod.namespace"

MOUNT_OPTIONS = "mount-options"


class Kind(Enum):
    """How often an option takes a value."""

    FLAG = "none"
    ONE = "one"
    MANY = "one a line"


@dataclass(frozen=True, slots=True)
class VolumeOptions:
    """The grammar of `redoxfs mount`.

    ``kinds``  its options by the names of their attributes, with the option as it is typed
    ``check``  raises CommandError unless the arguments make sense; returns the values of -o
    """

    kinds: Mapping[str, tuple[str, Kind]]
    check: Callable[[Sequence[str]], Sequence[str]]


def arguments_of(
    attributes: Mapping[str, str], flags: Sequence[str], options: VolumeOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that the ``attributes`` of a volume stand for, and the values of -o among them.

    Args:
        flags: the mountOptions of a PersistentVolume.

    Raises CsiError: INVALID_ARGUMENT, with the attribute.
    """
    arguments: list[str] = []
    for name, value in sorted(attributes.items()):
        if name.startswith(SYSTEM_PREFIX) or name == EMPTY_DIR:
            continue
        if name not in options.kinds:
            known = ", ".join(sorted({EMPTY_DIR, *options.kinds}))
            raise invalid(f"volume attribute {name!r}: redoxfs has no such option; known are {known}")
        arguments += _typed(name, value, *options.kinds[name])
    if flags:
        arguments += _typed(MOUNT_OPTIONS, ",".join(flags), *options.kinds[MOUNT_OPTIONS])
    try:
        values = options.check(arguments)
    except CommandError as error:
        raise invalid(f"volume attributes: {error}") from None
    return tuple(arguments), tuple(values)


def _typed(name: str, value: str, option: str, kind: Kind) -> list[str]:
    if "\0" in value:
        # No command line can have it, so the sidecar's options do not expect it.
        raise invalid(f"volume attribute {name}: {value!r} contains a zero character")
    if kind is Kind.FLAG:
        if value not in ("true", "false"):
            raise invalid(f'volume attribute {name}: {value!r} is neither "true" nor "false"')
        return [option] if value == "true" else []
    values = [line.strip() for line in value.splitlines() if line.strip()] if kind is Kind.MANY else [value]
    return [f"{option}={each}" if option.startswith("--") else f"{option}{each}" for each in values]
