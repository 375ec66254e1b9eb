"""The paper's epoch times (§5.2) in virtual time: redoxfs' own policies decide, and a model of a node has the rest.

The policies are those that serve a mount. The model has what takes time: the workers of each node, which open a file
and decode it; a DataLoader that keeps them a few batches ahead; steps of the accelerators, for which all nodes wait for
each other; storage with a latency, a number of reads in service and a bandwidth for each node; links between nodes.
`epoch_settings` has the figures and their sources. All samples of a dataset have its mean size.

Nodes ask in the order that follows from these times, so a policy sees an order as in a real job.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from epoch_settings import CHUNK_SIZE, Cluster, Model, Setting

from redoxfs.protocol import Load, Pending
from redoxfs.simulate.cluster import GAP_SAMPLES, Counts, OneNode, Reads, SlotCluster
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import Dataset, one_node, pool_cluster, slot_cluster
from redoxfs.simulate.pool_cluster import PoolCluster

WARM_EPOCHS = 2
"""The third epoch is measured. Those before it take no time."""

NO_IO, NO_PREFETCH = "No-I/O", "slot, no prefetch"
NAMES = (NO_IO, "PyTorch", "CoorDL", "slot", NO_PREFETCH, "pool")

VARIED = ("latency_s", "bytes_per_s", "link_bytes_per_s", "file_s", "memory_bytes", "sample_s")
FACTORS = (0.75, 1.25)


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch.

    ``files``     samples of the dataset
    ``read``      bytes read from storage, as a multiple of the dataset
    ``limit``     the resource that was used most, and ``used``: the share of the time that it was used
    ``varied``    the figure of the setting that was changed, and its factor; empty: none
    """

    setting: str
    model: str
    way: str
    files: int
    seconds: float
    read: float
    limit: str
    used: float
    varied: str = ""


class Line:
    """Reads of one storage, or messages over one link, with a bound on how many are in service.

    A read waits for a place, takes ``latency_s``, and then its bytes' time on the wire, one read after the other.
    """

    def __init__(self, latency_s: float, places: int, bytes_per_s: float) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free = [0.0] * places
        self._wire = 0.0
        self.bytes = 0.0
        self.in_service_s = 0.0

    def take(self, now: float, size_bytes: float) -> float:
        """When the last byte is there."""
        begun = max(now, self._free[0])
        end = self._wire = max(begun + self._latency_s, self._wire) + size_bytes / self._bytes_per_s
        heapq.heapreplace(self._free, end)
        self.bytes += size_bytes
        self.in_service_s += end - begun
        return end

    def used(self, seconds: float) -> float:
        """The share of the time in which all places, or the wire, were taken."""
        return max(self.in_service_s / len(self._free), self.bytes / self._bytes_per_s) / seconds


class Hardware:
    """The storage and the link of each node."""

    def __init__(self, cluster: Cluster, nodes: int, sample_bytes: int) -> None:
        self.sample_bytes = sample_bytes
        self._file_reads = cluster.file_reads
        self.storages = [Line(cluster.latency_s, cluster.reads, cluster.bytes_per_s) for _ in range(nodes)]
        self.links = [Line(cluster.message_s, 1 << 8, cluster.link_bytes_per_s) for _ in range(nodes)]

    def read(self, node: int, now: float, samples: float) -> float:
        return self.storages[node].take(now, samples * self.sample_bytes)

    def read_file(self, node: int, now: float) -> float:
        """A file by itself."""
        for _ in range(self._file_reads - 1):
            now = self.storages[node].take(now, 0)
        return self.read(node, now, 1)

    def send(self, sender: int, receiver: int, now: float, samples: int) -> float:
        size = samples * self.sample_bytes
        return max(self.links[sender].take(now, size), self.links[receiver].take(now, size))


Open = Callable[[int, int, float], float]
"""Open(node, sample, now): when the sample that answers is in the node's memory."""

Orders = Sequence[npt.NDArray[np.int32]]
"""int32[files / nodes] of each node."""


class PyTorch:
    """Files, and the page cache of each node, where the least recently used file is evicted."""

    def __init__(self, setting: Setting, capacity: int) -> None:
        self._capacity = capacity
        self._caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(setting.nodes)]

    def warm(self, dealt: Orders) -> None:
        for node, order in enumerate(dealt):
            for sample in order.tolist():
                self._has(node, sample)

    def opens(self, hardware: Hardware, _dealt: Orders) -> Open:
        return lambda node, sample, now: now if self._has(node, sample) else hardware.read_file(node, now)

    def _has(self, node: int, sample: int) -> bool:
        cache = self._caches[node]
        if sample in cache:
            cache.move_to_end(sample)
            return True
        cache[sample] = None
        if len(cache) > self._capacity:
            cache.popitem(last=False)
        return False


class CoorDL:
    """A cache without eviction, of which each node has a part; other nodes read it over the network."""

    def __init__(self, setting: Setting, capacity: int) -> None:
        self._left = [capacity] * setting.nodes
        self._holder = np.full(setting.workload.files, -1, np.int8)

    def warm(self, dealt: Orders) -> None:
        for node, order in enumerate(dealt):
            new = order[self._holder[order] < 0][: self._left[node]]
            self._holder[new] = node
            self._left[node] -= len(new)

    def opens(self, hardware: Hardware, _dealt: Orders) -> Open:
        holder = self._holder.tolist()

        def at(node: int, sample: int, now: float) -> float:
            held = holder[sample]
            if held == node:
                return now
            return hardware.read_file(node, now) if held < 0 else hardware.send(held, node, now, 1)

        return at


class Redoxfs:
    """A policy of one node, or those of several."""

    def __init__(self, name: str, setting: Setting, capacity: int, seed: int) -> None:
        workload, nodes = setting.workload, setting.nodes
        self._whole_chunks = name != "pool" and not setting.as_mounted
        self._is_cut = setting.as_mounted
        resident = min(1.0, capacity * nodes / workload.files)
        dataset = Dataset(workload.files, workload.classes, 0.0, CHUNK_SIZE, resident, seed)
        self._driver: OneNode | SlotCluster | PoolCluster
        if nodes == 1:
            policy, cells, _ = one_node("pool" if name == "pool" else "slot", dataset)
            self._driver = OneNode(policy, cells)
            # Policies, or nodes; the latter also have messages.
            self._nodes: Sequence[Any] = [policy]
        elif name == "pool":
            pools, cells, _ = pool_cluster(dataset, nodes)
            self._driver, self._nodes = pools, pools.nodes
        else:
            slots, layout = slot_cluster(dataset, nodes, prefetches=name == "slot")
            cells, self._driver, self._nodes = layout.cells, slots, slots.nodes
        cluster, gap_samples = setting.cluster, GAP_SAMPLES
        if setting.as_mounted:
            # A gap is read that takes no longer than another read.
            gap_bytes = cluster.latency_s * cluster.bytes_per_s / cluster.reads
            gap_samples = int(gap_bytes / workload.sample_bytes)
        self._reads = Reads(cells, gap_samples)
        self._there = [0.0] * workload.files

    def warm(self, dealt: Orders) -> None:
        if isinstance(self._driver, OneNode):
            self._driver.epoch(dealt[0])
        else:
            self._driver.epoch(dealt)

    def opens(self, hardware: Hardware, dealt: Orders) -> Open:
        nodes, there = self._nodes, self._there
        # The time begins anew with each epoch.
        there[:] = [0.0] * len(there)

        def load(node: int, loads: Sequence[Load], now: float) -> None:
            for each in loads:
                counts = Counts()
                self._reads.count((each,), counts)
                samples = counts.samples_read if self._whole_chunks else counts.samples_swept
                reads = counts.sweeps if self._is_cut else 1
                arrives = max([hardware.read(node, now, samples / reads) for _ in range(reads)])
                for sample in each.samples:
                    there[sample] = arrives

        def exchange(node: int, now: float) -> dict[int, Any]:
            """Answer the messages of a node until it sends no more. Returns the turns by ticket."""
            delivered: dict[int, Any] = {}
            while nodes[node].outbox:
                message = nodes[node].outbox.pop(0)
                home = message.home
                handled = nodes[home].handle(message)
                load(home, handled.loads, now)
                answer = handled.answer
                samples = answer.samples
                ready = max((there[sample] for sample in samples), default=now)
                arrives = hardware.send(home, node, max(now, ready), len(samples))
                for sample in samples:
                    there[sample] = arrives
                delivered.update(nodes[node].receive(answer) or ())
            return delivered

        def at(node: int, sample: int, now: float) -> float:
            turn = nodes[node].request(sample)
            if len(nodes) > 1 and nodes[node].outbox:
                delivered = exchange(node, now)
                if isinstance(turn, Pending):
                    turn = delivered[turn.ticket]
            if turn.loads:
                load(node, turn.loads, now)
            return max(now, there[turn.sample])

        if isinstance(self._driver, SlotCluster):
            self._driver.follow(dealt)
        return at


def way(name: str, setting: Setting, capacity: int, seed: int) -> PyTorch | CoorDL | Redoxfs:
    if name == "PyTorch":
        return PyTorch(setting, capacity)
    return CoorDL(setting, capacity) if name == "CoorDL" else Redoxfs(name, setting, capacity, seed)


def measure(setting: Setting, name: str, *, seed: int = 0, others: Sequence[tuple[str, Setting]] = ()) -> Iterator[Row]:
    """The third epoch with each model. The models share the epochs before it, and each has one after the other.

    Args:
        others: settings with the same memory, and what is varied in them. Their epochs follow.
    """
    workload, nodes = setting.workload, setting.nodes
    epochs = count()

    def dealt() -> Orders:
        return orders(workload.files, nodes, seed=seed, epoch=next(epochs))

    capacity = int(min(workload.files, setting.cluster.memory_bytes / workload.sample_bytes))
    made = None if name == NO_IO else way(name, setting, capacity, seed)
    if made is not None:
        for _ in range(WARM_EPOCHS):
            made.warm(dealt())
    variants = [("", setting), *others]
    for label, cluster, model in [(label, each.cluster, model) for label, each in variants for model in each.models]:
        hardware = Hardware(cluster, nodes, workload.sample_bytes)
        these = dealt()
        if made is None:
            # Samples are made in memory, at no cost.
            seconds = run(these, lambda _node, _sample, now: now, cluster, model, 0.0)
        else:
            own_s = cluster.file_s + (cluster.open_s if isinstance(made, Redoxfs) else 0.0)
            seconds = run(these, made.opens(hardware, these), cluster, model, own_s)
        per_node = len(these[0])
        used = {
            "storage": max(line.used(seconds) for line in hardware.storages),
            "network": max(line.bytes / cluster.link_bytes_per_s for line in hardware.links) / seconds,
            "workers": 0.0 if made is None else per_node * own_s / cluster.workers / seconds,
            "compute": per_node * model.sample_s / seconds,
        }
        limit = max(used, key=lambda each: used[each])
        total = workload.files * workload.sample_bytes
        read = sum(line.bytes for line in hardware.storages) / total
        yield Row(setting.name, model.name, name, workload.files, seconds, read, limit, used[limit], label)


def run(dealt: Orders, opens: Open, cluster: Cluster, model: Model, own_s: float) -> float:
    """The time of an epoch in which node i trains on ``dealt[i]``. A file costs a worker ``own_s`` beside waiting."""
    nodes, samples, workers = len(dealt), len(dealt[0]), cluster.workers
    lists = [order.tolist() for order in dealt]
    next_open = [0] * nodes
    batches = -(-samples // model.batch)
    ahead = workers * cluster.ahead
    ready: list[dict[int, float]] = [{} for _ in range(nodes)]
    """Of each node, by batch: when it is complete."""
    fetched: list[list[float]] = [[] for _ in range(nodes)]
    """Of each node: when the trainer takes each batch, which lets a worker begin another."""
    waiting: list[dict[int, tuple[float, int]]] = [{} for _ in range(nodes)]
    ends: list[float] = [0.0]
    events: list[tuple[float, int, int, int, int]] = []
    order_of_pushes = count()

    def size_of(batch: int) -> int:
        return min(model.batch, samples - batch * model.batch)

    def push(now: float, node: int, batch: int, left: int) -> None:
        heapq.heappush(events, (now, next(order_of_pushes), node, batch, left))

    def begin(node: int, batch: int, now: float) -> None:
        """A worker that is free begins its next batch, once the trainer took the one that lets it."""
        if batch >= batches:
            return
        needed = batch - ahead
        if needed < 0:
            push(now, node, batch, size_of(batch))
        elif needed < len(fetched[node]):
            push(max(now, fetched[node][needed]), node, batch, size_of(batch))
        else:
            waiting[node][needed] = (now, batch)

    def train() -> None:
        """All steps whose batches are complete."""
        while len(ends) <= batches:
            step = len(ends) - 1
            for node in range(nodes):
                if len(fetched[node]) == step and step in ready[node]:
                    taken = max(ready[node][step], ends[-1])
                    fetched[node].append(taken)
                    if step in waiting[node]:
                        free, batch = waiting[node].pop(step)
                        push(max(free, taken), node, batch, size_of(batch))
            if any(len(taken) == step for taken in fetched):
                return
            ends.append(max(taken[step] for taken in fetched) + size_of(step) * model.sample_s)
            for of_node in ready:
                del of_node[step]

    for node in range(nodes):
        for worker in range(min(workers, batches)):
            push(0.0, node, worker, size_of(worker))
    while events:
        now, _, node, batch, left = heapq.heappop(events)
        sample = lists[node][next_open[node]]
        next_open[node] += 1
        now = opens(node, sample, now) + own_s
        if left > 1:
            push(now, node, batch, left - 1)
            continue
        ready[node][batch] = now
        train()
        begin(node, batch + workers, now)
    return ends[-1]


def measure_varied(setting: Setting, name: str, *, seed: int = 0) -> Iterator[Row]:
    """`measure` for the first model, as the setting is, and with each figure a quarter lower and higher."""
    one = replace(setting, models=setting.models[:1])
    changed = [(f"{what} x {factor:g}", varied(one, what, factor)) for what in VARIED for factor in FACTORS]
    same_memory = [each for each in changed if each[1].cluster.memory_bytes == one.cluster.memory_bytes]
    yield from measure(one, name, seed=seed, others=same_memory)
    for label, other in changed:
        if other.cluster.memory_bytes != one.cluster.memory_bytes:
            for row in measure(other, name, seed=seed):
                yield replace(row, varied=label)


AS_IT_IS = "as it is"


def by_figure(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What `measure_varied` found, in a row for each setting and way: ``seconds`` by what is varied."""
    found: dict[tuple[str, str, str, int], dict[str, float]] = {}
    for row in rows:
        seconds = found.setdefault((row.setting, row.model, row.way, row.files), {})
        seconds[row.varied or AS_IT_IS] = row.seconds
    names = ("setting", "model", "way", "files", "seconds")
    return [dict(zip(names, (*key, seconds), strict=True)) for key, seconds in found.items()]


def best_speed_up(seconds: Mapping[tuple[str, str, str], float], setting: str, way: str, over: str) -> float:
    """Of ``way`` over another way, the best over all models of a setting; 0 if none has both.

    ``seconds``: of an epoch, by setting, model and way.
    """
    models = {model for of, model, _ in seconds if of == setting}
    pairs = [(seconds.get((setting, model, over)), seconds.get((setting, model, way))) for model in models]
    return max((base / own for base, own in pairs if base is not None and own is not None), default=0.0)


def varied(setting: Setting, what: str, factor: float) -> Setting:
    """The setting with one figure changed."""
    if what == "sample_s":
        models = tuple(replace(model, sample_s=model.sample_s * factor) for model in setting.models)
        return replace(setting, models=models)
    cluster = replace(setting.cluster, **{what: getattr(setting.cluster, what) * factor})
    return replace(setting, cluster=cluster)


def shrunk(setting: Setting, files: int) -> Setting:
    """The setting with fewer files, and memory and classes in proportion. Batches stay."""
    workload, cluster = setting.workload, setting.cluster
    if files >= workload.files:
        return setting
    share = files / workload.files
    smaller = replace(workload, files=files, classes=max(1, round(workload.classes * share)))
    return replace(setting, workload=smaller, cluster=replace(cluster, memory_bytes=cluster.memory_bytes * share))
