"""`redoxfs.torch.RedoxSampler` on real mounts: each file is itself, and storage is read as if files were redirected."""

import copy
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from machine import Machine

pytest.importorskip("torch")

from patience import completed
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset

import redoxfs.torch
from redoxfs.report import Figures, recognized
from redoxfs.sampler import SamplerError
from redoxfs.torch import RedoxSampler

# This machine may have fewer cores than a test has workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Of two ranks and of batches of four a multiple; three more than one of seven ranks.
FILES = 192
OPTIONS = ["--classes", "sampler", "--chunk-size", "8"]


@pytest.fixture
def reachable(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose mounts this process can ask."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(machine.environment[name]))
    return machine


def mount(machine: Machine, source: Path, *options: str, share: float = 0.25) -> Path:
    """A mount with memory for a quarter of the data, several times what workers draw ahead."""
    size_bytes = sum(path.stat().st_size for path in source.rglob("*.*") if path.suffix in (".flac", ".jpg", ".xml"))
    machine.ok("mount", source, machine.mnt, *OPTIONS, *options, "--memory", str(int(size_bytes * share)))
    return machine.mnt


# LibriSpeech: a transcript for each chapter, whose lines name the files


@pytest.fixture(scope="module")
def speech_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, random = tmp_path_factory.mktemp("speech"), Random(1)
    for number in range(FILES + 40):
        split = "train-clean-100" if number < FILES else "dev-clean"
        speaker, chapter = number % 20, number % 60
        folder = root / split / str(speaker) / str(chapter)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{speaker}-{chapter}-{number:04d}"
        said = random.randbytes(8).hex()
        (folder / f"{name}.flac").write_bytes(said.encode() + random.randbytes(500 + number % 200))
        with (folder / f"{speaker}-{chapter}.trans.txt").open("a") as transcripts:
            transcripts.write(f"{name} {said}\n")
    return root


class Speech(Dataset[tuple[str, str]]):
    """As torchaudio's LIBRISPEECH, whose items look their transcript up by the file's name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = sorted(str(path) for path in root.rglob("*.flac"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, str]:
        """The name of a file, whose transcript is that of its sound."""
        path = self.paths[index]
        name = os.path.basename(path).removesuffix(".flac")
        with open(path, "rb") as sound:
            said = sound.read()[:16].decode()
        with open(f"{os.path.dirname(path)}/{name.rpartition('-')[0]}.trans.txt") as transcripts:
            (found,) = (line.split()[1] for line in transcripts if line.startswith(name))
        assert found == said, path
        return name, said


@pytest.fixture
def speech(reachable: Machine, speech_source: Path) -> Iterator[Speech]:
    yield Speech(mount(reachable, speech_source) / "train-clean-100")
    stats = reachable.stats()
    assert (stats["errors"], stats["redirected"]) == (0, 0)


def names_in(loader: Any) -> list[str]:
    return [name for names, _ in loader for name in names]


def assert_each_once(names: Sequence[Any], count: int = FILES) -> None:
    assert len(names) == count
    assert set(Counter(names).values()) == {1}


WORKERS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "spawned": {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_transcripts_are_right_and_each_sample_is_read_once(
    speech: Speech, reachable: Machine, options: dict[str, Any]
) -> None:
    loader = DataLoader(speech, batch_size=4, sampler=RedoxSampler(speech), **options)
    assert len(loader) == FILES // 4
    orders, loads = [], []
    for _ in range(3):
        orders.append(names_in(loader))
        assert_each_once(orders[-1])
        loads.append(reachable.stats()["samples_loaded"])
    assert len({tuple(order) for order in orders}) == 3
    # The first epoch also reads what the last has left over.
    assert (loads[2] - loads[0]) / (2 * FILES) <= 1.01
    stats = reachable.stats()
    assert stats["samples_reread"] == 0
    assert stats["turns"] == stats["exact"] - 3 * FILES == 3 * FILES, "a transcript is exact, and takes no turn"


def test_batches_may_come_from_a_batch_sampler(speech: Speech) -> None:
    batches = BatchSampler(RedoxSampler(speech), batch_size=7, drop_last=False)
    loader = DataLoader(speech, batch_sampler=batches, num_workers=2)
    for _ in range(2):
        assert_each_once(names_in(loader))


def test_a_dataset_may_be_a_part_of_the_files(speech: Speech) -> None:
    part = Subset(speech, range(50, 140))
    loader = DataLoader(part, batch_size=4, sampler=RedoxSampler(part), num_workers=2)
    for _ in range(3):
        assert_each_once(names_in(loader), 90)


def test_what_is_not_drawn_is_right_too(speech: Speech, reachable: Machine) -> None:
    assert_each_once(names_in(DataLoader(speech, batch_size=4, shuffle=True)))
    assert_each_once(names_in(DataLoader(Speech(reachable.mnt / "dev-clean"))), 40)
    stats = reachable.stats()
    assert (stats["turns"], stats["samples_reread"]) == (0, 0)


def test_an_order_drawn_at_once_is_right_and_read_again(speech: Speech, reachable: Machine) -> None:
    order = list(RedoxSampler(speech))
    assert_each_once(order)
    assert_each_once(names_in(DataLoader(speech, batch_size=4, sampler=order)))
    stats = reachable.stats()
    assert FILES // 2 < stats["samples_reread"] <= FILES
    assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]


def test_an_epoch_that_is_broken_off_leaves_its_rest_to_the_next(speech: Speech) -> None:
    sampler = RedoxSampler(speech)
    begun = list(islice(sampler, 80))
    sampler.set_epoch(1)
    after = list(sampler)
    assert len(after) == FILES
    assert_each_once(begun + after[: FILES - 80])


def test_an_epoch_has_each_index_once_whatever_was_drawn_before(speech: Speech) -> None:
    parts = [Subset(speech, range(160)), Subset(speech, range(160, FILES))]
    training, validation = map(RedoxSampler, parts)
    for _ in range(3):
        order = iter(training)
        begun = [*islice(order, 80)]
        assert_each_once(list(validation), FILES - 160)
        assert_each_once([*begun, *order], 160)
    sampler = RedoxSampler(speech)
    for _ in range(3):
        assert_each_once(list(islice(sampler, 175)), 175)
    for _ in range(3):
        assert_each_once(list(sampler))


def from_a_fork(sampler: RedoxSampler) -> list[int]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(list(sampler)))
    process.start()
    order: list[int] = receiver.recv()
    process.join()
    return order


@pytest.mark.parametrize(
    "order_of_copy",
    [lambda sampler: [*pickle.loads(pickle.dumps(sampler))], lambda sampler: [*copy.deepcopy(sampler)], from_a_fork],
    ids=["pickled", "deep", "forked"],
)
def test_a_copy_draws_samples_of_its_own(speech: Speech, order_of_copy: Callable[[RedoxSampler], list[int]]) -> None:
    sampler = RedoxSampler(speech, num_replicas=2, rank=0)
    order = iter(sampler)
    begun = next(order)
    assert_each_once([begun, *order_of_copy(sampler), *order])


def test_an_interrupt_while_the_mount_answers_loses_no_sample(speech: Speech, reachable: Machine) -> None:
    sampler = RedoxSampler(speech)
    order = iter(sampler)
    begun = [*islice(order, 10)]
    pid = reachable.pid()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    os.kill(pid, signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            begun.extend(order)
    finally:
        os.kill(pid, signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)
    assert 10 <= len(begun) < FILES // 2
    assert_each_once(begun + list(sampler)[: FILES - len(begun)])


def test_an_epoch_resumes_in_another_mount(reachable: Machine, speech_source: Path) -> None:
    """What was drawn had its turn."""
    speech = Speech(mount(reachable, speech_source) / "train-clean-100")
    begun = list(islice(RedoxSampler(speech), 65))
    reachable.ok("umount", reachable.mnt)
    mount(reachable, speech_source, "--resume")
    had = reachable.stats()["turns"]
    assert 65 <= had < FILES - 65
    rest = list(RedoxSampler(speech))[: FILES - had]
    assert_each_once(begun + rest, 65 + FILES - had)


def test_a_packed_dataset_is_drawn_from(reachable: Machine, speech_source: Path, tmp_path: Path) -> None:
    reachable.ok("pack", speech_source, tmp_path / "packed", "--classes", "sampler", "--chunk-size", "8")
    reachable.ok("mount", tmp_path / "packed", reachable.mnt, "--memory", "36KB")
    speech = Speech(reachable.mnt / "train-clean-100")
    loader = DataLoader(speech, batch_size=4, sampler=RedoxSampler(speech), num_workers=2)
    for _ in range(2):
        assert_each_once(names_in(loader))
    stats = reachable.stats()
    assert (stats["redirected"], stats["samples_reread"], stats["errors"]) == (0, 0, 0)


# Several ranks


@pytest.mark.parametrize(("ranks", "drop_last"), [(2, False), (7, False), (7, True)])
def test_ranks_of_one_mount_share_each_epoch(speech: Speech, ranks: int, drop_last: bool) -> None:
    samplers = [RedoxSampler(speech, num_replicas=ranks, rank=rank, drop_last=drop_last) for rank in range(ranks)]
    assert FILES % ranks == (3 if ranks == 7 else 0)
    length = FILES // ranks if drop_last else -(-FILES // ranks)
    for epoch in range(4):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        steps = list(islice(zip(*samplers, strict=True), 20 if epoch == 1 else None))
        assert len(steps) == (20 if epoch == 1 else length)
        assert length == len(samplers[0])
        times = Counter(index for step in steps for index in step)
        if epoch == 1:
            # It leaves no trace.
            assert set(times.values()) == {1}, "broken off"
        elif drop_last:
            assert set(times.values()) == {1}
            assert len(times) == FILES - FILES % ranks
        else:
            assert sorted(times) == list(range(FILES))
            assert sum(times.values()) - FILES == -FILES % ranks, "ranks with one less repeat one of theirs"


RANK = """
import sys
from pathlib import Path
from redoxfs.torch import RedoxSampler
rank, ranks, most = map(int, sys.argv[2:])
paths = sorted(map(str, Path(sys.argv[1]).rglob("*.flac")))
for number, index in enumerate(RedoxSampler(paths, rank=rank, num_replicas=ranks)):
    open(paths[index], "rb").close()
    print(index, flush=True)
    if number == most:
        sys.stdin.read()
"""


def start_rank(speech: Speech, rank: int, ranks: int, most: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RANK, str(speech.root), *map(str, (rank, ranks, most))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_ranks_are_processes(speech: Speech) -> None:
    started = [start_rank(speech, rank, 3) for rank in range(3)]
    told = [process.communicate()[0].split() for process in started]
    assert [len(each) for each in told] == [FILES // 3] * 3
    assert_each_once([*chain(*told)])


MET = """
import os, sys
import torch.distributed
from redoxfs.sampler import SamplerError
from redoxfs.torch import RedoxSampler
rank, store, *paths = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
for path in paths:
    try:
        RedoxSampler([path])
    except SamplerError as error:
        print(error)
"""


def test_ranks_on_several_mounts_are_refused(
    speech: Speech, speech_source: Path, reachable: Machine, tmp_path: Path
) -> None:
    """All ranks are, also where one of them finds no file."""
    other = tmp_path / "other"
    other.mkdir()
    reachable.ok("mount", speech_source, other, *OPTIONS, "--memory", "100KB")
    try:
        path = speech.paths[0]
        paths = [(path, path), (str(other / os.path.relpath(path, reachable.mnt)), f"{path}.no")]
        commands = [[sys.executable, "-c", MET, str(rank), str(tmp_path / "store"), *paths[rank]] for rank in range(2)]
        ranks = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]
        for told in [rank.communicate()[0].splitlines() for rank in ranks]:
            assert told == [
                "the files of the ranks lie in different mounts: a sampler draws from one mount alone",
                f"rank 1: {path}.no: no such file",
            ]
    finally:
        reachable.ok("umount", other)


def test_a_killed_rank_harms_nobody(speech: Speech, reachable: Machine) -> None:
    """What it had drawn had its turn. The rest of the lap comes to others."""
    with start_rank(speech, 0, 1, most=39) as killed:
        assert killed.stdout is not None
        told = [int(killed.stdout.readline()) for _ in range(40)]
        killed.send_signal(signal.SIGKILL)
    sampler = RedoxSampler(speech)
    had = reachable.stats()["turns"]
    assert 40 <= had < FILES // 2
    after = list(sampler)
    assert_each_once(told + after[: FILES - had], 40 + FILES - had)


def test_an_epoch_goes_on_when_the_daemon_dies(speech: Speech, reachable: Machine) -> None:
    loader = DataLoader(speech, batch_size=4, sampler=RedoxSampler(speech), num_workers=2)
    names: list[str] = []
    for number, (batch, _) in enumerate(loader):
        names += batch
        if number in (5, 35):
            reachable.kill(signal.SIGKILL)
    assert_each_once(names)
    assert_each_once(names_in(loader))


# Datasets of other shapes


PAGE, DATASETS = Path(__file__).parents[1] / "docs/torch.md", "torchvision.datasets"


class Coco:
    """As pycocotools' COCO, of a file of annotations."""

    def __init__(self, annotations: Path) -> None:
        told = json.loads(annotations.read_text())
        self.images = {image["id"]: image for image in told["images"]}
        self.boxes = {each["image_id"]: each["bbox"] for each in told["annotations"]}

    def loadImgs(self, number: int) -> list[dict[str, Any]]:  # noqa: N802
        return [self.images[number]]


class Detection(Dataset[tuple[list[int], list[int]]]):
    """As torchvision's CocoDetection."""

    def __init__(self, root: str, annotations: str, transforms: None = None) -> None:
        assert transforms is None
        self.root, self.coco = Path(root), Coco(Path(annotations))
        self.ids = sorted(self.coco.images)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:
        """The box that an image has in it, and that of the annotations."""
        number = self.ids[index]
        data = (self.root / self.coco.loadImgs(number)[0]["file_name"]).read_bytes()
        return [int(each) for each in data.split(b"|")[0].split()], self.coco.boxes[number]


def test_boxes_are_right(reachable: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of docs/torch.md, "COCO", with a dataset that decodes no images."""
    random, images, boxes = Random(2), [], []
    source = tmp_path / "coco"
    for split in ("train2017", "val2017"):
        (source / split).mkdir(parents=True)
    (source / "annotations").mkdir()
    for number in random.sample(range(100_000), FILES):
        name, box = f"{number:012d}.jpg", [random.randrange(1000) for _ in range(4)]
        text = " ".join(map(str, box)).encode() + b"|"
        (source / "train2017" / name).write_bytes(text + random.randbytes(600))
        images.append({"id": number, "file_name": name})
        boxes.append({"image_id": number, "bbox": box})
    for split, told in (("train2017", (images, boxes)), ("val2017", ([], []))):
        annotations = dict(zip(("images", "annotations"), told, strict=True))
        (source / f"annotations/instances_{split}.json").write_text(json.dumps(annotations))
    root = mount(reachable, source)
    script = re.search(r"^### COCO\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert script is not None
    for name, module in (("torchvision", SimpleNamespace()), (DATASETS, SimpleNamespace(CocoDetection=Detection))):
        monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {}
    exec(script[1], names)
    loader, validation = names["loaders"](root, batch_size=4, workers=2)
    assert [*validation] == []
    loads = []
    for _ in range(3):
        pairs = [pair for batch in loader for pair in batch]
        assert all(in_image == annotated for in_image, annotated in pairs)
        assert_each_once([tuple(box) for box, _ in pairs])
        loads.append(reachable.stats()["chunk_loads"])
    stats = reachable.stats()
    assert (loads[2] - loads[0]) / (2 * stats["chunks"]) <= 1.01
    assert (stats["redirected"], stats["samples_reread"], stats["errors"]) == (0, 0, 0)


class Voc(Dataset[tuple[bytes, bytes]]):
    """As torchvision's VOCDetection: an image and an annotation for each index."""

    def __init__(self, root: Path) -> None:
        self.images = sorted(str(path) for path in (root / "JPEGImages").iterdir())

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        image = Path(self.images[index])
        files = [image, image.parents[1] / "Annotations" / f"{image.stem}.xml"]
        # In either order.
        told = {path.suffix: path.read_bytes().split(b"|")[0] for path in (files if index % 2 else files[::-1])}
        return told[".jpg"], told[".xml"]


@pytest.mark.parametrize("groups", [[], ["--groups", "JPEGImages/{key}.jpg,Annotations/{key}.xml"]])
def test_an_image_and_its_annotation_belong_together(reachable: Machine, tmp_path: Path, groups: list[str]) -> None:
    source = tmp_path / "VOC2012"
    for number in range(FILES):
        for name in (f"JPEGImages/{number}.jpg", f"Annotations/{number}.xml"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(f"{number}|".encode() + b"." * 400)
    dataset = Voc(mount(reachable, source, *groups, share=0.3))
    loader = DataLoader(dataset, batch_size=4, sampler=RedoxSampler(dataset), num_workers=2, collate_fn=list)
    for _ in range(2):
        pairs = [pair for batch in loader for pair in batch]
        assert all(image == annotation for image, annotation in pairs)
        assert_each_once([image for image, _ in pairs])
    stats = reachable.stats()
    assert (stats["redirected"], stats["samples_reread"], stats["errors"]) == (0, 0, 0)


BENCH = Path(__file__).parents[1] / "scripts/bench/sampler.py"


@pytest.mark.long
def test_the_benchmark_finds_exact_labels_and_a_random_order(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = completed([sys.executable, BENCH, "--quick", "--json", found])
    assert done.returncode == 0, done.stderr
    told = json.loads(found.read_text())
    assert isinstance(recognized("found.json", told), Figures)
    redirecting, drawn = told["rows"]
    assert (redirecting["way"], drawn["way"]) == ("redirecting", "sampler")
    assert redirecting["wrong_labels"] > told["files"], "it compares with a mount that redirects"
    assert drawn["loads_per_chunk"] <= 1.01
    assert abs(drawn["displacement"] - 1 / 3) < 0.03
    assert abs(drawn["rank_correlation"]) < 0.1
    assert drawn["mate_pairs"] < 2 * redirecting["mate_pairs"]


def test_the_files_of_datasets_of_other_shapes_are_known(speech: Speech) -> None:
    """The first ten samples, by each way to say which files they have."""
    paths = speech.paths[:10]
    images = {number: {"file_name": os.path.relpath(path, speech.root)} for number, path in enumerate(paths)}
    coco = SimpleNamespace(loadImgs=lambda number: [images[number]])
    known: list[Any] = [
        paths,
        tuple(map(Path, paths)),
        [[path] for path in paths],
        SimpleNamespace(samples=[(path, 0) for path in paths]),
        SimpleNamespace(samples=paths),
        SimpleNamespace(samples=[((path, path), 0) for path in paths]),
        SimpleNamespace(samples=[({}, 0)], files=paths),
        SimpleNamespace(imgs=[(path, 0) for path in paths], samples=None),
        SimpleNamespace(images=paths, targets=None),
        SimpleNamespace(files=tuple(paths)),
        SimpleNamespace(root=speech.root, ids=[*range(10)], coco=coco),
        Subset(speech, range(10)),
        Subset(Subset(speech, range(20)), range(10)),
    ]
    for dataset in known:
        assert_each_once(list(RedoxSampler(dataset)), 10)


# Refusals


class Clips(Dataset[int]):
    """Each of its files has three indices."""

    def __init__(self) -> None:
        self.samples = [("/dev/null", 0), ("/dev/zero", 0)]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_whose_indices_are_not_its_files_is_refused() -> None:
    for dataset in (Clips(), Subset(Clips(), range(2))):
        with pytest.raises(TypeError, match="a Clips has 6 indices, and lists 2 files; pass a list"):
            RedoxSampler(dataset)


def test_a_mount_that_redirects_is_no_mount_for_a_sampler(reachable: Machine, speech_source: Path) -> None:
    reachable.ok("mount", speech_source, reachable.mnt, "--classes", "any", "--memory", "1MiB")
    with pytest.raises(SamplerError, match="mount with --classes sampler"):
        RedoxSampler(Speech(reachable.mnt))


def test_files_that_the_mount_cannot_draw_are_refused(speech: Speech, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.dirname(speech.paths[0])
    transcript = next(name for name in os.listdir(folder) if name.endswith(".txt"))
    wrong: list[tuple[Sequence[Any], str]] = [
        ([*speech.paths, f"{folder}/{transcript}"], "does not count it as a sample; see --samples"),
        ([*speech.paths, "/etc/passwd"], "/etc/passwd: it does not lie in the mount at "),
        (["/etc/passwd", *speech.paths], "/etc/passwd: it does not lie in the mount at .*, and others do"),
        ([f"{folder}/none.flac"], "none.flac: no such file"),
        (["none.flac"], "none.flac: no such file"),
        ([speech.paths[0], f"{folder}/none.flac"], "none.flac: no such file"),
        ([speech.paths[0], "/nowhere/none.flac"], "/nowhere: No such file or directory"),
        ([speech.paths[:2], speech.paths[2]], "its files are of several samples of the mount; mount with --groups"),
        ([speech.paths[0], speech.paths[0]], "two indices of the dataset have this file"),
    ]
    for files, reason in wrong:
        with pytest.raises(SamplerError, match=reason):
            RedoxSampler(files)
    with pytest.raises(TypeError, match="the files of a range are not known; pass a list"):
        RedoxSampler(range(3))
    with pytest.raises(ValueError, match="there are no files"):
        RedoxSampler([])
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        RedoxSampler(speech, rank=2, num_replicas=2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(SamplerError, match="2 of 4 ranks are on this node"):
        RedoxSampler(speech, rank=1, num_replicas=4)


@pytest.mark.parametrize("options", [["--policy", "slot"], ["--nodes", "127.0.0.1:1,127.0.0.1:2", "--node-rank", "0"]])
def test_a_mount_for_a_sampler_is_of_one_node_and_a_pool(
    machine: Machine, speech_source: Path, options: list[str]
) -> None:
    more = ["--insecure"] if "--nodes" in options else []
    done = machine.run("mount", speech_source, machine.mnt, *OPTIONS, *options, *more)
    assert done.returncode == 2
    assert f"{options[0]}" in done.stderr.splitlines()[-1]
    assert "a mount for a sampler (--classes sampler) is of one node, with --policy pool" in done.stderr


def test_links_lead_to_files_of_the_mount(speech: Speech, tmp_path: Path) -> None:
    links = [tmp_path / "1.flac", tmp_path / "2.flac"]
    for link, path in zip(links, speech.paths, strict=False):
        link.symlink_to(path)
    assert_each_once(list(RedoxSampler(links)), 2)
    elsewhere = tmp_path / "3.flac"
    elsewhere.symlink_to("/etc/passwd")
    with pytest.raises(SamplerError, match=r"3\.flac: it does not lie in the mount at "):
        RedoxSampler([*links, elsewhere])


@contextmanager
def another_filesystem(folder: Path) -> Iterator[None]:
    """An empty one, which takes the number of a device that is free. Only root can mount it."""
    folder.mkdir()
    is_mounted = (
        not os.geteuid() and not subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False).returncode
    )
    yield
    if is_mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_sampler_does_not_outlive_the_files_of_its_mount(reachable: Machine, tmp_path: Path) -> None:
    source = tmp_path / "images"
    source.mkdir()
    for number in range(40):
        (source / f"{number}.jpg").write_bytes(b"." * 100)
    sampler = RedoxSampler([*mount(reachable, source, share=1).iterdir()])
    for is_changed in (False, True):
        assert_each_once(list(sampler), 40)
        reachable.ok("umount", reachable.mnt)
        if is_changed:
            (source / "10a.jpg").write_bytes(b"." * 100)
        # The mount after it gets another number, as beside other mounts that come and go.
        with another_filesystem(tmp_path / f"other-{is_changed}"):
            mount(reachable, source, share=1)
    with pytest.raises(SamplerError, match="the files of the mount have changed; make the sampler anew"):
        list(sampler)


def test_a_loader_with_a_sampler_cannot_be_tracked(speech: Speech, reachable: Machine) -> None:
    sampler = RedoxSampler(speech)
    loaders: list[Callable[[], Any]] = [
        lambda: DataLoader(speech, sampler=sampler),
        lambda: DataLoader(speech, batch_sampler=BatchSampler(sampler, 4, False)),
    ]
    for make in loaders:
        with pytest.raises(TypeError, match="a loader with a RedoxSampler cannot be tracked"):
            redoxfs.torch.track(make(), reachable.mnt)


def test_a_mount_that_ended_is_an_error(
    reachable: Machine, speech_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a daemon of this mount would have to make its socket anew.
    monkeypatch.setattr("redoxfs.launch.control._ANEW_S", 0.1)
    sampler = RedoxSampler(Speech(mount(reachable, speech_source) / "train-clean-100"))
    order = iter(sampler)
    next(order)
    reachable.ok("umount", reachable.mnt)
    with pytest.raises(SamplerError, match=f"{reachable.mnt}: "):
        list(order)


def test_without_a_mount_the_order_is_a_permutation(speech_source: Path) -> None:
    speech = Speech(speech_source / "train-clean-100")
    with pytest.warns(UserWarning, match="the files lie in no redoxfs mount"):
        samplers = [RedoxSampler(speech, num_replicas=7, rank=rank) for rank in range(7)]
    orders = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        orders.append([list(sampler) for sampler in samplers])
        assert [len(order) for order in orders[-1]] == [len(samplers[0])] * 7
        assert {index for order in orders[-1] for index in order} == set(range(FILES))
    assert orders[0] != orders[1]
    assert [list(sampler) for sampler in samplers] == orders[1], "the same epoch has the same order"
