"""The grammar of `redoxfs state`."""

import argparse

from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.shared_arguments import add_timeout
from redoxfs.cli.values import whole_number
from redoxfs.launch.defaults import LONG_TIMEOUT_S

# As redoxfs.node.recent.TURNS, which a short command does not import.
MOST_LESS = 1 << 16


def add_state(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.states import StateLoadOptions, StateSaveOptions

    state = add_verb(verbs, "state", None, "save or load the progress of a mount's epochs")
    actions = state.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for name, makes, text in (
        ("save", StateSaveOptions, "write to FILE which samples were served in the current epoch"),
        ("load", StateLoadOptions, "return to the position in FILE; samples served since the save come again"),
    ):
        verb = add_verb(actions, name, makes, text)
        verb.add_argument("mountpoint", metavar="MOUNTPOINT")
        verb.add_argument("file", metavar="FILE", help="not below MOUNTPOINT")
        if name == "save":
            verb.add_argument(
                "--less",
                metavar="N",
                type=_less,
                help="take back the last N opens, which loaders may have made ahead of training",
            )
        add_timeout(verb, LONG_TIMEOUT_S)


def _less(text: str) -> int:
    try:
        return whole_number(text, 0, MOST_LESS)
    except argparse.ArgumentTypeError as refusal:
        raise argparse.ArgumentTypeError(f"{refusal}: a mount keeps the order of so many opens") from None
