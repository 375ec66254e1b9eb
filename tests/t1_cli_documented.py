"""docs/options.md against the grammar: a page of options that lacks one, or has one too many, misleads."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from redoxfs.cli.arguments import parser
from redoxfs.cli.exits import EXITS

PAGE = (Path(__file__).parents[1] / "docs" / "options.md").read_text()


def verbs_of(grammar: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every verb that takes arguments of its own, with its words: `cluster up` as well as `mount`."""
    for action in grammar._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                inner = list(verbs_of(verb))
                yield from ((f"{name} {words}", of) for words, of in inner) if inner else [(name, verb)]


def options_of(*verbs: argparse.ArgumentParser) -> set[str]:
    return {
        option
        for verb in verbs
        for action in verb._actions
        for option in action.option_strings
        if option.startswith("--") and action.help is not argparse.SUPPRESS
    } - {"--help"}


def in_code(text: str) -> str:
    return " ".join(re.findall(r"`([^`]*)`", text))


def test_the_page_has_every_command() -> None:
    commands = in_code(PAGE.partition("## Commands")[2].partition("\n## ")[0])
    for words, _ in verbs_of(parser()):
        assert (words if not words.startswith("simulate") else "simulate") in commands


def test_the_page_has_every_option_and_no_other() -> None:
    verbs = dict(verbs_of(parser()))
    told = set(re.findall(r"--[a-z][a-z-]*", in_code(PAGE))) - {"--help"}
    assert options_of(*(verb for words, verb in verbs.items() if not words.startswith("simulate"))) <= told
    assert told <= options_of(*verbs.values())


def test_the_page_says_how_long_each_verb_waits_for_an_answer() -> None:
    """Which verbs have --timeout, and with what default."""
    told = PAGE.partition("All but ")[2].partition("\n\n")[0]
    without, _, defaults = told.partition(" take `--timeout SECONDS`")
    helps = {
        words: action.help or ""
        for words, verb in verbs_of(parser())
        for action in verb._actions
        if action.dest == "timeout_s"
    }
    others = [words for words, _ in verbs_of(parser()) if words not in helps]
    named = re.findall(r"`([^`]*)`", without)
    assert all(any(f"{words} ".startswith(f"{name} ") for name in named) for words in others)
    assert not any(f"{words} ".startswith(f"{name} ") for name in named for words in helps)
    waits = {words: int(re.findall(r"\(default: (\d+)\)", text)[0]) for words, text in helps.items()}
    usual = int(re.findall(r"after (\d+), except", defaults)[0])
    exceptions = {words: int(seconds) for words, seconds in re.findall(r"`([a-z ]+)` \((\d+)\)", defaults)}
    assert {words: wait for words, wait in waits.items() if wait != usual} == exceptions


def test_the_page_has_every_exit_code() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE.partition("## Exit codes")[2], re.MULTILINE)
    assert [int(code) for code in codes] == [row.code for row in EXITS]
