"""An answer of the plugin that is not a success."""

import grpc

from redoxfs.launch.say import plain

LONGEST_BYTES = 1000
"""An event of Kubernetes has 1,024. gRPC may drop a status from 8 KiB on, where each byte beyond ASCII takes three."""


class CsiError(Exception):
    """A status for Kubernetes, which shows its text, one line, as an event of the pod.

    The text may quote what a pod says.
    """

    def __init__(self, code: grpc.StatusCode, line: str) -> None:
        text, half = plain(line).encode(errors="replace"), LONGEST_BYTES // 2
        if len(text) > LONGEST_BYTES:
            text = text[:half] + " … ".encode() + text[-half:]
        super().__init__(text.decode(errors="ignore"))
        self.code = code


def invalid(line: str) -> CsiError:
    """The request can never succeed as it is."""
    return CsiError(grpc.StatusCode.INVALID_ARGUMENT, line)
