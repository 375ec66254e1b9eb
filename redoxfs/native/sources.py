"""Checks that the extension was built from the C files beside it, and the keeper from those in its folder.

Both are built together. The extension carries a sum of each C file, and an import compares them, in a millisecond. An
install from a wheel has no C files, so nothing is compared. Modification times would be less reliable: git sets those
of all files that it touches, and an older file may replace a newer one.
"""

from hashlib import blake2b
from pathlib import Path

FOLDER = Path(__file__).parent
KEEPER = FOLDER / "redoxfs-keeper"
"""The program of keeper/keeper.c."""

COMMAND = f"python {FOLDER.parents[1] / 'scripts/build_native.py'}"


class NotBuiltError(ImportError):
    """The extension is missing, or was built from other C files. The text says what to type."""


def sums(folder: Path = FOLDER) -> str:
    """The C files in a folder, and of the keeper, with the sums of their contents; empty if there are none."""
    files = sorted([*folder.glob("*.[ch]"), *folder.glob("keeper/*.[ch]")])
    return " ".join(
        f"{path.relative_to(folder)}={blake2b(path.read_bytes(), digest_size=8).hexdigest()}" for path in files
    )


def check(built_of: str, here: str) -> None:
    """Compare the sums that an extension carries with those of the C files here, if there are any.

    Raises:
        NotBuiltError: some differ.
    """
    # An extension that was built with options of its own carries them, too.
    changed = set(here.split()) ^ {word for word in built_of.split() if not word.startswith("-")}
    if here and changed:
        name = min(changed).partition("=")[0]
        raise NotBuiltError(f"{FOLDER / name} has changed since the extension was built; type: {COMMAND}")


def not_loaded(error: ImportError) -> NotBuiltError:
    """What to say if the extension cannot be imported."""
    if not sums():
        return NotBuiltError(f"this install of redoxfs is not for this Python ({error}); install redoxfs again")
    if isinstance(error, ModuleNotFoundError):
        return NotBuiltError(f"the extension in {FOLDER} is not built; type: {COMMAND}")
    return NotBuiltError(f"the extension in {FOLDER} cannot be loaded ({error}); type: {COMMAND}")
