"""The scripts' setup replaces no venv that somebody else made."""

import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "scripts/setup"

STUB = """#!/bin/sh
# A Python that is new enough, and notes what it is asked for.
[ "$1" = -c ] || echo "$@" >>"$(dirname "$0")/asked"
"""


@pytest.mark.parametrize(
    ("whose", "elsewhere", "clears"), [("ours", "", True), ("theirs", "", False), ("", "", False), ("ours", "x", False)]
)
def test_a_venv_that_the_scripts_did_not_make_is_never_cleared(
    tmp_path: Path, whose: str, elsewhere: str, clears: bool
) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    definitions = SETUP.read_text().removesuffix("setup\n")
    assert definitions != SETUP.read_text()
    script = f'{definitions}\ninstall_venv "{python}" "{tmp_path}/venv" demo yes "{whose}"\n'
    environment = {"PATH": "/usr/bin:/bin", "REDOXFS_VENV": elsewhere}
    subprocess.run(["bash", "-euo", "pipefail", "-c", script, str(SETUP)], env=environment, check=True)
    asked = (python.parent / "asked").read_text()
    assert ("venv --clear" in asked) == clears
    assert "pip install" in asked


def test_only_a_venv_that_was_not_there_becomes_the_scripts_own() -> None:
    text = SETUP.read_text()
    before, _, after = text.partition("[[ -e $venv ]] || whose=ours\n")
    assert 'install_venv "$python"' in after
    assert "whose=ours" not in before + after
