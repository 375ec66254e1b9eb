"""Fuzzes the parsers in Python: `scripts/fuzz parsers`. See `--help`.

Each process takes target after target for some seconds each. It changes inputs that reached new steps between lines,
and keeps those that reach more. A find is

- an exception that the parser does not declare, or the end of the process;
- more than CPU_S of processor time, or WALL_S of any, for one input;
- more than MEMORY_BYTES of memory for it;
- a text for a person that is empty, or has a character that a terminal obeys, such as the end of a line.

It needs redoxfs, numpy, xxhash, trio, rich and prometheus_client, and Python 3.11 or later. Without the compiled part
of redoxfs, or without grpc, the targets that need them are left out: the cached scan; traces, records of volumes, and
lists of nodes.
"""

import argparse
import base64
import hashlib
import importlib.abc
import importlib.machinery
import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CPU_S = 3.0
WALL_S = 120.0
"""Far more than any input takes, also on a machine that does much else."""

MEMORY_BYTES = 64 << 20
"""Inputs have some 100 kB, of which JSON may become ten times as much."""

ADDRESS_BYTES = 1 << 30
"""What one input may allocate, whether it is touched or not."""

SLICE_S = 3.0
"""How long a process stays at a target."""

MOST_CORPUS = 2000

_HEAD = struct.Struct("<ddI")
_SHARED_BYTES = 1 << 20


class HangError(BaseException):
    """An input took too long."""


class Worker:
    """One process."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._options, self._number = options, number
        self._out = Path(options.out)
        self._draw = random.Random(f"{options.seed} {number}")
        file = os.open(self._out / f"current-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, _SHARED_BYTES)
        self._current = mmap.mmap(file, _SHARED_BYTES)
        self._runs: dict[str, int] = {}
        self._lines: dict[str, Any] = {}
        self._corpus: dict[str, list[dict[str, bytes]]] = {}
        self._known: dict[str, set[str]] = {}

    def run(self) -> None:
        """Until the time is over."""
        import fuzz_targets

        with tempfile.TemporaryDirectory(dir=self._options.room) as room:
            fuzz_targets.begin(Path(room))
            logging.disable(logging.CRITICAL)
            names = self._options.target or [target.name for target in fuzz_targets.TARGETS]
            targets = [fuzz_targets.named(name) for name in names]
            targets = [target for target in targets if has_native() or not target.needs_native]
            targets = [target for target in targets if has_grpc() or not target.needs_grpc]
            end_s = self._options.until
            at = self._number
            parent = os.getppid()
            while time.time() < end_s and os.getppid() == parent:
                self._slice(targets[at % len(targets)], min(end_s, time.time() + SLICE_S))
                at += 1
                self._report()

    def _slice(self, target: Any, until_s: float) -> None:
        from fuzz_lines import Lines

        name = target.name
        if name not in self._lines:
            self._lines[name] = Lines(target.modules)
            self._runs[name] = 0
            self._known[name] = set()
            self._corpus[name] = []
            for seed in target.seeds():
                self._try(target, seed, keeps=True)
        self._take_in(target)
        while time.time() < until_s:
            for _ in range(20):
                self._once(target)

    def _once(self, target: Any) -> None:
        from fuzz_mutations import mutated

        corpus = self._corpus[target.name]
        # The last ones are the newest.
        at = max(self._draw.randrange(len(corpus)), self._draw.randrange(len(corpus)))
        parts = mutated(corpus[at], corpus, target.words, self._draw)
        if self._draw.random() < 0.85:
            parts = target.seal(parts)
        self._try(target, parts)

    def _take_in(self, target: Any) -> None:
        """Inputs that other processes have found."""
        folder = self._out / "corpus" / target.name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in self._known[target.name]:
                self._known[target.name].add(path.name)
                self._try(target, decoded(path.read_bytes()), keeps=len(self._corpus[target.name]) < MOST_CORPUS)

    def _try(self, target: Any, parts: dict[str, bytes], *, keeps: bool = False) -> None:
        lines = self._lines[target.name]
        data = encoded(parts)
        if len(data) + _HEAD.size <= _SHARED_BYTES:
            self._current[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._current, 0, time.time(), 0.0, len(data))
        self._current.seek(_SHARED_BYTES - 64)
        self._current.write(target.name.encode().ljust(64, b"\0"))
        before = lines.steps
        is_traced = keeps or self._draw.random() < target.traced
        trouble = judged(target, parts, lines if is_traced else nullcontext())
        _HEAD.pack_into(self._current, 0, 0.0, 0.0, 0)
        self._runs[target.name] += 1
        if trouble is not None:
            save_find(self._out, target.name, data, *trouble)
        if keeps or (trouble is None and lines.steps > before and len(self._corpus[target.name]) < MOST_CORPUS):
            self._corpus[target.name].append(parts)
            name = hashlib.sha256(data).hexdigest()[:24]
            if name not in self._known[target.name]:
                self._known[target.name].add(name)
                folder = self._out / "corpus" / target.name
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f".{name}-{self._number}").write_bytes(data)
                os.replace(folder / f".{name}-{self._number}", folder / name)

    def _report(self) -> None:
        seen = {name: sorted(lines.seen) for name, lines in self._lines.items()}
        every = {name: [[*line] for line in sorted(lines.all)] for name, lines in self._lines.items()}
        text = json.dumps({"runs": self._runs, "seen": seen, "all": every})
        path = self._out / f"lines-{self._number}.json"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)


def judged(target: Any, parts: dict[str, bytes], lines: Any) -> tuple[str, str] | None:
    """What is wrong with what comes of an input: a key that is the same for the same fault, and a text."""
    from redoxfs.launch.say import plain

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        with lines:
            shown = [*target.run(parts)]
    except target.declared as error:
        # As `say` prints the line of an error. All other texts come as they are printed.
        shown = [plain(str(error))]
        if not shown[0]:
            return _fault("no words", error)
    except HangError as error:
        return _fault("hang", error)
    except Exception as error:
        return _fault(type(error).__name__, error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - base
    if grown > MEMORY_BYTES:
        Path("/proc/self/clear_refs").write_text("5")  # the next is measured from here
        return "memory", f"took {grown >> 20} MiB"
    return wrong_line(shown)


def wrong_line(shown: Sequence[str]) -> tuple[str, str] | None:
    """A text that must not be shown."""
    for line in shown:
        if any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029\u202e\u2066" for c in line):
            return "control", f"a control character in {line[:200]!r}"
    return None


def _fault(kind: str, error: BaseException) -> tuple[str, str]:
    places = [
        f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "redoxfs" in frame.filename and "fuzz" not in frame.filename
    ]
    return f"{kind} {places[-1] if places else ''}", "".join(traceback.format_exception(error))[-6000:]


def save_find(out: Path, name: str, data: bytes, key: str, text: str) -> None:
    """Keep the first input of each fault."""
    folder = out / "finds"
    folder.mkdir(exist_ok=True)
    base = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    if not base.with_suffix(".input").exists():
        base.with_suffix(".input").write_bytes(data)
        base.with_suffix(".txt").write_text(f"{name}: {key}\n{time.strftime('%H:%M:%S')}\n{text}\n", errors="replace")


def encoded(parts: dict[str, bytes]) -> bytes:
    """An input as a file."""
    return json.dumps({name: base64.b64encode(data).decode() for name, data in parts.items()}).encode()


def decoded(data: bytes) -> dict[str, bytes]:
    """The inverse of `encoded`."""
    return {name: base64.b64decode(text) for name, text in json.loads(data).items()}


class _NoNative(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules in the place of redoxfs's compiled part: what others import from there is there, and does nothing."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[:2] != ["redoxfs", "native"]:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        def named(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return 1 if name.isupper() else type(name, (), {})

        module.__getattr__ = named  # type: ignore[method-assign]


def has_native() -> bool:
    """Whether redoxfs's compiled part is here; if not, `_NoNative` is in its place."""
    if any(isinstance(finder, _NoNative) for finder in sys.meta_path):
        return False
    try:
        importlib.import_module("redoxfs.native")
    except ImportError:
        for name in [name for name in sys.modules if name.startswith("redoxfs.native")]:
            del sys.modules[name]
        sys.meta_path.insert(0, _NoNative())
        return False
    return True


def has_grpc() -> bool:
    """Whether what nodes talk through is here."""
    try:
        importlib.import_module("grpc")
        importlib.import_module("google.protobuf")
    except ImportError:
        return False
    return True


def work(options: argparse.Namespace) -> int:
    """Be one of the processes."""

    def late(_signal: int, _frame: Any) -> None:
        raise HangError

    signal.signal(signal.SIGPROF, late)
    has_native()
    import fuzz_targets  # noqa: F401 - before the limit

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_BYTES, resource.RLIM_INFINITY))
    Worker(options, options.worker).run()
    return 0


# The first process


class Crew:
    """The processes, as their parent sees them."""

    def __init__(self, options: argparse.Namespace, path: str) -> None:
        self._options, self._path = options, path
        self._out = Path(options.out)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, *, until_find: bool = False) -> None:
        """Until the time is over, or something is found."""
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        # Of the crew, as a worker that is killed removes nothing.
        with tempfile.TemporaryDirectory(prefix="redoxfs-fuzz-", dir=memory) as room:
            self._run(room, until_find)

    def _run(self, room: str, until_find: bool) -> None:
        while time.time() < self._options.until:
            for number in range(self._options.jobs):
                worker = self._workers.get(number)
                if worker is None or worker.poll() is not None:
                    if worker is not None and worker.returncode:
                        self._died(number, f"the process ended with {worker.returncode}")
                    self._workers[number] = self._start(number, room)
                else:
                    self._look(number, worker)
            if until_find and finds(self._out):
                break
            time.sleep(0.2)
        for worker in self._workers.values():
            if until_find:
                worker.kill()
            worker.wait()

    def _start(self, number: int, room: str) -> subprocess.Popen[bytes]:
        options = self._options
        command = [sys.executable, "-P", str(HERE / "fuzz_parsers.py"), "--worker", str(number), "--out", options.out]
        command += ["--room", room, "--until", str(options.until), "--seed", str(options.seed)]
        for name in options.target:
            command += ["--target", name]
        paths = os.pathsep.join((self._path, str(HERE)))
        # numpy's threads would only compete.
        environment = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=environment)

    def _look(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        began_s, _ = self._current(number)
        if began_s and time.time() - began_s > WALL_S:
            worker.kill()
            worker.wait()
            self._died(number, f"no end within {WALL_S:g} s")
            del self._workers[number]

    def _current(self, number: int) -> tuple[float, bytes]:
        try:
            data = (self._out / f"current-{number}").read_bytes()
        except FileNotFoundError:
            return 0.0, b""
        if len(data) < _SHARED_BYTES:
            return 0.0, b""
        began_s, _, size = _HEAD.unpack_from(data)
        return began_s, data[_HEAD.size : _HEAD.size + size] + data[-64:]

    def _died(self, number: int, how: str) -> None:
        began_s, data = self._current(number)
        if began_s:
            name = data[-64:].rstrip(b"\0").decode()
            save_find(self._out, name, data[:-64], how, how)
        else:
            save_find(self._out, "fuzzer", b"{}", how, f"{how}, between inputs: the fuzzer itself is wrong")


def finds(out: Path) -> list[Path]:
    """The descriptions of all finds."""
    return sorted((out / "finds").glob("*.txt")) if (out / "finds").is_dir() else []


def summary(out: Path, *, missed: bool) -> str:
    """What ran, by target: inputs, and lines of the functions that were called."""
    runs: dict[str, int] = {}
    seen: dict[str, set[tuple[str, int]]] = {}
    every: dict[str, set[tuple[str, int]]] = {}
    for path in out.glob("lines-*.json"):
        told = json.loads(path.read_text())
        for name, count in told["runs"].items():
            runs[name] = runs.get(name, 0) + count
            seen.setdefault(name, set()).update((file, line) for file, line in told["seen"][name])
            every.setdefault(name, set()).update((file, line) for file, line in told["all"][name])
    rows = [f"{'parser':16}{'inputs':>12}{'kept':>8}{'lines':>14}"]
    for name in runs:
        hit, total = len(seen[name] & every[name]), len(every[name])
        folder = out / "corpus" / name
        kept = len(list(folder.iterdir())) if folder.is_dir() else 0
        rows.append(f"{name:16}{runs[name]:>12,}{kept:>8,}{hit:>6,} of {total:<5,}{hit / max(1, total):>6.1%}")
        if missed:
            left = sorted(every[name] - seen[name])
            rows += [f"    {Path(file).name}:{line}" for file, line in left]
    return "\n".join(rows)


def reproduce(path: Path, name: str) -> int:
    """Run one input, and say what comes of it."""
    has_native()
    import fuzz_targets
    from fuzz_lines import Lines

    def late(_signal: int, _frame: Any) -> None:
        raise HangError

    signal.signal(signal.SIGPROF, late)
    with tempfile.TemporaryDirectory() as room:
        fuzz_targets.begin(Path(room))
        target = fuzz_targets.named(name)
        target.seeds()
        trouble = judged(target, decoded(path.read_bytes()), Lines(target.modules))
    print("nothing is wrong" if trouble is None else "\n".join(trouble))
    return 0 if trouble is None else 1


def planted(options: argparse.Namespace) -> int:
    """Plant each bug in a copy of redoxfs, and fuzz until it is found. Returns how many were not."""
    from fuzz_plants import PLANTS

    lost = 0
    for plant in PLANTS:
        with tempfile.TemporaryDirectory(prefix="redoxfs-planted-") as made:
            shutil.copytree(ROOT / "redoxfs", Path(made, "redoxfs"), ignore=shutil.ignore_patterns("__pycache__"))
            plant.apply(Path(made))
            out = Path(made, "out")
            out.mkdir()
            began_s = time.time()
            one = argparse.Namespace(**{**vars(options), "out": str(out), "target": [plant.target]})
            one.until = began_s + options.seconds
            Crew(one, made).run(until_find=True)
            found = finds(out)
            told = found[0].read_text().splitlines()[0] if found else "NOT FOUND"
            print(f"{plant.name}: {told} ({time.time() - began_s:.0f} s)", flush=True)
            lost += not found
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz parsers", description="Fuzz the parsers of redoxfs in Python.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long; with --plant, for each bug at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--target", action="append", default=[], help="only this parser; may be repeated")
    parser.add_argument("--out", default=str(ROOT / "build/fuzz/parsers"), help="corpus, finds and lines")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--plant", action="store_true", help="plant five bugs, one after the other, and find each")
    parser.add_argument("--missed", action="store_true", help="list the lines that did not run")
    parser.add_argument("--input", type=Path, help="run one input, with one --target")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--room", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options)
    if options.input is not None:
        return reproduce(options.input, options.target[0])
    if options.plant:
        return planted(options)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for path in (*out.glob("lines-*"), *out.glob("current-*")):
        path.unlink()
    shutil.rmtree(out / "finds", ignore_errors=True)
    options.until = time.time() + options.seconds
    print(f"seed {options.seed}, {options.jobs} processes, {options.seconds:g} s", flush=True)
    Crew(options, str(ROOT)).run()
    print(summary(out, missed=options.missed))
    found = finds(out)
    for path in found:
        print(f"\n{path.with_suffix('.input')}\n{path.read_text()}")
    print(f"{len(found)} finds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
