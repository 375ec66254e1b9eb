"""The arguments of layout, policy and sharing: how samples form chunks, when chunks are read, and by which nodes."""

import argparse
from typing import Any

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.shared_arguments import add_seconds
from redoxfs.launch.defaults import POLICIES, STORAGES


def add_layout(
    verb: "argparse._ActionsContainer", *, default: str = "auto, the fewest that read well; 64 for --policy slot"
) -> list[argparse.Action]:
    """How the samples are laid out in chunks."""
    return [
        verb.add_argument(
            "--chunk-size",
            metavar="N",
            type=values.chunk_size_or_auto,
            help=f"samples in a chunk (default: {default})",
        ),
        verb.add_argument("--seed", metavar="N", type=values.seed, help="same seed, same layout (default: 0)"),
        verb.add_argument(
            "--rescan", action="store_true", help="scan SOURCE again, even if the cached scan is current"
        ),
    ]


def add_policy(verb: "argparse._ActionsContainer") -> list[argparse.Action]:
    return [
        verb.add_argument(
            "--policy",
            choices=tuple(POLICIES),
            help="pool: read each chunk once, ahead of demand; slot: the paper's own (default: pool)",
        ),
        verb.add_argument(
            "--storage-speed",
            metavar="READS,BYTES",
            type=values.storage_speed,
            help="reads and bytes a second of the storage, such as 500,200MB (default: measured where it matters)",
        ),
    ]


def add_sharing(group: "argparse._ActionsContainer") -> list[argparse.Action]:
    from redoxfs.launch.options import SharingOptions

    def default(name: str) -> Any:
        return default_of(SharingOptions, name)

    return [
        group.add_argument(
            "--storage",
            choices=STORAGES,
            help="shared: every node can read all files; local: each node reads its own alone (default: shared)",
        ),
        group.add_argument(
            "--exchange",
            metavar="SHARE",
            type=values.exchange,
            help="share of the samples to take from other nodes, to mix data: 0 to 1 (default: 0.05 to 0.2, by how "
            "much of its part a node retains; --policy pool)",
        ),
        group.add_argument(
            "--remote-memory",
            metavar="SIZE",
            help="part of --memory for samples from other nodes (default: at most an eighth)",
        ),
        add_seconds(
            group,
            "--join-timeout",
            "join_timeout_s",
            f"time for all nodes to start (default: {default('join_timeout_s'):g})",
        ),
        add_seconds(
            group,
            "--peer-timeout",
            "peer_timeout_s",
            "deadline of an open that another node decides; a node silent for half of it is skipped "
            f"(default: {default('peer_timeout_s'):g})",
        ),
        group.add_argument(
            "--prefetch-window",
            metavar="P",
            type=values.window,
            help="requests that a node looks ahead for another; 1: none "
            f"(default: {default('prefetch_window')}; --policy slot)",
        ),
        group.add_argument(
            "--sampler",
            metavar="SPEC",
            type=values.sampler,
            help="the training's sampler, to look ahead: "
            "torch-distributed[,seed=S][,ranks=W][,drop_last][,no_shuffle][,tree=T] "
            "or torch-random,seed=S[,persistent_workers][,tree=T] (--policy slot)",
        ),
    ]
