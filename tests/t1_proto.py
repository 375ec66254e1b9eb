"""The generated code is what scripts/proto makes of proto/, to the byte."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import PATIENCE_S

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
