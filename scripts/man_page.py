"""Prints redoxfs(1), the manual page, as roff. The build of a wheel runs it (scripts/build_native.py).

The page has each verb, argument and option with its help text, in the order of `redoxfs --help`. It is made here
and not by a library: their pages contain usage lines that argparse formats, which differ between versions of Python.

To read it from a clone: python scripts/man_page.py | man -l -
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

# The last part of a help text's epilog; here it is a section of its own.
EXITS_TITLE = "exit codes:"


def page(parser: argparse.ArgumentParser, exits: Iterable[tuple[int, str]], version: str, summary: str) -> str:
    """The whole page. ``exits`` are exit codes with their meanings; `apropos` finds ``summary``."""
    lines = [
        f'.TH {_quoted(parser.prog.upper())} 1 "" {_quoted(f"{parser.prog} {version}")} "User Commands"',
        *(".SH NAME", f"{_plain(parser.prog)} \\- {_plain(summary)}"),
        *(".SH SYNOPSIS", _usage(parser)),
        *(".SH DESCRIPTION", _plain(parser.description or summary), *_epilog(parser)),
        *(".SH OPTIONS", *_arguments(parser)),
        ".SH VERBS",
        *(line for verb, text in _verbs(parser) for line in _section(verb, text)),
        ".SH EXIT STATUS",
        *(line for code, meaning in exits for line in (".TP", f"\\fB{code}\\fR", _plain(meaning))),
    ]
    return "\n".join(lines) + "\n"


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every verb that takes arguments of its own, `cluster up` as well as `mount`, and its line of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, verb in action.choices.items():
                if any(isinstance(inner, argparse._SubParsersAction) for inner in verb._actions):
                    yield from _verbs(verb)
                else:
                    yield verb, texts.get(name, "")


def _section(verb: argparse.ArgumentParser, text: str) -> list[str]:
    return [f".SS {_usage(verb)}", _plain(verb.description or text), *_arguments(verb), *_epilog(verb)]


def _usage(parser: argparse.ArgumentParser) -> str:
    """One line: the options are listed below it."""
    words = [f"\\fB{_plain(parser.prog)}\\fR"]
    for action in parser._actions:
        if not action.option_strings:
            name = f"\\fI{_plain(_metavar(action))}\\fR"
            words.append(f"[{name}]" if action.nargs == "?" else name)
        elif action.required:
            words.append(_invocation(action))
    options = any(_shown(action) and not action.required for action in parser._actions if action.option_strings)
    if options:
        words.insert(1, "[\\fIoption\\fR ...]")
    if any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
        words.append("...")
    return " ".join(words)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if _shown(action)]
        if actions and group not in (parser._positionals, parser._optionals):
            yield from (".PP", f"\\fB{_plain(group.title or '')}\\fR")
            if group.description:
                yield from (".PP", _plain(group.description))
        for action in actions:
            yield from (".TP", _invocation(action), _help(action, parser.prog))


def _shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help is not argparse.SUPPRESS


def _invocation(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"\\fI{_plain(_metavar(action))}\\fR"
    names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in action.option_strings)
    return names if action.nargs == 0 else f"{names} \\fI{_plain(_metavar(action))}\\fR"


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.metavar is not None:
        return " ".join(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _help(action: argparse.Action, prog: str) -> str:
    return _plain((action.help or "") % (vars(action) | {"prog": prog}))


def _epilog(parser: argparse.ArgumentParser) -> Iterator[str]:
    text = (parser.epilog or "").partition(EXITS_TITLE)[0].strip("\n")
    if text:
        yield from (".PP", ".nf", *map(_plain, text.splitlines()), ".fi")


def _plain(text: str) -> str:
    """``text`` as roff that shows just that: ASCII hyphens, and no line that is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def _quoted(text: str) -> str:
    return '"' + _plain(text).replace('"', "\\(dq") + '"'


def main() -> None:
    # The clone that this script lies in, whatever else is installed.
    sys.path.insert(0, str(PROJECT.parent))
    from redoxfs.cli.arguments import parser
    from redoxfs.cli.exits import EXITS

    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    exits = [(each.code, each.meaning) for each in EXITS]
    summary = (parser().description or "").removeprefix("A ").rstrip(".")
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(page(parser(), exits, project["version"], summary))


if __name__ == "__main__":
    main()
