"""What a node tells the kernel, in the terms of the tree."""

from collections.abc import Sequence
from typing import Protocol

from redoxfs.node.recovery import OpenBefore


class Kernel(Protocol):
    """What stands between programs and the node: it caches sizes and pages, and serves reads of bytes that it was
    given. The node reports here what is out of date.
    """

    def reopened(self, handle: OpenBefore) -> None:
        """The process before this one opened a file that is still open. Called before all others except `ask`."""

    def turned(self, entries: Sequence[int]) -> None:
        """Files get an answer: sizes that were reported before are invalid, also those that are still on the way."""

    def bind(self, entry: int, size: int) -> None:
        """Another file of a sample that was opened is ``size`` bytes long, until it is freed."""

    def freed(self, entries: Sequence[int]) -> None:
        """Files have no answer any more: their attributes and pages are invalid. No handle on them is open."""

    def shed(self, entry: int) -> None:
        """The bytes of an open file must leave memory: its handles read through the node from now on."""

    def sizes_differ(self, differ: bool) -> None:
        """Whether the size of a file with an answer depends on who asks. Then the kernel may keep none from now on."""

    def unhold(self, thread: int) -> None:
        """The node must be asked for what ``thread`` would read, also of a file that it has open; -1: all threads."""

    def void_size(self, entry: int, settles_s: float) -> bool:
        """The size of a file with an answer is invalid, also one that is still on the way.

        Returns False, and changes nothing, if a program may be waiting for it: that would go by the size of an earlier
        answer. No program is waiting ``settles_s`` after it opened the file or was told the size.
        """

    def changed(self, entry: int, *, redirected: bool = False) -> None:
        """An exact file has changed: its attributes are invalid. ``redirected``: only under `.redoxfs/exact`, as its
        path has the sizes of answers."""

    def ask(self, entry: int, asks: bool) -> None:
        """Whether the node must be asked for the attributes of a file: they are not those of the scan."""
