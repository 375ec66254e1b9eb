"""`redoxfs simulate policies`: the protocol without data, at any scale: what memory and nodes bring."""

import json
from dataclasses import asdict

from redoxfs.cli.options.simulations import PoliciesOptions
from redoxfs.cli.table import print_table
from redoxfs.launch.errors import UsageError
from redoxfs.launch.memory import available_memory
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.simulate import policies


def run(options: PoliciesOptions) -> int:
    """Print what the policy costs."""
    if options.classes > options.files:
        raise UsageError(f"--classes {options.classes} is more than --files {options.files}")
    needed = policies.memory_for(options.files, options.nodes)
    # Linux promises more memory than there is, and then kills who uses it.
    if needed > available_memory():
        takes = format_bytes(needed)
        raise UsageError(f"--files {options.files}: their simulation takes about {takes}, more than is free")
    dataset = policies.Dataset(
        files=options.files,
        classes=options.classes,
        skew=options.skew,
        chunk_size=options.chunk_size,
        resident=options.resident,
        seed=options.seed,
    )
    try:
        row = policies.measure(options.policy, dataset, nodes=options.nodes)
    except MemoryError:
        raise UsageError(f"--files {options.files}: this machine has too little memory to simulate them") from None
    if options.json:
        print(json.dumps(asdict(row), indent=2))
    else:
        _print(row)
    return 0


def _print(row: policies.Row) -> None:
    cells = {
        "policy": row.policy,
        "resident": f"{row.resident_share:.2%}",
        "retained": f"{row.retained_share:.2%}",
        "loads per chunk": f"{row.loads_per_chunk:.3f}",
        "read amplification": f"{row.read_amplification:.3f}",
        "as packed": f"{row.read_amplification_packed:.3f}",
        "waited for a load": f"{row.demand_load_share:.3%}",
        "read alone": f"{row.read_alone_share:.3%}",
        "from other nodes": f"{row.remote_share:.2%}",
        "messages per open": f"{row.messages_per_request:.4f}",
    }
    skew = f" (Zipf, exponent {row.skew:g})" if row.skew else ""
    files, classes = counted(row.files, "file"), counted(row.classes, "class", "classes")
    chunks, nodes = counted(row.chunks, "chunk"), counted(row.nodes, "node")
    print_table(f"{files} of {classes}{skew}, {chunks} of {row.chunk_size}, {nodes}", cells.items())
