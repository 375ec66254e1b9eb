"""`redoxfs.served`: the file whose bytes an open returned."""

import doctest
import errno
import multiprocessing
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from images import identity, make_full_images
from machine import Machine
from patience import completed

import redoxfs
from redoxfs import served_files

CLASSES = {"cat": 60, "dog": 45}
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, which nothing changes."""
    root = make_full_images(tmp_path_factory.mktemp("images"), CLASSES)
    (root / "train/notes").write_text("served as it is\n")
    return root


@pytest.fixture
def root(machine: Machine, source: Path, mode: list[str]) -> Iterator[Path]:
    memory = machine.inspect(source, *OPTIONS)["memory_for"]["25%"]
    machine.ok("mount", source, machine.mnt, *OPTIONS, *mode, "--memory", str(memory))
    yield machine.mnt / "train"
    assert machine.stats()["errors"] == 0


@pytest.fixture(params=["default"])
def mode(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "default" else ["-o", request.param]


def images_of(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.png"))


def sample_in(data: bytes) -> str:
    return identity(data, "train", CLASSES)[1]


every_mode = pytest.mark.parametrize("mode", ["default", "page_cache", "direct_io"], indirect=True)


@every_mode
def test_an_open_file_names_the_file_whose_bytes_it_reads(machine: Machine, root: Path) -> None:
    redirected = 0
    for path in images_of(root):
        with open(path, "rb") as file:
            told = [redoxfs.served(file, machine.mnt), redoxfs.served(file.fileno(), machine.mnt)]
            assert told == [sample_in(file.read())] * 2
        redirected += told[0] != str(path.relative_to(machine.mnt))
        assert redoxfs.served(path) == str(machine.mnt / told[0]), "the last answer"
    assert redirected > 50


def test_an_open_file_keeps_its_answer_whatever_others_open(machine: Machine, root: Path) -> None:
    paths = images_of(root)
    with open(paths[0], "rb") as first:
        told = redoxfs.served(first, machine.mnt)
        others = threading.Thread(target=lambda: [path.read_bytes() for path in paths * 2 if path != paths[0]])
        others.start()
        others.join()
        assert redoxfs.served(first, machine.mnt) == told == sample_in(first.read())


def test_a_path_names_the_answer_of_its_last_open(machine: Machine, root: Path) -> None:
    path = images_of(root)[0]
    answers: list[str] = []
    for _ in range(4):
        reading = threading.Thread(target=lambda: answers.append(sample_in(path.read_bytes())))
        reading.start()
        reading.join()
        assert redoxfs.served(path, machine.mnt) == answers[-1]
    assert len(set(answers)) > 1


def test_many_files_are_named_in_order(machine: Machine, root: Path, source: Path) -> None:
    paths = [*images_of(root)[:10], root / "notes"]
    expected = [*(sample_in(path.read_bytes()) for path in paths[:10]), "train/notes"]
    assert redoxfs.served_many(paths, machine.mnt) == expected
    assert redoxfs.served_many([*paths[:2], source / "train/notes"])[2] == str(source / "train/notes")


def test_a_child_names_the_answers_of_descriptors_it_inherits(machine: Machine, root: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with open(images_of(root)[0], "rb") as file:
        child = context.Process(target=lambda: answers.put(redoxfs.served(file, machine.mnt)))
        child.start()
        assert answers.get() == sample_in(file.read())
        child.join()


def test_asking_takes_no_turn_and_reserves_nothing(machine: Machine, root: Path) -> None:
    paths = images_of(root)
    for path in paths[:5]:
        path.read_bytes()
    before = machine.stats()
    for path in paths:
        if path in paths[:5]:
            redoxfs.served(path)
        else:
            with pytest.raises(LookupError, match="has not served it yet"):
                redoxfs.served(path)
    after = machine.stats()
    assert (after["turns"], after["reservations"]) == (before["turns"], 0)
    assert after["redirected"] + after["exact"] == before["redirected"] + before["exact"]


def test_exact_files_and_links_are_named_by_their_own_path(machine: Machine, root: Path, tmp_path: Path) -> None:
    path = images_of(root)[0]
    with open(machine.mnt / ".redoxfs/exact" / path.relative_to(machine.mnt), "rb") as exact:
        assert redoxfs.served(exact) == str(path)
    sample = sample_in(path.read_bytes())
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").symlink_to(machine.mnt)
    assert redoxfs.served(tmp_path / "link", tmp_path / "folder") == sample


def test_what_is_no_file_of_the_dataset_is_refused(machine: Machine, root: Path) -> None:
    with pytest.raises(IsADirectoryError):
        redoxfs.served(root)
    for name in ("stats.json", "served-by-inode"):
        with pytest.raises(ValueError, match="is not a file of the dataset"):
            redoxfs.served(machine.mnt / ".redoxfs" / name)
    with pytest.raises(FileNotFoundError):
        redoxfs.served(root / "missing")
    fd = os.open(root / "notes", os.O_RDONLY)
    os.close(fd)
    with pytest.raises(OSError) as closed:
        redoxfs.served(fd)
    assert closed.value.errno in (errno.ENOENT, errno.EBADF)


def test_a_mount_that_redirects_nothing_names_each_file_itself(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "none")
    for path in images_of(machine.mnt / "train")[:5]:
        with open(path, "rb") as file:
            assert redoxfs.served(file) == str(path)


def test_a_mount_of_a_subfolder_elsewhere_names_files_there(machine: Machine, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = (
        "import redoxfs, sys, pathlib\n"
        "with open(sorted(pathlib.Path(sys.argv[1]).glob('*.png'))[0], 'rb') as file:\n"
        "    data = file.read()\n"
        "    name = redoxfs.served(file, sys.argv[1])\n"
        "    assert data.endswith(name.encode() + b'\\n' + data[-4:]), name\n"
    )
    bind = shlex.join(["mount", "--bind", str(root / "cat"), str(tmp_path / "elsewhere")])
    read = shlex.join([sys.executable, "-c", script, str(tmp_path / "elsewhere")])
    subprocess.run(["unshare", "--mount", "sh", "-ec", f"{bind}; {read}"], check=True, env=machine.environment)


ANOTHER_USER = """
import os, redoxfs, sys
public, private, exact = (open(f"/mnt/{name}", "rb") for name in sys.argv[1:])
served = redoxfs.served
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(served(public, "/mnt"), served(exact, "/mnt"))
for ask in (
    lambda: served(private),
    lambda: os.listdir("/mnt/.redoxfs/batches"),
    lambda: os.stat("/mnt/.redoxfs/batches/1-1-1"),
    lambda: open("/mnt/.redoxfs/served-by-inode"),
):
    try:
        ask()
    except PermissionError:
        continue
    sys.exit("may ask")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_learns_of_no_file_in_a_directory_it_may_not_enter(machine: Machine, tmp_path: Path) -> None:
    source = make_full_images(tmp_path / "images", {"cat": 5, "dog": 5})
    (source / "train/dog").chmod(0o700)
    machine.ok("mount", source, machine.mnt, "--classes", "dir", "-o", "allow_other")
    cat, dog = (min((source / "train" / name).iterdir()).relative_to(source) for name in ("cat", "dog"))
    bind = shlex.join(["mount", "--bind", str(machine.mnt), "/mnt"])
    read = shlex.join([sys.executable, "-c", ANOTHER_USER, str(cat), str(dog), f".redoxfs/exact/{cat}"])
    done = completed(["unshare", "--mount", "sh", "-ec", f"{bind}; {read}"], env=machine.environment)
    assert done.returncode == 0, done.stderr
    answer, exact = done.stdout.split()
    assert answer == (machine.mnt / ".redoxfs/served" / cat).read_text().strip()
    assert exact == str(cat)


def test_an_open_file_is_named_after_the_daemon_died(machine: Machine, root: Path) -> None:
    path = images_of(root)[0]
    with open(path, "rb") as file:
        told = redoxfs.served(file)
        machine.ok("restart", machine.mnt)
        assert redoxfs.served(file) == told == str(machine.mnt / sample_in(file.read()))


def test_the_examples_are_right() -> None:
    tried = doctest.testmod(served_files)
    assert tried.attempted > 2
    assert not tried.failed
