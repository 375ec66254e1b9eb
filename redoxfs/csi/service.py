"""The Identity and Node services of the Container Storage Interface: requests are checked here, and carried out by
`redoxfs.csi.volumes`.

There is no NodeGetVolumeStats: a read-only volume is always full, and a figure that says so raises alarms.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import wrappers_pb2

from redoxfs import __version__
from redoxfs.csi.attributes import (
    DEFAULT_EMPTY_DIR,
    EMPTY_DIR,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    VolumeOptions,
    arguments_of,
)
from redoxfs.csi.errors import CsiError, invalid
from redoxfs.csi.kubelet import Kubelet, Place, check_empty_dir
from redoxfs.csi.records import Record
from redoxfs.csi.v1 import csi_pb2 as pb
from redoxfs.csi.volumes import DRIVER, Volumes
from redoxfs.launch.fuse_options import parse_fuse_options
from redoxfs.linux.fuse_device import DEVICE, SUBTYPE

log = logging.getLogger(__name__)

_MODES = pb.VolumeCapability.AccessMode
_READERS = (_MODES.SINGLE_NODE_READER_ONLY, _MODES.MULTI_NODE_READER_ONLY)


class Service:
    """Answers Kubernetes, in gRPC's threads."""

    def __init__(self, node_id: str, kubelet: Kubelet, volumes: Volumes, options: VolumeOptions) -> None:
        self._node_id = node_id
        self._kubelet = kubelet
        self._volumes = volumes
        self._options = options

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Methods that are not here are UNIMPLEMENTED."""
        identity = {
            "GetPluginInfo": _method(self._plugin_info, pb.GetPluginInfoRequest),
            "GetPluginCapabilities": _method(self._plugin_capabilities, pb.GetPluginCapabilitiesRequest),
            "Probe": _method(self._probe, pb.ProbeRequest),
        }
        node = {
            "NodePublishVolume": _method(self._publish, pb.NodePublishVolumeRequest),
            "NodeUnpublishVolume": _method(self._unpublish, pb.NodeUnpublishVolumeRequest),
            "NodeGetCapabilities": _method(self._node_capabilities, pb.NodeGetCapabilitiesRequest),
            "NodeGetInfo": _method(self._node_info, pb.NodeGetInfoRequest),
        }
        return (
            grpc.method_handlers_generic_handler("csi.v1.Identity", identity),
            grpc.method_handlers_generic_handler("csi.v1.Node", node),
        )

    # Identity

    def _plugin_info(self, _request: pb.GetPluginInfoRequest) -> pb.GetPluginInfoResponse:
        return pb.GetPluginInfoResponse(name=DRIVER, vendor_version=__version__)

    def _plugin_capabilities(self, _request: pb.GetPluginCapabilitiesRequest) -> pb.GetPluginCapabilitiesResponse:
        return pb.GetPluginCapabilitiesResponse()

    def _probe(self, _request: pb.ProbeRequest) -> pb.ProbeResponse:
        try:
            os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise CsiError(grpc.StatusCode.FAILED_PRECONDITION, f"{DEVICE}: {error.strerror}") from None
        return pb.ProbeResponse(ready=wrappers_pb2.BoolValue(value=True))

    # Node

    def _node_capabilities(self, _request: pb.NodeGetCapabilitiesRequest) -> pb.NodeGetCapabilitiesResponse:
        return pb.NodeGetCapabilitiesResponse()

    def _node_info(self, _request: pb.NodeGetInfoRequest) -> pb.NodeGetInfoResponse:
        return pb.NodeGetInfoResponse(node_id=self._node_id)

    def _publish(self, request: pb.NodePublishVolumeRequest) -> pb.NodePublishVolumeResponse:
        _check_given(volume_id=request.volume_id, target_path=request.target_path)
        _check_capability(request)
        place = self._kubelet.place(request.target_path)
        pod = _pod(request, place)
        attributes = dict(request.volume_context)
        flags = list(request.volume_capability.mount.mount_flags)
        arguments, values = arguments_of(attributes, flags, self._options)
        options = parse_fuse_options([*values, "allow_other"]).kernel
        for labelled in (each for each in options if "=" in each):
            # The plugin may set any label, so a pod could choose what other programs of the node take its files for.
            raise invalid(f"volume attribute mount-options: {labelled}: a volume cannot choose its SELinux labels")
        record = Record(
            volume_id=request.volume_id,
            target_path=request.target_path,
            pod=pod,
            empty_dir=check_empty_dir(attributes.get(EMPTY_DIR, DEFAULT_EMPTY_DIR)),
            arguments=arguments,
            # The containers of the pod run as other users than this process.
            options=tuple(sorted(options)),
            capability=f"{_MODES.Mode.Name(request.volume_capability.access_mode.mode)} readonly={request.readonly}",
        )
        self._volumes.publish(place, record)
        return pb.NodePublishVolumeResponse()

    def _unpublish(self, request: pb.NodeUnpublishVolumeRequest) -> pb.NodeUnpublishVolumeResponse:
        _check_given(volume_id=request.volume_id, target_path=request.target_path)
        self._volumes.unpublish(self._kubelet.place(request.target_path), request.target_path)
        return pb.NodeUnpublishVolumeResponse()


def _check_given(**fields: str) -> None:
    for name, value in fields.items():
        if not value:
            raise invalid(f"{name} is missing")


def _check_capability(request: pb.NodePublishVolumeRequest) -> None:
    """Refuse what a read-only filesystem cannot do. Raises CsiError: INVALID_ARGUMENT."""
    if not request.HasField("volume_capability"):
        raise invalid("volume_capability is missing")
    capability = request.volume_capability
    if capability.WhichOneof("access_type") != "mount":
        raise invalid("redoxfs serves files: use volumeMode Filesystem")
    if capability.mount.fs_type not in ("", SUBTYPE):
        raise invalid(f"fsType {capability.mount.fs_type!r}: leave it out, redoxfs is its own filesystem")
    mode = capability.access_mode.mode
    if mode == _MODES.UNKNOWN:
        raise invalid("the access mode is missing")
    if mode not in _READERS and not request.readonly:
        raise invalid(
            "redoxfs is read-only: set readOnly: true in the volume of the pod, or accessModes [ReadOnlyMany] in the "
            "PersistentVolume"
        )


def _pod(request: pb.NodePublishVolumeRequest, place: Place) -> str:
    """The pod, as namespace/name. Raises CsiError: INVALID_ARGUMENT unless Kubernetes says that it is the target's."""
    context = request.volume_context
    uid = context.get(POD_UID)
    if uid is None:
        raise invalid(f"the volume context has no {POD_UID}: the CSIDriver needs podInfoOnMount: true")
    if uid != place.pod_uid:
        raise invalid(f"the target path is of pod {place.pod_uid}, but the volume context of pod {uid}")
    return f"{context.get(POD_NAMESPACE, '?')}/{context.get(POD_NAME, uid)}"


def _method(call: Callable[[Any], Any], request_type: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except CsiError as error:
            code, line = error.code, str(error)
            log.warning("%s: %s: %s", call.__name__.lstrip("_"), code.name, line)
        except Exception:
            log.exception("a bug in redoxfs: please report it")
            code, line = grpc.StatusCode.INTERNAL, "a bug in redoxfs: the log of the plugin has more"
        return context.abort(code, line)  # which raises

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request_type.FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )
