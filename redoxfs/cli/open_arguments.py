"""The arguments about single opens: of `redoxfs profile`; --slow-open, --exact-for and --redirect-for of a mount."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.shared_arguments import add_seconds, add_timeout


def add_profile(verbs: "Verbs[Parser]") -> None:
    """`redoxfs profile`."""
    from redoxfs.cli.options.watching import ProfileOptions

    text = "show what the time of opens goes to, by outcome and directory"
    verb = add_verb(verbs, "profile", ProfileOptions, text, usage="%(prog)s [OPTIONS] (MOUNTPOINT | LOGFILE)")
    verb.add_argument("path", metavar="PATH", help="a mount; or a copy of its .redoxfs/accesslog, with - for stdin")
    add_seconds(verb, "--seconds", "seconds_s", "end after SECONDS (default: Ctrl-C, or the end of the mount)")
    default = default_of(ProfileOptions, "interval_s")
    text = f"on a terminal, show what there is so far every SECONDS (default: {default:g})"
    add_seconds(verb, "--interval", "interval_s", text)
    verb.add_argument(
        "--depth",
        metavar="N",
        type=values.depth,
        help=f"tell directories apart by their first N names (default: {default_of(ProfileOptions, 'depth')})",
    )
    verb.add_argument(
        "--limit",
        metavar="N",
        type=values.lines,
        help=f"show the N directories with the most time (default: {default_of(ProfileOptions, 'limit')})",
    )
    verb.add_argument("--json", action="store_true", help="print JSON, with all directories")
    add_timeout(verb)


def add_slow_open(group: "argparse._ActionsContainer") -> argparse.Action:
    """--slow-open."""
    from redoxfs.launch.options import MountOptions
    from redoxfs.launch.sizes import format_time

    default = format_time(default_of(MountOptions, "slow_open_s")).replace(" ", "")
    return group.add_argument(
        "--slow-open",
        dest="slow_open_s",
        metavar="DURATION",
        type=values.duration,
        help=f"log opens that take as long, as 500ms or 2m; 0: none (default: {default})",
    )


def add_programs(group: "argparse._ActionsContainer") -> list[argparse.Action]:
    """--exact-for and --redirect-for."""
    return [
        group.add_argument(
            "--exact-for",
            metavar="NAME,…",
            type=values.programs,
            help="more programs that get exact files, as cp, tar and rsync do",
        ),
        group.add_argument(
            "--redirect-for",
            metavar="NAME,…",
            type=values.programs,
            help="programs that get samples like the job, although they copy or search; all: every one",
        ),
    ]
