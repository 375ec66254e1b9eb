"""Programs that copy, compare or search on a mount that a job reads: they get exact files, and take no turns."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from images import image, make_images, path_in
from machine import Machine
from patience import PATIENCE_S, until

CLASSES = {"ant": 40, "bee": 40}
MODES = {"page cache": ("-o", "page_cache"), "direct_io": ("-o", "direct_io"), "by itself": ()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of different sizes, so that a wrong size shows."""
    root = tmp_path_factory.mktemp("images")
    make_images(root, CLASSES)
    for at, path in enumerate(sorted(root.glob("train/*/*.png"))):
        name = str(path.relative_to(root))
        path.write_bytes(image(name, 0, at, 20_000 + 1_000 * at))
    return root


@contextmanager
def mounted(machine: Machine, source: Path, *options: str) -> Iterator[list[Path]]:
    """The paths of the files of a mount with little memory."""
    machine.ok("mount", "--classes", "dir", "--chunk-size", "4", "--memory", "20%", *options, source, machine.mnt)
    yield sorted(machine.mnt.glob("train/*/*.png"))
    machine.ok("umount", machine.mnt)


def tree(root: Path) -> dict[Path, bytes]:
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def run(*words: str | Path, **keywords: object) -> bytes:
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True, **keywords)  # type: ignore[call-overload]
    return done.stdout


def cp(mnt: Path, to: Path) -> None:
    run("cp", "-r", mnt / "train", to)


def rsync(mnt: Path, to: Path) -> None:
    run("rsync", "-a", f"{mnt}/train", to)


def tar(mnt: Path, to: Path) -> None:
    archive = to.with_suffix(".tar")
    # Of a file that is shorter or longer than its size, tar says so and fails.
    run("tar", "-C", mnt, "-cf", archive, "train")
    run("tar", "-C", to, "-xf", archive)


def sha256sum(mnt: Path, to: Path) -> None:
    """Copies the files whose sums are right."""
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in tree(to.parent / "kept").items())
    run("sha256sum", "-c", "--strict", cwd=mnt, input=sums.encode())
    shutil.copytree(to.parent / "kept", to, dirs_exist_ok=True)


@pytest.mark.parametrize("mode", MODES)
def test_copies_in_the_middle_of_an_epoch_are_right_and_take_no_turns(
    machine: Machine, source: Path, tmp_path: Path, mode: str
) -> None:
    shutil.copytree(source, tmp_path / "kept")
    whole = tree(source)
    with mounted(machine, source, *MODES[mode]) as paths, ExitStack() as ends:
        served: Counter[str] = Counter()
        for path in paths[::3]:
            served[path_in(path.read_bytes())] += 1
        # The job has these open, with other samples: the kernel has their sizes.
        kept_open = [ends.enter_context(path.open("rb", buffering=0)) for path in paths[1::3]]
        begun = [(file.read(1_000), os.fstat(file.fileno()).st_size) for file in kept_open]
        redirected = [begin for (begin, _), path in zip(begun, paths[1::3], strict=True) if path.name not in str(begin)]
        assert len(redirected) > len(begun) // 2
        for program in (cp, tar, rsync, sha256sum):
            to = tmp_path / program.__name__
            to.mkdir()
            program(machine.mnt, to)
            assert tree(to) == whole, program.__name__
        for file, (begin, size) in zip(kept_open, begun, strict=True):
            assert os.fstat(file.fileno()).st_size == size
            data = begin + file.read()
            assert len(data) == size
            served[path_in(data)] += 1
            file.close()
        for path in paths[2::3]:
            served[path_in(path.read_bytes())] += 1
        assert served == Counter(str(path) for path in whole)
        stats = machine.stats()
        assert stats["copied"] == 4 * len(whole)


JOB = """
import hashlib, mmap, os, sys
files = []
for line in sys.stdin:
    if line == "read\\n":
        break
    file = open(line.rstrip("\\n"), "rb")
    size = os.fstat(file.fileno()).st_size
    files.append((file, size, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)))
    print(size, flush=True)
for file, size, mapped in files:
    data = bytes(mapped)
    assert os.fstat(file.fileno()).st_size == size
    assert data == file.read()
    print(hashlib.sha256(data).hexdigest(), end=" ")
"""
"""Maps the files that it is told, and reads them at the end. A size that another program changes ends it by SIGBUS."""


COPY = """
import hashlib, os, sys
with open("/proc/self/comm", "w") as name:
    name.write("my-copier")
for line in sys.stdin:
    path = line.rstrip("\\n")
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        data = file.read()
        assert len(data) == size == os.fstat(file.fileno()).st_size, path
    print(hashlib.sha256(data).hexdigest(), flush=True)
"""
"""Copies the files that it is told, as a program of a name of its own."""


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_and_the_job_each_get_their_size_of_one_path(machine: Machine, source: Path, mode: str) -> None:
    whole = tree(source)
    exact = "--exact-for", "other,my-copier"
    with mounted(machine, source, *exact, *MODES[mode]) as paths, ExitStack() as ends:

        def start(script: str) -> Callable[[object], str]:
            """A function that tells a process a line, and returns its answer."""
            process = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True)
            ends.callback(process.communicate)
            ends.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            told, said = process.stdin, process.stdout

            def tell(line: object) -> str:
                print(line, file=told, flush=True)
                return said.readline().strip()

            return tell

        job, copy, sizes, copies = start(JOB), start(COPY), [], []
        # The kernel answers a stat of what is open by itself until it is known that such a program is there.
        copy(paths[0])
        for at, path in enumerate(paths):
            sizes.append(int(job(path)))
            copies.append(copy(path))
            # Not of each, since this gives the kernel the size that the job's map needs.
            assert at % 2 or path.stat().st_size == sizes[-1], "any other program sees what is open"
        assert copies == [hashlib.sha256(data).hexdigest() for data in whole.values()]
        assert sizes != [len(data) for data in whole.values()], "the job has other samples"
        assert sorted(job("read").split()) == sorted(copies)
        assert machine.stats()["copying"] == ["my-copier"]


SLOW_COPY = """
import sys
with open("/proc/self/comm", "w") as name:
    name.write("my-copier")
path, kept = sys.argv[1:]
file = open(path, "rb", buffering=0)
begin = file.read(100)
print(flush=True)
input()
sys.exit(begin + file.read() != open(kept, "rb").read())
"""
"""Copies half a file, waits for a line, and compares what it reads then with the source."""


def test_a_copy_goes_on_with_another_daemon(machine: Machine, source: Path) -> None:
    with mounted(machine, source, "--keeper", "--exact-for", "my-copier") as paths:
        words = (sys.executable, "-c", SLOW_COPY, paths[1], source / paths[1].relative_to(machine.mnt))
        with paths[1].open("rb", buffering=0) as own, subprocess.Popen(words, stdin=-1, stdout=-1) as copy:
            begin, size = own.read(100), os.fstat(own.fileno()).st_size
            assert copy.stdout is not None
            assert copy.stdout.readline() == b"\n"
            machine.kill(signal.SIGKILL)
            copy.communicate(b"\n", timeout=PATIENCE_S)
            assert copy.returncode == 0
            data = begin + own.read()
            assert os.fstat(own.fileno()).st_size == size == len(data)
            path_in(data)
        assert machine.stats()["keeper"]["restarts"] == 1


def test_programs_may_be_asked_to_get_what_the_job_gets(machine: Machine, source: Path, tmp_path: Path) -> None:
    whole = tree(source)
    with mounted(machine, source, "--redirect-for", "cp"):
        cp(machine.mnt, tmp_path / "copied")
        copied = tree(tmp_path / "copied")
        assert len(copied) == len(whole)
        assert list(copied.values()) != list(whole.values())
        assert Counter(map(path_in, copied.values())) == Counter(map(str, whole)), "each has its turn"
        assert machine.stats()["copied"] == 0


def test_a_program_that_a_shell_becomes_is_known(machine: Machine, source: Path) -> None:
    with mounted(machine, source) as paths:
        script = 'head -c 9 "$0" >/dev/null; read -r line <"$0"; sleep 0.2; exec sha256sum "$0"'
        data = (source / paths[2].relative_to(machine.mnt)).read_bytes()
        assert run("bash", "-c", script, paths[2]).split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a_status_names_the_sessions_that_take_turns(machine: Machine, source: Path) -> None:
    with mounted(machine, source) as paths:
        paths[0].read_bytes()
        # A shell opens a file and becomes another program, which has it open.
        viewer = ("sh", "-c", 'exec <"$1"; read -r _; echo; exec sleep 1000', "sh", paths[1])
        with subprocess.Popen(viewer, stdout=subprocess.PIPE, start_new_session=True) as other:
            assert other.stdout is not None
            other.stdout.readline()
            own = Path("/proc/self/comm").read_text().strip()
            sessions = {str(os.getsid(0)): [own], str(other.pid): ["sleep"]}

            def shown() -> bool:
                return bool(machine.stats()["sessions"] == sessions)

            until(shown, lambda: machine.stats()["sessions"])
            line = machine.ok("status", machine.mnt).stdout
            assert "2 take turns: " in line
            assert f"{other.pid} (sleep)" in line
            other.kill()
