"""A network namespace for each node, joined by a bridge in another; links can be cut, isolated and slowed.

The machine's own namespace is not changed. A test run that is killed leaves namespaces whose names begin with
`redoxfs-test-`; `ip netns del NAME` removes one with its links.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from machine import Machine

PORT = 7420
SWITCH = "switch"

_numbers = itertools.count()


def why_not() -> str | None:
    """The reason why no network namespace can be made here; None if one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"redoxfs-test-{os.getpid()}-probe"
    try:
        for words in (["ip", "netns", "add", name], ["ip", "netns", "del", name], ["tc", "-V"], ["nsenter", "-V"]):
            _run(*words)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no network namespaces here: {reason}"
    return None


class Network:
    """Nodes 0 to ``nodes`` - 1. Node i listens at ``addresses[i]``, in a namespace of its own."""

    def __init__(self, nodes: int) -> None:
        self._mark = f"redoxfs-test-{os.getpid()}-{next(_numbers)}"
        self.addresses = [f"10.78.0.{node + 1}:{PORT}" for node in range(nodes)]

    @contextmanager
    def up(self) -> Iterator["Network"]:
        """Make the namespaces, with all links up, and remove them at the end; each is gone when its processes are."""
        made: list[str] = []
        try:
            for name in (SWITCH, *range(len(self.addresses))):
                _run("ip", "netns", "add", self._space(name))
                made.append(self._space(name))
            self._ip(SWITCH, "link", "add", "bridge", "type", "bridge")
            self._ip(SWITCH, "link", "set", "bridge", "up")
            for node, address in enumerate(self.addresses):
                there = ("peer", "name", _port(node), "netns", self._space(SWITCH))
                self._ip(node, "link", "add", "eth0", "type", "veth", *there)
                self._ip(SWITCH, "link", "set", _port(node), "master", "bridge", "up")
                self._ip(node, "addr", "add", f"{address.partition(':')[0]}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    self._ip(node, "link", "set", device, "up")
            yield self
        finally:
            for space in made:
                subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def mount(self, machine: Machine, source: Path | Sequence[Path], options: Sequence[str]) -> list[Path]:
        """A node of ``machine`` in each namespace; its mountpoints."""
        return machine.mount_nodes(source, self.addresses, *options, "--insecure", inside=self.inside)

    def inside(self, node: int) -> list[str]:
        """Put before a command, runs it in the node's network namespace and in the machine's mount namespace."""
        return ["nsenter", f"--net=/run/netns/{self._space(node)}"]

    def cut(self, node: int) -> None:
        """Pull the node's cable: packets are dropped both ways, without an error at either end."""
        self._ip(SWITCH, "link", "set", _port(node), "down")

    def join(self, node: int) -> None:
        """Put the cable back."""
        self._ip(SWITCH, "link", "set", _port(node), "up")

    def part(self, one: int, other: int, *, parted: bool = True) -> None:
        """Drop packets between the two nodes; both still reach all others."""
        for node in (one, other):
            self._ip(SWITCH, "link", "set", _port(node), "type", "bridge_slave", "isolated", "on" if parted else "off")

    def slow(self, node: int, mbit: int) -> None:
        """Cap the bandwidth of the node's link, each way."""
        for space, device in ((node, "eth0"), (SWITCH, _port(node))):
            for words in (
                ["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1"],
                ["class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", f"{mbit}mbit"],
            ):
                _run("tc", "-n", self._space(space), *words)

    def _space(self, name: int | str) -> str:
        return f"{self._mark}-{name}"

    def _ip(self, name: int | str, *words: str) -> None:
        _run("ip", "-n", self._space(name), *words)


def _port(node: int) -> str:
    return f"port{node}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
