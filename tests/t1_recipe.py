"""The recipe of a mount: what one daemon writes is what another reads, without a copy, and only in the same layout."""

import dataclasses
import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from certificates import Authority
from packs import opened

from redoxfs.chunks import Cells, StorageSpeed
from redoxfs.cli.restart import check
from redoxfs.dataset import Catalog, Finding, Tree, Verdict
from redoxfs.launch.daemon import succeeding
from redoxfs.launch.deadline import Look
from redoxfs.launch.errors import MountpointError
from redoxfs.launch.keeper import layouts
from redoxfs.launch.members import Membership, transport_of
from redoxfs.launch.objects import Objects
from redoxfs.launch.options import (
    ClusterOptions,
    DatasetOptions,
    MemoryOptions,
    MountOptions,
    SamplerSpec,
    SharingOptions,
)
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.recipe import LAYOUT, Recipe, RecipeError, RecipeMemory, read_recipe
from redoxfs.launch.source import Dataset
from redoxfs.linux.pids import pid_namespace
from redoxfs.objects import Address
from redoxfs.objects.client import Version
from redoxfs.packed import load_index, pack
from redoxfs.packed.index import Index
from redoxfs.packed.positions import Positions
from redoxfs.peers import Tls
from redoxfs.testing import layout_of, make_source

OF_DATASET = (Dataset, Catalog, Tree, Verdict, Finding, Cells, StorageSpeed, Index, Positions)
PICKLED = (*OF_DATASET, Recipe, Membership, Objects, Address, Version)
OPTIONS = (MountOptions, DatasetOptions, MemoryOptions, ClusterOptions, SharingOptions, SamplerSpec)


@pytest.fixture
def plain(tmp_path: Path) -> Dataset:
    catalog, cells = layout_of(make_source(tmp_path / "source"))
    return Dataset(catalog, cells, -1, None, None)


@pytest.fixture
def packed(tmp_path: Path) -> Dataset:
    catalog, cells = layout_of(source := make_source(tmp_path / "source"))
    with opened(source) as root_fd:
        pack(catalog, cells, root_fd, tmp_path / "packed", shard_bytes=1 << 30, seed=0, asked={}, jobs=1)
    index = load_index(tmp_path / "packed")
    return Dataset(index.catalog, index.cells, -1, index, StorageSpeed(0.1, 1e6))


def recipe_of(dataset: Dataset) -> Recipe:
    return Recipe(
        options=MountOptions("/source", "/target", dataset=DatasetOptions(seed=3), job="17"),
        source="/source",
        target=Path("/target"),
        memory_bytes=1 << 40,
        texts=dataset.texts,
        control_path=Path("/run/a.sock"),
        state_path=None,
        request=("--memory=1G", "--", "/source"),
    )


def columns(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each field of a dataclass, and of those in it."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from columns(getattr(value, field.name), f"{name}.{field.name}")
    else:
        yield name, value


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_what_one_daemon_writes_another_reads(kind: str, request: pytest.FixtureRequest) -> None:
    dataset: Dataset = request.getfixturevalue(kind)
    memory = RecipeMemory()
    kept = memory.keep_dataset(dataset)
    # They were found after the arrays were written.
    kept.texts["fingerprint"] = "abc"
    memory.finish(recipe_of(kept), "0.1.0")
    recipe, read = read_recipe(memory.fd, 7)
    assert recipe == recipe_of(kept)
    assert read.root_fd == 7
    assert read.texts == {"fingerprint": "abc"}
    for (name, before), (_, after) in zip(columns(dataset), columns(read), strict=True):
        if isinstance(before, np.ndarray):
            assert np.array_equal(before, after), name
            assert before.dtype == after.dtype
            # A column of one number takes the memory of one.
            assert before.strides == after.strides or not len(before)
        elif name not in (".root_fd", ".texts"):
            assert before == after, name
    if read.index is not None:
        assert read.index.catalog is read.catalog
    os.close(memory.fd)


def test_all_daemons_map_the_same_arrays(plain: Dataset) -> None:
    memory = RecipeMemory()
    kept = memory.keep_dataset(plain)
    memory.finish(recipe_of(kept), "0.1.0")
    _, read = read_recipe(memory.fd, 7)
    for array in (kept.catalog.tree.names, read.catalog.tree.names, read.cells.cells):
        assert not array.flags.owndata
        assert not array.flags.writeable
    # Nobody can change what both have mapped.
    with pytest.raises(PermissionError):
        os.pwrite(memory.fd, b"x", 0)
    os.close(memory.fd)


def test_another_layout_is_refused_with_both_numbers(plain: Dataset) -> None:
    memory = RecipeMemory()
    memory.finish(recipe_of(memory.keep_dataset(plain)), "0.0.9")
    data = bytearray(os.pread(memory.fd, 1 << 30, 0))
    os.close(memory.fd)
    struct.pack_into("<I", data, 8, LAYOUT + 1)
    changed = os.memfd_create("changed")
    os.write(changed, data)
    with pytest.raises(
        RecipeError, match=rf"redoxfs 0\.0\.9 wrote .* layout {LAYOUT + 1}, and this one reads {LAYOUT}$"
    ):
        read_recipe(changed, 7)
    os.close(changed)


def test_the_layout_number_belongs_to_these_fields() -> None:
    """If this fails, raise `LAYOUT`, and then put the new sum here."""
    names = [f"{kind.__name__}: {[field.name for field in dataclasses.fields(kind)]}" for kind in PICKLED + OPTIONS]
    names.append(f"Tls: {list(get_type_hints(Tls))}")
    assert (LAYOUT, blake2b("\n".join(names).encode(), digest_size=4).hexdigest()) == (5, "76e11e04")


def test_a_successor_is_the_same_node_and_reads_no_file_of_tls(plain: Dataset, tmp_path: Path) -> None:
    members = Membership(("127.0.0.1:7110", "127.0.0.1:7111", "127.0.0.1:7112"), 1)
    ca = Authority.at(tmp_path / "ca")
    files = ca.issue("here", "IP:127.0.0.1")
    sharing = SharingOptions(tls_cert=str(files.cert), tls_key=str(files.key), tls_ca=str(ca.file))
    (state := tmp_path / "state").mkdir()
    memory = RecipeMemory()
    recipe = dataclasses.replace(
        recipe_of(memory.keep_dataset(plain)),
        options=MountOptions("/source", "/target", cluster=ClusterOptions(nodes="auto", sharing=sharing)),
        memory_bytes=1 << 30,
        state_path=state / "laps",
        members=members,
        transport=transport_of(sharing, members),
    )
    memory.finish(recipe, "0.1.0")
    for path in (files.cert, files.key, ca.file):
        path.unlink()
    state_fd = os.open(state, os.O_RDONLY)
    state.rename(tmp_path / "hidden")
    prepared = succeeding(*read_recipe(memory.fd, 7), state_fd, NotImplemented)
    assert prepared.recipe.members == members
    assert prepared.plan.sharing is not None
    assert (prepared.plan.nodes, prepared.plan.sharing.share.node) == (3, 1)
    assert recipe.transport is not None
    assert vars(prepared.recipe.transport) == vars(recipe.transport)
    assert prepared.state_file is not None
    prepared.state_file.replace(b"turns")
    assert (tmp_path / "hidden/laps.1").read_bytes() == b"turns"
    prepared.state_file.close()
    os.close(state_fd)
    os.close(memory.fd)


@pytest.mark.parametrize("name", ["recipe", "shared"])
def test_restart_refuses_a_daemon_of_another_layout(name: str) -> None:
    mount = PathStatus("/mnt", Look(Path("/mnt"), 0, 0, False), None)
    stats: dict[str, Any] = {"version": "0.0.9", "pid": 18, "keeper": {"pid": 17, "layouts": layouts()}}
    check(mount, stats)
    stats["keeper"]["layouts"][name] += 1
    with pytest.raises(MountpointError, match=rf"^/mnt: redoxfs 0\.0\.9 .* of the {name} memory.*it goes on as it is"):
        check(mount, stats)
    del stats["keeper"]["layouts"][name]
    with pytest.raises(MountpointError, match="layout None"):
        check(mount, stats)


def test_restart_refuses_a_daemon_whose_end_it_cannot_see() -> None:
    mount = PathStatus("/mnt", Look(Path("/mnt"), 0, 0, False), None)
    here = pid_namespace()
    assert here is not None
    stats: dict[str, Any] = {"pid": 18, "pid_namespace": here, "keeper": {"pid": 17, "layouts": layouts()}}
    check(mount, stats)
    with pytest.raises(MountpointError, match=r"^/mnt: its daemon has another pid namespace"):
        check(mount, {**stats, "pid_namespace": here + 1})
