"""An answer of the plugin that is not a success."""

import grpc


class CsiError(Exception):
    """A status for Kubernetes, which shows its text, one line, as an event of the pod."""

    def __init__(self, code: grpc.StatusCode, line: str) -> None:
        super().__init__(line)
        self.code = code


def invalid(line: str) -> CsiError:
    """The request can never succeed as it is."""
    return CsiError(grpc.StatusCode.INVALID_ARGUMENT, line)


def not_now(line: str) -> CsiError:
    """Kubernetes should try again later."""
    return CsiError(grpc.StatusCode.UNAVAILABLE, line)
