"""Which programs are known as ones that copy, compare or search, by what /proc says of a thread."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import until

from redoxfs.node.callers import Callers
from redoxfs.node.programs import EXACT_FOR, IN_PYTHON, Programs


def run(
    proc: Path, thread: int, name: str, *, process: int | None = None, exe: str = "/usr/bin/it", session: int = 1
) -> None:
    """``thread`` of ``process`` runs the program ``exe`` under ``name``."""
    folder = proc / str(thread)
    folder.mkdir(exist_ok=True)
    (folder / "status").write_text(
        f"Name:\t{name[:15]}\nUmask:\t0022\nState:\tR\nTgid:\t{process or thread}\nNgid:\t0\nNSsid:\t{session}\n"
    )
    link = folder / "exe"
    link.unlink(missing_ok=True)
    link.symlink_to(exe)


@pytest.mark.parametrize("name", ["cp", "rsync", "tar", "restic", "sha256sum", "grep", "sftp-server"])
def test_programs_that_copy_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    run(tmp_path, 7, name)
    assert Programs(proc=tmp_path).name_of(7) == name


def test_names_are_as_long_as_the_kernel_keeps_them(tmp_path: Path) -> None:
    run(tmp_path, 7, "baloo_file_extractor")
    run(tmp_path, 8, "my-very-long-copier-of-files")
    assert "baloo_file_extractor" in EXACT_FOR
    assert Programs(proc=tmp_path).name_of(7) == "baloo_file_extr"
    assert Programs(["my-very-long-copier-of-files"], proc=tmp_path).name_of(8) == "my-very-long-co"
    assert Programs((), ["baloo_file_extractor"], proc=tmp_path).name_of(7) is None


@pytest.mark.parametrize("name", ["python3", "pt_data_worker", "cat", "dd", "train", "a process that has ended"])
def test_a_job_is_no_program_that_copies(tmp_path: Path, name: str) -> None:
    if " " not in name:
        run(tmp_path, 7, name)
    assert Programs(proc=tmp_path).name_of(7) is None


def test_what_python_runs_is_the_job_but_for_programs_that_are_written_in_it(tmp_path: Path) -> None:
    for thread, name in enumerate(("tar", "borg", "mine"), 7):
        run(tmp_path, thread, name, exe="/usr/bin/python3.13")
    assert [Programs(proc=tmp_path).name_of(thread) for thread in (7, 8, 9)] == [None, "borg", None]
    assert [Programs(["tar", "mine"], proc=tmp_path).name_of(thread) for thread in (7, 9)] == ["tar", "mine"]


def test_the_name_is_that_of_the_process_not_of_a_thread(tmp_path: Path) -> None:
    run(tmp_path, 7, "train")
    run(tmp_path, 8, "cp", process=7)
    run(tmp_path, 17, "rclone")
    run(tmp_path, 18, "upload", process=17)
    assert [Programs(proc=tmp_path).name_of(thread) for thread in (8, 18)] == [None, "rclone"]


def test_the_list_can_be_changed(tmp_path: Path) -> None:
    for thread, name in enumerate(("cp", "tar", "mine"), 7):
        run(tmp_path, thread, name)

    def known(more: list[str], fewer: list[str]) -> list[str | None]:
        programs = Programs(more, fewer, tmp_path)
        return [programs.name_of(thread) for thread in (7, 8, 9)]

    assert known([], []) == ["cp", "tar", None]
    assert known(["mine"], ["cp"]) == [None, "tar", "mine"]
    assert known(["tar"], ["all"]) == [None, "tar", None]
    assert known(["mine"], ["mine"]) == ["cp", "tar", None]


def test_this_very_test_is_no_program_that_copies() -> None:
    assert Programs().name_of(threading.get_native_id()) is None


def test_a_real_program_is_known() -> None:
    with subprocess.Popen(["grep", "it"], stdin=subprocess.PIPE) as grep:
        # The kernel names it a moment after it has closed what exec closes.
        until(lambda: Programs().name_of(grep.pid) == "grep")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as python:
        assert Programs().name_of(python.pid) is None


class Reads(Programs):
    """Counts how often a name is read."""

    def __init__(self, proc: Path) -> None:
        super().__init__(proc=proc)
        self.count = 0

    def name_of(self, thread: int) -> str | None:
        self.count += 1
        return super().name_of(thread)


def test_a_name_is_read_once_and_again_after_a_silence(tmp_path: Path) -> None:
    now, told = [100.0], list[bool]()
    programs = Reads(tmp_path)
    callers = Callers(tmp_path, lambda: now[0], programs=programs)
    callers.watch_copying(told.append)
    run(tmp_path, 7, "sh")
    for _ in range(1_000):
        now[0] += 0.01
        callers.hear(7)
    assert (programs.count, callers.copying) == (1, {})
    # The shell has become another program, and the number belongs to a new thread later.
    run(tmp_path, 7, "rsync")
    now[0] += 1
    callers.hear(7)
    assert (programs.count, callers.copying, told) == (2, {7: "rsync"}, [True])
    run(tmp_path, 7, "train")
    now[0] += 1
    callers.hear(7)
    assert (programs.count, callers.copying, told) == (3, {}, [True, False])


def test_another_process_reads_the_names_of_threads_that_a_former_one_heard(tmp_path: Path) -> None:
    run(tmp_path, 7, "tar")
    callers = Callers(tmp_path, lambda: 100.0, programs=Programs(proc=tmp_path))
    callers.resume({7: 99.99})
    callers.hear(7)
    assert callers.copying == {7: "tar"}


def test_numbers_of_another_pid_namespace_name_no_program(tmp_path: Path) -> None:
    run(tmp_path, 7, "tar")
    callers = Callers(tmp_path, lambda: 100.0, sees=False, programs=Programs(proc=tmp_path))
    callers.hear(7)
    assert callers.copying == {}


def test_sessions_that_were_heard_in_the_last_minute_are_named(tmp_path: Path) -> None:
    now = [100.0]
    callers = Callers(tmp_path, lambda: now[0], programs=Programs(proc=tmp_path))
    for thread, name, session in ((7, "train", 5), (8, "eog", 6), (9, "rsync", 6), (10, "eog", 6), (11, "sh", 5)):
        run(tmp_path, thread, name, session=session)
        callers.hear(thread)
    assert callers.sessions() == {"5": ["sh", "train"], "6": ["eog"]}
    now[0] += 45
    callers.hear(7)
    assert callers.sessions() == {"5": ["sh", "train"], "6": ["eog"]}
    now[0] += 30
    assert callers.sessions() == {"5": ["train"]}


def test_the_session_of_a_process_is_that_of_the_kernel() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as other:
        # The kernel names a program a moment after `Popen` has returned; one that answers has its name.
        assert other.stdin is not None
        assert other.stdout is not None
        os.write(other.stdin.fileno(), b"1")
        assert os.read(other.stdout.fileno(), 1) == b"1"
        assert Programs().session_of(other.pid) == (other.pid, "cat")
        found = Programs().session_of(threading.get_native_id())
        assert found is not None
        assert found[0] == os.getsid(0)
        other.communicate()


def test_the_page_lists_the_programs() -> None:
    page = (Path(__file__).parents[1] / "docs/twice.md").read_text()
    table = page.partition("## Programs that are not the job")[2].partition("`--exact-for")[0]
    assert set(re.findall(r"`([^`]+)`", table)) == EXACT_FOR
    in_python = page.partition("Nothing that Python runs")[2].partition("names that you add")[0]
    assert set(re.findall(r"`([^`]+)`", in_python)) == IN_PYTHON
