"""Whether the other nodes can be reached: a TCP connection to the port of each, and how long it takes.

To connect takes one round trip. The port of a node that has not been started is closed, which is no fault of the
network; so the two are told apart. Nothing is sent.
"""

import socket
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.launch.addresses import joined, split_address
from redoxfs.launch.deadline import call_in_child

CONNECT_S = 3.0
"""For one connection: three attempts of TCP, which waits 1 s before the second."""

ATTEMPTS = 3
"""The first also looks up hardware addresses, so the median counts."""

SLOW_S = 0.01
"""Far away: an open that another node answers takes several round trips, and a local read about as long."""


def check_nodes(addresses: Sequence[str]) -> list[Result]:
    """A line for each node. Raises UsageError for what is no address."""
    nodes = [split_address(address) for address in addresses]
    # A resolver may take as long again.
    most_s = CONNECT_S * (ATTEMPTS + 2)
    try:
        found = call_in_child(lambda: _try_all(nodes), most_s)
    except TimeoutError:
        return [problem("nodes", f"no answer within {most_s:g} s, from the resolver perhaps", "getent hosts NAME")]
    except OSError as failure:
        return [problem("nodes", str(failure.strerror))]
    return [_result(host, port, each) for (host, port), each in zip(nodes, found, strict=True)]


def _try_all(nodes: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        return list(pool.map(_try, nodes))


def _try(node: tuple[str, int]) -> dict[str, Any]:
    times: list[float] = []
    for _ in range(ATTEMPTS):
        try:
            family, kind, _, _, address = socket.getaddrinfo(*node, type=socket.SOCK_STREAM)[0]
        except OSError as failure:
            return {"why": "name", "text": str(failure.strerror)}
        with socket.socket(family, kind) as client:
            client.settimeout(CONNECT_S)
            began = time.monotonic()
            try:
                client.connect(address)
            except ConnectionRefusedError:
                return {"why": "closed", "seconds": time.monotonic() - began}
            except TimeoutError:
                return {"why": "silent", "text": f"no answer within {CONNECT_S:g} s"}
            except OSError as failure:
                return {"why": "unreachable", "text": str(failure.strerror)}
            times.append(time.monotonic() - began)
    return {"why": None, "seconds": statistics.median(times)}


def _result(host: str, port: int, found: dict[str, Any]) -> Result:
    name = f"node {joined(host, port)}"
    trip = float(found.get("seconds", 0.0))
    match found["why"]:
        case None:
            shown = f"port open, round trip {trip * 1000:.2f} ms"
            if trip > SLOW_S:
                return warning(name, f"{shown}: far away; each node should read its own part", seconds=trip)
            return ok(name, shown, seconds=trip)
        case "closed":
            shown = f"the host answers in {trip * 1000:.2f} ms, but nothing listens at port {port}"
            # Perhaps nothing has been started yet.
            return warning(name, shown, f"start redoxfs mount --nodes … there; ss -ltn sport = :{port}", seconds=trip)
        case "name":
            return problem(name, f"the name is not found: {found['text']}", f"getent hosts {host}")
        case "silent":
            return problem(
                name, f"{found['text']}: a firewall, or the host is down", f"ping {host}; nc -vz {host} {port}"
            )
        case _:
            return problem(name, str(found["text"]), f"ip route get {host}")
