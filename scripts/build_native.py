"""Builds the C extension `redoxfs.native._native`: for a wheel, and in place.

    python scripts/build_native.py      builds it in place, after a C file was edited

pyproject.toml names this module as a build hook, so `pip install` runs it: an editable install builds in place too.
setuptools drives the compiler. Rejected: meson-python, which needs a file at the top level, and whose editable installs
run a build tool at each import, so at the start of each command and each daemon.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[1]
NATIVE = Path("redoxfs/native")

WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
OPTIONS = ("-std=c11", "-O2", "-g", "-pthread", "-fvisibility=hidden", "-D_GNU_SOURCE", *WARNINGS)


def build(*options: str) -> Path:
    """Compile the extension in place, and return its path. ``options`` are added to the compiler's.

    Raises:
        setuptools.errors.CompileError, setuptools.errors.LinkError
    """
    os.chdir(ROOT)
    extension = Extension(
        "redoxfs.native._native",
        sources=sorted(map(str, NATIVE.glob("*.c"))),
        depends=sorted(map(str, NATIVE.glob("*.h"))),
        extra_compile_args=[*OPTIONS, *options],
        extra_link_args=["-pthread"],
    )
    command = build_ext(Distribution({"name": "redoxfs", "ext_modules": [extension]}))
    command.inplace = True
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return ROOT / command.get_ext_fullpath(extension.name)


class NativeBuild(BuildHookInterface[Any]):
    """Adds the extension to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        module = build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"/{module.relative_to(ROOT)}")


if __name__ == "__main__":
    build(*sys.argv[1:])
