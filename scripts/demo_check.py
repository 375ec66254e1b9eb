"""Checks one epoch: `demo_check.py FOLDER` opens every image once, in random order, with two processes.

Each image of the demo records the path that it was drawn for. The check compares the path that was opened with the path
in the image, so it relies on nothing that redoxfs reports.
"""

import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path, PurePath

from PIL import Image

PROCESSES = 2
PATHS_AT_ONCE = 64
"""Handed to a process at a time, like a batch of a DataLoader worker."""


def path_in_image(folder: Path, path: str) -> str:
    """Open a path; the path that the image was drawn for."""
    with Image.open(folder / path) as image:
        return image.info["path"]


def main() -> int:
    folder = Path(sys.argv[1])
    opened = [path.relative_to(folder).as_posix() for path in folder.rglob("*.png")]
    random.shuffle(opened)
    with ProcessPoolExecutor(PROCESSES) as pool:
        served = list(pool.map(partial(path_in_image, folder), opened, chunksize=PATHS_AT_ONCE))

    times = Counter(served)
    once = sum(times[path] == 1 for path in opened)
    pairs = list(zip(opened, served, strict=True))
    right = sum(PurePath(path).parent == PurePath(other).parent for path, other in pairs)
    redirected = sum(path != other for path, other in pairs)
    total = len(opened)
    print(f"{total:,} paths opened; {redirected:,} of them returned another file of the same class")
    print(f"{once:,} of {total:,} samples were returned exactly once")
    print(f"{right:,} of {total:,} labels are right")
    if once == right == total == len(times):
        return 0
    print("this is a bug in redoxfs: please report it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
