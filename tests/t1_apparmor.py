"""A profile of AppArmor for fusermount3, made up after the one of Ubuntu 25.04."""

from pathlib import Path

import pytest

from redoxfs.doctor.machine import check_apparmor
from redoxfs.doctor.result import Level
from redoxfs.launch.apparmor import Confined, confinement
from redoxfs.launch.errors import FuseUnavailableError
from redoxfs.launch.fuse_access import check_apparmor as check_before_the_scan

PROFILE = """
abi <abi/4.0>,
include <tunables/global>

profile fusermount3 /usr/bin/fusermount3 {
  include <abstractions/base>
  capability sys_admin,
  @{PROC}/@{pid}/mounts r,
  mount fstype=@{fuse_types} options=(nosuid,nodev,rw) -> @{HOME}/**/,
  mount fstype=@{fuse_types} options=(nosuid,nodev,ro) -> @{HOME}/**/,
  mount fstype=@{fuse_types} options=(nosuid,nodev,ro) -> /mnt/{,**/},
  mount fstype=@{fuse_types} options=(nosuid,nodev,ro) -> @{run}/user/@{uid}/**/,  # portals
  mount fstype=nfs -> /srv/**/,
  umount /data/**/,
  include if exists <local/fusermount3>
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("local", "disable"):
        (tmp_path / name).mkdir()
    (tmp_path / "fusermount3").write_text(PROFILE)
    (tmp_path / "enabled").write_text("Y\n")
    return tmp_path


def confined(folder: Path) -> Confined:
    found = confinement(folder, folder / "enabled")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mountpoint", "is_permitted"),
    [
        ("/mnt", True),
        ("/mnt/set", True),
        ("/home/me/mnt", True),
        ("/home/me", False),
        ("/root/a/b", True),
        ("/run/user/1000/set", True),
        ("/data/set", False),
        ("/srv/set", False),
        ("/mnt2/set", False),
        ("/scratch/home/me/set", False),
    ],
)
def test_the_rules_of_a_profile_decide_by_mountpoint(folder: Path, mountpoint: str, is_permitted: bool) -> None:
    assert confined(folder).permits(Path(mountpoint)) is is_permitted


def test_a_rule_of_the_local_file_counts(folder: Path) -> None:
    words = confined(folder).mending(Path("/data/set"))
    assert words.endswith(f"| sudo tee -a {folder}/local/fusermount3 && sudo apparmor_parser -r {folder}/fusermount3")
    (folder / "local/fusermount3").write_text(words.split("'")[1] + "\n")
    assert confined(folder).permits(Path("/data/set"))
    assert not confined(folder).permits(Path("/data/other"))


def test_a_variable_that_is_not_known_is_no_refusal(folder: Path) -> None:
    (folder / "local/fusermount3").write_text("mount fstype=fuse.* -> @{SCRATCH}/**/,\n")
    assert confined(folder).permits(Path("/data/set"))


@pytest.mark.parametrize("how", ["complain", "disabled", "off", "no profile", "any mount"])
def test_a_profile_that_does_not_confine_is_none(folder: Path, how: str) -> None:
    if how == "complain":
        text = PROFILE.replace("/usr/bin/fusermount3 {", "/usr/bin/fusermount3 flags=(complain) {")
        (folder / "fusermount3").write_text(text)
    elif how == "disabled":
        (folder / "disable/fusermount3").symlink_to(folder / "fusermount3")
    elif how == "off":
        (folder / "enabled").write_text("N\n")
    elif how == "no profile":
        (folder / "fusermount3").unlink()
    else:
        (folder / "local/fusermount3").write_text("  mount,\n")
    assert confinement(folder, folder / "enabled") is None


def test_a_mount_is_refused_before_the_scan_with_its_mending(folder: Path) -> None:
    check_before_the_scan(Path("/mnt/set"), folder, folder / "enabled")
    with pytest.raises(FuseUnavailableError) as raised:
        check_before_the_scan(Path("/data/set"), folder, folder / "enabled")
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith("AppArmor lets fusermount3 mount below")
    assert line.endswith(confined(folder).mending("/data/set"))


def test_doctor_says_where_mounts_are_permitted(folder: Path) -> None:
    found = check_apparmor(folder, folder / "enabled", is_root=False)
    assert found.level is Level.WARNING
    assert "@{HOME}/**/, /mnt/{,**/}, @{run}/user/@{uid}/**/" in found.found
    assert str(found.command) == confined(folder).mending("MOUNTPOINT")
    assert check_apparmor(folder, folder / "enabled", is_root=True).level is Level.OK
    (folder / "enabled").unlink()
    assert check_apparmor(folder, folder / "enabled", is_root=False).level is Level.OK
