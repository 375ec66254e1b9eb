"""The grammar of `redoxfs simulate`."""

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.shared_arguments import add_json
from redoxfs.launch.defaults import POLICIES


def add_simulate(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.simulations import PoliciesOptions

    verb = add_verb(verbs, "simulate", None, "run the protocol without data, to size memory and nodes")
    tables = verb.add_subparsers(dest="table", metavar="TABLE", title="tables", required=True)
    table = add_verb(tables, "policies", PoliciesOptions, "loads, waits and messages of a policy")
    files, classes, policy, size, nodes = (
        default_of(PoliciesOptions, name) for name in ("files", "classes", "policy", "chunk_size", "nodes")
    )
    table.add_argument("--files", metavar="N", type=values.files, help=f"number of samples (default: {files:,})")
    table.add_argument("--seed", metavar="N", type=values.seed, help="same seed, same figures (default: 0)")
    add_json(table)
    table.add_argument("--classes", metavar="N", type=values.files, help=f"number of classes (default: {classes})")
    table.add_argument(
        "--skew", metavar="S", type=values.skew, help="Zipf's exponent of the class sizes (default: 0, equal)"
    )
    table.add_argument("--policy", choices=tuple(POLICIES), help=f"(default: {policy})")
    table.add_argument(
        "--resident", metavar="SHARE", type=values.share, help="share of the samples in memory (default: 10%%)"
    )
    table.add_argument(
        "--chunk-size", metavar="N", type=values.chunk_size, help=f"samples in a chunk (default: {size})"
    )
    table.add_argument(
        "--nodes", metavar="N", type=values.nodes, help=f"number of nodes that share it (default: {nodes})"
    )
