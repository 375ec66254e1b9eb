"""The filesystem in front of a node: the mount, the request loop, and pyfuse3 for requests that need not be fast."""

from redoxfs.fs.serve import Channel, MountSpec, serve
from redoxfs.linux.fuse_device import MountError, OccupiedError

__all__ = ["Channel", "MountError", "MountSpec", "OccupiedError", "serve"]
