"""One setting of overall.py: nodes with disks of their own, the ranks of the training, and each way to read."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loop_disks
import mounts
import nodes
import throttle
from overall_settings import BATCH, CHUNK_SIZE, WORKLOADS, Model, Setting, mbit_per_s

HERE = Path(__file__).parent
MASTER_PORT, CACHE_PORT = 7431, 7432
PATIENCE_S, END_PATIENCE_S = 120, 10

SLACK_BYTES = {"plain": 16 << 20}
MOST_SLACK_BYTES = 64 << 20
"""What processes may use beyond their memory after the warm-up. A forked worker touches more of the memory that it has
from its parent as time passes, and the kernel would end it. PyTorch's page cache gives way by itself, so it needs less.
Until then this is page cache, if the storage has any (`Place.cached`). On a disk with caps it hits for all ways."""

WAYS = {
    "none": "No-I/O",
    "plain": "PyTorch",
    "coordl": "CoorDL",
    "slot": "redoxfs slot, packed",
    "directory": "redoxfs pool, directory",
    "packed": "redoxfs pool, packed",
}

Answers = list[dict[str, Any]]


class Ranks:
    """The processes that train, one for each node."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    def tell(self, **command: Any) -> Answers:
        """Give a command to all, and wait for their answers."""
        for process in self._processes:
            assert process.stdin
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return self.answers()

    def answers(self) -> Answers:
        found = []
        for process in self._processes:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"a rank of the training ended with {process.wait()}")
            found.append(json.loads(line))
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """A node: its disk, where its files are seen, and the groups of its job and of its daemon.

    ``cached``  where PyTorch sees the files. The kernel keeps the pages of these, as PyTorch has no other cache. On a
                store it keeps none of ``files``, so that no other way has more memory than its share
    """

    rank: int
    disk: loop_disks.Disk
    files: Path
    cached: Path
    job: throttle.Group
    daemon: throttle.Group
    inside: list[str]
    """Put before a command, runs it in the network of the node."""

    @property
    def is_store(self) -> bool:
        return self.files != self.disk.folder

    def read(self) -> tuple[int, int]:
        """How many reads the storage did, and of how many bytes."""
        if self.is_store:
            requests, read = zip(*map(throttle.store_read, {self.files, self.cached}), strict=True)
            return sum(requests), sum(read)
        return self.job.reads() + self.daemon.reads(), self.job.read_bytes() + self.daemon.read_bytes()

    def forget(self) -> None:
        """Drop all that the kernel has cached of the files."""
        if self.is_store:
            throttle.drop_caches(names=False)
        else:
            self.disk.forget()


class Run:
    """A setting that is set up. `measure` measures one way after the other."""

    def __init__(
        self,
        setting: Setting,
        profile: throttle.Profile,
        places: list[Place],
        network: nodes.Network | None,
        work: Path,
    ) -> None:
        self._setting, self._profile, self._places, self._network = setting, profile, places, network
        self._work = work
        self._next_epoch = 0
        self._cache: list[dict[str, int]] = []
        self.workers = 2
        self.ranks: Ranks

    def measure(self, way: str, models: Sequence[Model], rounds: int, files: int, total: int) -> list[dict[str, Any]]:
        share_bytes = int(self._setting.share * total)
        for place in self._places:
            place.forget()
            place.daemon.limit_memory(None)
            place.job.limit_memory(None)
        with ExitStack() as stack:
            roots = [(place.cached if way == "plain" else place.files) / "data" for place in self._places]
            pids = [0 for _ in self._places]
            if way in ("slot", "directory", "packed"):
                roots, pids = stack.enter_context(self._mounted(way, share_bytes))
            stack.callback(self.ranks.tell, do="drop")
            self._take(way, roots, share_bytes)
            self._warm_up(way)
            for place in self._places:
                # What PyTorch has instead of a cache; the others have theirs in their own memory.
                kept = share_bytes if way == "plain" else 0
                slack = SLACK_BYTES.get(way, MOST_SLACK_BYTES)
                if way in ("plain", "coordl"):
                    place.job.limit_memory(place.job.used_bytes() + slack + kept)
                if any(pids):
                    # Between two epochs a daemon may hold few samples.
                    held = mounts.stats(roots[place.rank])["memory_used_bytes"]
                    place.daemon.limit_memory(place.daemon.used_bytes() - held + share_bytes + slack)
            return [row for model in models for row in [self._rounds(way, model, rounds, files, roots, pids)]]

    def _take(self, way: str, roots: Sequence[Path], share_bytes: int) -> None:
        addresses = [f"{self._host(place.rank)}:{CACHE_PORT}" for place in self._places]
        more: dict[str, Any] = {"capacity_bytes": share_bytes, "addresses": addresses} if way == "coordl" else {}
        # Each rank has its own root, so commands differ.
        self.ranks.tell(do="data", way=way, roots=[str(root) for root in roots], **more)

    def _warm_up(self, way: str) -> None:
        """An epoch that does not count. Ways that only fill a cache with it read without the caps."""
        if way in ("plain", "coordl"):
            self._cap(throttle.PROFILES["none"])
        self._cache = [answer["cache"] for answer in self.ranks.tell(do="epoch", epoch=0, batch=BATCH, compute_s=0)]
        self._cap(self._profile)
        self.ranks.tell(do="refresh")
        self._next_epoch = 1

    def _cap(self, profile: throttle.Profile) -> None:
        for place in self._places:
            place.job.cap(profile)
            place.daemon.cap(profile)

    def _rounds(
        self,
        way: str,
        model: Model,
        rounds: int,
        files: int,
        roots: Sequence[Path],
        pids: Sequence[int],
    ) -> dict[str, Any]:
        compute_s = (model.share or 0) * self.plain_s_per_file()
        found: list[dict[str, Any]] = []
        cache = [self._cache]
        labels = "file" if WORKLOADS[self._setting.workload].redirect == "any" else "path"
        for _ in range(rounds):
            before = self._counters(way, roots)
            busy, began = _busy_s(), time.monotonic()
            answers = self.ranks.tell(
                do="epoch", epoch=self._next_epoch, batch=BATCH, compute_s=compute_s, labels=labels
            )
            busy, elapsed = _busy_s() - busy, time.monotonic() - began
            self._next_epoch += 1
            after = self._counters(way, roots)
            cache.append([answer["cache"] for answer in answers])
            numbers = [number for answer in answers for number in answer["numbers"]]
            found.append(
                {
                    "seconds": max(answer["seconds"] for answer in answers),
                    "cpu": busy / elapsed / len(os.sched_getaffinity(0)),
                    "wrong_labels": sum(answer["wrong_labels"] for answer in answers),
                    "not_once": files - len(set(numbers)) + len(numbers) - len(set(numbers)),
                    **{name: after[name] - before[name] for name in after},
                }
            )
        self._cache = cache[-1]
        seconds = statistics.median(each["seconds"] for each in found)
        row = {
            "setting": self._setting.name,
            "way": way,
            "model": model.name,
            "rounds_s": [round(each["seconds"], 2) for each in found],
            "files_per_s": round(files / seconds, 1),
            "storage_bytes": round(statistics.median(each["bytes"] for each in found)),
            "storage_reads": round(statistics.median(each["reads"] for each in found)),
            "cpu": round(statistics.median(each["cpu"] for each in found), 3),
            "compute_s": round(compute_s * files / self._setting.nodes, 2),
            "sent_bytes": round(statistics.median(each["sent"] for each in found)),
            "wrong_labels": sum(each["wrong_labels"] for each in found),
            "not_once": sum(each["not_once"] for each in found),
        }
        if way == "coordl":
            first, last = ({place: sum(each[place] for each in of) for place in of[0]} for of in (cache[0], cache[-1]))
            row["cache"] = {place: round((last[place] - first[place]) / rounds) for place in last}
        if any(pids):
            row["daemon_mb"] = round(max(mounts.rss_bytes(pid) for pid in pids) / 1e6)
            row |= {name: round(statistics.median(each[name] for each in found)) for name in _STATS}
        return row

    def plain_s_per_file(self) -> float:
        """The time of a small file on the storage of a node. A step of the GPU takes a share of it."""
        if self._profile.files_per_s:
            return 1 / self._profile.files_per_s
        assert self._profile.delay_ms
        return throttle.REQUESTS_OF_FILE * self._profile.delay_ms / 1e3 / self.workers

    def _counters(self, way: str, roots: Sequence[Path]) -> dict[str, float]:
        told = [mounts.stats(root) for root in roots] if way in ("slot", "directory", "packed") else []
        read = [place.read() for place in self._places]
        return {
            "bytes": sum(of_bytes for _, of_bytes in read),
            "reads": sum(reads for reads, _ in read),
            "sent": self._network.sent_bytes() if self._network else 0,
            **{name: sum(stats[name] for stats in told) for name in (_STATS if told else ())},
        }

    @contextmanager
    def _mounted(self, way: str, memory_bytes: int) -> Iterator[tuple[list[Path], list[int]]]:
        """A redoxfs mount on each node. Their mountpoints and the pids of their daemons."""
        options = ["--memory", str(memory_bytes)]
        if way == "directory":
            options += ["--classes", WORKLOADS[self._setting.workload].redirect]
        if way == "slot":
            options += ["--policy", "slot", "--chunk-size", str(CHUNK_SIZE)]
            options += ["--sampler", "torch-distributed"] * (len(self._places) > 1)
        asked = []
        for place in self._places:
            more = []
            if self._network:
                more = ["--nodes", ",".join(self._network.addresses), "--node-rank", str(place.rank), "--insecure"]
            mountpoint, source = self._work / f"mnt{place.rank}", "data" if way == "directory" else "packed"
            command = [*place.inside, *mounts.redoxfs(place.files / source, mountpoint, *options, *more)]
            asked.append(mounts.Served(command, mountpoint, place.daemon.enter))
        with ExitStack() as stack:
            try:
                servers = stack.enter_context(mounts.served_together(asked, patience_s=PATIENCE_S))
            except SystemExit as error:
                raise RefusedError(mounts.last_line(str(error))) from None
            yield [each.mountpoint for each in asked], [server.pid for server in servers]

    def _host(self, rank: int) -> str:
        return self._network.addresses[rank].rpartition(":")[0] if self._network else "127.0.0.1"

    @contextmanager
    def training(self, workers: int, model: str) -> Iterator[None]:
        """Start the ranks."""
        self.workers = workers
        device = "eth0" if self._network else "lo"
        processes = []
        with ExitStack() as stack:
            for place in self._places:
                command = [*place.inside, sys.executable, str(HERE / "overall_train.py")]
                command += ["--nodes", str(len(self._places)), "--rank", str(place.rank)]
                command += ["--master", f"{self._host(0)}:{MASTER_PORT}", "--workers", str(workers), "--model", model]
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=place.job.enter,
                    env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "GLOO_SOCKET_IFNAME": device},
                )
                stack.callback(_finish, process)
                processes.append(process)
            self.ranks = Ranks(processes)
            self.ranks.answers()
            yield


_STATS = ("chunk_loads", "demand_loads", "in_flight_waits", "remote_samples", "errors")


@contextmanager
def set_up(
    setting: Setting, profile: throttle.Profile, image: Path, mean_bytes: float, work: Path, workers: int
) -> Iterator[Run]:
    """The nodes of a setting, with disks from ``image``, and the ranks of its training."""
    with ExitStack() as stack:
        network = None
        if setting.nodes > 1:
            assert profile.files_per_s
            mbit = mbit_per_s(profile.files_per_s, mean_bytes)
            network = stack.enter_context(nodes.Network(setting.nodes, mbit).up())
        places = []
        for rank in range(setting.nodes):
            disk = stack.enter_context(loop_disks.attached(image, work / f"disk{rank}"))
            groups = [
                stack.enter_context(throttle.throttled(profile, None, disk.folder, f"-{name}{rank}"))
                for name in ("job", "daemon")
            ]
            for group in groups:
                stack.callback(group.kill)
            files = cached = disk.folder
            if profile.delay_ms is not None:
                program = mounts.compiled(HERE.parent / "slow_store.c", work)
                files = cached = work / f"slow{rank}"
                stack.enter_context(mounts.served_by(profile.store(program, disk.folder, files), files))
                # Without places it is storage far away, whose pages no node keeps.
                if profile.at_once:
                    cached = work / f"cached{rank}"
                    command = profile.store(program, disk.folder, cached, "cached")
                    stack.enter_context(mounts.served_by(command, cached))
            inside = ["nsenter", f"--net=/run/netns/{network.spaces[rank]}"] if network else []
            places.append(Place(rank, disk, files, cached, groups[0], groups[1], inside))
        run = Run(setting, profile, places, network, work)
        stack.enter_context(run.training(workers, "cnn" if setting.models[0].share is None else "sleep"))
        yield run


class RefusedError(Exception):
    """redoxfs refused to mount: its own line."""


def _finish(process: "subprocess.Popen[str]") -> None:
    """End a rank, which ends at the end of its input. Workers notice after some seconds that a rank was killed."""
    assert process.stdin
    try:
        process.stdin.close()
        process.wait(END_PATIENCE_S)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


def _busy_s() -> float:
    """Processor time of everything on this machine so far."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
