"""A filesystem that answers an open with any sample that may stand in for the one asked for.

The rooms, and the way of an open through them, are described in ARCHITECTURE.md.

For scripts that read a mount, `served` and `served_many` name the files whose bytes came, and `epoch` tells that an
epoch begins. `redoxfs.torch` resumes a DataLoader to the sample, and lets a mount choose the order of one.
"""

# typing.TYPE_CHECKING, without the import: until `redoxfs.cli.main` runs, Ctrl-C is a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from redoxfs.epochs import epoch
    from redoxfs.served_files import served, served_many

__all__ = ["epoch", "served", "served_many"]

# As in pyproject.toml. importlib.metadata would need longer to find it than most commands run.
__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    """The public names, looked up when they are asked for: a short command needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "epoch":
        from redoxfs import epochs

        return epochs.epoch
    from redoxfs import served_files

    return getattr(served_files, name)
