"""The real command on this machine, in a folder of its own, and the removal of what a test leaves behind."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patience import PATIENCE_S as PATIENCE_S
from patience import completed, until

from redoxfs.linux.detach import detach
from redoxfs.linux.mount_table import Mount, read_mounts, topmost_at

OTHERS_CLEARED = r"""
awk '($3 ~ /^fuse/ || $1 ~ /^.dev.loop/) && $2 != ENVIRON["MNT"] {print $2}' /proc/self/mounts |
    xargs -r umount --lazy 2>/dev/null || true
"""
"""For a shell in a new mount namespace: it would keep the mounts of other tests, which are theirs to end.

``$MNT`` is one to keep."""


SETTING = """
import json, os, runpy, sys
_, variables = sys.argv[1:3]
del sys.argv[1:3]
os.environ |= json.loads(variables)
sys.path[0] = os.getcwd()  # as -m does; a daemon that a keeper starts gets it too
runpy.run_module("redoxfs", run_name="__main__", alter_sys=True)
"""
"""The command with other variables, of which only the processes that it starts have known all their lives.

The first argument is "redoxfs", by which `Machine.daemons` knows a daemon."""


def has_ended(process: int) -> bool:
    """Whether the process of this pidfd ends in time; the descriptor is closed."""
    try:
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        return bool(waiting.poll(PATIENCE_S * 1000))
    finally:
        os.close(process)


def mount_at(path: Path) -> Mount:
    """The visible mount at a path."""
    mount = topmost_at(path, read_mounts())
    assert mount is not None
    return mount


def contents(root: Path) -> list[bytes]:
    """Of all samples below ``root``, in an order that does not depend on their names."""
    return sorted(path.read_bytes() for path in root.glob("train/*/*.jpg"))


class Machine:
    """Runs `redoxfs` with caches and logs under ``folder``, and sockets in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mnt = folder / "mnt"
        self.mnt.mkdir()
        # Not below `folder`: the path of a socket has 107 bytes at most.
        self.sockets = Path(tempfile.mkdtemp(prefix="run", dir=folder.parent))
        homes = {"XDG_CACHE_HOME": folder / "cache", "XDG_STATE_HOME": folder / "state"}
        for home in homes.values():
            home.mkdir(mode=0o700)
        homes["XDG_RUNTIME_DIR"] = self.sockets
        self.environment = os.environ | {name: str(home) for name, home in homes.items()}
        self.before: Sequence[str] = ()
        """Words before each command, such as `forks.EXECUTED`."""
        self.successors: dict[str, str] = {}
        """Variables of the daemons that a keeper starts. What Python looks at when it starts would, in ``environment``,
        make each command a new process instead of a fork."""
        self.told: list[str] = []
        """What each node that was mounted last said on stderr."""

    def command(self, *arguments: str | Path) -> list[str]:
        program = ["-m", "redoxfs"]
        if self.successors and arguments[0] == "mount":
            program = ["-c", SETTING, "redoxfs", json.dumps(self.successors)]
        return [*self.before, sys.executable, *program, *map(str, arguments)]

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return completed(self.command(*arguments), env=self.environment)

    def ok(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done

    def refused(self, code: int, *arguments: str | Path) -> str:
        """The only line on stderr of a command that ends with an exit code."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        return done.stderr

    def umount(self, *words: str | Path) -> None:
        """Unmount; nothing is left then."""
        self.ok("umount", *(words or (self.mnt,)))
        assert self.nothing_is_left()

    @contextmanager
    def in_front(self, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        """`redoxfs mount -f` with these arguments at ``mnt``, from when it answers; killed in the end."""
        command = self.command("mount", "-f", *arguments, self.mnt)
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True) as running:
            try:
                assert running.stderr is not None
                assert any(line.startswith("to end it") for line in running.stderr)
                yield running
            finally:
                running.kill()

    def inspect(self, source: Path | str, *options: str) -> dict[str, Any]:
        return json.loads(self.ok("inspect", source, "--json", *options).stdout)

    def stats(self, mountpoint: Path | None = None) -> dict[str, Any]:
        return json.loads(((mountpoint or self.mnt) / ".redoxfs/stats.json").read_text())

    def nodes(self, mountpoint: Path) -> list[str]:
        """The addresses of the nodes that share a mount's dataset."""
        return json.loads(self.ok("nodes", mountpoint, "--json").stdout)["nodes"]

    def pid(self, mountpoint: Path | None = None) -> int:
        return int(self.stats(mountpoint)["pid"])

    def kill(self, how: signal.Signals, mountpoint: Path | None = None) -> None:
        """Send a signal to the daemon and wait until it exits. With SIGTERM and SIGINT its keeper ends as well."""
        pid = self.pid(mountpoint)
        ends = [pid] if how not in (signal.SIGTERM, signal.SIGINT) else self.processes_of(mountpoint or self.mnt)
        pidfds = [os.pidfd_open(each) for each in ends]
        os.kill(pid, how)
        assert {has_ended(pidfd) for pidfd in pidfds} == {True}

    def mount_nodes(
        self,
        source: str | Path | Sequence[Path],
        addresses: Sequence[str],
        *options: str,
        inside: Callable[[int], Sequence[str]] | None = None,
    ) -> list[Path]:
        """Mount ``source`` on nodes that share it, in the folders "0", "1", … of ``mnt``, and return these.

        ``source`` may be one for each node. ``inside`` has the words to put before a node's command. `told` has what
        each node said. `redoxfs cluster up` would start new interpreters, where these are forks.
        """
        mountpoints = [self.mnt / str(node) for node in range(len(addresses))]
        sources = [source] * len(addresses) if isinstance(source, (str, Path)) else source
        started = []
        try:
            for node, mountpoint in enumerate(mountpoints):
                mountpoint.mkdir(exist_ok=True)
                rank = ("--nodes", ",".join(addresses), "--node-rank", str(node))
                command = [
                    *(inside(node) if inside else ()),
                    *self.command("mount", sources[node], mountpoint, *options, *rank),
                ]
                started.append(subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True))
            self.told = []
            for process in started:
                _, said = process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0, said
                self.told.append(said)
        finally:
            for process in started:
                process.kill()
                process.communicate()
        return mountpoints

    def processes_of(self, *mountpoints: Path) -> list[int]:
        """The daemons and the keepers of these mounts, or of the machine's only one, in the order of their numbers."""
        told = [self.stats(mountpoint) for mountpoint in mountpoints or (self.mnt,)]
        keepers = [stats["keeper"]["pid"] for stats in told if stats["keeper"] is not None]
        return sorted(pid for pid in [*keepers, *(stats["pid"] for stats in told)] if pid is not None)

    def daemons(self) -> list[int]:
        """In the order of their numbers: processes of redoxfs with a path of this folder in their arguments."""
        mine = os.fsencode(self.folder)
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            # Before the words, as those of a fork are thousands: it has room for a long command (`forks.ROOM_BYTES`).
            if mine not in line:
                continue
            # A daemon, the keeper of one, or one that a keeper started.
            if any(
                word == b"redoxfs" or word.startswith((b"redoxfs-keeper", b"redoxfs.launch."))
                for word in line.split(b"\0")
            ):
                found.append(int(name))
        return sorted(found)

    def mounts(self) -> list[str]:
        mine = str(self.folder)
        return [mount.mountpoint for mount in read_mounts() if mount.mountpoint.startswith(mine)]

    def log(self) -> str:
        """The logs of all daemons."""
        return "".join(path.read_text() for path in sorted((self.folder / "state").rglob("*.log")))

    def watched(self) -> list[int]:
        """A pidfd of each of `daemons`, for `has_ended`: a keeper ends a moment after its daemon."""
        return [os.pidfd_open(pid) for pid in self.daemons()]

    def nothing_is_left(self) -> bool:
        sockets = list(self.sockets.rglob("*.sock"))
        return not self.mounts() and not self.daemons() and not sockets

    def clear(self) -> None:
        # A keeper may start another daemon meanwhile.
        until(self._kills_the_last, lambda: f"processes that SIGKILL does not end: {self.daemons()}")
        for mountpoint in reversed(self.mounts()):
            detach(Path(mountpoint))

    def _kills_the_last(self) -> bool:
        """Kill all daemons; whether there was none."""
        daemons = self.daemons()
        for pid in daemons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not daemons
