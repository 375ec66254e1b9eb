"""The generated code is what scripts/proto makes of proto/, to the byte."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from google.protobuf import wrappers_pb2
from google.protobuf.message import Message
from patience import PATIENCE_S

from redoxfs.csi.v1 import csi_pb2 as csi

ROOT = Path(__file__).parent.parent
MADE = ("peers/v1/peers_pb2.py", "peers/v1/peers_pb2.pyi", "csi/v1/csi_pb2.py", "csi/v1/csi_pb2.pyi")


def wanted_version() -> str:
    """The version of grpcio-tools that pyproject.toml names."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    (version,) = (str(line).removeprefix("grpcio-tools==") for line in told if line.startswith("grpcio-tools=="))
    return version


def test_the_generated_code_is_what_the_script_makes(tmp_path: Path) -> None:
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("grpcio-tools is not installed")
    if version != wanted_version():
        pytest.skip(f"grpcio-tools {version} may make other code than {wanted_version()}")
    subprocess.run(
        [ROOT / "scripts/proto", tmp_path], check=True, env={**os.environ, "PYTHON": sys.executable}, timeout=PATIENCE_S
    )
    for name in MADE:
        assert (tmp_path / name).read_bytes() == (ROOT / "redoxfs" / name).read_bytes()


# Made with the whole csi.proto of the specification. The publish context, the path of the stage, the group and the
# secret are fields that redoxfs does not use.
PUBLISH = (
    b'\n\x02id\x12\x06\n\x01a\x12\x01b\x1a\x06/stage"\x07/target*\x13\x12\r\n\x04fuse\x12\x02ro\x1a\x015\x1a\x02\x08\x030\x01'
    b":\x06\n\x01s\x12\x01tB\x0f\n\nchunk-size\x12\x018"
)
ANSWERS: list[tuple[Message, bytes]] = [
    (csi.NodeUnpublishVolumeRequest(volume_id="id", target_path="/target"), b"\n\x02id\x12\x07/target"),
    (csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume()), b"\n\x00"),
    (csi.GetPluginInfoResponse(name="n", vendor_version="v"), b"\n\x01n\x12\x01v"),
    (csi.ProbeResponse(ready=wrappers_pb2.BoolValue(value=True)), b"\n\x02\x08\x01"),
    (csi.NodeGetInfoResponse(node_id="node"), b"\n\x04node"),
]


def test_messages_of_csi_have_the_numbers_of_the_specification() -> None:
    request = csi.NodePublishVolumeRequest.FromString(PUBLISH)
    assert (request.volume_id, request.target_path, request.readonly) == ("id", "/target", True)
    assert dict(request.volume_context) == {"chunk-size": "8"}
    capability = request.volume_capability
    assert (capability.mount.fs_type, list(capability.mount.mount_flags)) == ("fuse", ["ro"])
    assert capability.access_mode.mode == csi.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY
    for message, on_the_wire in ANSWERS:
        assert message.SerializeToString() == on_the_wire
    assert csi.VolumeCapability.AccessMode.Mode.items() == [
        ("UNKNOWN", 0),
        ("SINGLE_NODE_WRITER", 1),
        ("SINGLE_NODE_READER_ONLY", 2),
        ("MULTI_NODE_READER_ONLY", 3),
        ("MULTI_NODE_SINGLE_WRITER", 4),
        ("MULTI_NODE_MULTI_WRITER", 5),
        ("SINGLE_NODE_SINGLE_WRITER", 6),
        ("SINGLE_NODE_MULTI_WRITER", 7),
    ]
