"""Cut, partitioned and slow links between nodes in network namespaces: every open ends in time."""

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import netspaces
import pytest
from images import make_images, path_in
from machine import Machine
from netspaces import Network
from patience import PATIENCE_S, until
from t5_lost_nodes import IN_TIME_S, OPTIONS, PATIENT, SLOT, names_of, states

NODES = 3
READERS = 2
CLASSES = {"c12": 12, "c18": 18, "c30": 30, "c60": 60}
SLOW_MBIT = 2
SLOW_CLASSES = {"c12": 12, "c15": 15, "c21": 21}
SLOW_BYTES = 66_000
"""Samples of 33 to 165 kB, about 100 kB each: 0.4 s over a slow link."""

SURELY = 0.5
"""A slow link takes at least this share of the time by its rate: it does not delay the first bytes of a burst."""

WHY_NOT = netspaces.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("images"), CLASSES, typical_bytes=4_000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("images"), SLOW_CLASSES, typical_bytes=SLOW_BYTES)


def make_source(root: Path, classes: dict[str, int], *, typical_bytes: int) -> Path:
    make_images(root, classes, typical_bytes=typical_bytes)
    largest = max(classes, key=lambda name: classes[name])
    # This file is empty, so its content cannot identify it.
    (root / f"train/{largest}/train-{largest}-0.png").unlink()
    return root


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(NODES).up() as network:
        yield network


@dataclass(frozen=True)
class Opened:
    """An open and its result; ``served`` is None if it failed."""

    name: str
    served: str | None
    began: float
    seconds: float


@dataclass
class Job:
    """Readers at all nodes: each reads its part of an epoch and skips files that it cannot read."""

    opened: list[list[Opened]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    wrong: list[BaseException] = field(default_factory=list)

    @contextmanager
    def running(self, mountpoints: Sequence[Path], names: Sequence[str]) -> Iterator[None]:
        """Run the readers during the block; all have ended after it."""
        readers = len(mountpoints) * READERS
        for node, mountpoint in enumerate(mountpoints):
            self.opened.append([])
            for reader in range(READERS):
                part = names[node + len(mountpoints) * reader :: readers]
                self.threads.append(threading.Thread(target=self._read, args=(mountpoint, part, self.opened[node])))
        for thread in self.threads:
            thread.start()
        yield
        for thread in self.threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "an open hangs"
        assert not self.wrong
        assert sum(map(len, self.opened)) == len(names)

    def _read(self, mountpoint: Path, names: Sequence[str], opened: list[Opened]) -> None:
        try:
            for name in names:
                began = time.monotonic()
                served = None
                try:
                    served = path_in((mountpoint / name).read_bytes())
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                assert served is None or served.split("/")[1] == name.split("/")[1], f"{name} gave {served}"
                opened.append(Opened(name, served, began, time.monotonic() - began))
        except BaseException as error:
            # Otherwise the error is lost with its thread.
            self.wrong.append(error)

    def done(self) -> int:
        return sum(map(len, self.opened))

    def failed(self) -> int:
        return sum(opened.served is None for part in self.opened for opened in part)

    def longest_s(self) -> float:
        return max(opened.seconds for part in self.opened for opened in part)

    def turns(self) -> Counter[str]:
        return Counter(opened.served for part in self.opened for opened in part if opened.served is not None)


def epoch(mountpoints: Sequence[Path], names: Sequence[str]) -> Job:
    job = Job()
    with job.running(mountpoints, names):
        pass
    return job


def start(machine: Machine, network: Network, source: Path, options: Sequence[str]) -> list[Path]:
    return network.mount(machine, source, [*OPTIONS, *options])


def expect(machine: Machine, told: dict[Path, list[str]]) -> float:
    """Wait until each node reports the given states of the others; return the time."""
    until(lambda: all(states(machine, mountpoint) == wanted for mountpoint, wanted in told.items()))
    return time.monotonic()


def check_fault(
    machine: Machine,
    mountpoints: Sequence[Path],
    names: Sequence[str],
    fault: Callable[[], None],
    told: dict[Path, list[str]],
) -> None:
    """Let links fail in the middle of an epoch; check opens until the nodes report ``told``, and later."""
    assert epoch(mountpoints, names).turns() == dict.fromkeys(names, 1)
    job = Job()
    with job.running(mountpoints, names):
        until(lambda: job.done() > len(names) // 4)
        fault()
        known_s = expect(machine, told)
    later = epoch(mountpoints, names)
    for each in (job, later):
        assert each.longest_s() < IN_TIME_S
    # An open may fail only if it began before the node was known to be lost.
    assert all(opened.served is not None for part in job.opened for opened in part if opened.began > known_s)
    assert later.failed() == 0


def check_recovered(machine: Machine, network: Network, mountpoints: Sequence[Path], names: Sequence[str]) -> None:
    """All nodes reach each other again: no open fails, and laps that begin anew are exact."""
    all_ready = {mountpoint: ["ready", "ready"] for mountpoint in mountpoints}
    expect(machine, all_ready)
    again = epoch(mountpoints, names)
    assert again.failed() == 0
    assert again.longest_s() < IN_TIME_S
    for mountpoint in mountpoints:
        machine.ok("nodes", mountpoint, "--set", ",".join(network.addresses))
    expect(machine, all_ready)
    assert epoch(mountpoints, names).turns() == dict.fromkeys(names, 1)


def test_opens_end_in_time_when_a_link_is_cut_and_laps_recover(
    machine: Machine, network: Network, source: Path
) -> None:
    """With the pool policy: t5_lost_nodes, where a node hangs."""
    mountpoints = start(machine, network, source, SLOT)
    names = names_of(source)
    told = {
        mountpoints[0]: ["ready", "unreachable"],
        mountpoints[1]: ["ready", "unreachable"],
        mountpoints[2]: ["unreachable", "unreachable"],
    }
    check_fault(machine, mountpoints, names, lambda: network.cut(2), told)
    network.join(2)
    check_recovered(machine, network, mountpoints, names)


@pytest.mark.parametrize("options", [(), SLOT])
def test_opens_end_in_time_when_two_nodes_reach_only_a_third(
    machine: Machine, network: Network, source: Path, options: tuple[str, ...]
) -> None:
    mountpoints = start(machine, network, source, options)
    names = names_of(source)
    told = {
        mountpoints[0]: ["unreachable", "ready"],
        mountpoints[1]: ["unreachable", "ready"],
        mountpoints[2]: ["ready", "ready"],
    }
    check_fault(machine, mountpoints, names, lambda: network.part(0, 1), told)
    network.part(0, 1, parted=False)
    check_recovered(machine, network, mountpoints, names)


@pytest.mark.parametrize("options", [("--exchange", "0.5"), SLOT])
def test_opens_end_in_time_over_a_slow_link_each_sample_once(
    machine: Machine, network: Network, large: Path, options: tuple[str, ...]
) -> None:
    mountpoints = start(machine, network, large, (*options, *PATIENT))
    names = names_of(large)
    network.slow(2, SLOW_MBIT)
    began = time.monotonic()
    job = epoch(mountpoints, names)
    taken_s = time.monotonic() - began
    told = machine.stats(mountpoints[2])
    carried_bytes = max(told["remote_bytes_in"], told["remote_bytes_out"])
    assert 0 < carried_bytes * 8 / (SLOW_MBIT * 1_000_000) * SURELY < taken_s, "the link was not slow"
    assert job.longest_s() < IN_TIME_S
    assert job.failed() == 0
    assert job.turns() == dict.fromkeys(names, 1)


OWN_NAME = r"""
mount --bind "$0" /etc/hosts
exec "$@"
"""
"""For a shell in a new mount namespace: a command with another list of hosts."""


def test_nodes_meet_whose_own_names_are_loopback_addresses(machine: Machine, source: Path, network: Network) -> None:
    """As on Debian, whose installer writes 127.0.1.1 beside the name of the machine."""
    hosts = [address.partition(":")[0] for address in network.addresses[:2]]

    def inside(node: int) -> list[str]:
        lines = ["127.0.0.1 localhost", f"127.0.1.1 redox-{node}", f"{hosts[1 - node]} redox-{1 - node}"]
        path = machine.folder / f"hosts-{node}"
        path.write_text("\n".join(lines) + "\n")
        in_namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", OWN_NAME, str(path)]
        return [*network.inside(node), *in_namespace]

    names = [f"redox-{node}:{netspaces.PORT}" for node in range(2)]
    machine.mount_nodes(source, names, *OPTIONS, "--insecure", inside=inside)
    assert all("all nodes have answered" in told for told in machine.told)
