"""Every command of redoxfs in every document is one: the grammar takes it."""

import re
import shlex
from pathlib import Path

import pytest
from commands import NOT_RUN, PAGES, Shown, commands, inline
from t1_cli_documented import verbs_of

from redoxfs.cli.arguments import parse, parser
from redoxfs.launch.errors import UsageError

NUMBERS = {"N": "2", "I": "0", "SECONDS": "1", "SIZE": "1GiB", "DURATION": "1s", "LEVEL": "info", "PORT": "9470"}
"""Words that stand for a value of an option which is not a path."""


def refused(words: list[str]) -> str | None:
    """What the grammar says against a command."""
    words = [NUMBERS.get(word, word) for word in words]
    try:
        parse(words)
    except UsageError as error:
        return f"{' '.join(words)}: {error}"
    except SystemExit:
        # --help
        return None
    return None


SHOWN = [shown for page in PAGES for shown in commands(page)]


def test_the_documents_have_commands() -> None:
    assert len(SHOWN) > 40
    assert {shown.page for shown in SHOWN} >= {"README.md", "quick-start.md", "nodes.md", "cache.md"}
    assert any(shown.output for shown in SHOWN)
    # An option that there is not would be found.
    assert "unrecognized arguments: --memry" in (refused(["mount", "/a", "/b", "--memry", "1GiB"]) or "")


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{shown.page}:{shown.line}")
def test_the_grammar_takes_a_command_of_a_document(shown: Shown) -> None:
    assert refused(shown.words) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_grammar_takes_what_stands_in_running_text(page: Path) -> None:
    verbs = {words.split()[0] for words, _ in verbs_of(parser())}
    wrong = []
    for text in inline(page):
        _, verb, *words = shlex.split(text.replace("[", "").replace("]", ""))
        assert verb in verbs, text
        why = refused([verb, *words])
        # What is left out is not wrong: `redoxfs mount -o` is about the option.
        if why is not None and "are required" not in why and "expected one argument" not in why:
            wrong.append(why)
    assert wrong == []


def test_a_reason_not_to_run_a_command_names_one_that_is_there() -> None:
    unused = [part for part in NOT_RUN if not any(part in shown.text for shown in SHOWN)]
    texts = "\n".join(page.read_text() for page in PAGES)
    assert [part for part in unused if not re.search(re.escape(part), texts)] == []
