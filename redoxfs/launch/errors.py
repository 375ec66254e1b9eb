"""Errors that the user of a command can act on. `redoxfs.cli.exits` maps each to its exit code."""

import errno

UNEXPECTED = 1
"""The exit code of an exception that no table knows: a bug."""


class CommandError(Exception):
    """An error that the user can act on. Its text is one line."""


class UsageError(CommandError):
    """An option or its value is invalid."""


class SourceUnusableError(CommandError):
    """SOURCE cannot be read as a dataset."""


class MountpointError(CommandError):
    """MOUNTPOINT cannot be mounted on, or is not a redoxfs mount."""


class DestinationError(CommandError):
    """DST cannot be written to."""


class DamagedError(CommandError):
    """A packed dataset differs from when it was packed."""


class TooLittleMemoryError(CommandError):
    """The given memory is too little for this dataset."""


class FuseUnavailableError(CommandError):
    """FUSE is missing on this machine, or not permitted to this user."""


class StillInUseError(CommandError):
    """A mount cannot be ended because it is in use."""


class DaemonError(CommandError):
    """The daemon ended or hangs; only its log has the reason."""


NO_PROCESS = "no process can be started; raise the limit of processes (ulimit -u, or pids.max of the cgroup)"


class NoProcessError(OSError):
    """No process can be started: this user, or a control group, is at a limit of processes."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, NO_PROCESS)

    def __str__(self) -> str:
        return NO_PROCESS


class ReportedError(CommandError):
    """An error that the daemon reported before it ended, with its exit code."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code
