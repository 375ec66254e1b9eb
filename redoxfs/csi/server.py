"""The plugin as a process: its socket, and its start and end."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from redoxfs.csi.attributes import VolumeOptions
from redoxfs.csi.kubelet import Kubelet
from redoxfs.csi.records import Records
from redoxfs.csi.service import Service
from redoxfs.csi.volumes import Volumes
from redoxfs.launch.errors import UsageError

THREADS = 8
"""Calls at once. A call mounts or unmounts and waits for no sidecar, so it takes milliseconds."""

STOP_S = 5.0
"""For calls that are in progress at the end."""

SCHEME = "unix://"

# sun_path is 108 bytes, including a final zero (unix(7)).
_LONGEST_SOCKET_PATH_BYTES = 107

log = logging.getLogger(__name__)


class Plugin:
    """The node plugin, from `start` to `stop`.

    Args:
        endpoint: unix:///PATH; the volumes' records are beside it, so its folder must outlive the plugin.
        node_id: the name of this node in Kubernetes.
        kubelet: the kubelet's folder.
    """

    def __init__(self, endpoint: str, node_id: str, kubelet: Path, options: VolumeOptions) -> None:
        self._path = _path_of(endpoint)
        records = _records(self._path.parent / "volumes")
        if not kubelet.is_absolute() or not kubelet.is_dir():
            # The pods would seem to have no emptyDir.
            raise UsageError(f"--kubelet-dir {kubelet}: is not the absolute path of a folder of this container")
        self._volumes = Volumes(of := Kubelet(kubelet), records)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="redoxfs-csi")
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers(Service(node_id, of, self._volumes, options).handlers())

    def start(self) -> None:
        """Listen for sidecars and for Kubernetes. Raises UsageError if it cannot.

        Process-wide, it sets the umask to 0: the sidecars' sockets are for every user of their pod. All other files
        are made with modes of their own.
        """
        os.umask(0o077)
        try:
            bound = self._server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise UsageError(f"--endpoint {SCHEME}{self._path}: cannot listen there; does the folder exist?")
        os.umask(0)
        self._volumes.restore()
        self._server.start()
        log.info("listening at %s", self._path)

    def stop(self) -> None:
        """End. Mounts that a sidecar serves go on."""
        self._server.stop(STOP_S).wait()
        self._pool.shutdown()
        self._volumes.close()


def _path_of(endpoint: str) -> Path:
    path = Path(endpoint.removeprefix(SCHEME))
    if not endpoint.startswith(SCHEME) or not path.is_absolute():
        raise UsageError(f"--endpoint {endpoint}: not a Unix socket; write it like unix:///csi/csi.sock")
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        raise UsageError(
            f"--endpoint {endpoint}: longer than the {_LONGEST_SOCKET_PATH_BYTES} bytes of a socket's path"
        )
    return path


def _records(folder: Path) -> Records:
    try:
        return Records(folder)
    except OSError as error:
        raise UsageError(f"--endpoint: {folder}: {error.strerror}") from None
