"""The grammar: what is taken, what is refused and in which words; mount options; exit codes."""

import argparse
import errno
import io
import os
import re
import resource
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import NEVER_S, PATIENCE_S

from redoxfs.cli import main
from redoxfs.cli import mount as cli_mount
from redoxfs.cli.arguments import VERBS, mount_parser, parse, parser, rendered
from redoxfs.cli.exits import EXITS, code_of, line_of
from redoxfs.cli.mount import absolute
from redoxfs.cli.options.nodes import ClusterUpOptions
from redoxfs.cli.program import run
from redoxfs.launch.daemon import default_fuse_threads
from redoxfs.launch.deadline import Child, call_in_child, look, read_file, run_in_child
from redoxfs.launch.defaults import POLICIES, STORAGES
from redoxfs.launch.errors import CommandError, MountpointError, ReportedError, UsageError
from redoxfs.launch.fuse_options import parse_fuse_options
from redoxfs.launch.options import (
    CacheOptions,
    ClusterOptions,
    DatasetOptions,
    MemoryOptions,
    MountOptions,
    SamplerSpec,
    SharingOptions,
)
from redoxfs.launch.runtime_paths import control_path, open_log
from redoxfs.launch.say import show


def mount(line: str) -> MountOptions:
    made = parse(["mount", *line.split()]).options
    assert isinstance(made, MountOptions)
    return made


def test_mount_takes_the_documented_options() -> None:
    made = mount(
        "/data /mnt --memory 10% --policy slot --classes any --samples *.jpg --samples *.png --groups stem "
        "--chunk-size 7 --seed 3 -f -o allow_other,direct_io -o noatime --rescan --timeout 1.5 --log x"
    )
    assert (made.source, made.mountpoint, made.memory.memory_size) == ("/data", "/mnt", "10%")
    assert made.dataset == DatasetOptions("any", ("*.jpg", "*.png"), "stem", chunk_size=7, seed=3, rescan=True)
    assert made.fuse_options == ("allow_other,direct_io", "noatime")
    assert (made.foreground, made.timeout_s, made.log) == (True, 1.5, "x")


@pytest.mark.parametrize(
    "line",
    [
        "--memory 1MiB -f /data /mnt",
        "/data --memory 1MiB /mnt -f",
        "/data --memory 1MiB -f /mnt",
        "-f /data /mnt --memory=1MiB",
        "/data --memory 1MiB -f -- /mnt",
    ],
)
def test_options_may_stand_between_paths(line: str) -> None:
    made = mount(line)
    assert (made.source, made.mountpoint, made.memory.memory_size) == ("/data", "/mnt", "1MiB")
    assert made.foreground


def test_options_may_stand_between_paths_of_cluster_up() -> None:
    made = parse(["cluster", "up", "/data", "--nodes", "2", "/folder", "--seed", "3"]).options
    assert isinstance(made, ClusterUpOptions)
    assert (made.mount.source, made.folder, made.count, made.mount.dataset.seed) == ("/data", "/folder", 2, 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mount a --unknown", "--unknown (see redoxfs mount --help)"),
        ("mount a -f b c", "c (see redoxfs mount --help)"),
        # Without the MOUNTPOINT b, newer versions of argparse take the last word for it.
        ("mount a b -f --unknown c", "--unknown c (see redoxfs mount --help)"),
        ("cluster down a b", "b (see redoxfs cluster down --help)"),
        ("--unknown mount a", "--unknown (see redoxfs --help)"),
    ],
)
def test_an_unknown_argument_names_the_verb(line: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(line.split())
    assert str(refused.value) == f"unrecognized arguments: {words}"


def test_templates_of_groups_are_written_in_one_option() -> None:
    assert mount("/data --groups a/{key}.jpg,b/{key}.png").dataset.groups == "a/{key}.jpg,b/{key}.png"
    with pytest.raises(UsageError, match="--groups is given twice: write all templates in one, with commas"):
        mount("/data --groups a/{key}.jpg --groups b/{key}.png")


def test_an_automatic_chunk_size_is_chosen_later() -> None:
    assert mount("/data --chunk-size auto").dataset.chunk_size is None


def test_threads_for_requests_leave_cores_to_the_programs() -> None:
    assert mount("/data --fuse-threads 3").fuse_threads == 3
    assert mount("/data").fuse_threads is None
    assert [default_fuse_threads(cores) for cores in (1, 3, 4, 8, 15, 16, 128)] == [0, 0, 1, 2, 3, 4, 4]


def test_one_path_is_an_over_mount() -> None:
    made = mount("/data")
    assert made.mountpoint is None
    assert (made.dataset.classes, made.dataset.chunk_size, made.timeout_s) == (None, None, 60.0)


@pytest.mark.parametrize(
    "line",
    [
        "mount",
        "mount a b c",
        "frobnicate",
        "",
        "mount a --chunk-size 0",
        "mount a --chunk-size x",
        "mount a --chunk-size 65536",
        "mount a --seed -1",
        "mount a --timeout 0",
        "mount a --timeout nan",
        "mount a --timeout inf",
        "mount a --fuse-threads -1",
        "mount a --fuse-threads 64",
        "mount a --policy best",
        "mount a --storage-speed 1e-320,1MB",
        "mount a --storage-speed 1e-4,1MB",
        "mount a --storage-speed 500,99999999999999999999P",
        "mount a --mem 1G",
        "mount a --unknown",
        "umount",
        "umount a --all",
        "umount a --job 7",
        "umount --all --job a/b",
        "umount a --all-users",
        "umount --all-users",
        "umount --all --all-users --job 7",
        "mount a b --job 7,8",
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


@pytest.mark.parametrize("option", ["--chunk-size", "--policy", "--seed", "--timeout"])
def test_two_dashes_are_no_value_of_an_option(option: str) -> None:
    """argparse of Python 3.11 would take them for the end of the options, and the value for an empty list."""
    for words in ([f"{option}=--"], [option, "--"]):
        with pytest.raises(UsageError, match=f"argument {option}: "):
            parse(["mount", *words, "/data", "/mnt"])
    assert parse(["mount", "--classes=--", "--", "/data", "/mnt"]).options.dataset.classes == "--"


def test_mount_takes_the_options_of_several_nodes() -> None:
    cluster = mount("a b --nodes h1:1,h2:2 --node-rank 1 --exchange 0.25 --storage local").cluster
    assert (cluster.nodes, cluster.node_rank, cluster.node_count) == ("h1:1,h2:2", 1, None)
    sharing = cluster.sharing
    assert (sharing.exchange, sharing.storage, cluster.insecure) == (0.25, "local", False)
    assert (sharing.join_timeout_s, sharing.peer_timeout_s, sharing.prefetch_window) == (300, 10, 6000)
    assert (sharing.remote_memory, sharing.sampler) == (None, None)


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
def test_a_sampler_is_parsed(text: str, spec: SamplerSpec) -> None:
    assert mount(f"a b --sampler {text}").cluster.sharing.sampler == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a known sampler"),
        ("torch", "is not a known sampler"),
        ("torch-random", "torch-random needs seed"),
        ("torch-random,seed=1,ranks=2", "torch-random does not take 'ranks=2'"),
        ("torch-distributed,seed", "seed needs a value"),
        ("torch-distributed,tree=", "tree needs a value"),
        ("torch-distributed,drop_last=1", "drop_last takes no value"),
        ("torch-distributed,seed=1,seed=2", "seed is given twice"),
        ("torch-distributed,seed=-1", "'-1' is not a whole number"),
        ("torch-distributed,ranks=0", "'0' is not a whole number"),
        ("torch-distributed,,", "does not take ''"),
    ],
)
def test_an_invalid_sampler_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse(["mount", "a", "b", "--sampler", text])


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("up --nodes 3 s d", "-- s"),
        ("up s d --nodes=3", "-- s"),
        ("up --policy slot s --nodes 3 -f d --seed=4", "--foreground --seed=4 --policy=slot -- s"),
        ("up s d --nodes 3 -o ro -onoatime -fo a,b -fod", "--foreground -o ro -o noatime -o a,b -o d -- s"),
        ("up --memory 1G --nodes 3 --log l s d --classes d", "--classes=d --memory=1G --log=l -- s"),
        ("up --nodes 3 --rescan -- s -f", "--rescan -- s"),
        ("up --nodes 3 -1 d -f", "--foreground -- -1"),
    ],
)
def test_cluster_up_passes_the_options_of_mount_on(line: str, arguments: str) -> None:
    made = parse(["cluster", *line.split()]).options
    assert sorted(rendered(made.mount)) == sorted(arguments.split())
    assert made.count == 3
    assert made.folder in ("d", "-f")
    assert parse(["mount", *rendered(made.mount)]).options == made.mount


# argparse of Python 3.11 and 3.12 drops a value that is two dashes and nothing else.
VALUES = st.text().filter(lambda text: text != "--")
TEXTS = VALUES.filter(bool)
SECONDS = st.floats(0, 86_400, exclude_min=True)
PROGRAMS = TEXTS.filter(lambda text: text.strip() == text and not {"/", ","} & set(text))
SAMPLERS = st.one_of(
    st.builds(
        SamplerSpec,
        st.just("torch-distributed"),
        st.integers(0, (1 << 63) - 1),
        ranks=st.none() | st.integers(1, 1 << 20),
        shuffle=st.booleans(),
        drop_last=st.booleans(),
        tree=st.none() | TEXTS.filter(lambda text: "," not in text),
    ),
    st.builds(SamplerSpec, st.just("torch-random"), st.integers(0, (1 << 63) - 1), persistent_workers=st.booleans()),
)
OPTIONS = st.builds(
    MountOptions,
    TEXTS,
    st.none() | TEXTS,
    st.builds(
        DatasetOptions,
        st.none() | TEXTS,
        st.lists(TEXTS).map(tuple),
        st.none() | TEXTS,
        st.none() | st.integers(1, (1 << 16) - 1),
        st.integers(0, (1 << 63) - 1),
        st.booleans(),
    ),
    st.builds(
        MemoryOptions,
        st.none() | TEXTS,
        st.sampled_from([*POLICIES]),
        st.none() | st.tuples(st.floats(0.001, 1e9), st.integers(1, (1 << 63) - 1)),
    ),
    st.builds(
        ClusterOptions,
        st.none() | TEXTS,
        st.none() | st.integers(0, 126),
        st.none() | st.integers(1, 127),
        st.booleans(),
        st.builds(
            SharingOptions,
            st.sampled_from(STORAGES),
            st.floats(0, 1),
            st.none() | TEXTS,
            SECONDS,
            SECONDS,
            st.integers(1, (1 << 31) - 1),
            st.none() | SAMPLERS,
            st.none() | TEXTS,
            st.none() | TEXTS,
            st.none() | TEXTS,
        ),
    ),
    st.builds(CacheOptions, st.none() | TEXTS, st.none() | TEXTS),
    SECONDS,
    st.booleans(),
    st.none() | TEXTS,
    st.booleans(),
    st.none() | TEXTS,
    st.lists(VALUES).map(tuple),
    st.none() | st.integers(0, 63),
    st.none() | st.from_regex(r"[A-Za-z0-9._:-]{0,128}", fullmatch=True).filter(lambda text: text != "--"),
    st.booleans(),
    slow_open_s=st.just(0.0) | st.floats(1e-3, 86_400),
    exact_for=st.lists(PROGRAMS).map(tuple),
    redirect_for=st.lists(PROGRAMS).map(tuple),
)


@given(OPTIONS)
def test_rendered_options_parse_to_the_same_options(options: MountOptions) -> None:
    assert parse(["mount", *rendered(options)]).options == options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("10", 10), ("10s", 10), ("500ms", 0.5), ("1.5m", 90), ("2h", 7200), ("0.001", 0.001), ("0ms", 0)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    options = parse(["mount", "d", f"--slow-open={text}"]).options
    assert options.slow_open_s == seconds


@pytest.mark.parametrize("text", ["", "-1", "soon", "10 s", "1e3", "nan", "0.5ms", "25h", "s", "10S", "٣"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slow-open"):
        parse(["mount", "d", f"--slow-open={text}"])


def test_mount_help_fits_on_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(option: str) -> str:
        with pytest.raises(SystemExit):
            main(["mount", option])
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "80")
    common, every = shown("--help"), shown("--help-all")
    assert common.count("\n") <= 40
    assert max(map(len, common.splitlines())) <= 80
    assert "--classes" in common
    assert "--help-all" in common
    assert "To end the mount: redoxfs umount MOUNTPOINT" in common
    assert all(f"{how} if" in common.replace("\n", " ") for how in ("dir", "FILE.csv", "sampler", "any only"))
    assert "--peer-timeout" not in common
    assert {*re.findall("--[a-z-]+", common), "--peer-timeout"} <= {*re.findall("--[a-z-]+", every)}


def test_version_and_help_go_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("redoxfs ")
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    told = capfd.readouterr().out
    assert told.count("\n") <= 50
    assert max(map(len, told.splitlines())) <= 80
    assert {line.split()[0] for line in told.splitlines() if line.startswith("  ")} - {"redoxfs"} == {*VERBS}
    with pytest.raises(SystemExit):
        main(["--help-all"])
    told = capfd.readouterr().out
    for exit_ in EXITS:
        assert f"{exit_.code:>3}  {exit_.meaning}" in told


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_terminal_without_unicode_shows_every_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert b"usage: redoxfs VERB ..." in written.getvalue()
    show("/mnt/猫 \udcff")
    assert written.getvalue().endswith(b"/mnt/\\u732b \xff\n")


@pytest.mark.parametrize(
    "words",
    [
        ["mount", ""],
        ["mount", "d", ""],
        ["mount", "d", "--classes="],
        ["mount", "d", "--samples=*.jpg", "--samples="],
        ["umount", ""],
        ["pack", "d", ""],
        ["cluster", "up", "d", "", "--nodes=2"],
        ["report", "d", "", "-o", "r.html"],
        ["serve", "d", "--fd-socket="],
        ["install-helper", "--directory="],
    ],
)
def test_an_empty_value_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match=": is empty; is a variable of the shell unset"):
        parse(words)


def test_mount_options_go_to_the_kernel_or_to_redoxfs() -> None:
    options = parse_fuse_options(["direct_io,ro", "noatime, nofail,x-systemd.automount", ""])
    assert options.kernel == {"noatime"}
    assert options.options == {"noatime", "direct_io"}


@pytest.mark.parametrize(("name", "bypass"), [("direct_io", True), ("page_cache", False), ("ro", None)])
def test_mount_options_choose_the_open_mode(name: str, bypass: bool | None) -> None:
    assert parse_fuse_options([name]).bypass is bypass


def test_both_open_modes_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        parse_fuse_options(["direct_io", "page_cache"])


def test_allow_other_implies_permission_checks() -> None:
    assert parse_fuse_options(["allow_other"]).kernel == {"allow_other", "default_permissions"}


@pytest.mark.parametrize("name", ["max_read=4096", "rw", "suid", "allow_root", "nonsense", "DIRECT_IO"])
def test_an_unsupported_mount_option_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"-o {name}: "):
        parse_fuse_options([f"ro,{name}"])


def test_every_error_has_one_exit_code_in_the_table() -> None:
    codes = [exit_.code for exit_ in EXITS]
    assert codes == sorted(set(codes))
    for kind in CommandError.__subclasses__():
        if kind is not ReportedError:
            assert any(name.endswith(f":{kind.__name__}") for exit_ in EXITS for name in exit_.raised_as)


@pytest.mark.parametrize(("number", "limit"), [(errno.EFBIG, "ulimit -f"), (errno.EMFILE, "ulimit -n")])
def test_a_limit_of_the_shell_is_no_bug(number: int, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (100_000, resource.RLIM_INFINITY))
    assert code_of(error) == 2
    assert re.search(rf" 100,000 .*{limit}.*raise that limit$", line_of(error))
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert code_of(error) == 1
    assert "unexpected" in line_of(error)


def test_errors_of_other_rooms_have_their_exit_codes() -> None:
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


def test_a_call_in_a_child_returns_fails_or_times_out() -> None:
    def refused() -> bytes:
        raise PermissionError(errno.EACCES, "no")

    def for_ever() -> bytes:
        return os.read(quiet, 1)

    assert run_in_child(lambda: b"x" * 200_000, 60) == b"x" * 200_000
    with pytest.raises(PermissionError):
        run_in_child(refused, 60)
    quiet, end = os.pipe()
    try:
        with pytest.raises(TimeoutError):
            run_in_child(for_ever, 0.05)
    finally:
        os.close(quiet)
        os.close(end)


def test_a_call_in_a_child_returns_what_was_found_or_raises_what_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unusable() -> NoReturn:
        raise UsageError("not so")

    def killed() -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def killed_as_it_answers() -> str:
        write = os.write

        def write_some(fd: int, data: bytes) -> NoReturn:
            write(fd, data[:-1])
            killed()

        monkeypatch.setattr(os, "write", write_some)
        return "an answer"

    assert call_in_child(lambda: {"a": (1, None)}, 60) == {"a": (1, None)}
    with pytest.raises(UsageError, match="not so"):
        call_in_child(unusable, 60, CommandError)
    for work in (killed, killed_as_it_answers):
        with pytest.raises(OSError, match="Input/output error"):
            call_in_child(work, 60)
    with pytest.raises(OSError, match="Input/output error"):
        run_in_child(killed, 60)


def test_one_child_makes_several_calls_and_another_takes_its_place_when_it_hangs_or_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redoxfs.launch.deadline._END_WAIT_S", PATIENCE_S)
    quiet, end = os.pipe()
    try:
        with Child() as child:
            pid = child.call(partial(os.getpid), 60)
            assert look("/none", 60, child).error == errno.ENOENT
            assert child.call(partial(bytes, 200_000), 60) == bytes(200_000)
            with pytest.raises(FileNotFoundError):
                child.call(partial(os.stat, "/none"), 60)
            with pytest.raises(ValueError, match="invalid literal"):
                child.call(partial(int, "none"), 60, ValueError)
            assert child.call(partial(os.getpid), 60) == pid
            with pytest.raises(TimeoutError):
                child.call(partial(os.read, quiet, 1), 0.05)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            second = child.call(partial(os.getpid), 60)
            with pytest.raises(OSError, match="Input/output error"):
                child.call(partial(signal.raise_signal, signal.SIGKILL), 60)
            third = child.call(partial(os.getpid), 60)
            os.kill(third, signal.SIGKILL)
            with pytest.raises(OSError, match="Input/output error"):
                child.call(partial(os.getpid), 60)
            last = child.call(partial(os.getpid), 60)
            assert len({os.getpid(), pid, second, third, last}) == 5
        for each in (second, third, last):
            with pytest.raises(ChildProcessError):
                os.waitpid(each, os.WNOHANG)
    finally:
        os.close(quiet)
        os.close(end)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [("mount {0}/source {0}/none", "MOUNTPOINT {0}/none does not exist"), ("status {0}", "{0}: no redoxfs mount")],
)
def test_a_command_looks_at_all_its_paths_in_one_child(
    words: str,
    refusal: str,
    tmp_path: Path,
    short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    forks: list[int] = []
    fork = os.fork

    def counted() -> int:
        forks.append(0)
        return fork()

    short_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    monkeypatch.setattr(os, "fork", counted)
    (tmp_path / "source").mkdir()
    assert run(words.format(tmp_path).split()) != 0
    assert refusal.format(tmp_path) in capfd.readouterr().err
    assert len(forks) == 1


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_file(path, 60, most_bytes=10) == b"0123456789"
    with pytest.raises(OSError, match="too large"):
        read_file(path, 60, most_bytes=9)
    # One without an end.
    with pytest.raises(OSError, match="too large"):
        read_file(Path("/dev/zero"), 60, most_bytes=1 << 20)


def test_look_resolves_links_and_reports_missing_files(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    seen = look(tmp_path / "link", 60)
    assert (seen.path, seen.error) == (tmp_path / "real", 0)
    assert look(tmp_path / "none", 60).error == errno.ENOENT
    assert look(os.fsencode(tmp_path).decode() + "/\udcff", 60).path.name == "\udcff"


def test_socket_and_log_are_private_and_named_by_mountpoint(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, state = short_path / "run", tmp_path / "state"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    control = control_path(Path("/mnt/a"))
    assert control.parent == runtime / "redoxfs"
    assert control.parent.stat().st_mode & 0o777 == 0o700
    assert control == control_path(Path("/mnt/a"))
    assert control != control_path(Path("/mnt/b"))
    fd, log = open_log(None, Path("/mnt/a b"))
    os.close(fd)
    assert log.parent == state / "redoxfs"
    assert log.name.startswith("a_b-")
    assert log.stat().st_mode & 0o777 == 0o600


def test_status_of_a_socket_waits_for_an_answer_as_long_as_it_is_told(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    short_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    received = short_path / "received"
    with socket.socket(socket.AF_UNIX) as before, socket.socket(socket.AF_UNIX) as stopped:
        before.bind(str(received))
        # The kernel takes connections for it, and nobody answers.
        stopped.bind(str(control_path(received)))
        stopped.listen()
        assert main(["status", str(received), "--timeout", f"{NEVER_S:g}"]) == 1
    assert capfd.readouterr().err == f"redoxfs: {received}: the daemon did not answer within {NEVER_S:g} s\n"


def test_another_users_runtime_folder_is_not_trusted(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (short_path / "elsewhere").mkdir(mode=0o700)
    (runtime / "redoxfs").symlink_to(short_path / "elsewhere")
    assert runtime not in control_path(Path("/mnt/a")).parents
    assert not list((short_path / "elsewhere").iterdir())
    (runtime / "redoxfs").unlink()
    assert runtime in control_path(Path("/mnt/a")).parents
    runtime.chmod(0o777)
    assert runtime not in control_path(Path("/mnt/a")).parents


def test_a_runtime_folder_with_too_long_a_path_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / ("r" * 100)
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert len(os.fsencode(control_path(Path("/mnt/a")))) <= 107


def test_a_bare_command_lists_verbs_in_the_order_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    action = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert run([]) == 2
    assert f"one of {', '.join(action.choices)} (" in capsys.readouterr().err


def test_a_mount_is_asked_for_in_words_that_are_the_same_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [each for each in mount_parser()._actions if each.option_strings and each.metavar in ("FILE", "DIR")]
    given = [f"{each.option_strings[-1]}=a/../b" for each in files]
    assert len(given) == 7
    options = mount(" ".join(["/data", "mnt", "--classes=labels.csv", "--log-level=debug", *given]))
    words = cli_mount._request(options, "/data", Path("/data"))
    expected = [f"{each.option_strings[-1]}={tmp_path / 'b'}" for each in files]
    assert {*words} == {*expected, f"--classes={tmp_path / 'labels.csv'}", "--log-level=debug", "--", "/data"}
    for classes in ("dir", "member:cls", "sampler"):
        assert f"--classes={classes}" in rendered(absolute(mount(f"/data /mnt --classes {classes}")))


def test_processes_that_log_to_different_files_ask_for_one_mount() -> None:
    words = ["--log=/a", "--memory=1GiB", "--log-level=debug", "--slow-open=0", "--log-format=json", "--", "--log=x"]
    assert cli_mount._of_mount(words) == ["--memory=1GiB", "--", "--log=x"]
