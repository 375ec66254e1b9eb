"""What obstore and the server report, as an OSError of one line.

Texts of obstore quote the address of a request, which may have a signature, and the body of an answer. So only the
status and the server's own code are taken out of them.
"""

import errno
import re

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")

_KINDS = {
    "FileNotFoundError": (errno.ENOENT, "no such object"),
    "PermissionDeniedError": (errno.EACCES, "permission denied"),
    "UnauthenticatedError": (errno.EACCES, "the credentials are missing or wrong"),
    "PreconditionError": (errno.ESTALE, "the object has changed since the mount"),
    "AlreadyExistsError": (errno.EEXIST, "the object exists already"),
    "NotSupportedError": (errno.EOPNOTSUPP, "the store does not support this"),
    "RustPanic": (errno.EINVAL, "the client of object stores failed; are the settings in the environment right?"),
    "InvalidPathError": (
        errno.EINVAL,
        "there is a name that cannot be read: with a control character, or with nothing, . or .. between two slashes",
    ),
}
"""By the name of the exception: what will be the same at the next attempt."""

_STATUSES = {403: "PermissionDeniedError", 404: "FileNotFoundError"}
"""Where the name says less: the answer to a request for a list."""

_LASTING = {400: errno.EINVAL, 401: errno.EACCES, 405: errno.EOPNOTSUPP, 416: errno.ESTALE, 501: errno.EOPNOTSUPP}
"""Likewise by the status of an answer; 301 and the like see below."""

_ARCHIVED = frozenset(("InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"))
"""Codes of S3 (with 403) and Azure (with 409) for an object in a tier that has to be restored first."""

_CAUSE = re.compile(r"(?:inner|source): (\w+)")

_CAUSES = {
    "BareRedirect": (errno.EINVAL, "is elsewhere; is the region right (AWS_REGION)?", True),
    "TooManyRedirects": (errno.ELOOP, "is redirected without end", False),
    "NotPartial": (errno.EOPNOTSUPP, "the server sends no ranges of an object", True),
    "RangeNotSupported": (errno.EOPNOTSUPP, "the server sends no ranges of an object", True),
    "NoContentRange": (errno.EIO, "the server does not say which range it sent", False),
    "ParseContentRange": (errno.EIO, "the server does not say which range it sent", False),
    "UnexpectedRange": (errno.EIO, "the server sent another range than requested", False),
    "MissingContentLength": (errno.EIO, "the server does not say how long the object is", False),
    "InvalidListResponse": (errno.EIO, "the answer is no list of objects", False),
}
"""By obstore's own name of a cause: what it means, and whether it lasts."""

_METADATA_SERVICES = ("169.254.169.254", "metadata.google.internal")


class ObjectError(OSError):
    """An object cannot be read or written. ``lasts``: another attempt would end alike."""

    def __init__(self, number: int, text: str, *, lasts: bool) -> None:
        super().__init__(number, text)
        self.lasts = lasts


def changed(where: str) -> ObjectError:
    """The object is not the one of the mount."""
    return ObjectError(errno.ESTALE, f"{where}: {_KINDS['PreconditionError'][1]}", lasts=True)


def described(error: BaseException, where: str) -> ObjectError:
    """The error of a request for the object at ``where``."""
    if isinstance(error, ObjectError):
        return error
    if isinstance(error, TimeoutError):
        return ObjectError(errno.ETIMEDOUT, f"{where}: no answer in time", lasts=False)
    text = str(error)
    status = _STATUS.search(text)
    code = _CODE.search(text)
    answer = " ".join(each[1] for each in (status, code) if each)
    shown = f" ({answer})" if answer else ""
    if any(service in text for service in _METADATA_SERVICES):
        return ObjectError(
            errno.EACCES, f"{where}: no credentials in the environment, and this machine has none", lasts=False
        )
    for cause in _CAUSE.findall(text):
        if cause in _CAUSES:
            number, words, lasts = _CAUSES[cause]
            return ObjectError(number, f"{where}: {words}", lasts=lasts)
    if code is not None and code[1] in _ARCHIVED:
        return ObjectError(
            errno.EACCES, f"{where}: the object is archived, and has to be restored first{shown}", lasts=True
        )
    kind = _KINDS.get(type(error).__name__) or _KINDS.get(_STATUSES.get(int(status[1]) if status else 0, ""))
    if kind is not None:
        number, words = kind
        return ObjectError(number, f"{where}: {words}{shown}", lasts=True)
    if status is not None:
        number = int(status[1])
        if 300 <= number < 400:
            return ObjectError(
                errno.EINVAL, f"{where}: is elsewhere{shown}; is the region right (AWS_REGION)?", lasts=True
            )
        if number in _LASTING and (code is None or code[1] != "RequestTimeout"):
            return ObjectError(_LASTING[number], f"{where}: the server refuses{shown}", lasts=True)
        return ObjectError(errno.EIO, f"{where}: the server fails{shown}", lasts=False)
    if "BadScheme" in text:
        return ObjectError(errno.EINVAL, f"{where}: is redirected to a server without TLS", lasts=True)
    if "127.0.0.1:0" in text:
        # `client.NOBODY`
        return ObjectError(errno.EINVAL, f"{where}: is redirected to another server, which is not followed", lasts=True)
    if "Connect" in text:
        return ObjectError(errno.ECONNREFUSED, f"{where}: no connection to the server", lasts=False)
    if "TimedOut" in text:
        return ObjectError(errno.ETIMEDOUT, f"{where}: no answer in time", lasts=False)
    return ObjectError(errno.EIO, f"{where}: the connection broke", lasts=False)
