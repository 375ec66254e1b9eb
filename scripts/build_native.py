"""Builds the C extension `redoxfs.native._native`, and the keeper beside it: for a wheel, and in place.

    python scripts/build_native.py      builds it in place, after a C file was edited

Arguments go to the compiler of the extension. pyproject.toml names this module as a build hook, so `pip install` runs
it: an editable install builds in place too. The hook skips the build if both were built from the same C files. It also
makes the manual page.

setuptools drives the compiler. Rejected: meson-python, which needs a file at the top level, and whose editable installs
run a build tool at each import, so at the start of each command and each daemon.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[1]
NATIVE = Path("redoxfs/native")
KEEPER = ROOT / NATIVE / "redoxfs-keeper"
# Where setuptools puts it: another machine's name is in the variable when scripts/wheel compiles for one.
SUFFIX = os.environ.get("SETUPTOOLS_EXT_SUFFIX") or sysconfig.get_config_var("EXT_SUFFIX")
MODULE = ROOT / NATIVE / f"_native{SUFFIX}"

WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
OPTIONS = ("-std=c11", "-O2", "-g", "-pthread", "-fvisibility=hidden", "-D_GNU_SOURCE", *WARNINGS)


def sums() -> str:
    """The sums of the C files, which the extension carries: `redoxfs.native.sources.sums`."""
    # Without its package, which cannot be imported before it is built.
    spec = importlib.util.spec_from_file_location("sources", ROOT / NATIVE / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    sources = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sources)
    return sources.sums()


def is_current() -> bool:
    """Whether what is in place was built from the C files here, without further options."""
    return MODULE.exists() and KEEPER.exists() and f"{sums()}\0".encode() in MODULE.read_bytes()


def build(*options: str) -> None:
    """Compile in place. ``options`` are added to the compiler's for the extension.

    Raises:
        setuptools.errors.CompileError, setuptools.errors.LinkError
    """
    os.chdir(ROOT)
    # An extension with options of its own, such as a sanitizer's, is not the one that a wheel gets.
    stamp = " ".join((sums(), *(option for option in options if not option.startswith("-W"))))
    extension = Extension(
        "redoxfs.native._native",
        sources=sorted(map(str, NATIVE.glob("*.c"))),
        define_macros=[("REDOX_SOURCES", f'"{stamp}"')],
        # Without the folder's name in it, the extension is the same from the clone and from a source distribution.
        extra_compile_args=[*OPTIONS, f"-ffile-prefix-map={ROOT}=.", *options],
        extra_link_args=["-pthread", *(option for option in options if option.startswith("-fsanitize"))],
    )
    command = build_ext(Distribution({"name": "redoxfs", "ext_modules": [extension]}))
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build") as folder:
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        command.run()
        compiler = command.compiler
        prefix_map = f"-ffile-prefix-map={ROOT}=."
        objects = compiler.compile(
            [str(NATIVE / "keeper/keeper.c")], output_dir=folder, extra_postargs=[*OPTIONS, prefix_map]
        )
        compiler.link_executable(objects, KEEPER.name, output_dir=folder)
        os.replace(Path(folder) / KEEPER.name, KEEPER)
        # At once: programs that start meanwhile find the old one or the new one, and those that run keep theirs.
        os.replace(command.get_ext_fullpath(extension.name), MODULE)


class NativeBuild(BuildHookInterface[Any]):
    """Adds the extension and the manual page to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # hatchling's signature
        if not is_current():
            build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"] += [f"/{built.relative_to(ROOT)}" for built in (MODULE, KEEPER)]
        page = ROOT / "build/redoxfs.1"
        page.parent.mkdir(exist_ok=True)
        # The grammar of the command line needs no other package.
        page.write_bytes(subprocess.check_output([sys.executable, ROOT / "scripts/man_page.py"]))
        build_data["shared_data"][str(page)] = "share/man/man1/redoxfs.1"


if __name__ == "__main__":
    build(*sys.argv[1:])
