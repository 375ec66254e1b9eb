"""Whose the bytes in memory are, and how many there may be.

Every sample in memory is one `Content`. It belongs to

- the slots: loaded and not yet served. The core bounds their number, and the layout saw to it that their bytes fit
  their share;
- a path: bound, or held, or a group of which a file may still be asked for; or put aside for one by a stat. These
  *claims* have a share of their own. Past it the bytes of closed paths go first, then those put aside, then those of
  the longest open; their handles go on reading from storage by position. So an open never waits for somebody else
  to close;
- nobody: dropped. A read of it that is still under way is thrown away when it arrives.

A content moves from slots to a path at its turn and is never copied. Used from the node's task alone.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto

import trio

from redoxfs.chunks.store import FileBytes, Payload, Read, Stamp


class _Owner(Enum):
    SLOTS = auto()
    PATH = auto()
    NOBODY = auto()


class Content:
    """The bytes of one sample: on their way, here, or dropped.

    ``files``       by role: what was read, or why it could not be; empty while on the way.
    ``stamps``      by role, None for a file that could not be read: outlive the bytes.
    ``bytes_held``  the sum over the files.
    ``read``        what brings it.
    """

    __slots__ = ("_arrival", "arrived", "bytes_held", "files", "owner", "read", "sample", "stamps")

    def __init__(self, sample: int, owner: _Owner) -> None:
        self.sample = sample
        self.owner = owner
        self.files: tuple[FileBytes | OSError | None, ...] = ()
        self.stamps: tuple[Stamp | None, ...] = ()
        self.arrived = False
        self.read: Read | None = None
        self.bytes_held = 0
        self._arrival: trio.Event | None = None

    async def wait(self) -> None:
        """Until the bytes are here, or the errors in their place."""
        if not self.arrived:
            if self._arrival is None:
                self._arrival = trio.Event()
            await self._arrival.wait()

    def arrive(self, payload: Payload) -> None:
        self.files = payload
        self.stamps = tuple(f.stamp if isinstance(f, FileBytes) else None for f in payload)
        self.bytes_held = sum(len(f.data) for f in payload if isinstance(f, FileBytes))
        self.arrived = True
        if self._arrival is not None:
            self._arrival.set()

    def drop_bytes(self) -> None:
        """The handles that there may be read by position from now on."""
        self.files = tuple(None if isinstance(f, FileBytes) else f for f in self.files)
        self.bytes_held = 0


class Memory:
    """All contents. ``claims_limit_bytes`` is the share of paths; the share of slots is the core's to keep."""

    def __init__(self, claims_limit_bytes: int) -> None:
        self._claims_limit_bytes = claims_limit_bytes
        self._slots: dict[int, Content] = {}
        # Paths, each in one of three: with a handle, oldest first; with a handle, its bytes dropped; without.
        self._open: OrderedDict[int, Content] = OrderedDict()
        self._dropped: dict[int, Content] = {}
        self._resting: OrderedDict[int, Content] = OrderedDict()
        # By sample: whose turn a stat has promised to a path.
        self._aside: OrderedDict[int, Content] = OrderedDict()
        self.slots_bytes = 0
        self.claims_bytes = 0

    def expect(self, samples: Sequence[int]) -> list[Content]:
        """A load of ``samples`` into the slots was scheduled."""
        expected = [Content(sample, _Owner.SLOTS) for sample in samples]
        for content in expected:
            self.forget(content.sample)
            self._slots[content.sample] = content
        return expected

    def claim(self, path: int, sample: int) -> Content | None:
        """``sample`` has its turn for ``path``; None where the slots had let its bytes go."""
        content = self._leave_slots(sample)
        if content is not None:
            self._own(path, content)
        return content

    def put_aside(self, sample: int) -> None:
        """A stat promised ``sample`` to a path: its slot is free for another."""
        content = self._leave_slots(sample)
        if content is not None:
            content.owner = _Owner.PATH
            self._aside[sample] = content
            self.claims_bytes += content.bytes_held
            self._shed()

    def expect_for(self, path: int, sample: int) -> Content:
        """The answer of ``path`` is read again, for the path alone."""
        content = Content(sample, _Owner.PATH)
        self._own(path, content)
        return content

    def claimed(self, path: int) -> Content | None:
        """What ``path`` has of its answer; it counts as open from now on."""
        content = self._resting.pop(path, None)
        if content is not None:
            self._open[path] = content
            return content
        return self.look(path)

    def look(self, path: int) -> Content | None:
        """What ``path`` has of its answer, leaving it as it is."""
        return self._open.get(path) or self._dropped.get(path) or self._resting.get(path)

    def rest(self, path: int) -> None:
        """The last handle on ``path`` was closed; its bytes are kept while there is room."""
        content = self._open.pop(path, None)
        if content is not None:
            self._resting[path] = content
        else:
            self._dropped.pop(path, None)

    def release(self, path: int) -> None:
        """Nobody will ask for the answer of ``path`` again."""
        content = self._resting.pop(path, None) or self._open.pop(path, None) or self._dropped.pop(path, None)
        if content is not None:
            self._disown(content)

    def forget(self, sample: int) -> None:
        """The core took ``sample`` out of the slots unserved."""
        content = self._leave_slots(sample)
        if content is not None:
            content.owner = _Owner.NOBODY
            content.drop_bytes()

    def arrive(self, content: Content, payload: Payload) -> None:
        """The read of ``content`` is done."""
        content.arrive(payload)
        if content.owner is _Owner.SLOTS:
            self.slots_bytes += content.bytes_held
        elif content.owner is _Owner.PATH:
            self.claims_bytes += content.bytes_held
            self._shed()
        else:
            content.drop_bytes()

    def counts(self) -> dict[str, int]:
        """Numbers of contents, for statistics and leak tests."""
        return {
            "in_slots": len(self._slots),
            "in_open_files": len(self._open),
            "dropped": len(self._dropped),
            "in_closed_files": len(self._resting),
            "put_aside": len(self._aside),
        }

    def _leave_slots(self, sample: int) -> Content | None:
        """Out of the slots, or of what was put aside."""
        content = self._slots.pop(sample, None)
        if content is not None:
            self.slots_bytes -= content.bytes_held
            return content
        content = self._aside.pop(sample, None)
        if content is not None:
            self.claims_bytes -= content.bytes_held
        return content

    def _disown(self, content: Content) -> None:
        self.claims_bytes -= content.bytes_held
        content.owner = _Owner.NOBODY
        content.drop_bytes()

    def _own(self, path: int, content: Content) -> None:
        self.release(path)
        content.owner = _Owner.PATH
        self._open[path] = content
        self.claims_bytes += content.bytes_held
        self._shed()

    def _shed(self) -> None:
        """Back within the limit; a content that is still on its way has no bytes to give."""
        if self.claims_bytes <= self._claims_limit_bytes:
            return
        while self.claims_bytes > self._claims_limit_bytes and self._resting:
            self.release(next(iter(self._resting)))
        while self.claims_bytes > self._claims_limit_bytes and self._aside:
            self._disown(self._aside.popitem(last=False)[1])
        for path, content in list(self._open.items()):
            if self.claims_bytes <= self._claims_limit_bytes:
                return
            if content.arrived:
                self.claims_bytes -= content.bytes_held
                content.drop_bytes()
                self._dropped[path] = self._open.pop(path)
