"""libc, loaded once, for calls that Python has no binding for.

A call that fails returns a negative number and leaves its reason in an errno of the calling thread.
"""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def last_error(path: str | None = None) -> OSError:
    """The error of this thread's last failed call."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number)) if path is None else OSError(number, os.strerror(number), path)
