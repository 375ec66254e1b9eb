"""Where a mount keeps its state, which settings a state depends on, and a detached daemon that does not let go."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from resuming_nodes import MEMORY_BYTES, REMOTE_BYTES, dataset_at

from redoxfs.chunks import build_cells
from redoxfs.launch.errors import UsageError
from redoxfs.launch.path_status import path_status
from redoxfs.launch.resume import resume, settings_of, state_file_of, take_over
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.source import Dataset
from redoxfs.node import Plan, Share, plan_pool, plan_slot

LOOK_S = 60.0


@pytest.fixture
def folder(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With "source" and "mnt", and a home and a place for sockets."""
    short_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("source", "mnt", "kept"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("source/state", "which will be served; choose another place"),
        ("mnt/state", "which will be served; choose another place"),
        ("kept/no/state", "no such directory"),
        ("kept/", "is not a file name"),
    ],
)
def test_a_place_where_no_state_can_be_kept_is_refused(folder: Path, asked: str, why: str) -> None:
    source, target = (path_status(str(folder / name), LOOK_S) for name in ("source", "mnt"))
    with pytest.raises(UsageError, match=why):
        state_file_of(f"{folder}/{asked}", source, target, LOOK_S)


def test_a_daemon_that_does_not_let_go_delays_a_mount_until_its_deadline(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is stopped: the kernel takes connections for it, and nobody answers."""
    source, target = (path_status(str(folder / name), LOOK_S) for name in ("source", "mnt"))
    file = state_file_of(None, source, target, LOOK_S)
    assert file is not None
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(control_path(target.path)))
        stopped.listen()
        take_over(file, target, 0.1)
    assert capsys.readouterr().err == (
        f"the daemon of a detached mount of {folder / 'mnt'} does not answer; it may still write {file.base}\n"
    )
    # Nobody listens there any more.
    take_over(file, target, LOOK_S)
    assert capsys.readouterr().err == ""
    file.close()


def test_two_hosts_with_one_home_keep_a_state_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dataset: Dataset
) -> None:
    source, target = (path_status(str(folder / name), LOOK_S) for name in ("source", "mnt"))
    files = []
    for host in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        file = state_file_of(None, source, target, LOOK_S)
        assert file is not None
        files.append(file.path)
        if host == "one":
            file.replace(b"its state")
        else:
            plan = plan_pool(dataset.catalog, dataset.cells, memory_bytes=MEMORY_BYTES[1], seed=0, share=None)
            assert resume(file, plan, {}, 1) == b""
        file.close()
    assert files[0] != files[1]
    assert f"to continue from that of another host: --state {files[0]}" in capsys.readouterr().err


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Dataset]:
    with dataset_at(tmp_path / "data") as dataset:
        yield dataset


def settings(
    dataset: Dataset, policy: str, *, nodes: int = 1, seed: int = 0, chunk_size: int = 4, more: int = 0
) -> dict[str, str]:
    catalog = dataset.catalog
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=chunk_size, seed=seed)
    share = Share(0, nodes, REMOTE_BYTES, True, None, 60.0, exchange=0.0, window=1) if nodes > 1 else None
    make = plan_pool if policy == "pool" else plan_slot
    plan: Plan = make(catalog, cells, memory_bytes=MEMORY_BYTES[nodes] + more, seed=seed, share=share)
    return settings_of(replace(dataset, cells=cells, texts={}), seed, plan)


def test_the_pool_resumes_with_other_memory_chunks_seed_and_nodes(dataset: Dataset) -> None:
    assert settings(dataset, "pool") == settings(dataset, "pool", nodes=3, seed=1, chunk_size=7, more=10_000)
    assert settings(dataset, "pool") != settings(dataset, "slot")


def test_the_slot_policy_resumes_with_as_many_virtual_chunks(dataset: Dataset) -> None:
    same = settings(dataset, "slot")
    assert same == settings(dataset, "slot", nodes=2) == settings(dataset, "slot", nodes=3)
    for other in (
        settings(dataset, "slot", more=100_000),
        settings(dataset, "slot", seed=1),
        settings(dataset, "slot", chunk_size=7),
    ):
        assert other != same
