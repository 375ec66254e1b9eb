"""The owners of the bytes in memory, and the limits on them.

Every sample in memory is one `Content`. It belongs to

- the slots: loaded and not yet served, or retained from lap to lap. The core limits their number, or their bytes;
- the remote slots: from other nodes and not yet served. The core limits their bytes, too. A sample may be in both: a
  class is still served from what came for this lap while its next lap is loaded;
- a path: bound, or held, or part of a group of which a file may still be opened; or reserved for a path by a stat.
  These *claims* have a share of their own. Past it the bytes of closed paths are dropped first. Then the core lets
  retained samples go (`Retainer`), and the claims have their room for as long as they need it. Where that is not
  enough, reserved ones are dropped, and those of the paths that have been open longest; their handles read from storage
  by position. So an open never waits for another program to close a file;
- a peer: given to another node, until it is sent. Counted with the claims, unless the slots keep it;
- nobody: dropped. If a read of it is still in progress, its result is discarded.

A content moves from the slots to a path or a peer at its turn and is never copied. A content that the core keeps stays
in the slots, and the path or the peer gets an *alias*: another content with the same bytes, which count where they are
kept. If they leave that place first, an alias becomes their owner. Errors are not kept: a content of which a file could
not be read is read once more for the slots. Used from the node's task alone.
"""

import errno
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

import trio

from redoxfs.chunks.store import FileBytes, Payload, Read, Stamp
from redoxfs.node.by_age import ByAge

REPAID_SHARE = 1 / 2
"""Claims need no more than their own share again once they take at most this part of it. Were it all of it, memory
would be lent and read again at each open where they are about as large as it."""

NO_PATH = -1
"""In place of a path."""


class Retainer(Protocol):
    """A policy with samples in the slots that can be read again later."""

    def give_back(self, wanted_bytes: int) -> tuple[list[int], int]:
        """Let samples go. Returns them, and their bytes, which are the claims' until `take_back`."""

    def take_back(self, size_bytes: int) -> None:
        """The claims do not need so many of these bytes any more."""


class _Owner(Enum):
    SLOTS = auto()
    REMOTE = auto()
    PATH = auto()
    PEER = auto()
    NOBODY = auto()


class Content:
    """The bytes of one sample: expected, here, or dropped.

    ``files``       by role: the bytes, the error of the read, or None; empty until they arrive
    ``stamps``      by role, None for a file that could not be read; kept when the bytes are dropped
    ``bytes_held``  the sum over the files
    ``read``        the read that brings it; None once it is here
    ``remote``      whether it comes from another node
    ``aliases``     of paths and peers, that have the same bytes; None: none ever had
    ``alias_of``    the content where the bytes count
    ``path``        the last path that owned it
    """

    __slots__ = (
        "_arrival",
        "_calls",
        "alias_of",
        "aliases",
        "arrived",
        "bytes_held",
        "files",
        "owner",
        "path",
        "read",
        "remote",
        "sample",
        "stamps",
    )

    def __init__(self, sample: int, owner: _Owner, *, remote: bool = False) -> None:
        self.sample = sample
        self.owner = owner
        self.remote = remote
        self.files: tuple[FileBytes | OSError | None, ...] = ()
        self.stamps: tuple[Stamp | None, ...] = ()
        self.arrived = False
        self.read: Read | None = None
        self.bytes_held = 0
        self._arrival: trio.Event | None = None
        self._calls: tuple[Callable[[], None], ...] = ()
        self.aliases: list[Content] | None = None
        self.alias_of: Content | None = None
        self.path = NO_PATH

    @property
    def payload(self) -> Payload:
        """The files, once they are here and before they are dropped; an error for one that has grown since the scan."""
        grown = OSError(errno.EFBIG, "it has grown since the scan")
        return tuple(grown if file is None else file for file in self.files)

    @property
    def is_wanted(self) -> bool:
        """Whether the content has an owner, or something waits for it."""
        return self.owner is not _Owner.NOBODY or self.is_awaited or bool(self.aliases)

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for the bytes."""
        return not self.arrived and (self._arrival is not None or bool(self._calls))

    def when_here(self, call: Callable[[], None]) -> None:
        """Call once, when the bytes are here and counted, or errors in their place. They are not here yet."""
        self._calls += (call,)

    async def wait(self) -> None:
        """Wait until the bytes are here, or errors in their place."""
        if not self.arrived:
            if self._arrival is None:
                self._arrival = trio.Event()
            await self._arrival.wait()

    def arrive(self, payload: Payload) -> tuple[Callable[[], None], ...]:
        """The files are here. Returns the calls to make when their bytes are counted."""
        stamps: list[Stamp | None] = []
        held = 0
        self.files = payload
        for number, file in enumerate(payload):
            if isinstance(file, FileBytes):
                stamps.append(file.stamp)
                size = len(file.data)
                held += size
                if size != file.stamp.size:
                    self.files = (*self.files[:number], None, *self.files[number + 1 :])
            else:
                stamps.append(None)
        self.stamps = tuple(stamps)
        self.bytes_held = held
        calls = self._notify()
        for alias in self.aliases or ():
            alias.files, alias.stamps = self.files, self.stamps
            calls += alias._notify()
        return calls

    def alias(self, owner: _Owner = _Owner.PATH) -> "Content":
        """The same bytes for a path or a peer, once they are here. They count as bytes of this content."""
        alias = Content(self.sample, owner)
        alias.read = self.read
        alias.alias_of = self
        if self.aliases is None:
            self.aliases = []
        self.aliases.append(alias)
        alias.files, alias.stamps, alias.arrived = self.files, self.stamps, self.arrived
        return alias

    @property
    def has_failed(self) -> bool:
        """Whether it is here, and a file of it could not be read."""
        return None in self.stamps

    def _notify(self) -> tuple[Callable[[], None], ...]:
        """The files are here. Returns the calls to make."""
        self.arrived = True
        # A description of a read takes as much memory as the rest of a content.
        self.read = None
        if self._arrival is not None:
            self._arrival.set()
        # They refer to the content, so keeping them would make a cycle.
        calls, self._calls = self._calls, ()
        return calls

    def drop_bytes(self) -> None:
        """Let the bytes go. Handles read by position from now on."""
        if None not in self.stamps:
            self.files = (None,) * len(self.stamps)
        else:
            self.files = tuple([None if isinstance(f, FileBytes) else f for f in self.files])
        self.bytes_held = 0


def _frees_memory(content: Content) -> bool:
    """Whether dropping a content frees memory: now, or once it is here."""
    return content.bytes_held > 0 or not content.arrived


def dropped(sample: int, stamps: tuple[Stamp | None, ...]) -> Content:
    """A content of a path, whose bytes were here and are not any more."""
    content = Content(sample, _Owner.PATH)
    content.files = (None,) * len(stamps)
    content.stamps = stamps
    content.arrived = True
    return content


class Memory:
    """All contents.

    Args:
        claims_limit_bytes: the share of paths. The core keeps the slots and the remote slots within theirs.
        shed: called with a path whose bytes were dropped while it is open.
        keeps_remote: samples of other nodes cannot be read again here, so they are not dropped while they are open or
            reserved. Those of closed paths are dropped, since every path stays at rest where a job never opens one
            file of each group. Their nodes send them again.
        retainer: lets retained samples go where claims need more than their share.
        most_lent_bytes: how much more claims may have.
    """

    def __init__(
        self,
        claims_limit_bytes: int,
        shed: Callable[[int], None],
        *,
        keeps_remote: bool = False,
        retainer: Retainer | None = None,
        most_lent_bytes: int = 0,
    ) -> None:
        self._claims_limit_bytes = claims_limit_bytes
        self._retainer = retainer
        self._most_lent_bytes = most_lent_bytes
        # The part of the limit that retained samples let go.
        self.lent_bytes = 0
        self._shed_path = shed
        self._keeps_remote = keeps_remote
        self._slots: dict[int, Content] = {}
        self._remote: dict[int, Content] = {}
        # Each path is in one of three: with a handle; with a handle, bytes dropped; without a handle.
        self._open = ByAge(self._has_bytes_to_drop)
        self._dropped: dict[int, Content] = {}
        self._resting = ByAge(_frees_memory)
        # By sample: whose turn a stat has promised to a path.
        self._reserved = ByAge(self._can_go)
        self.slots_bytes = 0
        self.remote_bytes = 0
        self.claims_bytes = 0

    def renew(
        self,
        claims_limit_bytes: int,
        *,
        keeps_remote: bool,
        retainer: Retainer | None = None,
        most_lent_bytes: int = 0,
    ) -> None:
        """Another policy decides from now on. Samples without a turn are dropped; paths keep their bytes."""
        for contents in (self._slots, self._remote, self._reserved.of):
            for content in contents.values():
                if content.owner is _Owner.PATH:
                    self.claims_bytes -= content.bytes_held
                self._let_go(content)
        for each in (self._slots, self._remote, self._reserved):
            each.clear()
        self.slots_bytes = self.remote_bytes = 0
        self._claims_limit_bytes = claims_limit_bytes
        self._keeps_remote = keeps_remote
        self._open.look_at_all_again()
        self._retainer, self._most_lent_bytes, self.lent_bytes = retainer, most_lent_bytes, 0
        self._shed()

    def expect(self, samples: Sequence[int]) -> list[Content]:
        """A load of ``samples`` into the slots was scheduled."""
        expected = [Content(sample, _Owner.SLOTS) for sample in samples]
        for content in expected:
            if content.sample in self._slots or content.sample in self._reserved.of:
                self.forget(content.sample)
            self._slots[content.sample] = content
        return expected

    def expect_from_peer(self, samples: Sequence[int]) -> list[Content]:
        """Another node gave ``samples``; their bytes will arrive."""
        expected = [Content(sample, _Owner.REMOTE, remote=True) for sample in samples]
        for content in expected:
            # It may have come in the lap before as well, and be left over from that.
            stale = self._remote.pop(content.sample, None)
            if stale is not None:
                self.remote_bytes -= stale.bytes_held
                self._let_go(stale)
            if self.is_remote(content.sample):
                self._drop_reserved(content.sample)
            self._remote[content.sample] = content
        return expected

    def claim(self, path: int, sample: int, *, remote: bool = False, kept: bool = False) -> Content | None:
        """``sample`` has its turn for ``path``; None if the slots have dropped its bytes.

        ``kept``: the slots keep it, unless a file of it could not be read.
        """
        content = None if remote else self._slots.get(sample)
        if content is None:
            content = self._leave(sample, remote=remote)
            if content is None:
                return None
            if kept and not content.has_failed:
                content = self._keep(content, _Owner.PATH)
        elif kept and None not in content.stamps:
            content = content.alias()
        else:
            del self._slots[sample]
            self.slots_bytes -= content.bytes_held
        self._own(path, content)
        return content

    def reserve(self, sample: int, *, remote: bool = False) -> None:
        """A stat promised ``sample`` to a path: its slot is free for another."""
        content = self._leave(sample, remote=remote)
        if content is not None:
            # One may be left over: of the same sample as this node's own, or as a peer gave it.
            if sample in self._reserved.of:
                self._drop_reserved(sample)
            content.owner = _Owner.PATH
            self._reserved.add(sample, content)
            self.claims_bytes += content.bytes_held
            self._shed()

    def give(self, sample: int, *, remote: bool = False, kept: bool = False) -> Content | None:
        """``sample`` goes to another node; None if its bytes were dropped. ``kept``: as for `claim`."""
        content = self._leave(sample, remote=remote)
        if content is None:
            return None
        if kept and not content.has_failed:
            return self._keep(content, _Owner.PEER)
        content.owner = _Owner.PEER
        self.claims_bytes += content.bytes_held
        self._shed()
        return content

    def give_again(self, sample: int) -> Content | None:
        """The bytes of ``sample`` for a node to which it was given before; None if the slots do not have them."""
        content = self._slots.get(sample)
        return None if content is None or content.has_failed else content.alias(_Owner.PEER)

    def expect_to_give(self, sample: int) -> Content:
        """A sample is being read for another node."""
        return Content(sample, _Owner.PEER)

    def sent(self, content: Content) -> None:
        """The bytes that were given to another node have been sent."""
        self._disown(content)

    def expect_for(self, path: int, sample: int, *, remote: bool = False) -> Content:
        """The answer of ``path`` is being read again, for that path alone. ``remote``: by another node."""
        content = Content(sample, _Owner.PATH, remote=remote)
        self._own(path, content)
        return content

    def reopen(self, path: int, sample: int, stamps: tuple[Stamp | None, ...]) -> Content:
        """``path`` is open with an answer whose bytes are not in memory: its handles read from storage by position."""
        content = self._dropped[path] = dropped(sample, stamps)
        return content

    def claimed(self, path: int) -> Content | None:
        """The content of ``path``. The path counts as open from now on."""
        content = self._resting.take(path)
        if content is not None:
            self._open.add(path, content)
            return content
        return self.look(path)

    def look(self, path: int) -> Content | None:
        """The content of ``path``, without any change."""
        return self._open.of.get(path) or self._dropped.get(path) or self._resting.of.get(path)

    def rest(self, path: int) -> None:
        """The last handle on ``path`` was closed. Its bytes are kept while there is room."""
        content = self._open.take(path)
        if content is not None:
            self._resting.add(path, content)
        else:
            self._dropped.pop(path, None)

    def release(self, path: int) -> None:
        """The answer of ``path`` is not needed any more."""
        content = self._resting.take(path) or self._open.take(path) or self._dropped.pop(path, None)
        if content is not None:
            self._disown(content)

    def forget(self, sample: int, *, remote: bool = False) -> None:
        """The core took ``sample`` out of the slots without serving it."""
        content = self._leave(sample, remote=remote)
        if content is not None:
            self._let_go(content)
            self._shed()

    def forget_reserved(self, sample: int) -> None:
        """The reservation of ``sample`` is over. The slots may have it as well, for the next lap."""
        if sample in self._reserved.of:
            self._drop_reserved(sample)
            self._shed()

    def holds_remote(self, sample: int) -> bool:
        """Whether ``sample`` is in the remote slots."""
        return sample in self._remote

    def holds_own(self, sample: int) -> bool:
        """Whether the slots have ``sample``, or expect it, from this node's storage."""
        return sample in self._slots

    def is_remote(self, sample: int) -> bool:
        """Whether ``sample`` lies with the reserved ones, and came from another node."""
        content = self._reserved.of.get(sample)
        return content is not None and content.remote

    def arrive(self, content: Content, payload: Payload) -> bool:
        """The bytes of ``content`` are here, or errors in their place. Returns whether the slots keep errors of it."""
        is_kept = content.aliases is not None
        calls = content.arrive(payload)
        for alias in [alias for alias in content.aliases or () if alias.owner is _Owner.NOBODY]:
            # Its open has ended. Each is part of a cycle, with the bytes.
            self._let_go(alias)
        if content.owner is _Owner.SLOTS:
            self.slots_bytes += content.bytes_held
        elif content.owner is _Owner.REMOTE:
            self.remote_bytes += content.bytes_held
        elif content.owner is not _Owner.NOBODY:
            self.claims_bytes += content.bytes_held
            self._open.look_again(content.path)
            self._shed()
        else:
            self._hand_over(content)
            content.drop_bytes()
            self._shed()
        for call in calls:
            call()
        return is_kept and content.has_failed and self._slots.get(content.sample) is content

    @property
    def used_bytes(self) -> int:
        """The bytes of all contents."""
        return self.slots_bytes + self.remote_bytes + self.claims_bytes

    def counts(self) -> dict[str, int]:
        """Numbers of contents, for statistics and leak tests."""
        return {
            "in_slots": len(self._slots),
            "in_remote_slots": len(self._remote),
            "in_open_files": len(self._open.of),
            "dropped": len(self._dropped),
            "in_closed_files": len(self._resting.of),
            "put_aside": len(self._reserved.of),
        }

    def _leave(self, sample: int, *, remote: bool) -> Content | None:
        """Take ``sample`` out of the slots, or of the reserved samples."""
        content = (self._remote if remote else self._slots).pop(sample, None)
        if content is not None:
            if remote:
                self.remote_bytes -= content.bytes_held
            else:
                self.slots_bytes -= content.bytes_held
            return content
        content = self._reserved.of.get(sample)
        if content is None or content.remote is not remote:
            return None
        self._reserved.take(sample)
        self.claims_bytes -= content.bytes_held
        return content

    def _keep(self, content: Content, owner: _Owner) -> Content:
        """The slots keep a content that has left them, and ``owner`` gets an alias."""
        self._slots[content.sample] = content
        content.owner = _Owner.SLOTS
        self.slots_bytes += content.bytes_held
        return content.alias(owner)

    def _disown(self, content: Content) -> None:
        self.claims_bytes -= content.bytes_held
        self._let_go(content)
        if self.lent_bytes and self.claims_bytes <= (self._claims_limit_bytes - self.lent_bytes) * REPAID_SHARE:
            self._repay()

    def _let_go(self, content: Content, owner: _Owner = _Owner.NOBODY) -> None:
        """Drop the bytes. If other paths or peers need them, they count as claims of one of these."""
        content.owner = owner
        if content.alias_of is not None and (content.arrived or not content.is_awaited):
            others = content.alias_of.aliases
            assert others is not None
            others.remove(content)
            content.alias_of = None
        if content.aliases:
            self._hand_over(content)
        content.drop_bytes()

    def _hand_over(self, content: Content) -> None:
        # Aliases of bytes that have not arrived stay until they do.
        heirs = [alias for alias in content.aliases or () if alias.owner is not _Owner.NOBODY]
        if heirs and content.arrived:
            heir, *others = heirs
            heir.bytes_held = content.bytes_held
            heir.alias_of = None
            heir.aliases = others
            for other in others:
                other.alias_of = heir
            content.aliases = None
            self.claims_bytes += heir.bytes_held
            for of_paths in (self._open, self._resting):
                of_paths.look_again(heir.path)

    def _own(self, path: int, content: Content) -> None:
        if path in self._resting.of or path in self._open.of or path in self._dropped:
            before = self._open.of.get(path)
            files = content.files if before is None else before.files
            self.release(path)
            if files is not content.files:
                # Its handles have bytes that count no more.
                self._shed_path(path)
        content.owner, content.path = _Owner.PATH, path
        self._open.add(path, content)
        self.claims_bytes += content.bytes_held
        if self.claims_bytes > self._claims_limit_bytes:
            self._shed()

    def _shed(self) -> None:
        """Drop bytes until the claims are within their limit. A content that has not arrived has none to drop."""
        if self.claims_bytes <= self._claims_limit_bytes:
            return
        self._shed_all(self._resting, self.release)
        if self.claims_bytes > self._claims_limit_bytes:
            self._borrow()
        self._shed_all(self._reserved, self._drop_reserved)
        self._shed_all(self._open, self._drop)

    def _shed_all(self, contents: ByAge[Content], let_go: Callable[[int], None]) -> None:
        while self.claims_bytes > self._claims_limit_bytes and (key := contents.oldest()) is not None:
            let_go(key)

    def _borrow(self) -> None:
        """Let retained samples go for the claims that are too many."""
        while self._retainer is not None and self.lent_bytes < self._most_lent_bytes:
            wanted_bytes = self.claims_bytes - self._claims_limit_bytes
            if wanted_bytes <= 0:
                return
            gone, gone_bytes = self._retainer.give_back(min(wanted_bytes, self._most_lent_bytes - self.lent_bytes))
            if not gone:
                return
            self.lent_bytes += gone_bytes
            self._claims_limit_bytes += gone_bytes
            for sample in gone:
                content = self._leave(sample, remote=False)
                if content is not None:
                    self._let_go(content)

    def _repay(self) -> None:
        """Half of the claims' own share is free again: what was lent may be retained again."""
        assert self._retainer is not None
        lent_bytes, self.lent_bytes = self.lent_bytes, 0
        self._claims_limit_bytes -= lent_bytes
        self._retainer.take_back(lent_bytes)

    def _can_go(self, content: Content) -> bool:
        return _frees_memory(content) and not (content.remote and self._keeps_remote)

    def _has_bytes_to_drop(self, content: Content) -> bool:
        return content.arrived and self._can_go(content)

    def _drop_reserved(self, sample: int) -> None:
        content = self._reserved.take(sample)
        assert content is not None
        self._disown(content)

    def _drop(self, path: int) -> None:
        content = self._open.take(path)
        assert content is not None
        self._dropped[path] = content
        self.claims_bytes -= content.bytes_held
        self._let_go(content, _Owner.PATH)
        self._shed_path(path)
