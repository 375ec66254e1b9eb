"""Arguments that several verbs have."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.parser import Once, Parser
from redoxfs.launch.defaults import ARCHIVE_LAYOUTS, DEFAULT_TIMEOUT_S


def add_seconds(verb: "argparse._ActionsContainer", option: str, name: str, text: str) -> argparse.Action:
    """A time, for the field ``name`` of a verb's options."""
    return verb.add_argument(option, dest=name, metavar="SECONDS", type=values.seconds, help=text)


def add_timeout(verb: "argparse._ActionsContainer", default: float = DEFAULT_TIMEOUT_S) -> argparse.Action:
    text = f"give up when storage or the daemon does not answer for SECONDS (default: {default:g})"
    return add_seconds(verb, "--timeout", "timeout_s", text)


def add_json(verb: Parser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON")


def add_jobs(verb: Parser) -> None:
    verb.add_argument("--jobs", metavar="N", type=values.jobs, help="number of processes (default: one for each core)")


def add_files(verb: "argparse._ActionsContainer") -> None:
    """Which files are samples, and which may replace each other."""
    verb.add_argument(
        "--classes",
        metavar="HOW",
        help="which samples may replace each other: auto, dir, any, sampler, none, FILE.csv,"
        " member:cls (default: auto)",
    )
    verb.add_argument(
        "--samples",
        metavar="GLOB",
        action="append",
        help="paths of samples, may be repeated (default: by extension)",
    )
    verb.add_argument(
        "--groups",
        metavar="HOW",
        action=Once,
        help="files of a sample: stem, wds, a/{key}.jpg,b/{key}.png",
    )


def add_archives(verb: "argparse._ActionsContainer") -> list[argparse.Action]:
    return [
        verb.add_argument(
            "--archives",
            metavar="HOW",
            choices=ARCHIVE_LAYOUTS,
            help="tar archives: auto, tree, folders, or none, as the files that they are (default: auto)",
        ),
        verb.add_argument(
            "--salvage", action="store_true", help="serve damaged and truncated archives as far as they can be read"
        ),
    ]
