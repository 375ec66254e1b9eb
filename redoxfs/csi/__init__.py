"""The node plugin of the Container Storage Interface: it mounts with privileges, and a sidecar without any serves.

A pod has its mount from before its first container starts until after its last one has ended. NodePublishVolume opens
/dev/fuse, mounts at the pod's path and returns, because Kubernetes starts no container of the pod before that. Programs
that reach the mount then wait. The sidecar, a container of the same pod, connects to a socket in an emptyDir of the pod
and receives the descriptor (`redoxfs.launch.handover`). The plugin keeps no copy: when the sidecar ends, the kernel
ends the mount, and programs get errors at once instead of waiting for nobody.

So the plugin listens and the sidecar connects. The other way round, the plugin would have to follow a path that the
pod's containers control, and to try again until somebody listens there.

A restarted sidecar asks again. The dead mount cannot be revived, since programs hold files of it that no other process
knows. So the plugin mounts anew at the same path. A container that starts after that gets the new mount; one that is
running keeps the dead one until it is restarted.
"""

from redoxfs.csi.attributes import Kind, VolumeOptions
from redoxfs.csi.server import Plugin
from redoxfs.csi.volumes import DRIVER

__all__ = ["DRIVER", "Kind", "Plugin", "VolumeOptions"]
