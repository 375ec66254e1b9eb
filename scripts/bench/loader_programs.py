"""What programs of other projects get from a mount: their own loaders and training loops, answered as by loader_opens.

    python scripts/bench/loader_programs.py [PROGRAM...]

Prints the table "Programs, as they are" of docs/loaders.md, with a row for each program that is installed, and says
which are not. The programs read a dataset whose items are opens of `loader_opens.Mount`, which answers as the code that
serves does; they train a model of one number. What they open, and when, is theirs.
"""

import importlib
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from loader_opens import BATCH, EPOCHS, FILES, Figures, Files, Mount, most_missing, most_repeated, shuffled

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from programs import declare_operators

SEEDS = 5


class Program(NamedTuple):
    """``needs``: the distribution, and the module that is imported."""

    title: str
    needs: tuple[str, str]
    run: Callable[[Mount], None]
    measure: Figures
    advice: str


class Numbers(Files):
    """As programs that train want it: a tensor and a label."""

    def __getitem__(self, path: int) -> Any:
        import torch

        sample = super().__getitem__(path)
        return torch.tensor([float(sample)]), torch.tensor([0.0])


def model_of_one_number() -> Any:
    import torch

    return torch.nn.Linear(1, 1)


# The programs


def lightning(mount: Mount) -> None:
    """The sanity check reads two batches of validation before training. The tree is the validation set."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
    from torch.utils.data import DataLoader

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of_one_number()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.inner(batch[0]).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.inner(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-9)

    class Ends(Callback):
        def on_validation_end(self, *_: Any) -> None:
            mount.end_epoch()

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[Ends()], **quiet)
    other = DataLoader(Numbers(Mount(mount.seed + 100)), BATCH, shuffle=True)
    trainer.fit(Module(), other, DataLoader(Numbers(mount), BATCH))


def timm(mount: Mount) -> None:
    """Training leaves out the last batch."""
    from timm.data import create_loader

    loader = create_loader(
        Files(mount), (3, 8, 8), BATCH, is_training=True, num_workers=0, use_prefetcher=False, collate_fn=list,
        persistent_workers=False,
    )  # fmt: skip
    for _ in range(EPOCHS):
        list(loader)
        mount.end_epoch()


def timm_repeated(mount: Mount) -> None:
    """Repeated augmentation, `--aug-repeats 3`, for one of one rank."""
    from timm.data.distributed_sampler import RepeatAugSampler

    sampler = RepeatAugSampler(range(FILES), num_replicas=1, rank=0, num_repeats=3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        mount.read(sampler)
        mount.end_epoch()


def fastai(mount: Mount) -> None:
    """`fit` of a Learner: a first look at an item. It opens the files of the last batch, too, and drops what came."""
    import torch
    from fastai.callback.core import Callback
    from fastai.callback.progress import ProgressCallback
    from fastai.data.core import DataLoaders, TfmdDL
    from fastai.learner import Learner

    class Ends(Callback):
        def after_train(self) -> None:
            mount.end_epoch()

    training = TfmdDL(Numbers(mount), bs=BATCH, shuffle=True, drop_last=True, num_workers=0)
    validation = TfmdDL(Numbers(Mount(mount.seed + 100)), bs=BATCH, num_workers=0)
    loaders = DataLoaders(training, validation, device=torch.device("cpu"))
    learner = Learner(loaders, model_of_one_number(), loss_func=torch.nn.functional.mse_loss, lr=1e-9, cbs=[Ends()])
    learner.remove_cb(ProgressCallback)
    with learner.no_logging():
        learner.fit(EPOCHS)


def trainer(mount: Mount) -> None:
    """Hugging Face's Trainer, with an evaluation after each epoch."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of_one_number()

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": (self.inner(x) - labels).mean()}

    class Named(Files):
        def __getitem__(self, path: int) -> Any:
            return {"x": torch.tensor([float(super().__getitem__(path))]), "labels": torch.tensor([0.0])}

    class Ends(TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            mount.end_epoch()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, eval_strategy="epoch", report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True, learning_rate=1e-9, logging_strategy="no",
        )  # fmt: skip
        other = Named(Mount(mount.seed + 100))
        ours = Trainer(Model(), arguments, train_dataset=Named(mount), eval_dataset=other, callbacks=[Ends()])
        ours.remove_callback(PrinterCallback)
        ours.train()


def accelerate(mount: Mount) -> None:
    """A loader that was prepared, on one rank."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    loader = Accelerator(cpu=True).prepare(DataLoader(Files(mount), BATCH, shuffle=True))
    for _ in range(EPOCHS):
        list(loader)
        mount.end_epoch()


def keras(mount: Mount) -> None:
    """`fit` with a DataLoader, on the backend of PyTorch."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras as library
    from torch.utils.data import DataLoader

    class Ends(library.callbacks.Callback):
        def on_epoch_end(self, *_: Any) -> None:
            mount.end_epoch()

    model = library.Sequential([library.Input((1,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(DataLoader(Numbers(mount), BATCH, shuffle=True), epochs=EPOCHS, verbose=0, callbacks=[Ends()])
    # It looked at a batch, to learn the shapes, and did not train on it.
    mount.uses = [epoch[-FILES:] for epoch in mount.uses]


def keras_of_its_own(mount: Mount) -> None:
    """`fit` with a PyDataset, which Keras shuffles batch by batch."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras as library
    import numpy as np

    class Batches(library.utils.PyDataset):
        def __len__(self) -> int:
            return -(-FILES // BATCH)

        def __getitem__(self, at: int) -> Any:
            paths = self.order[at * BATCH : (at + 1) * BATCH]
            return np.array([[mount.open(path)] for path in paths], np.float32), np.zeros((len(paths), 1), np.float32)

        def on_epoch_begin(self) -> None:
            draw.shuffle(self.order)

    class Ends(library.callbacks.Callback):
        def on_epoch_end(self, *_: Any) -> None:
            mount.end_epoch()

    draw = random.Random(mount.seed)
    batches = Batches()
    batches.order = shuffled(draw, range(FILES))
    model = library.Sequential([library.Input((1,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=[Ends()], shuffle=False)
    mount.uses = [epoch[-FILES:] for epoch in mount.uses]


def monai(mount: Mount) -> None:
    """CacheDataset with half of the files, which it opens once; the others in each epoch. Their list is shuffled."""
    from monai.data import CacheDataset
    from monai.transforms import Transform
    from torch.utils.data import DataLoader

    class Open(Transform):  # of anything else, CacheDataset keeps nothing
        def __call__(self, path: int) -> int:
            return mount.open(path)

    files = shuffled(random.Random(mount.seed), range(FILES))
    data = CacheDataset(files, Open(), cache_rate=0.5, num_workers=1, progress=False)
    loader = DataLoader(data, BATCH, shuffle=True)
    # What it gives, with what it kept, and not what it opens.
    given = [[int(sample) for batch in loader for sample in batch] for _ in range(EPOCHS)]
    mount.uses = [[(0, sample, "train") for sample in epoch] for epoch in given]


def ultralytics(mount: Mount) -> None:
    """Classification: it looks at five files, verifies all, and trains. With `train.cache` it verifies none."""
    import ultralytics.data.dataset as data
    from ultralytics.data.build import build_dataloader

    declare_operators()

    def number(path: object) -> int:
        return int(Path(str(path)).stem)

    def speeds(files: Sequence[str], **_: object) -> None:
        mount.read(map(number, files), "look")

    def verified(argument: Any) -> Any:
        (file, label), _prefix = argument
        # PIL's open, and another one that looks at the end of a JPEG.
        mount.read([number(file)] * 2, "verification")
        return (file, label), 1, 0, ""

    class Quiet:
        desc = ""

        def __init__(self, iterable: Any, **_: object) -> None:
            self._iterable = iterable

        def __iter__(self) -> Iterator[Any]:
            return iter(self._iterable)

        def close(self) -> None:
            pass

    class One:
        def __init__(self, _: int) -> None:
            pass

        def __enter__(self) -> "One":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        imap = staticmethod(lambda func, iterable: map(func, iterable))

    names = ("check_file_speeds", "verify_image", "ThreadPool", "save_dataset_cache_file", "TQDM")
    before = {name: getattr(data, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for path in range(FILES):
            file = Path(folder, str(path * 4 // FILES), f"{path}.jpg")
            file.parent.mkdir(exist_ok=True)
            file.touch()
        made: Any = data.ClassificationDataset.__new__(data.ClassificationDataset)
        try:
            data.check_file_speeds, data.verify_image, data.ThreadPool = speeds, verified, One
            data.TQDM = Quiet
            data.save_dataset_cache_file = lambda *_: None
            import torchvision.datasets as images

            made.base = images.ImageFolder(folder)
            made.samples, made.root, made.prefix = made.base.samples, folder, ""
            made.samples = made.verify_images()
        finally:
            for name, value in before.items():
                setattr(data, name, value)
    mount.end_epoch()

    class Seen(Files):
        def __getitem__(self, at: int) -> Any:
            return mount.open(number(made.samples[at][0]))

    loader = build_dataloader(Seen(mount), BATCH, workers=0, shuffle=True)
    for _ in range(EPOCHS):
        list(loader)
        mount.end_epoch()


TRAINED: Figures = lambda mount: {"twice": most_repeated(mount, "train"), "missing": most_missing(mount, "train")}  # noqa: E731
MISSED: Figures = lambda mount: {  # noqa: E731
    "twice": most_repeated(mount, "train"),
    "missing": max(FILES - len(set(epoch)) for epoch in mount.served("train")),
}
REPEATED: Figures = lambda mount: {  # noqa: E731
    "different of the 160 that three views of each leave": min(len(set(epoch)) for epoch in mount.served())
}

NOTHING = "nothing"
LOOKS = "nothing, although `fit` reads a batch first, for its shape"
PROGRAMS: dict[str, Program] = {
    "lightning": Program(
        "PyTorch Lightning's Trainer, validation in order", ("lightning", "lightning.pytorch"), lightning, TRAINED,
        "nothing",
    ),
    "timm": Program(
        "timm's `create_loader` for training", ("timm", "timm.data"), timm, TRAINED,
        "nothing: those that are missing are as many as timm leaves out",
    ),
    "timm repeated": Program(
        "timm, `--aug-repeats 3`", ("timm", "timm.data"), timm_repeated, REPEATED,
        "one dataset item that makes the views",
    ),
    "fastai": Program(
        "fastai's Learner", ("fastai", "fastai.learner"), fastai, TRAINED,
        "nothing; of what it opens, it drops the 32 of the last batch, others in each epoch",
    ),
    "trainer": Program("Hugging Face's Trainer", ("transformers", "transformers"), trainer, TRAINED, NOTHING),
    "accelerate": Program("accelerate, one rank", ("accelerate", "accelerate"), accelerate, TRAINED, NOTHING),
    "keras": Program(
        "Keras' `fit` with a DataLoader, on PyTorch", ("keras", "keras"), keras, MISSED,
        LOOKS,
    ),
    "keras of its own": Program(
        "Keras' `fit` with a PyDataset", ("keras", "keras"), keras_of_its_own, MISSED, LOOKS,
    ),
    "monai": Program(
        "MONAI's CacheDataset, `cache_rate=0.5`", ("monai", "monai.data"), monai, MISSED,
        "`cache_rate=1.0`, or a Dataset without a cache, or `--classes sampler`",
    ),
    "ultralytics": Program(
        "Ultralytics, classification", ("ultralytics", "ultralytics.data.dataset"), ultralytics, TRAINED, NOTHING,
    ),
}  # fmt: skip


def is_installed(program: Program) -> bool:
    """Whether its module can be imported."""
    declare_operators()
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        importlib.import_module(program.needs[1])
    except ImportError:
        return False
    return True


def figures(name: str, seed: int = 0) -> dict[str, float]:
    import torch

    program = PROGRAMS[name]
    torch.manual_seed(seed)
    mount = Mount(seed)
    program.run(mount)
    return program.measure(mount)


def row(name: str) -> str:
    """A row of the table."""
    program = PROGRAMS[name]
    told = [figures(name, seed) for seed in range(SEEDS)]
    parts = []
    for figure in told[0]:
        least, most = (choose(each[figure] for each in told) for choose in (min, max))
        parts.append(f"{least:.4g} {figure}" if least == most else f"{least:.4g} to {most:.4g} {figure}")
    version = metadata.version(program.needs[0])
    return f"| {program.title} | {version} | {', '.join(parts)} | {program.advice} |"


def main(names: Sequence[str]) -> Iterator[str]:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    yield "| program | version | what you get | what to do |"
    yield "|---|---|---|---|"
    for name in names or PROGRAMS:
        yield row(name) if is_installed(PROGRAMS[name]) else f"{name}: not installed"


if __name__ == "__main__":
    for line in main(sys.argv[1:]):
        print(line, flush=True)
