"""Pages of the evaluation for the paper's tables of `scripts/research/simulate.py`: each function returns one. Beside
each stands what holds, in a sentence.

The paper's numbers that are not in the results stand here, with the section that has them.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from epoch_settings import SETTINGS
from epoch_times import AS_IT_IS, best_speed_up
from results import table

from redoxfs.launch.sizes import format_seconds
from redoxfs.report import html

PAPER_FILES = 1_281_167
"""ImageNet-1k."""

PAPER_BEST_LIMIT_BYTES = 1_500_000_000
"""§5.4: a larger limit is not used, and makes no epoch faster."""

PAPER_EPOCH_HOURS = {50_000_000: 0.77, 500_000_000: 0.71, 1_000_000_000: 0.65}
PAPER_EPOCH_HOURS |= {1_500_000_000: 0.63, 2_000_000_000: 0.66, 3_000_000_000: 0.68}
"""§5.4: epoch time over the limit of remote memory, SqueezeNet on three nodes."""

PAPER_BEST_CHUNK = 64
"""§5.5: the size with the shortest epoch."""

PAPER_BOUND = "2.16e88"
"""§4, the example."""

SETTLED = 0.02
"""A change of this share, or less, counts as none."""


def _files(result: dict[str, Any]) -> int | None:
    """The number of files if the command gives one, as quick runs do."""
    words = result["command"].split()
    return int(words[words.index("--files") + 1]) if "--files" in words else None


def _bytes(value: float) -> str:
    """In powers of 1000, as the paper counts."""
    unit, of = next(each for each in (("GB", 1e9), ("MB", 1e6), ("bytes", 1)) if value >= 0.9995 * each[1])
    return f"{html.number(value / of)} {unit}"


def _compared(ours: float, papers: float) -> str:
    return f"{ours / papers - 1:+.1%}".replace("%", " %")


def breakdown(result: dict[str, Any]) -> str:
    """§5.3. The paper's columns are left out where the simulation had fewer files than the paper."""
    rows, files = result["rows"], _files(result)
    headings = ["", "loads", "remote requests"]
    cells = [[row["variant"], f"{row['loads']:,}", f"{row['remote_requests']:,}"] for row in rows]
    told = []
    if files is None:
        headings += ["paper: loads", "paper: remote requests"]
        for row, written in zip(rows, cells, strict=True):
            for name in ("loads", "remote_requests"):
                paper = row[f"paper_{name}"]
                written.append(f"{paper:,} ({_compared(row[name], paper)})")
        ours, independent = _farthest(rows, "{}"), _farthest(rows, "expected_{}")
        told = [
            f"Our loads differ from the paper's by {ours['loads'] * 100:.1f} % at most, our remote requests by "
            f"{ours['remote_requests'] * 100:.1f} %. The paper does not state how many chunks share a virtual chunk, "
            "how long the prefetch window is, or how much remote memory a node has. We use 10 chunks, 6,000 requests "
            "and memory for 14,000 samples. An independent simulation with these values differs from the paper by "
            f"{independent['loads'] * 100:.1f} % and {independent['remote_requests'] * 100:.1f} %, so the difference "
            "in requests comes from these values, and not from our implementation."
        ]
    text = (
        "How much does each of the paper's optimizations save? Each row is a simulated epoch of ResNet-50 over "
        f"{files or PAPER_FILES:,} files on three nodes. Redox is the policy `slot`, with all optimizations; the other "
        "rows lack some or all. *Loads* counts chunks that a node loads, *remote requests* the requests to other nodes."
    )
    return "\n\n".join(["# Breakdown (§5.3)", text, table(headings, cells), *told])


def breakdown_short(result: dict[str, Any]) -> str:
    if _files(result) is not None:
        return "Too few files to compare with the paper."
    ours = _farthest(result["rows"], "{}")
    return (
        f"The paper's table is reproduced: loads within {ours['loads'] * 100:.1f} %, requests between nodes within "
        f"{ours['remote_requests'] * 100:.1f} %."
    )


def _farthest(rows: list[dict[str, Any]], named: str) -> dict[str, float]:
    """The largest difference from the paper's counts, as a share of them."""
    return {
        name: max(abs(row[named.format(name)] / row[f"paper_{name}"] - 1) for row in rows)
        for name in ("loads", "remote_requests")
    }


def remote_memory(result: dict[str, Any]) -> str:
    """§5.4: what a limit of remote memory is used for."""
    rows, files = result["rows"], _files(result)
    headings = ["limit", "used at most", "on average", "remote requests", "loads"]
    cells = [
        [
            _bytes(row["limit_bytes"]),
            _bytes(row["peak_used_bytes"]),
            _bytes(row["mean_used_bytes"]),
            f"{row['remote_requests']:,}",
            f"{row['loads']:,}",
        ]
        for row in rows
    ]
    if files is None:
        headings.append("paper: epoch")
        for row, written in zip(rows, cells, strict=True):
            hours = PAPER_EPOCH_HOURS.get(row["limit_bytes"])
            written.append(f"{hours} h" if hours else "")
    largest = rows[-1]
    enough = _first(rows, lambda row: row["peak_used_bytes"] >= (1 - SETTLED) * largest["peak_used_bytes"])
    fewest = min(row["remote_requests"] for row in rows)
    least = _first(rows, lambda row: row["remote_requests"] <= (1 + SETTLED) * fewest)
    told = [
        f"Nodes use {_bytes(largest['peak_used_bytes'])} of the largest limit. The smallest limit that allows as much "
        f"is {_bytes(enough['limit_bytes'])}. The smallest limit with the fewest requests is "
        f"{_bytes(least['limit_bytes'])}."
    ]
    if files is None:
        same = enough["limit_bytes"] == PAPER_BEST_LIMIT_BYTES
        told += [
            f"In the paper, use stops growing at {_bytes(PAPER_BEST_LIMIT_BYTES)}"
            + (", as here. " if same else ". ")
            + "The simulation has no clock, so it does not show why the paper's epochs get slower again above that "
            "limit. On a real node, memory for samples of other nodes comes out of the page cache and of the memory "
            "for the node's own chunks."
        ]
    text = (
        "How much memory do the samples from other nodes need? The simulation limits that memory on three nodes with "
        f"{files or PAPER_FILES:,} files."
    )
    return "\n\n".join(["# Memory for samples from other nodes (§5.4)", text, table(headings, cells), *told])


def remote_memory_short(result: dict[str, Any]) -> str:
    rows = result["rows"]
    enough = _first(rows, lambda row: row["peak_used_bytes"] >= (1 - SETTLED) * rows[-1]["peak_used_bytes"])
    return f"With the policy slot, {_bytes(enough['limit_bytes'])} are enough; in the paper 1.5 GB."


def _first(rows: Iterable[dict[str, Any]], fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return next(row for row in rows if fits(row))


def chunk_size(result: dict[str, Any]) -> str:
    """§5.5: the policies beside each other, a row for each chunk size."""
    policies = list(dict.fromkeys(row["policy"] for row in result["rows"]))
    by_size: dict[int, dict[str, Any]] = {}
    for row in result["rows"]:
        by_size.setdefault(row["chunk_size"], {})[row["policy"]] = row
    headings = ["chunk size"]
    for policy in policies:
        headings += [f"{policy}: loads per chunk", f"{policy}: from storage", f"{policy}: epoch"]
    cells = []
    for size, of in by_size.items():
        written = [str(size)]
        for policy in policies:
            row = of[policy]
            written += [
                f"{row['loads_per_chunk']:.2f}",
                f"{_bytes(row['bytes_per_s'])}/s",
                format_seconds(row["epoch_seconds"]),
            ]
        cells.append(written)
    best = {
        policy: min((row for row in result["rows"] if row["policy"] == policy), key=lambda row: row["epoch_seconds"])
        for policy in policies
    }
    told = "; ".join(f"`{policy}` with chunks of {row['chunk_size']}" for policy, row in best.items())
    paper = (
        f"In the paper, chunks of {PAPER_BEST_CHUNK} files have the shortest epoch. Its figures show no numbers to "
        "compare ours with. A chunk of 1 is plain random reading."
    )
    slot = best.get("slot")
    if slot and slot["chunk_size"] != PAPER_BEST_CHUNK:
        at_paper = by_size.get(PAPER_BEST_CHUNK, {}).get("slot")
        if at_paper:
            paper += (
                f" With our model of the storage, {slot['chunk_size']} is better than {PAPER_BEST_CHUNK} by "
                f"{(at_paper['epoch_seconds'] / slot['epoch_seconds'] - 1) * 100:.1f} % for `slot`. The best size "
                "depends on the cost of a seek compared with a byte: the cheaper the seek, the smaller the chunk."
            )
    text = (
        "How large should a chunk be? One read loads a chunk. Small chunks cost many seeks; large chunks of `slot` "
        "load samples whose slots are taken. The epochs are simulated: a read takes the time of a seek and of its "
        "bytes. Memory holds 10 % of the files."
    )
    return "\n\n".join(["# Chunk size (§5.5)", text, table(headings, cells), f"The shortest epochs: {told}. {paper}"])


def chunk_size_short(result: dict[str, Any]) -> str:
    told = []
    for policy in dict.fromkeys(row["policy"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["policy"] == policy]
        told.append(f"`{policy}` {min(rows, key=lambda row: row['epoch_seconds'])['chunk_size']}")
    return f"The chunk size of the shortest epoch: {', '.join(told)}; in the paper {PAPER_BEST_CHUNK}."


def randomness(result: dict[str, Any]) -> str:
    """§4: the bound, and the measured quality of the shuffle."""
    bound, rows = result["bound"], result["quality"]
    headings = ["", "chunk size", "memory", "displacement", "rank correlation", "mates in a batch", "at the end"]
    cells = [
        [
            f"`{row['policy']}`" if row["policy"] in ("slot", "pool") else row["policy"],
            str(row["chunk_size"]),
            "" if row["resident"] is None else f"{row['resident'] * 100:.3g} %",
            f"{row['displacement']:.4f}",
            f"{row['rank_correlation']:+.4f}",
            f"{row['mate_pairs']:.2f}",
            f"{row['mate_pairs_at_end']:.2f}",
        ]
        for row in rows
    ]
    claim = (
        "How random is the order? The paper gives a lower bound on the number of orders that remain: "
        f"{PAPER_BOUND} for its example (chunks of {bound['chunk_size']}, {bound['files']:,} files, "
        f"{bound['virtual_chunks']:,} virtual chunks). But that is the most orders that redirection maps to "
        f"one, {bound['most_mapped_to_one']} here. The bound itself is larger: at least {bound['randomness_at_least']} "
        "orders remain."
    )
    text = (
        "A number of orders does not show how well a policy shuffles, so this table measures it. *Displacement* is how "
        "far a sample moves from one epoch to the next, as a share of the epoch: 1/3 if both orders are random. "
        "*Rank correlation* of two successive epochs is 0 if they are independent. *Mates* are pairs of samples "
        "of one chunk that meet in a batch of 256. *Permutation* is a true shuffle, and *shuffle buffer* is the method "
        "of WebDataset with as much memory."
    )
    worst = {
        policy: max((row for row in rows if row["policy"] == policy), key=lambda row: abs(row["rank_correlation"]))
        for policy in dict.fromkeys(row["policy"] for row in rows)
    }
    told = ", ".join(f"{policy} {row['rank_correlation']:+.3f}" for policy, row in worst.items())
    return "\n\n".join(
        ["# Randomness (§4)", claim, text, table(headings, cells), f"The largest rank correlation of each: {told}."]
    )


def randomness_short(result: dict[str, Any]) -> str:
    chunk_size = result["bound"]["chunk_size"]
    worst: dict[str, float] = {}
    mates: dict[str, float] = {}
    for row in result["quality"]:
        name = row["policy"]
        worst[name] = max(worst.get(name, 0.0), abs(row["rank_correlation"]))
        if row["chunk_size"] == chunk_size and row["resident"] in (None, 0.1):
            mates[name] = row["mate_pairs"]
    told = ", ".join(f"{name} {value:.3f}" for name, value in worst.items())
    met = ", ".join(f"{name} {value:.2f}" for name, value in mates.items())
    return (
        f"The largest rank correlation of two epochs: {told}. Neighbours in a batch, with chunks of {chunk_size} and "
        f"memory for 10 %: {met}."
    )


def epoch_times_short(result: dict[str, Any]) -> str:
    best = _speed_ups(result)
    told = []
    for name in dict.fromkeys(row["setting"] for row in result["rows"]):
        setting = SETTINGS[name]
        pytorch, coordl = ([best(name, way, over) for way in ("slot", "pool")] for over in ("PyTorch", "CoorDL"))
        told.append(
            f"{name}: slot {pytorch[0]:.2f} and pool {pytorch[1]:.2f} times PyTorch (paper {setting.over_pytorch:.2f})"
            f", {coordl[0]:.2f} and {coordl[1]:.2f} times CoorDL (paper {setting.over_coordl:.2f})"
        )
    return f"In virtual time: {'; '.join(told)}."


def _speed_ups(result: dict[str, Any]) -> Callable[[str, str, str], float]:
    """`best_speed_up` of a setting, a way and another way."""
    return partial(
        best_speed_up, {(row["setting"], row["model"], row["way"]): row["seconds"] for row in result["rows"]}
    )


def epoch_times(result: dict[str, Any]) -> str:
    """§5.2 in virtual time: the best speed-ups beside the paper's, and the epochs of each model."""
    rows = result["rows"]
    best = _speed_ups(result)
    of: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["setting"], row["model"]), {})[row["way"]] = row
    speedups = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        setting = SETTINGS[name]
        files = next(row["files"] for row in rows if row["setting"] == name)
        share = files / setting.workload.files
        written = [name if share == 1 else f"{name}, {share * 100:.2g} % of the files"]
        for over, paper in (("PyTorch", setting.over_pytorch), ("CoorDL", setting.over_coordl)):
            slot = best(name, "slot", over)
            written += [f"{paper:.2f}", f"{slot:.2f} ({_compared(slot, paper)})", f"{best(name, 'pool', over):.2f}"]
        speedups.append([*written, f"{best(name, 'No-I/O', 'PyTorch'):.2f}"])
    ways = list(dict.fromkeys(row["way"] for row in rows))
    hours = [
        [
            setting,
            model,
            *(f"{each[way]['seconds'] / 3600:.3f}" if way in each else "" for way in ways),
            *(f"{each[way]['limit']}, {each[way]['used'] * 100:.0f} %" for way in ("slot", "pool")),
            f"{each['slot']['read']:.2f} / {each['pool']['read']:.2f}",
        ]
        for (setting, model), each in of.items()
    ]
    text = (
        "What would the paper's clusters do with redoxfs, at the paper's size? The policies that serve a mount decide, "
        "and a model has what takes time: workers, decoding, steps of the accelerators, storage, links. Two results of "
        "the paper calibrate it, both of ResNet50 on three A10 nodes: PyTorch's epoch and Redox' loads. The speed-ups "
        "of libri-5xa10 and 21k-3xa100 over PyTorch calibrate a step of LibriSpeech and the Lustre, which the paper "
        "does not describe: Redox is taken to be as fast as No-I/O there. All other speed-ups are predictions. "
        "`scripts/research/epoch_settings.py` has each figure with its source or its substitute, and "
        "[another page](epoch-times-varied.md) what depends on it. With fewer files, memory and classes are fewer in "
        "proportion."
    )
    first = table(
        [
            "best over all models",
            "x PyTorch: paper",
            "slot",
            "pool",
            "x CoorDL: paper",
            "slot",
            "pool",
            "No-I/O, x PyTorch",
        ],
        speedups,
    )
    second = (
        "Hours of the third epoch. *Limit* is the resource that was used most, and its use. *Read* is what storage "
        "read, as multiples of the dataset: slot / pool. The slot policy reads whole chunks, as in the paper."
    )
    headings = ["", "model", *ways, "limit of slot", "limit of pool", "read"]
    return "\n\n".join(["# Epoch times at the paper's size (§5.2)", text, first, second, table(headings, hours)])


def _varied(result: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Setting, way, other way, and the speed-ups over the latter by what is varied."""
    seconds = {(row["setting"], row["way"]): row["seconds"] for row in result["rows"]}
    for name in dict.fromkeys(row["setting"] for row in result["rows"]):
        for over in ("PyTorch", "CoorDL"):
            for way in ("slot", "pool"):
                own = seconds[name, way]
                yield name, way, over, {each: base / own[each] for each, base in seconds[name, over].items()}


def epoch_times_varied(result: dict[str, Any]) -> str:
    """How far each speed-up goes where one figure of its setting is a quarter lower or higher."""
    cells: dict[str, list[str]] = {}
    for name, _, _, ratios in _varied(result):
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        # The setting as it is comes first, so it stands for all that are as low or as high.
        told = [f"{ratios[each]:.2f}" + (f" ({each})" if each != AS_IT_IS else "") for each in (low, high)]
        cells.setdefault(name, [name]).append(f"{ratios[AS_IT_IS]:.2f}: {told[0]} to {told[1]}")
    text = (
        "How far do the [epoch times in virtual time](epoch-times.md) depend on one figure? Each figure of a setting "
        "is a quarter lower and a quarter higher, one at a time: the time of a read (`latency_s`) and the bandwidth of "
        "storage (`bytes_per_s`) and of links (`link_bytes_per_s`), the processor time of a file (`file_s`), memory "
        "(`memory_bytes`), and the time of the accelerators for a sample (`sample_s`). With the first model of each "
        f"setting and {result['rows'][0]['files']:,} files; memory and classes are fewer in proportion. The speed-up "
        "as the setting is, then the lowest and the highest, and what was changed there."
    )
    headings = ["", "slot, x PyTorch", "pool, x PyTorch", "slot, x CoorDL", "pool, x CoorDL"]
    return "\n\n".join(["# Epoch times with other figures", text, table(headings, [*cells.values()])])


def epoch_times_varied_short(result: dict[str, Any]) -> str:
    """The figure on which each way depends most."""
    told = []
    for way in ("slot", "pool"):
        changes = [
            (ratio / ratios[AS_IT_IS], name, label)
            for name, each, over, ratios in _varied(result)
            if (each, over) == (way, "PyTorch")
            for label, ratio in ratios.items()
        ]
        ends = [
            f"{(change - 1) * 100:+.0f} % ({name}, {label})" for change, name, label in (min(changes), max(changes))
        ]
        told.append(f"{way} {' to '.join(ends)}")
    return f"A figure that is a quarter lower or higher changes a speed-up over PyTorch by at most: {'; '.join(told)}."
