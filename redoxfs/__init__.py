"""A filesystem that answers an open with any sample that may stand in for the one asked for.

The rooms, and the way of an open through them, are described in ARCHITECTURE.md.

For scripts that read a mount, `served` and `served_many` name the files whose bytes came. `redoxfs.torch` resumes a
DataLoader to the sample, and lets a mount choose the order of one.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redoxfs.served_files import served, served_many

__all__ = ["served", "served_many"]


def __getattr__(name: str) -> Any:
    """The public names and ``__version__``, looked up when they are asked for: a short command needs none of them."""
    if name in __all__:
        from redoxfs import served_files

        return getattr(served_files, name)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("redoxfs")
