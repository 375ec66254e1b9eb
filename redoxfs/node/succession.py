"""What a process of a node leaves to the next, and how that one goes on: the checkpoint, and the recovery.

The journal's entries say what changed (`node.journal`), and `node.recovery` repeats them. This module knows which of a
node's tables are to be written down, and puts them back.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redoxfs.dataset import Catalog
from redoxfs.node.callers import Callers
from redoxfs.node.drawing import Blocks
from redoxfs.node.exact import ExactFile, ExactFiles
from redoxfs.node.journal import DATA
from redoxfs.node.kernel import Kernel
from redoxfs.node.memory import Memory, dropped
from redoxfs.node.open_files import Handle, OpenFiles
from redoxfs.node.pending import PendingTurns
from redoxfs.node.plan import Plan
from redoxfs.node.recovery import (
    Former,
    NodeState,
    OpenBefore,
    Past,
    Ranks,
    Recovered,
    Unanswered,
    handle_rows,
    identity_of,
    signed,
    stamp_row,
)
from redoxfs.node.supply import Supply
from redoxfs.protocol import Binding, Closed, SharedReplay
from redoxfs.protocol.tables import column, rows


@dataclass(slots=True, eq=False)
class Succession:
    """The tables of one node, for the process after this one and from the one before.

    ``plan``       returns the plan in force
    ``expected``   returns the opens whose bytes are on their way, by request
    ``closed``     called with a path of which a handle was closed
    ``undecided``  by request: opens that wait, or waited, for another node
    ``place``      returns this node's place among the nodes of its job, as JSON; None without a job of several nodes
    ``blocks``     the last blocks of samplers
    ``ranks``      the ranks that told of an epoch (`Ranks`)
    """

    catalog: Catalog
    plan: Callable[[], Plan]
    kernel: Kernel
    binding: Binding
    memory: Memory
    supply: Supply
    exact: ExactFiles
    callers: Callers
    pending: PendingTurns
    files: OpenFiles
    expected: Callable[[], Iterable[tuple[int, Unanswered]]]
    closed: Callable[[int, Closed], None]
    undecided: dict[int, Unanswered] = field(default_factory=dict)
    place: Callable[[], Mapping[str, Any]] | None = None
    blocks: Blocks = field(default_factory=Blocks)
    ranks: Ranks = field(default_factory=dict)
    # Opens that the process before this one decided and did not answer: they keep their paths open.
    _pins: dict[int, Unanswered] = field(default_factory=dict)
    _identified: tuple[object, str] | None = None

    def recover(self, past: Past) -> Recovered:
        """See `Node.recover`. The node writes a checkpoint after ``release_pins``."""
        former = Former.from_past(
            past,
            identity=self._identity(),
            catalog=self.catalog,
            policy=self.plan().policy,
            binding=self.binding,
            exact=self.exact,
        )
        if isinstance(former.replay, SharedReplay):
            self.pending.resume(former.replay.undecided, former.replay.promises)
        self.blocks = former.blocks
        self.ranks.update(past.state.ranks)
        self.callers.resume({thread: heard_ns / 1e9 for thread, heard_ns in former.heard.items()})
        self.supply.resume(former.changed)
        for handle in former.handles.values():
            self.kernel.reopened(handle)
        for entry in self.exact.changed_states:
            self.kernel.ask(entry, not self.exact.is_as_scanned(entry))
        files: list[tuple[int, Handle | ExactFile]] = []
        for handle in former.handles.values():
            exact = former.exact_files.get(handle.handle)
            if exact is None:
                files.append((handle.handle, self._reopened(former, handle)))
            else:
                bypasses = exact.shares_pages and not handle.shares_pages
                files.append((handle.handle, exact._replace(bypasses=bypasses)))
        self.files.reopen(files, former.last_handle)
        self._pins = former.unanswered
        for pin in self._pins.values():
            self.kernel.turned(self.supply.files_of(pin.path))
        return Recovered(
            handles=tuple(former.handles.values()),
            answered={request: at for request, at in former.answered.items() if at in self.files},
            failed=former.failed,
            turned=former.turned,
            last_turn=former.last_turn,
            release_pins=self.release_pins,
        )

    def _reopened(self, former: Former, handle: OpenBefore) -> Handle:
        path, file = int(self.catalog.sample_of[handle.entry]), int(self.catalog.member_of[handle.entry])
        content = self.memory.look(path)
        if content is None:
            answer, others = self.binding.present_answer(path), former.stamps.get(path, {})
            sources = enumerate(self.supply.files_of(answer))
            stamps = [others.get(number) or self.supply.scanned(source) for number, source in sources]
            content = self.memory.reopen(path, answer, tuple(stamps))
            if len(stamps) > 1:
                for entry, stamp in zip(self.supply.files_of(path), stamps, strict=True):
                    self.kernel.bind(entry, stamp.size)
        if content.stamps[file] != handle.stamp:
            # Another read of the same sample, or none that is known.
            content = dropped(content.sample, (*content.stamps[:file], handle.stamp, *content.stamps[file + 1 :]))
        return Handle(path, file, content, handle.thread, not handle.shares_pages)

    def unpin(self, request: int) -> bool:
        """An open is repeated, which may keep its path open from before. Returns whether it did."""
        pin = self._pins.pop(request, None)
        if pin is not None:
            self.closed(pin.path, self.binding.close(pin.path))
        return pin is not None

    def release_pins(self) -> None:
        """No request of the former process waits any more."""
        self.files.release()
        pins, self._pins = self._pins, {}
        for path, _, thread in pins.values():
            undecided = path in self.pending.undecided
            self.closed(path, self.binding.fail(path, thread) if undecided else self.binding.close(path))
            self.pending.give_up_unless_bound(path)
        self.pending.withdraw_before()

    def _identity(self) -> str:
        policy = self.plan().policy
        if self._identified is None or self._identified[0] is not policy:
            self._identified = policy, identity_of(self.catalog, policy)
        return self._identified[1]

    def state(self) -> bytes:
        """The checkpoint."""
        unanswered = {**self._pins, **self.undecided, **dict(self.expected())}
        handles, stamps = [], {}
        for number, opened in self.files.items():
            if isinstance(opened, ExactFile):
                stamp, shares = opened.file.stamp, opened.shares_pages and not opened.bypasses
                before = OpenBefore(number, opened.entry, opened.branch, 0, -1, shares, stamp)
                handles.append((before, opened.shares_pages))
                continue
            of_file = opened.content.stamps[opened.file]
            assert of_file is not None
            entry = self.supply.file_of(opened.path, opened.file)
            shares = not opened.bypasses
            handles.append((OpenBefore(number, entry, DATA, opened.thread, of_file.size, shares, of_file), shares))
            for file, stamp in self.supply.since_scan(opened.content.sample, opened.content.stamps):
                stamps[opened.path, file] = stamp
        exact = self.exact
        turns, of_policy = self.plan().policy.kept()
        undecided, promises = self.pending.tickets()
        return NodeState(
            identity=self._identity(),
            turns=turns,
            tables=self.binding.tables(),
            handles=handle_rows(handles),
            stamps=rows(((*at, *stamp_row(stamp)) for at, stamp in stamps.items()), 5),
            unanswered=rows(((signed(request), *each) for request, each in unanswered.items()), 4),
            changed=rows(self.supply.changed_sizes.items(), 2),
            last_handle=self.files.last,
            known=rows(((entry, *stamp_row(stamp)) for entry, stamp in exact.changed_states.items()), 4),
            stale=column(exact.stale_pages),
            heard=rows(((thread, int(at_s * 1e9)) for thread, at_s in self.callers.heard_s.items()), 2),
            undecided=rows(undecided.items(), 2),
            promises=rows(((ticket, *of) for ticket, of in promises.items()), 3),
            policy=of_policy,
            place=None if self.place is None else self.place(),
            blocks=rows(self.blocks.rows(), 3),
            ranks=self.ranks,
        ).encode()
