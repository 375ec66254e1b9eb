"""What a user installs: the source distribution, and the wheel that is built from it, in a venv of their own.

Nothing is fetched. The build runs without isolation, and the venv takes the dependencies from where the tests have
them. The source distribution is built from the files of this clone, so the wheel is of the code that is tested.
"""

import json
import os
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from images import make_images
from patience import completed

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, pkgutil, redoxfs
for module in pkgutil.walk_packages(redoxfs.__path__, "redoxfs."):
    # The last two ask for Ray and PyTorch, which are extras.
    if module.name not in ("redoxfs.__main__", "redoxfs.ray", "redoxfs.torch"):
        importlib.import_module(module.name)
print(redoxfs.__file__)
"""

METADATA = """
import importlib.metadata, json
metadata = importlib.metadata.metadata("redoxfs")
print(json.dumps([metadata["License-Expression"], metadata["Author"], metadata.get_all("Classifier")]))
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    homes = {f"XDG_{name}_HOME": str(cwd / name.lower()) for name in ("CACHE", "STATE")}
    done = completed(command, cwd=cwd, env=environment | homes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_built(path: Path) -> bool:
    return path.suffix == ".so" or path.name == "redoxfs-keeper"


def build(source: Path, out: Path, *options: str) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *options, source, cwd=out.parent)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution and the wheel that was built from it."""
    dist = tmp_path_factory.mktemp("package") / "dist"
    build(ROOT, dist)
    return dist


def copy_of_the_clone(folder: Path) -> Path:
    left_out = (".git", ".venv*", "build", "dist", "site", "__pycache__", ".*_cache", ".hypothesis")
    return shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*left_out))


def make_venv(venv: Path, *what: str | Path) -> Path:
    """A venv with redoxfs, installed as told. The dependencies are those of the tests, but not their redoxfs."""
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    (site_packages,) = venv.glob("lib/python3*/site-packages")
    # A .pth file names folders whose own .pth files are not read: an editable redoxfs there is not found.
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", *what)
    run(sys.executable, "-m", "pip", "--python", venv / "bin/python", *install, cwd=venv.parent)
    return venv


@pytest.fixture(scope="module")
def venv(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return make_venv(dist.parent / "venv", wheel)


def test_the_source_distribution_has_all_that_a_contributor_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "LICENSE", "PKG-INFO", "README.md", "CONTRIBUTING.md"):
        assert needed in names
    for folder in ("proto", "redoxfs", "scripts", "tests"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert {path.relative_to(ROOT).as_posix() for path in files if not is_built(path)} <= names
    hidden = {name for name in names if name.startswith(".") or "__pycache__" in name}
    assert hidden <= {".gitignore"}
    assert not [name for name in names if name.endswith(".o") or is_built(Path(name))]


def test_the_wheel_has_one_extension_the_keeper_and_no_c_file(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        native = {name.rpartition("/")[2] for name in archive.namelist() if name.startswith("redoxfs/native/")}
    extension = "_native" + sysconfig.get_config_var("EXT_SUFFIX")
    assert native == {"__init__.py", "sources.py", "_native.pyi", extension, "redoxfs-keeper"}
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-linux_" in wheel.name


def test_the_wheel_is_the_same_from_the_clone_and_from_the_sdist(dist: Path, tmp_path: Path) -> None:
    # What lies around in a clone, such as the extension of another Python, does not get into a wheel.
    clone = copy_of_the_clone(tmp_path)
    (clone / "redoxfs/native/_native.cpython-300-x86_64-linux-gnu.so").touch()
    build(clone, tmp_path / "direct", "--wheel")
    contents = []
    for folder in (dist, tmp_path / "direct"):
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert contents[0] == contents[1]


def test_the_installed_command_works_and_the_wheel_is_whole(venv: Path, tmp_path: Path) -> None:
    make_images(tmp_path / "data", {"cat": 3, "dog": 3})
    version = run(venv / "bin/redoxfs", "--version", cwd=tmp_path)
    found = json.loads(run(venv / "bin/redoxfs", "inspect", tmp_path / "data", "--json", cwd=tmp_path))
    module = Path(run(venv / "bin/python", "-c", IMPORT_ALL, cwd=tmp_path).strip())
    assert version.startswith("redoxfs ")
    assert found["files"] == 6
    assert module.is_relative_to(venv)
    assert (module.parent / "py.typed").is_file()
    assert os.access(module.parent / "native/redoxfs-keeper", os.X_OK)
    page = (venv / "share/man/man1/redoxfs.1").read_text()
    assert page == run(sys.executable, ROOT / "scripts/man_page.py", cwd=tmp_path)
    assert page.startswith('.TH "REDOXFS" 1')


@pytest.mark.long
def test_an_editable_install_builds_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("editables", reason="not installed; the extra `dev` has it")
    # It is built twice and runs a moment, so to optimize it would be most of the work.
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {sysconfig.get_config_var("CC")} "$@" -O0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    clone = copy_of_the_clone(tmp_path)
    (module,) = (clone / "redoxfs/native").glob("_native*.so")
    module.unlink()
    keeper = module.with_name("redoxfs-keeper")
    keeper.unlink()
    venv = make_venv(tmp_path / "venv", "--no-build-isolation", "--editable", clone)
    found = run(venv / "bin/python", "-c", "from redoxfs.native import _native; print(_native.__file__)", cwd=tmp_path)
    assert Path(found.strip()) == module
    assert os.access(keeper, os.X_OK)
    source = clone / "redoxfs/native/buffer.c"
    source.write_text(source.read_text().replace("STEPS = 8", "STEPS = 4"))
    done = completed([venv / "bin/redoxfs", "verify", tmp_path])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"redoxfs: {source} ")
    run(venv / "bin/python", clone / "scripts/build_native.py", cwd=tmp_path)
    run(venv / "bin/python", "-c", "import redoxfs.native", cwd=tmp_path)


def test_the_metadata_has_license_authors_and_tested_pythons(venv: Path, tmp_path: Path) -> None:
    license_expression, author, classifiers = json.loads(run(venv / "bin/python", "-c", METADATA, cwd=tmp_path))
    assert (license_expression, author) == ("Apache-2.0", "The redoxfs authors")
    ours = f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}"
    assert ours in classifiers
