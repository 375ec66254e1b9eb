"""The arguments of the verbs that show what mounts do, or did."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.shared_arguments import add_seconds, add_timeout


def add_stats(verbs: "Verbs[Parser]") -> None:
    """`redoxfs stats`."""
    from redoxfs.cli.options.watching import StatsOptions

    verb = add_verb(verbs, "stats", StatsOptions, "print a line every second with what a mount does")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    default = default_of(StatsOptions, "interval_s")
    add_seconds(verb, "--interval", "interval_s", f"time between two lines (default: {default:g})")
    verb.add_argument(
        "--count", metavar="N", type=values.lines, help="end after N lines (default: when the mount ends)"
    )
    verb.add_argument("--json", action="store_true", help="print each line as a JSON object")
    add_timeout(verb)


def add_top(verbs: "Verbs[Parser]") -> None:
    """`redoxfs top`."""
    from redoxfs.cli.options.watching import TopOptions

    verb = add_verb(verbs, "top", TopOptions, "show on one screen what mounts do, every second")
    verb.add_argument(
        "mountpoints",
        metavar="MOUNTPOINT",
        nargs="*",
        help="the mounts to show side by side (default: all mounts of this user)",
    )
    default = default_of(TopOptions, "interval_s")
    add_seconds(verb, "--interval", "interval_s", f"time between two updates (default: {default:g})")
    verb.add_argument("--count", metavar="N", type=values.lines, help="end after N updates (default: at q or Ctrl-C)")
    add_timeout(verb)


def add_report(verbs: "Verbs[Parser]") -> None:
    """`redoxfs report`."""
    from redoxfs.cli.options.examining import ReportOptions

    verb = add_verb(verbs, "report", ReportOptions, "write one HTML page about what mounts did")
    verb.add_argument(
        "inputs",
        metavar="MOUNTPOINT | FILE.json",
        nargs="+",
        help="a mount; or a history.json, or rows of figures in JSON",
    )
    verb.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the page, such as report.html; an older one is replaced"
    )
    add_timeout(verb, default_of(ReportOptions, "timeout_s"))


def add_metrics(verbs: "Verbs[Parser]") -> None:
    """`redoxfs metrics`."""
    from redoxfs.cli.options.watching import MetricsOptions

    text = "serve the metrics of this user's mounts, for Prometheus"
    verb = add_verb(verbs, "metrics", MetricsOptions, text)
    verb.add_argument(
        "--listen",
        metavar="ADDRESS",
        type=values.listen,
        help=f"HOST:PORT, or PORT for this machine alone (default: {default_of(MetricsOptions, 'listen')})",
    )
    _add_label(verb)


def add_metrics_of_mount(group: "argparse._ArgumentGroup", *, more: str = "") -> tuple[argparse.Action, ...]:
    """--metrics and --metrics-label."""
    metrics = group.add_argument(
        "--metrics",
        metavar="ADDRESS",
        type=values.listen,
        help=f"serve metrics for Prometheus at HOST:PORT, or at PORT for this machine alone{more}",
    )
    return metrics, _add_label(group)


def _add_label(to: "Parser | argparse._ArgumentGroup") -> argparse.Action:
    return to.add_argument(
        "--metrics-label",
        metavar="NAME=VALUE",
        action="append",
        help="a label of every metric; may be given several times",
    )
