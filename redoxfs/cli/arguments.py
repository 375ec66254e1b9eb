"""The grammar of the command line; argparse, with two changes.

A mistake leaves as UsageError, so that it ends in one line and in our own table of exit codes like every
other error. And an option cannot be shortened: `--mem` would stop working on the day when another option
begins like that.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from redoxfs.cli.exits import table_text
from redoxfs.launch.addresses import DEFAULT_PORT, MOST_NODES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.members import DEFAULT_PREFETCH_WINDOW
from redoxfs.launch.sizes import parse_size

# Storage that is merely slow answers within seconds, even a parallel filesystem under load; one that is gone
# never does. A minute tells one from the other.
DEFAULT_TIMEOUT_S = 60.0

POLICIES = ("pool", "slot")

# ImageNet-1k, as in the paper's tables, and in round numbers.
PAPER_FILES = 1_281_167
SIMULATED_FILES = 1_280_000

# With the bandwidth of the paper's smaller cluster, 0.38 GB/s, the seek time at which its best chunk size is the best.
SEEK_TIME_S = 0.02

# All nodes of a job start at once, but some have to wait for an image to be pulled or a disk to be mounted.
DEFAULT_JOIN_TIMEOUT_S = 300.0

# A peer answers in milliseconds unless its storage is slow; one that takes this long is better passed over.
DEFAULT_PEER_TIMEOUT_S = 10.0

_RESOLUTION = {
    "--classes": "auto, dir, any, none or FILE.csv: which samples may stand in for each other",
    "--samples": "a glob on paths below SOURCE: what is a sample; may be repeated (default: by extension)",
    "--groups": "stem, or a template such as images/{key}.jpg,masks/{key}.png: files that are one sample",
}


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """The sampler of the training, as --sampler names it.

    ``ranks`` are the processes that share the epoch (None: one for each node), ``tree`` the class tree that is read
    (None: the one with the most samples).
    """

    kind: str
    seed: int
    ranks: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    persistent_workers: bool = False
    tree: str | None = None


class _Parser(argparse.ArgumentParser):
    def __init__(self, **keywords: object) -> None:
        super().__init__(allow_abbrev=False, **keywords)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try: {self.prog} --help)")


class _PassingOn(_Parser):
    """Leaves in `passed_on` the options as they were typed, but for those in ``own``, and no positional arguments."""

    own: frozenset[str] = frozenset()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        told, unknown = super().parse_known_args(args, namespace)
        told.passed_on = _options_of(args, self._option_string_actions, self.own)
        return told, unknown


def _options_of(tokens: Sequence[str], actions: Mapping[str, argparse.Action], own: frozenset[str]) -> list[str]:
    """The options among ``tokens``, which argparse has taken already, each with its value."""
    kept: list[str] = []
    rest = iter(tokens)
    for token in rest:
        if token == "--":
            break
        if token == "-" or not token.startswith("-"):
            continue
        name, value_is_within = token.partition("=")[0], "=" in token
        if not token.startswith("--"):
            # -f, -o VALUE, -oVALUE, -fo VALUE: the first letter that takes a value ends the letters.
            letters = [f"-{letter}" for letter in token[1:]]
            takes = [name in actions and actions[name].nargs != 0 for name in letters]
            end = takes.index(True) if True in takes else len(letters) - 1
            name, value_is_within = letters[end], end + 1 < len(letters)
        if name not in actions:
            continue  # a number below zero is no option to argparse either
        words = [token] if value_is_within or actions[name].nargs == 0 else [token, next(rest)]
        if name not in own:
            kept += words
    return kept


def parser() -> argparse.ArgumentParser:
    """The whole grammar. The namespace has `verb` and what that verb takes."""
    top = _Parser(
        prog="redoxfs",
        description="Lets unmodified training scripts read millions of small files in whole chunks.",
        epilog=table_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    _add_mount(verbs)
    _add_umount(verbs)
    _add_status(verbs)
    _add_cluster(verbs)
    _add_trace(verbs)
    _add_state(verbs)
    _add_view(verbs)
    _add_inspect(verbs)
    _add_pack(verbs)
    _add_verify(verbs)
    _add_simulate(verbs)
    return top


def _add_mount(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("mount", help="serve SOURCE at MOUNTPOINT, or over itself", epilog=table_text())
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="where to serve it (default: over SOURCE)")
    _add_several_nodes(verb)
    _add_serving(verb)


def _add_serving(verb: argparse.ArgumentParser) -> None:
    """What is told of one mount, besides where it is and who else there is."""
    _add_plan(verb)
    _add_timeout(verb)
    verb.add_argument("-f", "--foreground", action="store_true", help="stay in the foreground and log to stderr")
    verb.add_argument("--log", metavar="FILE", help="where the daemon logs (default: below ~/.local/state/redoxfs)")
    verb.add_argument(
        "--resume",
        action="store_true",
        help="go on where the last mount there was, in the middle of an epoch; several nodes all of them, or none "
        "(default: all laps begin anew)",
    )
    verb.add_argument(
        "--state",
        metavar="FILE",
        help="where it is kept how far the laps are, for --resume; of several nodes node I keeps FILE.I "
        "(default: below ~/.local/state/redoxfs)",
    )
    verb.add_argument(
        "-o",
        dest="mount_options",
        metavar="OPTIONS",
        action="append",
        default=[],
        help="mount options: allow_other, direct_io, noexec, …; separated by commas, may be repeated",
    )


def _add_umount(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("umount", help="end a mount and wait until its daemon has ended")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("--lazy", action="store_true", help="take it out of the tree now; those who use it may finish")
    _add_timeout(verb)


def _add_status(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("status", help="what a mount has done so far")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("--json", action="store_true", help="print .redoxfs/stats.json as it is")
    _add_timeout(verb)


def _add_cluster(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("cluster", help="several nodes on this machine, to try them out")
    whats = verb.add_subparsers(dest="what", metavar="WHAT", title="what to do", required=True, parser_class=_PassingOn)
    what = whats.add_parser("up", help="mount SOURCE at DIR/0, DIR/1, …, each a node of its own", epilog=table_text())
    what.formatter_class = argparse.RawDescriptionHelpFormatter
    what.own = frozenset({"--nodes", "--log", "--memory"})
    what.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    what.add_argument("folder", metavar="DIR", help="where the nodes' mountpoints are made")
    what.add_argument(
        "--nodes",
        metavar="N",
        type=_nodes,
        required=True,
        help="how many; --memory is for each of them (default: a quarter of what is available, for all together)",
    )
    _add_sharing(what.add_argument_group("several nodes"))
    _add_serving(what)
    what = whats.add_parser("status", help="what the nodes have done so far, added up")
    what.add_argument("folder", metavar="DIR")
    what.add_argument("--json", action="store_true", help="print each node's stats.json, and their sum")
    _add_timeout(what)
    what = whats.add_parser("down", help="end the mounts of all nodes and remove their mountpoints")
    what.add_argument("folder", metavar="DIR")
    what.add_argument(
        "--lazy", action="store_true", help="take them out of the tree now; those who use them may finish"
    )
    _add_timeout(what)


def _add_trace(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("trace", help="hand in the order in which this node will ask in the next epoch")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument("file", metavar="FILE", help="paths below MOUNTPOINT, one a line, in that order; - is stdin")
    _add_timeout(verb)


def _add_view(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("nodes", help="the nodes that share a mount's dataset; or give it new ones")
    verb.add_argument("mountpoint", metavar="MOUNTPOINT")
    verb.add_argument(
        "--set",
        metavar="LIST",
        help="host:port,host:port,…: the nodes from now on, this one among them; to be said to each of them",
    )
    verb.add_argument("--json", action="store_true", help="print it as JSON")
    _add_timeout(verb)


def _add_state(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("state", help="save and load how far the epochs of a mount are, with a checkpoint")
    whats = verb.add_subparsers(dest="what", metavar="WHAT", title="what to do", required=True)
    for what, text in (
        ("save", "write to FILE which samples had their turn in the epoch that is under way"),
        ("load", "go on where FILE was saved: what had its turn after that comes again"),
    ):
        verb = whats.add_parser(what, help=text, description=text)
        verb.add_argument("mountpoint", metavar="MOUNTPOINT")
        verb.add_argument("file", metavar="FILE", help="not below MOUNTPOINT")
        _add_timeout(verb)


def _add_inspect(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("inspect", help="what mount would do with SOURCE, and why")
    verb.add_argument("source", metavar="SOURCE")
    verb.add_argument("--json", action="store_true", help="print it as JSON")
    _add_plan(verb)
    _add_timeout(verb)


def _add_pack(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("pack", help="write SOURCE to DST as tar shards that are read in whole chunks")
    verb.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    verb.add_argument("dst", metavar="DST", help="a new folder, or one whose pack was ended before it was done")
    _add_classes(verb)
    verb.add_argument(
        "--shard-size", metavar="SIZE", default="1GiB", help="a shard ends when it is this long (default: 1GiB)"
    )
    _add_jobs(verb)
    _add_timeout(verb)


def _add_verify(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("verify", help="read a packed dataset and check every byte of it")
    verb.add_argument("source", metavar="DST", help="a folder that redoxfs pack wrote")
    verb.add_argument("--json", action="store_true", help="print it as JSON")
    _add_jobs(verb)
    _add_timeout(verb)


def _add_simulate(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    verb = verbs.add_parser("simulate", help="run the protocol without data: the paper's tables, and any dataset")
    tables = verb.add_subparsers(dest="table", metavar="TABLE", title="tables", required=True)
    table = tables.add_parser("breakdown", help="loads and remote requests without each optimization (§5.3)")
    _add_simulated(table, PAPER_FILES)
    table = tables.add_parser("policies", help="loads, waits and messages of a policy")
    _add_simulated(table, SIMULATED_FILES)
    _add_made_up(table)
    _add_simulated_policy(table, POLICIES[0])
    table.add_argument("--chunk-size", metavar="N", type=_chunk_size, default=64, help="samples in a chunk")
    table.add_argument("--nodes", metavar="N", type=_nodes, default=1, help="nodes that share it (default: 1)")
    table = tables.add_parser("chunk-size", help="loads, bytes and epoch time over the chunk size (§5.5)")
    _add_simulated(table, SIMULATED_FILES)
    _add_made_up(table)
    _add_simulated_policy(table, "slot")
    table.add_argument(
        "--seek-time", metavar="S", type=_seconds, default=SEEK_TIME_S, help=f"of a read (default: {SEEK_TIME_S:g})"
    )
    table.add_argument("--bandwidth", metavar="SIZE", type=_bandwidth, default=380e6, help="a second (default: 380MB)")
    _add_plot(table)
    table = tables.add_parser("remote-memory", help="what remote chunks use of a limit, and save (§5.4)")
    _add_simulated(table, PAPER_FILES)
    _add_plot(table)
    table = tables.add_parser("randomness", help="the bound of §4, and shuffle quality as measured")
    _add_simulated(table, SIMULATED_FILES)
    _add_made_up(table)
    repeat = "may be repeated"
    table.add_argument("--policy", choices=POLICIES, action="append", help=f"{repeat} (default: all)")
    table.add_argument(
        "--chunk-size", metavar="N", type=_chunk_size, action="append", help=f"{repeat} (default: 64, 16, 4)"
    )
    table.add_argument("--resident", metavar="SHARE", type=_share, action="append", help=f"{repeat} (default: 25%%, …)")


def _add_simulated(table: argparse.ArgumentParser, files: int) -> None:
    table.add_argument("--files", metavar="N", type=_files, default=files, help=f"samples (default: {files:,})")
    table.add_argument("--seed", metavar="N", type=_seed, default=0, help="same seed, same figures (default: 0)")
    table.add_argument("--json", action="store_true", help="print it as JSON")


def _add_made_up(table: argparse.ArgumentParser) -> None:
    table.add_argument("--classes", metavar="N", type=_files, default=1000, help="classes (default: 1000)")
    table.add_argument(
        "--skew", metavar="S", type=_skew, default=0.0, help="Zipf's exponent of the class sizes (default: 0, equal)"
    )


def _add_simulated_policy(table: argparse.ArgumentParser, policy: str) -> None:
    table.add_argument("--policy", choices=POLICIES, default=policy, help=f"(default: {policy})")
    table.add_argument(
        "--resident", metavar="SHARE", type=_share, default=0.1, help="of the samples, in memory (default: 10%%)"
    )


def _add_plot(table: argparse.ArgumentParser) -> None:
    table.add_argument("--plot", metavar="FILE.png", help="draw it, too (needs redoxfs[plot])")


def _add_jobs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--jobs", metavar="N", type=_jobs, help="processes (default: one for each core)")


def _add_plan(verb: argparse.ArgumentParser) -> None:
    """What mount and inspect share, so that inspect tells what this very mount would do."""
    verb.add_argument("--memory", metavar="SIZE", help="4GiB, 512MiB or 10%% (default: a quarter of what is available)")
    _add_classes(verb)
    verb.add_argument(
        "--policy",
        choices=["pool", "slot"],
        default="pool",
        help="pool: chunks are read once, ahead of demand; slot: the paper's own (default: pool)",
    )
    verb.add_argument(
        "--storage-speed",
        metavar="READS,BYTES",
        type=_storage_speed,
        help="reads and bytes a second of the storage, such as 500,200MB (default: measured, where it matters)",
    )


def _add_several_nodes(verb: argparse.ArgumentParser) -> None:
    """Who the nodes are, and what they do for each other."""
    group = verb.add_argument_group("several nodes")
    group.add_argument(
        "--nodes",
        metavar="LIST",
        help="host:port,host:port,…; or auto, as Slurm or torchrun say; or dns:NAME[:PORT], with --node-count "
        f"(default: this node alone; default port: {DEFAULT_PORT})",
    )
    group.add_argument(
        "--node-rank",
        metavar="I",
        type=_rank,
        help="this node's place in LIST, from 0 (default: as the environment says, or the entry that is this machine)",
    )
    group.add_argument("--node-count", metavar="N", type=_nodes, help="how many nodes dns:NAME has to have")
    group.add_argument(
        "--insecure", action="store_true", help="let the nodes talk in plaintext over a network, for all on it to read"
    )
    _add_sharing(group)


def _add_sharing(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--join-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_JOIN_TIMEOUT_S,
        help=f"until all nodes must be there (default: {DEFAULT_JOIN_TIMEOUT_S:g})",
    )
    group.add_argument(
        "--peer-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_PEER_TIMEOUT_S,
        help="of an open that waits for another node to decide; one that is silent for half of it is passed over "
        f"(default: {DEFAULT_PEER_TIMEOUT_S:g})",
    )
    group.add_argument(
        "--storage",
        choices=["shared", "local"],
        default="shared",
        help="shared: every node can read all files; local: each only its own (default: shared)",
    )
    group.add_argument(
        "--exchange",
        metavar="SHARE",
        type=_exchange,
        default=0.0,
        help="of the samples, taken from other nodes on purpose: 0 to 1 (default: 0; --policy pool)",
    )
    group.add_argument(
        "--prefetch-window",
        metavar="P",
        type=_window,
        default=DEFAULT_PREFETCH_WINDOW,
        help=f"requests that a node looks ahead for another; 1: none (default: {DEFAULT_PREFETCH_WINDOW}; "
        "--policy slot)",
    )
    group.add_argument(
        "--remote-memory",
        metavar="SIZE",
        help="of --memory, for samples from other nodes, written like it (default: an eighth)",
    )
    group.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="this node's certificate, as PEM, for the host that --nodes has; the nodes then talk over mutual TLS",
    )
    group.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert, which nobody else may read")
    group.add_argument("--tls-ca", metavar="FILE", help="the CA that the certificates of all nodes are of")
    group.add_argument(
        "--sampler",
        metavar="SPEC",
        type=_sampler,
        help="the training's, to look ahead by: torch-distributed[,seed=S][,ranks=W][,drop_last][,no_shuffle][,tree=T] "
        "or torch-random,seed=S[,persistent_workers][,tree=T] (--policy slot)",
    )


def _add_classes(verb: argparse.ArgumentParser) -> None:
    """How samples, classes and chunks are found."""
    verb.add_argument("--classes", metavar="HOW", help=f"{_RESOLUTION['--classes']} (default: auto)")
    verb.add_argument("--samples", metavar="GLOB", action="append", default=[], help=_RESOLUTION["--samples"])
    verb.add_argument("--groups", metavar="HOW", help=_RESOLUTION["--groups"])
    verb.add_argument(
        "--chunk-size",
        metavar="N",
        type=_chunk_size_or_auto,
        help="samples in a chunk; auto, the default: the fewest that read well, 64 to pack and for --policy slot",
    )
    verb.add_argument("--seed", metavar="N", type=_seed, default=0, help="same seed, same layout (default: 0)")
    verb.add_argument("--rescan", action="store_true", help="scan SOURCE again even if the kept catalog fits")


def _add_timeout(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        help=f"deadline of every wait (default: {DEFAULT_TIMEOUT_S:g})",
    )


def _chunk_size(text: str) -> int:
    # A chunk is read with one file descriptor for each sample in it; this many are never worth a chunk.
    return _whole_number(text, 1, 1 << 16)


def _chunk_size_or_auto(text: str) -> int | None:
    return None if text == "auto" else _chunk_size(text)


def _files(text: str) -> int:
    # Samples are numbered in 32 bits.
    return _whole_number(text, 1, (1 << 31) - 1)


def _nodes(text: str) -> int:
    return _whole_number(text, 1, MOST_NODES)


def _rank(text: str) -> int:
    return _whole_number(text, 0, MOST_NODES - 1)


def _window(text: str) -> int:
    return _whole_number(text, 1, (1 << 31) - 1)


def _exchange(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not (0 <= share <= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return share


# What may follow each kind, and what has to.
_SAMPLERS = {
    "torch-distributed": ({"seed", "ranks", "drop_last", "no_shuffle", "tree"}, set[str]()),
    "torch-random": ({"seed", "persistent_workers", "tree"}, {"seed"}),
}
_SAMPLER_FLAGS = frozenset({"drop_last", "no_shuffle", "persistent_workers"})


def _sampler(text: str) -> SamplerSpec:
    kind, *words = text.split(",")
    if kind not in _SAMPLERS:
        raise argparse.ArgumentTypeError(f"{kind!r} is no sampler known here: {', '.join(_SAMPLERS)}")
    taken, needed = _SAMPLERS[kind]
    told: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in taken:
            raise argparse.ArgumentTypeError(f"{word!r} is nothing that {kind} takes: {', '.join(sorted(taken))}")
        if name in told:
            raise argparse.ArgumentTypeError(f"{name} is said twice in {text!r}")
        if name in _SAMPLER_FLAGS and equals:
            raise argparse.ArgumentTypeError(f"{name} takes no value, as it has in {word!r}")
        if name not in _SAMPLER_FLAGS and not value:
            raise argparse.ArgumentTypeError(f"{name} needs a value: {name}=…")
        told[name] = value
    for name in sorted(needed - told.keys()):
        raise argparse.ArgumentTypeError(f"{kind} needs {name}=…")
    return SamplerSpec(
        kind=kind,
        # PyTorch's own default for a DistributedSampler.
        seed=_seed(told.get("seed", "0")),
        ranks=_whole_number(told["ranks"], 1, 1 << 20) if "ranks" in told else None,
        shuffle="no_shuffle" not in told,
        drop_last="drop_last" in told,
        persistent_workers="persistent_workers" in told,
        tree=told.get("tree"),
    )


def _share(text: str) -> float:
    try:
        percent = float(text.removesuffix("%")) if text.endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not (0 < percent <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0% and up to 100%; write it like 10%")
    return percent / 100


def _skew(text: str) -> float:
    try:
        skew = float(text)
    except ValueError:
        skew = math.nan
    if not (0 <= skew <= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 10")
    return skew


def _bandwidth(text: str) -> float:
    try:
        return float(parse_size(text, 0))
    except UsageError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes a second; write it like 200MB") from None


def _jobs(text: str) -> int:
    return _whole_number(text, 1, 1 << 10)


def _storage_speed(text: str) -> tuple[float, int]:
    reads, comma, size = text.partition(",")
    try:
        if not comma or not (0 < float(reads) <= 1e9):
            raise ValueError
        return float(reads), parse_size(size, 0)
    except (ValueError, UsageError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of reads and of bytes a second; write it like 500,200MB"
        ) from None


def _seed(text: str) -> int:
    return _whole_number(text, 0, (1 << 63) - 1)


def _whole_number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (0 < seconds <= 86_400):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0 and up to a day")
    return seconds
