"""The page of the evaluation is that of its results, and quick results never replace those that are quoted."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import completed

from redoxfs.report import Figures, recognized

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/evaluation.md"

BREAKDOWN = {
    "command": "scripts/research/simulate.py breakdown",
    "rows": [
        {
            "variant": "Redox",
            "loads": 126_126,
            "remote_requests": 41_041,
            "expected_loads": 126_252,
            "expected_remote_requests": 41_082,
            "paper_loads": 126_000,
            "paper_remote_requests": 41_000,
        }
    ],
}

FAKE_PAGE = """
def page(result):
    return f"# Of a fake\\n\\n{result['rows']} rows"

def page_short(result):
    return f"All {result['rows']} rows."

def when_not(result):
    return "A fake helps nobody."
"""

FAKE_BENCHMARK = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
out.write_text(json.dumps({"rows": 3 if "--quick" in sys.argv else 5}))
out.with_suffix(".svg").write_text("<svg/>")
sys.exit(pathlib.Path(sys.argv[0]).with_name("fails").exists())
"""


def evaluation(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/evaluation_page.py", *words]
    return completed(command)


def kept(folder: Path, name: str, result: Any) -> Path:
    """A result, where the page is made from."""
    file = folder / "evaluation" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(result if isinstance(result, str) else json.dumps(result))
    return file


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.md")
    shutil.copytree(ROOT / "docs/evaluation", tmp_path / "evaluation", ignore=ignored)
    done = evaluation("--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evaluation.md").read_text() == PAGE.read_text(), "out of date: run scripts/evaluation"
    for page in (ROOT / "docs/evaluation").glob("*.md"):
        assert (tmp_path / "evaluation" / page.name).read_text() == page.read_text(), (
            "out of date: run scripts/evaluation"
        )


def test_every_result_and_figure_is_on_a_page() -> None:
    files = list((ROOT / "docs/evaluation").iterdir())
    assert {file.suffix for file in files} <= {".json", ".md", ".svg"}
    assert max(file.stat().st_size for file in files if file.suffix == ".json") <= 64 << 10
    text = PAGE.read_text()
    shown = "".join(file.read_text() for file in files if file.suffix == ".md")
    for file in files:
        if file.suffix == ".svg":
            assert f"]({file.name})" in shown
        else:
            assert f"](evaluation/{file.stem}.md) | " in text
            assert f"\n| {file.stem} | " in text


def test_a_report_shows_every_result() -> None:
    for file in (ROOT / "docs/evaluation").glob("*.json"):
        assert isinstance(recognized(file.name, json.loads(file.read_text())), Figures), file.name


def test_numbers_are_those_of_the_result(tmp_path: Path) -> None:
    kept(tmp_path, "breakdown", BREAKDOWN)
    assert evaluation("--dir", tmp_path).returncode == 0
    text = (tmp_path / "evaluation/breakdown.md").read_text()
    assert "| Redox | 126,126 | 41,041 | 126,000 (+0.1 %) | 41,000 (+0.1 %) |" in text
    assert "values differs from the paper by 0.2 % and 0.2 %," in text.replace("\n", " ")


def test_a_small_simulation_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    kept(tmp_path, "breakdown", {**BREAKDOWN, "command": "scripts/research/simulate.py breakdown --files 20000"})
    assert evaluation("--dir", tmp_path).returncode == 0
    text = (tmp_path / "evaluation/breakdown.md").read_text()
    assert "| Redox | 126,126 | 41,041 |\n" in text
    assert "20,000 files" in text


def test_a_result_that_is_missing_is_left_out_with_a_line(tmp_path: Path) -> None:
    kept(tmp_path, "breakdown", BREAKDOWN)
    done = evaluation("--dir", tmp_path)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert f"retinanet: left out, there is no {tmp_path}/evaluation/retinanet.json" in lines
    assert not [line for line in lines if line.startswith("breakdown")]
    assert "MLPerf" not in (tmp_path / "evaluation.md").read_text()


def test_without_any_result_there_is_no_page(tmp_path: Path) -> None:
    done = evaluation("--dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"scripts/evaluation: there is no result in {tmp_path}/evaluation"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_result_is_one_line_and_keeps_the_page(tmp_path: Path) -> None:
    file = kept(tmp_path, "breakdown", '{"rows": ')
    (tmp_path / "evaluation.md").write_text("as it was")
    done = evaluation("--dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"scripts/evaluation: {file} is damaged")
    assert (tmp_path / "evaluation.md").read_text() == "as it was"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--quick",), "so they need --run"),
        (("--only", "retinanet"), "so they need --run"),
        (("--run", "--quick", "--dir", ROOT / "docs"), "--quick does not replace the results in docs/"),
        (("--run", "--only", "nothing"), "invalid choice: 'nothing'"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: tuple[str | Path, ...], line: str) -> None:
    done = evaluation(*words)
    assert done.returncode == 2
    assert line in done.stderr


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The evaluation with one benchmark: a fake that takes no time, or that fails."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(tmp_path))
    page = importlib.import_module("evaluation_page")
    (tmp_path / "fake_of_evaluation.py").write_text(FAKE_PAGE)
    bench = tmp_path / "bench.py"
    bench.write_text(FAKE_BENCHMARK)
    section = page.Section("fake", "fake_of_evaluation.page", ((str(bench),),), plots=False)
    monkeypatch.setattr(page, "SECTIONS", (section,))
    return page.main


def test_a_benchmark_makes_its_section(tmp_path: Path, fake: Callable[..., int]) -> None:
    assert fake(["--run", "--dir", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/evaluation/fake.md").read_text()
    assert page == "# Of a fake\n\n5 rows\n\n![Of a fake](fake.svg)\n"
    text = (tmp_path / "out/evaluation.md").read_text()
    assert "\n| [Of a fake](evaluation/fake.md) | All 5 rows. |\n" in text
    assert "without it. A fake helps nobody. redoxfs is also" in text.replace("\n", " ")


def test_a_benchmark_that_fails_keeps_its_older_result(
    tmp_path: Path, fake: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails").touch()
    kept(tmp_path, "fake", {"rows": 4})
    assert fake(["--run", "--dir", str(tmp_path)]) == 1
    assert "4 rows" in (tmp_path / "evaluation/fake.md").read_text()
    assert f"scripts/evaluation: fake: {tmp_path}/bench.py --json" in capfd.readouterr().err


def test_quick_results_are_not_kept(tmp_path: Path, fake: Callable[..., int]) -> None:
    before = sorted((ROOT / "docs/evaluation").iterdir()), PAGE.read_bytes()
    assert fake(["--run", "--quick"]) == 0
    assert (sorted((ROOT / "docs/evaluation").iterdir()), PAGE.read_bytes()) == before
    assert fake(["--run", "--quick", "--dir", str(tmp_path / "out")]) == 0
    assert "\n3 rows\n" in (tmp_path / "out/evaluation/fake.md").read_text()
