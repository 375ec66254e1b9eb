"""The arguments of the verbs that show what mounts do while they do it."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb


def add_stats(verbs: "Verbs[Parser]") -> Parser:
    """`redoxfs stats`, but for --timeout."""
    from redoxfs.cli.options.watching import StatsOptions

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


def add_top(verbs: "Verbs[Parser]") -> Parser:
    """`redoxfs top`, but for --timeout."""
    from redoxfs.cli.options.watching import TopOptions

    verb = add_verb(verbs, "top", TopOptions, "show on one screen what mounts do, every second")
    verb.add_argument(
        "mountpoints",
        metavar="MOUNTPOINT",
        nargs="*",
        help="the mounts to show side by side (default: all mounts of this user)",
    )
    verb.add_argument(
        "--interval",
        dest="interval_s",
        metavar="SECONDS",
        type=values.seconds,
        help=f"time between two updates (default: {default_of(TopOptions, 'interval_s'):g})",
    )
    verb.add_argument("--count", metavar="N", type=values.lines, help="end after N updates (default: at q or Ctrl-C)")
    return verb


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
