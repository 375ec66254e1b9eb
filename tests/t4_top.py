"""`redoxfs top` of real mounts, in a real terminal: tmux."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from machine import Machine
from patience import PATIENCE_S, until


class Terminal:
    """A shell in tmux. Each test has a server of its own, whose socket is in the machine's folder."""

    def __init__(self, machine: Machine) -> None:
        self.folder = machine.sockets
        self._machine = machine
        self._do("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh")
        self._do("set-option", "-g", "default-terminal", "tmux-256color")

    def _do(self, *words: str) -> str:
        # Sessions share a server: one of this path, and none of the user's.
        command = ["tmux", "-S", str(self.folder / "tmux"), *words]
        environment = self._machine.environment | {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout

    def type(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> list[str]:
        return self._do("capture-pane", "-p").split("\n")

    def until(self, holds: Callable[[list[str]], object]) -> list[str]:
        """The screen, once this holds of it."""

        def look() -> list[str]:
            lines = self.screen()
            return lines if holds(lines) else []

        return until(look, lambda: "\n".join(self.screen()))

    def until_exists(self, path: Path) -> str:
        """The text of a file, once it is there."""
        self.until(lambda _: path.exists())
        return path.read_text()

    def close(self) -> None:
        self._do("kill-server")


@pytest.fixture
def terminal(machine: Machine) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed; scripts/setup installs it")
    terminal = Terminal(machine)
    try:
        yield terminal
    finally:
        terminal.close()


@contextmanager
def top(terminal: Terminal, machine: Machine, *arguments: str | Path, before: str = "") -> Iterator[Callable[[], int]]:
    """Run `redoxfs top` in the terminal. What is yielded waits for its end, and checks that the terminal is as it was.

    Returns its exit code.
    """
    done, pid = terminal.folder / "done", terminal.folder / "pid"
    for path in (done, pid):
        path.unlink(missing_ok=True)
    command = " ".join(machine.command("top", "--interval", "0.2", *arguments))
    script = terminal.folder / "script"
    script.write_text(
        f"stty -a >{terminal.folder}/before; {before}\n"
        f"sh -c 'echo $$ >{pid}; exec \"$@\"' sh {command}\n"
        f"code=$?; stty -a >{terminal.folder}/after; echo $code >{done}.part; mv {done}.part {done}\n"
    )
    terminal.type(f". {script}", "Enter")

    def ended() -> int:
        code = int(terminal.until_exists(done))
        assert (terminal.folder / "after").read_text() == (terminal.folder / "before").read_text()
        return code

    yield ended
    if not done.exists():
        terminal.type("q")
        ended()


def figure(lines: Sequence[str], label: str) -> str:
    """The first word behind a label; empty where there is none."""
    for line in lines:
        if line.startswith(label):
            return (line.removeprefix(label).split() or [""])[0]
    return ""


def without_blanks(lines: Sequence[str]) -> str:
    """A text, wherever it was broken into lines."""
    return "".join("".join(lines).split())


def says(text: str) -> Callable[[list[str]], bool]:
    """Whether a screen has this text, wherever the length of a path broke it into lines."""
    return lambda lines: without_blanks([text]) in without_blanks(lines)


def test_top_shows_what_a_reader_counted_and_q_restores_the_terminal(
    machine: Machine, source: Path, terminal: Terminal
) -> None:
    machine.ok("mount", source, machine.mnt)
    paths = sorted((machine.mnt / "train").rglob("*.jpg"))
    with top(terminal, machine, machine.mnt) as ended:
        terminal.until(lambda lines: figure(lines, "opens/s") == "0")
        for path in paths[:23]:
            path.read_bytes()
        lines = terminal.until(lambda lines: any("23 of 40" in line for line in lines))
        assert lines[0].startswith("redoxfs top")
        assert any(line.startswith("serving") for line in lines)
        assert any("57.5%" in line and line.startswith("train") for line in lines)
        assert figure(lines, "memory")
        for path in paths[23:]:
            path.read_bytes()
        terminal.until(lambda lines: any("40 of 40" in line for line in lines))
        terminal.type("q")
        assert ended() == 0
        terminal.until(lambda lines: not any("opens/s" in line for line in lines))
    machine.ok("umount", machine.mnt)


def test_top_has_the_verdict_and_uses_the_size_that_the_terminal_gets(
    machine: Machine, source: Path, terminal: Terminal
) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "none")
    verdict = without_blanks(machine.ok("status", machine.mnt).stdout.splitlines()[:1])

    def is_drawn_for(columns: int, lines: Sequence[str]) -> bool:
        return lines[0].startswith("redoxfs top") and lines[0].endswith("q quits") and len(lines[0]) == columns

    with top(terminal, machine, machine.mnt, "--interval", "3600"):
        terminal.until(lambda lines: is_drawn_for(80, lines))
        for columns, height in ((140, 40), (60, 16), (80, 24)):
            terminal.resize(columns, height)
            # Long before the next update.
            terminal.until(partial(is_drawn_for, columns))
            terminal.until(lambda lines: without_blanks(lines[1:]).startswith(verdict))
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP), (signal.SIGINT, 0)],
)
def test_a_signal_ends_top_and_restores_the_terminal(
    machine: Machine, source: Path, terminal: Terminal, number: signal.Signals, code: int
) -> None:
    machine.ok("mount", source, machine.mnt)
    with top(terminal, machine, machine.mnt) as ended:
        terminal.until(lambda lines: figure(lines, "opens/s"))
        os.kill(int((terminal.folder / "pid").read_text()), number)
        assert ended() == code
        terminal.until(lambda lines: not any("opens/s" in line for line in lines))
    machine.ok("umount", machine.mnt)


def test_a_stopped_top_gives_the_terminal_back_and_continues(
    machine: Machine, source: Path, terminal: Terminal
) -> None:
    machine.ok("mount", source, machine.mnt)
    command = " ".join(machine.command("top", "--interval", "0.2", machine.mnt))
    terminal.type(command, "Enter")
    terminal.until(lambda lines: figure(lines, "opens/s"))
    terminal.type("C-z")
    terminal.until(lambda lines: any("Stopped" in line for line in lines) and not figure(lines, "opens/s"))
    terminal.type("fg", "Enter")
    terminal.until(lambda lines: figure(lines, "opens/s"))
    terminal.type("q")
    terminal.until(lambda lines: not figure(lines, "opens/s"))
    machine.ok("umount", machine.mnt)


def test_a_bug_in_top_restores_the_terminal(machine: Machine, source: Path, terminal: Terminal) -> None:
    machine.ok("mount", source, machine.mnt)
    # Where Python looks first, a screen that cannot be drawn.
    broken = machine.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import rich.live\ndel rich.live.Live.update\n")
    with top(terminal, machine, machine.mnt, before=f"export PYTHONPATH={broken}:$PYTHONPATH") as ended:
        assert ended() == 1
        terminal.until(says("unexpected AttributeError"))
    machine.ok("umount", machine.mnt)


def test_mounts_stand_side_by_side_whatever_becomes_of_them(machine: Machine, source: Path, terminal: Terminal) -> None:
    hung, killed, ended_one = (machine.folder / name for name in ("hung", "killed", "ended"))
    for mountpoint in (hung, killed, ended_one):
        mountpoint.mkdir()
        machine.ok("mount", source, mountpoint, "--no-keeper")
    pid = machine.pid(hung)
    with top(terminal, machine, hung, killed, ended_one):
        terminal.until(lambda lines: figure(lines, "state") == "serving")
        (ended_one / "train").stat()
        machine.kill(signal.SIGKILL, killed)
        machine.ok("umount", ended_one)
        os.kill(pid, signal.SIGSTOP)
        try:
            lines = terminal.until(
                lambda lines: any(
                    all(state in line for state in ("no answer", "daemon dead", "ended")) for line in lines
                )
            )
            assert any("redoxfs umount" in line for line in lines)
            # The clock of the first line goes on.
            terminal.until(lambda later: later[0] != lines[0] and later[0].startswith("redoxfs top"))
        finally:
            os.kill(pid, signal.SIGCONT)
        terminal.until(lambda lines: figure(lines, "state") == "serving")
        machine.ok("mount", source, ended_one, "--no-keeper")
        again = ["state", "serving", "daemon", "dead", "serving", "2", "serving"]
        terminal.until(lambda lines: any(line.split() == again for line in lines))
        terminal.type("1")
        terminal.until(lambda lines: lines[0].startswith("redoxfs top  ") and lines[0].split()[2].endswith("hung"))
    for mountpoint in (hung, killed, ended_one):
        machine.ok("umount", mountpoint)


def test_top_without_a_name_shows_the_mounts_of_this_user(machine: Machine, source: Path, terminal: Terminal) -> None:
    mountpoint = machine.folder / "theirs"
    mountpoint.mkdir()
    machine.ok("mount", source, mountpoint)
    with top(terminal, machine):
        # This machine may have others.
        terminal.until(lambda lines: any("theirs" in line for line in lines[:2]) and figure(lines, "opens/s"))
    machine.ok("umount", mountpoint)


def test_top_ends_after_its_updates(machine: Machine, source: Path, terminal: Terminal) -> None:
    machine.ok("mount", source, machine.mnt)
    with top(terminal, machine, machine.mnt, "--count", "2") as ended:
        assert ended() == 0
    machine.ok("umount", machine.mnt)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_top_names_stats_where_there_is_no_screen(machine: Machine, terminal: Terminal, is_terminal: bool) -> None:
    if is_terminal:
        with top(terminal, machine, machine.mnt, before="export TERM=dumb") as ended:
            assert ended() == 2
            terminal.until(says("type, for each mount: redoxfs stats"))
        return
    refused = machine.run("top", machine.mnt)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "redoxfs: top needs a terminal; for lines type, for each mount: redoxfs stats MOUNTPOINT\n"
    )


def test_top_needs_a_mount(machine: Machine, terminal: Terminal) -> None:
    with top(terminal, machine, machine.mnt) as ended:
        assert ended() == 4
        terminal.until(says("no redoxfs mount is there"))
