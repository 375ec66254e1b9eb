"""The grammar of the command line: from argv to the frozen options of a verb, and from those of a mount to argv.

Options have no defaults here, but in the dataclasses that `parse` makes.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from redoxfs.cli import kept_arguments as kept
from redoxfs.cli import values
from redoxfs.cli.exits import table_text
from redoxfs.cli.open_arguments import add_profile, add_programs, add_slow_open
from redoxfs.cli.options.building import built, default_of, flat
from redoxfs.cli.parser import HelpAll, Parser, Verbs, add_verb
from redoxfs.cli.policy_arguments import add_layout, add_policy, add_sharing
from redoxfs.cli.shared_arguments import add_archives, add_files, add_jobs, add_json, add_seconds, add_timeout
from redoxfs.cli.simulate_arguments import add_simulate
from redoxfs.cli.telemetry_arguments import add_metrics, add_metrics_of_mount, add_report, add_stats, add_top
from redoxfs.launch.defaults import DEFAULT_PORT, LOG_FORMATS, LOG_LEVELS
from redoxfs.launch.errors import UsageError

if TYPE_CHECKING:
    from redoxfs.launch.options import MountOptions

_ADVANCED = "advanced"

# fmt: off
_NEVER_EMPTY = (
    "source", "mountpoint", "folder", "dst", "file", "path", "inputs", "output", "catalog", "cache", "classes",
    "samples", "fd_socket", "directory",
)
# fmt: on


class Command(NamedTuple):
    """A command line. ``verb`` and ``options`` are None where it has no verb."""

    verb: str | None
    options: Any
    version: bool


def parse(argv: Sequence[str] | None = None) -> Command:
    """A command line, by default that of this process. Raises UsageError; exits by itself after --help."""
    words = sys.argv[1:] if argv is None else list(argv)
    given = vars(_grammar(_verbs_of(words)).parse_args(words))
    if given["verb"] is None:
        return Command(None, None, "version" in given)
    for name in _NEVER_EMPTY:
        value = given.get(name)
        if "" in (value if isinstance(value, list) else [value]):
            # The empty path would be the working directory, and other empty values the default.
            raise UsageError(f"argument {name.replace('_', '-')}: is empty; is a variable of the shell unset?")
    return Command(given["verb"], built(given["makes"], given | {"given": frozenset(given)}), "version" in given)


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    return _grammar(tuple(VERBS))


def _verbs_of(words: Sequence[str]) -> tuple[str, ...]:
    """The verbs whose grammar a command line needs. Making all of them takes longer than most verbs do."""
    if words and words[0] in VERBS:
        return (words[0],)
    return () if words == ["--version"] else tuple(VERBS)


@cache
def _grammar(names: tuple[str, ...]) -> argparse.ArgumentParser:
    """The grammar of a command line with one of these verbs, or none."""
    top = _Top(prog="redoxfs", usage="%(prog)s VERB …", description=_DESCRIPTION, epilog=_EPILOG)
    top.add_argument("--help-all", action=HelpAll, help="also show the exit codes")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", prog="redoxfs", parser_class=Parser)
    for name in names:
        VERBS[name](verbs)
    return top


_DESCRIPTION = "A read-only FUSE filesystem that speeds up training on millions of small files."

_CONDITION = """\
Opening a file may return another file of its class; over an epoch, each comes
once. That is right for scripts that take the label from the directory."""

_EPILOG = """\
redoxfs VERB --help describes a verb, and redoxfs --help-all the exit codes.

  redoxfs doctor /data/set                   # would it help here?
  redoxfs inspect /data/set                  # what would be redirected, why?
  redoxfs pack /data/set /data/set-packed    # one file for thousands of samples
  redoxfs mount /data/set-packed /mnt/set    # the same tree, for the script"""


class _Top(Parser):
    """Its help has the verbs in groups, on one screen."""

    def format_help(self) -> str:
        (verbs,) = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        texts = {verb.dest: verb.help or "" for verb in verbs._choices_actions}
        lines = [self.format_usage().rstrip(), "", _DESCRIPTION, *_CONDITION.splitlines()]
        for title, names in _GROUPS.items():
            lines += ["", f"{title}:"]
            lines += [f"  {name:<15} {texts[name]}" for name in names if name in texts]
        return "\n".join([*lines, "", _EPILOG, ""])

    def format_all_help(self) -> str:
        return f"{self.format_help()}\n{table_text()}\n"


_MOUNT_EPILOG = """\
which --classes: auto first; dir if the directory is the label; FILE.csv if a
table has it; sampler if a file needs its own boxes, mask or caption; any only
if nothing belongs to one file. To see what each does: redoxfs inspect SOURCE
To end the mount: redoxfs umount MOUNTPOINT"""


def _add_mount(verbs: "Verbs[Parser]") -> None:
    from redoxfs.launch.options import MountOptions

    text = "serve SOURCE read-only at MOUNTPOINT, or over itself"
    usage = "%(prog)s [OPTIONS] SOURCE [MOUNTPOINT]"
    verb = add_verb(verbs, "mount", MountOptions, text, usage=usage, epilog=_MOUNT_EPILOG)
    _add_help_all(verb)
    _add_mount_arguments(verb)


def _add_serve(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.kubernetes import ServeOptions

    text = "serve SOURCE to a mount that another process made"
    verb = add_verb(verbs, "serve", ServeOptions, text, usage="%(prog)s [OPTIONS] --fd-socket PATH SOURCE")
    _add_help_all(verb)
    verb.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    verb.add_argument(
        "--fd-socket", metavar="PATH", required=True, help="the socket where redoxfs csi hands over the mount"
    )
    _add_served(verb)
    _add_memory(verb.add_argument_group("memory"))
    group = verb.add_argument_group("the mount")
    _add_progress(group)
    verb.advanced(*add_metrics_of_mount(group))
    _add_nodes_of_mount(verb)
    _add_advanced(verb)


def _add_csi(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.kubernetes import CsiOptions

    verb = add_verb(verbs, "csi", CsiOptions, "run the node plugin of Kubernetes, which mounts for serve")
    verb.add_argument("--endpoint", metavar="URL", required=True, help="where to listen, as unix:///csi/csi.sock")
    verb.add_argument("--node-id", metavar="NAME", required=True, help="the name of this node in Kubernetes")
    verb.add_argument(
        "--kubelet-dir",
        metavar="DIR",
        help=f"the kubelet's folder (default: {default_of(CsiOptions, 'kubelet_dir')})",
    )
    _add_logging(verb)


def _add_mount_arguments(verb: Parser) -> None:
    verb.add_argument("source", metavar="SOURCE", help="training files: a directory, tar files, or s3://…")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="where to serve it (default: over SOURCE)")
    _add_served(verb)
    _add_memory(verb.add_argument_group("memory"))
    group = verb.add_argument_group("the mount")
    _add_mount_settings(group, log="log of the daemon (default: below ~/.local/state/redoxfs)")
    _add_keeper(verb, group)
    verb.advanced(*add_metrics_of_mount(group))
    _add_nodes_of_mount(verb)
    _add_advanced(verb)


def _add_keeper(verb: Parser, group: "argparse._ArgumentGroup") -> None:
    # With two names it would widen the column of all options.
    verb.advanced(
        group.add_argument(
            "--keeper",
            action=argparse.BooleanOptionalAction,
            help="start another daemon when one dies (default: yes, but not with -f)",
        )
    )


def _add_nodes_of_mount(verb: Parser) -> None:
    group = verb.add_argument_group("several nodes")
    group.add_argument(
        "--nodes",
        metavar="LIST",
        help="host:port,…; or auto, under Slurm or torchrun; or dns:NAME[:PORT] with --node-count "
        f"(default port: {DEFAULT_PORT})",
    )
    group.add_argument(
        "--node-rank",
        metavar="I",
        type=values.rank,
        help="place of this node in LIST, from 0 (default: detected)",
    )
    verb.advanced(
        group.add_argument("--node-count", metavar="N", type=values.nodes, help="number of addresses of dns:NAME"),
        *_add_tls(group, cert="this node's certificate (PEM), for its host in --nodes"),
        group.add_argument(
            "--insecure", action="store_true", help="talk in plaintext over a network; all on it can read"
        ),
    )


def _add_mount_settings(group: "argparse._ArgumentGroup", *, log: str) -> None:
    group.add_argument("-f", "--foreground", action="store_true", help="stay in the foreground and log to stderr")
    group.add_argument("--log", metavar="FILE", help=log)
    _add_progress(group)
    group.add_argument(
        "-o",
        dest="fuse_options",
        metavar="OPTIONS",
        action="append",
        help="mount options: allow_other, direct_io, page_cache, …",
    )


def _add_progress(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--job",
        metavar="ID",
        type=values.job,
        help="the job it belongs to (default: $SLURM_JOB_ID)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue the epoch of the last mount; all nodes or none",
    )
    group.add_argument(
        "--state",
        metavar="FILE",
        help="progress for --resume; node I of several uses FILE.I (default: below ~/.local/state/redoxfs)",
    )


def _add_tls(group: "argparse._ArgumentGroup", *, cert: str) -> list[argparse.Action]:
    return [
        group.add_argument("--tls-cert", metavar="FILE", help=cert),
        group.add_argument("--tls-key", metavar="FILE", help="its private key, readable by its owner alone"),
        group.add_argument("--tls-ca", metavar="FILE", help="the CA that signed all nodes' certificates"),
    ]


def _add_advanced(verb: Parser) -> None:
    """The options of a mount that few people need."""
    group = verb.add_argument_group(_ADVANCED)
    verb.advanced(
        *add_layout(group),
        *add_policy(group),
        *add_sharing(group),
        *_add_logging(group),
        add_slow_open(group),
        *add_programs(group),
        group.add_argument(
            "--fuse-threads",
            metavar="N",
            type=values.threads,
            help="threads that answer kernel requests besides the main thread (default: 0 below 4 cores, "
            "else a quarter of them, at most 4)",
        ),
        add_timeout(group),
    )


def _add_logging(group: "argparse._ActionsContainer") -> list[argparse.Action]:
    return [
        group.add_argument("--log-format", choices=LOG_FORMATS, help="json: an object on each line (default: text)"),
        group.add_argument(
            "--log-level", choices=LOG_LEVELS, help="what is logged, from this level on (default: info)"
        ),
    ]


def _add_help_all(verb: Parser) -> None:
    verb.add_argument("--help-all", action=HelpAll, help="also show the advanced options")


def _add_install_helper(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.mounts import InstallHelperOptions

    text = "link the helper of mount(8), for /etc/fstab"
    verb = add_verb(verbs, "install-helper", InstallHelperOptions, text)
    default = default_of(InstallHelperOptions, "directory")
    verb.add_argument("--directory", metavar="DIR", help=f"where mount(8) looks (default: {default})")
    verb.add_argument("--undo", action="store_true", help="remove the link")


def _add_umount(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.mounts import UmountOptions

    text = "unmount, and wait until the daemon has ended"
    usage = "%(prog)s [OPTIONS] (MOUNTPOINT | --all [--job ID | --all-users])"
    verb = add_verb(verbs, "umount", UmountOptions, text, usage=usage)
    verb.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?")
    verb.add_argument("--all", action="store_true", help="every redoxfs mount of this user")
    verb.add_argument("--job", metavar="ID", type=values.job, help="the mounts of one job; as root, whoever mounted")
    verb.add_argument("--all-users", action="store_true", help="as root: the mounts of everybody")
    verb.add_argument("--lazy", action="store_true", help="detach now; programs that use the mount may finish")
    add_timeout(verb)


def _add_restart(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.mounts import RestartOptions

    text = "switch a mount that is in use to the installed version"
    verb = add_verb(verbs, "restart", RestartOptions, text)
    verb.add_argument("mountpoint", metavar="MOUNTPOINT", help="a mount that has a keeper")
    add_timeout(verb)


def _add_log_level(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.mounts import LogLevelOptions

    verb = add_verb(verbs, "log-level", LogLevelOptions, "show what a mount's daemon logs, or log more or less")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("level", metavar="LEVEL", nargs="?", help=f"{', '.join(LOG_LEVELS)}")
    add_timeout(verb)


def _add_status(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.watching import StatusOptions

    verb = add_verb(verbs, "status", StatusOptions, "show what a mount has done so far")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("--json", action="store_true", help="print .redoxfs/stats.json as it is")
    add_timeout(verb)


def _add_cluster(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.nodes import ClusterDownOptions, ClusterStatusOptions, ClusterUpOptions

    cluster = add_verb(verbs, "cluster", None, "run nodes on a Ray cluster, or several on this machine")
    actions = cluster.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    verb = add_verb(
        actions,
        "up",
        ClusterUpOptions,
        "mount SOURCE at DIR/0, DIR/1, …, each a node of its own; or at DIR on each node of a Ray cluster",
        usage="%(prog)s [OPTIONS] (--nodes N | --ray) SOURCE DIR",
    )
    _add_help_all(verb)
    verb.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    verb.add_argument("folder", metavar="DIR", help="where the nodes' mountpoints are made; with --ray, the mountpoint")
    kinds = verb.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--nodes", dest="count", metavar="N", type=values.nodes, help="number of nodes on this machine")
    kinds.add_argument(
        "--ray",
        action="store_true",
        help="mount on each node of the Ray cluster at RAY_ADDRESS (default: this machine's)",
    )
    verb.add_argument(
        "--resource", metavar="NAME", help="with --ray: only on nodes with this resource of Ray, such as GPU"
    )
    _add_served(verb)
    _add_memory(
        verb.add_argument_group("memory"), default=", for each node (default: a quarter of available, for all together)"
    )
    log = "logs of the daemons: FILE.I for node I (default: below ~/.local/state/redoxfs)"
    group = verb.add_argument_group("the mounts")
    _add_mount_settings(group, log=log)
    _add_keeper(verb, group)
    verb.advanced(*add_metrics_of_mount(group, more="; node I on this machine at PORT+I"))
    group = verb.add_argument_group("between the nodes")
    _add_tls(group, cert="the nodes' certificate (PEM), for 127.0.0.1; with --ray, for each node's address")
    group.add_argument(
        "--insecure", action="store_true", help="with --ray: talk in plaintext; all on the network can read"
    )
    _add_advanced(verb)
    verb = add_verb(actions, "status", ClusterStatusOptions, "show what the nodes have done so far, added up")
    verb.add_argument("folder", metavar="DIR")
    _add_ray(verb)
    verb.add_argument("--json", action="store_true", help="print each node's stats.json, and their sum")
    add_timeout(verb)
    verb = add_verb(
        actions, "down", ClusterDownOptions, "unmount all nodes, and remove the mountpoints on this machine"
    )
    verb.add_argument("folder", metavar="DIR")
    _add_ray(verb)
    verb.add_argument("--lazy", action="store_true", help="detach now; programs that use the mounts may finish")
    add_timeout(verb)


def _add_ray(verb: Parser) -> None:
    verb.add_argument("--ray", action="store_true", help="the nodes are those of cluster up --ray")


def _add_trace(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.nodes import TraceOptions

    verb = add_verb(verbs, "trace", TraceOptions, "tell a mount the order of this node's next epoch")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("file", metavar="FILE", help="a path on each line, absolute or below MOUNTPOINT; - for stdin")
    add_timeout(verb, default_of(TraceOptions, "timeout_s"))


def _add_nodes(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.nodes import NodesOptions

    verb = add_verb(verbs, "nodes", NodesOptions, "show which nodes share the dataset, or set a new list of them")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument(
        "--set",
        dest="new_list",
        metavar="LIST",
        help="host:port,host:port,…: the nodes from now on, this one included; run it for each of them",
    )
    add_json(verb)
    add_timeout(verb, default_of(NodesOptions, "timeout_s"))


def _add_inspect(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.examining import InspectOptions

    verb = add_verb(verbs, "inspect", InspectOptions, "show how mount would serve SOURCE, and why")
    verb.add_argument("source", metavar="SOURCE")
    verb.add_argument("--nodes", metavar="N", type=values.nodes, help="the memory of each of N nodes (default: 1)")
    verb.add_argument("--cache", metavar="DIR", help="as mount with --cache DIR would serve it; DIR is not touched")
    add_json(verb)
    add_files(verb)
    kept.add_catalog_option(verb)
    add_archives(verb)
    _add_memory(verb)
    add_layout(verb)
    add_policy(verb)
    add_timeout(verb)


def _add_doctor(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.examining import DoctorOptions

    text = "say whether redoxfs helps, what is wrong, and what mends it"
    verb = add_verb(verbs, "doctor", DoctorOptions, text, usage="%(prog)s [OPTIONS] [SOURCE | MOUNTPOINT]")
    verb.add_argument("path", metavar="PATH", nargs="?", help="SOURCE or MOUNTPOINT (default: only this machine)")
    verb.add_argument("--nodes", metavar="LIST", help="host:port,…: also try to reach these nodes")
    verb.add_argument("--left", action="store_true", help="list what redoxfs leaves here, and what removes it")
    default = default_of(DoctorOptions, "probe_s")
    add_seconds(
        verb, "--probe-seconds", "probe_s", f"time for reading from storage, to measure it (default: {default:g})"
    )
    add_json(verb)
    add_timeout(verb)


def _add_debug(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.examining import DebugOptions

    text = "collect what a bug report needs in an archive"
    verb = add_verb(verbs, "debug", DebugOptions, text)
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("-o", "--output", metavar="FILE", required=True, help="a new file, such as bundle.tar.gz")
    default = default_of(DebugOptions, "interval_s")
    add_seconds(verb, "--interval", "interval_s", f"time between two looks at the statistics (default: {default:g})")
    add_timeout(verb, default_of(DebugOptions, "timeout_s"))


def _add_pack(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.datasets import PackOptions

    verb = add_verb(verbs, "pack", PackOptions, "write SOURCE to DST as tar shards, read in whole chunks")
    verb.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    verb.add_argument("dst", metavar="DST", help="a new folder or address, or that of an interrupted pack")
    add_files(verb)
    add_layout(verb, default="64")
    verb.add_argument("--shard-size", metavar="SIZE", help="length at which a shard ends (default: 1GiB)")
    add_jobs(verb)
    add_timeout(verb)


def _add_verify(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.datasets import VerifyOptions

    verb = add_verb(verbs, "verify", VerifyOptions, "read a packed dataset and check every byte of it")
    verb.add_argument("source", metavar="DST", help="a folder or address that redoxfs pack wrote")
    add_json(verb)
    add_jobs(verb)
    add_timeout(verb)


_GROUPS: dict[str, dict[str, Callable[["Verbs[Parser]"], None]]] = {
    "look, prepare, serve": {
        "doctor": _add_doctor,
        "inspect": _add_inspect,
        "pack": _add_pack,
        "mount": _add_mount,
        "umount": _add_umount,
    },
    "watch": {
        "status": _add_status,
        "top": add_top,
        "stats": add_stats,
        "profile": add_profile,
        "report": add_report,
    },
    "progress and copies": {
        "state": kept.add_state,
        "cache": kept.add_cache,
        "warmup": kept.add_warmup,
        "catalog": kept.add_catalog,
        "verify": _add_verify,
    },
    "several nodes": {
        "cluster": _add_cluster,
        "nodes": _add_nodes,
        "trace": _add_trace,
        "simulate": add_simulate,
    },
    "mend": {
        "restart": _add_restart,
        "log-level": _add_log_level,
        "debug": _add_debug,
    },
    "for other programs": {
        "metrics": add_metrics,
        "install-helper": _add_install_helper,
        "serve": _add_serve,
        "csi": _add_csi,
    },
}
"""What adds each verb to the grammar, in the groups and in the order of `redoxfs --help`."""

VERBS = {name: add for verbs in _GROUPS.values() for name, add in verbs.items()}


# Options of several verbs


def _add_served(verb: Parser) -> None:
    group = verb.add_argument_group("what is served")
    add_files(group)
    verb.advanced(kept.add_catalog_option(group), *add_archives(group))
    verb.advanced(kept.add_cache_options(group))


def _add_memory(verb: "argparse._ActionsContainer", *, default: str = " (default: a quarter of available)") -> None:
    verb.add_argument("--memory", dest="memory_size", metavar="SIZE", help=f"4GiB, 512MiB or 10%%{default}")


# Options as attributes of a volume

# They are about the process, which is not the volume's.
_NOT_OF_A_VOLUME = {"help", "foreground", "log", "log_format", "log_level", "slow_open_s", "keeper"}


def mount_options() -> list[tuple[str, str, str]]:
    """The options of `redoxfs mount` that a volume of Kubernetes may have.

    Each has the name of its attribute, the option as it is typed, and how many values it takes: "none", "one", or
    "one a line".
    """
    found = []
    for action in mount_parser()._actions:
        if not action.option_strings or action.dest in _NOT_OF_A_VOLUME:
            continue
        option = action.option_strings[-1]
        name = "mount-options" if option == "-o" else option.removeprefix("--")
        values = "none" if action.nargs == 0 else "one a line" if isinstance(action, argparse._AppendAction) else "one"
        found.append((name, option, values))
    return found


# Back to a command line


def rendered(options: "MountOptions") -> list[str]:
    """The arguments of `redoxfs mount` that `parse` makes these options of: no more than differ from the defaults."""
    from redoxfs.launch.options import MountOptions

    given, defaults = flat(options), flat(MountOptions(source=""))
    words: list[str] = []
    for action in mount_parser()._actions:
        if not action.option_strings or action.dest not in given or given[action.dest] == defaults[action.dest]:
            continue
        name, value = action.option_strings[-1], given[action.dest]
        if isinstance(action, argparse.BooleanOptionalAction):
            words.append(action.option_strings[0 if value else -1])
            continue
        if action.nargs == 0:
            words.append(name)
            continue
        for each in value if isinstance(action, argparse._AppendAction) else (value,):
            words += _option(name, values.text_of(each))
    return [*words, "--", options.source, *([] if options.mountpoint is None else [options.mountpoint])]


@cache
def mount_parser() -> Parser:
    """The arguments of `redoxfs mount` alone."""
    verb = Parser(prog="redoxfs mount", add_help=False)
    _add_mount_arguments(verb)
    return verb


def _option(name: str, text: str) -> list[str]:
    """An option with its value, which may begin with a dash."""
    if name.startswith("--"):
        return [f"{name}={text}"]
    return [name + text] if text.startswith("-") else [name, text]
