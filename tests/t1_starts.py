"""What a command imports before it does anything: nothing that it does not need."""

import ast
import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from t1_history import stats, written

import redoxfs
from redoxfs.cli.arguments import VERBS, _grammar, _verbs_of
from redoxfs.launch.errors import UsageError
from redoxfs.telemetry.history import History

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

AFTER = """
import sys
before = {{*sys.modules, *sys.builtin_module_names}}
{code}
after = sorted({{*sys.modules}} - before)
import json
print(json.dumps(after))
"""


def modules_after(code: str) -> set[str]:
    """What a new interpreter imports, beyond what its start does, to run ``code``."""
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


def test_the_version_is_told_without_what_only_verbs_need() -> None:
    modules = modules_after("from redoxfs.cli import main; main(['--version'])")
    assert modules & {"dataclasses", "inspect", "pathlib", "socket", "traceback"} == set()


def test_the_status_of_a_mount_is_told_without_numpy(tmp_path: Path) -> None:
    history = History()
    for opens in (0, 100):
        history.add(stats(opens, waits=opens), float(opens))
    text = tmp_path / "history.json"
    text.write_text(json.dumps(written(history, 200.0, stats(200, waits=200))))
    code = "import redoxfs.cli.status; from redoxfs.doctor.histories import verdict_of; "
    code += f"print(verdict_of(open({str(text)!r}, 'rb').read()).line)"
    modules = modules_after(code)
    assert "redoxfs.doctor.verdict" in modules
    assert modules & HEAVY == set()


def test_nothing_is_imported_before_ctrl_c_is_one_line() -> None:
    assert modules_after("import redoxfs.cli") == {"redoxfs", "redoxfs.cli"}


def test_the_version_is_that_of_the_package() -> None:
    assert redoxfs.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_each_verb_is_a_module() -> None:
    for verb in VERBS:
        assert "\ndef run(options" in (ROOT / "redoxfs/cli" / f"{verb.replace('-', '_')}.py").read_text(), verb


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
    for names in (_verbs_of(words), tuple(VERBS)):
        try:
            result: object = _grammar(names).parse_args(words)
        except UsageError as error:
            result = str(error)
        except SystemExit as end:
            result = end.code
        seen.append((result, capsys.readouterr().out))
    assert seen[0] == seen[1]


# What is imported when it is asked for (`redoxfs.late`)

LATE = sorted(path.parent for path in (ROOT / "redoxfs").rglob("__init__.py") if "names_of(" in path.read_text())


def names_for_types(source: ast.Module) -> dict[str, set[str]]:
    """By module, the names that a room's `__init__` imports for type checkers."""
    block = next(node for node in source.body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {(node.module or "").rpartition(".")[2]: {alias.name for alias in node.names} for node in found}


def names_at_run_time(source: ast.Module) -> dict[str, set[str]]:
    """By module, the names that it passes to `names_of`."""
    block = next(node for node in source.body if isinstance(node, ast.If))
    call = next(node for node in ast.walk(block.orelse[0]) if isinstance(node, ast.Call))
    return {str(word.arg): set(ast.literal_eval(word.value).split()) for word in call.keywords}


@pytest.mark.parametrize("room", LATE, ids=lambda room: room.name)
def test_a_room_has_the_same_names_at_run_time_as_for_type_checkers(room: Path) -> None:
    source = ast.parse((room / "__init__.py").read_text())
    modules = {path.stem for path in room.glob("*.py")}
    at_run_time, for_types = names_at_run_time(source), names_for_types(source)
    for_types.pop(room.name, None)  # modules of the room, which need no `__getattr__`
    assert at_run_time == for_types
    assert modules.isdisjoint(set().union(*at_run_time.values()))
    imported = importlib.import_module(f"redoxfs.{room.name}")
    assert all(hasattr(imported, name) for name in imported.__all__)
    assert not hasattr(imported, "no_such_name")


# Of numpy, these ask whether an array is masked, and import numpy.ma for that (`redoxfs.arrays`).
ASKING = {"in1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique_values"}
WITHOUT_ASKING = {"unique": "return_", "intersect1d": "assume_unique"}
OF_A_DAEMON = ("cache", "chunks", "dataset", "fs", "node", "peers", "protocol", "telemetry")


def test_a_daemon_calls_nothing_of_numpy_that_imports_more_of_it() -> None:
    sources = [path for room in OF_A_DAEMON for path in (ROOT / "redoxfs" / room).rglob("*.py")]
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    of_numpy = [(call.func.attr, call) for call in calls if isinstance(call.func, ast.Attribute)]
    assert len(of_numpy) > 1000
    for name, call in of_numpy:
        assert name not in ASKING, ast.unparse(call)
        if name in WITHOUT_ASKING:
            given = [word.arg or "" for word in call.keywords]
            assert any(word.startswith(WITHOUT_ASKING[name]) for word in given), ast.unparse(call)
