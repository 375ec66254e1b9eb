"""`redoxfs.torch`: a DataLoader on a real mount resumes to the sample."""

import base64
import copy
import doctest
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from machine import PATIENCE_S, Machine, has_ended
from patience import completed, until
from resuming_job import Files, Job, killed_runs, make_files
from seclusion import with_own_folder

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, IterableDataset

import redoxfs.torch

# torchdata calls a function that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")

BENCH = Path(__file__).parents[1] / "scripts/bench/resume.py"

FILES = 120
BATCH = 4
OPTIONS = ["--classes", "dir", "--samples", "*.bin", "--chunk-size", "4"]

Make = Callable[[], Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, which nothing changes."""
    root = tmp_path_factory.mktemp("data")
    make_files(root, 2, FILES)
    return root


@pytest.fixture(scope="module")
def memory(source: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The memory for a quarter of the samples."""
    told = Machine(tmp_path_factory.mktemp("machine")).inspect(source, *OPTIONS)
    return int(told["memory_for"]["25%"])


@pytest.fixture
def mounted(machine: Machine, source: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A mount with memory for a quarter of the samples, that this process can reach."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(machine.environment[name]))
    # With these orders no worker that lives on begins an epoch with the file that it ended the last one with.
    torch.manual_seed(1)
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--memory", str(memory))
    yield machine
    stats = machine.stats()
    assert stats["errors"] == 0
    assert not any(stats["split_paths"].values())


def loader_of(root: Path, kind: Any = DataLoader, **options: Any) -> Any:
    """A tracked loader that shuffles, and yields batches of names."""
    loader = kind(Files(os.fspath(root)), batch_size=BATCH, shuffle=True, collate_fn=list, **options)
    return redoxfs.torch.track(loader, root)


def stateful_loader() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


AHEAD = {"num_workers": 2, "prefetch_factor": 3}


@pytest.fixture(params=["no workers", "workers", "persistent workers", "stateful", "stateful, no workers"])
def make(request: pytest.FixtureRequest, mounted: Machine) -> Make:
    """Makes a loader of a kind."""
    options: dict[str, Any] = {} if "no workers" in request.param else {**AHEAD}
    if "persistent" in request.param:
        options["persistent_workers"] = True
    kind = stateful_loader() if "stateful" in request.param else DataLoader
    return partial(loader_of, mounted.mnt, kind, **options)


def names_in(batches: Any) -> list[str]:
    return [name for batch in batches for name in batch]


def assert_each_once(names: list[str]) -> None:
    assert len(names) == FILES
    assert set(Counter(names).values()) == {1}


def test_every_sample_that_was_not_yielded_comes_and_no_other(make: Make) -> None:
    for yielded in (0, 11, FILES // BATCH):
        loader = make()
        batches = iter(loader)
        trained = names_in(next(batches) for _ in range(yielded))
        # What a checkpoint has, also as JSON.
        state = json.loads(json.dumps(redoxfs.torch.state_dict(loader)))
        lost = names_in(next(batches, []) for _ in range(5))
        assert yielded == FILES // BATCH or lost
        del batches, loader
        resumed = make()
        redoxfs.torch.load_state_dict(resumed, state)
        assert_each_once(trained + names_in(resumed))
        assert_each_once(names_in(resumed))


def test_a_state_between_epochs_begins_a_whole_epoch(make: Make, mounted: Machine) -> None:
    loader = make()
    assert_each_once(names_in(loader))
    state = redoxfs.torch.state_dict(loader)
    assert state["ranks"] is None
    names_in(loader)
    next(iter(loader))
    redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(names_in(loader))
    assert mounted.stats()["turns"] == 2 * FILES


def test_an_epoch_is_told_when_it_begins_and_the_rest_of_a_loaded_one_is_not(make: Make, mounted: Machine) -> None:
    told = []
    loader = make()
    for _ in range(2):
        assert_each_once(names_in(loader))
        told.append(mounted.stats()["epochs_told"])
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(11))
    state = redoxfs.torch.state_dict(loader)
    del batches
    # What was broken off leaves no trace.
    assert_each_once(names_in(loader))
    told.append(mounted.stats()["epochs_told"])
    redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(trained + names_in(loader))
    told.append(mounted.stats()["epochs_told"])
    assert_each_once(names_in(loader))
    assert [*told, mounted.stats()["epochs_told"]] == [1, 2, 4, 4, 5]


@pytest.mark.parametrize("options", [{}, AHEAD], ids=["no workers", "workers"])
def test_the_own_state_of_a_stateful_loader_takes_no_sample(mounted: Machine, options: dict[str, Any]) -> None:
    """Lightning and accelerate save and load it by themselves, and accelerate asks for it before the first batch."""
    kind = stateful_loader()

    def make() -> Any:
        loader = kind(Files(os.fspath(mounted.mnt)), batch_size=BATCH, shuffle=True, collate_fn=list, **options)
        loader.state_dict()
        redoxfs.torch.track(loader, mounted.mnt)
        loader.state_dict()
        return loader

    loader = make()
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(11))
    own, state = loader.state_dict(), redoxfs.torch.state_dict(loader)
    del batches, loader
    loads: list[Callable[[Any], None]] = [
        lambda loader: loader.load_state_dict(own),
        lambda loader: redoxfs.torch.load_state_dict(loader, state),
    ]
    for in_order in (loads, loads[::-1]):
        resumed = make()
        for load in in_order:
            load(resumed)
            resumed.state_dict()
        assert_each_once(trained + names_in(resumed))
        assert_each_once(names_in(resumed))


def test_a_loader_is_tracked_and_resumed_in_any_thread(mounted: Machine) -> None:
    """Ray Train runs a training loop in a thread that is not the main one."""

    def train() -> list[str]:
        loader = loader_of(mounted.mnt)
        batches = iter(loader)
        trained = names_in([next(batches)])
        state = redoxfs.torch.state_dict(loader)
        del batches, loader
        resumed = loader_of(mounted.mnt)
        redoxfs.torch.load_state_dict(resumed, state)
        return trained + names_in(resumed)

    with ThreadPoolExecutor(1) as threads:
        assert_each_once(threads.submit(train).result())


def test_an_epoch_is_told_of_its_own_tree(
    machine: Machine, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation in the middle of an epoch begins none of training."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.environment["XDG_RUNTIME_DIR"]))
    for name in ("train", "val"):
        (tmp_path / "both" / name).parent.mkdir(exist_ok=True)
        shutil.copytree(source, tmp_path / "both" / name)
    machine.ok("mount", tmp_path / "both", machine.mnt, *OPTIONS)

    def begun() -> tuple[int, ...]:
        stats = machine.stats()
        return (stats["epochs_told"], *(stats["passes"][tree]["opens"] for tree in ("train", "val")))

    training, validation = (loader_of(machine.mnt / tree) for tree in ("train", "val"))
    batches = iter(training)
    names = names_in(next(batches) for _ in range(20))
    names_in(validation)
    assert begun() == (2, 80, FILES)
    next(iter(validation))
    assert begun() == (3, 80, BATCH)
    assert_each_once(names + names_in(batches))
    # Where several trees lie, the files of the dataset tell, if they are known.
    data: Any = Files(str(machine.mnt / "val"))
    next(iter(redoxfs.torch.track(DataLoader(data), machine.mnt)))
    assert begun()[0] == 3
    data.files = data._paths
    next(iter(redoxfs.torch.track(DataLoader(data), machine.mnt)))
    assert begun()[0] == 4


def test_epochs_that_drop_the_last_batch_resume_to_the_sample(mounted: Machine) -> None:
    """No state warns of samples that come again."""

    def make() -> Any:
        options = {"batch_size": 16, "shuffle": True, "drop_last": True, "collate_fn": list, **AHEAD}
        return redoxfs.torch.track(DataLoader(Files(os.fspath(mounted.mnt)), **options), mounted.mnt)

    loader = make()
    for yielded in (3, 0, 6, 1, 5):
        batches = iter(loader)
        trained = names_in(next(batches) for _ in range(yielded))
        state = redoxfs.torch.state_dict(loader)
        next(batches)
        del batches, loader
        loader = make()
        redoxfs.torch.load_state_dict(loader, state)
        trained += names_in(loader)
        assert len(trained) == len({*trained}) == FILES // 16 * 16


def test_ten_epochs_with_drop_last_have_as_many_samples_as_those_of_a_plain_directory(
    mounted: Machine, source: Path
) -> None:
    """A training that knows nothing of redoxfs."""

    def counts(root: Path) -> list[tuple[int, int]]:
        """By epoch: how many samples, and how many different ones, come."""
        torch.manual_seed(2)
        loader = DataLoader(Files(os.fspath(root)), batch_size=16, shuffle=True, drop_last=True)
        epochs = [names_in(loader) for _ in range(10)]
        return [(len(samples), len({*samples})) for samples in epochs]

    of_directory = counts(source)
    assert counts(mounted.mnt) == of_directory == [(FILES // 16 * 16,) * 2] * 10
    assert mounted.stats()["redirected"] > 5 * FILES


def test_a_loader_that_runs_returns_to_its_state(mounted: Machine) -> None:
    loader = loader_of(mounted.mnt, **AHEAD, persistent_workers=True)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(7))
    state = redoxfs.torch.state_dict(loader)
    for _ in range(9):
        next(batches)
    redoxfs.torch.load_state_dict(loader, state)
    assert redoxfs.torch.state_dict(loader)["ranks"] == state["ranks"], "nothing was yielded since"
    assert_each_once(trained + names_in(loader))


@pytest.mark.skipif(os.getuid() != 0, reason="mounts the mount at another path")
def test_a_loader_reads_and_resumes_through_a_bind_mount(mounted: Machine, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(["mount", "--bind", mounted.mnt, elsewhere], check=True)
    try:
        loader = loader_of(elsewhere)
        batches = iter(loader)
        trained = names_in(next(batches) for _ in range(11))
        state = redoxfs.torch.state_dict(loader)
        next(batches)
        redoxfs.torch.load_state_dict(loader, state)
        assert_each_once(trained + names_in(loader))
        assert mounted.stats()["epochs_told"] == 1
    finally:
        subprocess.run(["umount", elsewhere], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a folder of temporary files")
def test_a_loader_is_saved_where_the_daemon_has_other_temporary_files(
    mounted: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a container, of Slurm's job_container/tmpfs or of a service with PrivateTmp has a /tmp of its own."""
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    loader = loader_of(mounted.mnt, **AHEAD)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(11))
    before = sorted(tmp_path.iterdir())
    state = with_own_folder(tmp_path, lambda: redoxfs.torch.state_dict(loader))
    assert sorted(tmp_path.iterdir()) == before
    del batches
    redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(trained + names_in(loader))


def test_a_state_is_exact_though_the_daemon_died(mounted: Machine) -> None:
    loader = loader_of(mounted.mnt, **AHEAD)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(5))
    # The workers read ahead meanwhile.
    mounted.kill(signal.SIGKILL)
    trained += names_in(next(batches) for _ in range(2))
    state = redoxfs.torch.state_dict(loader)
    del batches
    redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(trained + names_in(loader))


def test_a_state_can_be_mounted_and_loaded_by_the_command_line(mounted: Machine, tmp_path: Path) -> None:
    loader = loader_of(mounted.mnt, **AHEAD)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(9))
    state = redoxfs.torch.state_dict(loader)
    del batches
    (tmp_path / "laps").write_bytes(base64.b64decode(state["laps"]))
    told = mounted.ok("state", "load", mounted.mnt, tmp_path / "laps").stdout
    assert f"lap 1, {9 * BATCH} of {FILES} samples had their turn" in told
    left = [name for batch in redoxfs.torch._unpacked(state["ranks"][0]) for name in batch]
    files = Files(str(mounted.mnt))
    assert_each_once(trained + [files[index] for index in left])


def test_what_other_loaders_read_stays_read(mounted: Machine) -> None:
    loader = loader_of(mounted.mnt)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(4))
    plain = DataLoader(Files(str(mounted.mnt)), sampler=range(8), batch_size=BATCH, collate_fn=list, num_workers=1)
    seen = names_in(plain)
    state = redoxfs.torch.state_dict(loader)
    next(batches)
    redoxfs.torch.load_state_dict(loader, state)
    assert mounted.stats()["turns"] == len(trained) + len(seen) == 24


def test_what_a_fork_of_a_loader_reads_stays_read(mounted: Machine) -> None:
    loader = loader_of(mounted.mnt)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        try:
            names_in(islice(loader, 5))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    state = redoxfs.torch.state_dict(loader)
    next(batches)
    redoxfs.torch.load_state_dict(loader, state)
    assert mounted.stats()["turns"] == 6 * BATCH


def test_what_a_loader_that_is_gone_had_opened_ahead_stays_read(mounted: Machine) -> None:
    """As in a notebook: a traceback keeps the iterator of a cell that was interrupted, and the cell runs again."""
    loader = loader_of(mounted.mnt, **AHEAD)
    kept = iter(loader)
    next(kept)
    until(lambda: mounted.stats()["turns"] == 7 * BATCH, "what the workers read ahead")
    loader = loader_of(mounted.mnt)
    for _ in range(2):
        assert_each_once(names_in(loader))
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(5))
    state = redoxfs.torch.state_dict(loader)
    redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(trained + names_in(loader))
    # Its workers end now, and not while the mount does.
    del kept


class Prepared:
    """A loader around another one, whose class it hides, as accelerate's do."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.base_dataloader = DataLoader(*arguments, **options)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        shown: type = self.base_dataloader.__class__
        return shown

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base_dataloader)


@pytest.mark.parametrize("kind", [DataLoader, None, Prepared], ids=["plain", "stateful", "prepared"])
def test_a_copy_of_a_tracked_loader_is_of_its_own_class_and_not_tracked(source: Path, kind: Any) -> None:
    """Lightning makes another loader by the class of a loader, and a launcher of processes pickles it."""
    kind = kind or stateful_loader()
    shown = DataLoader if kind is Prepared else kind
    loader = redoxfs.torch.track(kind(range(FILES), batch_size=BATCH, collate_fn=_same), source)
    with pytest.warns(UserWarning, match="by the class of a tracked one, and is not tracked"):
        made = type(loader)(range(FILES), batch_size=BATCH, collate_fn=_same)
    for copied in (made, copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert (type(copied), copied.__class__) == (kind, shown)
        assert [index for batch in copied for index in batch] == [*range(FILES)]
        with pytest.raises(redoxfs.torch.ResumeError, match="not tracked"):
            redoxfs.torch.state_dict(copied)
    batches = iter(loader)
    trained = next(batches)
    left = redoxfs.torch._unpacked(redoxfs.torch.state_dict(loader)["ranks"][0])
    assert [trained, *left] == [trained, *batches]
    assert len(left) == FILES // BATCH - 1


def test_a_loader_that_could_not_begin_is_loaded(source: Path) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": lambda batch: batch}
    loader = redoxfs.torch.track(DataLoader(range(FILES), **options), source)
    state = redoxfs.torch.state_dict(loader)
    with pytest.raises(Exception, match="pickle") as kept:
        iter(loader)
    redoxfs.torch.load_state_dict(loader, state)
    del kept


def test_a_state_without_room_for_its_file_is_an_error_of_all_ranks(
    mounted: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(mounted.mnt)
    monkeypatch.setattr("tempfile.tempdir", str(mounted.folder / "missing"))
    with pytest.raises(redoxfs.torch.ResumeError, match="No such file or directory"):
        redoxfs.torch.state_dict(loader)


def test_without_a_mount_the_batches_are_resumed(source: Path) -> None:
    loader = loader_of(source, **AHEAD)
    batches = iter(loader)
    trained = names_in(next(batches) for _ in range(5))
    state = redoxfs.torch.state_dict(loader)
    assert state["laps"] is None
    resumed = loader_of(source)
    redoxfs.torch.load_state_dict(resumed, state)
    assert_each_once(trained + names_in(resumed))


def test_a_state_with_laps_warns_where_no_mount_is(mounted: Machine, source: Path) -> None:
    state = redoxfs.torch.state_dict(loader_of(mounted.mnt))
    with pytest.warns(UserWarning, match="no redoxfs mount is there now"):
        redoxfs.torch.load_state_dict(loader_of(source), state)


PART = """
import json, sys
import torch.distributed
from torch.utils.data import DataLoader
import redoxfs.torch
rank, store, root, *states = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
loader = redoxfs.torch.track(DataLoader(range(120), batch_size=4), root)
for state in map(json.loads, states):
    try:
        redoxfs.torch.load_state_dict(loader, state)
    except redoxfs.torch.ResumeError as error:
        print(error)
    else:
        print(sum(len(batch) for batch in loader))
print(redoxfs.torch.state_dict(loader)["laps"] is not None)
"""


def test_ranks_load_a_state_though_some_have_no_mount(mounted: Machine, source: Path, tmp_path: Path) -> None:
    """The first line is of a state that is loaded, the next ones of states that one mount or one rank refuses, the last
    one of a state that is saved."""
    loader = loader_of(mounted.mnt)
    batches = iter(loader)
    names_in(next(batches) for _ in range(5))
    state = redoxfs.torch.state_dict(loader)
    next(batches)
    damaged = base64.b64encode(b"damaged").decode()
    states = [
        [state, {**state, "laps": damaged}, {**state, "samples": 7}],
        [state, {**state, "laps": damaged}, state],
    ]
    ranks = []
    for rank, root in enumerate((source, mounted.mnt)):
        given = [json.dumps({**each, "ranks": state["ranks"] * 2}) for each in states[rank]]
        command = [sys.executable, "-c", PART, str(rank), str(tmp_path / "store"), str(root), *given]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    told = [rank.communicate() for rank in ranks]
    for out, _ in told:
        resumed, *refused, has_laps = out.splitlines()
        assert resumed == str(FILES - 5 * BATCH)
        assert [line.split(":")[0] for line in refused] == ["rank 1", "rank 0"]
        assert has_laps == "True"
    assert ["no redoxfs mount is there now" in err for _, err in told] == [True, False]
    assert mounted.stats()["turns"] == 5 * BATCH


def test_what_cannot_be_resumed_is_refused(mounted: Machine, tmp_path: Path) -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(TypeError, match="IterableDataset"):
        redoxfs.torch.track(DataLoader(Endless()), mounted.mnt)
    with pytest.raises(ValueError, match="in_order"):
        redoxfs.torch.track(DataLoader(range(4), in_order=False), mounted.mnt)
    dispatcher = type("DataLoaderDispatcher", (DataLoader,), {})
    with pytest.raises(ValueError, match="use dispatch_batches=False"):
        redoxfs.torch.track(dispatcher(range(4)), mounted.mnt)
    with pytest.raises(ValueError, match="tracked already"):
        redoxfs.torch.track(loader_of(mounted.mnt), mounted.mnt)
    with pytest.raises(redoxfs.torch.ResumeError, match="not tracked"):
        redoxfs.torch.state_dict(DataLoader(range(4)))
    state = redoxfs.torch.state_dict(loader_of(mounted.mnt))
    make_files(tmp_path / "less", 2, 60)
    with pytest.raises(redoxfs.torch.ResumeError, match="a dataset of 120 samples, and this one has 60"):
        redoxfs.torch.load_state_dict(loader_of(tmp_path / "less"), state)
    with pytest.raises(redoxfs.torch.ResumeError, match="version 9"):
        redoxfs.torch.load_state_dict(loader_of(mounted.mnt), {**state, "version": 9})
    mounted.ok("umount", mounted.mnt)
    mounted.ok("mount", tmp_path / "less", mounted.mnt, *OPTIONS)
    loader = redoxfs.torch.track(DataLoader(range(FILES)), mounted.mnt)
    with pytest.raises(redoxfs.torch.ResumeError, match="another dataset"):
        redoxfs.torch.load_state_dict(loader, state)


def test_a_root_outside_the_mount_that_the_dataset_reads_is_refused(mounted: Machine, source: Path) -> None:
    data: Any = Files(os.fspath(mounted.mnt))
    data.files = data._paths
    for root in (source, mounted.mnt.parent):
        with pytest.raises(ValueError, match=f"{root}: it does not lie in the mount at .*, and {mounted.mnt}/class0"):
            redoxfs.torch.track(DataLoader(data), root)
    redoxfs.torch.track(DataLoader(data), mounted.mnt / "class0")
    # A copy of the dataset.
    data.files = Files(os.fspath(source))._paths
    redoxfs.torch.track(DataLoader(data), source)


def test_a_state_after_the_last_batch_has_nothing_or_a_whole_epoch(source: Path) -> None:
    loader = loader_of(source)
    batches = iter(loader)
    names_in(next(batches) for _ in range(FILES // BATCH))
    state = redoxfs.torch.state_dict(loader)
    redoxfs.torch.load_state_dict(loader, state)
    assert names_in(loader) == []
    redoxfs.torch.load_state_dict(loader, state, skip_empty=True)
    assert_each_once(names_in(loader))


def test_two_loaders_on_one_mount_resume_to_the_sample(mounted: Machine) -> None:
    def both() -> list[Any]:
        files = Files(str(mounted.mnt))
        halves = [range(FILES // 2), range(FILES // 2, FILES)]
        return [
            redoxfs.torch.track(
                DataLoader(files, sampler=half, batch_size=BATCH, collate_fn=list, **AHEAD), mounted.mnt
            )
            for half in halves
        ]

    loaders = both()
    runs = [iter(loader) for loader in loaders]
    trained = names_in(next(run) for run in runs for _ in range(5))
    states = [redoxfs.torch.state_dict(loader) for loader in loaders]
    for run in runs:
        next(run)
    del runs, loaders
    resumed = both()
    for loader, state in zip(resumed, states, strict=True):
        redoxfs.torch.load_state_dict(loader, state)
    assert_each_once(trained + names_in(resumed[0]) + names_in(resumed[1]))
    assert mounted.stats()["epochs_told"] == 1, "the second loader began in the middle of an epoch"


class Flawed:
    """Items, one of which cannot be read."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise OSError(f"cannot read {index}")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_raised_an_error_is_left_unless_the_loop_went_on(source: Path, workers: int) -> None:
    loader = redoxfs.torch.track(DataLoader(Flawed(), batch_size=BATCH, num_workers=workers), source)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(OSError, match="cannot read 9"):
        next(batches)
    assert redoxfs.torch._unpacked(redoxfs.torch.state_dict(loader)["ranks"][0])[0] == [8, 9, 10, 11]
    assert next(batches).tolist() == [12, 13, 14, 15]
    left = [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert redoxfs.torch._unpacked(redoxfs.torch.state_dict(loader)["ranks"][0]) == left
    # The workers end with the last batch. PyTorch awaits each for five seconds where a loop stops at an error.
    assert [batch.tolist() for batch in batches] == left


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_epoch_that_an_error_ended_is_not_beside_the_next_loaders(mounted: Machine, *, goes_on: bool) -> None:
    """A notebook keeps the traceback of Ctrl-C, and with it the loader and its iterator."""

    class Interrupted(Files):
        has_been = False

        def __getitem__(self, index: int) -> str:
            if self._paths[index].name == stopped and not self.has_been:
                self.has_been = True
                raise KeyboardInterrupt
            return super().__getitem__(index)

    files = Interrupted(os.fspath(mounted.mnt))
    stopped = files._paths[9].name
    loader = redoxfs.torch.track(DataLoader(files, batch_size=BATCH, collate_fn=list), mounted.mnt)
    batches = iter(loader)
    with pytest.raises(KeyboardInterrupt) as kept:
        names_in(batches)
    if goes_on:
        next(batches)
    del loader, batches
    assert kept.tb
    names_in(loader_of(mounted.mnt))
    assert mounted.stats()["epochs_told"] == 1 + (not goes_on)


def test_a_sampler_that_never_ends_is_refused(source: Path) -> None:
    class Endless(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return FILES

        def __iter__(self) -> Iterator[int]:
            return iter(lambda: 1, 0)

    loader = redoxfs.torch.track(DataLoader(range(FILES), sampler=Endless(), batch_size=BATCH), source)
    with pytest.raises(redoxfs.torch.ResumeError, match="more than 1,060 batches, and its length is 30"):
        next(iter(loader))


def test_samplers_of_other_shapes_are_resumed(source: Path) -> None:
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * FILES, 30)
    for options in ({"sampler": weighted, "batch_size": 7}, {"batch_size": None}, {"batch_size": 7, "drop_last": True}):
        loader = redoxfs.torch.track(DataLoader(range(FILES), collate_fn=_same, **options), source)
        batches = iter(loader)
        first = [next(batches) for _ in range(2)]
        state = redoxfs.torch.state_dict(loader)
        rest = list(batches)
        resumed = redoxfs.torch.track(DataLoader(range(FILES), collate_fn=_same, **options), source)
        redoxfs.torch.load_state_dict(resumed, state)
        assert list(resumed) == rest, first
        assert len(resumed) == len(first) + len(rest)


def rest_after(first: Any, then: Any, ranks: int = 1) -> list[list[int]]:
    """What loader ``then`` yields, if ``ranks`` saved what ``first`` left after a batch."""
    loader = redoxfs.torch.track(first, "/")
    batches = iter(loader)
    next(batches)
    state = redoxfs.torch.state_dict(loader)
    left = redoxfs.torch._unpacked(state["ranks"][0])
    state["ranks"] = [redoxfs.torch._packed(left[rank::ranks]) for rank in range(ranks)]
    resumed = redoxfs.torch.track(then, "/")
    redoxfs.torch.load_state_dict(resumed, state)
    return list(resumed)


def test_batches_of_a_batch_sampler_stay_whole_for_another_number_of_ranks() -> None:
    """Their samples may have one shape."""
    batches = [[number, number + 10, number + 20][: 2 + number % 2] for number in range(10)]
    options = {"batch_sampler": batches, "collate_fn": _same}
    assert rest_after(DataLoader(range(30), **options), DataLoader(range(30), **options), ranks=2) == batches[1:]


def test_the_rest_of_an_epoch_has_batches_of_the_size_that_the_loader_has_now() -> None:
    def loader_with(size: int, *, drop_last: bool = False) -> Any:
        return DataLoader(range(30), batch_size=size, drop_last=drop_last, collate_fn=_same)

    left = [*range(8, 30)]
    for size in (3, 8, 16, 32):
        whole = [left[at : at + size] for at in range(0, len(left), size)]
        assert rest_after(loader_with(8), loader_with(size)) == whole
        # The last batch is 6 short of 8, and was never drawn.
        drawn = [left[:16][at : at + size] for at in range(0, 16 - size + 1, size)]
        assert rest_after(loader_with(8, drop_last=True), loader_with(size, drop_last=True)) == drawn


def test_indices_that_are_no_numbers_are_refused_though_they_look_like_some(source: Path) -> None:
    data = {str(number): number for number in range(FILES)}
    loader = redoxfs.torch.track(DataLoader(data, sampler=[*data]), source)
    next(iter(loader))
    with pytest.raises(redoxfs.torch.ResumeError, match="the sampler's indices are not numbers"):
        redoxfs.torch.state_dict(loader)


def _same(batch: Any) -> Any:
    return batch


def test_workers_end_with_the_training_process(mounted: Machine, tmp_path: Path) -> None:
    job = Job(root=str(mounted.mnt), folder=str(tmp_path), epochs=50)
    (rank,) = job.start(mounted.environment)
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "training\n"
        children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
        workers = [os.pidfd_open(int(child)) for child in children]
        assert len(workers) >= job.workers
    finally:
        rank.kill()
        rank.communicate()
    assert all(has_ended(worker) for worker in workers)


STARTING_WORKER = """
import os, select, signal
from torch.utils.data import DataLoader
import redoxfs.torch

def start(worker):
    print(os.getpid(), flush=True)
    ended = select.poll()
    ended.register(os.pidfd_open(os.getppid()), select.POLLIN)
    os.write(begun, b"x")
    # Until the training process has ended, and this one has another parent.
    ended.poll()

class Killed:
    def __len__(self):
        return 8

    def __iter__(self):
        os.read(seen, 1)
        os.kill(os.getpid(), signal.SIGKILL)
        yield 0

seen, begun = os.pipe()
loader = DataLoader(range(8), sampler=Killed(), num_workers=1, worker_init_fn=start)
next(iter(redoxfs.torch.track(loader, "/")))
"""


def test_a_worker_that_is_starting_when_the_training_process_is_killed_ends(machine: Machine) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTING_WORKER], env=machine.environment, stdout=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            worker = int(job.stdout.readline())
            # The worker holds the pipe until it ends.
            assert job.communicate(timeout=PATIENCE_S)[0] == ""
            assert job.returncode == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise


@pytest.mark.parametrize("ranks", [(3,), (3, 1)], ids=str)
def test_a_killed_job_trains_on_each_sample_once(mounted: Machine, tmp_path: Path, ranks: tuple[int, ...]) -> None:
    job = Job(root=str(mounted.mnt), folder=str(tmp_path), ranks=3, workers=2)
    draws = random.Random(7)
    assert killed_runs(job, mounted.environment, iter([draws.uniform(0, 0.1)]), ranks) == 1
    for epoch in job.trained_on():
        assert_each_once(list(epoch.elements()))


def test_ranks_on_one_mount_begin_each_epoch_once(mounted: Machine, tmp_path: Path) -> None:
    job = Job(root=str(mounted.mnt), folder=str(tmp_path), ranks=2, workers=2, epochs=3)
    assert killed_runs(job, mounted.environment, iter([])) == 0
    for epoch in job.trained_on():
        assert_each_once(list(epoch.elements()))
    assert mounted.stats()["epochs_told"] == 3


def test_a_killed_job_on_two_nodes_trains_on_each_sample_once(machine: Machine, source: Path, tmp_path: Path) -> None:
    options = (*OPTIONS, "--memory", "1MiB", "--peer-timeout", "30")
    machine.ok("cluster", "up", "--nodes", "2", source, machine.mnt, *options)
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(root=f"{machine.mnt}/{{rank}}", folder=str(folder), ranks=2, workers=2)

    def starts() -> Iterator[int]:
        """Before the second start one node alone has loaded, as after a job that is killed while it loads."""
        yield 2
        laps = json.loads((folder / "checkpoint.json").read_text())["state"]["laps"]
        (folder / "laps").write_bytes(base64.b64decode(laps))
        machine.ok("state", "load", machine.mnt / "1", folder / "laps")
        yield 2

    assert killed_runs(job, machine.environment, iter([0.1]), starts()) == 1
    for epoch in job.trained_on():
        assert_each_once(list(epoch.elements()))
    assert sum(machine.stats(machine.mnt / str(node))["errors"] for node in range(2)) == 0


def test_a_job_on_two_nodes_has_exact_epochs_after_one_that_died_between_them(
    machine: Machine, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job before has told one node of an epoch that the other was not told of."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.environment["XDG_RUNTIME_DIR"]))
    machine.ok("cluster", "up", "--nodes", "2", source, machine.mnt, *OPTIONS, "--memory", "1MiB")
    for node in (0, 1, 1):
        assert redoxfs.epoch(machine.mnt / str(node))
    job = Job(root=f"{machine.mnt}/{{rank}}", folder=str(tmp_path), ranks=2, workers=0, every=FILES)
    assert killed_runs(job, machine.environment, iter([])) == 0
    for epoch in job.trained_on():
        assert_each_once(list(epoch.elements()))


def test_ranks_with_datasets_of_different_lengths_cannot_save_a_state(tmp_path: Path) -> None:
    """As where each reads `paths[rank::world]`. None of them could load the state of another."""

    def refusal(rank: int) -> str:
        meet = f"file://{tmp_path / 'meet'}"
        patience = timedelta(seconds=PATIENCE_S)
        torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=patience)
        try:
            with pytest.raises(redoxfs.torch.ResumeError) as refused:
                redoxfs.torch.state_dict(redoxfs.torch.track(DataLoader(range(7 + rank)), "/"))
            return str(refused.value)
        finally:
            torch.distributed.destroy_process_group()

    child = os.fork()
    if not child:
        with suppress(BaseException):
            (tmp_path / "told").write_text(refusal(1))
        os._exit(0)
    told = refusal(0)
    os.waitpid(child, 0)
    assert told.startswith("rank 0 has a dataset of 7 samples, and rank 1 one of 8: give all ranks the same")
    assert (tmp_path / "told").read_text() == told


def test_ranks_agree_on_nothing_without_a_process_group_or_after_a_fork(tmp_path: Path) -> None:
    assert redoxfs.torch._store() is None
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        store = redoxfs.torch._store()
        assert store.compare_set("key", "", "3") == store.compare_set("key", "", "4") == b"3"
        child = os.fork()
        if not child:
            os._exit(redoxfs.torch._store() is not None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.distributed.destroy_process_group()
    assert redoxfs.torch._store() is None


@pytest.mark.parametrize("lag_s", [0.0, 0.02], ids=["in step", "out of step"])
def test_a_killed_job_that_saved_less_repeats_at_most_that(mounted: Machine, tmp_path: Path, lag_s: float) -> None:
    """Also where one worker is ahead of another, and has opened a batch before the ones that the loop got last."""
    # Each save is a new interpreter.
    job = Job(root=str(mounted.mnt), folder=str(tmp_path), workers=2, prefetch=2, every=16, lag_s=lag_s)
    job = replace(job, less=job.ahead)

    def once_saved() -> Iterator[float]:
        """No time at all after a checkpoint in an epoch, which the job resumes from."""
        until(lambda: json.loads((tmp_path / "checkpoint.json").read_text())["step"], "a checkpoint in an epoch")
        yield 0

    assert killed_runs(job, mounted.environment, once_saved()) == 1
    again = [sum(times - 1 for times in epoch.values()) for epoch in job.trained_on()]
    assert max(again) <= job.less
    assert [sum(epoch.values()) for epoch in job.trained_on()] == [FILES, FILES]


@pytest.mark.long
def test_the_benchmark_counts_what_killed_jobs_trained_on(tmp_path: Path) -> None:
    done = completed([sys.executable, BENCH, "--kills", "1", "--files", "120", "--json", tmp_path / "resume.json"])
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "resume.json").read_text())
    (row,) = report["rows"]
    assert (row["name"], row["kills"], row["samples_not_once"], row["errors"]) == ("1 rank", 1, 0, 0)
    assert row["redirected"] > 120


def test_the_examples_are_right() -> None:
    tried = doctest.testmod(redoxfs.torch)
    assert tried.attempted > 5
    assert not tried.failed


def test_no_module_of_the_package_imports_pytorch() -> None:
    """But redoxfs.torch, which is imported by name only."""
    script = "import pkgutil, redoxfs.cli.program, redoxfs.launch.successor, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
