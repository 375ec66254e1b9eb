"""The manual page that the wheel installs is that of the grammar."""

import subprocess
import sys
from pathlib import Path

from redoxfs.cli.arguments import parser

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "redoxfs.1"
    with made.open("wb") as out:
        subprocess.run([sys.executable, ROOT / "scripts/man_page.py"], stdout=out, check=True)
    assert made.read_text() == (ROOT / "docs/redoxfs.1").read_text(), "out of date: run scripts/man"


def test_the_page_has_each_exit_code_and_no_line_that_roff_would_take_for_a_request() -> None:
    lines = (ROOT / "docs/redoxfs.1").read_text().splitlines()
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP"}
    status = lines[lines.index(".SH EXIT STATUS") :]
    codes = [line.split()[0] for line in (parser().epilog or "").splitlines()[1:]]
    assert [line for line in status if line.startswith("\\fB")] == [f"\\fB{code}\\fR" for code in codes]
