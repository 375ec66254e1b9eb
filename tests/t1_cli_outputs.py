"""What a command may replace: files of its own kind, and nothing else. What it does where nobody reads its output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packs import flip, pack_here
from patience import completed

import redoxfs.cli
from redoxfs.launch.errors import DestinationError
from redoxfs.launch.outputs import check_replaceable

BEGIN = b"RedoxLap"


def check(path: Path) -> None:
    check_replaceable(path, path.name, BEGIN, "state file")


def test_a_file_of_its_kind_an_empty_one_and_none_are_replaced(tmp_path: Path) -> None:
    for name, content in (("state", BEGIN + b" and more"), ("exact", BEGIN), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        check(tmp_path / name)
    check(tmp_path / "missing")


@pytest.mark.parametrize("content", [b"import torch\n", BEGIN[:-1], b"\0"])
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.py").write_bytes(content)
    with pytest.raises(DestinationError, match=r"^train\.py: is there, and is no state file; remove it"):
        check(tmp_path / "train.py")


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(DestinationError, match="is not a regular file"):
            check(path)


def test_a_ctrl_c_while_the_program_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "redoxfs.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(__import__("sys").modules, "redoxfs.cli.program", raising=False)
    monkeypatch.setattr("sys.meta_path", [Interrupted()])
    assert redoxfs.cli.main(["--version"]) == 130
    assert capsys.readouterr() == ("", "redoxfs: interrupted\n")


def unread(*words: str | Path, streams: tuple[str, ...] = ("stdout",)) -> tuple[int, str]:
    """The exit code of a command of whose output nobody reads these streams, and what it prints to the others."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "redoxfs", *words],
            stdout=write_end if "stdout" in streams else subprocess.PIPE,
            stderr=write_end if "stderr" in streams else subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    return done.returncode, (done.stdout or "") + (done.stderr or "")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "scans"))
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "data" / name / f"{number}.jpg").write_text(f"{name} {number}")
    return tmp_path / "data"


def test_a_command_whose_output_nobody_reads_ends_as_other_programs(source: Path) -> None:
    for words in (["--version"], ["--help"], ["--help-all"]):
        assert unread(*words) == (141, "")
    code, told = unread("inspect", source)
    assert code == 141
    assert "redoxfs: " not in told
    assert unread("inspect", source / "missing", streams=("stdout", "stderr"))[0] == 3


def on_full_disk(*words: str | Path, stream: str = "stdout", unbuffered: bool = False) -> tuple[int, list[str]]:
    """The exit code of a command of which one stream is a file on a full disk, and the lines of the other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "redoxfs", *words],
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )
    return done.returncode, ((done.stdout or "") + (done.stderr or "")).splitlines()


# What is longer than a buffer is written, and fails, before the last flush. argparse drops errors of --help.
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("words", [["--version"], ["--help-all"], ["mount", "--help"], ["inspect", "SOURCE"]])
def test_an_output_that_cannot_be_written_is_one_line_and_no_bug(
    source: Path, words: list[str], unbuffered: bool
) -> None:
    code, lines = on_full_disk(*(source if word == "SOURCE" else word for word in words), unbuffered=unbuffered)
    assert (code, lines[-1]) == (4, "redoxfs: the output cannot be written: No space left on device")


def test_a_command_whose_lines_cannot_be_written_does_its_work(source: Path) -> None:
    code, lines = on_full_disk("inspect", source, stream="stderr")
    assert (code, bool(lines)) == (0, True)
    assert on_full_disk("inspect", source / "missing", stream="stderr") == (3, [])


def test_a_closed_input_is_an_empty_one() -> None:
    ask = "from redoxfs.cli import main; main(['--version']); print(sys.stdin.buffer.read())"
    code = f"import sys; sys.stdin = None; {ask}"
    done = completed([sys.executable, "-c", code])
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "b''", "")


def test_work_is_done_though_nobody_reads_how_far_it_is(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    assert unread("pack", source, packed, "--classes", "dir", "--jobs", "1", streams=("stdout", "stderr")) == (0, "")
    assert (packed / "manifest.json").exists()
    code, told = unread("verify", packed, "--jobs", "1", "--json", streams=("stderr",))
    assert (code, json.loads(told)["ok"]) == (0, True)
    assert unread("verify", packed, "--jobs", "1", "--json")[0] == 141


def test_what_is_known_to_be_damaged_has_its_exit_code_though_nobody_reads_it(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_here(source, packed)
    flip(packed / "samples-000000.tar", 512)
    for form in ([], ["--json"]):
        code, told = unread("verify", packed, "--jobs", "1", *form)
        assert code == 9
        assert told.endswith(": 1 problem\n")
        for unbuffered in (False, True):
            code, lines = on_full_disk("verify", packed, "--jobs", "1", *form, unbuffered=unbuffered)
            assert (code, lines[-2]) == (9, "the output cannot be written: No space left on device")


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_a_command_may_have_no_streams(source: Path, closed: str) -> None:
    command = f'"$0" -m redoxfs inspect "$1" {closed}'
    done = completed(["sh", "-c", command, sys.executable, source])
    assert done.returncode == 0
    assert bool(done.stdout) == (closed == "2>&-")
    assert "redoxfs: " not in done.stderr
