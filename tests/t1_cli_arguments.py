"""The grammar: what is taken, what is refused and in which words; mount options; exit codes."""

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.cli import main
from redoxfs.cli.arguments import SamplerSpec, parser
from redoxfs.cli.exits import EXITS, code_of, line_of
from redoxfs.launch.deadline import ask, look
from redoxfs.launch.errors import CommandError, MountpointError, ReportedError, UsageError
from redoxfs.launch.mount_options import parse_mount_options
from redoxfs.launch.runtime_paths import control_path, open_log


def test_mount_takes_what_the_manual_says() -> None:
    told = parser().parse_args(
        [
            "mount",
            "/data",
            "/mnt",
            "--memory",
            "10%",
            "--policy",
            "slot",
            "--classes",
            "any",
            "--samples",
            "*.jpg",
            "--samples",
            "*.png",
            "--groups",
            "stem",
            "--chunk-size",
            "7",
            "--seed",
            "3",
            "-f",
            "-o",
            "allow_other,direct_io",
            "-o",
            "noatime",
            "--rescan",
            "--timeout",
            "1.5",
            "--log",
            "x",
        ]
    )
    assert (told.source, told.mountpoint, told.memory, told.chunk_size, told.seed) == ("/data", "/mnt", "10%", 7, 3)
    assert told.samples == ["*.jpg", "*.png"]
    assert told.mount_options == ["allow_other,direct_io", "noatime"]
    assert (told.foreground, told.rescan, told.timeout, told.log) == (True, True, 1.5, "x")


def test_an_automatic_chunk_size_is_settled_later() -> None:
    assert parser().parse_args(["mount", "/data", "--chunk-size", "auto"]).chunk_size is None


def test_one_path_is_an_over_mount() -> None:
    told = parser().parse_args(["mount", "/data"])
    assert told.mountpoint is None
    assert (told.classes, told.chunk_size, told.timeout) == (None, None, 60.0), "settled by what SOURCE is"


@pytest.mark.parametrize(
    "line",
    [
        "mount",
        "mount a b c",
        "frobnicate",
        "",
        "mount a --chunk-size 0",
        "mount a --chunk-size x",
        "mount a --seed -1",
        "mount a --timeout 0",
        "mount a --timeout nan",
        "mount a --timeout inf",
        "mount a --policy best",
        "mount a --mem 1G",
        "mount a --unknown",
        "umount",
        "status",
        "inspect",
        "inspect a --nodes a,b",
        "mount a b --node-rank -1",
        "mount a b --node-count 128",
        "mount a b --exchange 1.1",
        "mount a b --exchange 10%",
        "mount a b --storage some",
        "mount a b --prefetch-window 0",
        "mount a b --join-timeout 0",
        "cluster",
        "cluster up",
        "cluster up a b",
        "cluster up a --nodes 3",
        "cluster up a b --nodes 0",
        "cluster up a b --nodes a:1,b:1",
        "cluster up a b --nodes 3 --node-rank 1",
        "cluster up a b --nodes 3 --unknown",
        "cluster up a b --nodes 3 --chunk-size x",
        "cluster status",
        "cluster down a b",
        "trace a",
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("redoxfs: ")
    assert err.count("\n") == 1


def test_several_nodes_are_told_as_the_manual_says() -> None:
    line = "mount a b --nodes h1:1,h2:2 --node-rank 1 --exchange 0.25 --storage local"
    told = parser().parse_args(line.split())
    assert (told.nodes, told.node_rank, told.node_count) == ("h1:1,h2:2", 1, None)
    assert (told.exchange, told.storage, told.insecure) == (0.25, "local", False)
    assert (told.join_timeout, told.peer_timeout, told.prefetch_window) == (300, 10, 6000)
    assert (told.remote_memory, told.sampler) == (None, None)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("torch-distributed", SamplerSpec("torch-distributed", 0)),
        (
            "torch-distributed,seed=5,ranks=16,drop_last,no_shuffle,tree=train",
            SamplerSpec("torch-distributed", 5, ranks=16, shuffle=False, drop_last=True, tree="train"),
        ),
        ("torch-random,tree=a/b=c,seed=7", SamplerSpec("torch-random", 7, tree="a/b=c")),
    ],
)
def test_a_sampler_is_what_its_words_say(text: str, spec: SamplerSpec) -> None:
    assert parser().parse_args(["mount", "a", "b", "--sampler", text]).sampler == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no sampler known"),
        ("torch", "no sampler known"),
        ("torch-random", "torch-random needs seed"),
        ("torch-random,seed=1,ranks=2", "'ranks=2' is nothing that torch-random takes"),
        ("torch-distributed,seed", "seed needs a value"),
        ("torch-distributed,tree=", "tree needs a value"),
        ("torch-distributed,drop_last=1", "drop_last takes no value"),
        ("torch-distributed,seed=1,seed=2", "seed is said twice"),
        ("torch-distributed,seed=-1", "'-1' is no whole number"),
        ("torch-distributed,ranks=0", "'0' is no whole number"),
        ("torch-distributed,,", "'' is nothing that"),
    ],
)
def test_a_sampler_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parser().parse_args(["mount", "a", "b", "--sampler", text])


@pytest.mark.parametrize(
    ("line", "passed_on"),
    [
        ("up --nodes 3 s d", ""),
        ("up s d --nodes=3", ""),
        ("up --policy slot s --nodes 3 -f d --seed=4", "--policy slot -f --seed=4"),
        ("up s d --nodes 3 -o ro -onoatime -fo a,b -fod", "-o ro -onoatime -fo a,b -fod"),
        ("up --memory 1G --nodes 3 --log s s d --classes d", "--classes d"),
        ("up --nodes 3 --rescan -- s -f", "--rescan"),
        ("up --nodes 3 -1 d -f", "-f"),
    ],
)
def test_a_cluster_passes_on_to_each_mount_what_is_of_mount(line: str, passed_on: str) -> None:
    told = parser().parse_args(["cluster", *line.split()])
    assert told.passed_on == passed_on.split()
    assert told.nodes == 3
    assert told.source in ("s", "-1")
    assert told.folder in ("d", "-f")
    parser().parse_args(["mount", *told.passed_on, "--", told.source, told.folder])


def test_version_and_help_are_for_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("redoxfs ")
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    told = capfd.readouterr().out
    for exit_ in EXITS:
        assert f"{exit_.code:>3}  {exit_.meaning}" in told


def test_mount_options_are_sorted_by_whom_they_are_for() -> None:
    options = parse_mount_options(["direct_io,ro", "noatime, nofail,x-systemd.automount", ""])
    assert options.kernel == {"noatime"}
    assert options.direct_io
    assert not parse_mount_options([]).direct_io


def test_allow_other_never_comes_without_permission_checks() -> None:
    assert parse_mount_options(["allow_other"]).kernel == {"allow_other", "default_permissions"}


@pytest.mark.parametrize("name", ["max_read=4096", "rw", "suid", "allow_root", "nonsense", "DIRECT_IO"])
def test_a_mount_option_without_effect_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"-o {name}: "):
        parse_mount_options([f"ro,{name}"])


def test_every_exit_code_is_in_the_table_once_and_every_own_exception_has_one() -> None:
    codes = [exit_.code for exit_ in EXITS]
    assert codes == sorted(set(codes))
    for kind in CommandError.__subclasses__():
        if kind is not ReportedError:
            assert any(name.endswith(f":{kind.__name__}") for exit_ in EXITS for name in exit_.raised_as)


def test_the_rooms_exceptions_have_the_codes_of_the_table() -> None:
    import redoxfs.chunks
    import redoxfs.dataset

    assert code_of(redoxfs.dataset.SourceError("x")) == 3
    assert code_of(redoxfs.dataset.ClassesError("x")) == 6
    assert code_of(redoxfs.chunks.MemoryTooSmallError(2, 1)) == 5
    assert code_of(ReportedError(7, "x")) == 7
    assert code_of(KeyboardInterrupt()) == 130
    assert code_of(ValueError("x")) == 1


@given(st.text())
@pytest.mark.slow
def test_an_error_is_one_line_whatever_names_it_quotes(text: str) -> None:
    for error in (MountpointError(text), ValueError(text), ReportedError(3, text)):
        line = line_of(error)
        assert line.startswith("redoxfs: ")
        assert len(line.splitlines()) == 1


def test_a_probe_answers_fails_and_gives_up_as_its_question_does() -> None:
    def refused() -> bytes:
        raise PermissionError(errno.EACCES, "no")

    def for_ever() -> bytes:
        return os.read(quiet, 1)

    assert ask(lambda: b"x" * 200_000, 60) == b"x" * 200_000
    with pytest.raises(PermissionError):
        ask(refused, 60)
    quiet, end = os.pipe()
    try:
        with pytest.raises(TimeoutError):
            ask(for_ever, 0.05)
    finally:
        os.close(quiet)
        os.close(end)


def test_looking_follows_links_and_tells_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    seen = look(tmp_path / "link", 60)
    assert (seen.path, seen.error) == (tmp_path / "real", 0)
    assert look(tmp_path / "none", 60).error == errno.ENOENT
    assert look(os.fsencode(tmp_path).decode() + "/\udcff", 60).path.name == "\udcff"


def test_socket_and_log_are_private_and_named_after_the_mountpoint(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, state = short_path / "run", tmp_path / "state"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    socket = control_path(Path("/mnt/a"))
    assert socket.parent == runtime / "redoxfs"
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert socket == control_path(Path("/mnt/a"))
    assert socket != control_path(Path("/mnt/b"))
    fd, log = open_log(None, Path("/mnt/a b"))
    os.close(fd)
    assert log.parent == state / "redoxfs"
    assert log.name.startswith("a_b-")
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_runtime_folder_of_somebody_else_is_not_trusted(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (short_path / "elsewhere").mkdir(mode=0o700)
    (runtime / "redoxfs").symlink_to(short_path / "elsewhere")
    with pytest.raises(CommandError, match="symlink"):
        control_path(Path("/mnt/a"))
    runtime.chmod(0o777)
    assert runtime not in control_path(Path("/mnt/a")).parents


def test_a_long_runtime_folder_is_passed_over_for_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / ("r" * 100)
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert len(os.fsencode(control_path(Path("/mnt/a")))) <= 107
