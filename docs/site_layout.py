"""A hook of mkdocs: gives the site the layout of the repository, so that every relative link works in both.

mkdocs collects the files below docs/ and drops that folder's name. This hook puts it back, and adds the pages at the
top of the repository (README.md becomes the first page).

Rejected: rewriting links while a page is rendered, which needs a rule for each kind of link; copies or symlinks of the
top pages in docs/, which the repository's page would show twice.
"""

import logging
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

_root = Path(__file__).parent.parent
_log = logging.getLogger("mkdocs.hooks.site_layout")

_list_item = re.compile(r" *(?:[-*+]|\d+\.) ")
_fence = re.compile(r" *(?:```|~~~)")


def on_files(files, config):
    """Replace the pages found below docs/ by all pages of the repository, under their paths in it; keep the theme's."""
    pages = sorted([*_root.glob("*.md"), *(_root / "docs").glob("**/*.md"), _root / "LICENSE"])
    return Files(
        [
            *(file for file in files if not Path(file.abs_src_path).is_relative_to(_root / "docs")),
            *(
                File(str(page.relative_to(_root)), str(_root), config.site_dir, config.use_directory_urls)
                for page in pages
            ),
        ]
    )


def on_page_markdown(markdown, page, **_):
    """Warn of a list that the repository's page shows as one and this site would not.

    Python-Markdown wants an empty line before a list that follows a paragraph; CommonMark does not.
    """
    before, in_list, fenced = "", False, False
    for number, line in enumerate(markdown.splitlines(), 1):
        if _fence.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            if _list_item.match(line):
                if before and not in_list:
                    _log.warning("%s: line %d: a list needs an empty line before it", page.file.src_uri, number)
                in_list = True
            elif line and not line.startswith(" ") and not before:
                in_list = False
        before = line.strip()
    return markdown
