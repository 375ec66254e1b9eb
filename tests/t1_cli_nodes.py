"""Who the nodes are: hostlists, every source of a membership, the meeting at node 0; sums and traces of nodes."""

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from ports import reserve

from redoxfs.cli import cluster, main, status
from redoxfs.cli.arguments import parse, rendered
from redoxfs.cli.trace import relative_paths
from redoxfs.launch.addresses import Here, expand, needs_insecure, split_address
from redoxfs.launch.errors import UsageError
from redoxfs.launch.members import (
    Auto,
    Dns,
    Listed,
    Membership,
    check_nodes,
    membership,
    parse_nodes,
    remote_memory_of,
)
from redoxfs.launch.options import MountOptions
from redoxfs.launch.rendezvous import rendezvous


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def here(name: str = "elsewhere", names: Mapping[str, Sequence[str]] | None = None, own: Sequence[str] = ()) -> Here:
    """A machine that is called ``name`` and has the addresses ``own``, where the DNS knows ``names``."""

    def resolve(host: str) -> Sequence[str]:
        if host not in (names or {}):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (names or {})[host]

    time = Clock()
    return Here(name, resolve, own.__contains__, time.clock, time.sleep)


def mount(*options: str) -> MountOptions:
    made = parse(["mount", "/data", "/mnt", *options]).options
    assert isinstance(made, MountOptions)
    return made


def members_of(*options: str, environ: Mapping[str, str] | None = None, at: Here | None = None) -> Membership | None:
    asked = mount(*options)
    return membership(asked.cluster, asked.memory.policy, environ or {}, at or here())


def nodes(*options: str, environ: Mapping[str, str] | None = None, at: Here | None = None) -> Membership | None:
    return members_of("--insecure", "--nodes", *options, environ=environ, at=at)


# Hostlists


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[001-003,07],gpu1", ["n001", "n002", "n003", "n07", "gpu1"]),
        ("r[1-2]c[0-1]", ["r1c0", "r1c1", "r2c0", "r2c1"]),
        ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
        ("a,n[08-10],z.example", ["a", "n08", "n09", "n10", "z.example"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_a_slurm_hostlist_is_expanded(hostlist: str, hosts: list[str]) -> None:
    assert expand(hostlist) == hosts


@st.composite
def compressed(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A hostlist of ranges, and the hosts it was made of."""
    items: list[str] = []
    hosts: list[str] = []
    for prefix in draw(st.lists(st.from_regex(r"\A[a-z]([a-z0-9-]*[a-z])?\Z"), min_size=1, max_size=4)):
        width = draw(st.integers(1, 5))
        ranges: list[str] = []
        for first, more in draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 9)), max_size=3)):
            numbers = [str(number).zfill(width) for number in range(first, first + more + 1)]
            ranges.append(numbers[0] if more == 0 else f"{numbers[0]}-{first + more}")
            hosts += [prefix + number for number in numbers]
        items.append(f"{prefix}[{','.join(ranges)}]" if ranges else prefix)
        hosts += [] if ranges else [prefix]
    return ",".join(items), hosts


@given(compressed())
@pytest.mark.slow
def test_expanding_undoes_compressing(made: tuple[str, list[str]]) -> None:
    hostlist, hosts = made
    assert expand(hostlist) == hosts


@pytest.mark.parametrize(
    "hostlist",
    [
        "",
        ",",
        "a,,b",
        "a,",
        "n[",
        "n[1-2",
        "n]1[",
        "n[]",
        "n[1-]",
        "n[-1]",
        "n[2-1]",
        "n[1,,2]",
        "n[a-b]",
        "n[1-2-3]",
        "n[[1]]",
        "n[1-2]x y",
        "n[1-128]",
        "n[0-999999999]",
        "n[1-9999999999]",
        "a[1-99]b[1-99]c[1-99]d[1-99]e[1-99]",
        "a[1-100],b[1-28]",
        "a\n",
        "a" * 10_000 + "[",
    ],
)
def test_an_invalid_or_too_long_hostlist_is_refused(hostlist: str) -> None:
    with pytest.raises(UsageError):
        expand(hostlist)


@given(st.text("n[],-01\n ", max_size=30))
def test_any_text_is_a_short_hostlist_or_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except UsageError:
        return
    assert 1 <= len(hosts) <= 127
    assert not any(set(host) & set("[], \n") for host in hosts)


# Addresses


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("H1:1,h2:65535,10.0.0.1", Listed(("h1:1", "h2:65535", "10.0.0.1:7420"))),
        ("[fe80::0:1]:7,[::1]", Listed(("[fe80::1]:7", "[::1]:7420"))),
        ("auto", Auto(7420)),
        ("auto:99", Auto(99)),
        ("dns:train.ns.svc", Dns("train.ns.svc", 7420)),
        ("dns:train:99", Dns("train", 99)),
    ],
)
def test_nodes_can_be_a_list_auto_or_a_dns_name(text: str, source: object) -> None:
    assert parse_nodes(text) == source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an address"),
        ("a,,b", "not an address"),
        ("a:0", "not a port"),
        ("a:65536", "not a port"),
        ("a:x", "not a port"),
        ("a:", "not a port"),
        ("a:-1", "not a port"),
        ("auto:", "not a port"),
        ("auto:70000", "not a port"),
        ("dns:", "not an address"),
        ("dns:a:b", "not a port"),
        ("::1", "not a node"),
        ("fe80::1:7420", "not a node"),
        ("[10.0.0.1]:7", "not an address"),
        ("10.1:7", "not an address"),
        ("010.0.0.1:7", "not an address"),
        ("0.0.0.0:7", "no machine has the address"),
        ("[::]:7", "no machine has the address"),
        ("a b:7", "not a host name"),
        ("-a:7", "not a host name"),
        ("http://a:7", "not a node"),
        ("ä:7", "not a host name"),
        ("a..b:7", "not a host name"),
        (".b:7", "not a host name"),
        (f"{'a' * 64}.b:7", "not a host name"),
        ("a:7,b:7,A:7", "a:7 is listed twice, as node 0 and as node 2"),
        ("a,a:7420", "listed twice"),
        (",".join(f"n{i}" for i in range(128)), "more than 127"),
    ],
)
def test_an_invalid_list_of_nodes_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_nodes(text)


@given(st.text(max_size=40))
def test_any_text_is_a_host_and_a_port_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except UsageError:
        return
    assert split_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == (host, port)
    assert 1 <= port <= 65535


# Contradictions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--exchange 0.1 --policy slot --nodes a,b", "--exchange is for --policy pool"),
        ("--storage local --policy slot --nodes a,b", "--storage local is for --policy pool"),
        ("--sampler torch-distributed --nodes a,b", "--sampler is for --policy slot"),
        ("--prefetch-window 1 --nodes a,b", "--prefetch-window is for --policy slot"),
        ("--remote-memory much --nodes a,b", "not a size"),
        ("--node-rank 0", "--node-rank needs --nodes"),
        ("--node-count 2", "--node-count needs --nodes"),
        ("--exchange 0.5", "--exchange needs --nodes"),
        ("--insecure", "--insecure needs --nodes"),
        ("--tls-cert c --tls-key k --tls-ca a", "--tls-cert needs --nodes"),
        ("--tls-cert c", "--tls-cert needs --tls-key and --tls-ca"),
        ("--nodes a,b --tls-cert c --tls-ca a", "--tls-cert, --tls-ca needs --tls-key"),
        ("--nodes a,b --tls-key k", "--tls-key needs --tls-cert and --tls-ca"),
        ("--nodes a,b --insecure --tls-cert c --tls-key k --tls-ca a", "give one of them"),
        ("--nodes a,b --node-rank 2", "--nodes has 2, counted from 0"),
        ("--nodes auto --node-rank 0", "is a place in a list"),
        ("--nodes dns:a --node-count 3 --node-rank 0", "is a place in a list"),
        ("--nodes dns:a", "needs --node-count"),
        ("--nodes a,b,a", "listed twice"),
    ],
)
def test_contradicting_options_are_refused(options: str, words: str) -> None:
    asked = mount(*options.split())
    with pytest.raises(UsageError, match=words):
        check_nodes(asked.cluster, asked.memory.policy)


def test_contradicting_options_give_one_line_and_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["cluster", "up", str(tmp_path), str(tmp_path / "x"), "--nodes", "2", "--policy", "slot", "--exchange", "1"]
    assert main(line) == 2
    assert capfd.readouterr().err.startswith("redoxfs: --exchange is for --policy pool")
    assert not (tmp_path / "x").exists()


def test_cluster_up_needs_all_tls_files_and_passes_them_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["cluster", "up", str(tmp_path), str(tmp_path / "x"), "--nodes", "2", "--tls-cert", "c"]
    assert main(line) == 2
    assert capfd.readouterr().err.startswith("redoxfs: --tls-cert needs --tls-key and --tls-ca")
    made = parse([*line, "--tls-key", "k", "--tls-ca=a"]).options
    assert rendered(made.mount) == ["--tls-cert=c", "--tls-key=k", "--tls-ca=a", "--", str(tmp_path)]


@pytest.mark.parametrize(("asked", "size"), [(None, 128), ("25%", 256), ("100%", 1024), ("64", 64)])
def test_remote_memory_is_a_part_of_memory(asked: str | None, size: int) -> None:
    options = [] if asked is None else ["--remote-memory", asked]
    assert remote_memory_of(mount(*options).cluster.sharing, 1024) == size


def test_remote_memory_cannot_be_more_than_memory() -> None:
    with pytest.raises(UsageError, match="is more than --memory"):
        remote_memory_of(mount("--remote-memory", "2k").cluster.sharing, 1024)


# The list


def test_a_single_node_is_no_cluster() -> None:
    assert members_of() is None
    assert nodes("a:1", "--node-rank", "0") is None
    slurm = {"SLURM_JOB_NODELIST": "n7", "SLURM_NODEID": "0"}
    assert nodes("auto", environ=slurm) is None


def test_node_rank_sets_the_rank() -> None:
    environ = {"SLURM_NODEID": "0"}
    assert nodes("a:1,b:2,c", "--node-rank", "2", environ=environ) == Membership(("a:1", "b:2", "c:7420"), 2)


@pytest.mark.parametrize("variable", ["SLURM_NODEID", "GROUP_RANK", "JOB_COMPLETION_INDEX"])
def test_the_environment_sets_the_rank(variable: str) -> None:
    assert nodes("a,b", environ={variable: "1"}) == Membership(("a:7420", "b:7420"), 1)
    with pytest.raises(UsageError, match=f"{variable}=2, but there are 2 nodes"):
        nodes("a,b", environ={variable: "2"})
    with pytest.raises(UsageError, match=f"{variable}='x' is not a number"):
        nodes("a,b", environ={variable: "x"})
    with pytest.raises(UsageError, match=f"{variable}=1, and node 1 is b:7420, but this machine, a, is node 0"):
        nodes("a,b", environ={variable: "1"}, at=here("a"))


@pytest.mark.parametrize(
    ("listed", "at", "rank"),
    [
        ("a,b,c", here("b"), 1),
        ("a.x,b.x", here("b"), 1),
        ("a,b", here("B.x.y"), 1),
        ("n1.a,n1.b", here("n1.b"), 1),
        ("n1.a,n1.b", here("n1", {"n1.a": ["10.0.0.1"], "n1.b": ["10.0.0.2"]}, ["10.0.0.2"]), 1),
        ("10.0.0.1,10.0.0.2", here("n", own=["10.0.0.2", "127.0.0.1"]), 1),
        ("a,b,c", here("n", {"a": ["10.0.0.1"], "c": ["10.0.0.9", "fe80::2"]}, ["fe80::2"]), 2),
    ],
)
def test_the_rank_is_the_entry_that_is_this_machine(listed: str, at: Here, rank: int) -> None:
    found = nodes(listed, at=at)
    assert found is not None
    assert found.rank == rank


@pytest.mark.parametrize(
    ("listed", "at", "words"),
    [
        ("a,b", here("c"), "none of the nodes is this machine, c; .*--node-rank"),
        ("127.0.0.1:1,127.0.0.1:2", here(own=["127.0.0.1"]), "nodes 0, 1 are this machine"),
        ("a:1,a:2,b", here("a", {"a": ["10.0.0.1"]}, ["10.0.0.1"]), "nodes 0, 1 are this machine"),
    ],
)
def test_an_ambiguous_rank_asks_for_node_rank(listed: str, at: Here, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        nodes(listed, at=at)


def test_node_count_must_match_the_list() -> None:
    assert nodes("a,b", "--node-rank", "0", "--node-count", "2") is not None
    with pytest.raises(UsageError, match="--node-count 3, but there are 2 nodes"):
        nodes("a,b", "--node-rank", "0", "--node-count", "3")


def test_plaintext_over_a_network_must_be_allowed() -> None:
    names = {"localhost": ["127.0.0.1", "::1"], "far": ["127.0.0.1", "10.0.0.1"], "none": []}
    resolve = here(names=names).resolve
    assert not needs_insecure(["127.0.0.1:1", "[::1]:2", "localhost:3", "127.9.9.9:4"], resolve)
    for host in ("10.0.0.1", "far", "none", "unknown", "[fe80::1]"):
        assert needs_insecure(["127.0.0.1:1", f"{host}:2"], resolve)
    with pytest.raises(UsageError, match="--insecure"):
        members_of("--nodes", "127.0.0.1,10.0.0.1", "--node-rank", "0")
    assert members_of("--nodes", "127.0.0.1:1,127.0.0.1:2", "--node-rank", "0") is not None
    tls = ("--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a")
    assert members_of("--nodes", "127.0.0.1,10.0.0.1", "--node-rank", "0", *tls) is not None


# Slurm and torchrun


def test_slurm_sets_the_nodes_and_the_rank() -> None:
    environ = {"SLURM_JOB_NODELIST": "n[01-03]", "SLURM_NODEID": "2"}
    assert nodes("auto", environ=environ) == Membership(("n01:7420", "n02:7420", "n03:7420"), 2)
    environ["SLURM_STEP_NODELIST"] = "n[02-03]"
    environ["SLURM_NODEID"] = "1"
    assert nodes("auto:9", environ=environ) == Membership(("n02:9", "n03:9"), 1)
    del environ["SLURM_NODEID"]
    assert nodes("auto", environ=environ, at=here("n03.cluster")) == Membership(("n02:7420", "n03:7420"), 1)


@pytest.mark.parametrize("hostlist", ["n[1-", "n1,n1", "n[1-2]_!"])
def test_an_invalid_slurm_environment_is_refused(hostlist: str) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST: "):
        nodes("auto", environ={"SLURM_JOB_NODELIST": hostlist, "SLURM_NODEID": "0"})


TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict.fromkeys(TORCHRUN, ""), "neither Slurm's .* nor torchrun's variables"),
        ({"GROUP_RANK": ""}, "nor torchrun's GROUP_RANK"),
        ({"WORLD_SIZE": "7"}, "do not give a number of nodes"),
        ({"WORLD_SIZE": "0"}, "do not give a number of nodes"),
        ({"LOCAL_WORLD_SIZE": "0"}, "do not give a number of nodes"),
        ({"WORLD_SIZE": "512"}, "do not give a number of nodes"),
        ({"WORLD_SIZE": "eight"}, "WORLD_SIZE='eight' is not a number"),
        ({"GROUP_RANK": "2"}, "make 2 nodes"),
        ({"MASTER_ADDR": "a b"}, "not a host name"),
    ],
)
def test_an_invalid_torchrun_environment_is_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        nodes("auto", environ=TORCHRUN | change)


def test_torchrun_on_one_node_needs_no_meeting() -> None:
    assert nodes("auto", environ=TORCHRUN | {"WORLD_SIZE": "4", "GROUP_RANK": "0"}) is None


def test_the_meeting_over_a_network_must_be_allowed() -> None:
    with pytest.raises(UsageError, match="--insecure"):
        members_of("--nodes", "auto", environ=TORCHRUN | {"MASTER_ADDR": "10.0.0.1"})


# A name in the DNS


def test_a_dns_name_is_polled_until_it_has_all_addresses() -> None:
    answers: list[list[str] | OSError] = [
        socket.gaierror(socket.EAI_NONAME, "unknown"),
        ["10.0.0.10"],
        ["10.0.0.10", "10.0.0.9", "10.0.0.10"],
        ["10.0.0.100", "10.0.0.10", "10.0.0.9"],
    ]

    def resolve(name: str) -> list[str]:
        assert name == "train"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    time = Clock()
    at = Here("pod", resolve, ["10.0.0.10"].__contains__, time.clock, time.sleep)
    found = nodes("dns:train:9", "--node-count", "3", at=at)
    assert found == Membership(("10.0.0.9:9", "10.0.0.10:9", "10.0.0.100:9"), 1)
    assert not answers


def test_a_node_with_ipv4_and_ipv6_counts_once() -> None:
    at = here("pod", {"train": ["fe80::1", "10.0.0.2", "10.0.0.1", "fe80::2"]}, ["10.0.0.1", "fe80::1"])
    found = nodes("dns:train", "--node-count", "2", at=at)
    assert found == Membership(("10.0.0.1:7420", "10.0.0.2:7420"), 0)
    at = here("pod", {"train": ["fe80::10", "fe80::9"]}, ["fe80::10"])
    assert nodes("dns:train", "--node-count", "2", at=at) == Membership(("[fe80::9]:7420", "[fe80::10]:7420"), 1)


@pytest.mark.parametrize(
    ("names", "own", "words"),
    [
        ({"train": ["10.0.0.1"]}, ["10.0.0.1"], "has 1 addresses after 300 s, not the 2 of --node-count"),
        ({"train": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]}, ["10.0.0.1"], "has 3 addresses"),
        ({}, ["10.0.0.1"], "has 0 addresses .*not known"),
        ({"train": ["10.0.0.1", "10.0.0.2"]}, [], "none is an address of this machine"),
        ({"train": ["10.0.0.1", "10.0.0.2"]}, ["10.0.0.1", "10.0.0.2"], "2 are addresses of this machine"),
    ],
)
def test_a_dns_name_with_wrong_addresses_fails_at_the_deadline(
    names: dict[str, list[str]], own: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        nodes("dns:train", "--node-count", "2", at=here("pod", names, own))


def test_an_address_is_our_own_if_it_can_be_bound() -> None:
    assert Here().is_own("127.0.0.1")
    assert not Here().is_own("192.0.2.1")
    assert "127.0.0.1" in Here().resolve("127.0.0.1")


# The meeting at node 0


@pytest.fixture
def port() -> int:
    return reserve(1)[0]


def meet(port: int, rank: int, count: int = 3, *, own_port: int = 0, timeout_s: float = PATIENCE_S) -> tuple[str, ...]:
    return rendezvous(f"127.0.0.1:{port}", rank=rank, nodes=count, port=own_port or port + rank, timeout_s=timeout_s)


def all_at_once(*calls: Callable[[], tuple[str, ...]]) -> list["Future[tuple[str, ...]]"]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(call) for call in calls]


def call_with(port: int, line: bytes) -> bytes:
    """What node 0 answers to ``line``, once it listens; b"" if it hangs up."""
    ends = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as call:
                call.sendall(line)
                return call.makefile("rb").readline()
        except ConnectionRefusedError:
            ends.wait(0.01)
    raise AssertionError("nobody listens")


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.slow
def test_nodes_that_meet_all_get_the_same_list(port: int, count: int) -> None:
    met = all_at_once(*[lambda rank=rank: meet(port, rank, count) for rank in reversed(range(count))])
    expected = tuple(f"127.0.0.1:{port + rank}" for rank in range(count))
    assert [each.result() for each in met] == [expected] * count


def test_under_torchrun_the_nodes_meet(port: int) -> None:
    def member(rank: int) -> Membership | None:
        return members_of("--nodes", f"auto:{port}", environ=TORCHRUN | {"GROUP_RANK": str(rank)}, at=Here())

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(member, 0), threads.submit(member, 1)
        # Both are on one machine, and so at one address, which only node 0 can tell them.
        with pytest.raises(UsageError, match="nodes 0 and 1 are both at"):
            second.result()
        call_with(port, json.dumps({"rank": 1, "nodes": 2, "address": f"127.0.0.1:{port + 1}"}).encode() + b"\n")
        assert first.result() == Membership((f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"), 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "no line of a redoxfs node"),
        (b"GET / HTTP/1.1\r\n", "no line of a redoxfs node"),
        (b"[]\n", "no line of a redoxfs node"),
        (b"{}\n", "no line of a redoxfs node"),
        (b"[" * 4000 + b"\n", "no line of a redoxfs node"),
        (b'{"rank": true, "nodes": 2, "address": "a:1"}\n', "no line of a redoxfs node"),
        (b'{"rank": 1, "nodes": 2, "address": "a b:1"}\n', "no line of a redoxfs node"),
        (b'{"rank": 1, "nodes": 2, "address": 7}\n', "no line of a redoxfs node"),
        (b"\xff\xfe\n", "no line of a redoxfs node"),
        (b"x" * 5000, "more than one short line"),
        (b'{"rank": 1, "nodes": 2, "address": "a:1"}\n\n', "more than one short line"),
        (b'{"rank": 1, "nodes": 3, "address": "a:1"}\n', "node 1 at a:1 counts 3 nodes, and node 0 counts 2"),
        (b'{"rank": 2, "nodes": 2, "address": "a:1"}\n', "a:1 claims to be node 2 of 2"),
        (b'{"rank": -1, "nodes": 2, "address": "a:1"}\n', "a:1 claims to be node -1 of 2"),
        (b'{"rank": 0, "nodes": 2, "address": "a:1"}\n', "both claim to be node 0"),
    ],
)
def test_an_invalid_caller_is_refused_and_the_others_meet(
    port: int, line: bytes, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(meet, port, 0, 2)
        assert words in json.loads(call_with(port, line))["error"]
        second = threads.submit(meet, port, 1, 2)
        assert first.result() == second.result()
    told = [said for said in capfd.readouterr().err.splitlines() if "was refused" in said]
    assert len(told) == 1
    assert words in told[0]


def test_the_later_of_two_nodes_with_one_rank_is_refused(port: int) -> None:
    ready = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(meet, port, 0, 3)
        twins = [threads.submit(meet, port, 1, 3, own_port=own) for own in (101, 102)]
        while not any(twin.done() for twin in twins):
            ready.wait(0.01)
        threads.submit(meet, port, 2, 3, own_port=103)
        refused = [twin.exception() for twin in twins if twin.exception() is not None]
        assert len(refused) == 1
        assert "127.0.0.1:101" in str(refused[0])
        assert "127.0.0.1:102" in str(refused[0])
        assert "both claim to be node 1" in str(refused[0])
        assert len(first.result()) == 3


def test_a_node_that_hangs_up_may_call_again(port: int) -> None:
    line = json.dumps({"rank": 1, "nodes": 3, "address": "127.0.0.1:101"}).encode() + b"\n"
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(meet, port, 0, 3)
        call_with(port, b"x\n")
        with socket.create_connection(("127.0.0.1", port)) as call:
            call.sendall(line)
        again = [threads.submit(meet, port, rank, 3) for rank in (1, 2)]
        assert {each.result() for each in again} == {first.result()}


def test_node_0_names_the_missing_nodes_at_the_deadline(port: int) -> None:
    with pytest.raises(UsageError, match=r"1 of 3 nodes were at 127.0.0.1:\d+ within 0.2 s; missing: 1, 2$"):
        meet(port, 0, timeout_s=0.2)


def test_the_others_also_learn_which_nodes_are_missing(port: int) -> None:
    is_over = threading.Event()
    at = Here(clock=lambda: 2 * PATIENCE_S if is_over.is_set() else 0.0)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(
            rendezvous, f"127.0.0.1:{port}", rank=0, nodes=3, port=port, timeout_s=PATIENCE_S, here=at
        )
        call_with(port, b"who listens?\n")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as call:
            call.sendall(json.dumps({"rank": 1, "nodes": 3, "address": "127.0.0.1:101"}).encode() + b"\n")
            # Once the next is refused, this one was heard.
            call_with(port, b"and me?\n")
            is_over.set()
            told = json.loads(call.makefile("rb").readline())["error"]
        with pytest.raises(UsageError) as error:
            first.result()
    assert str(error.value) == told
    assert re.search(r"2 of 3 nodes were .* missing: 2; 127.0.0.1:\d+ was refused: sent no line", told)


def test_a_node_reports_that_node_0_is_missing(port: int) -> None:
    with pytest.raises(UsageError, match=r"node 0 at 127.0.0.1:\d+ had no list .* within 0.2 s: Connection refused"):
        meet(port, 1, timeout_s=0.2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400\r\n", "not that of a redoxfs node"),
        (b"[]\n", "not that of a redoxfs node"),
        (b'{"nodes": ["a b"]}\n', "not that of a redoxfs node"),
        (b'{"nodes": ["a:1"]}\n', "lists 1 nodes, not 3"),
        (b"x" * 200_000, "not that of a redoxfs node"),
    ],
)
def test_another_server_at_the_address_of_node_0_is_detected(answer: bytes, words: str) -> None:
    def stranger(listening: socket.socket) -> None:
        call, _ = listening.accept()
        with call:
            call.recv(1 << 16)
            call.sendall(answer)
            call.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        done = threads.submit(stranger, listening)
        with pytest.raises(UsageError, match=words):
            meet(int(listening.getsockname()[1]), 1)
        done.exception()


def test_a_port_in_use_is_reported(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UsageError, match=r"node 0 cannot listen at 127.0.0.1:\d+: Address already in use"),
    ):
        meet(port, 0)


def test_loopback_nodes_cannot_join_nodes_elsewhere(port: int) -> None:
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(meet, port, 0), threads.submit(meet, port, 1)
        line = json.dumps({"rank": 2, "nodes": 3, "address": "10.0.0.1:7420"}).encode() + b"\n"
        told = json.loads(call_with(port, line))["error"]
        assert "node 1 is at 127.0.0.1" in told
        for each in (first, second):
            with pytest.raises(UsageError, match="where nodes on other machines cannot reach it"):
                each.result()


# What nodes tell


def test_status_of_a_cluster_shows_the_other_nodes() -> None:
    stats = {
        "node": 1,
        "nodes": 3,
        "exchange": 0.05,
        "opens": 58_762,
        "remote_samples": 1234,
        "remote_requests": 96,
        "remote_bytes_in": 12 << 20,
        "remote_bytes_out": 0,
        "prefetched": 1000,
        "degraded": 3,
        "peers": [
            {"address": "host0:7420", "node": 0, "state": "ready"},
            {"address": "host2:7420", "node": 2, "state": "unreachable", "reason": "timed out"},
        ],
    }
    rows = dict(status.rows(stats))
    assert rows["node"] == "1, one of 3"
    assert rows["peers"] == "1 ready, host2:7420 unreachable (timed out)"
    assert rows["from other nodes"] == "1,234 samples (2.1%) in 96 requests, 12.0 MiB; --exchange 0.05"
    assert (rows["prefetched"], rows["degraded"]) == ("1,000", "3")
    assert not {"conflicts", "to other nodes"} & rows.keys()
    stats["peers"] = [{"address": f"h{i}:1", "node": i, "state": "ready"} for i in range(2)]
    assert dict(status.rows(stats))["peers"] == "2 ready"


def test_status_of_a_single_node_shows_no_other_nodes() -> None:
    rows = dict(status.rows({"opens": 5, "remote_samples": 0, "remote_requests": 0, "degraded": 0}))
    assert rows.keys() == {"opens"}


def test_counters_are_summed_and_settings_are_not() -> None:
    stats = [
        {"pid": 7, "node": 0, "nodes": 2, "exchange": 0.2, "opens": 3, "wait_seconds": 0.5, "lap": {"": 1}},
        {"pid": 8, "node": 1, "nodes": 2, "chunk_size": 8, "opens": 4, "wait_seconds": 0.25, "source": "/data"},
    ]
    assert cluster.summed(stats) == {"opens": 7, "wait_seconds": 0.75}


# Traces


def test_a_trace_has_paths_below_the_mount() -> None:
    text = b"a/b.jpg\n\n/mnt/x/c.jpg\n./a//d\xff.jpg\n/link/e f.jpg\na/../g"
    expected = [b"a/b.jpg", b"c.jpg", b"a/d\xff.jpg", b"e f.jpg", b"g"]
    assert relative_paths(text, [b"/mnt/x", b"/link"], "order") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "order: contains no paths"),
        (b"\n\n", "order: contains no paths"),
        (b"a\n/mnt/xy/b", "order, line 2: /mnt/xy/b is not below /mnt/x"),
        (b"/mnt/x", "order, line 1: /mnt/x is not below /mnt/x"),
        (b"../b", "order, line 1: ../b is not a file below /mnt/x"),
        (b".", "is not a file below"),
        (b"a\0b", "is not a file below"),
    ],
)
def test_a_trace_with_a_path_elsewhere_names_its_line(text: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        relative_paths(text, [b"/mnt/x"], "order")


def test_a_missing_cluster_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0").mkdir()
    for what in ("status", "down"):
        assert main(["cluster", what, str(tmp_path)]) == 4
        assert "no nodes of a cluster are mounted there" in capfd.readouterr().err
        assert main(["cluster", what, str(tmp_path / "none")]) == 4
        assert "no such directory" in capfd.readouterr().err
    assert (tmp_path / "0").exists()
