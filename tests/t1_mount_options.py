"""The mount options of `mount.redoxfs`: each option of `redoxfs mount` has one, and other programs' are accepted."""

import argparse
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.cli import main
from redoxfs.cli.arguments import mount_parser, parse
from redoxfs.cli.mount_helper import main as helper
from redoxfs.cli.mount_helper import mount_words
from redoxfs.launch.errors import UsageError
from redoxfs.launch.fuse_options import parse_fuse_options
from redoxfs.launch.options import MountOptions

# A value for each option that takes one, by its metavar.
VALUES = {
    "SIZE": "1MiB",
    "HOW": "dir",
    "GLOB": "*.jpg",
    "FILE": "/tmp/a, b.csv",
    "DIR": "/tmp/c, d",
    "LIST": "host0:1,host1:2",
    "N": "3",
    "I": "1",
    "SECONDS": "7.5",
    "DURATION": "500ms",
    "SHARE": "0.5",
    "READS,BYTES": "500,200MB",
    "P": "9",
    "SPEC": "torch-distributed,seed=3,no_shuffle",
    "ID": "17.a",
    "ADDRESS": "[::1]:9470",
    "NAME=VALUE": "team=a, b",
    "NAME,…": "rsync,tar",
}


def options_of(*texts: str) -> MountOptions:
    made = parse(["mount", *mount_words("/data", "/mnt", texts)]).options
    assert isinstance(made, MountOptions)
    return made


def long_options() -> list[argparse.Action]:
    return [action for action in mount_parser()._actions if action.option_strings and action.dest != "fuse_options"]


def test_the_last_of_an_option_and_its_opposite_counts() -> None:
    assert options_of("").keeper is None
    assert options_of("no_keeper,keeper").keeper is True
    assert options_of("keeper,no-keeper").keeper is False


@pytest.mark.parametrize("action", long_options(), ids=lambda action: str(action.dest))
def test_every_option_of_mount_is_a_mount_option(action: argparse.Action) -> None:
    long = next(name for name in action.option_strings if name.startswith("--"))
    names = {long.removeprefix("--"), long.removeprefix("--").replace("-", "_")}
    if action.nargs == 0:
        texts, words = names, [long]
    else:
        value = str(action.choices[-1]) if isinstance(action.choices, tuple) else VALUES[str(action.metavar)]
        escaped = value.replace(",", r"\,")
        texts = {text for name in names for text in (f'{name}="{value}"', f"{name}={escaped}")}
        words = [f"{long}={value}"]
    for text in texts:
        made = options_of(f"rw,{text},_netdev,noatime")
        assert made == parse(["mount", *words, "-o", "_netdev", "-o", "noatime", "/data", "/mnt"]).options
        assert made != parse(["mount", "-o", "_netdev", "-o", "noatime", "/data", "/mnt"]).options
    for bad in (f"{name}=" for name in names):
        with pytest.raises(UsageError, match=re.escape(bad)):
            options_of(bad)
    if action.nargs != 0:
        with pytest.raises(UsageError, match="needs a value"):
            options_of(f"ro,{long[2:]}")


@given(st.lists(st.text(st.characters(exclude_characters="\\\0\n"), min_size=1), max_size=4))
def test_any_text_can_be_a_value(globs: list[str]) -> None:
    quoted = ['samples="' + glob.replace('"', r"\"") + '"' for glob in globs]
    escaped = ["samples=" + glob.replace(",", r"\,").replace('"', r"\"") for glob in globs]
    assert options_of(",".join(["ro", *quoted])).dataset.samples == tuple(globs)
    if all(glob == glob.strip() for glob in globs):
        assert options_of(",".join(["ro", *escaped]), "nofail").dataset.samples == tuple(globs)


FOREIGN = (
    "rw,ro,suid,nosuid,dev,nodev,exec,noexec,sync,async,auto,noauto,defaults,nofail,_netdev,user,users,user=me,nouser,"
    "owner,group,comment=a b,x-systemd.automount,x-systemd.requires=/a,X-mount.mkdir,noatime,relatime,norelatime,"
    "strictatime,lazytime,silent"
)


def test_options_of_other_programs_are_accepted() -> None:
    options = options_of(FOREIGN)
    assert parse_fuse_options(options.fuse_options).kernel == {"noexec", "noatime"}
    assert (options.source, options.mountpoint) == ("/data", "/mnt")
    labels = 'context="system_u:object_r:nfs_t:s0:c1,c2"'
    assert parse_fuse_options(options_of(f"{labels},ro").fuse_options).kernel == {labels}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/data", "MOUNTPOINT"),
        (
            "/data /mnt -o nodes=a,b",
            '-o b: not an option of redoxfs mount or mount(8); quote a value with commas: name="a,b"',
        ),
        ("/data /mnt -o help", "-o help"),
        ("/data /mnt -o o=noatime", "-o o=noatime"),
        ('/data /mnt -o samples="a', "quote is not closed"),
        ("/data /mnt -o remount,ro", "umount /mnt"),
        ("/data /mnt -o seed=x", "--seed: 'x' is not a whole number"),
        ("/data /mnt -x", "-x"),
        ("/data /mnt -N /nowhere", "-N /nowhere: No such file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(line: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert helper(line.split()) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("redoxfs: ")
    assert err.count("\n") == 1
    assert words in err


def test_fake_and_sloppy_and_verbose_are_as_in_mount(capfd: pytest.CaptureFixture[str]) -> None:
    assert helper(["/data", "/mnt", "-s", "-f", "-n", "-v", "-o", "rw,nope,seed=3,allow_other", "-t", "redoxfs.x"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("redoxfs mount --seed=3 -o allow_other -- /data /mnt\n", "")
    assert helper(["/data", "/mnt", "-f", "-o", "nope"]) == 1


@pytest.mark.parametrize("option", ["memory=10x", "cache_size=-1", "nodes=a:b:c", "direct_io,page_cache"])
def test_fake_checks_the_values_too(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert helper(["/data", "/mnt", "-f", "-o", option]) == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_a_mount_that_fails_is_exit_code_32(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert helper([str(tmp_path / "nothing"), str(tmp_path), "-o", "rw"]) == 32
    assert capfd.readouterr().err.count("\n") == 1


# install-helper


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mount.redoxfs").touch()
    monkeypatch.setattr("sys.argv", [str(folder / "redoxfs")])
    return folder / "mount.redoxfs"


def install(folder: Path, *more: str) -> int:
    return main(["install-helper", "--directory", str(folder), *more])


def test_the_helper_is_linked_once_and_unlinked(
    script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "mount.redoxfs"
    assert install(tmp_path) == 0
    assert link.resolve() == script.resolve()
    assert f"linked {link} to {script}" in capfd.readouterr().err
    assert install(tmp_path) == 0
    assert "already" in capfd.readouterr().err
    assert install(tmp_path, "--undo") == 0
    assert capfd.readouterr().err == f"removed {link}\n"
    assert not os.path.lexists(link)
    assert install(tmp_path, "--undo") == 0
    assert "nothing to undo" in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_script_of_another_user_is_linked_with_a_warning(
    script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path) == 0
    assert "warning" not in capfd.readouterr().err
    assert install(tmp_path, "--undo") == 0
    os.chown(script, 64321, 64321)
    assert install(tmp_path) == 0
    assert f"warning: user 64321 owns {script}" in capfd.readouterr().err


def test_a_link_of_a_venv_that_has_moved_is_replaced(script: Path, tmp_path: Path) -> None:
    link = tmp_path / "mount.redoxfs"
    link.symlink_to(tmp_path / "before/bin/mount.redoxfs")
    assert install(tmp_path) == 0
    assert link.resolve() == script.resolve()


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder"])
def test_nothing_of_others_is_replaced(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    link, other = tmp_path / "mount.redoxfs", tmp_path / "other"
    match kind:
        case "file":
            link.write_text("theirs")
        case "folder":
            link.mkdir()
        case "link":
            other.touch()
            link.symlink_to(other)
        case _:
            link.symlink_to(other)

    def seen() -> tuple[int, int, int]:
        # To look where a link leads sets its time of access.
        told = os.lstat(link)
        return told.st_ino, told.st_mode, told.st_mtime_ns

    before = seen()
    for more in ([], ["--undo"]):
        assert install(tmp_path, *more) == 4
        err = capfd.readouterr().err
        assert "left as it is" in err
        assert err.count("\n") == 1
    assert seen() == before


@pytest.mark.usefixtures("script")
def test_a_folder_that_is_missing_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path / "nothing") == 4
    assert capfd.readouterr().err.endswith("nothing/mount.redoxfs: No such file or directory\n")
