"""The folders of the kubelet: where a pod's volumes are.

The kubelet makes them, and only root may change them. The content of an emptyDir belongs to the pod's containers, which
are not trusted: no path into it is followed, and what is done in it goes through a descriptor of the folder itself.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from redoxfs.csi.errors import invalid
from redoxfs.linux.beneath import open_directory
from redoxfs.linux.descriptors import opened

# Kubernetes names volumes by DNS labels, and PersistentVolumes by DNS subdomains. A pod's uid is a UUID, or the hash of
# a static pod's file.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")

_CSI, _EMPTY_DIR = "kubernetes.io~csi", "kubernetes.io~empty-dir"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a volume of a pod is mounted; ``target`` has no symlink."""

    pod_uid: str
    volume: str
    target: Path


class Kubelet:
    """The kubelet's folder, /var/lib/kubelet, which may itself be a symlink."""

    def __init__(self, folder: Path) -> None:
        self._asked = folder
        self._folder = Path(os.path.realpath(folder))

    def place(self, target_path: str) -> Place:
        """The place that a target path means. Raises CsiError: INVALID_ARGUMENT for any other path."""
        match PurePosixPath(target_path).parts[len(self._asked.parts) :]:
            case ("pods", uid, "volumes", kind, name, "mount") if (
                kind == _CSI
                and _UID.fullmatch(uid)
                and _NAME.fullmatch(name)
                and PurePosixPath(target_path).is_relative_to(self._asked)
            ):
                return Place(uid, name, self._folder / "pods" / uid / "volumes" / _CSI / name / "mount")
        raise invalid(
            f"target path {target_path!r}: not that of a pod's volume, {self._asked}/pods/UID/volumes/{_CSI}/NAME/mount"
        )

    def make_target(self, place: Place) -> None:
        """Make the folder to mount at, unless it is there. Raises OSError, such as ELOOP for a symlink."""
        with opened(self._open("pods", place.pod_uid, "volumes", _CSI, place.volume)) as parent:
            try:
                os.mkdir(place.target.name, 0o750, dir_fd=parent)
            except FileExistsError:
                # Not to be opened: that would ask the filesystem which may be mounted there.
                os.close(os.open(place.target.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent))

    def remove_target(self, place: Place) -> None:
        """Remove the folder, on which nothing is mounted. Raises OSError unless it is gone then."""
        try:
            parent = self._open("pods", place.pod_uid, "volumes", _CSI, place.volume)
        except FileNotFoundError:
            return
        try:
            os.rmdir(place.target.name, dir_fd=parent)
        except FileNotFoundError:
            pass
        finally:
            os.close(parent)

    def open_empty_dir(self, pod_uid: str, name: str) -> int:
        """A descriptor of a pod's emptyDir. Raises OSError: FileNotFoundError if the pod has none of that name."""
        return self._open("pods", pod_uid, "volumes", _EMPTY_DIR, name)

    def _open(self, *names: str) -> int:
        """A descriptor of a folder beneath the kubelet's, through no symlink."""
        with opened(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            return open_directory(folder, names)


def check_empty_dir(name: str) -> str:
    """The name of an emptyDir. Raises CsiError: INVALID_ARGUMENT."""
    if not _NAME.fullmatch(name):
        raise invalid(f"volume attribute empty-dir: {name!r} is not the name of a volume")
    return name
