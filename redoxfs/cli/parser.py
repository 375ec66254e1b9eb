"""argparse, with four changes and two forms of help.

A mistake raises UsageError, so that it ends in one line and in our own table of exit codes like every other error. An
option cannot be shortened: `--mem` would stop working on the day when another option begins like that. Options may
stand between SOURCE and an optional MOUNTPOINT, where argparse of Python 3.11 has already decided that there is no
MOUNTPOINT. `--classes=--` has the value `--`, which argparse of Python 3.11 takes for the end of the options. And
--help hides the options that few people need, which --help-all shows.
"""

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from redoxfs.launch.errors import UsageError

_ANY_WIDTH = 80


class Parser(argparse.ArgumentParser):
    """``--help`` leaves out groups that are advanced; ``--help-all``, which such a parser has, shows them."""

    _is_shown = False

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **keywords)
        self._advanced: list[argparse.Action] = []

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in argparse, but an argument that is not known is an error of this verb."""
        found, extra = super().parse_known_args(args, namespace)
        for action in self._get_positional_actions():
            if action.nargs == "?" and not hasattr(found, action.dest):
                match extra:
                    case ["--", value, *rest]:
                        setattr(found, action.dest, value)
                        extra = rest
                    case [value, *rest] if not value.startswith("-"):
                        setattr(found, action.dest, value)
                        extra = rest
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, extra

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def advanced(self, *actions: argparse.Action) -> None:
        """Keep these out of --help."""
        self._advanced += actions

    def format_help(self) -> str:
        with self._hidden():
            return self.format_all_help()

    def print_help(self, file: Any = None) -> None:
        """As in argparse, which ignores that nobody reads it."""
        print(self.format_help(), end="", file=file)

    def format_all_help(self) -> str:
        self._is_shown = True
        try:
            return super().format_help()
        finally:
            self._is_shown = False

    def _get_formatter(self) -> argparse.HelpFormatter:
        # argparse makes one for each argument, too. Only a text needs the width of the terminal.
        return _Formatter(self.prog, None if self._is_shown else _ANY_WIDTH)

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        texts = [action.help for action in self._advanced]
        for action in self._advanced:
            action.help = argparse.SUPPRESS
        try:
            yield
        finally:
            for action, text in zip(self._advanced, texts, strict=True):
                action.help = text


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A help text starts beside all but the longest options, so that most take one line."""

    def __init__(self, prog: str, width: int | None) -> None:
        super().__init__(prog, max_help_position=27, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Option names and templates contain hyphens, and stay whole.
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_all_help(), end="")
        parser.exit()


class Once(argparse.Action):
    """An option that may look as if it could be repeated. A second value would replace the first in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} is given twice: write all templates in one, with commas between them")
        setattr(namespace, self.dest, values)


Verbs = argparse._SubParsersAction  # its type argument exists for type checkers alone


def add_verb(verbs: "Verbs[Parser]", name: str, makes: type | None, text: str, **keywords: Any) -> Parser:
    """A verb, or an action of one, that makes options of type ``makes``; ``text`` is its help and its description."""
    verb: Parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", **keywords)
    if makes is not None:
        verb.set_defaults(makes=makes)
    return verb
