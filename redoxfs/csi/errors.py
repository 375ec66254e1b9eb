"""An answer of the plugin that is not a success."""

import grpc

from redoxfs.launch.say import cut, plain

LONGEST_CHARACTERS = 1000
"""gRPC drops a status whose text takes 16 KiB, and an event of Kubernetes has 1,024 bytes."""


class CsiError(Exception):
    """A status for Kubernetes, which shows its text, one line, as an event of the pod.

    The text may quote what a pod says.
    """

    def __init__(self, code: grpc.StatusCode, line: str) -> None:
        super().__init__(cut(plain(line), LONGEST_CHARACTERS))
        self.code = code


def invalid(line: str) -> CsiError:
    """The request can never succeed as it is."""
    return CsiError(grpc.StatusCode.INVALID_ARGUMENT, line)
