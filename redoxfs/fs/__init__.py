"""The filesystem in front of a node: pyfuse3 operations, inode numbers, and one map from exceptions to errno."""

from redoxfs.fs.serve import MountError, MountSpec, serve

__all__ = ["MountError", "MountSpec", "serve"]
