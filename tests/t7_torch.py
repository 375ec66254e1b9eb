"""docs/torch.md: each script of the page trains, is broken off, and resumes to the sample."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
from machine import Machine
from resuming_job import Files, make_files

pytest.importorskip("torch")

import torch

# Those of the frameworks are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (Path(__file__).parents[1] / "docs" / "torch.md").read_text()

FILES = 120
BATCHES = 30
OPTIONS = ["--classes", "dir", "--samples", "*.bin", "--chunk-size", "4"]


def script(under: str) -> dict[str, Any]:
    """What the first Python script under a heading of the page defines."""
    match = re.search(rf"^## {re.escape(under)}\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert match is not None, under
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(match[1], f"docs/torch.md: {under}", "exec"), names)
    return names


@pytest.fixture
def root(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The mount of a dataset with two classes."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(machine.environment[name]))
    torch.manual_seed(1)
    source = tmp_path / "data"
    make_files(source, 2, FILES)
    memory = machine.inspect(source, *OPTIONS)["memory_for"]["25%"]
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--memory", str(memory))
    yield machine.mnt
    assert machine.stats()["errors"] == 0


def each_once(names: list[str]) -> bool:
    return len(names) == FILES and set(Counter(names).values()) == {1}


@pytest.fixture(autouse=True)
def declared_operators() -> None:
    """torchvision imports beside a CPU build of PyTorch, for frameworks that look for it."""
    programs.declare_operators()


class BrokenOffError(Exception):
    """The end of a job that is broken off."""


def test_a_plain_script_resumes_to_the_sample(root: Path, tmp_path: Path) -> None:
    train = script("Resume to the sample")["train"]
    trained: list[str] = []

    def step(batch: list[str]) -> None:
        if len(trained) == 17 * 4:
            raise BrokenOffError
        trained.extend(batch)

    checkpoint = str(tmp_path / "last.pt")
    with pytest.raises(BrokenOffError):
        train(Files(str(root)), str(root), checkpoint, 2, step)
    # The checkpoint came after 15 batches.
    trained = trained[: 15 * 4]
    saved = list(trained)
    trained = []
    train(Files(str(root)), str(root), checkpoint, 2, lambda batch: trained.extend(batch))
    assert each_once(saved + trained[: FILES - len(saved)])
    assert each_once(trained[FILES - len(saved) :])


def test_a_label_is_looked_up_by_the_name_of_the_file_that_came(root: Path) -> None:
    load = script("Which file came")["load"]
    captions = {f"{number}.bin": f"class{number % 2}/{number}" for number in range(FILES)}
    for path in sorted(root.glob("*/*.bin")):
        data, caption = load(path, captions)
        assert data.split()[0].decode() == caption


def test_a_sampler_takes_the_order_from_the_mount(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(machine.environment[name]))
    source = tmp_path / "data"
    make_files(source, 2, FILES)
    options = ["--classes", "sampler", "--samples", "*.bin", "--chunk-size", "4"]
    memory = machine.inspect(source, *options)["memory_for"]["25%"]
    machine.ok("mount", source, machine.mnt, *options, "--memory", str(memory))
    paths = sorted(map(str, machine.mnt.glob("*/*.bin")))

    class Labelled:
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> str:
            name = Path(paths[index]).read_bytes().split()[0].decode()
            assert paths[index].endswith(f"/{name}.bin"), "the label of the path is that of the bytes"
            return name

    trained: list[str] = []
    script("The order from the mount")["train"](Labelled(), paths, 2, lambda batch: trained.extend(batch))
    assert each_once(trained[:FILES])
    assert each_once(trained[FILES:])
    assert trained[:FILES] != trained[FILES:]
    stats = machine.stats()
    assert (stats["redirected"], stats["errors"], stats["turns"]) == (0, 0, 2 * FILES)


class Numbered(Files):
    """Items with the number of the file that came, as tensors."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(super().__getitem__(index).partition("/")[2])])


# In the middle of an epoch, and at its end.
steps = pytest.mark.parametrize("step", [15, BATCHES])


@steps
def test_lightning_resumes_to_the_sample(root: Path, tmp_path: Path, step: int) -> None:
    pytest.importorskip("lightning")
    import lightning

    data_module = script("Lightning")["Data"]

    class Model(lightning.LightningModule):
        def __init__(self, ends_at: int | None) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained: list[float] = []
            self.ends_at = ends_at

        def training_step(self, batch: Any, number: int) -> Any:
            if len(self.trained) == (self.ends_at or 0) * 4 > 0:
                raise BrokenOffError
            self.trained += batch.flatten().tolist()
            return self.layer(batch).mean() * 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trainer() -> Any:
        saves = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1
        )
        return lightning.Trainer(
            accelerator="cpu", max_epochs=2, callbacks=[saves], logger=False, enable_progress_bar=False
        )

    first, second = Model(step + 2), Model(None)
    with pytest.raises(BrokenOffError):
        trainer().fit(first, datamodule=data_module(Numbered(str(root)), str(root)))
    checkpoint = tmp_path / f"step={step}.ckpt"
    trainer().fit(second, datamodule=data_module(Numbered(str(root)), str(root)), ckpt_path=checkpoint)
    names = [str(number) for number in first.trained[: step * 4] + second.trained]
    assert each_once(names[:FILES])
    assert each_once(names[FILES:])


@steps
def test_hugging_face_s_trainer_resumes_to_the_sample(root: Path, tmp_path: Path, step: int) -> None:
    transformers = pytest.importorskip("transformers")
    names = script("Hugging Face Trainer")

    class Model(torch.nn.Module):
        def __init__(self, ends_at: int | None) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained: list[float] = []
            self.ends_at = ends_at

        def forward(self, number: Any) -> Any:
            if self.ends_at is not None and len(self.trained) == self.ends_at * 4:
                raise BrokenOffError
            self.trained += number.flatten().tolist()
            return {"loss": self.layer(number).mean() * 0}

    class Items(Numbered):
        def __getitem__(self, index: int) -> Any:
            return {"number": super().__getitem__(index)}

    def trainer(model: Any) -> Any:
        made = names["Trainer"](
            model=model,
            args=transformers.TrainingArguments(
                output_dir=os.fspath(tmp_path / "out"),
                num_train_epochs=2,
                per_device_train_batch_size=4,
                dataloader_num_workers=2,
                save_steps=5,
                ignore_data_skip=True,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
            ),
            train_dataset=Items(str(root)),
            callbacks=[names["SaveLoader"]()],
        )
        made.root = root
        return made

    first, second = Model(step + 2), Model(None)
    with pytest.raises(BrokenOffError):
        trainer(first).train()
    trainer(second).train(resume_from_checkpoint=True)
    trained = [str(number) for number in first.trained[: step * 4] + second.trained]
    assert each_once(trained[:FILES])
    assert each_once(trained[FILES:])
