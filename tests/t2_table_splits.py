"""Three nodes and a table with the split of a script that makes its own: no sample crosses."""

import random
from collections import Counter
from pathlib import Path

import pytest
import trio
from t2_sharing import CLASSES, FILE_BYTES, LITTLE_BYTES, PER_CLASS, Member, fill, sharing
from t4_splits import SCRIPTS, Script

pytestmark = pytest.mark.slow

NODES, EPOCHS = 3, 6


async def read(member: Member, paths: list[str], served: list[tuple[str, str]]) -> None:
    tree = member.catalog.tree
    for path in paths:
        handle = await member.open(tree.find(path.encode()), 100)
        data = await member.read(handle, 0, FILE_BYTES)
        member.node.close(handle)
        served.append((path, data.decode().rstrip(".")))


@pytest.mark.parametrize("policy", ["pool", "slot"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_no_sample_crosses_the_splits_of_a_table_on_three_nodes(
    tmp_path: Path, policy: str, script: Script
) -> None:
    root, table = fill(tmp_path / "data"), tmp_path / "labels.csv"
    parts = script([path.relative_to(root).as_posix() for path in root.glob("*/*")])
    rows = [f"{path},{path.partition('/')[0]},{part}" for path, part in parts.items()]
    table.write_text("\n".join(["image,label,split", *rows]))
    moved = 0
    async with sharing([root] * NODES, policy=policy, classes=str(table), memory_bytes=LITTLE_BYTES) as members:
        for number in range(EPOCHS):
            served: list[tuple[str, str]] = []
            for part in sorted(set(parts.values())):
                paths = [path for path in parts if parts[path] == part]
                random.Random(number).shuffle(paths)
                async with trio.open_nursery() as ranks:
                    for rank, member in enumerate(members):
                        ranks.start_soon(read, member, paths[rank::NODES], served)
            assert [(asked, got) for asked, got in served if parts[asked] != parts[got]] == []
            assert {asked.partition("/")[0] == got.partition("/")[0] for asked, got in served} == {True}
            assert Counter(got for _, got in served) == dict.fromkeys(parts, 1)
            moved += sum(asked != got for asked, got in served)
    assert moved > EPOCHS * CLASSES * PER_CLASS / 4
