"""The C half under sanitizers: each program tests/native/test_*.c, with the core of redoxfs/native (no Python).

A program tests one part, ends with 0, and prints what does not hold. Nothing is listed anywhere: a new one is found.
"""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from patience import completed

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "redoxfs/native"
PROGRAMS = sorted((ROOT / "tests/native").glob("test_*.c"))
# py_*.c and module.c are the types around the core.
CORE = sorted(path for path in NATIVE.glob("*.c") if not path.name.startswith("py_") and path.name != "module.c")

SANITIZERS = {
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "threads": ("-fsanitize=thread",),
}
# Any report ends the program with an exit code of its own.
OPTIONS = {
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=97:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "exitcode=97:halt_on_error=1:second_deadlock_stack=1",
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]


def build_script() -> ModuleType:
    """scripts/build_native.py, which has the compiler's options."""
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "scripts/build_native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(options: tuple[str, ...], folder: Path, source: Path) -> Path:
    """The object file of a C file. A warning is an error."""
    made = folder / source.with_suffix(".o").name
    command = ["gcc", *build_script().OPTIONS, "-Werror", *options, "-c", source, "-o", made]
    done = completed(command)
    assert done.returncode == 0, done.stderr
    return made


def all_compiled(options: tuple[str, ...], folder: Path, sources: list[Path]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(partial(compiled, options, folder), sources))


@pytest.fixture(scope="module", params=SANITIZERS)
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    """A sanitizer, and the object files of the core that are compiled for it."""
    # Less optimized than the real thing, for reports with true lines.
    return request.param, all_compiled((*SANITIZERS[request.param], "-O1"), tmp_path_factory.mktemp("core"), CORE)


def run(program: Path) -> subprocess.CompletedProcess[str]:
    # Older sanitizers cannot place their memory beside addresses that newer kernels choose at random. A container may
    # forbid to switch that off.
    fixed: tuple[str, ...] = ("setarch", "-R")
    if subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode:
        fixed = ()
    return completed([*fixed, program], env=os.environ | OPTIONS, cwd=program.parent)


@pytest.mark.parametrize("source", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_the_core_is_clean_under_a_sanitizer(core: tuple[str, list[Path]], source: Path, tmp_path: Path) -> None:
    sanitizer, objects = core
    options = (*SANITIZERS[sanitizer], "-O1", f"-I{NATIVE}")
    own = compiled(options, tmp_path, source)
    program = tmp_path / source.stem
    subprocess.run(["gcc", *SANITIZERS[sanitizer], "-pthread", own, *objects, "-o", program], check=True)
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("page_bytes", [16 << 10, 64 << 10])
def test_buffers_keep_to_their_memory_with_larger_pages(page_bytes: int, tmp_path: Path) -> None:
    options = (f"-DREDOX_PAGE_BYTES={page_bytes}", f"-I{NATIVE}")
    sources = [ROOT / "tests/native/test_buffer.c", NATIVE / "buffer.c"]
    program = tmp_path / "test_buffer"
    subprocess.run(["gcc", "-pthread", *all_compiled(options, tmp_path, sources), "-o", program], check=True)
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_sanitizers_report_what_they_are_for(tmp_path: Path) -> None:
    faults = {
        "memory": "char *p = malloc(4); free(p); return p[0];",
        "threads": "pthread_t t; pthread_create(&t, 0, add, 0); add(0); return pthread_join(t, 0);",
    }
    for sanitizer, fault in faults.items():
        source = tmp_path / f"{sanitizer}.c"
        source.write_text(
            "#include <pthread.h>\n#include <stdlib.h>\nint n;\n"
            "void *add(void *x) { for (int i = 0; i < 100000; i++) { n++; } return x; }\n"
            f"int main(void) {{ {fault} }}\n"
        )
        program = tmp_path / sanitizer
        options = ("-g", "-w", "-pthread", *SANITIZERS[sanitizer])
        subprocess.run(["gcc", *options, source, "-o", program], check=True)
        assert run(program).returncode == 97


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_extension_compiles_without_a_warning(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    include = f"-I{sysconfig.get_path('include')}"

    def compile_one(source: Path) -> str:
        command = [compiler, *build_script().OPTIONS, "-Werror", include, "-c", source, "-o", "/dev/null"]
        return completed(command).stderr

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        assert "".join(threads.map(compile_one, sorted(NATIVE.glob("*.c")))) == ""
