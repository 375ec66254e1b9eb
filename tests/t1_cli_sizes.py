"""Amounts of memory, and what a process may take, over a procfs and cgroup folders made of files."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.launch.errors import UsageError
from redoxfs.launch.memory import available_memory, default_memory
from redoxfs.launch.sizes import (
    counted,
    format_bytes,
    format_needed,
    format_seconds,
    format_time,
    parse_size,
)

GIB = 1 << 30
MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("512MiB", 512 * MIB),
        ("2G", 2 * GIB),
        ("2g", 2 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("1GB", 10**9),
        ("1kb", 1000),
        ("1k", 1024),
        ("1048576", MIB),
        ("1048576B", MIB),
        ("10%", 100),
        ("100%", 1000),
        ("0.1%", 1),
        ("8191.9P", 81919 * 2**50 // 10),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text, 1000) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1G", "1e9", "4 Gi", "4 GiBs", "4iB", "101%", "0", "0%", "0.01%", "0.1B", "\u0661G", "1_000", "nan"],
)
def test_an_invalid_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_size(text, 1000)
    assert repr(text) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lots", "--memory lots: not a size"),
        ("0", "--memory 0: less than one"),
        ("", "--memory '': not a size"),
        ("8192PiB", "--memory 8192PiB: more than a file or a memory can have; write less than 8192PiB"),
        ("99999999999999999999P", "--memory 99999999999999999999P: more than a file or a memory can have"),
        (str(2**63), f"--memory {2**63}: more than a file or a memory can have"),
    ],
)
def test_an_invalid_size_names_its_option(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_size(text, 1000, "--memory")


@pytest.mark.parametrize("text", ["10%", "lots"])
def test_a_share_of_nothing_is_no_size(text: str) -> None:
    words = f"--shard-size {text}: not a size; write it like 4GiB, 512MiB, 2G or plain bytes"
    with pytest.raises(UsageError, match=f"^{re.escape(words)}$"):
        parse_size(text, None, "--shard-size")


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (12_000, "12,000 classes")]
)
def test_a_count_agrees_with_its_noun(count: int, shown: str) -> None:
    assert counted(count, "class", "classes") == shown
    assert counted(count, "file") == shown.replace("classes", "files").replace("class", "file")


@given(st.integers(1, 1 << 60))
def test_a_needed_size_typed_back_suffices(size: int) -> None:
    typed = parse_size(format_needed(size), 1)
    assert size <= typed <= size * 1.1 + 1


def test_a_needed_size_is_spelled_as_it_is_typed() -> None:
    assert [format_needed(size) for size in (999, 296 * 1024, 4 * GIB, 4 * GIB + 1)] == [
        "999B",
        "296KiB",
        "4GiB",
        "4.1GiB",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (0.001, "under 0.1 s"), (0.1, "0.1 s"), (1.26, "1.3 s"), (4321.0, "4,321.0 s")]
)
def test_a_short_time_is_not_shown_as_zero(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 us"),
        (87e-6, "87 us"),
        (0.0009996, "1 ms"),
        (0.00149, "1.49 ms"),
        (0.25, "250 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (99.4, "99.4 s"),
        (99.6, "1.66 min"),
        (5400, "90 min"),
        (6000, "1.67 h"),
        (4e6, "1,111 h"),
    ],
)
def test_a_long_or_short_time_has_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@given(st.floats(1e-6, 1e6), st.integers(2, 3))
def test_a_formatted_time_is_near(seconds: float, digits: int) -> None:
    number, unit = format_time(seconds, digits).split(" ")
    told = float(number.replace(",", "")) * {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    assert told == pytest.approx(seconds, rel=0.6 * 10 ** (1 - digits))


@given(st.integers(0, 1 << 60))
def test_a_formatted_size_is_near_and_short(size: int) -> None:
    text = format_bytes(size)
    assert len(text) <= len("1023.9 PiB")
    if size:
        assert abs(parse_size(text, 1) - size) <= max(0.051 * size, 1)


@given(st.integers(0, 1 << 50))
def test_the_default_is_a_quarter_and_at_least_one_byte(available: int) -> None:
    assert default_memory(available) == max(1, available // 4)


class Machine:
    """A procfs that says what a test wants said."""

    def __init__(self, folder: Path, available_bytes: int) -> None:
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_bytes // 1024} kB\n")
        (self.proc / "self/mountinfo").write_text("")
        (self.proc / "self/cgroup").write_text("")

    def mounted(self, kind: str, options: str, root: str = "/") -> None:
        line = f"30 1 0:26 {root} {self.cgroup} rw shared:4 - {kind} cgroup rw,{options}\n"
        (self.proc / "self/mountinfo").write_text(line)

    def in_group(self, line: str) -> None:
        (self.proc / "self/cgroup").write_text(line + "\n")

    def group(self, path: str, **files: int | str) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("memory_", "memory.")).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 8 * GIB)


def test_without_cgroups_it_is_memavailable(machine: Machine) -> None:
    assert available_memory(machine.proc) == 8 * GIB


def test_a_v2_group_leaves_its_limit_less_unreclaimable_use(machine: Machine) -> None:
    machine.mounted("cgroup2", "nsdelegate")
    machine.in_group("0::/job")
    machine.group(
        "job",
        memory_max=4 * GIB,
        memory_current=3 * GIB,
        memory_stat=f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\nslab_reclaimable {GIB // 2}",
    )
    assert available_memory(machine.proc) == 3 * GIB


def test_the_tightest_group_around_the_process_counts(machine: Machine) -> None:
    machine.mounted("cgroup2", "nsdelegate")
    machine.in_group("0::/slurm/job/step")
    machine.group("slurm/job/step", memory_max="max", memory_current=0)
    machine.group("slurm/job", memory_max=2 * GIB, memory_high="max", memory_current=GIB)
    machine.group("slurm", memory_max=7 * GIB, memory_current=GIB)
    assert available_memory(machine.proc) == GIB


def test_memory_high_counts_as_a_limit(machine: Machine) -> None:
    machine.mounted("cgroup2", "nsdelegate")
    machine.in_group("0::/job")
    machine.group("job", memory_max=4 * GIB, memory_high=GIB, memory_current=0)
    assert available_memory(machine.proc) == GIB


def test_a_v1_group_counts_unless_it_is_unlimited(machine: Machine) -> None:
    machine.mounted("cgroup", "memory")
    machine.in_group("4:cpu,memory:/job/step")
    machine.group("job/step", memory_limit_in_bytes=(1 << 63) - 4096, memory_usage_in_bytes=GIB)
    machine.group(
        "job",
        memory_limit_in_bytes=3 * GIB,
        memory_usage_in_bytes=2 * GIB,
        memory_stat=f"total_inactive_file {GIB}\ntotal_active_file 0",
    )
    assert available_memory(machine.proc) == 2 * GIB


def test_hierarchies_of_other_controllers_are_ignored(machine: Machine) -> None:
    machine.mounted("cgroup", "cpu")
    machine.in_group("4:cpu:/job")
    machine.group("job", memory_limit_in_bytes=1, memory_usage_in_bytes=0)
    assert available_memory(machine.proc) == 8 * GIB


def test_in_a_container_the_mounts_root_is_its_own_group(machine: Machine) -> None:
    machine.mounted("cgroup2", "nsdelegate", root="/docker/abc")
    machine.in_group("0::/docker/abc/inner")
    machine.group("inner", memory_max="max", memory_current=0)
    machine.group("", memory_max=2 * GIB, memory_current=0)
    assert available_memory(machine.proc) == 2 * GIB


def test_a_group_past_its_limit_leaves_zero(machine: Machine) -> None:
    machine.mounted("cgroup2", "nsdelegate")
    machine.in_group("0::/job")
    machine.group("job", memory_max=GIB, memory_current=2 * GIB)
    assert available_memory(machine.proc) == 0


def test_this_machine_has_some_memory() -> None:
    assert available_memory() > 0
