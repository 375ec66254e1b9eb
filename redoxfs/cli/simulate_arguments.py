"""The grammar of `redoxfs simulate`."""

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.options.simulations import (
    QUICK_FILES,
    RELATED_SYSTEMS,
    BreakdownOptions,
    ChunkSizeOptions,
    PoliciesOptions,
    RandomnessOptions,
    RelatedOptions,
    RemoteMemoryOptions,
)
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.launch.defaults import POLICIES


def add_simulate(verbs: "Verbs[Parser]") -> None:
    verb = add_verb(verbs, "simulate", None, "run the protocol without data: the paper's tables, or any dataset")
    tables = verb.add_subparsers(dest="table", metavar="TABLE", title="tables", required=True)
    table = add_verb(
        tables, "breakdown", BreakdownOptions, "loads and remote requests without each optimization (§5.3)"
    )
    _add_simulated(table, BreakdownOptions)
    table = add_verb(tables, "policies", PoliciesOptions, "loads, waits and messages of a policy")
    _add_simulated(table, PoliciesOptions)
    _add_classes(table, PoliciesOptions)
    _add_simulated_policy(table, PoliciesOptions)
    size, nodes = (default_of(PoliciesOptions, name) for name in ("chunk_size", "nodes"))
    table.add_argument(
        "--chunk-size", metavar="N", type=values.chunk_size, help=f"samples in a chunk (default: {size})"
    )
    table.add_argument(
        "--nodes", metavar="N", type=values.nodes, help=f"number of nodes that share it (default: {nodes})"
    )
    table = add_verb(tables, "chunk-size", ChunkSizeOptions, "loads, bytes and epoch time over the chunk size (§5.5)")
    _add_simulated(table, ChunkSizeOptions)
    _add_classes(table, ChunkSizeOptions)
    _add_simulated_policy(table, ChunkSizeOptions)
    _add_storage(table, ChunkSizeOptions)
    _add_plot(table)
    table = add_verb(
        tables, "remote-memory", RemoteMemoryOptions, "how much of a memory limit remote chunks use, and save (§5.4)"
    )
    _add_simulated(table, RemoteMemoryOptions)
    _add_plot(table)
    table = add_verb(tables, "randomness", RandomnessOptions, "the bound of §4, and measured shuffle quality")
    _add_simulated(table, RandomnessOptions)
    _add_classes(table, RandomnessOptions)
    repeat = "may be repeated"
    table.add_argument("--policy", dest="policies", choices=POLICIES, action="append", help=f"{repeat} (default: all)")
    table.add_argument(
        "--chunk-size",
        dest="chunk_sizes",
        metavar="N",
        type=values.chunk_size,
        action="append",
        help=f"{repeat} (default: 64, 16, 4)",
    )
    table.add_argument(
        "--resident",
        dest="residents",
        metavar="SHARE",
        type=values.share,
        action="append",
        help=f"share of the samples in memory; {repeat} (default: 25%%, 10%%, 2%%)",
    )
    table = add_verb(
        tables, "related", RelatedOptions, "compare with other systems: storage, network, memory and shuffle (§2.2)"
    )
    _add_simulated(table, RelatedOptions)
    table.add_argument(
        "--quick",
        dest="files",
        action="store_const",
        const=QUICK_FILES,
        help=f"with {QUICK_FILES:,} samples: seconds rather than minutes",
    )
    table.add_argument(
        "--system", dest="systems", choices=RELATED_SYSTEMS, action="append", help=f"{repeat} (default: all)"
    )
    classes, size, nodes = (default_of(RelatedOptions, name) for name in ("classes", "chunk_size", "nodes"))
    table.add_argument("--classes", metavar="N", type=values.files, help=f"number of classes (default: {classes})")
    table.add_argument("--nodes", metavar="N", type=values.nodes, help=f"number of nodes (default: {nodes})")
    table.add_argument(
        "--resident",
        metavar="SHARE",
        type=values.share,
        help="share of the samples in the memory of all nodes together (default: 25%%)",
    )
    table.add_argument(
        "--chunk-size", metavar="N", type=values.chunk_size, help=f"samples in a chunk (default: {size})"
    )
    _add_storage(table, RelatedOptions)
    _add_plot(table)


def _add_simulated(table: Parser, kind: type) -> None:
    files = default_of(kind, "files")
    table.add_argument("--files", metavar="N", type=values.files, help=f"number of samples (default: {files:,})")
    table.add_argument("--seed", metavar="N", type=values.seed, help="same seed, same figures (default: 0)")
    table.add_argument("--json", action="store_true", help="print JSON")


def _add_classes(table: Parser, kind: type) -> None:
    classes = default_of(kind, "classes")
    table.add_argument("--classes", metavar="N", type=values.files, help=f"number of classes (default: {classes})")
    table.add_argument(
        "--skew", metavar="S", type=values.skew, help="Zipf's exponent of the class sizes (default: 0, equal)"
    )


def _add_simulated_policy(table: Parser, kind: type) -> None:
    table.add_argument("--policy", choices=POLICIES, help=f"(default: {default_of(kind, 'policy')})")
    table.add_argument(
        "--resident", metavar="SHARE", type=values.share, help="share of the samples in memory (default: 10%%)"
    )


def _add_storage(table: Parser, kind: type) -> None:
    table.add_argument(
        "--seek-time",
        dest="seek_time_s",
        metavar="S",
        type=values.seconds,
        help=f"seconds of a read besides its bytes (default: {default_of(kind, 'seek_time_s'):g})",
    )
    table.add_argument("--bandwidth", metavar="SIZE", type=values.bandwidth, help="bytes a second (default: 380MB)")


def _add_plot(table: Parser) -> None:
    table.add_argument("--plot", metavar="FILE.png", help="also draw it (needs redoxfs[plot])")
