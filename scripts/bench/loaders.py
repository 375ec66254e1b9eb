"""Compares redoxfs with other loaders, each in its own script.

    scripts/bench/loaders.py [--only plain,packed,webdataset] [--quick] [--json FILE] [--plot FILE.svg] [--beside FILE]

Needs root. All loaders have the same images, storage, memory and workers; only WebDataset and FFCV have the 2 GiB that
their recipes take. The 20,000 JPEGs follow from a seed. Each loader reads them with a script that follows its
documentation (scripts/bench/loader_jobs, which cites the pages), in random order, in batches of 64:

- bytes: each worker reads the images, and keeps the number of each. With four workers, two whole epochs: with a cold
  cache, and after that. They also show whether each image came exactly once, and how well the order was shuffled.
- decoded: each worker decodes the images and scales them to 224 x 224. One epoch with a cold cache, which ends after
  `--seconds`. So does the epoch of bytes with two workers.

The storage is a profile of scripts/bench/throttle.py, by default `nas`. After the imports, one cap limits the memory of
workers, buffers, servers, and the page cache together. The time to the first batch starts after the imports, and
includes the listing of files and the start of workers. Rates are measured from the first batch on. The time to mount is
separate. Conversions read the images from the page cache, and are not throttled.

If a loader is not installed, or fails, its row says why. To install most of them:
pip install 'redoxfs[torch,programs,peers]', and Debian's s3fs, squashfuse and squashfs-tools. Install others in folders
below `--peers`, if they need other versions of the same packages: pip install --target FOLDER/mosaicml
mosaicml-streaming. To measure only some loaders again, pass the result of an earlier run with the same settings as
--beside. The new result keeps its other rows, and the page says which. The exit code is 1 if redoxfs or the plain
script lost, repeated or mislabeled a sample.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mounts
import numpy as np
import throttle
from jpegs import in_order, in_random_order, make_images, number_of
from loader_mounts import SERVERS, LeftOutError, Place, Server
from loader_scripts import changed_lines, preparation_lines
from loaders_page import page, plot
from results import check_plot, options_of, parse_quick, rounded, write
from rich.console import Console
from rich.markdown import Markdown

from redoxfs.telemetry.quality import BATCH

sys.path.append(str(Path(__file__).parents[1] / "research"))

from shuffle_quality import quality

JOBS = mounts.HERE / "loader_jobs"
BATCH_SIZE = 64
MATES = 64
"""Images that lie together in storage and should not come together."""
READY_S, PREPARE_S, RUN_S = 120, 600, 400


@dataclass(frozen=True, slots=True)
class Way:
    """A loader. ``job`` is its script; with ``server``, that reads a mount. The others read files."""

    title: str
    job: str
    server: Server | None = None
    is_prepared_for_each: bool = False
    """Whether its format differs with and without decoding."""
    least_cap_mb: int = 0
    """The memory that its recipe takes, if --cap-mb is less."""

    def cap_mb(self, given: int) -> int:
        return max(given, self.least_cap_mb)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a loader."""

    decode: bool
    workers: int
    epochs: int
    whole: bool


CELLS = {
    "bytes_4": Cell(False, 4, 2, True),
    "bytes_2": Cell(False, 2, 1, False),
    "decoded_4": Cell(True, 4, 1, False),
    "decoded_2": Cell(True, 2, 1, False),
}
QUICK_CELLS = {"bytes_2": Cell(False, 2, 2, True), "decoded_2": Cell(True, 2, 1, False)}


WAYS = {
    "plain": Way("plain files", "plain"),
    "directory": Way("redoxfs, directory", "plain", SERVERS["directory"]),
    "packed": Way("redoxfs, packed", "plain", SERVERS["packed"]),
    "archive": Way("redoxfs, a tar file", "plain", SERVERS["archive"]),
    "webdataset": Way("WebDataset", "webdataset_shards", least_cap_mb=2048),
    "litdata-raw": Way("LitData, raw", "litdata_raw"),
    "litdata": Way("LitData, optimized", "litdata_optimized"),
    "mosaicml": Way("MosaicML Streaming", "mosaicml"),
    "spdl": Way("SPDL", "spdl_threads"),
    "hf": Way("Hugging Face datasets", "hugging_face"),
    "hf-stream": Way("Hugging Face datasets, streaming", "hugging_face_stream"),
    "ffcv": Way("FFCV", "ffcv_beton", is_prepared_for_each=True, least_cap_mb=2048),
    "ratarmount": Way("ratarmount", "plain", SERVERS["ratarmount"]),
    "squashfuse": Way("squashfuse", "plain", SERVERS["squashfuse"]),
    "rclone": Way("rclone mount, S3", "plain", SERVERS["rclone"]),
    "s3fs": Way("s3fs, S3", "plain", SERVERS["s3fs"]),
    "juicefs": Way("JuiceFS, S3", "plain", SERVERS["juicefs"]),
    "objects": Way("redoxfs, packed, S3", "plain", SERVERS["objects"]),
}
"""In the order of the tables."""

QUICK_WAYS = ("plain", "directory", "packed", "webdataset", "litdata", "spdl")

OURS = ("plain", "directory", "packed", "archive", "objects")


NOTHING: dict[str, Any] = {
    "left_out": None,
    **dict.fromkeys(CELLS),
    **dict.fromkeys(("prepare_s", "prepared_bytes", "lines_changed", "prepare_lines", "packages")),
    **dict.fromkeys(("exactly_once", "missing", "repeated", "wrong_labels")),
    **dict.fromkeys(("displacement", "rank_correlation", "mate_pairs")),
}
"""A row of which nothing is measured. ``left_out`` says why."""


class Script:
    """A process that runs a job. It has imported what it needs when the block begins, and is killed with it."""

    def __init__(self, way: str, asked: dict[str, Any], place: Place) -> None:
        self._result = Path(asked["result"])
        self._log = place.work / "log"
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        own = place.arguments.peers / way
        if own.is_dir():
            environment["PYTHONPATH"] = str(own)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, JOBS / "job.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._tell(json.dumps(asked))

    def __enter__(self) -> "Script":
        try:
            self._wait_for("ready", READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes of the script, also the workers of one that is killed."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self, patience_s: float) -> dict[str, Any]:
        self._tell("go")
        self._wait_for("done", patience_s)
        return json.loads(self._result.read_text())

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LeftOutError(self._reason()) from None

    def _wait_for(self, word: str, patience_s: float) -> None:
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], patience_s)
        if not heard:
            raise LeftOutError(f"not {word} after {patience_s:.0f} s")
        if self._process.stdout.readline().strip() != word:
            raise LeftOutError(self._reason())

    def _reason(self) -> str:
        code = self._process.wait()
        said = self._log.read_text(errors="replace")
        return "the kernel killed it: out of memory" if code == -signal.SIGKILL else mounts.last_line(said)[:300]


def prepare(place: Place, name: str, way: Way, cell: Cell) -> tuple[float, int]:
    """Convert the images for a loader. Returns the seconds that it took, and the bytes on the disk."""
    shutil.rmtree(place.prepared, ignore_errors=True)
    place.prepared.mkdir()
    seconds = 0.0
    if way.server is not None and way.server.convert is not None:
        began = time.monotonic()
        way.server.convert(place)
        seconds = time.monotonic() - began
    elif preparation_lines(JOBS / f"{way.job}.py"):
        with Script(name, asked(place, way, cell, 0, None), place) as script:
            seconds = script.go(PREPARE_S)["seconds"]
    return seconds, on_disk(place.prepared)


def on_disk(folder: Path) -> int:
    return sum(path.stat(follow_symlinks=False).st_blocks * 512 for path in folder.rglob("*"))


def asked(place: Place, way: Way, cell: Cell, epochs: int, seconds: float | None) -> dict[str, Any]:
    """The instructions for a script."""
    images = place.mounted if way.server is not None and epochs else place.images
    job = {
        "images": str(images),
        "prepared": str(place.prepared),
        "workers": cell.workers,
        "most_workers": max(cell.workers for cell in CELLS.values()),
        "batch": BATCH_SIZE,
        "decode": cell.decode,
    }
    result = str(place.work / "result.json")
    return {"module": way.job, "job": job, "epochs": epochs, "seconds": seconds, "result": result}


def measure(place: Place, name: str, way: Way, cell: Cell) -> dict[str, Any]:
    """Run a loader once, from a cold cache. Returns its script's result, ``mount_s``, and a mount's counters."""
    profile, cap_bytes = throttle.PROFILES[place.arguments.profile], way.cap_mb(place.arguments.cap_mb) << 20
    seconds = None if cell.whole else place.arguments.seconds
    with ExitStack() as stack:
        group = stack.enter_context(throttle.throttled(profile, cap_bytes, place.work))
        script = stack.enter_context(Script(name, asked(place, way, cell, cell.epochs, seconds), place))
        throttle.drop_caches()
        mount_s = 0.0 if way.server is None else stack.enter_context(way.server.serve(place, group))
        group.take(script.pid)
        told = script.go(RUN_S)
        history = place.mounted / ".redoxfs/history.json"
        is_ours = way.server is not None and history.exists()
        return {**told, "mount_s": mount_s, "laps": json.loads(history.read_bytes())["laps"] if is_ours else None}


def checked(told: dict[str, Any], classes: int, files: int) -> dict[str, Any]:
    """Counts samples that did not come exactly once, or had a wrong label, in all epochs together."""
    found = Counter[str]()
    for epoch in told["epochs"]:
        times = np.bincount(epoch["numbers"], minlength=files)
        found["repeated"] += int((times - 1).clip(0).sum())
        found["wrong_labels"] += int((np.array(epoch["numbers"]) % classes != epoch["labels"]).sum())
        if epoch["whole"]:
            found["missing"] += int((times[:files] == 0).sum())
    return dict.fromkeys(("missing", "repeated", "wrong_labels"), 0) | found


def shuffled(told: dict[str, Any], stored: list[int]) -> dict[str, Any]:
    """Shuffle quality of the order in which a loader yielded the images, of two epochs; empty if one is not complete.

    ``stored``: the order of the images in storage. A redoxfs mount chose its chunks at random, so it tells of them.
    """
    epochs = [np.array(epoch["numbers"], np.int32) for epoch in told["epochs"]]
    if len(epochs) < 2 or any(not np.array_equal(np.sort(epoch), np.arange(len(stored))) for epoch in epochs):
        return {}
    chunk_of = np.empty(len(stored), np.int32)
    chunk_of[stored] = np.arange(len(stored)) // MATES
    found = quality(epochs, chunk_of)
    mates: float | None = found.mate_pairs / found.mate_pairs_if_random
    if told["laps"] is not None:
        of_laps = zip(told["laps"]["mate_pairs"], told["laps"]["mate_pairs_if_random"], strict=True)
        ratios = [pairs / chance for pairs, chance in of_laps if pairs is not None and chance]
        mates = sum(ratios) / len(ratios) if ratios else None
    return {
        "displacement": found.displacement,
        "rank_correlation": found.rank_correlation,
        "mate_pairs": mates,
    }


def rate(epoch: dict[str, Any]) -> float:
    """Samples a second after the first batch. What comes before it does not grow with the data set."""
    samples: int = len(epoch["numbers"]) - epoch["first_samples"]
    after_s: float = epoch["seconds"] - epoch["first_batch_s"]
    return samples / max(after_s, 1e-3)


def row_of(place: Place, name: str, way: Way, cells: dict[str, Cell]) -> dict[str, Any]:
    """All that is measured of a loader. Raises LeftOutError."""
    classes, files = place.arguments.classes, place.arguments.files
    script = JOBS / f"{way.job}.py"
    row: dict[str, Any] = {
        "lines_changed": changed_lines(JOBS / "plain.py", script),
        "prepare_lines": preparation_lines(script),
    }
    total = Counter[str]()
    prepared_for: bool | None = None
    for title, cell in cells.items():
        if prepared_for is None or (way.is_prepared_for_each and cell.decode != prepared_for):
            prepared_for = cell.decode
            row["prepare_s"], row["prepared_bytes"] = prepare(place, name, way, cell)
        told = measure(place, name, way, cell)
        first_s = told["epochs"][0]["first_batch_s"]
        if first_s is None:
            said = (place.work / "log").read_text(errors="replace")
            raise LeftOutError(f"it yielded nothing: {mounts.last_line(said)[:300]}")
        rates = [rate(epoch) for epoch in told["epochs"]]
        row[title] = {"cold_per_s": rates[0], "first_batch_s": first_s, "mount_s": told["mount_s"]}
        row[title] |= {"warm_per_s": rates[1]} if len(rates) > 1 else {}
        row["packages"] = told["packages"]
        total.update(checked(told, classes, files))
        if cell.whole:
            row |= shuffled(told, stored_order(place, way))
    lost = {key: total[key] for key in ("missing", "repeated", "wrong_labels")}
    return {**row, **lost, "exactly_once": not any(lost.values())}


def stored_order(place: Place, way: Way) -> list[int]:
    """The numbers of the images in the order in which a loader finds them in storage."""
    is_shuffled = preparation_lines(JOBS / f"{way.job}.py") > 0
    samples = in_random_order(place.images) if is_shuffled else in_order(place.images)
    return [number_of(path) for path, _ in samples]


def measure_all(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"drawing {arguments.files:,} images …")
    total = make_images(work / "images", arguments.files, arguments.classes)
    place = Place(work, arguments, int(arguments.memory * total))
    cells = {
        name: cell for name, cell in (QUICK_CELLS if arguments.quick else CELLS).items() if name in arguments.cells
    }
    settings = {
        "machine": mounts.machine(),
        "files": arguments.files,
        "classes": arguments.classes,
        "bytes": total,
        "profile": arguments.profile,
        "storage": storage(throttle.PROFILES[arguments.profile]),
        "cap_mb": arguments.cap_mb,
        "memory": arguments.memory,
        "batch": BATCH_SIZE,
        "seconds": arguments.seconds,
    }
    if arguments.beside is not None:
        check_same(settings, arguments.beside)
    rows = []
    for name, way in WAYS.items():
        if name not in arguments.only:
            continue
        console.print(f"{way.title} …")
        row: dict[str, Any] = {
            "loader": name,
            "title": way.title,
            "run": 0,
            "cap_mb": way.cap_mb(arguments.cap_mb),
            **NOTHING,
        }
        try:
            row |= row_of(place, name, way, cells)
        except LeftOutError as error:
            row |= {"left_out": str(error)}
            console.print(f"  left out: {error}", markup=False)
        finally:
            shutil.rmtree(place.prepared, ignore_errors=True)
        rows.append(row)
    result = {**settings, "rows": rounded(rows)}
    return result if arguments.beside is None else beside(result, arguments.beside)


def check_same(settings: dict[str, Any], former: dict[str, Any]) -> None:
    """Raises SystemExit if a ``former`` result has other settings. The kernel may be another build of its version."""
    for name, value in settings.items():
        if _version_of(former[name]) != _version_of(value):
            raise SystemExit(f"--beside: {name} was {former[name]}, and is {value} here")


def _version_of(value: Any) -> Any:
    if not isinstance(value, dict) or "kernel" not in value:
        return value
    return {**value, "kernel": value["kernel"].partition("-")[0]}


def beside(result: dict[str, Any], former: dict[str, Any]) -> dict[str, Any]:
    """``result``, with the rows of a ``former`` one for the loaders that it lacks."""
    rows = {row["loader"]: row for row in former["rows"]}
    run = 1 + max(row["run"] for row in former["rows"])
    rows |= {row["loader"]: {**row, "run": run} for row in result["rows"]}
    return {**result, "rows": [rows[name] for name in WAYS if name in rows]}


def storage(profile: throttle.Profile) -> str:
    if profile.reads_per_s is None or profile.bytes_per_s is None:
        return "a disk without caps"
    return f"a disk with {profile.reads_per_s} reads and {profile.bytes_per_s / 1e6:.0f} MB a second"


def _names(text: str) -> list[str]:
    return text.split(",")


def _result(path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as failure:
        raise argparse.ArgumentTypeError(f"{path} is no result: {failure}") from None
    return found


def parsed() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--only", type=_names, default=list(WAYS), help=f"loaders, with commas: {', '.join(WAYS)}")
    parser.add_argument(
        "--cells", type=_names, default=list(CELLS), help=f"what to measure of each, with commas: {', '.join(CELLS)}"
    )
    parser.add_argument("--files", type=int, default=20_000, help="images (default: 20,000; with --quick 2,000)")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument(
        "--profile", choices=[name for name, one in throttle.PROFILES.items() if one.delay_ms is None], default="nas"
    )
    parser.add_argument("--cap-mb", type=int, default=768, help="cap on memory with the page cache, MiB")
    parser.add_argument(
        "--memory",
        type=float,
        default=0.2,
        help="--memory of the redoxfs mounts, a share of the images; within the cap",
    )
    parser.add_argument("--seconds", type=float, default=6, help="length of an epoch that may end early (%(default)s)")
    parser.add_argument(
        "--peers", type=Path, default=Path(sys.prefix) / "peers", help="FOLDER/LOADER has packages of its own"
    )
    parser.add_argument("--folder", type=Path, help="where to draw the images, on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="2,000 images, two workers, bytes, six loaders")
    parser.add_argument("--beside", type=_result, metavar="FILE", help="keep this result's rows of other loaders")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    arguments = parse_quick(parser, only=QUICK_WAYS, cells=["bytes_2"], files=2_000, seconds=3)
    for name, known, what in (("only", WAYS, "loader"), ("cells", QUICK_CELLS if arguments.quick else CELLS, "run")):
        unknown = sorted(set(getattr(arguments, name)) - known.keys())
        if unknown:
            parser.error(f"no {what} is called {', '.join(unknown)}")
    if arguments.files < 2 * BATCH:
        parser.error(f"--files: at least {2 * BATCH}, to measure how they are shuffled")
    return arguments


def main() -> int:
    arguments = parsed()
    if arguments.plot:
        check_plot()
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-", dir=arguments.folder) as work:
        # Caches of all programs that keep some.
        os.environ.update(dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME"), work))
        result = measure_all(Path(work), arguments)
    if arguments.json:
        write(result, arguments.json)
    if arguments.plot:
        plot(result, arguments.plot)
    Console().print(Markdown(page(result)))
    ours = [row for row in result["rows"] if row["loader"] in OURS and not row["left_out"]]
    return 0 if all(row["exactly_once"] for row in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
