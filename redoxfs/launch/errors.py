"""Errors that the person who typed the command can act on. `redoxfs.cli.exits` gives each its exit code."""

UNEXPECTED = 1
"""The exit code of an exception that no table knows: a bug."""


class CommandError(Exception):
    """Something the person who typed the command can act on. Its text is one line."""


class UsageError(CommandError):
    """An option, or the value of one, cannot be taken."""


class SourceUnusableError(CommandError):
    """SOURCE cannot be read as a dataset."""


class MountpointError(CommandError):
    """MOUNTPOINT cannot be mounted on, or holds no redoxfs mount."""


class DestinationError(CommandError):
    """DST cannot be written to."""


class DamagedError(CommandError):
    """A packed dataset is not what it was when it was packed."""


class TooLittleMemoryError(CommandError):
    """The memory given does not suffice for this dataset."""


class FuseUnavailableError(CommandError):
    """This machine, or this user on it, has no FUSE."""


class StillInUseError(CommandError):
    """A mount cannot be ended because somebody uses it."""


class DaemonError(CommandError):
    """The daemon ended, or hangs, for a reason that only its log knows."""


class ReportedError(CommandError):
    """What the daemon said before it ended. It knew the exception, so it sends the code along."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code
