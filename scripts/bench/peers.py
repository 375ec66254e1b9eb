"""Nodes that take samples from one another over loopback: MB/s through `redoxfs.peers`, beside a bare TCP connection.

    scripts/bench/peers.py [--seconds 3] [--rounds 3] [--sample-bytes 100000] [--batch 10] [--batch 64] [--json FILE]

One process is a home, and one or four others are requesters. A requester keeps 16 messages under way. Every message
brings a batch of samples, and each sample ends in memory of its own. The benchmark takes no decisions and reads nothing
from storage. The same bytes also go over one TCP connection for each requester: `sendall` of the samples at one end,
`recv_into` of one buffer at the other. It needs no root.

How to read the result: rounds are interleaved, and the table gives medians. CPU seconds are those of all processes;
where there are fewer cores than processes, compare them rather than MB/s.
"""

import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import mounts
import numpy as np
import trio
from results import options_of, tell

from redoxfs.chunks.store import FileBytes, Payload, Stamp
from redoxfs.peers import Bounds, Identity, Peers, Reply, View
from redoxfs.protocol import Given, Take
from redoxfs.protocol.events import Answer, Message

REQUESTERS = (1, 4)
BATCHES = (10, 64)
ASKS_AT_ONCE = 16
"""Messages that are under way to a home: as many as workers of a job wait for it."""

PATIENCE_S = 60

fork = multiprocessing.get_context("fork")


class Fake:
    """A home that serves the same few samples again and again, and a requester that asks until it is stopped."""

    def __init__(self, sample_bytes: int, batch: int) -> None:
        self.batch = batch
        data = [os.urandom(sample_bytes) for _ in range(batch)]
        self._payloads: list[Payload] = [(FileBytes(d, Stamp(sample_bytes, 0, 0), changed=False),) for d in data]
        self.ask: Callable[[], None] = lambda: None
        self.bytes_got = 0
        self.cpu_began_s = 0.0

    def handle(self, message: Message) -> Reply:
        samples = tuple(range(len(self._payloads)))
        return Reply(Given(message.home, message.number, 0, 1, samples, 0, 0), self._payloads)

    async def reread(self, sample: int) -> Reply:
        raise NotImplementedError

    def release(self, reply: Reply) -> None:
        pass

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        left = [len(sizes)]
        return [partial(self._sink, left)] * len(answer.samples)

    def _sink(self, left: list[int], payload: Payload) -> None:
        (file,) = payload
        if not isinstance(file, FileBytes):
            return  # the node ends
        self.bytes_got += len(file.data)
        left[0] -= 1
        if not left[0]:
            self.ask()

    def follow(self, requester: int, epoch: int, order: np.ndarray[Any, Any]) -> None:
        pass

    def restarted(self, node: int) -> None:
        pass

    lost = found = restarted

    def kept(self) -> bytes:
        return b""

    turns = kept

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        return ""

    async def follow_state(self, data: bytes) -> None:
        pass

    def set_lap_lineage(self, lap_lineage: str) -> None:
        pass

    def begun(self) -> np.ndarray[Any, Any]:
        return np.zeros(0, np.int32)

    def rejoin(self, begun: np.ndarray[Any, Any]) -> None:
        pass


def by_peers(view: View, node: int, fake: Fake, seconds: float, start: Any, stop: Any) -> int:
    """Run a node until all are done. Returns the bytes that it received."""

    async def main() -> None:
        limits: dict[str, Any] = {"max_answer_bytes": 1 << 30, "bounds": Bounds(1 << 20, 1)}
        peers = Peers(view, node, Identity("bench"), fake, fake, timeout_s=PATIENCE_S, silence_s=PATIENCE_S, **limits)
        await peers.start()
        await peers.join(lambda _: None, PATIENCE_S)
        await trio.to_thread.run_sync(start.wait)
        fake.cpu_began_s = time.process_time()
        if node:
            numbers = iter(range(1 << 40))
            done = trio.current_time() + seconds

            def ask() -> None:
                if trio.current_time() < done:
                    number = next(numbers)
                    acked_below = max(0, number - ASKS_AT_ONCE)
                    peers.send(Take(node, 0, number, acked_below, 0, 1, fake.batch, 1 << 40, 0, 0))

            fake.ask = ask
            for _ in range(ASKS_AT_ONCE):
                ask()
            await trio.sleep_until(done)
        await trio.to_thread.run_sync(stop.wait)
        peers.close()

    trio.run(main)
    return fake.bytes_got


def by_tcp(address: str, node: int, fake: Fake, seconds: float, start: Any, stop: Any, nodes: int) -> int:
    """The same over a TCP connection."""
    host, _, port = address.rpartition(":")
    got = 0
    fake.cpu_began_s = time.process_time()
    if node == 0:
        data = [bytes(f.data) for p in fake._payloads for f in p if isinstance(f, FileBytes)]

        def serve(connection: socket.socket) -> None:
            try:
                while True:
                    for piece in data:
                        connection.sendall(piece)
            except OSError:
                connection.close()

        with socket.create_server((host, int(port))) as listening:
            start.wait()
            threads = [threading.Thread(target=serve, args=(listening.accept()[0],)) for _ in range(nodes - 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stop.wait()
    else:
        start.wait()
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            buffer = bytearray(1 << 20)
            done = time.monotonic() + seconds
            while time.monotonic() < done:
                got += connection.recv_into(buffer)
        stop.wait()
    return got


def run(work: Callable[..., int], requesters: int, batch: int, sample_bytes: int, seconds: float) -> dict[str, float]:
    nodes = requesters + 1
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes)]
    addresses = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in taken)
    for one in taken:
        one.close()
    start, stop, results = fork.Barrier(nodes), fork.Barrier(nodes), fork.SimpleQueue()

    def node_of(node: int) -> None:
        fake = Fake(sample_bytes, batch)
        if work is by_tcp:
            got = by_tcp(addresses[0], node, fake, seconds, start, stop, nodes)
        else:
            got = work(View(1, addresses), node, fake, seconds, start, stop)
        results.put((got, time.process_time() - fake.cpu_began_s))

    processes = [fork.Process(target=node_of, args=(node,)) for node in range(nodes)]
    for process in processes:
        process.start()
    told = [results.get() for _ in processes]
    for process in processes:
        process.join()
    got = sum(one for one, _ in told)
    return {"mb_per_s": got / 1e6 / seconds, "cpu_s_per_gb": sum(cpu for _, cpu in told) / (got / 1e9)}


def measure(seconds: float, rounds: int, sample_bytes: int, batches: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for requesters in REQUESTERS:
        for batch in batches:
            kinds: dict[str, Callable[..., int]] = {"peers": by_peers, "tcp": by_tcp}
            found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, work in kinds.items():
                    found[kind].append(run(work, requesters, batch, sample_bytes, seconds))
            row: dict[str, Any] = {"requesters": requesters, "batch": batch}
            for kind, runs in found.items():
                for key in runs[0]:
                    row[f"{kind}_{key}"] = statistics.median(one[key] for one in runs)
            row["share_of_tcp"] = statistics.median(
                ours["mb_per_s"] / bare["mb_per_s"] for ours, bare in zip(found["peers"], found["tcp"], strict=True)
            )
            rows.append(row)
    return rows


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample-bytes", type=int, default=100_000)
    parser.add_argument("--batch", type=int, action="append", help="samples a message")
    arguments = parser.parse_args()
    rows = measure(arguments.seconds, arguments.rounds, arguments.sample_bytes, arguments.batch or BATCHES)
    result = {"machine": mounts.machine(), "sample_bytes": arguments.sample_bytes, "rows": rows}
    tell(result, arguments.json, *rows[0])


if __name__ == "__main__":
    main()
