"""The keeper, as the processes around it see it: `redoxfs mount`, the daemon, and those who look for it.

    redoxfs mount      forks a process, which forks the daemon and becomes the keeper (native/keeper/keeper.c); with -f,
                       it forks the daemon and becomes the keeper itself
    daemon             sends the keeper what to hold, when it has mounted
    keeper             is the daemon's parent. When the daemon dies, it starts another, which gets all that is held
    another daemon     `redoxfs.launch.successor`

The keeper holds what a daemon cannot open again: the devices of the mount, a descriptor of SOURCE from below the mount,
the folder of the state file, and four memfds: the recipe (`redoxfs.launch.recipe`), what the session writes as it
goes, the history, and the last turns. Among several nodes it holds this node's port as well. It knows nothing of their
content.

Other commands find the keeper of a mount by a lock that it holds (`redoxfs.launch.turn.keeper_of`).
"""

import json
import os
import signal
import site
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from redoxfs.launch.errors import DaemonError
from redoxfs.launch.options import MountOptions
from redoxfs.launch.recipe import LAYOUT, RecipeMemory
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.turn import byte_of_keeper, keeper_by
from redoxfs.linux.descriptors import opened
from redoxfs.linux.mount_table import of_mount, read_mounts, topmost_at
from redoxfs.linux.pids import pid_of_peer

# keeper.c has the same four numbers.
MOST_DESCRIPTORS = 128
MOST_TEXT_BYTES = 4096
AGAIN = 75
"""The exit code of a daemon that asks for another."""
LATER = 71
"""The exit code of a daemon that could not begin because the system lacks something for a while."""

_HOLD, _SERVES, _LOCK = b"H", b"S", b"L"


@dataclass(frozen=True, slots=True)
class Held:
    """The descriptors that outlive a daemon, besides the devices; -1 stands for none.

    ``state_fd``    the folder of the state file
    ``history_fd``  the memfd of the history
    ``turns_fd``    the memfd of the last turns
    ``port_fd``     a socket that keeps the port of one of several nodes from other programs while no daemon listens
    """

    shared_fd: int
    recipe_fd: int
    root_fd: int
    state_fd: int = -1
    port_fd: int = -1
    history_fd: int = -1
    turns_fd: int = -1

    def descriptors(self) -> dict[str, int]:
        """Those that there are, by their names here."""
        return {name: fd for name, fd in asdict(self).items() if fd >= 0}


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

    ``control_path``: of `redoxfs.launch.runtime_paths.control_path`.
    """

    def __init__(self, given: "Inheritance", mountpoint: Path, control_path: Path) -> None:
        self._connection, self._past, self._pid = given.connection, given.past, given.keeper_pid
        self._mountpoint, self._control_path = mountpoint, control_path
        self._held = given.held
        self.shared_fd = given.held.shared_fd
        self.history_fd = given.held.history_fd
        self.turns_fd = given.held.turns_fd
        self.devices, self.mounted_at_s = given.devices, given.mounted_at_s
        self._devices, self._number, self._made_at_s = given.devices, given.number, given.mounted_at_s
        self.crashed = given.past.crashed
        self.restarting = False
        self._serves = False

    @property
    def exit_code(self) -> int:
        """Of a daemon that has ended as it was told to."""
        return AGAIN if self.restarting else 0

    def hold(self, devices: Sequence[int]) -> None:
        """Send the devices of the mount, and all else that another daemon needs. Blocks until the keeper has it."""
        mount = topmost_at(self._mountpoint, read_mounts())
        assert mount is not None
        self._number = mount.device
        self._made_at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._devices = tuple(devices)
        with suppress(BrokenPipeError, ConnectionResetError):
            # It was killed. The daemon goes on without it.
            self._send_held()
            # Until it has them, it ends with the command that mounts, and ends this process. So the command must wait.
            self._connection.recv(1)

    def _send_held(self) -> None:
        assert self._number is not None
        held = self._held.descriptors()
        about = {
            "devices": len(self._devices),
            "number": self._number,
            "held": list(held),
            "mounted_at_s": self._made_at_s,
        }
        first = f"{byte_of_keeper(self._number)} {self._number}\n"
        text = first.encode() + json.dumps(about).encode()
        socket.send_fds(self._connection, [_HOLD + text], [*self._devices, *held.values()])

    def gave_up_state(self) -> None:
        """The state file belongs to another mount: a later daemon of this one gets none."""
        self._held = replace(self._held, state_fd=-1)
        with suppress(BrokenPipeError, ConnectionResetError):
            self._send_held()

    def look(self) -> None:
        """Have the keeper lock the file by which other commands find it, if that was removed. Raises OSError.

        Another command may have made the file anew.
        """
        if not self._serves:
            # To close the file would end the lock that this process has in it until then (`redoxfs.launch.turn`).
            return
        assert self._number is not None
        lock = self._control_path.with_suffix(".lock")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with opened(os.open(lock, flags, 0o600)) as fd:
            if keeper_by(fd, self._number) is None:
                # One that was killed takes nothing, and one that is stopped takes it later.
                with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                    socket.send_fds(self._connection, [_LOCK], [fd], socket.MSG_DONTWAIT)

    def serves(self) -> None:
        """Say that the daemon serves: the keeper need not watch the mount any more."""
        assert self._number is not None
        self._serves = True
        path = os.fsencode(of_mount(self._control_path, self._number))
        with suppress(BrokenPipeError):
            self._connection.send(_SERVES + path)

    def restart(self) -> None:
        """Ask for another daemon, which begins when this one has ended. Raises ValueError if there is no keeper."""
        if not self._lives():
            raise ValueError("its keeper was killed, so nobody would start another daemon")
        self.restarting = True

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json; ``pid`` is None if the keeper was killed."""
        death = {"how": self._past.last_death, "at": self._past.last_death_s} if self._past.last_death else None
        return {
            "pid": self._pid if self._lives() else None,
            "restarts": self._past.restarts,
            "last_death": death,
            "layouts": layouts(),
        }

    def _lives(self) -> bool:
        return os.getppid() == self._pid


def layouts() -> dict[str, int]:
    """The versions of what this redoxfs keeps for another daemon, which must have the same."""
    from redoxfs.native._native import LAYOUT as LAYOUT_OF_SHARED
    from redoxfs.node.checkpoint import LAYOUT as LAYOUT_OF_CHECKPOINT

    return {"recipe": LAYOUT, "shared": LAYOUT_OF_SHARED, "checkpoint": LAYOUT_OF_CHECKPOINT}


# Starting


def has_keeper(options: MountOptions) -> bool:
    """Whether a mount is to have a keeper."""
    # The program that runs a command with -f may expect it to be the daemon.
    return not options.foreground if options.keeper is None else options.keeper


@dataclass(frozen=True, slots=True, eq=False)
class NewKeeper:
    """A keeper that is to be, in `redoxfs mount`.

    ``ours_fd``, ``daemons_fd``  the two ends of the connection
    ``recipe``                   what another daemon needs, to be finished before the fork
    ``turn``                     the descriptor of `redoxfs.launch.turn.await_turn`
    """

    ours_fd: int
    daemons_fd: int
    held: Held
    recipe: RecipeMemory
    turn: int
    control_path: Path
    mountpoint: Path

    def of_daemon(self) -> Keeper:
        """The keeper as its first daemon sees it. Called in the daemon."""
        os.close(self.ours_fd)
        given = Inheritance(socket.socket(fileno=self.daemons_fd), self.held, keeper_pid=os.getppid())
        return Keeper(given, self.mountpoint, self.control_path)

    def become(self, daemon: int, log_fd: int, log_format: str, *, ends: "Ends | None") -> NoReturn:
        """Become the keeper of the child ``daemon``. Called in the process that forked it.

        Args:
            ends: the command stays in the foreground, and these signals are the keeper's; None: in the background.
        """
        program = program_path()
        os.chdir("/")
        os.set_inheritable(self.turn, True)
        for fd, number in ((self.ours_fd, 0), (log_fd, 1), (log_fd, 2)):
            os.dup2(fd, number)
        place = "background" if ends is None else "foreground"
        arguments = [place, str(daemon), str(self.turn), str(self.control_path), str(self.mountpoint)]
        command, environment = restart_command(self.mountpoint)
        environment["REDOXFS_KEEPER_LOG"] = log_format
        if ends is not None:
            ends.leave_to_the_next()
        os.execve(program, [program.name, *arguments, *command], environment)


def new_keeper(
    recipe: RecipeMemory, root_fd: int, state_path: Path | None, turn: int, mountpoint: Path, address: str | None
) -> NewKeeper:
    """A keeper, ready but for ``recipe``. Raises DaemonError if its program is missing.

    Args:
        address: of this node among several.
    """
    program_path()
    shared_fd = os.memfd_create("redoxfs-shared", os.MFD_CLOEXEC)
    state_fd = -1
    if state_path is not None:
        state_fd = os.open(state_path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ours, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    port_fd = -1 if address is None else _port_held(address)
    history_fd = os.memfd_create("redoxfs-history", os.MFD_CLOEXEC)
    turns_fd = os.memfd_create("redoxfs-turns", os.MFD_CLOEXEC)
    held = Held(shared_fd, recipe.fd, root_fd, state_fd, port_fd, history_fd, turns_fd)
    return NewKeeper(ours.detach(), daemons.detach(), held, recipe, turn, control_path(mountpoint), mountpoint)


def _port_held(address: str) -> int:
    """A socket that is bound to ``address`` and does not listen; -1 if there can be none.

    gRPC's sockets have SO_REUSEADDR as well, so one of them can still listen there, and no connection gets this port as
    its own.
    """
    from redoxfs.launch.addresses import split_address

    host, port = split_address(address)
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(name)
            return held.detach()
    except OSError:
        # The daemon will say why it cannot listen there, or is luckier.
        return -1


def program_path() -> Path:
    """The keeper's program. Raises DaemonError if it is missing."""
    from redoxfs.native.sources import KEEPER

    if not os.access(KEEPER, os.X_OK):
        raise DaemonError(f"{KEEPER}: is missing or cannot be run; install redoxfs again, or mount with --no-keeper")
    return KEEPER


def import_path_below(mountpoint: Path) -> str | None:
    """A folder below the mount where another daemon would look for its modules while nobody answers; None: it would
    not."""
    _, environment = restart_command(mountpoint)
    # The first is the folder of this command, which another daemon does not look into.
    for path in [*sys.path[1:], *environment.get("PYTHONPATH", "").split(os.pathsep), site.getusersitepackages()]:
        real = Path(os.path.realpath(path or "/"))
        if path and mountpoint in (real, *real.parents):
            return path
    return None


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
    """What a daemon gets from the keeper. The first one, which makes the mount, gets no devices.

    ``keeper_pid``    the process that made the connection. It may be dead, and the parent another process
    ``number``        of the mount's device, major:minor
    ``mounted_at_s``  when the first daemon made the mount, by CLOCK_BOOTTIME
    """

    connection: socket.socket
    held: Held
    keeper_pid: int
    devices: tuple[int, ...] = ()
    number: str | None = None
    mounted_at_s: float | None = None
    past: Past = Past()


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
        Held(**dict(zip(told["held"], others, strict=True))),
        pid_of_peer(connection),
        tuple(devices),
        told["number"],
        told["mounted_at_s"],
        Past(int(restarts), crashed == "1", death or None, int(death_s)),
    )


class Ends:
    """Signals that ask a command to end while it becomes a keeper: noted from now on."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._noted: list[int] = []
        self._before = {
            number: signal.signal(number, lambda one, _: self._noted.append(one)) for number in self._NUMBERS
        }

    def forget(self) -> None:
        """They do as before: in a child."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave_to_the_next(self) -> None:
        """The program that this process executes now finds them pending."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._NUMBERS)
        for number in self._noted:
            signal.raise_signal(number)


def let_signals_end() -> None:
    """Unblock the signal that the keeper blocks until the daemon can end cleanly."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
