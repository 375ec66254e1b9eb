"""The arguments of the verbs that show what mounts do while they do it."""

from redoxfs.cli import values
from redoxfs.cli.options import StatsOptions, default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb


def add_stats(verbs: "Verbs[Parser]") -> Parser:
    """`redoxfs stats`, but for --timeout."""
    verb = add_verb(verbs, "stats", StatsOptions, "print a line every second with what a mount does")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument(
        "--interval",
        dest="interval_s",
        metavar="SECONDS",
        type=values.seconds,
        help=f"time between two lines (default: {default_of(StatsOptions, 'interval_s'):g})",
    )
    verb.add_argument(
        "--count", metavar="N", type=values.lines, help="end after N lines (default: when the mount ends)"
    )
    verb.add_argument("--json", action="store_true", help="print each line as a JSON object")
    return verb
