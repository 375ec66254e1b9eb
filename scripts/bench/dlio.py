"""DLIO itself, the program that MLPerf Storage runs, on a plain directory and on mounts of redoxfs.

DLIO is no dependency of this project: it imports TensorFlow, also for its PyTorch loader, and its metadata asks for a
DALI that PyPI does not have. Without DALI it works, in a venv of its own:

    pip install --no-deps dlio-benchmark==2.0.0 pydftracer==1.0.2 mpi4py
    pip install tensorflow-cpu torch h5py omegaconf hydra-core pandas psutil pillow
    apt-get install openmpi-bin
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import epoch
import mounts
import throttle

VERSION = "2.0.0"
PROFILE = "nas"
ACCELERATOR, COMPUTE_S = "H100", 0.224
CLASSES = 16

PATIENCE_S = 300
"""For one run of DLIO."""

ASK = "import dlio_benchmark.main, importlib.metadata as m; print(m.version('dlio-benchmark'))"


class DlioError(Exception):
    """DLIO failed: its last line."""


def measured(python: str, work: Path, result: dict[str, Any], *, steps: int = 12) -> dict[str, Any]:
    """As `trained`, or ``missing``, which says why DLIO did not run."""
    try:
        return trained(python, work, result, steps=steps)
    except DlioError as failure:
        return {"missing": str(failure)}


def trained(python: str, work: Path, result: dict[str, Any], *, steps: int) -> dict[str, Any]:
    """DLIO's utilisation and samples a second with each way to read. Raises DlioError.

    Args:
        work: a folder to make the files in.
        result: that of mlperf.py, for its batch and memory.
        steps: batches of the epoch.
    """
    version = _version(python)
    files, scale = result["batch"] * steps, result["batch"] / 400
    settings = {
        "workflow.checkpoint": False,
        "dataset.format": "npz",
        "dataset.num_files_train": files,
        "dataset.num_samples_per_file": 1,
        "dataset.num_subfolders_train": CLASSES,
        "dataset.record_length": result["sample_bytes"],
        "dataset.record_length_stdev": 0,
        "dataset.record_length_resize": 150_528,
        "reader.batch_size": result["batch"],
        "reader.read_threads": result["readers"],
        "reader.file_shuffle": "seed",
        "reader.sample_shuffle": "seed",
        "train.epochs": 1,
        "train.computation_time": COMPUTE_S * scale,
    }
    work.mkdir()
    _dlio(python, work, {**settings, "workflow.generate_data": True, "workflow.train": False}, work / "data")
    mounts.pack(work / "data", work / "packed")
    rows = []
    for way in ("plain", "directory", "packed"):
        with (
            # No cap on memory: DLIO's processes hold more than the dataset. One epoch finds nothing in a page cache.
            epoch.storage(throttle.PROFILES[PROFILE], work, None) as stored,
            epoch.reading(stored, way, work, result["memory_mb"]) as folder,
        ):
            stored.forget()
            # Otherwise the run reads DLIO's libraries from the slow storage, for minutes.
            _version(python)
            training = {**settings, "workflow.generate_data": False, "workflow.train": True}
            metric = _dlio(python, work, training, folder, stored)["metric"]
        rows.append(
            {
                "way": way,
                "utilisation": metric["train_au_mean_percentage"] / 100,
                "samples_per_s": metric["train_throughput_mean_samples_per_second"],
            }
        )
    return {
        "version": version,
        "profile": PROFILE,
        "accelerator": ACCELERATOR,
        "files": files,
        "rows": rows,
    }


def _version(python: str) -> str:
    """Imports DLIO as a run does. Returns its version. Raises DlioError."""
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise DlioError(_reason(asked.stderr))
    version = asked.stdout.split()[-1]
    if version != VERSION:
        # It ignores a setting whose name it does not know, and then makes files of 140 MB until the disk is full.
        raise DlioError(f"DLIO {version} may have other names for its settings: install {VERSION}")
    return version


def _reason(said: str) -> str:
    """The last line that names an error; else the last line. Hydra ends with advice."""
    errors = [line for line in said.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return mounts.last_line(errors[-1] if errors else said)


def _dlio(
    python: str, work: Path, settings: dict[str, Any], data: Path, stored: epoch.Storage | None = None
) -> dict[str, Any]:
    """Run DLIO once. Returns its summary. Raises DlioError."""
    output = work / "output"
    words = [f"++workload.{name}={value}" for name, value in settings.items()]
    words += [f"++workload.dataset.data_folder={data}", f"++workload.output.folder={output}", f"hydra.run.dir={output}"]
    try:
        done = subprocess.run(
            [python, "-m", "dlio_benchmark.main", "workload=unet3d_h100", *words],
            cwd=work,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            capture_output=True,
            text=True,
            preexec_fn=stored.enter if stored else None,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DlioError(f"a run took more than {PATIENCE_S} s") from None
    if done.returncode:
        raise DlioError(_reason(done.stderr or done.stdout))
    summary = output / "summary.json"
    found: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    return found
