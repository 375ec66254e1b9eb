"""The filesystem in front of a node: the mount, the request loop, and pyfuse3 for requests that need not be fast."""

from redoxfs.fs.device import MountError
from redoxfs.fs.serve import MountSpec, serve

__all__ = ["MountError", "MountSpec", "serve"]
