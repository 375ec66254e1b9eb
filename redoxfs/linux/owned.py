"""Whether a folder is this user's own, so that nobody else can put anything into it."""

import os
import stat

WRITE, ANY = 0o022, 0o077
"""What other users must not have: the right to write, or any right."""


def is_own_folder(found: os.stat_result, kept: int = WRITE) -> bool:
    """``found``: of the folder, without following a symlink. ``kept``: rights that others must not have."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & kept
