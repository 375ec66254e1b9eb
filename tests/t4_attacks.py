"""Attacks by other users of the machine on what root, or the user who mounts, does. SECURITY.md lists them."""

import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_store
from hostile_mount import Link, hostile_mount
from machine import Machine
from object_server import serving
from packs import catalog_of, opened, replace_array
from patience import until
from strangers import OTHER_UID, Stranger, become, stranger_here
from tars import tar_of

from redoxfs.chunks import build_cells
from redoxfs.launch.runtime_paths import control_path, control_path_of_daemon
from redoxfs.linux.fuse_device import MountError, hold, mount
from redoxfs.linux.mount_table import read_mounts
from redoxfs.packed import pack
from redoxfs.packed.packing import PackError
from redoxfs.telemetry.history_form import ABOUT

pytestmark = [pytest.mark.mount, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with stranger_here() as one:
        yield one


def redoxfs_mounts() -> set[str]:
    return {each.mountpoint for each in read_mounts() if each.ours}


# A mount of root below a folder that another user owns.


@pytest.fixture(scope="module")
def slow_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_store.compiled(tmp_path_factory.mktemp("slow"))


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
@pytest.mark.parametrize("above", [False, True])
def test_a_symlink_that_is_made_during_the_scan_leads_no_mount_astray(
    machine: Machine, source: Path, stranger: Stranger, slow_program: Path, keeper: str, above: bool
) -> None:
    victim, before = machine.folder / "victim", redoxfs_mounts()
    (victim / "mnt").mkdir(parents=True)
    mnt = stranger.mkdir("data") / "mnt"
    stranger.does(mnt.mkdir)
    slow = machine.folder / "slow"
    slow.mkdir()

    def swap() -> None:
        moved = mnt.parent if above else mnt
        moved.rename(stranger.folder / "moved")
        moved.symlink_to(victim if above else victim / "mnt")

    with (
        slow_store.served(slow_program, source, slow, 30, names=True) as store,
        subprocess.Popen(
            machine.command("mount", slow, mnt, keeper), env=machine.environment, stderr=subprocess.PIPE, text=True
        ) as command,
    ):
        assert command.stderr is not None
        # Once it says what memory it takes, it has checked the mountpoint; then it scans.
        said = command.stderr.readline()
        store.send_signal(signal.SIGSTOP)
        stranger.does(swap)
        store.send_signal(signal.SIGCONT)
        said += command.stderr.read()
        assert (command.wait(), said.count("Traceback")) == (7, 0), said
    assert f"{mnt} could not be mounted: it was moved or replaced meanwhile" in said
    assert "is served" not in said
    assert redoxfs_mounts() == before
    assert not list((victim / "mnt").iterdir())
    # A keeper ends a moment after its daemon.
    until(lambda: not machine.daemons(), lambda: f"still there: {machine.daemons()}")


def test_a_mountpoint_that_is_replaced_after_it_was_held_is_refused(tmp_path: Path, stranger: Stranger) -> None:
    before = redoxfs_mounts()
    victim, mnt = tmp_path / "victim", stranger.mkdir("mnt")
    victim.mkdir()
    held = hold(mnt)
    try:
        stranger.does(lambda: mnt.rename(stranger.folder / "moved"))
        stranger.does(lambda: mnt.symlink_to(victim))
        with pytest.raises(MountError, match="it was moved or replaced meanwhile"):
            mount(mnt, fsname="x", options=set(), held=held)
        assert redoxfs_mounts() == before
        with pytest.raises(OSError, match="a symlink is in its path"):
            hold(mnt)
    finally:
        os.close(held)


# A mount that another user made, and that root looks at.


SECRET = "only root may read this"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's. Its content is a JSON object, so that a command that reads it would show it."""
    path = tmp_path / "secret"
    path.write_text(json.dumps({"source": SECRET, "pid": 1, "version": SECRET, "opens": 7, "open_seconds": {}}))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("options", ["allow_other", ""])
def test_root_follows_no_symlink_that_another_users_mount_serves(
    machine: Machine, stranger: Stranger, secret: Path, options: str
) -> None:
    link = Link(str(secret))
    mnt = stranger.mkdir("mnt")
    for tree in (
        {".redoxfs": {"stats.json": link, "history.json": link, "accesslog": link}},
        {".redoxfs": Link(str(secret.parent))},
    ):
        with hostile_mount(mnt, tree, stranger.uid, options=options):
            bundle = machine.folder / "bundle"
            told = [machine.run("debug", mnt, "-o", bundle, "--interval", "0.1").stdout]
            with tarfile.open(bundle) as archive:
                names = archive.getnames()
                told += [file.read().decode() for each in archive if (file := archive.extractfile(each)) is not None]
            assert "redoxfs-debug/history.json" not in names
            bundle.unlink()
            for words in (
                ("status", mnt),
                ("status", mnt, "--json"),
                ("stats", mnt, "--count", "1", "--interval", "0.1"),
                ("doctor", mnt),
                ("report", mnt, "-o", machine.folder / "page.html"),
                ("profile", mnt, "--seconds", "0.2"),
            ):
                done = machine.run(*words)
                told += [done.stdout, done.stderr]
                assert done.returncode != 2, done.stderr
                assert not (machine.folder / "page.html").exists()
            assert SECRET not in "".join(told)


def test_a_file_of_another_users_mount_is_read_as_that_user(machine: Machine, stranger: Stranger) -> None:
    """Without allow_other the kernel refuses root; and what serves the mount learns that its user asks."""
    mnt = stranger.mkdir("mnt")
    stats = {"pid": 1, "version": "0", "source": "/data", "opens": 12345}
    with hostile_mount(mnt, {".redoxfs": {"stats.json": json.dumps(stats).encode()}}, stranger.uid, options=""):
        with pytest.raises(PermissionError):
            (mnt / ".redoxfs/stats.json").read_bytes()
        assert json.loads(machine.ok("status", mnt, "--json").stdout) == stats


# What a mount or a packed dataset says, on the terminal.


CLEAR, TITLE, FORGED = "\x1b[2J", "\x1b]0;owned\x07", "\nok       daemon: all is well"
HOSTILE = f"{CLEAR}{TITLE}{FORGED}\x9b31m\u202e"


def is_harmless(text: str) -> bool:
    """Whether a terminal would only show it, and no line of it is forged."""
    return all(each.isprintable() for line in text.splitlines() for each in line) and FORGED not in text


def with_hostile_text(value: Any) -> Any:
    """A report of a mount in which each text and each name of a lap and a peer is hostile."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, dict):
        return {name: with_hostile_text(each) for name, each in value.items()}
    return [with_hostile_text(each) for each in value] if isinstance(value, list) else value


# `top` needs a terminal: t1_top and t4_top.
COMMANDS = (
    ("status",),
    ("stats", "--count", "1", "--interval", "0.1"),
    ("doctor",),
    ("cluster", "status"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a real mount says of itself."""
    machine = Machine(tmp_path_factory.mktemp("report"))
    folder = machine.folder / "data"
    for label in ("n02121808", "n02084071"):
        (folder / label).mkdir(parents=True)
        for number in range(4):
            (folder / label / f"{number}.jpg").write_bytes(b"x" * 100)
    machine.ok("mount", folder, machine.mnt)
    stats = machine.stats()
    machine.ok("umount", machine.mnt)
    return stats


def test_what_a_mount_reports_is_shown_without_what_a_terminal_obeys(
    machine: Machine, stranger: Stranger, report: dict[str, Any]
) -> None:
    stats = with_hostile_text(report)
    stats["laps"] = {HOSTILE: {"number": 1, "turns": 2, "samples": 8}}
    asked = report | {"samples": 0, "request": {"words": ["--log=/etc/passwd", "--", "/data", "/mnt"]}}
    mnt = stranger.mkdir("mnt")
    mnt = mnt / "0"
    stranger.does(mnt.mkdir)
    for escaped in (True, False):
        text = json.dumps(stats, ensure_ascii=escaped).encode()
        with hostile_mount(mnt, {".redoxfs": {"stats.json": text, "history.json": text}}, stranger.uid):
            for words in COMMANDS:
                at = mnt.parent if words[0] == "cluster" else mnt
                done = machine.run(*words, at)
                assert is_harmless(done.stdout), words
                assert is_harmless(done.stderr), words
                assert "Traceback" not in done.stderr
                assert done.returncode in (0, 11), (words, done.stderr)
            told = machine.ok("status", mnt, "--json").stdout
            assert json.loads(told) == stats
        # Root might run a command of a verdict: none is made of what that daemon says it was asked for.
        value = {"format": 1, "interval_s": 1.0, "points": {"time": [0.0], "values": {}}, "laps": {}, "stats": asked}
        value["laps"] = {name: [] for name in ABOUT} | {"values": {}}
        files = {"stats.json": text, "history.json": json.dumps(value).encode()}
        with hostile_mount(mnt, {".redoxfs": files}, stranger.uid):
            for verb in ("status", "doctor"):
                done = machine.run(verb, mnt)
                assert "this mount redirects nothing" in done.stdout
                assert "--log" not in done.stdout
            assert is_harmless(told)


FORMS = (
    "{}",
    "[]",
    "7",
    "no JSON",
    '{"open_seconds": {}}',
    '{"open_seconds": 7, "pid": "x", "opens": "y", "laps": [], "peers": 7, "cache": 1, "keeper": 3}',
    "[" * 100_000,
    '{"a":' * 100_000,
)


def test_a_report_of_another_form_is_one_line(machine: Machine, stranger: Stranger) -> None:
    _one_line_of_each(machine, stranger, FORMS)


def test_a_report_that_lacks_any_field_is_one_line(
    machine: Machine, stranger: Stranger, report: dict[str, Any]
) -> None:
    wrong_values: tuple[Any, ...] = ("x", None, -1, [], {"a": 1})
    _one_line_of_each(machine, stranger, [json.dumps(dict.fromkeys(report, wrong)) for wrong in wrong_values])


def _one_line_of_each(machine: Machine, stranger: Stranger, texts: Sequence[str]) -> None:
    """Eight at once: a command takes a second, in which it waits to look again."""
    with ExitStack() as mounts:
        asked = []
        for number, text in enumerate(texts):
            mnt = stranger.mkdir(f"mnt{number}")
            mounts.enter_context(hostile_mount(mnt, {".redoxfs": {"stats.json": text.encode()}}, stranger.uid))
            asked += [(text[:100], (*words, mnt)) for words in COMMANDS[:-1]]
        with ThreadPoolExecutor(8) as at_once:
            answers = list(at_once.map(lambda each: machine.run(*each[1]), asked))
        for about, done in zip(asked, answers, strict=True):
            assert done.returncode in (0, 1, 11), (about, done.stderr)
            assert "unexpected" not in done.stderr, about
            assert "Traceback" not in done.stderr, about


def test_doctor_looks_at_no_address_and_no_path_that_a_mount_of_another_user_names(
    machine: Machine, stranger: Stranger, report: dict[str, Any]
) -> None:
    probed = stranger.mkdir("probed")
    (probed / "file").write_bytes(bytes(1 << 20))
    os.utime(probed / "file", (1, 1))
    os.utime(probed, (1, 1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        peer = {"address": address, "state": "ready", "answer_seconds": {"count": 0, "sum": 0, "buckets": {}}}
        stats = json.dumps(report | {"source": str(probed), "peers": [peer]}).encode()
        mnt = stranger.mkdir("mnt")
        with hostile_mount(mnt, {".redoxfs": {"stats.json": stats}}, stranger.uid):
            done = machine.run("doctor", mnt)
            assert "nothing that it names was looked at" in done.stdout
            with pytest.raises(BlockingIOError):
                server.accept()
            assert (probed.stat().st_atime, (probed / "file").stat().st_atime) == (1, 1)
            # Asked to, it does.
            asked = machine.run("doctor", mnt, "--nodes", address)
            assert address in asked.stdout
            server.accept()[0].close()


def test_names_of_a_dataset_are_shown_without_what_a_terminal_obeys(machine: Machine, tmp_path: Path) -> None:
    root = tmp_path / f"data{CLEAR}"
    for split in (f"train{TITLE}", f"val{FORGED.replace('/', '')}"):
        for label in (f"n02121808{CLEAR}", "n02084071"):
            (root / split / label).mkdir(parents=True)
            for number in range(4):
                (root / split / label / f"{number}{TITLE}.jpg").write_bytes(b"x" * 100)
    packed = tmp_path / "packed"
    said = [machine.ok("pack", root, packed, "--classes", "dir")]
    said.append(machine.ok("inspect", root, "--classes", "dir"))
    said.append(machine.ok("inspect", packed))
    with serving(packed) as server:
        said.append(machine.ok("inspect", server.url))
        said.append(machine.ok("mount", server.url, machine.mnt))
    said.append(machine.ok("umount", machine.mnt))
    for done in said:
        assert is_harmless(done.stdout), done.args
        assert is_harmless(done.stderr), done.args


# Packing into a folder that another user can write to.


@pytest.fixture
def tree_to_pack(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for number in range(8):
            (folder / label / f"{number}.bin").write_bytes(bytes([number]) * 100_000)
    return folder


def test_pack_writes_through_no_symlink_of_another_user(
    machine: Machine, stranger: Stranger, tree_to_pack: Path
) -> None:
    mine = machine.folder / "mine"
    mine.mkdir(mode=0o700)
    names = ("lock", "inode.npy", "plan.new", "samples-000000.tar.part", "samples-000000.tar.sums.npy", "manifest.json")
    for name in names:
        (mine / name).write_text("mine")

    def is_untouched() -> bool:
        return {path.name: path.read_text() for path in mine.iterdir()} == dict.fromkeys(names, "mine")

    for number, how in enumerate(("a symlink", "a folder of symlinks", "a folder that all may write")):
        dst = stranger.mkdir(f"dst{number}", 0o777)
        dst.chmod(0o777)
        making = dst / ".packing"
        if how == "a symlink":
            stranger.does(partial(making.symlink_to, mine))
        elif how == "a folder of symlinks":
            stranger.does(partial(making.mkdir, mode=0o777))
            for name in names:
                stranger.does(partial((making / name).symlink_to, mine / name))
        else:
            making.mkdir()
            making.chmod(0o777)
        done = machine.run("pack", tree_to_pack, dst, "--classes", "none")
        assert (done.returncode, done.stderr.count("redoxfs: ")) == (4, 1), (how, done.stderr)
        assert "name a folder of your own" in done.stderr
        assert is_untouched()
    # A folder that others may write to is no reason to refuse.
    dst = stranger.mkdir("open")
    dst.chmod(0o777)
    machine.ok("pack", tree_to_pack, dst, "--classes", "none")
    machine.ok("verify", dst)
    assert not (dst / ".packing").exists()


def test_a_shard_that_is_replaced_by_a_symlink_opens_no_file_of_the_packers(
    machine: Machine, stranger: Stranger, tree_to_pack: Path
) -> None:
    private = machine.folder / "private"
    private.write_text("mine")
    private.chmod(0o600)
    dst = stranger.mkdir("dst")
    dst.chmod(0o777)
    first = dst / "tree-000000.tar"

    def swap() -> None:
        while not first.exists():
            pass
        first.unlink()
        first.symlink_to(private)

    # Many shards, each of which is synced: the pack goes on for long after the first.
    for number in range(60):
        (tree_to_pack / f"a/more{number}.bin").write_bytes(bytes(10_000))
    catalog = catalog_of(tree_to_pack)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=1, seed=0)
    attack = os.fork()
    if attack == 0:
        become(stranger.uid)
        swap()
        os._exit(0)
    try:
        with opened(tree_to_pack) as fd, pytest.raises(PackError, match=r"tree-000000\.tar"):
            pack(catalog, cells, fd, dst, shard_bytes=20_000, seed=0, asked={}, jobs=1)
    finally:
        os.kill(attack, signal.SIGKILL)
        os.waitpid(attack, 0)
    assert first.is_symlink()
    assert (private.read_text(), stat.S_IMODE(private.stat().st_mode)) == ("mine", 0o600)
    assert not (dst / "manifest.json").exists()


# The index of an object store in a folder of another user.


def test_an_index_of_another_user_is_not_used(
    machine: Machine, stranger: Stranger, tree_to_pack: Path, tmp_path: Path
) -> None:
    (tree_to_pack / "a/0.bin").chmod(0o600)
    packed = tmp_path / "packed"
    machine.ok("pack", tree_to_pack, packed, "--classes", "none")
    cache = machine.folder / "cache/redoxfs"
    with serving(packed) as server:
        machine.ok("mount", server.url, machine.mnt)
        machine.ok("umount", machine.mnt)
        (place,) = (cache / "indexes").iterdir()
        # As a stranger would forge it: all files may be read by all.
        modes = np.load(place / "index/mode.npy")
        replace_array(place, "mode", modes | 0o444)
        forged = cache.rename(machine.folder / "forged")
        for whose in ("all of it", "the indexes", "one index", "for all to write"):
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(forged, cache)
            for path in [cache, *cache.rglob("*")] if whose == "all of it" else []:
                os.chown(path, stranger.uid, stranger.uid)
            if whose == "for all to write":
                (cache / "indexes").chmod(0o777)
            elif whose != "all of it":
                os.chown(cache / "indexes" if whose == "the indexes" else place, stranger.uid, stranger.uid)
            said = machine.ok("mount", server.url, machine.mnt).stderr
            assert "fetched the index" in said, whose
            assert ("fetched again at each start" in said) == (whose != "one index"), whose
            assert stat.S_IMODE((machine.mnt / "a/0.bin").stat().st_mode) == 0o600, whose
            machine.ok("umount", machine.mnt)


# Names in /tmp that another user takes first.


def control_paths(
    user: Stranger, session: Path | None = None, *, makes: bool = True, job: str | None = None
) -> list[str]:
    """The control path of /mnt/a in a process of the user, and where a command looks for it. ``makes``: the socket."""
    reading, writing = os.pipe()

    def tell() -> None:
        os.environ.pop("XDG_RUNTIME_DIR", None)
        if session is not None:
            os.environ["XDG_RUNTIME_DIR"] = str(session)
        if job is not None:
            os.environ["SLURM_JOB_ID"] = job
        path = control_path(Path("/mnt/a"))
        if makes:
            path.touch()
        os.write(writing, f"{path}\n{control_path_of_daemon(Path('/mnt/a'))}".encode())

    user.does(tell)
    os.close(writing)
    with open(reading) as told:
        return told.read().splitlines()


def test_a_squatted_name_in_tmp_keeps_no_user_from_working(stranger: Stranger) -> None:
    """The victim is ``stranger``, who has no session; the squatter is another."""
    squatted = [Path(f"/tmp/redoxfs-{stranger.uid}"), Path(f"/tmp/redoxfs-{stranger.uid}-0")]
    try:
        with stranger_here(OTHER_UID) as squatter:
            for each in squatted:
                squatter.does(partial(each.mkdir, mode=0o777))
            path, found = control_paths(stranger)
            assert not {*map(str, squatted)} & {*map(str, Path(path).parents)}
            for folder in (Path(path).parent, Path(path).parents[1]):
                assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (stranger.uid, 0o700)
            # All other processes of the user come to the same.
            assert control_paths(stranger) == [path, found] == [path, path]
            # And they find a daemon there from a session, too.
            session = stranger.mkdir("session", 0o700)
            inside = f"{session}/redoxfs/{Path(path).name}"
            assert control_paths(stranger, session, makes=False) == [inside, path]
            assert control_paths(stranger, session) == [inside, inside]
    finally:
        for folder in Path("/tmp").glob(f"redoxfs-{stranger.uid}*"):
            shutil.rmtree(folder)


def test_a_job_finds_the_mount_that_its_prolog_made(stranger: Stranger) -> None:
    """In the folder that root made for the user (docs/slurm.md), and in no folder of another user."""
    run, job = Path("/run/redoxfs"), str(stranger.uid)
    run.mkdir(mode=0o755, exist_ok=True)
    folder = run / f"{job}.d"
    try:
        folder.mkdir(mode=0o700)
        for owner in (OTHER_UID, stranger.uid):
            os.chown(folder, owner, owner)
            with stranger_here(owner) as user:
                (prologs,) = {*control_paths(user, folder, job=job)}
            _, found = control_paths(stranger, job=job, makes=False)
            assert prologs.startswith(f"{folder}/")
            assert (found == prologs) == (owner == stranger.uid)
            shutil.rmtree(folder / "redoxfs")
    finally:
        shutil.rmtree(folder)
        for left in Path("/tmp").glob(f"redoxfs-{stranger.uid}*"):
            shutil.rmtree(left)


def test_root_without_a_session_has_its_sockets_in_run(machine: Machine, source: Path, stranger: Stranger) -> None:
    del machine.environment["XDG_RUNTIME_DIR"]
    squatted = Path("/tmp/redoxfs-0")
    squats = not squatted.exists()
    if squats:
        stranger.does(squatted.mkdir)
    try:
        machine.ok("mount", source, machine.mnt)
        folder = Path("/run/redoxfs/redoxfs")
        assert list(folder.glob("*.sock"))
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0o700)
        machine.ok("restart", machine.mnt)
        machine.ok("umount", "--all")
        assert not machine.mounts()
    finally:
        if squats:
            squatted.rmdir()


# Modes that change under a mount with allow_other.


LABELS = ("n02121808", "n02084071")


@pytest.fixture
def readable(machine: Machine, stranger: Stranger) -> Path:
    """A dataset that everybody may read, where everybody may go: two classes of ten, and a mountpoint beside it."""
    root = stranger.folder / "data"
    for label in LABELS:
        (root / "train" / label).mkdir(parents=True)
        for number in range(10):
            (root / "train" / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * 50)
    machine.mnt = stranger.folder / "mnt"
    machine.mnt.mkdir()
    return root


def seen_by(user: Stranger, root: Path, names: list[str]) -> dict[str, str]:
    """What a user reads under each name: the first words of the bytes, or the name of the error."""
    reading, writing = os.pipe()

    def read() -> None:
        told = {}
        for name in names:
            try:
                told[name] = (root / name).read_bytes()[:30].decode()
            except OSError as error:
                told[name] = errno.errorcode[error.errno or 0]
        os.write(writing, json.dumps(told).encode())

    user.does(read)
    os.close(writing)
    with open(reading) as told:
        found: dict[str, str] = json.load(told)
    return found


SECRET_FILE = f"train/{LABELS[0]}/3.jpg"
SECRET_WORDS = f"{LABELS[0]} 3 "


def narrow_by_mode(path: Path) -> None:
    path.chmod(0o600)


def narrow_by_a_rename(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.chmod(0o600)
    times = path.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(path)


def narrow_by_group(path: Path) -> None:
    os.chown(path, 0, 4242)
    path.chmod(0o640)


@pytest.mark.parametrize(
    ("narrow", "policy"),
    [(narrow_by_mode, "slot"), (narrow_by_a_rename, "pool"), (narrow_by_group, "slot")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_file_that_was_made_private_is_read_by_nobody_who_may_not(
    machine: Machine, stranger: Stranger, readable: Path, narrow: Callable[[Path], None], policy: str
) -> None:
    names = [str(path.relative_to(readable)) for path in sorted(readable.rglob("*.jpg"))]
    # Memory for few samples: what is read is read again.
    options = ("-o", "allow_other", "--policy", policy, "--memory", "6kB", "--chunk-size", "1")
    machine.ok("mount", readable, machine.mnt, *options)
    # Before the first read: what is in memory keeps the mode that it was read with.
    narrow(readable / SECRET_FILE)
    for _ in range(3):
        seen = seen_by(stranger, machine.mnt, names)
        assert not [name for name, text in seen.items() if text.startswith(SECRET_WORDS)]
        exact = seen_by(stranger, machine.mnt / ".redoxfs/exact", [SECRET_FILE, names[0]])
        assert exact[SECRET_FILE] == "EACCES"
        assert exact[names[0]].startswith(f"{LABELS[1]} 0")
    # The kernel has been told, and checks the mode of now.
    for path in (machine.mnt / SECRET_FILE, machine.mnt / ".redoxfs/exact" / SECRET_FILE):
        now, there = (readable / SECRET_FILE).stat(), path.stat()
        assert (there.st_mode, there.st_uid, there.st_gid) == (now.st_mode, now.st_uid, now.st_gid)
    assert seen_by(stranger, machine.mnt, [SECRET_FILE]) == {SECRET_FILE: "EACCES"}
    # Whoever may read it does.
    assert (machine.mnt / ".redoxfs/exact" / SECRET_FILE).read_bytes().startswith(SECRET_WORDS.encode())
    machine.ok("umount", machine.mnt)
    # Nor on a later mount, whose scan is the kept one.
    machine.ok("mount", readable, machine.mnt, *options)
    for _ in range(2):
        seen = seen_by(stranger, machine.mnt, names)
        assert not [name for name, text in seen.items() if text.startswith(SECRET_WORDS)]
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize(
    "narrow", [narrow_by_mode, narrow_by_a_rename, narrow_by_group], ids=lambda each: each.__name__
)
def test_an_exact_file_that_was_made_private_is_read_by_nobody_who_may_not(
    machine: Machine, stranger: Stranger, readable: Path, narrow: Callable[[Path], None]
) -> None:
    machine.ok("mount", readable, machine.mnt, "-o", "allow_other", "--classes", "none")
    assert seen_by(stranger, machine.mnt, [SECRET_FILE])[SECRET_FILE].startswith(SECRET_WORDS)
    narrow(readable / SECRET_FILE)
    for _ in range(3):
        assert seen_by(stranger, machine.mnt, [SECRET_FILE]) == {SECRET_FILE: "EACCES"}
    assert stat.S_IMODE((machine.mnt / SECRET_FILE).stat().st_mode) == stat.S_IMODE(
        (readable / SECRET_FILE).stat().st_mode
    )
    # It is shared again: the owner's next read tells.
    os.chown(readable / SECRET_FILE, 0, 0)
    (readable / SECRET_FILE).chmod(0o644)
    assert (machine.mnt / SECRET_FILE).read_bytes().startswith(SECRET_WORDS.encode())
    assert seen_by(stranger, machine.mnt, [SECRET_FILE])[SECRET_FILE].startswith(SECRET_WORDS)
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize("narrow", [narrow_by_mode, narrow_by_group], ids=lambda each: each.__name__)
def test_an_archive_that_was_made_private_is_read_by_nobody_who_may_not(
    machine: Machine, stranger: Stranger, readable: Path, narrow: Callable[[Path], None]
) -> None:
    archives = stranger.folder / "archives"
    for number, label in enumerate(LABELS):
        files = {f"train/{label}/{at}.jpg": (readable / f"train/{label}/{at}.jpg").read_bytes() for at in range(10)}
        tar_of(archives / f"s-{number}.tar", files)
    private = archives / "s-0.tar"
    names = [str(path.relative_to(readable)) for path in sorted(readable.rglob("*.jpg"))]
    machine.ok("mount", archives, machine.mnt, "-o", "allow_other", "--memory", "6kB", "--chunk-size", "1")
    # Before the first read: what is in memory keeps the mode that it was read with.
    narrow(private)
    for _ in range(3):
        seen = seen_by(stranger, machine.mnt, names)
        assert not [name for name, text in seen.items() if text.startswith(LABELS[0])]
        assert any(text.startswith(LABELS[1]) for text in seen.values())
        exact = seen_by(stranger, machine.mnt / ".redoxfs/exact", [SECRET_FILE, f"train/{LABELS[1]}/0.jpg"])
        assert exact[SECRET_FILE] == "EACCES"
        assert exact[f"train/{LABELS[1]}/0.jpg"].startswith(f"{LABELS[1]} 0")
    # It is shared again: the owner's next read tells.
    os.chown(private, 0, 0)
    private.chmod(0o644)
    assert (machine.mnt / ".redoxfs/exact" / SECRET_FILE).read_bytes().startswith(SECRET_WORDS.encode())
    exact = seen_by(stranger, machine.mnt / ".redoxfs/exact", [SECRET_FILE])
    assert exact[SECRET_FILE].startswith(SECRET_WORDS)
    machine.ok("umount", machine.mnt)


def test_without_allow_other_a_mode_that_has_changed_is_no_error(machine: Machine, readable: Path) -> None:
    machine.ok("mount", readable, machine.mnt, "--memory", "6kB", "--chunk-size", "1")
    (readable / SECRET_FILE).chmod(0o600)
    read = {path.read_bytes()[:30] for path in sorted(machine.mnt.rglob("*.jpg"))}
    assert len(read) == 20
    machine.ok("umount", machine.mnt)
