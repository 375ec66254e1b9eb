"""A real browser shows the report of a real mount under load: without a network, at any width, in both themes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from images import make_images
from machine import Machine
from t7_prometheus import read_from_outside

playwright = pytest.importorskip("playwright.sync_api", reason="scripts/test-engines installs it")

CHROMIUM = shutil.which("chromium")

PHONE, DESKTOP = 360, 1200

LEAST_CONTRAST = 4.5
"""Of text: WCAG 2.1, level AA."""

# The text of each element that has some of its own, its color, and the color behind it.
TEXTS = """
() => {
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (color !== 'rgba(0, 0, 0, 0)') return color;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('main *')]
    .filter(each => !each.closest('svg') && [...each.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(each => [each.textContent.trim().slice(0, 40), getComputedStyle(each).color, behind(each)]);
}
"""

# What reaches beyond the window, but for what scrolls by itself.
WIDE = """
() => [...document.querySelectorAll('main *')]
  .filter(each => !each.closest('.scroll') && each.getBoundingClientRect().right > innerWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 80))
"""

SVG = """
() => [...document.querySelectorAll('svg')].map(each => {
  const box = each.getBoundingClientRect();
  return [each.getAttribute('role'), each.getAttribute('aria-label'), box.width, box.height];
})
"""

CELLS = """
title => {
  const figure = [...document.querySelectorAll('figure')].find(each => each.querySelector('h3').textContent === title);
  return [...figure.querySelectorAll('tbody tr')].map(row => [...row.children].map(cell => cell.textContent));
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; scripts/test-engines installs it")
    with playwright.sync_playwright() as engines:
        running = engines.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def shown(machine: Machine, tmp_path: Path) -> Iterator[tuple[Path, int, int]]:
    """A report of a mount and of a simulation; and the opens and bytes that readers of the mount counted."""
    source = tmp_path / "data <script>document.title='hostile'</script>"
    make_images(source, {"n00000001": 150, "n00000002": 150})
    machine.ok("mount", source, machine.mnt, "--classes", "dir", "--memory", "2MiB", "-o", "direct_io")
    files, size, _ = read_from_outside(machine.mnt)
    simulated = tmp_path / "simulated.json"
    table = "simulate", "policies", "--files", "1500", "--classes", "5", "--resident", "20%", "--json"
    with simulated.open("wb") as out:
        subprocess.run([sys.executable, "-m", "redoxfs", *table], stdout=out, check=True)
    page = tmp_path / "report.html"
    machine.ok("report", machine.mnt, simulated, "-o", page)
    yield page, files, size
    machine.ok("umount", machine.mnt)


def numbers(color: str) -> list[float]:
    return [float(each) for each in re.findall(r"[\d.]+", color)][:3]


def luminance(color: str) -> float:
    linear = [
        each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in map(_unit, numbers(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _unit(value: float) -> float:
    return value / 255


def contrast(one: str, two: str) -> float:
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_and_white_is_known() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)


def test_the_page_is_readable_in_both_themes_at_any_width(browser: Any, shown: tuple[Path, int, int]) -> None:
    papers = set()
    for theme in ("light", "dark"):
        for width in (PHONE, DESKTOP):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
            page = context.new_page()
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("request", lambda request, said=said: said.append(request.url))
            page.goto(shown[0].as_uri())
            # The page itself, and nothing else; the icon is in it.
            assert [each for each in said if not each.startswith("data:")] == [shown[0].as_uri()]
            assert page.title().startswith("redoxfs at ")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(WIDE) == []
            papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            texts = page.evaluate(TEXTS)
            assert len(texts) > 100
            assert [text for text, ink, paper in texts if contrast(ink, paper) < LEAST_CONTRAST] == []
            drawn = page.evaluate(SVG)
            assert len(drawn) >= 6
            for role, label, wide, high in drawn:
                assert role == "img"
                assert label
                assert wide > width / 2 if width == PHONE else wide > width / 4
                assert high > 100
            context.close()
    assert len(papers) == 2


def test_the_tables_have_what_outside_readers_counted(browser: Any, shown: tuple[Path, int, int]) -> None:
    page_path, files, size = shown
    context = browser.new_context(java_script_enabled=True)
    page = context.new_page()
    page.goto(page_path.as_uri())
    opens = page.evaluate(CELLS, "Opens a second")
    assert sum(int(row[1].replace(",", "")) for row in opens) == files
    by_outcome = page.evaluate(CELLS, "Where samples came from")
    assert sum(int(cell.replace(",", "")) for row in by_outcome for cell in row[1:]) == files
    in_ranges = page.evaluate(CELLS, "Opens by how long they took")
    assert sum(int(cell.replace(",", "")) for row in in_ranges for cell in row[1:]) == files
    story = " ".join(page.locator(".story").all_text_contents()).replace("\N{NO-BREAK SPACE}", " ")
    assert f"Programs opened {files:,} files" in story
    served = re.search(r"programs read \(([\d.]+) (KiB|MiB)\)", story)
    assert served is not None
    assert float(served[1]) * {"KiB": 1 << 10, "MiB": 1 << 20}[served[2]] == pytest.approx(size, rel=0.01)
    assert "Nothing failed." in story
    context.close()


def test_it_is_readable_without_javascript(browser: Any, shown: tuple[Path, int, int]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(shown[0].as_uri())
    assert page.title() != "hostile"
    page.locator("summary").first.click()
    assert page.locator("details[open] table").first.is_visible()
    assert page.locator("svg path.line").count() >= 4
    assert "<script>" in page.text_content(".facts")
    assert "loads per chunk" in page.text_content("main")
    context.close()
