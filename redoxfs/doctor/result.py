"""What a check found."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from redoxfs.launch.say import cut, plain


class Level(StrEnum):
    """``PROBLEM``: a mount fails, or serves less than it should. ``WARNING``: it may, or is slow. ``ADVICE``: a way to
    gain, with nothing wrong."""

    OK = "ok"
    ADVICE = "advice"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report.

    ``command`` mends what was found, or carries out the advice; it is text to type, perhaps with a clause in front.
    ``values`` are for programs: sizes in bytes, times in seconds.
    """

    name: str
    level: Level
    found: str
    command: str | None = None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For people."""
        what = "to do it" if self.level is Level.ADVICE else "to mend it"
        end = "" if self.command is None else f"; {what}: {self.command}"
        return cut(plain(f"{self.level:<8} {self.name}: {self.found}{end}"))

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def ok(name: str, found: str, **values: Any) -> Result:
    return Result(name, Level.OK, found, values=values)


def advice(name: str, found: str, command: str | None = None, **values: Any) -> Result:
    return Result(name, Level.ADVICE, found, command, values)


def warning(name: str, found: str, command: str | None = None, **values: Any) -> Result:
    return Result(name, Level.WARNING, found, command, values)


def problem(name: str, found: str, command: str | None = None, **values: Any) -> Result:
    return Result(name, Level.PROBLEM, found, command, values)
