"""An import notices that the C files are not those that the extension was built of, and says what to type."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import completed

import redoxfs
from redoxfs.native.sources import NotBuiltError, check, sums

assert redoxfs.__file__ is not None
PACKAGE = Path(redoxfs.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with its C files and its extension."""
    return shutil.copytree(PACKAGE, tmp_path / "redoxfs", ignore=shutil.ignore_patterns("__pycache__"))


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(package.parent / "cache")}
    return completed([sys.executable, *arguments], cwd=package.parent, env=environment)


def imports(package: Path) -> bool:
    done = run(package, "-c", "import redoxfs.native; print(redoxfs.native.__file__)")
    return done.returncode == 0 and Path(done.stdout.strip()).is_relative_to(package)


def complaint(package: Path) -> str:
    """The one line of a command that needs the extension and cannot have it."""
    done = run(package, "-m", "redoxfs", "verify", str(package.parent))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


def test_a_sum_depends_on_name_and_content(tmp_path: Path) -> None:
    assert sums(tmp_path) == ""
    (tmp_path / "a.c").write_text("int a;")
    (tmp_path / "b.h").write_text("int a;")
    (tmp_path / "b.py").write_text("a = 1")
    first = sums(tmp_path)
    assert [word.partition("=")[0] for word in first.split()] == ["a.c", "b.h"]
    os.utime(tmp_path / "a.c", (0, 0))
    assert sums(tmp_path) == first
    (tmp_path / "a.c").write_text("int b;")
    second = sums(tmp_path)
    assert second != first
    (tmp_path / "keeper").mkdir()
    (tmp_path / "keeper/c.c").write_text("int c;")
    assert sums(tmp_path).startswith(f"{second} keeper/c.c=")


@pytest.mark.parametrize(
    ("here", "named"),
    [("a.c=1 b.c=3", "b.c"), ("a.c=1", "b.c"), ("a.c=1 b.c=2 c.h=3", "c.h"), ("", None), ("a.c=1 b.c=2", None)],
)
def test_the_file_that_differs_is_named(here: str, named: str | None) -> None:
    built_of = "a.c=1 b.c=2 -fsanitize=address"
    if named is None:
        check(built_of, here)
    else:
        with pytest.raises(NotBuiltError, match=rf"/{named} has changed since .*; type: python /.*/build_native\.py"):
            check(built_of, here)


@pytest.mark.slow
def test_only_the_content_of_a_c_file_counts(package: Path) -> None:
    for path in (package / "native").glob("*.c"):
        path.touch()
    assert imports(package)
    with (package / "native/tree.h").open("a") as header:
        header.write("// one more line\n")
    assert not imports(package)
    assert complaint(package) == (
        f"redoxfs: {package}/native/tree.h has changed since the extension was built; "
        f"type: python {package.parent}/scripts/build_native.py"
    )


@pytest.mark.slow
def test_a_missing_extension_is_one_line(package: Path) -> None:
    (extension,) = (package / "native").glob("_native*.so")
    extension.unlink()
    assert complaint(package) == (
        f"redoxfs: the extension in {package}/native is not built; "
        f"type: python {package.parent}/scripts/build_native.py"
    )


@pytest.mark.slow
def test_an_extension_that_cannot_be_loaded_is_one_line(package: Path) -> None:
    (extension,) = (package / "native").glob("_native*.so")
    extension.write_bytes(b"not an ELF file")
    assert "cannot be loaded" in complaint(package)


@pytest.mark.slow
def test_an_install_without_c_files_has_nothing_to_compare(package: Path) -> None:
    for path in (package / "native").rglob("*.[ch]"):
        path.unlink()
    assert imports(package)
    (extension,) = (package / "native").glob("_native*.so")
    extension.rename(extension.with_name("_native.cpython-300-x86_64-linux-gnu.so"))
    assert "not for this Python" in complaint(package)
