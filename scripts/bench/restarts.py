"""A storm of deaths: the daemon is killed at random moments while processes read, and its keeper starts another.

    scripts/bench/restarts.py [--kills 200] [--files 2400] [--readers 8] [--how kill|crash|oom|restart] [--json FILE]
    scripts/bench/restarts.py --kills 20 --files 1300000 --classes 1000 --bytes 300 --tree DIR [--json FILE]
    scripts/bench/restarts.py --nodes 3 [--kills 200] [--json FILE]

Eight processes share epochs and read each file once, in nine ways (tests/reading_job.py). They check every byte, and
each sample must come once in each epoch. The kills are spread over all settings: both policies, a plain directory and a
packed dataset, the three open modes, groups, helper threads, and little and much memory. Between two kills there are 1
to 1,000 opens; one kill in five comes while the daemon still starts. All draws are from --seed.

``--how`` is SIGKILL by default. ``crash`` is SIGSEGV, SIGBUS and SIGABRT. With ``oom`` the kernel kills the daemon for
want of memory, which needs root and control groups of version 1. ``restart`` is `redoxfs restart`; it has no pause, as
the former daemon serves while the command starts.

With ``--nodes N`` the readers are spread over N nodes, each in a network namespace of its own, which needs root. The
daemons of random nodes die, sometimes two at once. All readers share the epochs, so each sample must come once in each
epoch over all nodes together. No node may count `missed` or `degraded` samples, and each must still know all others.

With more than 100,000 files the readers end in the middle of an epoch, and there are two settings, one for each policy.
``--tree DIR`` makes the files in DIR, or uses those that an earlier run made there, and leaves them.

Modules are compiled before the first death, as in an installed package. Without that each successor would compile them
again, which takes about 0.3 s of a processor.

How to read the result: a pause is the time from a death until an open of any reader was answered again. A pause with
several deaths is listed apart. "longest operation" is the longest call of any reader, through whatever pause. Aims:
1.5 s with 2,400 files, 4 s with 1.3 million. The exit code is 1 if anything was wrong.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import mounts
from results import options_of, shares, tell, write
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import netspaces
from deaths import OPTIONS, RESTART, Case, Found, Storm, serve
from machine import Machine
from reading_job import Job, make_files, name_of, payload

ALL = [
    *(Case(policy, store, mode) for mode, store, policy in product(OPTIONS, ("directory", "packed"), ("pool", "slot"))),
    Case("pool", "directory", groups=True),
    Case("slot", "packed", groups=True),
    Case("pool", "directory", threads=2),
    Case("slot", "packed", "direct_io", threads=2),
    Case("pool", "packed", "page_cache", memory="least"),
    Case("slot", "directory", memory="all"),
]
IN_ORDER = "torch-distributed,no_shuffle"
"""Readers that ask in this order are sent their samples ahead."""

OF_NODES = [
    *(Case(policy, store) for store, policy in product(("directory", "packed"), ("pool", "slot"))),
    Case("pool", "directory", sharing=("--exchange", "0.5")),
    Case("pool", "packed", sharing=("--storage", "local")),
    Case("slot", "packed", sharing=("--sampler", IN_ORDER)),
    Case("pool", "packed", "direct_io"),
    Case("slot", "directory", "page_cache"),
    Case("pool", "directory", groups=True),
    Case("slot", "directory", memory="least"),
]
LARGE = [Case("pool"), Case("slot")]
HOW = {"kill": Storm.kill, "crash": Storm.crash, "oom": Storm.exhaust_memory, "restart": Storm.restart}

COLUMNS = (
    *("setting", "deaths", "opens", "epochs", "errors", "wrong_bytes", "samples_not_once", "pause_s.median"),
    *("pause_s.p99", "pause_s.longest", "longest_operation_s"),
)

WHOLE_EPOCHS_UP_TO = 100_000
PROBLEMS_SHOWN = 20


def files_at(root: Path, files: int, classes: int, largest_bytes: int, *, groups: bool) -> Path:
    """The files in ``root``, made if it does not exist. SystemExit if others are there."""
    if not root.exists():
        make_files(root, files, classes, largest_bytes, groups=groups)
    for number in (0, files - 1):
        name = name_of(number, classes)
        if not (root / name).exists() or (root / name).read_bytes() != payload(name, largest_bytes):
            raise SystemExit(f"{root} has other files than {files:,} in {classes:,} classes; remove it")
    if (root / name_of(files, classes)).exists():
        raise SystemExit(f"{root} has more than {files:,} files; remove it")
    return root


def readers_of(arguments: argparse.Namespace) -> int:
    """Equally many at each node, as a sampler's order has it."""
    return -(-arguments.readers // arguments.nodes) * arguments.nodes


def measure(folder: Path, source: Path, case: Case, kills: int, seed: int, arguments: argparse.Namespace) -> Found:
    """One storm on a mount of its own."""
    folder.mkdir()
    machine = Machine(folder)
    # Modules are compiled once, as they are when a package is installed.
    machine.environment.pop("PYTHONDONTWRITEBYTECODE", None)
    machine.environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "compiled")
    job = Job(
        root=str(machine.mnt),
        files=arguments.files,
        classes=arguments.classes,
        largest_bytes=arguments.bytes,
        readers=readers_of(arguments),
        seed=seed,
        groups=case.groups,
        whole=arguments.files <= WHOLE_EPOCHS_UP_TO,
        nodes=arguments.nodes,
        shuffles=IN_ORDER not in case.sharing,
        exact=not case.is_local,
    )
    with ExitStack() as stack:
        network = None
        if arguments.nodes > 1:
            network = stack.enter_context(netspaces.Network(arguments.nodes).up())
        stack.callback(machine.clear)
        serve(machine, source, case, has_keeper=arguments.keeper, nodes=arguments.nodes, network=network)
        with Storm(machine, job, has_keeper=arguments.keeper) as storm:
            storm.run(arguments.before)
            HOW[arguments.how](storm, kills)
            # The last death has an open after it.
            storm.run(1)
            found = storm.finish()
        found.problems += checked_end(machine)
    return found


def checked_end(machine: Machine) -> list[str]:
    """End the mounts. A line for each thing that they leave behind, and for each bug that they logged."""
    problems = []
    for mountpoint in map(Path, machine.mounts()):
        done = machine.run("umount", mountpoint)
        problems += [] if done.returncode == 0 else [f"umount: {done.stderr.strip()}"]
    if not machine.nothing_is_left():
        problems.append(f"left behind: mounts {machine.mounts()}, processes {machine.daemons()}")
    if "Traceback" in machine.log():
        problems.append(machine.log()[-2000:])
    return problems


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, p99 and the largest; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    return {"median": statistics.median(ordered), "p99": p99, "longest": ordered[-1]}


def told(case: str, found: Sequence[Found]) -> dict[str, Any]:
    """A row of the result."""
    pauses = [pause for each in found for pause in each.pauses()]
    deaths = [death.how for each in found for death in each.deaths]
    killed = sum(how != RESTART for how in deaths)
    return {
        "setting": case,
        "deaths": len(deaths),
        "opens": sum(each.opens for each in found),
        "epochs": sum(each.complete_epochs for each in found),
        "errors": sum(each.errors for each in found),
        "wrong_bytes": sum(each.wrong for each in found),
        "samples_not_once": sum(each.not_once for each in found),
        "deaths_without_another_answer": killed - sum(pause.deaths for pause in pauses),
        "pause_s": quantiles([pause.seconds for pause in pauses if pause.deaths == 1]),
        "pauses_with_several_deaths": sum(pause.deaths > 1 for pause in pauses),
        "pause_with_several_deaths_s": quantiles([pause.seconds for pause in pauses if pause.deaths > 1]),
        "longest_pause_by_node_s": {
            node: max(pause.seconds for pause in pauses if pause.node == node)
            for node in sorted({pause.node for pause in pauses})
        },
        "longest_operation_s": max(each.longest_s for each in found),
        "seconds": sum(each.seconds for each in found),
        "problems": [problem for each in found for problem in each.problems],
    }


def run(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    cases = ALL if arguments.nodes == 1 else OF_NODES
    if arguments.files > WHOLE_EPOCHS_UP_TO:
        cases = LARGE
    rows, everything = [], []
    console = Console(stderr=True)
    for number, (case, kills) in enumerate(zip(cases, shares(arguments.kills, len(cases)), strict=True)):
        if not kills:
            continue
        root = work / ("groups" if case.groups else "data")
        if arguments.tree and not case.groups:
            root = arguments.tree
        source = files_at(root, arguments.files, arguments.classes, arguments.bytes, groups=case.groups)
        console.print(f"{case}: {kills} deaths …")
        found = measure(work / str(number), source, case, kills, arguments.seed + number, arguments)
        rows.append(told(str(case), [found]))
        everything.append(found)
    return {
        "machine": mounts.machine(),
        "load_average": os.getloadavg(),
        "how": arguments.how,
        "files": arguments.files,
        "readers": readers_of(arguments),
        "nodes": arguments.nodes,
        "seed": arguments.seed,
        "total": told("all", everything),
        "rows": rows,
    }


def is_wrong(row: dict[str, Any]) -> bool:
    counts = ("errors", "wrong_bytes", "samples_not_once", "deaths_without_another_answer")
    return any(row[name] for name in counts) or bool(row["problems"])


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--kills", type=int, default=200, help="deaths in all")
    parser.add_argument("--files", type=int, default=2400)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--bytes", type=int, default=20_000, help="the largest file; sizes are uniform")
    parser.add_argument("--before", type=int, default=0, metavar="OPENS", help="opens before the first death")
    parser.add_argument(
        "--readers", type=int, default=8, help="on several nodes at least so many, equally many at each"
    )
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--how", choices=HOW, default="kill")
    parser.add_argument(
        "--keeper",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --no-keeper the readers fail, which shows that they notice",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tree", type=Path, metavar="DIR", help="where to make the files, or find those of a former run"
    )
    arguments = parser.parse_args()
    if arguments.nodes > 1 and (why_not := netspaces.why_not()) is not None:
        parser.error(f"--nodes: {why_not}")
    # A daemon that crashes would leave a file of its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-") as folder:
        result = run(Path(folder), arguments)
    tell({**result, "rows": [*result["rows"], result["total"]]}, None, *COLUMNS)
    if arguments.json:
        write(result, arguments.json)
    for problem in result["total"]["problems"][:PROBLEMS_SHOWN]:
        print(problem, file=sys.stderr)
    return 1 if is_wrong(result["total"]) else 0


if __name__ == "__main__":
    sys.exit(main())
