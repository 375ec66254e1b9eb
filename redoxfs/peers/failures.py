"""Calls to a peer that failed: what each status code of gRPC means."""

import grpc

from redoxfs.peers.channel import one_line, reason_of


class AgainError(Exception):
    """A call failed, and a retry may succeed."""


class UnknownError(AgainError):
    """The peer has not met this node, or not this process: send Hello."""


class GoneError(AgainError):
    """The peer has dropped these bytes: ask for the whole answer."""


class SettledError(Exception):
    """The peer takes this message for acknowledged."""


class RefusalError(grpc.RpcError):
    """The peer refused one message of a call: as a call that failed with ``code``."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


MEANINGS: dict[grpc.StatusCode, type[Exception]] = {
    grpc.StatusCode.FAILED_PRECONDITION: UnknownError,
    grpc.StatusCode.NOT_FOUND: GoneError,
    grpc.StatusCode.ABORTED: SettledError,
}
"""With any other code a retry may succeed."""

UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def plainly(code: grpc.StatusCode, details: str) -> str:
    """The problem, without the path of the error through gRPC."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return reason_of(details) if code is grpc.StatusCode.UNAVAILABLE else f"{code.name}: {one_line(details)}"


def is_unreached(error: Exception) -> bool:
    """Whether a call ended without a valid reply of the peer."""
    return isinstance(error, ValueError) or (isinstance(error, grpc.RpcError) and error.code() in UNREACHED)
