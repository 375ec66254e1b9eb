"""What a process of a node leaves to the next, and how that one goes on: the checkpoint, and the recovery.

The journal's entries say what changed (`node.journal`), and `node.recovery` repeats them. This module knows which of a
node's tables are to be written down, and puts them back.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redoxfs.node.exact import ExactFile
from redoxfs.node.journal import DATA
from redoxfs.node.memory import dropped
from redoxfs.node.open_files import Handle
from redoxfs.node.recovery import (
    Former,
    NodeState,
    OpenBefore,
    Past,
    Recovered,
    Unanswered,
    handle_rows,
    identity_of,
    signed,
    stamp_row,
)
from redoxfs.protocol.tables import column, rows

if TYPE_CHECKING:
    from redoxfs.node.node import Node


@dataclass(slots=True, eq=False)
class Succession:
    """The tables of one node, for the process after this one and from the one before.

    ``undecided``  by request: opens that wait, or waited, for another node
    """

    node: "Node"
    undecided: dict[int, Unanswered] = field(default_factory=dict)
    # Opens that the process before this one decided and did not answer: they keep their paths open.
    _pins: dict[int, Unanswered] = field(default_factory=dict)
    _identified: tuple[object, str] | None = None

    def recover(self, past: Past) -> Recovered:
        """See `Node.recover`. The node writes a checkpoint after ``release_pins``."""
        node = self.node
        former = Former.from_past(
            past,
            identity=self._identity(),
            catalog=node.catalog,
            policy=node.plan.policy,
            binding=node.binding,
            exact=node.exact,
        )
        node.pending.resume(former.replay.undecided, former.replay.promises)
        node.blocks = former.blocks
        node.ranks.update(past.state.ranks)
        node.callers.resume({thread: heard_ns / 1e9 for thread, heard_ns in former.heard.items()})
        node.supply.resume(former.changed)
        for handle in former.handles.values():
            node.kernel.reopened(handle)
        for entry in node.exact.changed_states:
            node.kernel.ask(entry, not node.exact.is_as_scanned(entry))
        files: list[tuple[int, Handle | ExactFile]] = []
        for handle in former.handles.values():
            exact = former.exact_files.get(handle.handle)
            if exact is None:
                files.append((handle.handle, self._reopened(former, handle)))
            else:
                bypasses = exact.shares_pages and not handle.shares_pages
                files.append((handle.handle, exact._replace(bypasses=bypasses)))
        node.files.reopen(files, former.last_handle)
        self._pins = former.unanswered
        for pin in self._pins.values():
            node.kernel.turned(node.supply.files_of(pin.path))
        return Recovered(
            handles=tuple(former.handles.values()),
            answered={request: at for request, at in former.answered.items() if at in node.files},
            failed=former.failed,
            turned=former.turned,
            last_turn=former.last_turn,
            release_pins=self.release_pins,
        )

    def _reopened(self, former: Former, handle: OpenBefore) -> Handle:
        node = self.node
        path, file = int(node.catalog.sample_of[handle.entry]), int(node.catalog.member_of[handle.entry])
        content = node.memory.look(path)
        if content is None:
            answer, others = node.binding.present_answer(path), former.stamps.get(path, {})
            sources = enumerate(node.supply.files_of(answer))
            stamps = [others.get(number) or node.supply.scanned(source) for number, source in sources]
            content = node.memory.reopen(path, answer, tuple(stamps))
            if len(stamps) > 1:
                for entry, stamp in zip(node.supply.files_of(path), stamps, strict=True):
                    node.kernel.bind(entry, stamp.size)
        if content.stamps[file] != handle.stamp:
            # Another read of the same sample, or none that is known.
            content = dropped(content.sample, (*content.stamps[:file], handle.stamp, *content.stamps[file + 1 :]))
        return Handle(path, file, content, handle.thread, not handle.shares_pages)

    def unpin(self, request: int) -> bool:
        """An open is repeated, which may keep its path open from before. Returns whether it did."""
        pin = self._pins.pop(request, None)
        if pin is not None:
            self.node.closed(pin.path, self.node.binding.close(pin.path))
        return pin is not None

    def release_pins(self) -> None:
        """No request of the former process waits any more."""
        node = self.node
        node.files.release()
        pins, self._pins = self._pins, {}
        for path, _, thread in pins.values():
            undecided = path in node.pending.undecided
            node.closed(path, node.binding.fail(path, thread) if undecided else node.binding.close(path))
            node.pending.give_up_unless_bound(path)
        node.pending.withdraw_before()

    def _identity(self) -> str:
        policy = self.node.plan.policy
        if self._identified is None or self._identified[0] is not policy:
            self._identified = policy, identity_of(self.node.catalog, policy)
        return self._identified[1]

    def state(self) -> bytes:
        """The checkpoint."""
        node = self.node
        unanswered = {**self._pins, **self.undecided, **dict(node.expected_by_request())}
        handles, stamps = [], {}
        for number, opened in node.files.items():
            if isinstance(opened, ExactFile):
                stamp, shares = opened.file.stamp, opened.shares_pages and not opened.bypasses
                before = OpenBefore(number, opened.entry, opened.branch, 0, -1, shares, stamp)
                handles.append((before, opened.shares_pages))
                continue
            of_file = opened.content.stamps[opened.file]
            assert of_file is not None
            entry = node.supply.file_of(opened.path, opened.file)
            shares = not opened.bypasses
            handles.append((OpenBefore(number, entry, DATA, opened.thread, of_file.size, shares, of_file), shares))
            for file, stamp in node.supply.since_scan(opened.content.sample, opened.content.stamps):
                stamps[opened.path, file] = stamp
        exact = node.exact
        turns, of_policy = node.plan.policy.kept()
        undecided, promises = node.pending.tickets()
        return NodeState(
            identity=self._identity(),
            turns=turns,
            tables=node.binding.tables(),
            handles=handle_rows(handles),
            stamps=rows(((*at, *stamp_row(stamp)) for at, stamp in stamps.items()), 5),
            unanswered=rows(((signed(request), *each) for request, each in unanswered.items()), 4),
            changed=rows(node.supply.changed_sizes.items(), 2),
            last_handle=node.files.last,
            known=rows(((entry, *stamp_row(stamp)) for entry, stamp in exact.changed_states.items()), 4),
            stale=column(exact.stale_pages),
            heard=rows(((thread, int(at_s * 1e9)) for thread, at_s in node.callers.heard_s.items()), 2),
            undecided=rows(undecided.items(), 2),
            promises=rows(((ticket, *of) for ticket, of in promises.items()), 3),
            policy=of_policy,
            place=None if node.place is None else node.place(),
            blocks=rows(node.blocks.rows(), 3),
            ranks=node.ranks,
        ).encode()
