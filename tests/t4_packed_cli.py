"""pack, verify, inspect and mount of a packed dataset with the real program: the served tree, damage, full disks,
sources that change, and interrupted packs."""

import errno
import json
import os
import select
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from disks import small_disk
from images import identity, image, make_full_images
from machine import Machine
from packs import files_in, flip, shards_of
from patience import PATIENCE_S, until

from redoxfs.cli import program
from redoxfs.packed import MANIFEST, load_index
from redoxfs.packed.index import FOLDER, PACKING
from redoxfs.packed.packing import DRAFT

CLASSES = {"cat": 40, "dog": 30}
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]
MANY_SHARDS = [*OPTIONS, "--shard-size", "8KiB"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = make_full_images(tmp_path / "data", CLASSES)
    (root / "notes.txt").write_text("of no class")
    (root / "empty").mkdir(mode=0o711)
    (root / "link").symlink_to("train/cat")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "line\nbreak \udcff").write_text("a name")
    os.chmod(root / "notes.txt", 0o4755)
    os.utime(root / "notes.txt", ns=(0, -1_500_000_000))
    os.utime(root / "train/dog/train-dog-3.png", ns=(0, 1_234_567_890_123_456_789))
    os.utime(root / "link", ns=(0, 987_654_321_000_000_001), follow_symlinks=False)
    return root


@pytest.fixture
def dst(machine: Machine, source: Path, tmp_path: Path) -> Path:
    machine.ok("pack", source, tmp_path / "dst", *OPTIONS, "--jobs", "1")
    return tmp_path / "dst"


def everything_of(root: Path) -> dict[str, tuple[object, ...]]:
    """Every entry, with the attributes of lstat that a packed dataset keeps."""
    found: dict[str, tuple[object, ...]] = {}
    for above, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(above, name)
            known = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(known.st_mode) else None
            owner = (known.st_uid, known.st_gid, known.st_nlink)
            found[os.path.relpath(path, root)] = (known.st_mode, known.st_size, known.st_mtime_ns, owner, target)
    return found


def without_sizes_of_samples(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Leaves out the sizes of samples: a redirecting mount returns the size of the sample that will answer."""
    return {path: fact[:1] + fact[2:] if path.endswith(".png") else fact for path, fact in found.items()}


def epoch(root: Path) -> tuple[Counter[str], list[tuple[str, int]]]:
    """Open every image once. Return the served samples, and the classes and errors of failed opens."""
    served: Counter[str] = Counter()
    failed: list[tuple[str, int]] = []

    def read(path: Path) -> None:
        try:
            label, sample = identity(path.read_bytes(), "train", CLASSES)
        except OSError as error:
            failed.append((path.parent.name, error.errno or 0))
        else:
            assert label == path.parent.name
            served[sample] += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, sorted(root.glob("*/*.png"))))
    return served, failed


def the_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The last line of a command that failed with ``code``: its only error line."""
    assert done.returncode == code, done.stderr
    return _last(done.stderr)


@pytest.fixture
def own_folders(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs run in this process use the cache folders of the machine's programs."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, machine.environment[name])


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str | Path) -> str:
    """As `the_line`, run in this process. The verb fails before it starts anything."""
    assert program.run([*map(str, words)]) == code
    return _last(capsys.readouterr().err)


def _last(told: str) -> str:
    assert "Traceback" not in told
    lines = told.splitlines()
    assert [line for line in lines if line.startswith("redoxfs: ")] == lines[-1:]
    return lines[-1]


# Serving


def test_a_packed_mount_equals_the_source_and_redirects(machine: Machine, source: Path, dst: Path) -> None:
    known = everything_of(source)
    memory = machine.inspect(dst)["memory_for"]["25%"]
    machine.ok("mount", dst, machine.mnt, "--memory", str(memory))
    assert without_sizes_of_samples(everything_of(machine.mnt)) == without_sizes_of_samples(known)
    samples = [f"train/{name}/train-{name}-{n}.png" for name, count in CLASSES.items() for n in range(count)]
    for lap in (1, 2):
        served, failed = epoch(machine.mnt / "train")
        assert not failed
        assert served == dict.fromkeys(samples, 1)
        assert machine.stats()["lap"] == {"train": lap}
    assert machine.stats()["redirected"] > 0
    exact = machine.mnt / ".redoxfs/exact"
    assert everything_of(exact) == known
    for path in source.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert (exact / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert (machine.mnt / "notes.txt").read_text() == "of no class"
    machine.umount()


def test_inspect_prints_the_same_for_both_forms(machine: Machine, source: Path, dst: Path) -> None:
    plain, packed = machine.inspect(source, *OPTIONS), machine.inspect(dst)
    assert (plain["packed"], packed["packed"]) == (False, True)
    for fact in ("samples", "classes", "files", "exact_files", "sample_bytes", "chunks", "chunk_size", "memory_for"):
        assert packed[fact] == plain[fact]
    assert packed["shards"] == len(shards_of(dst))
    assert packed["shards_bytes"] == sum(shard.stat().st_size for shard in shards_of(dst))
    assert packed["packed_with"]["classes"] == "dir"


def test_a_damaged_file_is_eio_once_an_epoch_and_logged(machine: Machine, dst: Path) -> None:
    index = load_index(dst)
    entry = index.catalog.tree.find(b"train/dog/train-dog-7.png")
    shard, at = index.positions.shard_names[index.positions.shard[entry]], int(index.positions.data_at[entry])
    flip(dst / shard, at + 70)
    memory = machine.inspect(dst)["memory_for"]["25%"]
    machine.ok("mount", dst, machine.mnt, "--memory", str(memory))
    for lap in (1, 2):
        served, failed = epoch(machine.mnt / "train")
        assert failed == [("dog", errno.EIO)]
        assert served == dict.fromkeys(served, 1)
        assert len(served) == sum(CLASSES.values()) - 1
        assert machine.stats()["errors"] == lap
    with pytest.raises(OSError) as raised:
        (machine.mnt / ".redoxfs/exact/train/dog/train-dog-7.png").read_bytes()
    assert raised.value.errno == errno.EIO
    told = [line for line in machine.log().splitlines() if "wrong checksum" in line]
    assert told
    for line in told:
        assert shard in line
        assert str(at) in line
        assert "train/dog/train-dog-7.png" in line
    done = machine.run("verify", dst)
    assert done.returncode == 9
    assert done.stdout == f"{shard}: train/dog/train-dog-7.png: wrong checksum at {at:,}\n"
    assert json.loads(machine.run("verify", dst, "--json").stdout)["problems"] == [done.stdout.rstrip()]


def test_a_damaged_index_is_one_line_for_every_verb(machine: Machine, dst: Path) -> None:
    flip(dst / FOLDER / "size.npy", 200)
    for words in (["mount", str(dst), str(machine.mnt)], ["inspect", str(dst)], ["verify", str(dst)]):
        assert str(dst / FOLDER / "size.npy") in the_line(machine.run(*words), 9)
    flip(dst / FOLDER / "size.npy", 200)
    shard = shards_of(dst)[0]
    os.truncate(shard, shard.stat().st_size - 1)
    assert str(shard) in the_line(machine.run("mount", dst, machine.mnt), 9)
    assert machine.nothing_is_left()


@pytest.mark.usefixtures("own_folders")
def test_mount_refuses_options_that_pack_has_fixed(
    dst: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--classes", "dir"], ["--samples", "*.png"], ["--groups", "stem"], ["--rescan"]):
        assert options[0] in refused(capsys, 2, "mount", dst, machine.mnt, *options)


# Destinations


@pytest.mark.usefixtures("own_folders")
def test_impossible_destinations_are_refused_in_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    (tmp_path / "inside").symlink_to(source / "train")
    (tmp_path / "loop").symlink_to("loop")
    before = everything_of(source)
    for dst in (
        source,
        source / "dst",
        source / "train",
        tmp_path / "inside/dst",
        tmp_path,
        tmp_path / "file",
        tmp_path / "file/dst",
        tmp_path / "none/dst",
        tmp_path / "full",
        tmp_path / "loop",
        tmp_path / ("x" * 300),
    ):
        refused(capsys, 4, "pack", source, dst, *OPTIONS)
    assert everything_of(source) == before
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]


@pytest.mark.usefixtures("own_folders")
def test_impossible_options_are_refused_in_one_line(
    source: Path, dst: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--shard-size", "0"], ["--shard-size", "lots"], ["--jobs", "0"], ["--chunk-size", "0"]):
        refused(capsys, 2, "pack", source, source.parent / "new", *options)
    assert not (source.parent / "new").exists()
    refused(capsys, 3, "pack", dst, source.parent / "new")
    refused(capsys, 3, "verify", source)
    refused(capsys, 4, "pack", source, dst, *OPTIONS, "--seed", "1")


@pytest.mark.parametrize("size", ["16k", "180k"], ids=["no room for the plan", "for half"])
def test_a_full_disk_is_one_line_and_the_pack_resumes(
    machine: Machine, source: Path, dst: Path, tmp_path: Path, size: str
) -> None:
    with small_disk(tmp_path / "disk", f"size={size}") as disk:
        target = disk / "dst"
        line = the_line(machine.run("pack", source, target, *OPTIONS, "--jobs", "1"), 4)
        assert "No space left on device; run the same command again to resume" in line
        assert not (target / MANIFEST).exists()
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        done = machine.ok("pack", source, target, *OPTIONS, "--jobs", "1")
        assert done.stderr.endswith(f"to serve it: redoxfs mount {target} MOUNTPOINT\n")
        assert files_in(target) == files_in(dst)


# Sources that change, and interrupted packs


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        except OSError:
            continue
    return found


def wait_for_the_end(pids: list[int]) -> None:
    """Wait until all of the processes have ended."""
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            waiting = select.poll()
            waiting.register(process, select.POLLIN)
            assert waiting.poll(PATIENCE_S * 1000), f"process {pid} is still there"
        finally:
            os.close(process)


def draft_is_saved(dst: Path) -> bool:
    return (dst / PACKING / DRAFT).exists()


def a_shard_is_done(dst: Path) -> bool:
    return bool(shards_of(dst))


def some_shards_are_done(dst: Path) -> bool:
    return len(shards_of(dst)) > 4


@contextmanager
def packing(machine: Machine, source: Path, dst: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running pack in its own process group, as a shell starts it. None of it is left afterwards."""
    with subprocess.Popen(
        machine.command("pack", source, dst, *options),
        env=machine.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


Moment = Callable[[Path], bool]

HOLDS = """
import os, time
from functools import wraps
from importlib import import_module
from pathlib import Path
if "HOLD" in os.environ:
    pack = import_module("redoxfs.packed.packing")
    shards_first, hold = int(os.environ["SHARDS_FIRST"]), Path(os.environ["HOLD"])
    carry_out = pack._carry_out

    @wraps(carry_out)
    def held(state, shard, tally):
        while hold.exists() and len(list(state.dst.glob("*.tar"))) >= shards_first and not tally.stopping():
            time.sleep(0.01)
        return carry_out(state, shard, tally)

    pack._carry_out = held
"""
"""Runs when a Python begins: a pack and its workers make so many shards, and wait while a file exists."""

SHARDS_FIRST: dict[Moment, int] = {draft_is_saved: 0, a_shard_is_done: 1, some_shards_are_done: 5}
"""What a pack has made at each moment. Without this it might have made all before a test looks."""


def hold_at(moment: Moment, machine: Machine) -> Path:
    """Packs wait at this moment until the file that is returned is removed, or until they have to stop."""
    site, hold = machine.folder / "site", machine.folder / "hold"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(HOLDS)
    hold.touch()
    held = {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}", "HOLD": str(hold)}
    machine.environment |= held | {"SHARDS_FIRST": str(SHARDS_FIRST[moment])}
    return hold


def reach(moment: Moment, process: subprocess.Popen[str], dst: Path) -> None:
    until(lambda: moment(dst) or process.poll() is not None, moment)
    assert process.poll() is None, process.communicate()[1]


@pytest.mark.parametrize("moment", [draft_is_saved, some_shards_are_done], ids=lambda m: m.__name__)
def test_a_killed_pack_leaves_no_process_and_resumes(
    machine: Machine, source: Path, tmp_path: Path, moment: Moment
) -> None:
    dst = tmp_path / "dst"
    hold = hold_at(moment, machine)
    with packing(machine, source, dst, *MANY_SHARDS, "--jobs", "2") as process:
        reach(moment, process, dst)
        pids = family(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        wait_for_the_end(pids)
    hold.unlink()
    assert process.returncode == -signal.SIGKILL
    assert not (dst / MANIFEST).exists()
    finished = {shard: (shard.stat().st_ino, shard.stat().st_mtime_ns) for shard in shards_of(dst)}
    done = machine.ok("pack", source, dst, *MANY_SHARDS, "--jobs", "1")
    kept = (
        "1 shard of an interrupted pack was"
        if len(finished) == 1
        else f"{len(finished)} shards of an interrupted pack were"
    )
    assert (f"{kept} complete and kept" in done.stderr) == bool(finished)
    assert {shard: (shard.stat().st_ino, shard.stat().st_mtime_ns) for shard in finished} == finished
    machine.ok("pack", source, tmp_path / "other", *MANY_SHARDS, "--jobs", "1")
    assert files_in(dst) == files_in(tmp_path / "other")


@pytest.mark.parametrize(
    ("moment", "jobs"), [(draft_is_saved, "2"), (some_shards_are_done, "2"), (a_shard_is_done, "1")]
)
def test_ctrl_c_is_one_line_and_leaves_no_process(
    machine: Machine, source: Path, tmp_path: Path, moment: Moment, jobs: str
) -> None:
    dst = tmp_path / "dst"
    hold_at(moment, machine)
    with packing(machine, source, dst, *MANY_SHARDS, "--jobs", jobs) as process:
        reach(moment, process, dst)
        pids = family(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        told = process.communicate(timeout=PATIENCE_S)[1]
        wait_for_the_end(pids)
    assert process.returncode == 130
    assert _last(told) == "redoxfs: interrupted"
    assert f"{dst} holds an unfinished pack; run the same command again to resume" in told
    assert not (dst / MANIFEST).exists()


@pytest.mark.parametrize(("number", "send"), [(signal.SIGTERM, os.kill), (signal.SIGHUP, os.killpg)])
def test_the_end_of_a_job_is_one_line_of_a_pack_and_leaves_no_process(
    machine: Machine, source: Path, tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    dst = tmp_path / "dst"
    hold_at(some_shards_are_done, machine)
    with packing(machine, source, dst, *MANY_SHARDS, "--jobs", "2") as process:
        reach(some_shards_are_done, process, dst)
        pids = family(process.pid)
        send(process.pid, number)
        told = process.communicate(timeout=PATIENCE_S)[1]
        wait_for_the_end(pids)
    assert process.returncode == 130
    assert told.splitlines()[-2:] == [
        f"{dst} holds an unfinished pack; run the same command again to resume",
        "redoxfs: interrupted",
    ]


@pytest.mark.parametrize("moment", [draft_is_saved, a_shard_is_done])
@pytest.mark.usefixtures("own_folders")
def test_every_verb_refuses_an_unfinished_pack(
    machine: Machine, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], moment: Moment
) -> None:
    dst = tmp_path / "dst"
    hold_at(moment, machine)
    with packing(machine, source, dst, *MANY_SHARDS, "--jobs", "1") as process:
        reach(moment, process, dst)
    for words in (["mount", str(dst), str(machine.mnt)], ["inspect", str(dst)], ["verify", str(dst)]):
        assert "the pack is unfinished" in refused(capsys, 9, *words)
    refused(capsys, 3, "pack", dst, tmp_path / "other")


def test_a_source_that_changes_fails_the_pack_by_name(machine: Machine, source: Path, tmp_path: Path) -> None:
    # The second case changes the directory, and no file that is packed.
    for name, begins in (("notes.txt", "redoxfs: notes.txt has changed"), ("new", "redoxfs: . has changed")):
        dst = tmp_path / f"dst-{name}"
        # A scan made 2 s after the source is cached, and rewriting notes.txt does not invalidate it.
        hold = hold_at(a_shard_is_done, machine)
        with packing(machine, source, dst, *MANY_SHARDS, "--jobs", "1", "--rescan") as process:
            # Files of no class are packed last.
            reach(a_shard_is_done, process, dst)
            (source / name).write_text("another")
            hold.unlink()
            told = process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 3, told
        assert _last(told).startswith(begins)
        assert not (dst / MANIFEST).exists()


def test_a_second_pack_of_the_same_source_changes_nothing(machine: Machine, source: Path, dst: Path) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in dst.rglob("*")}
    done = machine.ok("pack", source, dst, *OPTIONS, "--jobs", "1")
    assert "holds this dataset already" in done.stderr
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in dst.rglob("*")} == before


def test_a_file_rewritten_since_a_cached_scan_asks_for_rescan(machine: Machine, source: Path, tmp_path: Path) -> None:
    machine.ok("inspect", source, *OPTIONS)
    changed = source / "train/cat/train-cat-5.png"
    changed.write_bytes(image("train/cat/train-cat-5.png", 0, 5, 4000))
    for path in (tmp_path / "cache").rglob("manifest.json"):
        # As if the directories had been unchanged for a while before the scan.
        known = json.loads(path.read_text())
        known["scanned_at_ns"] += 10_000_000_000
        path.write_text(json.dumps(known, indent=1))
    line = the_line(machine.run("pack", source, tmp_path / "dst", *OPTIONS, "--jobs", "1"), 3)
    assert "train/cat/train-cat-5.png has changed" in line
    assert "--rescan" in line
    machine.ok("pack", source, tmp_path / "again", *OPTIONS, "--jobs", "1", "--rescan")


def test_a_copy_that_would_redirect_nothing_is_written_only_if_it_is_asked_for(
    machine: Machine, source: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "copy"
    # What `inspect` needs is there, but its classes are no proof: one of them alone.
    only = source / "train/cat"
    done = machine.run("pack", only, dst)
    assert done.returncode == 6
    assert "a mount of this copy would redirect nothing" in done.stderr.splitlines()[-1]
    assert not dst.exists()
    machine.ok("pack", only, dst, "--classes", "none")
    machine.ok("verify", dst)
