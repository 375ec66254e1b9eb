"""How long a test waits for what must happen, and the one loop that looks whether it has.

A test asserts what happens and not how soon: it waits for the event, and a limit of minutes only ends a run in which
the event never comes. What needs real time is marked `timed`, with the reason beside it, and runs alone.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

SLOWNESS = float(os.environ.get("REDOXFS_TEST_PATIENCE", "1"))
"""How much slower than usual the machine is. It multiplies every limit of the tests."""

PATIENCE_S = round(300 * SLOWNESS)
"""Much longer than any step takes on a busy machine; a test that reaches it has failed."""

PAUSE_S = 0.02
"""Between two looks. Looks without a pause would slow the very process that they wait for."""


def until(holds: Callable[[], T], what: object = "", *, patience_s: float = PATIENCE_S) -> T:
    """Look until ``holds`` returns something true, and return that.

    ``what`` says what did not come; a function is asked at the end only.
    """
    deadline_s = time.monotonic() + patience_s
    while not (found := holds()):
        _give_up_after(deadline_s, what, patience_s)
        time.sleep(PAUSE_S)
    return found


async def until_in_trio(holds: Callable[[], T], what: object = "", *, patience_s: float = PATIENCE_S) -> T:
    """The same in a task. Real time passes, whatever the clock of the run: threads and the kernel have no other."""
    deadline_s = time.monotonic() + patience_s
    # Others have a turn also where it holds at once.
    await trio.lowlevel.checkpoint()
    while not (found := holds()):
        _give_up_after(deadline_s, what, patience_s)
        await trio.to_thread.run_sync(time.sleep, PAUSE_S)
    return found


def _give_up_after(deadline_s: float, what: object, patience_s: float) -> None:
    if time.monotonic() > deadline_s:
        raise AssertionError(f"still not so after {patience_s:g} s: {what() if callable(what) else what}")
