"""A filesystem that answers an open with any sample that may stand in for the one asked for.

The rooms, and the way of an open through them, are described in ARCHITECTURE.md.
"""

from importlib.metadata import version

__version__ = version("redoxfs")
