"""Bad input to the real program: one clear line and the documented exit code, and nothing left behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from machine import Machine
from ports import reserve_addresses

from redoxfs.launch.sizes import parse_size

Redoxfs = Callable[..., subprocess.CompletedProcess[str]]

ROOT = os.geteuid() == 0

# A mount namespace of its own; who is not root gets one inside a user namespace.
IN_OWN_NAMESPACE = ["unshare", "--mount"] if ROOT else ["unshare", "--map-root-user", "--mount"]

# Root without the two capabilities that let it read what modes deny.
WITHOUT_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
WITHOUT_OVERRIDE += ["--inh-caps=-dac_override,-dac_read_search"]

NOBODY = 65534


@pytest.fixture
def own_namespace() -> list[str]:
    """The prefix that runs a command in a mount namespace of its own; skips where this user cannot have one."""
    mounting = [*IN_OWN_NAMESPACE, "mount", "-t", "tmpfs", "none", "/dev"]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip(f"not permitted here: {' '.join(mounting)}")
    return IN_OWN_NAMESPACE


@pytest.fixture
def mnt(machine: Machine) -> Path:
    return machine.mnt


@pytest.fixture
def redoxfs(machine: Machine) -> Redoxfs:
    """Run the program, after some words."""

    def run(*arguments: str | Path, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        machine.before = prefix
        return machine.run(*arguments)

    return run


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The run ended with `code`, and its last line, the only one that is an error, has `words`."""
    *before, last = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert last.startswith("redoxfs: ")
    assert not [line for line in before if line.startswith("redoxfs: ")]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in last


@pytest.mark.parametrize("verb", ["mount", "inspect"])
def test_no_such_source(redoxfs: Redoxfs, tmp_path: Path, verb: str) -> None:
    refused(redoxfs(verb, tmp_path / "none"), 3, f"SOURCE {tmp_path / 'none'}: no such directory")


@pytest.mark.parametrize("verb", ["mount", "inspect"])
def test_a_source_that_is_a_file(redoxfs: Redoxfs, source: Path, verb: str) -> None:
    refused(redoxfs(verb, source / "train/n02121808/cat0.jpg"), 3, "cat0.jpg", "not a directory")


@pytest.mark.parametrize("verb", ["mount", "inspect"])
def test_an_empty_tree(redoxfs: Redoxfs, tmp_path: Path, verb: str) -> None:
    (tmp_path / "empty/inner").mkdir(parents=True)
    refused(redoxfs(verb, tmp_path / "empty"), 3, "empty", "no files")


@pytest.mark.parametrize("verb", ["mount", "inspect"])
@pytest.mark.parametrize("part", ["", "train/n02084071"])
def test_a_source_without_permission(redoxfs: Redoxfs, source: Path, verb: str, part: str) -> None:
    if ROOT:
        os.chown(source / part, NOBODY, NOBODY)
    (source / part).chmod(0o700 if ROOT else 0)
    try:
        done = redoxfs(verb, source, prefix=WITHOUT_OVERRIDE if ROOT else ())
    finally:
        (source / part).chmod(0o700)
    refused(done, 3, part or str(source), "Permission denied")


@pytest.mark.parametrize("mode", [0o300, 0o600])
def test_a_source_that_can_only_be_listed_or_only_searched(redoxfs: Redoxfs, source: Path, mode: int) -> None:
    if ROOT:
        os.chown(source, NOBODY, NOBODY)
        mode >>= 6
    source.chmod(mode)
    try:
        done = redoxfs("mount", source, prefix=WITHOUT_OVERRIDE if ROOT else ())
    finally:
        source.chmod(0o700)
    refused(done, 3, str(source), "Permission denied")


@pytest.mark.skipif(ROOT, reason="root may mount on what it may not write to")
def test_a_mountpoint_that_is_not_writable(redoxfs: Redoxfs, source: Path, mnt: Path) -> None:
    mnt.chmod(0o500)
    refused(redoxfs("mount", source, mnt), 4, str(mnt), "not writable")


def test_a_mountpoint_that_is_missing(redoxfs: Redoxfs, source: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    refused(redoxfs("mount", source, none), 4, f"MOUNTPOINT {none} does not exist; make it: mkdir -p {none}")


def test_a_mountpoint_that_is_a_file(redoxfs: Redoxfs, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(redoxfs("mount", source, tmp_path / "file"), 4, f"MOUNTPOINT {tmp_path / 'file'}: not a directory")


def test_a_mountpoint_inside_source(redoxfs: Redoxfs, source: Path) -> None:
    refused(redoxfs("mount", source, source / "train"), 4, "lies inside SOURCE", str(source))


def test_a_mountpoint_inside_source_by_a_symlink(redoxfs: Redoxfs, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source / "train")
    refused(redoxfs("mount", source, tmp_path / "link"), 4, "lies inside SOURCE", str(source))


def test_a_mountpoint_that_holds_redoxfs_itself(redoxfs: Redoxfs, source: Path) -> None:
    refused(redoxfs("mount", source, sys.prefix), 4, sys.prefix, "holds redoxfs or its Python")


@pytest.mark.parametrize("verb", ["umount", "status"])
def test_umount_and_status_without_a_mount(redoxfs: Redoxfs, mnt: Path, verb: str) -> None:
    refused(redoxfs(verb, mnt), 4, str(mnt), "no redoxfs mount is there")
    refused(redoxfs(verb, mnt / "none"), 4, f"MOUNTPOINT {mnt / 'none'}: no such directory")


def test_too_little_memory_names_an_amount_that_suffices(redoxfs: Redoxfs, source: Path, mnt: Path) -> None:
    done = redoxfs("mount", source, mnt, "--memory", "1000")
    refused(done, 5, "1000 B", "at least --memory ")
    needed = done.stderr.split("at least --memory ")[1].strip()
    told = redoxfs("inspect", source, "--memory", needed)
    assert told.returncode == 0
    assert "too small" not in told.stdout
    assert "too small" in redoxfs("inspect", source, "--memory", "1000").stdout


@pytest.mark.parametrize("remote", [(), ("--remote-memory", "90%")])
@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_too_little_memory_of_a_node_names_an_amount_that_suffices(
    redoxfs: Redoxfs, source: Path, mnt: Path, policy: str, remote: tuple[str, ...]
) -> None:
    """The part for samples from other nodes grows with --memory. A node that has enough looks for the other."""
    of_node = ("--nodes", ",".join(reserve_addresses(2)), "--node-rank", "0", "--join-timeout", "0.1")
    options = (*of_node, "--policy", policy, *remote)
    done = redoxfs("mount", source, mnt, "--memory", "1000", *options)
    refused(done, 5, "1000 B", "at least --memory ")
    needed = done.stderr.split("at least --memory ")[1].split(",")[0].strip()
    assert redoxfs("mount", source, mnt, "--memory", needed, *options).returncode == 10


def test_a_node_with_memory_for_samples_of_others_only_is_told_no_amount(
    redoxfs: Redoxfs, source: Path, mnt: Path
) -> None:
    of_node = ("--nodes", ",".join(reserve_addresses(2)), "--node-rank", "0", "--remote-memory", "100%")
    done = redoxfs("mount", source, mnt, "--memory", "1GiB", *of_node)
    refused(done, 5, "--remote-memory 100% leaves too little of any --memory")
    assert "at least" not in done.stderr


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_a_large_sample_that_needs_more_memory_is_named(redoxfs: Redoxfs, source: Path, mnt: Path, policy: str) -> None:
    large = sorted(source.glob("train/*"))[0] / "dog99.jpg"
    large.touch()
    os.truncate(large, 3 << 30)
    done = redoxfs("mount", "--memory", "5GiB", "--policy", policy, source, mnt)
    refused(done, 5, "5.0 GiB", "at least --memory 6", f"because {large.relative_to(source)} (3.0 GiB) must fit twice")
    needed = done.stderr.split("at least --memory ")[1].split(",")[0]
    assert parse_size(needed, 0) < 6.1 * (1 << 30)


@pytest.mark.parametrize("size", ["lots", "0", "200%", "-1G"])
def test_an_invalid_amount_of_memory(redoxfs: Redoxfs, source: Path, mnt: Path, size: str) -> None:
    refused(redoxfs("mount", source, mnt, f"--memory={size}"), 2, f"--memory {size}: ")


def test_a_mistake_in_an_option_is_found_before_the_scan(
    redoxfs: Redoxfs, source: Path, mnt: Path, tmp_path: Path
) -> None:
    """A scan of slow storage takes minutes."""
    (tmp_path / "script.py").write_text("import torch")
    for code, *words in (
        (6, "--classes", "dri"),
        (6, "--classes", "member:cls"),
        (6, "--classes", "member:"),
        (6, "--classes", str(tmp_path / "none.csv")),
        (6, "--classes", str(tmp_path / "script.py")),
        (6, "--groups", "{"),
        (4, "--cache", str(tmp_path / "script.py")),
        (4, "--cache", "/proc/none"),
        (4, "--state", str(tmp_path / "script.py")),
    ):
        done = redoxfs("mount", source, mnt, *words)
        refused(done, code, words[1])
        assert "catalog: " not in done.stderr


def test_a_log_that_cannot_be_written(redoxfs: Redoxfs, source: Path, mnt: Path, tmp_path: Path) -> None:
    refused(redoxfs("mount", source, mnt, "--log", tmp_path / "none/log"), 2, f"{tmp_path / 'none'}: no such directory")


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        ("mount -t tmpfs none /dev && : >/dev/null", ["No such file", "modprobe fuse"]),
        (": >fuse && mount --bind fuse /dev/fuse", ["not a device"]),
    ],
)
def test_no_fuse_device(
    redoxfs: Redoxfs, own_namespace: list[str], source: Path, mnt: Path, tmp_path: Path, hide: str, words: list[str]
) -> None:
    prefix = [*own_namespace, "sh", "-ec", f'cd "$0"; {hide}; exec "$@"', str(tmp_path)]
    refused(redoxfs("mount", source, mnt, prefix=prefix), 7, "/dev/fuse", *words)


@pytest.mark.skipif(not ROOT, reason="only root can take its own permission for /dev/fuse away")
def test_no_permission_for_the_fuse_device(
    redoxfs: Redoxfs, own_namespace: list[str], source: Path, mnt: Path, tmp_path: Path
) -> None:
    hide = f": >fuse; chown {NOBODY} fuse; chmod 600 fuse; mount --bind fuse /dev/fuse"
    prefix = [*own_namespace, "sh", "-ec", f'cd "$0"; {hide}; exec "$@"', str(tmp_path), *WITHOUT_OVERRIDE]
    refused(redoxfs("mount", source, mnt, prefix=prefix), 7, "/dev/fuse", "Permission denied")


@pytest.mark.skipif(not ROOT, reason="only root can drop its own right to mount")
def test_no_right_to_mount(redoxfs: Redoxfs, source: Path, mnt: Path) -> None:
    prefix = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    refused(redoxfs("mount", source, mnt, prefix=prefix), 7)


def test_a_traceback_appears_only_on_request(redoxfs: Redoxfs, tmp_path: Path) -> None:
    done = redoxfs("inspect", tmp_path / "none", prefix=["env", "REDOXFS_DEBUG=1"])
    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("redoxfs: ")
