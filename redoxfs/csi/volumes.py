"""The volumes of this node: publish, unpublish, and hand over each to the sidecar that asks for it.

Invariants:

- A mount that nobody serves yet has its descriptor here (`Volume._device`), so programs wait. Once the sidecar is
  ready, only that has it, so its end is the end of the mount.
- Publish and unpublish never wait for a sidecar. Each volume has a thread that waits for its sidecars, with deadlines,
  and holds the volume's lock only while it looks at the mount and mounts.
- What the plugin does can be done again: after a crash at any point, a repeated publish or unpublish completes it.

gRPC's threads call `publish` and `unpublish`; the threads of the volumes are the only others.
"""

import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from redoxfs.csi.errors import CsiError, invalid
from redoxfs.csi.kubelet import Kubelet, Place
from redoxfs.csi.mounts import Look, end_mounts, make_mount, mount_at
from redoxfs.csi.records import Record, Records
from redoxfs.launch.handover import (
    ANSWER_S,
    RETRY_S,
    SETTINGS,
    is_ready,
    read_request,
    refuse,
    send_mount,
    send_settings,
)
from redoxfs.linux.descriptors import opened
from redoxfs.linux.fuse_device import Device, MountError

DRIVER = "redoxfs"
"""The name of the driver in Kubernetes: that of the CSIDriver, and `driver:` of a volume."""

SOCKET = "socket"
"""The name of the socket in the emptyDir."""

_BACKLOG = 8

log = logging.getLogger(__name__)


class Volumes:
    """All volumes that are published on this node; ``records`` outlive this process."""

    def __init__(self, kubelet: Kubelet, records: Records) -> None:
        self._kubelet = kubelet
        self._records = records
        self._volumes: dict[Path, Volume] = {}
        self._busy: set[Path | tuple[str, str]] = set()
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Listen again for the sidecars of the volumes that the last process published."""
        for record in self._records.read():
            try:
                place = self._kubelet.place(record.target_path)
                volume = Volume(record, place, None)
                found = mount_at(place.target)
                if found is None or not found.ours:
                    # It was not mounted yet or not any more, or the machine was restarted. If it is still wanted,
                    # Kubernetes publishes it again.
                    volume.remove_socket(self._kubelet)
                    self._records.remove(record.target_path)
                    continue
                self._volumes[place.target] = volume
                volume.listen(self._kubelet)
            except (CsiError, OSError) as error:
                log.warning("%s: no sidecar can be served: %s", record.target_path, error)

    def publish(self, place: Place, record: Record) -> None:
        """Mount a volume, and listen for its sidecar. Raises CsiError."""
        meeting = place.pod_uid, record.empty_dir
        with self._alone(place, meeting):
            known = self._volumes.get(place.target)
            for target, other in list(self._volumes.items()):
                # Each would get the other's sidecar, and serve its dataset.
                if other.meeting == meeting and target != place.target:
                    raise invalid(
                        f"emptyDir {record.empty_dir!r} of pod {record.pod} is for volume {target.parent.name!r}: give "
                        f"volume {place.volume!r} one of its own, which its attribute empty-dir names"
                    )
            if known is not None:
                if known.record != record:
                    raise CsiError(
                        grpc.StatusCode.ALREADY_EXISTS, f"{place.target}: is published with other attributes already"
                    )
                found = mount_at(place.target)
                if found is not None and found.ours and known.listens:
                    return
                known.close()
            self._check_empty_dir(place, record)
            is_served = _is_served(place.target)
            try:
                self._records.write(record)
                self._volumes[place.target] = self._published(place, record)
            except (CsiError, OSError, MountError) as error:
                self._volumes.pop(place.target, None)
                # Programs may use a mount that was there before. The next publish or process listens for its sidecar.
                if not is_served:
                    self._undo(place, record)
                if isinstance(error, CsiError):
                    raise
                raise CsiError(grpc.StatusCode.INTERNAL, f"{place.target}: {_reason(error)}") from None
            log.info("published %s for pod %s", place.target, record.pod)

    def unpublish(self, place: Place, target_path: str) -> None:
        """Unmount a volume, whatever serves it. Raises CsiError."""
        with self._alone(place):
            volume = self._volumes.pop(place.target, None)
            if volume is not None:
                volume.close()
            try:
                end_mounts(place.target)
                self._kubelet.remove_target(place)
                if volume is not None:
                    volume.remove_socket(self._kubelet)
                self._records.remove(target_path)
            except OSError as error:
                raise CsiError(grpc.StatusCode.INTERNAL, f"{place.target}: {_reason(error)}") from None
            log.info("unpublished %s", place.target)

    def close(self) -> None:
        """Stop listening. Mounts that no sidecar serves yet are dead then, and the next process replaces them."""
        for volume in self._volumes.values():
            volume.close()
        self._records.close()

    @contextmanager
    def _alone(self, place: Place, *more: tuple[str, str]) -> Iterator[None]:
        """Refuse two calls about one volume at a time, as the specification has it; or about one of ``more``."""
        about: set[Path | tuple[str, str]] = {place.target, *more}
        with self._lock:
            if self._busy & about:
                raise CsiError(grpc.StatusCode.ABORTED, f"{place.target}: another call for it is in progress")
            self._busy |= about
        try:
            yield
        finally:
            with self._lock:
                self._busy -= about

    def _check_empty_dir(self, place: Place, record: Record) -> None:
        try:
            os.close(self._kubelet.open_empty_dir(place.pod_uid, record.empty_dir))
        except FileNotFoundError:
            # The kubelet makes a pod's volumes in any order.
            raise CsiError(
                grpc.StatusCode.UNAVAILABLE,
                f"pod {record.pod} has no emptyDir {record.empty_dir!r} yet, in which redoxfs finds its sidecar",
            ) from None
        except OSError as error:
            raise invalid(f"emptyDir {record.empty_dir!r} of pod {record.pod}: {_reason(error)}") from None

    def _published(self, place: Place, record: Record) -> "Volume":
        self._kubelet.make_target(place)
        found = mount_at(place.target)
        if found is not None and not found.ours:
            raise CsiError(
                grpc.StatusCode.FAILED_PRECONDITION, f"{place.target}: a {found.fstype} filesystem is mounted there"
            )
        # A mount of ours, whose record was lost, may be in use. If it is dead, the sidecar gets another.
        device = make_mount(place.target, record.volume_id, frozenset(record.options)) if found is None else None
        volume = Volume(record, place, device)
        try:
            volume.listen(self._kubelet)
        except BaseException:
            volume.close()
            raise
        return volume

    def _undo(self, place: Place, record: Record) -> None:
        """After a publish that failed. What cannot be undone now, an unpublish does."""
        found = mount_at(place.target)
        with suppress(OSError):
            if found is None or found.ours:
                end_mounts(place.target)
                self._kubelet.remove_target(place)
            self._records.remove(record.target_path)


def _is_served(target: Path) -> bool:
    """Whether a redoxfs mount is at a target, and something serves it."""
    found = mount_at(target)
    return found is not None and found.ours and not Look(target).is_dead()


class Volume:
    """A published volume, and the thread that serves its sidecars.

    ``device``: the mount, if nobody has its descriptor yet.
    ``meeting``: the pod and the emptyDir in which its sidecar comes.
    """

    def __init__(self, record: Record, place: Place, device: Device | None) -> None:
        self.record = record
        self.meeting = place.pod_uid, record.empty_dir
        self._place = place
        self._look = Look(place.target)
        self._device = device
        self._listener: socket.socket | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    @property
    def listens(self) -> bool:
        return self._listener is not None

    def listen(self, kubelet: Kubelet) -> None:
        """Make the socket and wait for sidecars at it. Raises OSError, and CsiError if no thread is left for that.

        The pod may have put anything under the socket's name, such as a symlink: it is removed, and bind(2) follows
        none. The socket's mode is set before it has a name, because a path could be replaced in between.
        """
        folder = kubelet.open_empty_dir(self._place.pod_uid, self.record.empty_dir)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=folder)
            # Every user of the pod may ask: the pod decides which of its containers get the emptyDir.
            os.fchmod(listener.fileno(), 0o666)
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
            listener.listen(_BACKLOG)
            threading.Thread(target=self._serve, args=(listener,), daemon=True, name="redoxfs-volume").start()
        except RuntimeError:
            listener.close()
            with suppress(OSError):
                os.unlink(SOCKET, dir_fd=folder)
            raise CsiError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._place.target}: no thread is left to wait for its sidecar: a limit of processes is reached",
            ) from None
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(folder)
        self._listener = listener

    def close(self) -> None:
        """Stop listening, and close the descriptor if it is still here."""
        with self._lock:
            self._closed.set()
            if self._device is not None:
                self._device.close()
                self._device = None
        if self._listener is not None:
            # It wakes the thread, which closes it.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener = None

    def remove_socket(self, kubelet: Kubelet) -> None:
        with (
            suppress(OSError),
            opened(kubelet.open_empty_dir(self._place.pod_uid, self.record.empty_dir)) as folder,
        ):
            os.unlink(SOCKET, dir_fd=folder)

    # In the volume's thread

    def _serve(self, listener: socket.socket) -> None:
        """One sidecar at a time; one that does not speak delays only its own pod."""
        with listener:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError as error:
                    if self._closed.is_set():
                        return
                    # No descriptor was left for it, for example. Later there may be one.
                    log.warning("%s: a sidecar could not connect: %s", self._place.target, error)
                    self._closed.wait(RETRY_S)
                    continue
                with connection:
                    connection.settimeout(ANSWER_S)
                    try:
                        self._answer(connection)
                    except (OSError, ValueError, MountError) as error:
                        log.warning("%s: a sidecar was not served: %s", self._place.target, error)
                        refuse(connection, _reason(error))
                # A pod that asks without end takes neither the processor nor the log for itself.
                self._closed.wait(RETRY_S)

    def _answer(self, connection: socket.socket) -> None:
        if read_request(connection) == SETTINGS:
            with self._lock:
                # Refused now, so that a second sidecar need not scan first.
                self._check_free()
            send_settings(connection, self.record.arguments)
            return
        with self._lock:
            self._check_free()
            device = self._taken()
            try:
                send_mount(connection, device.fd)
            except OSError:
                # The sidecar ended before it had the mount. Programs wait on, for the next one.
                self._device = device
                raise
        is_kept = False
        try:
            if is_ready(connection):
                log.info("the sidecar of pod %s serves %s", self.record.pod, self._place.target)
                device.widen_readahead()
            else:
                is_kept = self._is_taken_back(device)
        finally:
            if not is_kept:
                device.close()

    def _is_taken_back(self, device: Device) -> bool:
        """Keep a mount whose sidecar has ended for the next one, if the first request is still there."""
        with self._lock:
            if self._closed.is_set() or not _has_first_request(device):
                return False
            self._device = device
        return True

    def _check_free(self) -> None:
        """Raises ValueError if the mount is not for a sidecar that asks now."""
        if self._closed.is_set():
            raise ValueError("the volume is being unpublished")
        if self._device is not None and not _has_first_request(self._device):
            # The sidecar that it was taken back from has not ended.
            self._device.close()
            self._device = None
        found = mount_at(self._place.target)
        if found is None or (found.ours and self._device is not None):
            return
        if not found.ours:
            raise ValueError(f"a {found.fstype} filesystem is mounted at {self._place.target}")
        if not self._look.is_dead():
            raise ValueError("another process has this mount, and has not ended")

    def _taken(self) -> Device:
        """The mount, whose descriptor is the caller's now; another one if the last is dead or gone.

        Raises OSError, MountError.
        """
        target = self._place.target
        device, self._device = self._device, None
        found = mount_at(target)
        if device is not None:
            if found is not None:
                return device
            device.close()
        if found is not None:
            log.info("%s: its sidecar has ended; mounting anew", target)
            end_mounts(target)
        return make_mount(target, self.record.volume_id, frozenset(self.record.options))


def _has_first_request(device: Device) -> bool:
    """Whether nobody has read from it: the first request is there from the beginning."""
    ready = select.poll()
    ready.register(device.fd, select.POLLIN)
    return ready.poll(0) == [(device.fd, select.POLLIN)]


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).replace("\n", " ")
