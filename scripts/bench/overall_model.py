"""What the model of `epoch_times` predicts for the epochs of overall.py.

The model is the one that has the paper's clusters at the paper's size. Here it has this benchmark's storage, links,
memory, loaders and files. No-I/O's epoch calibrates a step. Two figures are calibrated on other rows of the first
setting, 1k-p100 with SqueezeNet: what a request of slow_store.c takes beside its delay, on PyTorch's epoch; and what a
file costs a loader, on its processor time. All other rows are predictions.

The model has no processors that all nodes share, as they do on this machine.
"""

from collections.abc import Mapping
from typing import Any

from epoch_settings import Cluster, Model, Setting, Workload
from epoch_times import measure
from overall_settings import BATCH, PREFETCH, WORKLOADS, slots_share

WAYS = {"plain": "PyTorch", "coordl": "CoorDL", "slot": "slot", "packed": "pool"}
"""The ways of overall.py that the model knows, and its names for them. It does not know redoxfs on a directory."""

STORE_S, FILE_S = 0.2e-3, 0.35e-3
"""Calibrated: what a request of the store takes beside its delay, and what a file costs a loader."""


def predicted_s(way: str, model: str, no_io_s: float, setting: Mapping[str, Any], workers: int) -> float | None:
    """The seconds of an epoch; None where the model has no such storage or way.

    Args:
        no_io_s: of the same model.
        setting: as overall.py writes it.
        workers: of a rank.
    """
    if not setting.get("at_once") or way not in WAYS:
        return None
    files, nodes = setting["files"], setting["nodes"]
    share = setting["memory_share"]
    if way == "slot":
        share *= slots_share(nodes)
    mean_bytes = setting["bytes"] // files
    cluster = Cluster(
        setting["name"],
        memory_bytes=share * setting["bytes"],
        workers=workers,
        latency_s=setting["delay_ms"] / 1e3 + STORE_S,
        reads=setting["at_once"],
        bytes_per_s=setting["bytes_per_s"],
        link_bytes_per_s=(setting["mbit_per_s"] or 1) * 1e6 / 8,
        file_s=FILE_S,
        file_reads=2,
        ahead=PREFETCH,
    )
    classes = 1 if WORKLOADS[setting["workload"]].redirect == "any" else setting["classes"]
    workload = Workload(setting["workload"], files, classes, mean_bytes)
    step = Model(model, no_io_s * nodes / files, BATCH)
    (row,) = measure(Setting(setting["name"], workload, cluster, nodes, (step,), 0, 0, as_mounted=True), WAYS[way])
    return row.seconds
