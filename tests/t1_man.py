"""The manual page that the wheel installs is that of the grammar."""

import subprocess
import sys
from pathlib import Path

from redoxfs.cli.exits import EXITS

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "redoxfs.1"
    with made.open("wb") as out:
        subprocess.run([sys.executable, ROOT / "scripts/man_page.py"], stdout=out, check=True)
    assert made.read_text() == (ROOT / "docs/redoxfs.1").read_text(), "out of date: run scripts/man"


def test_the_page_has_every_exit_code_and_is_valid_roff() -> None:
    lines = (ROOT / "docs/redoxfs.1").read_text().splitlines()
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"}
    codes = lines[lines.index(".SH EXIT STATUS") :]
    assert [line for line in codes if line.startswith("\\fB")] == [f"\\fB{each.code}\\fR" for each in EXITS]
