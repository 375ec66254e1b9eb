"""A filesystem that answers an open with any sample that may stand in for the one asked for.

The rooms, and the way of an open through them, are described in ARCHITECTURE.md.
"""


def __getattr__(name: str) -> str:
    """``__version__``, looked up when it is asked for: that takes a fifth of the time of a short command."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("redoxfs")
