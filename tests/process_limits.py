"""A limit of processes that root has too: a control group of pids, of version 1 or 2."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


def _folder() -> Path | None:
    """Where groups may be made; None if this process may not make one."""
    for parent in GROUPS:
        probe = parent / f"redoxfs-probe-{uuid4().hex[:8]}"
        try:
            probe.mkdir()
            is_usable = (probe / "pids.max").exists()
            probe.rmdir()
        except OSError:
            continue
        if is_usable:
            return parent
    return None


FOLDER = _folder()


class Limit:
    """The limit of a group's processes and threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reach(self) -> None:
        """Allow no process and no thread beyond those that there are."""
        (self._folder / "pids.max").write_text((self._folder / "pids.current").read_text())

    def allow(self, more: int) -> None:
        """Change the limit by so many."""
        limit = self._folder / "pids.max"
        limit.write_text(str(int(limit.read_text()) + more))

    def lift(self) -> None:
        (self._folder / "pids.max").write_text("max")

    def refused(self) -> int:
        """How many forks and threads the limit has refused."""
        counted = dict(line.split() for line in (self._folder / "pids.events").read_text().splitlines())
        return int(counted["max"])


@contextmanager
def limited(processes: Iterable[int]) -> Iterator[Limit]:
    """These processes in a group of their own. What is still in it at the end is moved out."""
    assert FOLDER is not None
    folder = FOLDER / f"redoxfs-{uuid4().hex[:8]}"
    folder.mkdir()
    limit = Limit(folder)
    try:
        for pid in processes:
            (folder / "cgroup.procs").write_text(str(pid))
        yield limit
    finally:
        limit.lift()
        for left in (folder / "cgroup.procs").read_text().split():
            (FOLDER / "cgroup.procs").write_text(left)
        folder.rmdir()
