"""How long a test waits for what must happen, the one loop that looks whether it has, and commands that end.

A test asserts what happens and not how soon: it waits for the event, and a limit of minutes only ends a run in which
the event never comes. What needs real time is marked `timed`, with the reason beside it, and runs alone.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio

T = TypeVar("T")

SLOWNESS = float(os.environ.get("REDOXFS_TEST_PATIENCE", "1"))
"""How much slower than usual the machine is. It multiplies every limit of the tests."""

PATIENCE_S = round(300 * SLOWNESS)
"""Much longer than any step takes on a busy machine; a test that reaches it has failed."""

NEVER_S = 3 * SLOWNESS
"""The limit of a command that waits for what never comes. It holds as well for what the command looks at before, which
takes a part of a second on a busy machine."""

PAUSE_S = 0.02
"""Between two looks, at first. Looks without a pause would slow the very process that they wait for."""

LONGEST_PAUSE_S = 0.25

PART_OF_WAIT = 0.1
"""A pause is this part of the wait so far: what takes long is looked for less often, and ends hardly later."""


def until(holds: Callable[[], T], what: object = "", *, patience_s: float = PATIENCE_S) -> T:
    """Look until ``holds`` returns something true, and return that.

    ``what`` says what did not come; a function is asked at the end only.
    """
    began_s = time.monotonic()
    while not (found := holds()):
        time.sleep(_pause_s(began_s, what, patience_s))
    return found


async def until_in_trio(holds: Callable[[], T], what: object = "", *, patience_s: float = PATIENCE_S) -> T:
    """The same in a task. Real time passes, whatever the clock of the run: threads and the kernel have no other."""
    began_s = time.monotonic()
    # Others have a turn also where it holds at once.
    await trio.lowlevel.checkpoint()
    while not (found := holds()):
        await trio.to_thread.run_sync(time.sleep, _pause_s(began_s, what, patience_s))
    return found


def completed(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """What a command printed, as text, and its exit code, which it is for the test to look at."""
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False, **options)


def _pause_s(began_s: float, what: object, patience_s: float) -> float:
    """How long to wait until the next look. It raises AssertionError after ``patience_s``."""
    waited_s = time.monotonic() - began_s
    if waited_s > patience_s:
        raise AssertionError(f"still not so after {patience_s:g} s: {what() if callable(what) else what}")
    return min(max(PAUSE_S, waited_s * PART_OF_WAIT), LONGEST_PAUSE_S)
