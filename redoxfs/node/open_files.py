"""The open files of a node, by the number of their handle."""

from collections.abc import Iterable
from dataclasses import dataclass

from redoxfs.node.exact import ExactFile
from redoxfs.node.memory import Content


@dataclass(slots=True)
class Handle:
    """An open file of a sample: ``path`` is the requested sample, ``content`` the answer.

    ``thread``    opened it
    ``bypasses``  its reads do not use the kernel's pages
    """

    path: int
    file: int
    content: Content
    thread: int
    bypasses: bool = False


class OpenFiles(dict[int, Handle | ExactFile]):
    """Open files by number. Numbers are used again, so that they index a table."""

    def __init__(self) -> None:
        super().__init__()
        self._free: list[int] = []
        # Numbers of files that another process closed; they are not used yet.
        self._held_back: list[int] = []
        self.last = 0

    def keep(self, file: Handle | ExactFile) -> int:
        """A file is open; returns its number."""
        if self._free:
            number = self._free.pop()
        else:
            number = self.last = self.last + 1
        self[number] = file
        return number

    def close(self, number: int) -> Handle | ExactFile | None:
        """A file is closed. None if the process before this one closed it, and could not drop the request."""
        file = self.pop(number, None)
        if file is None:
            assert self._held_back
            return None
        self._free.append(number)
        return file

    def clear(self) -> None:
        """No file is open any more."""
        super().clear()
        self._free.clear()

    def reopen(self, files: Iterable[tuple[int, Handle | ExactFile]], last: int) -> None:
        """Files of another process, by number; ``last`` is the highest number that it ever used.

        A close of a file that it closed may come again. So no file gets such a number before `release`.
        """
        self.update(files)
        self.last = last
        self._held_back = [number for number in range(1, last + 1) if number not in self]

    def release(self) -> None:
        """No request of the other process comes any more."""
        self._free += self._held_back
        self._held_back.clear()
