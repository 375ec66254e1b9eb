"""A hook of mkdocs: gives the site the layout of the repository, so that every relative link works in both.

mkdocs collects the files below docs/ and drops that folder's name. This hook puts it back, and adds the pages at the
top of the repository (README.md becomes the first page).

Rejected: rewriting links while a page is rendered, which needs a rule for each kind of link; copies or symlinks of the
top pages in docs/, which the repository's page would show twice.
"""

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_root = Path(__file__).parent.parent
_log = logging.getLogger("mkdocs.hooks.docs_layout")

_code = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_item_as_text = re.compile(r"^ *(?:[-*+]|\d+\.) .*", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files found below docs/ by all pages and figures of the repository, and keep the theme's."""
    pages = sorted(
        [
            *_root.glob("*.md"),
            *(path for kind in ("md", "svg") for path in (_root / "docs").glob(f"**/*.{kind}")),
            _root / "LICENSE",
        ]
    )
    return Files(
        [
            *(file for file in files if not Path(file.abs_src_path).is_relative_to(_root / "docs")),
            *(
                File(str(page.relative_to(_root)), str(_root), config.site_dir, config.use_directory_urls)
                for page in pages
            ),
        ]
    )


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Warn of a list that the repository's page shows as a list and this site would show as running text.

    Python-Markdown starts a list, and continues one after an indented paragraph, only after an empty line.
    """
    for item in _item_as_text.findall(_code.sub("", html)):
        _log.warning("%s: a list item needs an empty line before it: %s", page.file.src_uri, item.strip()[:60])
    return html
