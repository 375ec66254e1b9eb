"""What a command may replace: files of its own kind, and nothing else."""

import os
from pathlib import Path

import pytest

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
