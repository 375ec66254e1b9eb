"""Three nodes and a table with a split: in a job that trains on one part and evaluates on the other, none crosses."""

import random
from collections import Counter
from pathlib import Path

import pytest
import trio
from t2_sharing import CLASSES, FILE_BYTES, LITTLE_BYTES, PER_CLASS, Member, fill, sharing

pytestmark = pytest.mark.slow

NODES, EPOCHS = 3, 6


def split_by_a_script(root: Path, where: Path) -> dict[str, str]:
    """The split of each file, drawn at random; written to a table for redoxfs."""
    paths = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))
    held_out = set(random.Random(3).sample(paths, len(paths) // 4))
    split_of = {path: "val" if path in held_out else "train" for path in paths}
    rows = [f"{path},{path.partition('/')[0]},{split}" for path, split in split_of.items()]
    where.write_text("\n".join(["image,label,split", *rows]))
    return split_of


async def read(member: Member, paths: list[str], served: list[tuple[str, str]]) -> None:
    tree = member.catalog.tree
    for path in paths:
        handle = await member.open(tree.find(path.encode()), 100)
        data = await member.read(handle, 0, FILE_BYTES)
        member.node.close(handle)
        served.append((path, data.decode().rstrip(".")))


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_no_sample_crosses_the_splits_of_a_table_on_three_nodes(tmp_path: Path, policy: str) -> None:
    root = fill(tmp_path / "data")
    split_of = split_by_a_script(root, tmp_path / "labels.csv")

    async def main() -> None:
        moved = 0
        table = str(tmp_path / "labels.csv")
        async with sharing([root] * NODES, policy=policy, classes=table, memory_bytes=LITTLE_BYTES) as members:
            for epoch in range(EPOCHS):
                served: list[tuple[str, str]] = []
                for split in ("train", "val"):
                    paths = [path for path in split_of if split_of[path] == split]
                    random.Random(epoch).shuffle(paths)
                    async with trio.open_nursery() as ranks:
                        for number, member in enumerate(members):
                            ranks.start_soon(read, member, paths[number::NODES], served)
                crossed = [(asked, got) for asked, got in served if split_of[asked] != split_of[got]]
                assert crossed == []
                assert {asked.partition("/")[0] == got.partition("/")[0] for asked, got in served} == {True}
                assert Counter(got for _, got in served) == dict.fromkeys(split_of, 1)
                moved += sum(asked != got for asked, got in served)
        assert moved > EPOCHS * CLASSES * PER_CLASS / 2

    trio.run(main)
