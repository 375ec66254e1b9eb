"""The documentation site, as scripts/docs builds it: a warning is an error."""

import os
import sys
from pathlib import Path

import pytest
from patience import completed

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[1]


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    built = completed(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", "scripts/docs.yml", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    # The site has the layout of the repository.
    for page in ("index.html", "SEMANTICS.html", "docs/classes.html"):
        assert (tmp_path / page).is_file()
