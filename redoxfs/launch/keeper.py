"""The keeper, as the processes around it see it: `redoxfs mount`, the daemon, and those who look for it.

    redoxfs mount      forks a process, which forks the daemon and becomes the keeper (native/keeper/keeper.c)
    daemon             sends the keeper what to hold, when it has mounted
    keeper             is the daemon's parent. When the daemon dies, it starts another, which gets all that is held
    another daemon     `redoxfs.launch.successor`

The keeper holds what a daemon cannot open again: the devices of the mount, a descriptor of SOURCE from below the mount,
the folder of the state file, and two memfds: the recipe (`redoxfs.launch.recipe`) and what the session writes as it
goes. It knows nothing of their content.

Other commands find the keeper of a mount by a lock that it holds (`redoxfs.launch.turn.keeper_of`).
"""

import json
import os
import signal
import site
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from redoxfs.launch.errors import DaemonError, MountpointError
from redoxfs.launch.recipe import LAYOUT, RecipeMemory
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.turn import byte_of_keeper
from redoxfs.linux.mount_table import read_mounts, topmost_at

# keeper.c has the same three numbers.
MOST_DESCRIPTORS = 128
MOST_TEXT_BYTES = 4096
AGAIN = 75
"""The exit code of a daemon that asks for another."""

_HOLD, _SERVES = b"H", b"S"

# <sys/socket.h>, struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Held:
    """The descriptors that outlive a daemon, besides the devices. ``state_fd`` is -1 if there is no state file."""

    shared_fd: int
    recipe_fd: int
    root_fd: int
    state_fd: int

    def descriptors(self) -> list[int]:
        return [fd for fd in (self.shared_fd, self.recipe_fd, self.root_fd, self.state_fd) if fd >= 0]


@dataclass(frozen=True, slots=True)
class Past:
    """What became of the daemons before this one.

    ``restarts`` counts those that were asked for too. ``crashed``: the last one ended by its own fault.
    """

    restarts: int = 0
    crashed: bool = False
    last_death: str | None = None
    last_death_s: int = 0


class Keeper:
    """The keeper of this daemon's mount: `redoxfs.fs.serve.Keeper`.

    Args:
        connection: to the keeper.
        device_number: of the mount; None: this daemon makes it.
        pid: of the keeper; None: it is the parent. It may be dead, and the parent another process.
    """

    def __init__(
        self,
        connection: socket.socket,
        mountpoint: Path,
        held: Held,
        *,
        devices: tuple[int, ...] = (),
        device_number: str | None = None,
        past: Past | None = None,
        pid: int | None = None,
    ) -> None:
        self.held = held
        self.shared_fd = held.shared_fd
        self.devices = devices
        self.device_number = device_number
        self.crashed = past is not None and past.crashed
        self.restarting = False
        self.pid = os.getppid() if pid is None else pid
        self._connection = connection
        self._mountpoint = mountpoint
        self._past = past or Past()

    @property
    def exit_code(self) -> int:
        """Of a daemon that has ended as it was told to."""
        return AGAIN if self.restarting else 0

    def hold(self, devices: Sequence[int]) -> None:
        """Send the devices of the mount, and all else that another daemon needs."""
        mount = topmost_at(self._mountpoint, read_mounts())
        assert mount is not None
        self.device_number = mount.device
        descriptors = [*devices, *self.held.descriptors()]
        about = {"devices": len(devices), "number": mount.device, "has_state": self.held.state_fd >= 0}
        text = b"%d\n%s" % (byte_of_keeper(mount.device), json.dumps(about).encode())
        with suppress(BrokenPipeError):
            # It was killed. The daemon goes on without it.
            socket.send_fds(self._connection, [_HOLD + text], descriptors)

    def serves(self) -> None:
        """Say that the daemon serves: the keeper need not watch the mount any more."""
        with suppress(BrokenPipeError):
            self._connection.send(_SERVES)

    def restart(self) -> None:
        """Ask for another daemon, which begins when this one has ended. Raises ValueError if there is no keeper."""
        if not self._lives():
            raise ValueError("its keeper was killed, so nobody would start another daemon")
        self.restarting = True

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json; ``pid`` is None if the keeper was killed."""
        death = {"how": self._past.last_death, "at": self._past.last_death_s} if self._past.last_death else None
        return {
            "pid": self.pid if self._lives() else None,
            "restarts": self._past.restarts,
            "last_death": death,
            "layouts": layouts(),
        }

    def _lives(self) -> bool:
        return os.getppid() == self.pid


def layouts() -> dict[str, int]:
    """The versions of what this redoxfs keeps for another daemon, which must have the same."""
    from redoxfs.native._native import LAYOUT as LAYOUT_OF_SHARED
    from redoxfs.node.checkpoint import LAYOUT as LAYOUT_OF_CHECKPOINT

    return {"recipe": LAYOUT, "shared": LAYOUT_OF_SHARED, "checkpoint": LAYOUT_OF_CHECKPOINT}


# Starting


@dataclass(frozen=True, slots=True, eq=False)
class NewKeeper:
    """A keeper that is to be, in `redoxfs mount`.

    ``recipe``  what another daemon needs, to be finished before the fork
    ``turn``    the descriptor of `redoxfs.launch.turn.await_turn`
    """

    ours: socket.socket
    daemons: socket.socket
    held: Held
    recipe: RecipeMemory
    turn: int
    control_path: Path
    mountpoint: Path

    def of_daemon(self) -> Keeper:
        """The keeper as its first daemon sees it. Called in the daemon."""
        self.ours.close()
        return Keeper(self.daemons, self.mountpoint, self.held)

    def become(self, daemon: int, log_fd: int) -> NoReturn:
        """Become the keeper of the child ``daemon``. Called in the process between the command and the daemon."""
        program = program_path()
        os.chdir("/")
        os.set_inheritable(self.turn, True)
        for fd, number in ((self.ours.fileno(), 0), (log_fd, 1), (log_fd, 2)):
            os.dup2(fd, number)
        arguments = [program.name, str(daemon), str(self.turn), str(self.control_path), str(self.mountpoint)]
        command, environment = restart_command(self.mountpoint)
        os.execve(program, [*arguments, *command], environment)


def new_keeper(recipe: RecipeMemory, root_fd: int, state_path: Path | None, turn: int, mountpoint: Path) -> NewKeeper:
    """A keeper, ready but for ``recipe``. Raises DaemonError if its program is missing."""
    program_path()
    shared_fd = os.memfd_create("redoxfs-shared", os.MFD_CLOEXEC)
    state_fd = -1
    if state_path is not None:
        state_fd = os.open(state_path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ours, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held = Held(shared_fd, recipe.fd, root_fd, state_fd)
    return NewKeeper(ours, daemons, held, recipe, turn, control_path(mountpoint), mountpoint)


def program_path() -> Path:
    """The keeper's program. Raises DaemonError if it is missing."""
    from redoxfs.native.sources import KEEPER

    if not os.access(KEEPER, os.X_OK):
        raise DaemonError(f"{KEEPER}: is missing or cannot be run; install redoxfs again, or mount without --keeper")
    return KEEPER


def check_import_path(mountpoint: Path) -> None:
    """Raises MountpointError if another daemon would look for its modules below the mount, where nobody answers yet."""
    _, environment = restart_command(mountpoint)
    # The first is the folder of this command, which another daemon does not look into.
    for path in [*sys.path[1:], *environment.get("PYTHONPATH", "").split(os.pathsep), site.getusersitepackages()]:
        real = Path(os.path.realpath(path or "/"))
        if path and mountpoint in (real, *real.parents):
            raise MountpointError(
                f"{mountpoint}: Python looks for modules in {path}, so no daemon could be started again; "
                "take it out of PYTHONPATH, or mount without --keeper"
            )


def restart_command(mountpoint: Path) -> tuple[list[str], dict[str, str]]:
    """The command of another daemon, and its environment. It begins in "/", from where nothing is imported."""
    # What multiprocessing passes to its children as well.
    from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

    flags = [flag for flag in _args_from_interpreter_flags() if flag != "-P"]
    environment = dict(os.environ)
    package = str(Path(__file__).parents[2])
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(package):
        # `python -m redoxfs` in a folder that has redoxfs.
        before = [path] if (path := environment.get("PYTHONPATH")) else []
        environment["PYTHONPATH"] = os.pathsep.join([package, *before])
    return [sys.executable, *flags, "-P", "-m", "redoxfs.launch.successor", str(mountpoint)], environment


# Going on


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What another daemon gets from the keeper. ``number`` is that of the mount's device, major:minor.

    ``keeper_pid``  the process that made the connection
    """

    connection: socket.socket
    held: Held
    devices: tuple[int, ...]
    number: str
    past: Past
    keeper_pid: int


def inherited() -> Inheritance:
    """What the keeper has for this process, which it started. Takes descriptor 0."""
    fd = os.dup(0)
    os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    connection = socket.socket(fileno=fd)
    text, descriptors, _, _ = socket.recv_fds(connection, MOST_TEXT_BYTES + 256, MOST_DESCRIPTORS)
    for each in descriptors:
        os.set_inheritable(each, False)
    past, _, about = text.split(b"\n", 2)
    restarts, crashed, death_s, death = past.decode().split(" ", 3)
    told: Mapping[str, Any] = json.loads(about)
    devices, others = descriptors[: told["devices"]], descriptors[told["devices"] :]
    return Inheritance(
        connection,
        Held(*others, *(() if told["has_state"] else (-1,))),
        tuple(devices),
        told["number"],
        Past(int(restarts), crashed == "1", death or None, int(death_s)),
        _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0],
    )


def let_signals_end() -> None:
    """Unblock the signal that the keeper blocks until the daemon can end cleanly."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
