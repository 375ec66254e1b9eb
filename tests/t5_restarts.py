"""Daemons of three nodes die under readers that check every byte, and their keepers start others: no reader notices.

The readers of all nodes share the epochs (`reading_job.py`), so each sample must come once in each epoch over all nodes
together. No lap may end short, and no node may take another for lost. `scripts/bench/restarts.py --nodes 3` kills more
often, over real links.
"""

import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deaths import Case, Found, Storm, serve
from machine import Machine
from patience import PATIENCE_S, SLOWNESS
from reading_job import Job, make_files

NODES = 3
READERS = 6
# So many for each reader; one class is larger than another.
FILES = 15 * READERS
CLASSES = 4
LARGEST_BYTES = 20_000
KILLS = 3
FIRST_SEED = 339
"""With it and the next three, three daemons die when most of their start is over, and twice two nodes die at once."""
# Much longer than a successor takes to start, also on a busy machine: a node that is taken for lost fails the test.
PATIENT = ("--peer-timeout", str(2 * PATIENCE_S))
# Other nodes send ahead what a node asks for next.
IN_ORDER = "torch-distributed,no_shuffle"
POOL = Case("pool", "directory", sharing=("--exchange", "0.3", *PATIENT))
SLOT = Case("slot", "packed", sharing=PATIENT)
# A node can read again only what lies at itself.
LOCAL = Case("pool", "packed", sharing=("--storage", "local", "--exchange", "0.3", *PATIENT))
CASES = [
    LOCAL,
    Case("pool", "directory", groups=True, sharing=("--exchange", "0.3", *PATIENT)),
    Case("slot", "packed", "direct_io", sharing=PATIENT),
    Case("slot", "directory", "page_cache", sharing=("--sampler", IN_ORDER, *PATIENT)),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Without captions, and with them."""
    roots = {groups: tmp_path_factory.mktemp("files") / "data" for groups in (False, True)}
    for groups, root in roots.items():
        make_files(root, FILES, CLASSES, LARGEST_BYTES, groups=groups)
    return roots


@pytest.fixture(scope="module", autouse=True)
def no_core_files() -> Iterator[None]:
    """A daemon that is killed by SIGSEGV would leave one."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def job(machine: Machine, case: Case, seed: int) -> Job:
    return Job(
        str(machine.mnt),
        FILES,
        CLASSES,
        LARGEST_BYTES,
        READERS,
        seed=seed,
        groups=case.groups,
        nodes=NODES,
        shuffles=IN_ORDER not in case.sharing,
        exact=not case.is_local,
    )


def storm(machine: Machine, sources: dict[bool, Path], case: Case, seed: int = 0) -> Storm:
    """Three nodes, with readers at each."""
    source = sources[case.groups]
    serve(machine, source, case, nodes=NODES, packs=source.parent)
    return Storm(machine, job(machine, case, seed))


def told(machine: Machine, node: int) -> dict[str, Any]:
    return machine.stats(machine.mnt / str(node))


def nobody_noticed(machine: Machine, found: Found, deaths: int) -> None:
    """All readers read whole epochs of right bytes, each sample once over all nodes; the mounts end as any others."""
    assert found.problems == []
    assert (found.errors, found.wrong, found.not_once) == (0, 0, 0)
    assert len(found.told) == READERS
    assert len(found.deaths) == deaths
    assert found.complete_epochs > 0
    stats = [told(machine, node) for node in range(NODES)]
    assert [each["lap"] for each in stats] == [{".": found.complete_epochs}] * NODES
    assert [each["missed"] for each in stats] == [0] * NODES
    assert [each["open_files"] for each in stats] == [0] * NODES
    assert sum(each["keeper"]["restarts"] for each in stats) == deaths
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()
    assert "Traceback" not in machine.log()
    assert "is unreachable" not in machine.log()


@pytest.mark.parametrize(("seed", "case"), list(enumerate(CASES, FIRST_SEED)), ids=str)
def test_readers_do_not_notice_that_nodes_are_killed(
    machine: Machine, sources: dict[bool, Path], seed: int, case: Case
) -> None:
    with storm(machine, sources, case, seed) as running:
        running.kill(KILLS)
        found = running.finish()
    nobody_noticed(machine, found, KILLS)


@pytest.mark.parametrize(
    ("case", "how"), [(POOL, signal.SIGSEGV), (SLOT, signal.SIGKILL), (LOCAL, signal.SIGKILL)], ids=str
)
def test_readers_do_not_notice_that_nodes_die_at_once(
    machine: Machine, sources: dict[bool, Path], case: Case, how: signal.Signals
) -> None:
    """And that one is restarted on purpose among the others, which have just come back."""
    with storm(machine, sources, case) as running:
        running.run_by_chance()
        running.die(*range(NODES), how=how)
        running.restart(1)
        found = running.finish()
    nobody_noticed(machine, found, NODES + 1)


@pytest.mark.parametrize("case", [SLOT, LOCAL], ids=str)
def test_readers_do_not_notice_a_death_as_an_epoch_begins_or_in_a_request(
    machine: Machine, sources: dict[bool, Path], case: Case
) -> None:
    with storm(machine, sources, case) as running:
        for node, opens in enumerate((1, 8)):
            running.begin_epoch()
            running.run(opens)
            running.die(node)
        # Node 1 stops, so that opens at node 0 wait for its answers; then one of the two is killed.
        for dies in (0, 1):
            has_died = False
            while not has_died:
                # With an epoch before it, node 0 has something to ask for, unless its readers were through with this
                # one before node 1 stopped.
                running.begin_epoch()
                stopped = running.nodes[1].daemon
                os.kill(stopped, signal.SIGSTOP)
                try:
                    if running.comes(lambda: told(machine, 0)["waiting_opens"] > 0):
                        running.die(dies)
                        has_died = True
                finally:
                    if not has_died or dies != 1:
                        os.kill(stopped, signal.SIGCONT)
        found = running.finish()
    nobody_noticed(machine, found, 4)


def test_a_node_without_a_keeper_is_lost_to_the_others(machine: Machine, sources: dict[bool, Path]) -> None:
    """The readers of this file do notice what there is to notice."""
    # A slow node that is taken for lost gives the readers more of the same to notice.
    case = replace(POOL, sharing=(*POOL.sharing, "--peer-timeout", str(8 * SLOWNESS)))
    serve(machine, sources[False], case, nodes=NODES, has_keeper=False)
    with Storm(machine, job(machine, case, 0), has_keeper=False) as running:
        running.run_by_chance()
        running.die(0)
        found = running.finish()
    # A reader that is reading what it has mapped gets no error: the kernel kills it.
    killed = [problem for problem in found.problems if problem.endswith(f"ended with {-signal.SIGBUS}")]
    assert found.errors + len(killed) > 0
    assert found.not_once > 0
