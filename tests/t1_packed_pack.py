"""Packing: a source that changes, a pack killed at any step, and a destination that is not empty."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packs import (
    WENT_ON,
    Options,
    catalog_of,
    end_or_hang,
    end_the_parent_and_hang,
    end_this_process,
    files_in,
    flip,
    interrupt_the_end,
    opened,
    pack_here,
    reseal,
    shards_of,
)
from patience import completed

from redoxfs.cli import main
from redoxfs.dataset import SourceError
from redoxfs.launch.forks import forked
from redoxfs.linux import durable
from redoxfs.packed import MANIFEST, DamagedDatasetError, PackError, is_packed, load_index, verify
from redoxfs.packed.index import FOLDER, PACKING
from redoxfs.packed.packing import DRAFT, LOCK
from redoxfs.packed.workers import Done, Work, WorkerEndedError, each_shard

pytestmark = pytest.mark.slow

OPTIONS = Options(chunk_size=3, shard_bytes=4000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(6):
            (root / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * 30 * number)
    (root / "empty").mkdir()
    (root / "notes.txt").write_text("of no class")
    (root / "link").symlink_to("notes.txt")
    return root


@pytest.fixture
def reference(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """The result of an undisturbed pack."""
    pack_here(source, tmp_path / "reference", OPTIONS)
    return files_in(tmp_path / "reference")


# A source that changes


def remove(path: Path) -> None:
    path.unlink()


def put_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def shorten(path: Path) -> None:
    os.truncate(path, 1)


def lengthen(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def rewrite_and_set_the_time_back(path: Path) -> None:
    known = path.stat()
    path.write_bytes(b"x" * known.st_size)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (known.st_size, known.st_mtime_ns)


def close_to_others(path: Path) -> None:
    path.chmod(0o600)


@pytest.mark.parametrize(
    "change",
    [
        remove,
        put_directory,
        put_fifo,
        put_link,
        shorten,
        lengthen,
        rewrite_and_set_the_time_back,
        close_to_others,
    ],
    ids=lambda change: change.__name__,
)
def test_a_file_that_changes_after_the_scan_fails_the_pack_by_name(
    source: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    catalog = catalog_of(source)
    change(source / "dog/4.jpg")
    with pytest.raises(SourceError, match=r"\Adog/4\.jpg.*\Z"):
        pack_here(source, tmp_path / "dst", OPTIONS, catalog=catalog)
    assert not (tmp_path / "dst" / MANIFEST).exists()


def add_file(source: Path) -> None:
    (source / "empty/new.jpg").touch()


def add_and_remove_file(source: Path) -> None:
    add_file(source)
    (source / "empty/new.jpg").unlink()


def close_directory(source: Path) -> None:
    (source / "empty").chmod(0o700)


def remove_directory(source: Path) -> None:
    (source / "empty").rmdir()


def put_file_for_directory(source: Path) -> None:
    remove_directory(source)
    (source / "empty").touch()


@pytest.mark.parametrize(
    "change",
    [add_file, add_and_remove_file, close_directory, remove_directory, put_file_for_directory],
    ids=lambda change: change.__name__,
)
def test_a_directory_that_changes_after_the_scan_fails_the_pack(
    source: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    catalog = catalog_of(source)
    change(source)
    # If an entry was added or removed, its directory has changed too, and the error may name either.
    with pytest.raises(SourceError, match=r"\A(empty|\.)\W.*\Z"):
        pack_here(source, tmp_path / "dst", OPTIONS, catalog=catalog)
    assert not (tmp_path / "dst" / MANIFEST).exists()


def test_a_source_that_no_longer_changes_packs_into_a_new_folder(source: Path, tmp_path: Path) -> None:
    catalog = catalog_of(source)
    lengthen(source / "dog/4.jpg")
    with pytest.raises(SourceError, match="remove DST"):
        pack_here(source, tmp_path / "dst", OPTIONS, catalog=catalog)
    with pytest.raises(PackError, match="unfinished pack of another source"):
        pack_here(source, tmp_path / "dst", OPTIONS)
    shutil.rmtree(tmp_path / "dst")
    pack_here(source, tmp_path / "dst", OPTIONS)
    assert verify(tmp_path / "dst", jobs=1).problems == ()


def test_a_limit_of_the_size_of_files_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [
        sys.executable,
        "-m",
        "redoxfs",
        "pack",
        str(source),
        str(tmp_path / "dst"),
        "--classes",
        "dir",
        "--jobs",
        "1",
    ]
    done = completed(["prlimit", "--fsize=8192", *command])
    assert done.returncode == 4
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"redoxfs: {tmp_path / 'dst'}: File too large; ")
    assert "smaller --shard-size" in said
    assert "ulimit -f" in said


# A system without semaphores


def without_sem_open(patch: pytest.MonkeyPatch) -> None:
    """As where Python is built without it."""
    patch.delitem(sys.modules, "multiprocessing.synchronize", raising=False)
    patch.delattr("_multiprocessing.SemLock")


def without_shm(patch: pytest.MonkeyPatch) -> None:
    """As where /dev/shm cannot be written."""

    def refuse(*_: object, **_named: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    patch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)


@pytest.mark.parametrize("lack", [without_sem_open, without_shm])
def test_without_semaphores_one_process_packs_and_verifies(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    lack: Callable[[pytest.MonkeyPatch], None],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lack(monkeypatch)
    dst = str(tmp_path / "dst")
    options = ["--classes", "dir", "--chunk-size", "3", "--shard-size", "4000", "--jobs", "2"]
    for words in (["pack", str(source), dst, *options], ["verify", dst, "--jobs", "2"]):
        assert main(words) == 0
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert said.count("one process does all the work, since the system gives no semaphores") == 1
    assert len(shards_of(tmp_path / "dst")) > 1
    assert verify(tmp_path / "dst", jobs=2).problems == ()
    assert main(["verify", dst, "--jobs", "1"]) == 0
    assert "semaphores" not in capfd.readouterr().err


def test_a_pack_in_a_directory_that_was_removed_is_whole_and_a_relative_path_is_refused_in_one_line(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    dst = str(tmp_path / "dst")
    options = ["--classes", "dir", "--chunk-size", "3", "--shard-size", "4000", "--jobs", "2"]
    assert main(["pack", str(source), dst, *options]) == 0
    assert main(["verify", dst, "--jobs", "2"]) == 0
    capfd.readouterr()
    for words in (["verify", "dst"], ["pack", str(source), "dst"], ["mount", "data", str(tmp_path)]):
        assert main(words) == 2
        said = capfd.readouterr().err
        assert said.startswith("redoxfs: the current directory was removed")
        assert said.count("\n") == 1


# A pack that is killed


When = Callable[[str, tuple[object, ...]], bool]


def killed(source: Path, dst: Path, when: When) -> bool:
    """Pack in a process that is killed at the first audit event for which ``when`` is true. Return whether it was."""
    child = os.fork()
    if not child:
        try:

            def watch(event: str, arguments: tuple[object, ...]) -> None:
                if event != "os.kill" and when(event, arguments):
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(watch)
            pack_here(source, dst, OPTIONS)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


_THROUGH_FD = re.compile(r"/proc/[0-9]+/fd/[0-9]+(?=/)")


def named(path: object) -> str:
    """The path behind one that leads through a descriptor of a folder."""
    return _THROUGH_FD.sub(lambda found: os.readlink(found[0]), str(path))


def is_change(dst: Path, event: str, arguments: tuple[object, ...]) -> bool:
    events = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "open")
    return event in events and named(arguments[0]).startswith(str(dst))


def change_number(number: int, dst: Path) -> When:
    """True for the change of that number below ``dst``, from 1."""
    left = number

    def when(event: str, arguments: tuple[object, ...]) -> bool:
        nonlocal left
        left -= is_change(dst, event, arguments)
        return not left

    return when


def changes_of_a_pack(source: Path, dst: Path) -> int:
    reading, writing = os.pipe()
    assert not killed(source, dst, lambda event, given: is_change(dst, event, given) and not os.write(writing, b"."))
    os.close(writing)
    with open(reading, "rb") as told:
        return len(told.read())


def before_the_index(dst: Path) -> When:
    """When all shards are done, and before the index and the manifest are put in place."""
    return lambda event, arguments: event == "os.rename" and named(arguments[1]) == str(dst / FOLDER)


def test_a_pack_killed_anywhere_is_unfinished_and_resumes(
    source: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    steps = changes_of_a_pack(source, tmp_path / "counted")
    assert steps > 100
    seen: set[str] = set()
    # Steps are closer together at the end, where files are moved into place.
    for step in (*range(1, steps - 60, 20), *range(steps - 60, steps + 1, 3)):
        dst = tmp_path / f"again-{step}"
        assert killed(source, dst, change_number(step, dst))
        names = files_in(dst) if dst.exists() else {}
        finished = {name: (dst / name).stat() for name in names if "/" not in name and name.endswith(".tar")}
        for name in finished:
            assert names[name] == reference[name]
        if MANIFEST in names:
            seen.add("whole")
            assert verify(dst, jobs=1).problems == ()
        elif dst.exists():
            seen.add("shards" if finished else "nothing")
            with pytest.raises(DamagedDatasetError):
                load_index(dst)
        packed = pack_here(source, dst, OPTIONS)
        assert (packed.kept, packed.rewritten) == (0 if packed.already else len(finished), 0)
        assert files_in(dst) == reference
        for name, known in finished.items():
            now = (dst / name).stat()
            assert (now.st_ino, now.st_mtime_ns) == (known.st_ino, known.st_mtime_ns)
    assert seen >= {"nothing", "shards"}


def test_an_unfinished_pack_is_refused_and_resumed(source: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    assert killed(source, dst, before_the_index(dst))
    with opened(dst) as fd:
        assert is_packed(fd)
    for use in (load_index, lambda folder: verify(folder, jobs=1)):
        with pytest.raises(DamagedDatasetError, match="the pack is unfinished"):
            use(dst)
    # Another version of redoxfs may word the verdict differently. Its pack is resumed nevertheless.
    draft = json.loads((dst / PACKING / DRAFT).read_bytes())
    draft["manifest"]["verdict"]["line"] = "in other words"
    (dst / PACKING / DRAFT).write_text(json.dumps(draft))
    assert pack_here(source, dst, OPTIONS).kept


def test_a_worker_that_is_killed_is_one_line_with_what_to_do(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = tmp_path / "dst"
    pack_here(source, dst, OPTIONS)
    monkeypatch.setattr("redoxfs.packed.verifying._carry_out", end_this_process)
    assert main(["verify", os.fspath(dst), "--jobs", "2"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "redoxfs: a worker process ended early, perhaps killed for lack of memory; "
        "run the same command again with --jobs 1"
    )


def test_a_worker_that_cannot_begin_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As where DST was removed meanwhile; it is no worker that was killed."""
    with pytest.raises(FileNotFoundError, match="gone"):
        list(each_shard(Work(os.listdir, os.fspath(tmp_path / "gone"), end_this_process), [0, 1], 2, print))
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_ctrl_c_waits_until_workers_have_ended() -> None:
    """Or the command would wait for them for ever as it ends, and ignore a third one."""

    def first(_done: Done) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(each_shard(Work(abs, 0, interrupt_the_end, may_hang=True), [0], 1, first))
    assert multiprocessing.active_children() == []


def test_sigterm_ends_a_command_that_waits_for_workers_after_ctrl_c(tmp_path: Path) -> None:
    """A worker may wait for storage that never answers."""

    def work() -> int:
        # As the command takes it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for _ in each_shard(Work(Path, str(tmp_path), end_the_parent_and_hang), [0, 1], 2, first):
            pass
        return 0

    def first(_done: Done) -> None:
        raise KeyboardInterrupt

    with forked(work, signal.SIGKILL) as child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert not (tmp_path / WENT_ON).exists()


def test_the_others_are_ended_when_a_worker_is_killed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst = tmp_path / "dst"
    pack_here(source, dst, OPTIONS)
    monkeypatch.setattr("redoxfs.packed.verifying._carry_out", end_or_hang)
    with pytest.raises(WorkerEndedError):
        verify(dst, jobs=2)
    assert not (dst / WENT_ON).exists()


def damage(dst: Path, how: str) -> None:
    shard = dst / "samples-000001.tar"
    sums = dst / PACKING / f"{shard.name}.sums.npy"
    match how:
        case "a payload byte":
            flip(shard, 600)
        case "a header byte":
            flip(shard, 3)
        case "the last byte":
            flip(shard, shard.stat().st_size - 1)
        case "cut":
            os.truncate(shard, 1000)
        case "longer":
            os.truncate(shard, shard.stat().st_size + 10_240)
        case "empty":
            os.truncate(shard, 0)
        case "no checksums":
            sums.unlink()
        case "empty checksums":
            os.truncate(sums, 0)
        case "cut checksums":
            os.truncate(sums, sums.stat().st_size - 3)
        case "other checksums":
            flip(sums, sums.stat().st_size - 1)
        case "checksums of a terabyte":
            sums.write_bytes(sums.read_bytes().replace(b"'shape': (", b"'shape': (9999999999")[: sums.stat().st_size])
        case "no numpy array":
            sums.write_bytes(b"PK\x03\x04")


@pytest.mark.parametrize(
    "how",
    [
        "a payload byte",
        "a header byte",
        "the last byte",
        "cut",
        "longer",
        "empty",
        "no checksums",
        "empty checksums",
        "cut checksums",
        "other checksums",
        "checksums of a terabyte",
        "no numpy array",
    ],
)
def test_a_finished_shard_damaged_between_runs_is_rewritten(
    source: Path, tmp_path: Path, reference: dict[str, bytes], how: str
) -> None:
    dst = tmp_path / "dst"
    assert killed(source, dst, before_the_index(dst))
    shards = len(shards_of(dst))
    damage(dst, how)
    packed = pack_here(source, dst, OPTIONS)
    assert (packed.kept, packed.rewritten) == (shards - 1, 1)
    assert files_in(dst) == reference


# A destination that is not empty


def test_packing_a_finished_dataset_again_changes_nothing(
    source: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    dst = tmp_path / "dst"
    assert not pack_here(source, dst, OPTIONS).already
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in dst.rglob("*")}
    packed = pack_here(source, dst, OPTIONS)
    assert (packed.already, packed.shards) == (True, len(shards_of(dst)))
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in dst.rglob("*")} == before
    assert files_in(dst) == reference
    # Another version of redoxfs may word the verdict differently.
    reseal(dst, lambda manifest: manifest["verdict"].update(line="in other words"))
    assert pack_here(source, dst, OPTIONS).already


@pytest.mark.parametrize(
    "other",
    [
        Options(chunk_size=4, shard_bytes=4000),
        Options(chunk_size=3, shard_bytes=5000),
        Options(chunk_size=3, shard_bytes=4000, seed=1),
        Options(chunk_size=3, shard_bytes=4000, classes="any"),
    ],
    ids=repr,
)
def test_a_finished_or_unfinished_pack_refuses_other_options(source: Path, tmp_path: Path, other: Options) -> None:
    whole, unfinished = tmp_path / "whole", tmp_path / "unfinished"
    pack_here(source, whole, OPTIONS)
    assert killed(source, unfinished, before_the_index(unfinished))
    for dst in (whole, unfinished):
        before = files_in(dst)
        with pytest.raises(PackError, match=r"\A.*another source or with other options.*\Z"):
            pack_here(source, dst, other)
        assert files_in(dst) == before


def test_a_folder_with_other_files_is_left_alone(source: Path, tmp_path: Path) -> None:
    for name in ("thesis.tex", MANIFEST, FOLDER, "samples-000000.tar"):
        dst = tmp_path / f"with-{name}"
        dst.mkdir()
        (dst / name).write_text("years of work")
        with pytest.raises(PackError, match=r"\A.+\Z"):
            pack_here(source, dst, OPTIONS)
        assert {path.name: path.read_text() for path in dst.iterdir()} == {name: "years of work"}


@pytest.mark.parametrize(("call", "inside"), [("mkdir", f"/{PACKING}"), ("listdir", "")])
def test_a_destination_that_cannot_be_written_is_named(
    source: Path, tmp_path: Path, call: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system knows it by a descriptor of DST."""
    dst = tmp_path / "dst"
    dst.mkdir()
    known = getattr(os, call)

    def read_only(path: object, *given: object, **options: object) -> object:
        if isinstance(path, int) or "dir_fd" in options:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return known(path, *given, **options)

    catalog = catalog_of(source, OPTIONS)
    monkeypatch.setattr(os, call, read_only)
    with pytest.raises(PackError, match=f"^{re.escape(os.fspath(dst))}{re.escape(inside)}: Read-only file system; "):
        pack_here(source, dst, OPTIONS, catalog=catalog)


def test_a_filesystem_that_syncs_no_directory_takes_a_pack(
    source: Path, tmp_path: Path, reference: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def sync_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(fd)

    monkeypatch.setattr(os, "fsync", sync_files)
    dst = tmp_path / "dst"
    pack_here(source, dst, OPTIONS)
    assert files_in(dst) == reference
    with opened(tmp_path) as folder:
        durable.replace(folder, "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"


def test_a_dataset_with_a_damaged_manifest_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack_here(source, dst, OPTIONS)
    flip(dst / MANIFEST, 200)
    before = files_in(dst)
    with pytest.raises(PackError, match="remove"):
        pack_here(source, dst, OPTIONS)
    assert files_in(dst) == before


def test_a_second_pack_into_one_folder_at_once_is_refused(source: Path, tmp_path: Path) -> None:
    making = tmp_path / "dst" / PACKING
    making.mkdir(parents=True)
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(making / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(PackError, match="another redoxfs pack is writing to it"):
            pack_here(source, tmp_path / "dst", OPTIONS)
        assert os.listdir(making) == [LOCK]
        other.communicate(b"\n")
    pack_here(source, tmp_path / "dst", OPTIONS)
    assert verify(tmp_path / "dst", jobs=1).problems == ()


def test_leftovers_of_an_unfinished_draft_do_not_matter(
    source: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    making = tmp_path / "dst" / PACKING
    (making / "index").mkdir(parents=True)
    (making / "plan").mkdir()
    for name in ("plan/size.npy", "index/size.npy", "plan.new", "samples-000000.tar.part", MANIFEST):
        (making / name).write_text("half of it")
    assert not (making / DRAFT).exists()
    pack_here(source, tmp_path / "dst", OPTIONS)
    assert files_in(tmp_path / "dst") == reference


# Modes


@pytest.mark.parametrize("closed", ["", "dog/3.jpg", "dog", "."], ids=lambda path: path or "nothing")
def test_a_private_source_gives_private_shards(source: Path, tmp_path: Path, closed: str) -> None:
    if closed:
        (source / closed).chmod(stat.S_IMODE((source / closed).stat().st_mode) & ~0o077)
    dst = tmp_path / "dst"
    umask = os.umask(0o022)
    try:
        pack_here(source, dst, OPTIONS)
    finally:
        os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in dst.rglob("*") if path.is_file()}
    assert modes == ({0o600} if closed else {0o644})
