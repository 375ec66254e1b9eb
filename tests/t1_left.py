"""`redoxfs doctor --left` lists what is there, and its commands remove it."""

import subprocess
from pathlib import Path

import pytest

from redoxfs.cli import main
from redoxfs.doctor import left


def test_what_is_left_is_listed_and_the_commands_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(left, "own_folders", lambda: [tmp_path / "run/redoxfs"])
    monkeypatch.setattr(left, "read_mounts", list)
    monkeypatch.setattr(left, "HELPERS", ())
    monkeypatch.setattr(left, "OF_SLURM", (tmp_path / "prolog",))
    monkeypatch.setattr(left, "FSTAB", tmp_path / "fstab")
    monkeypatch.setattr(left, "UNITS", tmp_path)
    monkeypatch.setattr(left, "OF_UNITS", ())
    assert main(["doctor", "--left"]) == 0
    assert capfd.readouterr().out == "ok       nothing: redoxfs has left nothing here that it knows of\n"
    for name in ("my cache/redoxfs/a.scan", "state/redoxfs/a.log", "run/redoxfs/a.sock"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("12345")
    (tmp_path / "prolog").touch()
    (tmp_path / "fstab").write_text("# redoxfs\n/data /mnt redoxfs ro 0 0\n/dev/sda / ext4 ro 0 0\n")
    (tmp_path / "redoxfs@.service").touch()
    found = {each.name: each for each in left.left()}
    assert list(found) == ["scans and indexes", "logs and states", "sockets and locks", "Slurm", "fstab", "unit"]
    assert "/data /mnt redoxfs" in found["fstab"].found
    for name in ("scans and indexes", "logs and states", "sockets and locks"):
        assert "1 file, 5 B" in found[name].found
        subprocess.run(found[name].command or "", shell=True, check=True)
    assert [each.name for each in left.left()] == ["Slurm", "fstab", "unit"]
    assert main(["doctor", "--left", "/"]) == 2


def test_the_runtime_folder_of_the_environment_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "redoxfs").mkdir()
    assert f"rm -r {tmp_path / 'redoxfs'}" in [each.command for each in left.left()]


def test_units_of_mounts_are_removed_by_their_escaped_names_and_drop_ins_as_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, tools = tmp_path / "my units", tmp_path / "tools"
    (units / "redoxfs@.service.d").mkdir(parents=True)
    (units / "redoxfs@.service.d/override.conf").touch()
    (units / "mnt-set.mount.d").mkdir()
    names = ["mnt-redoxfs\\x2dset.mount", "mnt-my\\x20redoxfs.automount", "mnt-set.automount"]
    for name in names:
        (units / name).touch()
    (units / "mnt-set.mount").write_text("[Mount]\nWhat=/data/set\nType = redoxfs\n")
    (units / "mnt-other.mount").write_text("[Mount]\nType=ext4\n")
    (units / "redoxfs@.service").touch()
    tools.mkdir()
    (tools / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "systemctl").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/asked\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    for name in ("HELPERS", "OF_SLURM"):
        monkeypatch.setattr(left, name, ())
    monkeypatch.setattr(left, "FSTAB", tmp_path / "fstab")
    monkeypatch.setattr(left, "UNITS", units)
    monkeypatch.setattr(left, "OF_UNITS", (tmp_path / "etc-redoxfs",))
    (tmp_path / "etc-redoxfs/mnt").mkdir(parents=True)
    for each in left._of_machine():
        subprocess.run(each.command or "", shell=True, check=True)
    assert [unit.name for unit in units.iterdir()] == ["mnt-other.mount"]
    assert not (tmp_path / "etc-redoxfs").exists()
    asked = (tmp_path / "asked").read_text().splitlines()
    # A template has no process of its own, and systemctl refuses to stop it.
    of_template = ["stop redoxfs@*.service", "disable redoxfs@.service"]
    assert sorted(asked) == sorted([*of_template, *(f"disable --now {name}" for name in [*names, "mnt-set.mount"])])
    assert asked.index("disable --now mnt-set.automount") < asked.index("disable --now mnt-set.mount")
