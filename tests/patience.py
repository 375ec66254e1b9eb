"""How long the tests wait for an event, and how they look for one that nothing announces."""

import os
import time
from collections.abc import Callable

FACTOR = float(os.environ.get("REDOXFS_TEST_PATIENCE", "1"))
"""For a machine that is slower than any that the tests were written on."""

PATIENCE_S = 300 * FACTOR
"""Much longer than any event takes; a test that reaches it has failed."""


def until(holds: Callable[[], object], what: str = "") -> None:
    """Look now and then until ``holds()`` is true. The pause leaves the machine to the one that is waited for."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what or f"nothing came of {holds}"
        time.sleep(0.02)
