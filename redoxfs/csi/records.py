"""What the plugin knows of its volumes, on disk, so that a restarted plugin goes on where the last one stopped.

Kubernetes does not publish a volume again because a plugin was restarted. Each volume is a file beside the plugin's
socket. It is written before the volume is mounted and removed after it is unmounted, so no mount lacks one.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from redoxfs.linux.durable import replace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """A published volume.

    ``target_path``  as Kubernetes calls it
    ``pod``          for people: namespace/name
    ``arguments``    of `redoxfs mount`, for the sidecar
    ``options``      of the kernel's mount
    ``capability``   how Kubernetes asked for it, to tell a repeated call from another one
    """

    volume_id: str
    target_path: str
    pod: str
    empty_dir: str
    arguments: tuple[str, ...]
    options: tuple[str, ...]
    capability: str


class Records:
    """The records in a folder, which is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def write(self, record: Record) -> None:
        """Raises OSError."""
        replace(self._fd, _name(record.target_path), json.dumps(asdict(record)).encode())

    def remove(self, target_path: str) -> None:
        """Raises OSError, but not if there is none."""
        with suppress(FileNotFoundError):
            os.unlink(_name(target_path), dir_fd=self._fd)
        os.fsync(self._fd)

    def read(self) -> Iterator[Record]:
        """All records. A file that is none is removed, and one that cannot be read now is left for the next process."""
        for path in sorted(self._folder.iterdir()):
            try:
                text = path.read_bytes()
            except OSError as error:
                log.warning("%s cannot be read, so no sidecar of its volume is served: %s", path, error.strerror)
                continue
            try:
                record = _record(json.loads(text))
                if path.name != _name(record.target_path):
                    raise ValueError("its name is of another volume")
            except (ValueError, TypeError, RecursionError) as error:
                log.warning("%s is not a record of a volume, and is removed: %s", path, error)
                with suppress(OSError):
                    path.unlink()
                continue
            yield record

    def close(self) -> None:
        os.close(self._fd)


def _record(values: object) -> Record:
    """A record from JSON. Raises ValueError, TypeError."""
    if not isinstance(values, dict):
        raise TypeError("it is no JSON object")
    given: dict[str, Any] = {}
    for each in fields(Record):
        value = values.get(each.name)
        if not (isinstance(value, str) if each.type is str else _is_texts(value)):
            raise ValueError(f"{each.name} is {value!r}")
        given[each.name] = tuple(value) if isinstance(value, list) else value
    return Record(**given)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _name(target_path: str) -> str:
    return f"{hashlib.sha256(os.fsencode(target_path)).hexdigest()[:32]}.json"
