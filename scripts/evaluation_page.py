"""The evaluation: a page of what holds, and a page for each benchmark, made from their results.

    scripts/evaluation                       write docs/evaluation.md and docs/evaluation/*.md from the results there
    scripts/evaluation --run                 run every benchmark at full size first: hours
    scripts/evaluation --run --only loaders  run one of them first, and keep the results of the others
    scripts/evaluation --run --quick         run all of them at a small size, into a folder that is removed: minutes

The benchmark retinanet runs DLIO. The variable REDOXFS_DLIO names a Python that has it (scripts/bench/dlio.py).

A benchmark writes its result with --json and its figure with --plot. Its function ``page(result)`` returns its page in
Markdown, and ``page_short(result)`` what holds, in a sentence or two. So every number comes from a result. Its function
``when_not(result)``, if it has one, returns sentences on where redoxfs does not help. A result that does not exist yet
is left out, with one line on stderr.

Quick results show whether the benchmarks work, not how fast anything is. They never replace a result in docs/.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
SIMULATE = "scripts/research/simulate.py"
# The benchmarks and their pages import each other by name.
sys.path[:0] = [str(ROOT / "scripts/bench"), str(ROOT / "scripts/research")]

from results import rounded, write  # noqa: E402 - it lies there

TITLE = "# Evaluation"

INTRODUCTION = """\
The experiments of the paper *Redox: Improving I/O Efficiency of Model Training Through File Redirection*, repeated, and
comparisons with other systems. Read it to decide whether redoxfs fits your job. The policy `slot` is the paper's Redox;
`pool` is the default of redoxfs. `scripts/evaluation` makes these pages from the results in `docs/evaluation/`: each
number comes from a result. [Performance](performance.md) has further measurements of redoxfs itself."""

WHAT_HOLDS_TITLE = "## What holds"

WHEN_NOT_TITLE = "## When not to use redoxfs"

WHEN_NOT_FIRST = """\
If storage keeps up with small random reads, a job needs no redoxfs: a dataset that fits in the page cache, or lies on a
fast local disk, is read faster without it."""

WHEN_NOT_LAST = """\
redoxfs is also the wrong choice if a program needs the exact file that it opens, if files change during training, or if
no two files may stand in for each other. It needs Linux, FUSE, and memory for a part of the dataset."""
"""What no benchmark can show. The sentences of the benchmarks stand between the two."""


class ProblemError(Exception):
    """The page cannot be made: one line."""


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark.

    ``name``      of its result, docs/evaluation/NAME.json, and of its figure, NAME.svg
    ``page``      the module and the function that return its page; with "_short" after it, what holds
    ``commands``  the words that run it; the rows of several results become one
    ``quick``     further words for a small size
    ``minutes``   the time it takes at full size
    ``plots``     whether it draws a figure
    """

    name: str
    page: str
    commands: tuple[tuple[str, ...], ...]
    quick: tuple[str, ...] = ("--quick",)
    minutes: int = 15
    plots: bool = True

    @property
    def is_simulation(self) -> bool:
        """Whether it prints its result, as `simulate.py --json` does."""
        return self.commands[0][0] == SIMULATE


def _script(name: str, minutes: int) -> Section:
    return Section(name, f"{name}_page.page", ((f"scripts/bench/{name}.py",),), minutes=minutes)


def _simulation(
    name: str,
    *options: tuple[str, ...],
    quick: tuple[str, ...],
    minutes: int,
    plots: bool,
    page: str | None = None,
    table: str | None = None,
) -> Section:
    commands = tuple((SIMULATE, table or name, *words) for words in options or ((),))
    return Section(name, page or f"paper_tables.{name.replace('-', '_')}", commands, quick, minutes, plots)


def _files(number: int, classes: int | None = None) -> tuple[str, ...]:
    return "--files", str(number), *(("--classes", str(classes)) if classes else ())


def _settings(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--setting", name))


def _ways(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--way", name))


SECTIONS = (
    _script("overall", 25),
    _simulation(
        "epoch-times",
        _settings("1k-p100", "1k-3xp100", "1k-3xa10", "1k-5xa10", "libri-a10", "libri-3xa10", "libri-5xa10"),
        # A fortieth: all of ImageNet-21k takes hours.
        (*_settings("21k-2xa100", "21k-3xa100"), *_files(328_838)),
        quick=_files(9_000),
        minutes=90,
        plots=True,
    ),
    _simulation(
        "epoch-times-varied",
        ("--vary", "each", *_ways("PyTorch", "CoorDL", "slot", "pool"), *_files(40_000)),
        quick=_files(3_000),
        minutes=10,
        plots=False,
        table="epoch-times",
    ),
    _simulation("breakdown", quick=_files(20_000), minutes=5, plots=False),
    _simulation("remote-memory", quick=_files(20_000), minutes=3, plots=True),
    _simulation("chunk-size", ("--policy", "slot"), ("--policy", "pool"), quick=_files(10_000), minutes=4, plots=True),
    _script("convergence", 120),
    Section(
        "convergence-retained",
        "convergence_page.page_retained",
        (("scripts/bench/convergence.py", "--settings", "retained"),),
        minutes=45,
    ),
    _simulation("randomness", quick=_files(10_000, 100), minutes=2, plots=False),
    _simulation("related", quick=("--quick",), minutes=10, plots=True, page="related.page.page"),
    _script("loaders", 60),
    _script("retinanet", 20),
)
"""In the order of the page: the paper's experiments, then related systems, peers, and MLPerf Storage."""


def render(docs: Path, sections: Sequence[Section]) -> dict[Path, str]:
    """The pages by file, from the results in ``docs``/evaluation. Says on stderr what is left out.

    Raises:
        ProblemError: a result is damaged, or there is none.
    """
    pages: dict[Path, str] = {}
    holds, reasons, measured = ["| | |", "|---|---|"], [], []
    for section in sections:
        file = docs / "evaluation" / f"{section.name}.json"
        if not file.exists():
            print(f"{section.name}: left out, there is no {_shown(file)}", file=sys.stderr)
            continue
        result, module = _result(file), _module(section)
        function = section.page.rpartition(".")[2]
        text = _page(section, str(getattr(module, function)(result)), docs)
        pages[file.with_suffix(".md")] = text
        title = text.partition("\n")[0].removeprefix("# ")
        short = str(getattr(module, f"{function}_short")(result)).strip()
        holds.append(f"| [{title}](evaluation/{section.name}.md) | {short} |")
        if hasattr(module, "when_not"):
            reasons.append(str(module.when_not(result)).strip())
        measured.append((section, result))
    if not pages:
        raise ProblemError(f"there is no result in {_shown(docs / 'evaluation')}")
    when_not = " ".join([WHEN_NOT_FIRST, *filter(None, reasons), WHEN_NOT_LAST]).replace("\n", " ")
    parts = [INTRODUCTION, WHEN_NOT_TITLE, when_not, WHAT_HOLDS_TITLE, "\n".join(holds), _repeated(measured)]
    pages[docs / "evaluation.md"] = _written([TITLE, *parts])
    return pages


def _written(parts: Sequence[str]) -> str:
    return "\n".join(map(_wrapped, "\n\n".join(parts).splitlines())) + "\n"


def _wrapped(line: str) -> str:
    """A line of running text, or an item of a list, in lines of 120 characters; all else as it is."""
    if line.startswith(("|", "#", "!", " ", "*")):
        return line
    indent = "  " if line.startswith("- ") else ""
    # A line that began with "256." would be an item of a list.
    kept = re.sub(r" (?=\d+\. )", "\0", line)
    lines = textwrap.fill(kept, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _page(section: Section, text: str, docs: Path) -> str:
    """The page of a benchmark, with its figures."""
    text = text.strip()
    if not text.startswith("# "):
        raise ProblemError(f"{section.name}: its page begins with {text[:20]!r} and not with a title")
    title = text.partition("\n")[0].removeprefix("# ")
    figures = [
        f"![{title}]({figure.name})"
        for figure in sorted((docs / "evaluation").glob(f"{section.name}*.svg"))
        if f"]({figure.name})" not in text and _is_of(figure, section)
    ]
    return _written([text, *figures])


def _is_of(figure: Path, section: Section) -> bool:
    """NAME.svg or NAME-more.svg, where no other section has the longer name."""
    names = [each.name for each in SECTIONS if figure.stem == each.name or figure.stem.startswith(f"{each.name}-")]
    return max(names, key=len, default=None) == section.name


def _repeated(measured: Sequence[tuple[Section, Any]]) -> str:
    """A table of the commands that made the results, and of their machines."""
    lines = ["## How to repeat it", ""]
    lines += ["`scripts/evaluation --run` runs everything. Some benchmarks need root.", ""]
    lines += ["| result | command | minutes | on |", "|---|---|---|---|"]
    for section, result in measured:
        commands = ", ".join(f"`{' '.join(words)}`" for words in section.commands)
        lines.append(f"| {section.name} | {commands} | {section.minutes} | {_machine(result)} |")
    return "\n".join(lines)


def _machine(result: Any) -> str:
    on = result.get("machine") if isinstance(result, dict) else None
    if not on:
        return "any machine"
    gpu = f", {on['gpu']}" if on.get("gpu") else ""
    return f"{on['cores']} cores, {on['cpu']}{gpu}, Linux {on['kernel'].partition('-')[0]}"


def _result(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ProblemError(f"{_shown(file)} is damaged: {error}") from None


def _module(section: Section) -> ModuleType:
    name = section.page.rpartition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        raise ProblemError(f"{section.name}: there is no module {name} for its page") from None


def run(section: Section, folder: Path, *, quick: bool) -> None:
    """Run a benchmark. Its result replaces the one in ``folder`` when it is whole. Raises ProblemError."""
    with tempfile.TemporaryDirectory(prefix="redoxfs-evaluation-") as made:
        new = Path(made) / f"{section.name}.json"
        results = []
        for number, words in enumerate(section.commands):
            plot = ["--plot", str(new.with_suffix(".svg"))] if section.plots and number == 0 else []
            output = ["--json"] if section.is_simulation else ["--json", str(new)]
            more = [*(section.quick if quick else ()), *output, *plot]
            command = [sys.executable, *words, *more]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise ProblemError(f"{section.name}: {' '.join([*words, *more])} ended with {done.returncode}")
            if section.is_simulation:
                told = json.loads(done.stdout)
                given = {"command": " ".join([*words, *(section.quick if quick else ())])}
                results.append({**given, **(told if isinstance(told, dict) else {"rows": told})})
        if section.is_simulation:
            write(rounded(_joined(results)), new)
        for file in sorted(Path(made).iterdir()):
            (folder / file.name).write_bytes(file.read_bytes())


def _joined(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of several commands as one."""
    first = results[0]
    if len(results) == 1:
        return first
    rows = [row for result in results for row in result["rows"]]
    return {**first, "command": ", ".join(result["command"] for result in results), "rows": rows}


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _run_all(sections: Sequence[Section], docs: Path, *, quick: bool) -> Iterator[str]:
    """Run benchmarks one after the other, also after one has failed. Yields a line for each that has."""
    (docs / "evaluation").mkdir(parents=True, exist_ok=True)
    for section in sections:
        began = time.monotonic()
        try:
            run(section, docs / "evaluation", quick=quick)
        except ProblemError as problem:
            yield str(problem)
        print(f"{section.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "scripts/evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [section.name for section in SECTIONS]
    parser.add_argument("--run", action="store_true", help="run the benchmarks before the page is written")
    parser.add_argument("--quick", action="store_true", help="with --run: at a small size, to see that they work")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"with --run: of {', '.join(names)}, run these"
    )
    parser.add_argument("--dir", type=Path, help="write DIR/evaluation.md and DIR/evaluation/ (default: docs)")
    given = parser.parse_args(words)
    if not given.run and (given.quick or given.only):
        parser.error("--quick and --only say what to run, so they need --run")
    if given.quick and given.dir and given.dir.resolve() == ROOT / "docs":
        parser.error("--quick does not replace the results in docs/")
    return given


def main(words: Sequence[str] | None = None) -> int:
    given = _parsed(words)
    with tempfile.TemporaryDirectory(prefix="redoxfs-evaluation-") as removed:
        docs = given.dir.resolve() if given.dir else Path(removed) if given.quick else ROOT / "docs"
        sections = [section for section in SECTIONS if not given.only or section.name in given.only]
        problems = list(_run_all(sections, docs, quick=given.quick)) if given.run else []
        try:
            for file, text in render(docs, SECTIONS).items():
                file.write_text(text, encoding="utf-8")
        except ProblemError as problem:
            problems.append(str(problem))
    for line in problems:
        print(f"scripts/evaluation: {line}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
