"""The arguments of `redoxfs report`."""

from redoxfs.cli.options.examining import ReportOptions
from redoxfs.cli.parser import Parser, Verbs, add_verb


def add_report(verbs: "Verbs[Parser]") -> Parser:
    """`redoxfs report`, but for --timeout."""
    text = "write one HTML page about what mounts did"
    verb = add_verb(verbs, "report", ReportOptions, text)
    verb.add_argument(
        "inputs",
        metavar="MOUNTPOINT | FILE.json",
        nargs="+",
        help="a mount; or a history.json, or rows of figures in JSON",
    )
    verb.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the page, such as report.html; an older one is replaced"
    )
    return verb
