"""The mount table: parsing, and which mount a path is on, against a small model of mounting."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.cli.options.mounts import UmountOptions
from redoxfs.cli.umount import is_asked_for
from redoxfs.launch.path_status import our_mount_of
from redoxfs.launch.runtime_paths import control_path
from redoxfs.linux import mount_table
from redoxfs.linux.mount_table import Mount, mount_of, parse_mountinfo, read_mounts, source_text, topmost_at

SAMPLE = rb"""22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/a\040b\011c\134d ro,nosuid - fuse.redoxfs /data/set\0401 ro,user_id=0
41 27 0:51 /sub /mnt/\303\244 rw - tmpfs  rw
this is no line
42 27 0:52 / /x rw - ext4
"""


def test_mountinfo_is_parsed_with_escapes_and_optional_fields() -> None:
    mounts = {mount.mount_id: mount for mount in parse_mountinfo(SAMPLE)}
    assert sorted(mounts) == [22, 27, 40, 41]
    assert mounts[40].mountpoint == "/mnt/a b\tc\\d"
    assert mounts[40].source == "/data/set 1"
    assert mounts[40].ours
    assert mounts[40].device == "0:50"
    assert not mounts[27].ours
    assert mounts[27].super_options == {"rw", "discard"}
    assert (mounts[41].root, mounts[41].mountpoint, mounts[41].source) == ("/sub", "/mnt/ä", "")


@pytest.mark.parametrize(
    ("uid", "words", "ended"),
    [
        (1000, {}, "a"),
        (0, {}, "root"),
        (0, {"all_users": True}, "a b root"),
        # An epilog is root, and the job is the user's.
        (0, {"job": "7"}, "b"),
        (1000, {"job": "7"}, ""),
        (1001, {"job": "7"}, "b"),
    ],
)
def test_all_ends_the_mounts_of_one_user_unless_root_names_all_or_a_job(
    uid: int, words: dict[str, Any], ended: str
) -> None:
    table = b"".join(
        b"%d 27 0:%d / /%s ro - fuse.redoxfs /data%s ro,user_id=%d,group_id=%d\n" % (40 + i, 50 + i, name, job, of, of)
        for i, (name, job, of) in enumerate(((b"a", b"", 1000), (b"b", b"#job=7", 1001), (b"root", b"", 0)))
    )
    options = UmountOptions(all=True, **words)
    asked = [mount.mountpoint[1:] for mount in parse_mountinfo(table) if is_asked_for(mount, options, uid)]
    assert " ".join(asked) == ended


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name and b"/" not in name))
def test_any_name_survives_the_kernels_escapes(name: bytes) -> None:
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in name)
    line = b"40 27 0:50 / /mnt/" + escaped + b" ro - fuse.redoxfs " + escaped + b" ro"
    (mount,) = parse_mountinfo(line)
    assert os.fsencode(mount.mountpoint) == b"/mnt/" + name
    assert os.fsencode(mount.source) == name


@given(
    st.text(st.sampled_from("#=jobé,\\ 7"), max_size=30),
    st.none() | st.from_regex(r"[A-Za-z0-9._:-]{1,9}", fullmatch=True),
)
def test_a_mount_lists_its_job_whatever_its_source_is(path: str, job: str | None) -> None:
    source = source_text(Path(f"/{path}"), job)
    mount = Mount(1, 0, "0:50", "/", "/mnt", "fuse.redoxfs", source, frozenset({"ro", "user_id=7", "group_id=8"}))
    assert (mount.job, mount.owner) == (job, (7, 8))
    assert source.isascii()
    assert not set(",\\") & set(source)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_parsed(text: bytes) -> None:
    for mount in parse_mountinfo(text):
        assert isinstance(mount.mount_id, int)


def test_a_mount_that_other_namespaces_get_is_shared() -> None:
    lines = [
        b"40 27 0:50 / /mnt ro shared:7 master:3 - fuse.redoxfs /data ro",
        b"40 27 0:50 / /mnt ro master:3 - fuse.redoxfs shared:7 ro",
        b"40 27 0:50 / /mnt ro - fuse.redoxfs /data ro,shared:7",
    ]
    assert [mount.is_shared for mount in parse_mountinfo(b"\n".join(lines))] == [True, False, False]


PLACES = ["/", "/a", "/a/b", "/a/b/c", "/d"]


@given(st.lists(st.sampled_from(PLACES), max_size=8), st.sampled_from(PLACES))
def test_a_path_is_on_the_topmost_visible_mount(order: list[str], asked: str) -> None:
    """Mounts made one after another, each where its path led at that time, as mount(2) does."""
    mounts = [_mount(1, 0, "/")]
    # The model: what a path leads to is the newest mount at the longest prefix, unless a mount made later at a
    # shorter prefix hides it.
    seen: dict[str, tuple[int, int]] = {"/": (0, 1)}
    for step, place in enumerate(order, start=1):
        parent = _led_to(seen, place)
        mounts.append(_mount(step + 1, parent, place))
        seen = {at: told for at, told in seen.items() if not _below(at, place)} | {place: (step, step + 1)}
    found = mount_of(Path(asked), mounts)
    assert found is not None
    assert found.mount_id == _led_to(seen, asked)
    top = topmost_at(Path(asked), mounts)
    assert (top is not None) == (asked in seen)


def _mount(mount_id: int, parent_id: int, place: str) -> Mount:
    return Mount(mount_id, parent_id, "0:1", "/", place, "tmpfs", "none", frozenset())


def _below(path: str, place: str) -> bool:
    return path == place or place == "/" or path.startswith(place + "/")


def _led_to(seen: dict[str, tuple[int, int]], path: str) -> int:
    return seen[max((place for place in seen if _below(path, place)), key=len)][1]


def test_a_path_outside_every_mount_has_none() -> None:
    assert mount_of(Path("/a"), []) is None
    assert mount_of(Path("/b"), [_mount(5, 4, "/a")]) is None


def test_every_line_of_this_machines_table_is_parsed() -> None:
    mounts = read_mounts()
    assert len(mounts) == len(Path("/proc/self/mountinfo").read_bytes().splitlines())
    proc = topmost_at(Path("/proc"), mounts)
    assert proc is not None
    assert proc.fstype == "proc"


def test_a_new_mount_with_the_number_of_one_that_has_ended_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Mount(1, 0, "0:50", "/", "/mnt", "fuse.redoxfs", "/data", frozenset())
    new = replace(ended, mount_id=2, mountpoint="/other", source="/more")
    bound = replace(ended, mount_id=3, mountpoint="/bound")
    monkeypatch.setattr(mount_table, "read_mounts", lambda: (new,))
    assert mount_table.also_mounted(ended) is None
    monkeypatch.setattr(mount_table, "read_mounts", lambda: (new, bound))
    assert mount_table.also_mounted(ended) == "it is also mounted at /bound"


@pytest.mark.parametrize("asked", ["/made/set/x", "/bound/x"])
@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_mount_and_a_bind_mount_of_it_the_one_with_the_socket_is_asked(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, is_first: bool
) -> None:
    """A copy of a mount namespace lists mounts in the order of the tree, not in the order in which they were made."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    root = Mount(1, 0, "0:1", "/", "/", "ext4", "/dev/vda", frozenset())
    made = Mount(2, 1, "0:50", "/", "/made/set", "fuse.redoxfs", "/data", frozenset())
    bound = replace(made, mount_id=3, mountpoint="/bound")
    control_path(Path("/made/set")).touch()
    found = our_mount_of(Path(asked), [root, *((made, bound) if is_first else (bound, made))])
    assert found is not None
    assert found.mount == made
