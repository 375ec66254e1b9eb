"""Resume a DataLoader at the exact sample, and let a mount choose the order (`RedoxSampler`).

    loader = redoxfs.torch.track(DataLoader(dataset, …), "/mnt/set")
    …
    checkpoint["loader"] = redoxfs.torch.state_dict(loader)              # in the middle of an epoch
    redoxfs.torch.load_state_dict(loader, checkpoint["loader"])          # in the next job, before the first batch

A loader opens files ahead of the training loop: prefetch_factor batches for each worker. The mount knows which samples
were opened, and the training process knows which batches the loader yielded. A state has two parts: the laps of the
mount without the turns of batches that were not yielded, and the batches that are left of the epoch. After a load, the
rest of the epoch has exactly the samples that were not yielded.

The mount knows the batch of each open. The loader's sampler numbers the batches, and a worker that receives a batch
looks up its number in `.redoxfs/batches` before it opens any file. So a dataset may open any files for an index, in any
number of threads. Nothing is added to a batch. A worker ends as soon as its training process has ended, so it takes no
turn of the next job.

A loader also knows when an epoch begins, and tells the mount just before its first batch is asked for: all workers have
then ended the epoch before. The rest of a loaded epoch is not told, nor an epoch of a loader that begins while another
one reads the same files. With torch.distributed, the ranks agree by its store which number an epoch has at all nodes
(`redoxfs.epochs`): no rank waits for another.

Rejected: counting opens, since a dataset may open any number of files for a sample; recording the files of each index,
since any file of the class may answer an open.

This module imports PyTorch; nothing else in the package imports this module. It stands above the rooms, as any program
that uses redoxfs does.
"""

import base64
import errno
import multiprocessing
import os
import secrets
import select
import tempfile
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import islice
from operator import index as index_of
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

try:
    import torch.distributed
except ModuleNotFoundError:
    raise ModuleNotFoundError("PyTorch is not installed here; to install it: pip install torch") from None
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset

from redoxfs.epochs import JobCounts, ToldTree, tell_epoch, tree_of
from redoxfs.launch.control import ask_daemon
from redoxfs.launch.errors import CommandError, UsageError
from redoxfs.launch.outputs import opened_folder
from redoxfs.launch.path_status import PathStatus, our_mount_of, place_in
from redoxfs.linux.ends import end_of
from redoxfs.linux.mount_table import read_mounts
from redoxfs.sampler import Draws, Files, SamplerError, mount_of_files

VERSION = 1

TIMEOUT_S = 60.0
"""The deadline for an answer of the mount's daemon."""

Loader = TypeVar("Loader", bound="DataLoader[Any]")
Batch = list[int]
View = tuple[int, list[str]]
"""The number of a view, and its nodes."""


class ResumeError(RuntimeError):
    """A state cannot be saved or loaded: one line. With several ranks, all of them get the same error."""


def track(loader: Loader, root: str | os.PathLike[str]) -> Loader:
    """Count a loader's batches, so that its state can be saved. Call it before the first iteration.

    Args:
        loader: a DataLoader of a map-style dataset, a StatefulDataLoader, or one that accelerate has prepared. With
            several ranks, the loader of this rank.
        root: a path in the mount that the dataset reads. If no mount is there, only the batches resume. The mount is
            told when an epoch begins. If several class trees lie below ``root``, that needs a dataset whose files are
            known, as `RedoxSampler` knows them: it is told of the tree of the first file.

    Returns:
        ``loader`` itself.

    Raises:
        TypeError: the dataset is an IterableDataset, or the sampler has no length.
        ValueError: ``in_order=False``, accelerate's ``dispatch_batches=True``, the loader is tracked already, or its
            dataset reads another mount than that of ``root``.
        ResumeError: the mount does not support batches, or its daemon cannot see this process.

    >>> from torch.utils.data import DataLoader
    >>> loader = track(DataLoader(range(6), batch_size=2), "/")
    >>> batches = iter(loader)
    >>> next(batches)
    tensor([0, 1])
    >>> state = state_dict(loader)
    >>> resumed = track(DataLoader(range(6), batch_size=2), "/")
    >>> load_state_dict(resumed, state)
    >>> [batch.tolist() for batch in resumed], [batch.tolist() for batch in resumed]
    ([[2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]])
    """
    inner = getattr(loader, "base_dataloader", loader)
    if _ATTRIBUTE in vars(inner):
        raise ValueError("the loader is tracked already")
    if isinstance(inner.dataset, IterableDataset):
        raise TypeError("an IterableDataset has no indices to resume from; use a map-style dataset")
    if not getattr(inner, "in_order", True):
        raise ValueError("in_order=False: batches are not yielded in the order of the sampler")
    # accelerate is imported by nobody here, and its loaders hide their class.
    if any(each.__name__ == "DataLoaderDispatcher" for each in type(loader).__mro__):
        raise ValueError("dispatch_batches=True: one rank reads the batches of others; use dispatch_batches=False")
    if isinstance(getattr(inner.batch_sampler, "sampler", inner.sampler), RedoxSampler):
        raise TypeError("a loader with a RedoxSampler cannot be tracked: its order is not known before it is drawn")
    len(inner._index_sampler)
    folder = _folder_of(inner.dataset)
    tracker = _Tracker(inner, _mount_at(root, folder))
    tracker.check()
    tracker.find_tree(root, folder)
    of_inner = {"_index_sampler": _ordered, "_get_iterator": _watching}
    if _is_stateful(inner):
        # If it was asked for its own state, it has begun already, as accelerate's have.
        tracker.stop()
        of_inner["state_dict"] = _begun
    if inner is loader:
        _derive(loader, **of_inner, __iter__=_counting)
    else:
        _derive(inner, **of_inner)
        _derive(loader, __iter__=_counting)
    inner.__dict__[_ATTRIBUTE] = loader.__dict__[_ATTRIBUTE] = tracker
    return loader


def state_dict(loader: "DataLoader[Any]", group: Any = None) -> dict[str, Any]:
    """The state of a tracked loader, for a checkpoint: strings and numbers.

    With torch.distributed this is a collective call: every rank of ``group`` makes it after the same number of batches,
    and gets the same state.

    Raises:
        ResumeError: the loader is not tracked; the ranks have datasets of different lengths; the mount does not answer,
            or has forgotten which opens were ahead; there is no room in the folder of temporary files.
    """
    tracker = _tracker_of(loader)
    ranks = _Ranks(group)
    about = ranks.agree(lambda: (tracker.mount is not None, tracker.samples))
    mounts = [has_mount for has_mount, _ in about]
    samples = [count for _, count in about]
    for rank, count in enumerate(samples):
        if count != samples[0]:
            # A rank could not load the state of another one.
            raise ResumeError(
                f"rank 0 has a dataset of {samples[0]} samples, and rank {rank} one of {count}: give all ranks the "
                "same dataset, and each a share of its indices, as DistributedSampler does"
            )
    # Rank 0 may have none.
    saver = mounts.index(True) if any(mounts) else 0
    mount = tracker.mount if ranks.rank == saver else None
    with ExitStack() as stack:

        def save() -> bytes:
            if mount is None:
                return b""
            path = os.fsencode(stack.enter_context(tempfile.TemporaryDirectory(prefix="redoxfs-state-"))) + b"/state"
            _ask(mount, "state-save", path, file=path)
            return path

        # First the turns so far, then those of them that are ahead.
        path = ranks.agree(save)[saver]
        told = ranks.agree(lambda: (tracker.turns_ahead(), _packed(tracker.remaining())))
        ahead = b"".join(rows for rows, _ in told)
        laps = ranks.agree(lambda: None if mount is None else _without(mount, path, ahead))[saver]
    remaining = [batches for _, batches in told]
    return {
        "version": VERSION,
        "samples": tracker.samples,
        "laps": laps,
        "ranks": None if None in remaining else remaining,
    }


def load_state_dict(
    loader: "DataLoader[Any]", state: Mapping[str, Any], group: Any = None, *, skip_empty: bool = False
) -> None:
    """Continue from a state: the next iteration of ``loader`` yields the rest of the epoch, later ones whole epochs.

    With torch.distributed this is a collective call, and one rank for each mount loads the laps into it. The number of
    ranks may differ from that of the save, and so may ``batch_size``: the rest of the epoch is then dealt to the ranks
    anew. Each rank gets the same number of batches. For that, indices are repeated, or left out with ``drop_last``, as
    DistributedSampler does. The batches of a batch sampler are dealt, and repeated, as wholes.

    ``len(loader)`` remains that of a whole epoch.

    Args:
        skip_empty: for a state that was saved after the last batch of an epoch, before the loop ended. False: the next
            iteration yields nothing. True: it is a whole epoch. Frameworks that count batches need this, since for them
            the epoch was over.

    Raises:
        ResumeError: the loader is not tracked; the state is of another dataset or version; the mount refuses it.
    """
    tracker = _tracker_of(loader)
    ranks = _Ranks(group)
    # Every rank makes the same collective calls, also one on a machine without a mount.
    places = ranks.agree(lambda: tracker.place_for(state))
    tracker.stop()
    laps, mount = state["laps"], tracker.mount
    data = None if laps is None else base64.b64decode(laps)
    is_first = places.index(places[ranks.rank]) == ranks.rank
    views = ranks.agree(lambda: _load(mount, data) if mount is not None and data is not None and is_first else None)
    ranks.agree(lambda: _catch_up(mount, data, _behind(views, ranks.rank)))
    if (laps is None) != (mount is None):
        lacks = "no mount was there when the state was saved" if laps is None else "no redoxfs mount is there now"
        warnings.warn(f"{lacks}: the batches are resumed, and the laps are not", stacklevel=2)
    of_ranks = state["ranks"]
    left = None if of_ranks is None else [_unpacked(each) for each in of_ranks]
    # All ranks agree, as a rank may have a batch size of its own.
    is_as_before = all(
        ranks.agree(lambda: left is not None and len(left) == ranks.world and tracker.deals(left[ranks.rank]))
    )
    if left is None or (skip_empty and not any(left)):
        tracker.pending = None
    elif is_as_before:
        tracker.pending = left[ranks.rank]
    else:
        tracker.pending = _dealt(left, ranks.rank, ranks.world, tracker.batch_size, drop_last=tracker.drop_last)


# The sampler


class RedoxSampler(Sampler[int]):
    """The order in which a mount with ``--classes sampler`` can serve a dataset without any redirection.

    Each open returns the file that it names, so labels may come from names, tables, and boxes. The mount reads storage
    in chunks, as it does when it redirects. The loader gets each sample once an epoch, in an order that is as random as
    that of a mount that redirects.

    With several ranks, each rank has a sampler, and the ranks on a mount draw from one lap. Each gets equally many
    indices. Where samples are left over, ranks that would have one less repeat one of theirs; with ``drop_last`` the
    rest is left out. From the second iteration on, an epoch begins with a new lap, whatever the last one had left.

    Where no mount is, the order is a random permutation by ``seed`` and epoch, as DistributedSampler's.

    Args:
        data: the dataset, or the path of each index; a sequence of paths where an index has several files. Of datasets
            it understands those with ``samples`` or ``imgs`` (ImageFolder), ``images`` (VOC), ``coco`` (CocoDetection),
            ``files`` or ``paths``, and a Subset of these.
        num_replicas, rank: as DistributedSampler; by default those of torch.distributed, if it is initialized.
        drop_last: leave the rest out, where the samples cannot be dealt evenly.
        seed: of the order without a mount.

    Raises:
        TypeError: it does not know the files of the dataset.
        ValueError: there are no files, or ``rank`` is not below ``num_replicas``.
        SamplerError: the mount serves no sampler, an index has files of no sample or of several, or there are ranks on
            other nodes. While it draws: the mount does not answer, or has other files than before.

    >>> with warnings.catch_warnings(action="ignore"):
    ...     sampler = RedoxSampler(["/dev/null", "/dev/zero"])  # no mount is here
    >>> len(sampler), sorted(sampler)
    (2, [0, 1])
    """

    def __init__(
        self,
        data: Any,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        files = _files_of(data)
        if not len(files):
            raise ValueError("there are no files to draw from")
        ranks = _Ranks(None)
        self.num_replicas = ranks.world if num_replicas is None else num_replicas
        self.rank = ranks.rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank {self.rank} is not one of {self.num_replicas}")
        self.drop_last = drop_last
        self.seed = seed
        self.epoch = 0
        self._samples = len(files)
        self._draws: Draws | None = None
        try:
            # A sampler of a part of the ranks cannot meet the others.
            if self.num_replicas == ranks.world:
                places = ranks.agree(lambda: self._look_up(files))
            else:
                places = [self._look_up(files)]
        except ResumeError as error:
            raise SamplerError(str(error)) from None
        if len({*places}) > 1:
            raise SamplerError("the files of the ranks lie in different mounts: a sampler draws from one mount alone")
        if self._draws is None:
            warnings.warn("the files lie in no redoxfs mount: the order is a random permutation", stacklevel=2)

    def _look_up(self, files: Files) -> tuple[str, str] | None:
        """The mount to draw from. Raises ResumeError, which the ranks share."""
        try:
            mount = mount_of_files(files)
            if mount is None:
                return None
            on_this_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.num_replicas))
            if on_this_node < self.num_replicas:
                raise SamplerError(
                    f"{on_this_node} of {self.num_replicas} ranks are on this node: a sampler draws on one node alone"
                )
            self._draws = Draws(mount, files)
        except SamplerError as error:
            raise ResumeError(str(error)) from None
        return _identity(mount)

    def __len__(self) -> int:
        each, rest = divmod(self._samples, self.num_replicas)
        return each + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[int]:
        each, rest = divmod(self._samples, self.num_replicas)
        own = each + (self.rank < rest and not self.drop_last)
        first = None
        for index in self._drawn(own) if self._draws is not None else self._permuted(own):
            first = index if first is None else first
            yield index
        for _ in range(own, len(self)):
            yield self.rank % self._samples if first is None else first

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch. On a mount each iteration has another order in any case."""
        self.epoch = epoch

    def _drawn(self, count: int) -> Iterator[int]:
        assert self._draws is not None
        if self.num_replicas > 1:
            self._draws.begin_epoch()
            for left in range(count, 0, -1):
                yield self._draws.next(left)
            return
        # An epoch that begins in the middle of a lap draws from two, which repeat some.
        is_yielded, repeated = bytearray(self._samples), 0
        while count:
            # About as many as before are repeated.
            index = self._draws.next(count + repeated)
            if is_yielded[index]:
                repeated += 1
                continue
            is_yielded[index] = True
            count -= 1
            yield index

    def _permuted(self, count: int) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self._samples)
        yield from order[self.rank :: self.num_replicas][:count].tolist()


def _files_of(data: Any) -> Files:
    """The files of each index. Raises TypeError."""
    if isinstance(data, Subset):
        files = _files_of(data.dataset)
        return [files[int(index)] for index in data.indices]
    files = _listed_in(data)
    if hasattr(data, "__len__") and len(data) != len(files):
        # Its indices are others, such as the clips of videos.
        raise TypeError(
            f"a {type(data).__name__} has {len(data):,} indices, and lists {len(files):,} files; "
            "pass a list with the path of each index in its place"
        )
    return files


def _listed_in(data: Any) -> Files:
    """The files that a dataset lists. Raises TypeError."""
    if isinstance(data, (list, tuple, np.ndarray)):
        return data  # type: ignore[return-value]
    if hasattr(data, "coco") and hasattr(data, "ids"):
        names = (data.coco.loadImgs(each)[0]["file_name"] for each in data.ids)
        return [os.path.join(data.root, name) for name in names]
    for attribute in ("samples", "imgs", "images", "files", "paths"):
        found = getattr(data, attribute, None)
        if attribute in ("samples", "imgs") and isinstance(found, list):
            # With a label, or without.
            found = [each[0] if isinstance(each, (list, tuple)) and each else each for each in found]
        if isinstance(found, (list, tuple)) and all(map(_is_file_or_files, found)):
            return found
    raise TypeError(
        f"the files of a {type(data).__name__} are not known; pass a list with the path of each index in its place"
    )


def _is_file_or_files(each: Any) -> bool:
    several = each if isinstance(each, (list, tuple)) else (each,)
    return len(several) > 0 and all(isinstance(path, (str, os.PathLike)) for path in several)


# The loader

_ATTRIBUTE = "_redoxfs_tracker"

# Above the length of a sampler, which may be an estimate.
_MOST_MORE = 1000

_trackers: "weakref.WeakSet[_Tracker]" = weakref.WeakSet()


class _Tracker:
    """Counts the batches that a loader has yielded.

    ``pending``  the batches of the next iteration, if a state was loaded
    ``drawn``    how many batches of this iteration the loader has taken from the sampler
    """

    def __init__(self, inner: "DataLoader[Any]", mount: PathStatus | None) -> None:
        # A loader that nobody needs any more must end its workers at once, so nothing here keeps it.
        self._inner = weakref.ref(inner)
        self.samples = len(inner.dataset)
        self.batch_size, self.drop_last = inner.batch_size, bool(inner.drop_last)
        self._has_workers, self._is_single = inner.num_workers > 0, not inner._auto_collation
        self.mount = mount
        self._tree: ToldTree | None = None
        self.pending: list[Batch] | None = None
        self._name_batches()
        self._iteration = 0
        self._yielded = 0
        self.drawn = 0
        self._has_failed = False
        self._batches: list[Batch] | None = None
        self._running: weakref.ref[Any] | None = None
        _trackers.add(self)

    def _name_batches(self) -> None:
        """By a token that no other process has."""
        self._process, self._token = os.getpid(), secrets.randbelow(10**18)
        self._marks = None if self.mount is None else f"{self.mount.path}/.redoxfs/batches/{self._token}"

    def check(self) -> None:
        """Raises ResumeError if the mount cannot assign opens to batches."""
        if self.mount is None:
            return
        # Only the user who mounted can ask the daemon.
        self._turns_since(0, 0)
        try:
            _mark(self._marks, 0, 0)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise ResumeError(
                    f"{self.mount.path}: its daemon cannot see the processes here, which have another pid namespace; "
                    "redoxfs state save --less needs no such sight"
                ) from None
            raise ResumeError(f"{self.mount.path}: it does not take the numbers of batches: {error.strerror}") from None

    def place_for(self, state: Mapping[str, Any]) -> tuple[str, str] | None:
        """The mount that continues from ``state``; None if there is none. Raises ResumeError if it is not of this."""
        if state.get("version") != VERSION:
            raise ResumeError(f"the state has version {state.get('version')}, and this redoxfs reads version {VERSION}")
        if state["samples"] != self.samples:
            raise ResumeError(
                f"the state is of a dataset of {state['samples']} samples, and this one has {self.samples}"
            )
        return None if self.mount is None else _identity(self.mount)

    def find_tree(self, root: str | os.PathLike[str], folder: str | None) -> None:
        """The class tree of which epochs are told. ``folder``: of the first file of the dataset, if it is known."""
        if self.mount is None:
            return
        # A daemon that is older than this package does not know the verb.
        with suppress(CommandError):
            self._tree = self._tree_at(os.path.realpath(root)) or self._tree_at(folder)
        counts = self._counts()
        if counts is not None and self._tree is not None:
            # Before any rank agrees on the number of the first epoch, mostly.
            counts.say(self._tree.count)

    def _tree_at(self, folder: str | None) -> ToldTree | None:
        assert self.mount is not None
        place = None if folder is None else place_in(self.mount, Path(folder), read_mounts())
        return None if place is None else tree_of(self.mount, place)

    def _counts(self) -> JobCounts | None:
        """What the ranks agree on; None: nothing, as there are no ranks, or the mount counts for itself."""
        store = _store()
        if store is None or self._tree is None or self._tree.count is None:
            return None
        told = _told.setdefault(store, {}).setdefault((self._tree.dataset, self._tree.name), set())
        return JobCounts(store, self._tree, told)

    def begin(self, iterator: Any) -> int:
        """An iteration begins; its number."""
        if self._process != os.getpid():
            # A fork, such as a rank. Its batches are not those of its parent.
            self._name_batches()
        self._iteration += 1
        self._yielded = self.drawn = 0
        self._batches = None
        self._has_failed = False
        self._running = weakref.ref(iterator)
        return self._iteration

    def batches(self, sampler: Any) -> Iterator[Any]:
        """The batches of this iteration, for workers. Each marks its beginning in the worker that receives it."""
        iteration = self._iteration
        pending, self.pending = self.pending, None
        if pending is None:
            # Some samplers never end, though they have a length.
            most = 2 * len(sampler) + _MOST_MORE
            pending = [[index] if self._is_single else list(index) for index in islice(sampler, most + 1)]
            if len(pending) > most:
                raise ResumeError(f"the sampler has more than {most:,} batches, and its length is {len(sampler):,}")
            self._tell_epoch(getattr(sampler, "sampler", sampler))
        self._batches = pending
        for number, batch in enumerate(pending):
            self.drawn = number + 1
            index = batch[0] if self._is_single else batch
            if self._has_workers:
                yield _Numbered(self._marks, iteration, number, index)
            else:
                _mark(self._marks, iteration, number)
                yield index

    def _tell_epoch(self, sampler: Any) -> None:
        """An epoch begins, and no file was opened for it yet."""
        if self.mount is None or self._tree is None or any(map(self._is_beside, _trackers)):
            return
        ranks = _Ranks(None)
        number, world, rank = (getattr(sampler, name, None) for name in ("epoch", "num_replicas", "rank"))
        if type(world) is not int or type(rank) is not int:
            world, rank = ranks.world, ranks.rank
        epoch, counts = number if type(number) is int else None, self._counts()
        least = 0 if counts is None else counts.number_of(epoch)
        try:
            count = tell_epoch(self.mount, self._tree.name, epoch, world, rank, least)
        except CommandError as error:
            warnings.warn(f"{error}; it has to find out where the epoch began", stacklevel=2)
            return
        if counts is not None:
            counts.say(count)

    def _is_beside(self, other: "_Tracker") -> bool:
        """Whether another loader is in the middle of an epoch of the same tree."""
        return (
            other is not self
            and other._tree is not None
            and self._tree is not None
            and other._tree.name == self._tree.name
            and other._running is not None
            and other._running() is not None
            # One that an error ended, such as Ctrl-C in a notebook, is kept by its traceback.
            and not other._has_failed
            and other._yielded < len(other._batches or ())
            and _identity(other.mount) == _identity(self.mount)
        )

    def has_yielded(self, iteration: int, batches: int) -> None:
        if iteration == self._iteration:
            self._yielded += batches
            self._has_failed = False

    def has_failed(self, iteration: int) -> None:
        """It raised an error instead of a batch. The loop may continue without it."""
        if iteration == self._iteration:
            self._has_failed = True

    def has_ended(self, iteration: int) -> None:
        if iteration == self._iteration:
            self._running = None

    def deals(self, batches: Sequence[Batch]) -> bool:
        """Whether the loader would deal the indices of these batches in this way."""
        size = self.batch_size
        return size is None or all(
            len(batch) == size or (len(batch) < size and number == len(batches) - 1 and not self.drop_last)
            for number, batch in enumerate(batches)
        )

    def remaining(self) -> list[Batch] | None:
        """The batches that the iteration has not yielded; None between two iterations."""
        if self.pending is not None:
            return self.pending
        if self._running is None:
            return None
        if self._batches is None:
            # It has begun, and no batch was asked for.
            return None
        return self._batches[self._yielded :]

    def turns_ahead(self) -> bytes:
        """The turns for batches that were not yielded, also of other tracked loaders of this process on the mount.

        A job with several loaders loads their states one after the other, and each load sets the laps for all.
        """
        if self.mount is None:
            return b""
        rows = [self._own_turns_ahead()]
        for other in _trackers:
            # Nobody can save or load the state of a loader that is gone, though a traceback may keep its iterator.
            is_kept = other is not self and other._inner() is not None
            if is_kept and other.mount is not None and _identity(other.mount) == _identity(self.mount):
                # Saving its own state raises its error.
                with suppress(ResumeError):
                    rows.append(other._own_turns_ahead())
        return b"".join(rows)

    def _own_turns_ahead(self) -> bytes:
        return b"" if self._running is None else self._turns_since(self._iteration, self._yielded)

    def _turns_since(self, iteration: int, number: int) -> bytes:
        assert self.mount is not None
        answer = _ask(self.mount, "turns-since", f"[{self._token}, {iteration}, {number}]".encode())
        return base64.b64decode(answer["turns"])

    def stop(self) -> None:
        """End the workers of an iteration, which would open more."""
        iterator, inner = None if self._running is None else self._running(), self._inner()
        self._running = self._batches = None
        for each in (getattr(iterator, "inner", None), getattr(inner, "_iterator", None)):
            # accelerate's are generators.
            end = getattr(each, "_shutdown_workers", None) or getattr(each, "close", None)
            if end is not None:
                end()
        if inner is not None:
            inner._iterator = None
            if _is_stateful(inner):
                inner._initial_iter_for_state_dict = False


class _Iterator:
    """The iterator of a loader, which counts the batches that it yields."""

    # Of one that could not begin. A traceback keeps it.
    inner: Any = None

    def __init__(self, tracker: _Tracker, begin: Callable[[], Iterator[Any]]) -> None:
        self._tracker = tracker
        # Workers get their first batches when the loader's own iterator is made.
        self._iteration = tracker.begin(self)
        self.inner = begin()
        # Batches that raised an error. They count as ahead until the loop continues without them.
        self._failed = 0

    def __iter__(self) -> "_Iterator":
        return self

    def __next__(self) -> Any:
        before = self._received()
        try:
            batch = next(self.inner)
        except StopIteration:
            self._tracker.has_ended(self._iteration)
            raise
        except BaseException:
            self._failed += self._received() - before
            self._tracker.has_failed(self._iteration)
            raise
        self._tracker.has_yielded(self._iteration, 1 + self._failed)
        self._failed = 0
        return batch

    def _received(self) -> int:
        """How many batches PyTorch's iterator has passed: it continues after a batch that raised an error."""
        received = getattr(self.inner, "_rcvd_idx", None)
        return self._tracker.drawn if received is None else int(received)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Order:
    """A sampler of numbered batches."""

    def __init__(self, tracker: _Tracker, sampler: Any) -> None:
        self._tracker = tracker
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return self._tracker.batches(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


def _derive(loader: Any, **methods_of: Callable[[type], Any]) -> None:
    """Make ``loader`` an instance of a class derived from its own, with other methods.

    A copy of it is of its own class, and so is what a framework makes by its class.
    """
    cls = type(loader)
    methods = {name: method_of(cls) for name, method_of in methods_of.items()}
    methods.update(__new__=_made_by(cls), __reduce_ex__=_reduced)
    # An object can only become an instance of a class of the same layout.
    derived = type(cls.__name__, (cls,), {"__slots__": (), "__module__": cls.__module__, **methods})
    # accelerate's loaders hide their class.
    object.__dict__["__class__"].__set__(loader, derived)


def _made_by(cls: type) -> Any:
    """A ``__new__`` that makes a loader of ``cls``. Lightning replaces a loader by another one of its class."""

    def make(_: type, *args: Any, **options: Any) -> Any:
        warnings.warn("a loader is made by the class of a tracked one, and is not tracked", stacklevel=2)
        return cls(*args, **options)

    return make


def _reduced(loader: Any, protocol: Any) -> tuple[Any, ...]:
    """The ``__reduce_ex__`` of tracked loaders. A copy yields batches of its own, so it is not tracked."""
    make, *rest = _untracked(loader).__reduce_ex__(protocol)
    # Pickle refuses an object of another class than its own, if it knows the function.
    return partial(make), *rest


def _untracked(loader: Any) -> Any:
    """A shallow copy of the class that ``loader`` had."""
    plain: Any = object.__new__(type(loader).__base__)  # type: ignore[arg-type]
    attributes = vars(plain)
    attributes.update(vars(loader))
    del attributes[_ATTRIBUTE]
    if "base_dataloader" in attributes:
        attributes["base_dataloader"] = _untracked(attributes["base_dataloader"])
    return plain


def _counting(cls: type) -> Any:
    """An ``__iter__`` whose iterators count the batches that they yield."""
    return lambda self: _Iterator(_tracker_of(self), partial(cls.__iter__, self))  # type: ignore[attr-defined]


def _ordered(cls: type) -> Any:
    """An ``_index_sampler`` that numbers the batches."""
    return property(lambda self: _Order(_tracker_of(self), cls._index_sampler.fget(self)))  # type: ignore[attr-defined]


def _watching(cls: type) -> Any:
    """A ``_get_iterator`` whose workers end with the training process.

    Between calls the loader has its own ``worker_init_fn``: Lightning seeds the workers only if it is None.
    """

    def get_iterator(self: Any) -> Any:
        if _is_stateful(self):
            # The own state of a StatefulDataLoader would skip batches of the rest of an epoch.
            self.next_iter_state = None
        own = self.worker_init_fn
        self.worker_init_fn = partial(_begin_worker, own)
        try:
            return cls._get_iterator(self)  # type: ignore[attr-defined]
        finally:
            self.worker_init_fn = own

    return get_iterator


def _is_stateful(loader: Any) -> bool:
    """Whether it is a StatefulDataLoader."""
    return hasattr(loader, "next_iter_state")


def _begun(cls: type) -> Any:
    """A ``state_dict`` of a StatefulDataLoader that begins no iteration, which would open files for nobody.

    An empty state is that of a loader that has not begun.
    """
    return lambda self: {} if self._iterator is None else cls.state_dict(self)  # type: ignore[attr-defined]


def _tracker_of(loader: Any) -> _Tracker:
    tracker = vars(loader).get(_ATTRIBUTE)
    if not isinstance(tracker, _Tracker):
        raise ResumeError(
            "the loader is not tracked: call redoxfs.torch.track(loader, root) before its first iteration, "
            "and after a framework has replaced it"
        )
    return tracker


# In the workers


class _Numbered:
    """A batch on its way to a worker. Unpickling marks its beginning and returns its indices."""

    __slots__ = ("_number",)

    def __init__(self, *number: Any) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, self._number


def _begin_worker(own: Callable[[int], None] | None, worker: int) -> None:
    """The ``worker_init_fn`` of tracked loaders, before the user's ``own``."""
    _end_with_parent()
    if own is not None:
        own(worker)


def _arrive(marks: str | None, iteration: int, number: int, index: Any) -> Any:
    """Runs in a worker when it receives a batch, before it opens any file for it."""
    _mark(marks, iteration, number)
    return index


def _mark(marks: str | None, iteration: int, number: int) -> None:
    """Tell the mount, with one request, that this process opens files for a batch from now on."""
    if marks is not None:
        os.stat(f"{marks}-{iteration}-{number}")


def _end_with_parent() -> None:
    """End this worker as soon as the training process has ended.

    PyTorch's workers notice that after some seconds. Meanwhile they may open files that the next job should get. A
    worker that is still starting then never notices, because PyTorch looks up its parent only later.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    try:
        pidfd = end_of(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        # Some containers forbid it.
        return

    def wait() -> None:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.poll()
        os._exit(1)

    threading.Thread(target=wait, name="redoxfs-parent", daemon=True).start()


# Batches as text


def _packed(batches: Sequence[Batch] | None) -> str | None:
    if batches is None:
        return None
    try:
        sizes = np.array([len(batch) for batch in batches], "<i4")
        indices = np.array([index_of(each) for batch in batches for each in batch], "<i8")
    except (TypeError, ValueError):
        raise ResumeError("the sampler's indices are not numbers, so the batches cannot be saved") from None
    head = np.array([len(sizes)], "<i8")
    return base64.b64encode(zlib.compress(b"".join(part.tobytes() for part in (head, sizes, indices)), 1)).decode()


def _unpacked(text: str) -> list[Batch]:
    data = zlib.decompress(base64.b64decode(text))
    count = int(np.frombuffer(data, "<i8", 1)[0])
    sizes = np.frombuffer(data, "<i4", count, 8)
    indices = np.frombuffer(data, "<i8", offset=8 + 4 * count)
    return [part.tolist() for part in np.split(indices, np.cumsum(sizes)[:-1])] if count else []


def _dealt(of_ranks: Sequence[list[Batch]], rank: int, world: int, size: int | None, *, drop_last: bool) -> list[Batch]:
    """The batches of ``rank``, of ``world``, if the ranks of the save left these.

    ``size``: of the batches; None: they stay whole, since a batch sampler may put what has one shape into a batch.

    >>> left = [[[0, 1], [4, 5]], [[2, 3], [6]]]
    >>> [_dealt(left, rank, 3, 2, drop_last=False) for rank in range(3)]
    [[[0, 3], [6]], [[1, 4], [0]], [[2, 5], [1]]]
    >>> _dealt(left, 0, 1, 2, drop_last=True)
    [[0, 1], [2, 3], [4, 5]]
    >>> [_dealt(left, rank, 3, None, drop_last=False) for rank in range(3)]
    [[[0, 1], [6]], [[2, 3], [0, 1]], [[4, 5], [2, 3]]]
    """
    most = max(map(len, of_ranks))
    in_order = [each[number] for number in range(most) for each in of_ranks if number < len(each)]
    if size is None:
        return _share(in_order, rank, world, 1, drop_last=drop_last)
    own = _share([index for batch in in_order for index in batch], rank, world, size, drop_last=drop_last)
    return [own[at : at + size] for at in range(0, len(own), size)]


def _share(left: list[Any], rank: int, world: int, size: int, *, drop_last: bool) -> list[Any]:
    """What ``rank`` gets: as much as each other one; with ``drop_last`` a multiple of ``size``."""
    if drop_last:
        left = left[: len(left) // (world * size) * world * size]
    elif len(left) % world:
        left = [*left, *(left * world)[: -len(left) % world]]
    return left[rank::world]


# The mount


def _folder_of(dataset: Any) -> str | None:
    """The directory of the first file of ``dataset``, if its files are known."""
    # Datasets of all kinds come here, and their attributes may be anything.
    with suppress(Exception):
        first = _files_of(dataset)[0]
        return os.path.realpath(os.path.dirname(first if isinstance(first, (str, os.PathLike)) else first[0]))
    return None


def _mount_at(root: str | os.PathLike[str], folder: str | None) -> PathStatus | None:
    """The mount that ``root`` lies in; None if it lies in none.

    Raises ValueError if ``folder``, of the first file of the dataset, lies in another one.
    """
    mounts = read_mounts()
    mount = our_mount_of(Path(os.path.realpath(root)), mounts)
    of_files = None if folder is None else our_mount_of(Path(folder), mounts)
    if of_files is not None and (mount is None or _identity(mount) != _identity(of_files)):
        # Its batches would resume without its laps.
        raise ValueError(
            f"{os.fspath(root)}: it does not lie in the mount at {of_files.path}, and {folder}, which the dataset "
            "reads, does; pass a path in that mount"
        )
    return mount


def _ask(mount: PathStatus, verb: str, data: bytes, *, file: bytes | None = None) -> dict[str, Any]:
    """``file``: the path of the file that the daemon is to write. Raises ResumeError."""
    try:
        with nullcontext() if file is None else opened_folder(Path(os.fsdecode(file)).parent) as folder:
            return ask_daemon(mount, verb, data, TIMEOUT_S, folder=folder)
    except CommandError as error:
        raise ResumeError(str(error)) from None


def _load(mount: PathStatus, laps: bytes) -> View | None:
    """Load ``laps`` into a mount. Returns the view that its nodes have then. Raises ResumeError."""
    _ask(mount, "state-load", laps)
    try:
        answer = ask_daemon(mount, "nodes", b"", TIMEOUT_S)
    except UsageError:
        # It serves one node alone.
        return None
    except CommandError as error:
        raise ResumeError(str(error)) from None
    return answer["view"], answer["nodes"]


def _behind(views: Sequence[View | None], rank: int) -> int:
    """How many views the mount of ``rank`` is behind another of the same nodes.

    >>> views = [(7, ["a:1", "b:1"]), None, (5, ["a:1", "b:1"]), (9, ["c:1"])]
    >>> [_behind(views, rank) for rank in range(4)]
    [0, 0, 2, 0]
    """
    own = views[rank]
    return 0 if own is None else max(view[0] for view in views if view is not None and view[1] == own[1]) - own[0]


def _catch_up(mount: PathStatus | None, laps: bytes | None, views: int) -> None:
    """Load ``laps`` once more for each view that the nodes of ``mount`` lack. Raises ResumeError.

    A job that is killed while it loads leaves the views of its nodes apart, and each load adds one.
    """
    for _ in range(views):
        assert mount is not None
        assert laps is not None
        _ask(mount, "state-load", laps)


def _without(mount: PathStatus, path: bytes, turns: bytes) -> str:
    """The state in a file, without ``turns``."""
    if turns and (again := _ask(mount, "state-take-back", path + b"\0" + turns, file=path)["again"]):
        warnings.warn(
            f"{again} samples that were yielded come again after a load: the loader was ahead into another lap",
            stacklevel=3,
        )
    return base64.b64encode(Path(os.fsdecode(path)).read_bytes()).decode()


def _identity(mount: PathStatus | None) -> tuple[str, str]:
    """Identifies a mount: equal for all ranks that read it."""
    assert mount is not None
    assert mount.mount is not None
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), mount.mount.device


_told: "weakref.WeakKeyDictionary[Any, dict[tuple[str, str], set[int | None]]]" = weakref.WeakKeyDictionary()
"""The epochs that this process has told, by the store of its job, the dataset and the tree."""


_inherited: Any = None
"""The store that the process had when it was forked. Its connection is the parent's, whose answers it would take."""


def _store() -> Any:
    """What the ranks of the job share; None: nothing."""
    store = _default_store()
    return None if store is _inherited else store


def _default_store() -> Any:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    # There is no public name for it, and with MPI there is none.
    with suppress(Exception):
        return torch.distributed.distributed_c10d._get_default_store()
    return None


def _note_fork() -> None:
    global _inherited
    _inherited = _default_store()


os.register_at_fork(after_in_child=_note_fork)


class _Ranks:
    """The ranks of a job; a single one without torch.distributed."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._is_one = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self.rank = 0 if self._is_one else torch.distributed.get_rank(group)
        self.world = 1 if self._is_one else torch.distributed.get_world_size(group)

    def agree(self, step: Any) -> list[Any]:
        """Do ``step`` at each rank, and return all results. If it fails at one rank, raise ResumeError at all."""
        result, failure = None, None
        try:
            result = step()
        except (ResumeError, OSError) as error:
            failure = str(error)
        results: list[Any] = [(result, failure)] * self.world
        if not self._is_one:
            torch.distributed.all_gather_object(results, (result, failure), group=self._group)
        for rank, (_, problem) in enumerate(results):
            if problem is not None:
                raise ResumeError(problem if self.world == 1 else f"rank {rank}: {problem}")
        return [each for each, _ in results]
