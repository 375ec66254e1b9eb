"""The manual page that the build of a wheel makes has the grammar, and needs no other package."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redoxfs.cli.arguments import parser
from redoxfs.cli.exits import EXITS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    # Without installed packages, as where pip builds a wheel.
    command = (sys.executable, "-I", "-S", ROOT / "scripts/man_page.py")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def options(told: argparse.ArgumentParser) -> Iterator[str]:
    """Every option that a help text shows, of all verbs."""
    for action in told._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from options(verb)
        elif action.help is not argparse.SUPPRESS:
            yield from action.option_strings


def test_the_page_has_every_option_and_every_exit_code(lines: list[str]) -> None:
    text = "\n".join(lines).replace("\\-", "-")
    wanted = {*options(parser())} - {"-h", "--help"}
    assert len(wanted) > 50
    assert [option for option in wanted if f"\\fB{option}\\fR" not in text] == []
    codes = lines[lines.index(".SH EXIT STATUS") :]
    assert [line for line in codes if line.startswith("\\fB")] == [f"\\fB{each.code}\\fR" for each in EXITS]


def test_the_page_is_valid_roff(lines: list[str]) -> None:
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"}
