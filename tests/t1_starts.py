"""What a command imports before it does anything: nothing that it does not need."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redoxfs
from redoxfs.cli.arguments import _ADDED, _grammar, _verbs_of
from redoxfs.cli.program import _VERBS
from redoxfs.launch.errors import UsageError

ROOT = Path(__file__).parents[1]

HEAVY = {
    "asyncio",
    "email",
    "grpc",
    "http",
    "importlib.metadata",
    "multiprocessing",
    "numpy",
    "obstore",
    "platformdirs",
}
HEAVY |= {"prometheus_client", "pyfuse3", "rich", "ssl", "trio"}

AFTER = "import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"


def modules_after(code: str) -> set[str]:
    """What a new interpreter has imported when it has run ``code``."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", AFTER.format(code=code)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def heavy_after(code: str) -> set[str]:
    return modules_after(code) & HEAVY


@pytest.mark.parametrize(
    "words",
    [["--version"], ["status", "{}"], ["umount", "{}"], ["mount", "--job", "/", "{}"], ["top", "--interval", "no"]],
)
def test_a_short_command_imports_little(words: list[str], tmp_path: Path) -> None:
    argv = [word.format(tmp_path) for word in words]
    assert heavy_after(f"from redoxfs.cli import main; main({argv})") == set()


def test_the_version_is_that_of_the_package() -> None:
    assert redoxfs.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_each_verb_has_a_grammar() -> None:
    assert list(_ADDED) == list(_VERBS)


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "status /a",
        "status --version /a",
        "status /a --json --timeout 3",
        "status",
        "status --help",
        "status --tim 3 /a",
        "mount --help-all",
        "mount a b c",
        "mount -- -a",
        "mount a -- b",
        "-- mount a",
        "cluster",
        "cluster down -h",
        "cache rm /a b c",
        "mounts",
        "--version mount",
        "--versio",
        "",
    ],
)
def test_the_grammar_of_one_verb_reads_a_line_as_the_whole_grammar_does(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    seen = []
    for names in (_verbs_of(words), tuple(_ADDED)):
        try:
            result: object = _grammar(names).parse_args(words)
        except UsageError as error:
            result = str(error)
        except SystemExit as end:
            result = end.code
        seen.append((result, capsys.readouterr().out))
    assert seen[0] == seen[1]
