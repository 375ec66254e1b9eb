"""The page of the evaluation on related systems, from what `simulate.py related --json` printed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from related.shuffles import WEBDATASET_SHARDS

Report = Mapping[str, Any]
Row = Mapping[str, Any]

PAPER_EPOCH_H = {"pytorch": 1.61, "coordl": 1.40, "slot": 0.71}
"""§5.3: epoch times of ResNet50 on three A10 nodes."""

OURS = {
    "slot": "as in the paper, it reads whole chunks, and keeps the samples whose slots are free",
    "pool": "it reads through short gaps between the samples that it keeps of a chunk",
}
"""Why slot and pool read samples more than once."""

LESS = 0.95
"""A figure counts as less if it is at most this share of the other."""

SOURCES = (
    ("PyTorch", "torch.utils.data.DistributedSampler; least recently used, per node", "an approximation of Linux"),
    ("CoorDL", "Mohan et al., VLDB 2021; file_loader.cc and file_loader.h of msr-fiddle/CoorDL", "abstract and code"),
    (
        "locality-aware loading",
        "Yang and Cong, HiPC 2019, “Locality-aware data loading” and “Load imbalance”",
        "abstract, and a summary of each section",
    ),
    ("NoPFS", "Dryden et al., SC 2021; Sampler.cpp and StagingBufferPrefetcher.cpp of spcl/NoPFS", "abstract and code"),
    ("Quiver", "Kumar and Sivathanu, FAST 2020", "abstract, and a reimplementation of its fetcher by others"),
    ("SHADE", "Khan et al., FAST 2023; shadesampler.py and shadedataset.py of R-I-S-Khan/SHADE", "abstract and code"),
    (
        "partial shuffle",
        "Nguyen et al., IPDPS 2022, §3; its PartialScheduler",
        "a summary of each section, and code",
    ),
    (
        "DeepIO",
        "Zhu et al., MASCOTS 2018, “In-situ shuffling” and “Opportunistic ordering”",
        "abstract, and a summary of each section",
    ),
    ("DIESEL+", "Wang et al., TPDS 2022; §2.2 of the Redox paper", "abstract, and what the Redox paper says of it"),
    ("WebDataset", "filters.py, shardlists.py, compat.py and the FAQ of webdataset/webdataset", "code"),
    ("Streaming", "py1e.py, py1br.py, shuffling.md and performance_tuning.md of mosaicml/streaming", "code"),
    ("redoxfs slot and pool", "redoxfs.protocol", "the code that serves a mount"),
)
"""Each system, what its policy follows, and how much of that was read."""


def page(report: Report) -> str:
    """The page in Markdown."""
    rows = {row["system"]: row for row in report["rows"]}
    lines = [
        "# Related systems",
        "",
        *_setting(report),
        "",
        *_table(report),
        "",
        "![Mates in a batch over the time of storage](related.svg)",
        "",
        "A node of WebDataset has the same shards in each epoch, and shuffles their names in a buffer of "
        f"{WEBDATASET_SHARDS}. With the pool, the parts of the nodes rotated when this was computed, so most samples "
        "came to a different node in each epoch. Now each node keeps its part, and a share is exchanged. SHADE ranks "
        "samples by their losses. Here they are drawn at random, as no model is trained.",
        "",
        *_claims(report, rows),
        *_shortfalls(report, rows),
        "",
        "The policies follow these sources:",
        "",
        "| system | source | what we read of it |",
        "|---|---|---|",
        *(f"| {name} | {source} | {read} |" for name, source, read in SOURCES),
        "",
    ]
    return "\n".join(lines)


def page_short(report: Report) -> str:
    """What holds: the time of storage and the mates of this and of the other systems."""
    exact = [row for row in report["rows"] if row["exactly_once"]]
    exact.sort(key=lambda row: float(row["storage_s"]))
    told = "; ".join(f"{row['title']} {_hours(row):.2f} h ({_times(_mates(row))})" for row in exact)
    return f"Time of storage in an epoch, and in brackets pairs of neighbours beside chance: {told}."


def _setting(report: Report) -> list[str]:
    nodes = "one node" if report["nodes"] == 1 else f"{report['nodes']} nodes"
    return [
        "How much does each system read, send and hold, and how well does it shuffle? "
        "`scripts/research/simulate.py related` simulates the access policy of each system, without data. The "
        "table shows an epoch in the steady state: "
        f"{report['files']:,} files of {report['sample_bytes']:,} bytes on {nodes}, whose memory holds "
        f"{report['resident']:.0%} of the files. A chunk has {report['chunk_size']} files.",
        "",
        "- *File reads* are random. *Chunk reads*, of a chunk or of a shard, are sequential. *Storage time* counts "
        f"{report['seek_time_s'] * 1000:g} ms for each read, and its bytes at {report['bytes_per_s'] / 1e6:g} MB/s, "
        "with one read after the other. It is not the time of an epoch.",
        "- *Memory* is the largest share of the files that all nodes together hold. Streaming and partial shuffle use "
        "local disks as well; their reads count as reads of the same storage.",
        "- *Displacement* and *rank correlation* compare successive epochs. *Mates* are pairs of samples of one chunk "
        "or shard in a batch of 256, relative to a random order, which has 1. *Same node* is the share of samples that "
        f"come to the same node as in the epoch before: {1 / report['nodes']:.0%} if nodes are random.",
    ]


def _table(report: Report) -> list[str]:
    columns: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("system", lambda row: str(row["title"])),
        ("file reads", lambda row: f"{row['file_reads']:,}"),
        ("chunk reads", lambda row: f"{row['chunk_reads']:,}"),
        ("GB read", lambda row: f"{(row['file_bytes'] + row['chunk_bytes']) / 1e9:.1f}"),
        ("storage time", lambda row: f"{_hours(row):.2f} h"),
        ("GB between nodes", lambda row: f"{row['sent_bytes'] / 1e9:.1f}"),
        ("requests to nodes", lambda row: f"{row['messages']:,}"),
        ("memory", lambda row: f"{row['peak_share']:.1%}"),
        ("each sample once", lambda row: "yes" if row["exactly_once"] else f"no: {row['seen_share']:.0%} seen"),
        ("displacement", lambda row: _or_none(row["displacement"], ".3f")),
        ("rank correlation", lambda row: _or_none(row["rank_correlation"], "+.3f")),
        ("mates", lambda row: _times(_mates(row))),
        ("in the last 5 %", lambda row: _times(row["mate_pairs_at_end"] / row["mate_pairs_if_random"])),
        ("same node", lambda row: _or_none(row["same_node_share"], ".0%")),
    )
    return [
        "| " + " | ".join(heading for heading, _ in columns) + " |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
        *("| " + " | ".join(written(row) for _, written in columns) + " |" for row in report["rows"]),
    ]


def _claims(report: Report, rows: Mapping[str, Row]) -> list[str]:
    """The Redox paper's claims about these systems, beside the figures, as far as the run has the systems."""
    files = report["files"]
    claims: list[tuple[str, str, str]] = []

    def claim(systems: str, where: str, paper: str, found: Callable[..., str]) -> None:
        named = systems.split()
        if all(name in rows for name in named):
            claims.append((where, paper, found(*(rows[name] for name in named))))

    claim(
        "pytorch coordl locality-aware nopfs",
        "§2.2",
        "A cache without eviction has one hit an epoch for each cached file, so memory limits it",
        lambda *of: (
            f"{report['resident']:.0%} of the files in memory: hits "
            + ", ".join(f"{1 - row['file_reads'] / files:.1%} by {row['title']}" for row in of)
        ),
    )
    claim(
        "diesel diesel-chunk slot pool",
        "§2.2",
        "DIESEL affects randomness more than Redox",
        lambda *of: "mates, relative to chance: " + ", ".join(f"{_times(_mates(row))} by {row['title']}" for row in of),
    )
    claim(
        "partial-shuffle slot",
        "§2.2",
        "Local shuffling compromises global randomness",
        lambda partial, slot: (
            f"{_or_none(partial['same_node_share'], '.0%')} of the samples stay on their node from epoch to epoch; "
            f"{_or_none(slot['same_node_share'], '.0%')} under slot"
        ),
    )
    claim(
        "shade",
        "§2.2",
        "SHADE does not train on each item once an epoch",
        lambda row: f"an epoch has {row['seen_share']:.0%} of the samples",
    )
    claim(
        "pytorch coordl slot",
        "§5.3",
        f"An epoch takes {_epoch_times(PAPER_EPOCH_H.values())}",
        lambda *of: f"storage takes {_epoch_times(map(_hours, of))}, one read at a time and without computation",
    )
    if not claims:
        return []
    return [
        "| | the paper | here |",
        "|---|---|---|",
        *(f"| {where} | {paper} | {found} |" for where, paper, found in claims),
        "",
    ]


def _epoch_times(hours: Iterable[float]) -> str:
    pytorch, coordl, slot = hours
    return (
        f"{pytorch:.2f} h under PyTorch, {coordl:.2f} h under CoorDL and {slot:.2f} h under Redox, "
        f"{pytorch / slot:.2f} and {coordl / slot:.2f} times less"
    )


def _shortfalls(report: Report, rows: Mapping[str, Row]) -> list[str]:
    """The systems that do better than slot and pool, by the figures."""
    lines = []
    served_bytes = report["files"] * report["sample_bytes"]
    others = [row for row in rows.values() if row["system"] not in OURS and row["exactly_once"]]
    for name, why in OURS.items():
        if name not in rows:
            continue
        ours = rows[name]
        faster = [row for row in others if row["storage_s"] < LESS * ours["storage_s"]]
        quieter = [row for row in others if row["sent_bytes"] < LESS * ours["sent_bytes"]]
        amplification = (ours["file_bytes"] + ours["chunk_bytes"]) / served_bytes
        reason = f": {why}" if amplification > 1 / LESS else ""
        told = [f"**{ours['title']}** reads {amplification:.2f} bytes for each byte served{reason}."]
        if faster:
            mates = [_mates(row) for row in faster]
            told.append(
                f"Storage takes less time under {_titles(faster)}. These have {_times(min(mates))} to "
                f"{_times(max(mates))} times the mates of a random order; {ours['title']} has {_times(_mates(ours))} "
                "times."
            )
            better = [row for row in faster if _mates(row) < _mates(ours) and row["peak_share"] <= ours["peak_share"]]
            told.append(
                f"Fewer mates in no more memory: {_titles(better)}."
                if better
                else "None of them has fewer mates in no more memory."
            )
        if quieter:
            told.append(f"Fewer bytes go between nodes under {_titles(quieter)}.")
        lines.append("- " + " ".join(told))
    return ["Other systems that serve each sample once do better than redoxfs here:", "", *lines] if lines else []


def _titles(rows: list[Row]) -> str:
    return ", ".join(row["title"] for row in rows)


def _hours(row: Row) -> float:
    return float(row["storage_s"]) / 3600


def _mates(row: Row) -> float:
    return float(row["mate_pairs"]) / float(row["mate_pairs_if_random"])


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _or_none(value: float | None, form: str) -> str:
    # Adding zero makes 0 of -0.
    return "" if value is None else format(round(value, 3) + 0.0, form)
