"""Counts what one epoch gives: `demo_check.py FOLDER` opens every path once, in random order, with two workers.

Each image of the demo says in itself what file it was drawn for. So this needs to trust nobody: it compares the path
that was opened with the path that came out.
"""

import sys
from collections import Counter
from pathlib import Path, PurePath

from PIL import Image
from torch.utils.data import DataLoader, Dataset


class OpenedAndServed(Dataset[tuple[str, str]]):
    """For each path below a folder, that path and the one its image was drawn for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, str]:
        opened = self.paths[index]
        with Image.open(self.folder / opened) as image:
            return opened, image.info["path"]


def main() -> int:
    folder = Path(sys.argv[1])
    data = OpenedAndServed(folder)
    batches = DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
    pairs = [pair for opened, served in batches for pair in zip(opened, served, strict=True)]

    times = Counter(served for _, served in pairs)
    once = sum(times[path] == 1 for path in data.paths)
    right = sum(PurePath(opened).parent == PurePath(served).parent for opened, served in pairs)
    other = sum(opened != served for opened, served in pairs)
    total = len(data)
    print(f"{total:,} paths opened; {other:,} of them gave another file of the same class")
    print(f"{once:,} of {total:,} samples came, each once")
    print(f"{right:,} of {total:,} labels right")
    if once == right == total == len(times):
        return 0
    print("this is a bug in redoxfs: please report it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
