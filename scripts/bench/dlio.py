"""DLIO, the program that MLPerf Storage runs, and the files in which it reports.

DLIO is no dependency of this project: it imports TensorFlow, also for its PyTorch loader, and its metadata asks for a
DALI that PyPI does not have. Without DALI it works, in a venv of its own:

    pip install --no-deps dlio-benchmark==2.0.0 pydftracer==1.0.2 mpi4py
    pip install tensorflow-cpu torch h5py omegaconf hydra-core pandas psutil pillow
    apt-get install openmpi-bin
"""

import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import mounts

VERSION = "2.0.0"
"""Another one may have other names for its settings. It ignores a name that it does not know."""

BATCH, STEP_S, THREADS, FED = 24, 0.04755, 4, 0.85
"""Of MLPerf Storage v3.0's RetinaNet: samples and seconds of a step, readers, and the least utilisation."""

RECORD_BYTES = 582_000
"""Pixels of an image, in gray and random. As a JPEG it has 326 kB; those of v3.0 have 323 kB on average."""

PATIENCE_S = 600
"""For one run of DLIO."""

WATCH_S = 0.2

ASK = "import importlib.metadata as m; print(m.version('dlio-benchmark'))"


class DlioError(Exception):
    """DLIO failed: its last line."""


@dataclass(frozen=True, slots=True)
class Report:
    """DLIO's own figures for each epoch: accelerator utilisation, 0 to 1, and samples a second."""

    utilisation: list[float]
    samples_per_s: list[float]


class Dlio:
    """A process that has imported DLIO, and runs it in forks. It ends with the block. Methods raise DlioError."""

    def __init__(self, python: str) -> None:
        self._python = python

    def __enter__(self) -> Self:
        _check(self._python)
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [self._python, mounts.HERE / "dlio_runs.py"],
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        try:
            self._answer(time.monotonic() + PATIENCE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def make_files(self, folder: Path, files: int) -> None:
        """Make JPEGs in ``folder``/train."""
        settings = {**_settings(files), "workflow.generate_data": True, "workflow.train": False}
        with tempfile.TemporaryDirectory(prefix="redoxfs-dlio-") as output:
            self._run(folder, settings, Path(output))

    def train(
        self,
        folder: Path,
        files: int,
        epochs: int,
        step_s: float,
        take: Callable[[int], None],
        watch: Callable[[], object] = lambda: None,
    ) -> Report:
        """Train on the files of ``folder``/train.

        Args:
            take: gets the pid of the process before DLIO runs in it.
            watch: is called a few times a second, while it runs.
        """
        more = {"workflow.generate_data": False, "workflow.train": True}
        settings = {**_settings(files), **more, "train.epochs": epochs, "train.computation_time": step_s}
        with tempfile.TemporaryDirectory(prefix="redoxfs-dlio-") as output:
            self._run(folder, settings, Path(output), take, watch)
            return reported(Path(output))

    def _run(
        self,
        folder: Path,
        settings: dict[str, Any],
        output: Path,
        take: Callable[[int], None] = lambda _: None,
        watch: Callable[[], object] = lambda: None,
    ) -> None:
        paths = {"dataset.data_folder": folder, "output.folder": output}
        words = [f"++workload.{name}={value}" for name, value in {**settings, **paths}.items()]
        # A configuration of another workload, of which each setting that matters is replaced.
        words = ["workload=unet3d_h100", *words, f"hydra.run.dir={output}"]
        deadline = time.monotonic() + PATIENCE_S
        self._ask(json.dumps({"folder": str(output), "words": words}))
        pid = int(self._answer(deadline))
        try:
            take(pid)
            self._ask("go")
            code = int(self._answer(deadline, watch))
        finally:
            # Its workers too, if it was killed.
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if code:
            raise DlioError(_reason((output / "log").read_text(errors="replace")))

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self, deadline: float, watch: Callable[[], object] = lambda: None) -> str:
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], WATCH_S)[0]:
            if time.monotonic() > deadline:
                raise DlioError(f"a run took more than {PATIENCE_S} s")
            watch()
        if line := self._process.stdout.readline():
            return line.strip()
        self._said.seek(0)
        raise DlioError(_reason(self._said.read().decode(errors="replace")))


def reported(output: Path) -> Report:
    """The figures of a run that trained, from its summary. Raises DlioError."""
    try:
        metric = json.loads((output / "summary.json").read_text(encoding="utf-8"))["metric"]
        utilisation = [percent / 100 for percent in metric["train_au_percentage"]]
        return Report(utilisation, metric["train_throughput_samples_per_second"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DlioError(f"DLIO's summary.json has no metric: {type(error).__name__}: {error}") from None


def _check(python: str) -> None:
    """Raises DlioError unless ``python`` has the DLIO that is meant."""
    try:
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError as error:
        raise DlioError(str(error)) from None
    if asked.returncode:
        raise DlioError(_reason(asked.stderr))
    if (version := asked.stdout.strip()) != VERSION:
        raise DlioError(f"{python} has DLIO {version}: install {VERSION}")


def _settings(files: int) -> dict[str, Any]:
    return {
        "workflow.checkpoint": False,
        # It fills a model of this size even if it saves none. DLIO's default, which v3.0 has.
        "checkpoint.model_size": 10_240,
        "dataset.format": "jpeg",
        "dataset.num_files_train": files,
        "dataset.num_samples_per_file": 1,
        "dataset.record_length": RECORD_BYTES,
        "dataset.record_length_stdev": 0,
        "dataset.record_length_resize": RECORD_BYTES,
        "reader.batch_size": BATCH,
        "reader.read_threads": THREADS,
        "reader.multiprocessing_context": "fork",
        "reader.file_shuffle": "seed",
        "reader.sample_shuffle": "seed",
        "metric.au": FED,
    }


def _reason(said: str) -> str:
    """The last line that names an error; else the last line. Hydra ends with advice."""
    errors = [line for line in said.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return mounts.last_line(errors[-1] if errors else said)
