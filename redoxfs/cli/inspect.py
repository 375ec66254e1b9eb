"""`redoxfs inspect`: show how `mount` would serve SOURCE, without mounting.

It runs the same code as `mount` up to the layout and stops there. So its report cannot differ from the mount, and a
mistake in a class table fails here with the same line and the same exit code.
"""

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from redoxfs.cli.options.examining import InspectOptions
from redoxfs.cli.table import print_table
from redoxfs.launch.archives import with_archives
from redoxfs.launch.defaults import POLICIES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.path_status import path_status
from redoxfs.launch.sizes import counted, format_bytes, format_needed
from redoxfs.launch.source import (
    Dataset,
    Opening,
    check_source,
    chunks_with_cache,
    evidence,
    memory_of,
    open_dataset,
    open_root,
)
from redoxfs.linux.descriptors import opened

if TYPE_CHECKING:
    from redoxfs.chunks import Cells

# The shares of the samples that people try first: the least that works, a few shares, and all.
_SHARES = {"least": 0.0, "5%": 0.05, "10%": 0.10, "25%": 0.25, "50%": 0.5, "all": 1.0}

# Of the rate of a sweep. A read of n bytes has it where n is _PIECES_OF_SEEK times what comes in the time of a seek,
# even if no seek hides behind the bytes of another read.
_GOOD_SHARE = 0.85
_PIECES_OF_SEEK = _GOOD_SHARE / (1 - _GOOD_SHARE)
_AT_BYTES_PER_S = 100_000_000

# What becomes of samples where they are not redirected.
_OF_MODE = {"sampler": "that a sampler draws"}


def run(options: InspectOptions) -> int:
    """Print how a mount of SOURCE with these options would be."""
    source = path_status(options.source, options.timeout_s)
    source = with_archives(source, options.timeout_s, options.dataset)
    check_source(source)
    memory_bytes = memory_of(options.memory.memory_size)
    with opened(open_root(source)) as root_fd:
        dataset = open_dataset(
            Opening(
                source,
                root_fd,
                options.dataset,
                options.memory,
                options.timeout_s,
                measure_storage=False,
                is_cached=options.cache is not None,
            )
        )
    if options.nodes > 1 and not POLICIES[options.memory.policy].reads_some:
        raise UsageError("inspect --nodes is for --policy pool; for slot: redoxfs simulate --help")
    facts = gather(
        dataset,
        None if options.cache is not None else chunks_with_cache(dataset, options.dataset, options.memory),
        policy=options.memory.policy,
        seed=options.dataset.seed,
        memory_bytes=memory_bytes,
        nodes=options.nodes,
    )
    facts = {"source": source.name, **facts}
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print_table(facts["source"], rows(facts))
    return 0


def gather(
    dataset: Dataset, with_cache: "Cells | None", *, policy: str, seed: int, memory_bytes: int, nodes: int = 1
) -> dict[str, Any]:
    """The report, as plain JSON values; all sizes are bytes.

    ``with_cache`` are the chunks of a mount with --cache; None: it is about such a mount.
    """
    import numpy as np

    catalog = dataset.catalog
    tree, verdict = catalog.tree, catalog.verdict
    samples = len(catalog.class_of)
    per_class = np.bincount(catalog.class_of, minlength=len(catalog.class_names))
    files = int(tree.kind_mask(stat.S_IFREG).sum())
    return {
        "verdict": verdict.line,
        "classes_asked": verdict.asked,
        "classes_mode": verdict.mode,
        "splits": [asdict(finding) for finding in verdict.splits],
        "evidence": evidence(verdict),
        "saw": list(verdict.saw),
        "entries": len(tree),
        "files": files,
        "sample_files": catalog.sample_files,
        "exact_files": files if catalog.is_for_sampler else files - len(catalog.members),
        "samples": samples,
        "classes": len(catalog.class_names),
        "class_trees": list(catalog.class_trees),
        "samples_per_class": _spread(per_class, {"min": 0, "median": 50, "max": 100}),
        "files_per_sample": _spread(np.diff(catalog.member_at), {"min": 0, "median": 50, "max": 100}),
        "sample_bytes": {
            **_spread(catalog.sample_bytes, {"min": 0, "median": 50, "p99": 99, "max": 100}),
            "total": int(catalog.sample_bytes.sum()),
        },
        "chunk_size": dataset.chunk_size,
        "seed": seed,
        "policy": policy,
        **_memory(dataset, with_cache, policy, memory_bytes, nodes),
        **_shuffle(dataset),
        **_packed(dataset),
    }


def _spread(values: Any, percentiles: dict[str, int]) -> dict[str, int]:
    """Named percentiles that are values of the set, not points between two of them; {} of an empty set."""
    import numpy as np

    if not len(values):
        return {}
    found = np.percentile(values, list(percentiles.values()), method="higher")
    return {name: int(value) for name, value in zip(percentiles, found, strict=True)}


def _packed(dataset: Dataset) -> dict[str, Any]:
    """The shards of a packed dataset, and the options it was packed with."""
    index = dataset.index
    if index is None:
        return {"packed": False}
    lengths = index.positions.shard_bytes
    if index.versions is not None:
        read_bytes = int(dataset.catalog.sample_bytes.sum()) // max(1, len(dataset.cells.cells))
        return {
            "packed": False,
            "archives": len(lengths),
            "archives_bytes": sum(lengths),
            "archives_layout": index.asked["layout"],
            "read_bytes": read_bytes,
            "reads_per_s_for_100_mb_per_s": round(_PIECES_OF_SEEK * _AT_BYTES_PER_S / max(1, read_bytes)),
        }
    return {
        "packed": True,
        "shards": len(lengths),
        "shards_bytes": sum(lengths),
        "packed_with": {**index.asked, "seed": index.seed, "chunk_size": dataset.chunk_size},
    }


def _memory(dataset: Dataset, with_cache: "Cells | None", policy: str, memory_bytes: int, nodes: int) -> dict[str, Any]:
    """Chunks, and the --memory of each node that it takes to hold the least that works and some shares of the samples;
    with what the daemon itself needs, the limit of a job or a pod."""
    from redoxfs.launch.own_memory import PoolOfNode, limit_for
    from redoxfs.node import PLANNERS, pool_reads

    catalog, cells = dataset.catalog, dataset.cells

    def in_chunks(chunks: "Cells") -> tuple[dict[str, int], Callable[[int], float]]:
        """The memory for each share of the samples, and what an epoch reads with so many bytes."""
        memory_for: Callable[[float], int] = partial(PLANNERS[policy].memory_for, catalog, chunks)
        reads_with: Callable[[int], float] = partial(pool_reads, catalog, chunks)
        if nodes > 1:
            of_node = PoolOfNode(catalog, chunks, nodes)
            memory_for, reads_with = of_node.memory_for, of_node.reads
        return {name: memory_for(share) for name, share in _SHARES.items()}, reads_with

    needed, reads_with = in_chunks(cells)
    files = int(catalog.tree.kind_mask(stat.S_IFREG).sum())
    file_bytes = int(catalog.sample_bytes.sum()) / max(1, len(catalog.members))
    limit = partial(limit_for, files=files, file_bytes=file_bytes)
    is_cached = with_cache is None
    facts = {
        "chunks": len(cells.cells),
        "nodes": nodes,
        "memory_bytes": memory_bytes,
        "memory_suffices": memory_bytes >= needed["least"],
        "memory_for": needed,
        "limit_for": {name: limit(size, caches=is_cached) for name, size in needed.items()},
    }
    if with_cache is not None:
        needed_then = needed if with_cache is cells else in_chunks(with_cache)[0]
        facts |= {
            "chunk_size_with_cache": with_cache.chunk_size,
            "memory_with_cache_for": needed_then,
            "limit_with_cache_for": {name: limit(size, caches=True) for name, size in needed_then.items()},
        }
    if POLICIES[policy].reads_some:
        reads = {name: reads_with(size) for name, size in needed.items()}
        facts["reads_with"] = {name: round(share, 4) for name, share in reads.items()}
        if nodes == 1:
            facts["shuffled_with"] = _shuffled(dataset, reads)
    return facts


def _shuffled(dataset: Dataset, reads: dict[str, float]) -> dict[str, Any] | None:
    """How well the pool shuffles with each memory, about; None where there is no whole batch."""
    from redoxfs.telemetry.expected_quality import entropy_of_permutation, expected_of_pool
    from redoxfs.telemetry.quality import BATCH

    if len(dataset.catalog.class_of) < BATCH:
        return None
    of_chunk = (dataset.cells.cells >= 0).sum(axis=1)
    found = {
        name: expected_of_pool(of_chunk, read_share=share, held_share=_SHARES[name]) for name, share in reads.items()
    }
    per_class = _classes_of_largest_tree(dataset)
    of_classes = round(entropy_of_permutation(per_class), 3) if per_class.sum() >= BATCH else None
    return {
        "batch": BATCH,
        "mates": {name: round(each.mates, 3) for name, each in found.items()},
        "chunk_entropy": {name: round(each.chunk_entropy, 3) for name, each in found.items()},
        "chunk_entropy_if_random": round(entropy_of_permutation(of_chunk), 3),
        "class_entropy_if_random": of_classes,
    }


def _classes_of_largest_tree(dataset: Dataset) -> Any:
    """int64[classes]: how many samples each class has in the tree with the most samples, as an epoch reads one tree."""
    import numpy as np

    tree_of_class = dataset.catalog.tree_of_class
    per_class = np.bincount(dataset.catalog.class_of, minlength=len(tree_of_class))
    of_tree = np.bincount(tree_of_class, per_class)
    return np.where(tree_of_class == np.argmax(of_tree), per_class, 0) if len(of_tree) else per_class


def _shuffle(dataset: Dataset) -> dict[str, Any]:
    """How evenly the chunks of the largest tree have its classes."""
    import numpy as np

    from redoxfs.telemetry.expected_quality import block_variance

    cells, class_of, per_class = dataset.cells.cells, dataset.catalog.class_of, _classes_of_largest_tree(dataset)
    # What is appended is of holes.
    cells = np.where(np.append(per_class[class_of] > 0, False)[cells], cells, -1)
    found = block_variance(cells, class_of, per_class)
    of_chunks, at_random = (None, None) if found is None else (round(each, 3) for each in found)
    # Not all chunks are full.
    filled = max(1, int((cells >= 0).any(axis=1).sum()))
    return {
        "block_variance": of_chunks,
        "block_variance_if_random": at_random,
        "block_variance_if_one_class": None if found is None else round(int(per_class.sum()) / filled, 3),
    }


def rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The table's rows, for people."""
    shown = [("classes", facts["verdict"])]
    shown += [("evidence", line) for line in facts["evidence"]]
    shown += [("note", line) for line in facts["saw"]]
    if facts["packed"]:
        shown.append(("packed", f"{counted(facts['shards'], 'shard')}, {format_bytes(facts['shards_bytes'])}"))
    if "archives" in facts:
        whole = f"{counted(facts['archives'], 'archive')}, {format_bytes(facts['archives_bytes'])}"
        layout = ", a folder for each" if facts["archives_layout"] == "folders" else ""
        shown.append(("archives", f"{whole}{layout}"))
    shown += [
        ("files", f"{facts['files']:,}; {_share(facts['sample_files'], facts['files'])}"),
        ("not redirected", counted(facts["exact_files"], "file")),
        ("samples", f"{facts['samples']:,} {_OF_MODE.get(facts['classes_mode'], 'that may be redirected')}"),
    ]
    if not facts["samples"]:
        return shown
    shown += [
        ("class trees", _names(facts["class_trees"])),
        (
            "samples per class",
            f"{counted(facts['classes'], 'class', 'classes')}: " + _spelled(facts["samples_per_class"], "{:,}".format),
        ),
        ("files per sample", _spelled(facts["files_per_sample"], "{:,}".format)),
        ("sample size", _spelled(facts["sample_bytes"], format_bytes)),
        ("chunks", f"{facts['chunks']:,}, of up to {counted(facts['chunk_size'], 'sample')} each"),
        ("--memory needed", _each(facts["nodes"], facts["memory_for"])),
        ("limit needed", _each(facts["nodes"], facts["limit_for"])),
    ]
    if "limit_with_cache_for" in facts:
        chunk_size = facts["chunk_size_with_cache"]
        is_other = chunk_size != facts["chunk_size"]
        others = f", with chunks of up to {chunk_size} samples (inspect --cache DIR)" if is_other else ""
        shown.append(("with --cache", _each(facts["nodes"], facts["limit_with_cache_for"]) + others))
    if "read_bytes" in facts:
        rate = f"{facts['reads_per_s_for_100_mb_per_s']:,} reads/s for each 100 MB/s"
        how = f"at least {_GOOD_SHARE:.0%} of a sweep's rate where storage serves {rate}"
        shown.append(("reads", f"of about {format_bytes(facts['read_bytes'])}: {how}"))
    if "reads_with" in facts:
        read = ", ".join(f"{name} {share:.0%}" for name, share in facts["reads_with"].items())
        shown.append(("read an epoch", f"{read}, after the first"))
    if facts.get("shuffled_with"):
        shown += _shuffle_rows(facts["shuffled_with"])
    if facts["block_variance"] is not None:
        variance, at_random = facts["block_variance"], facts["block_variance_if_random"]
        shown.append(
            (
                "classes in a chunk",
                f"block variance {variance:.2f}, less is better; {at_random:.2f} for chunks drawn at random, "
                f"{facts['block_variance_if_one_class']:,.0f} for chunks of one class",
            )
        )
    if not facts["memory_suffices"]:
        shown.append(("memory", f"{format_bytes(facts['memory_bytes'])} is too small: mount would refuse it"))
    return shown


def _each(nodes: int, sizes: dict[str, int]) -> str:
    of_each = f"each of {nodes} nodes: " if nodes > 1 else ""
    return of_each + ", ".join(f"{name} {format_needed(size)}" for name, size in sizes.items())


def _shuffle_rows(shuffled: dict[str, Any]) -> list[tuple[str, str]]:
    mates = ", ".join(f"{name} {times:,.1f}" for name, times in shuffled["mates"].items())
    bits = ", ".join(f"{name} {each:.2f}" for name, each in shuffled["chunk_entropy"].items())
    shown = [
        ("chunk mates", f"{mates} times those of a random order, in a batch of {shuffled['batch']}"),
        ("chunks in a batch", f"entropy {bits} bits; a random order has {shuffled['chunk_entropy_if_random']:.2f}"),
    ]
    of_classes = shuffled["class_entropy_if_random"]
    # Of one class, there is no order.
    if of_classes:
        words = f"in the order of your script, with any memory; a random order has {of_classes:.2f} bits"
        shown.append(("classes in a batch", words))
    return shown


def _share(sample_files: int, files: int) -> str:
    if sample_files == files:
        return "all are samples"
    if not sample_files:
        return "none is a sample by name"
    return f"{sample_files:,} {'is a sample' if sample_files == 1 else 'are samples'} by name"


def _spelled(spread: dict[str, int], form: Any) -> str:
    return ", ".join(f"{name} {form(value)}" for name, value in spread.items())


def _names(names: Sequence[str], most: int = 8) -> str:
    listed = [name or "the whole tree" for name in names[:most]]
    return ", ".join(listed) + (f" and {len(names) - most} more" if len(names) > most else "")
