"""Bugs of the kinds that the fuzzer must find, each as a change of a line of redoxfs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plant:
    """``target`` reads through the line; ``old`` occurs once in ``file``."""

    name: str
    target: str
    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Change the copy of redoxfs below ``root``."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has changed, so plant this bug anew")
        path.write_text(text.replace(self.old, self.new))


PLANTS = (
    Plant(
        "an exception that nobody declared: the width of a state's laps is not checked",
        "state",
        "redoxfs/node/state.py",
        "if width not in _WIDTHS or size != expected",
        "if size != expected",
    ),
    Plant(
        "an exception of a number: the errors of an index lack overflow",
        "packed",
        "redoxfs/packed/index.py",
        "(KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error",
        "(KeyError, TypeError, ValueError, IndexError, RecursionError) as error",
    ),
    Plant(
        "a hang: a range of hosts has no limit",
        "meeting",
        "redoxfs/launch/addresses.py",
        "if last - first >= MOST_NODES:",
        "if last - first >= 1 << 62:",
    ),
    Plant(
        "memory: a constant column of a catalog may have any length",
        "catalog",
        "redoxfs/dataset/catalog_file.py",
        'if not 0 < record["length"] <= len(data):',
        'if not 0 < record["length"]:',
    ),
    Plant(
        "a terminal obeys: characters from 0x80 on are shown as they are",
        "stats",
        "redoxfs/launch/say.py",
        "c if c.isprintable() or",
        'c if c >= "\\x7f" or',
    ),
)
