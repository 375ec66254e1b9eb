"""Another daemon, in the place of one that has died: `python -m redoxfs.launch.successor MOUNTPOINT`.

Only the keeper runs it. It gets all that it needs from the keeper, and looks at no path below the mount, where nobody
answers until it serves itself. MOUNTPOINT is there for people who list processes.
"""

import errno
import gc
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# numpy's linear algebra, unused here, would start a thread for each core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if __name__ == "__main__":
    # As in `redoxfs.cli.main`.
    gc.disable()

from redoxfs.launch.daemon import succeeding, work_of
from redoxfs.launch.errors import UNEXPECTED, CommandError
from redoxfs.launch.keeper import LATER, Inheritance, Keeper, inherited, let_signals_end
from redoxfs.launch.logs import log_to
from redoxfs.launch.recipe import RecipeError, read_recipe
from redoxfs.linux.fuse_device import Device

_LACKING = (errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EAGAIN)
"""Memory, or descriptors, of the system or up to a limit."""

log = logging.getLogger("redoxfs.launch.successor")


def main() -> int:
    """Serve until the end; returns the exit code."""
    log_to(sys.stderr)
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    try:
        return _serve(inherited(), begin)
    except Exception as error:
        is_lacking = not has_begun and _is_lack(error)
        if isinstance(error, _plain_errors()):
            log.error("redoxfs: another daemon could not be started: %s", error)  # noqa: TRY400 - its line says all
        elif is_lacking:
            log.error("redoxfs: another daemon could not be started: %r", error)  # noqa: TRY400 - likewise
        else:
            log.exception("redoxfs: another daemon could not be started, or failed")
        return LATER if is_lacking else UNEXPECTED


def _is_lack(error: BaseException) -> bool:
    """Whether an error is that the system lacks something, which it may have again in a moment."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_lack, error.exceptions))
    if isinstance(error, OSError):
        return error.errno in _LACKING
    node = sys.modules.get("redoxfs.node")
    return isinstance(error, MemoryError) or (node is not None and isinstance(error, node.NoThreadError))


def _plain_errors() -> tuple[type[Exception], ...]:
    """Errors whose text says all. Of rooms that only some mounts need, those that were imported."""
    cluster = sys.modules.get("redoxfs.node.cluster")
    node = sys.modules.get("redoxfs.node")
    return (
        RecipeError,
        CommandError,
        *(() if cluster is None else (cluster.JoinError,)),
        *(() if node is None else (node.NoThreadError,)),
    )


def _serve(given: Inheritance, begin: Callable[[], None]) -> int:
    """``begin`` is called when it serves."""
    recipe, dataset = read_recipe(given.held.recipe_fd, given.held.root_fd)
    log_to(sys.stderr, recipe.options.log_format, recipe.options.log_level)
    keeper = Keeper(given, recipe.target, recipe.control_path)
    prepared = succeeding(recipe, dataset, given.held.state_fd, partial(_device, given, recipe.target))
    work = work_of(prepared, recipe.request, keeper=lambda: keeper)

    def on_ready() -> None:
        begin()
        let_signals_end()
        log.info("serving %s in the place of a former daemon", recipe.target)

    return work(on_ready, log.info)


def _device(given: Inheritance, mountpoint: Path) -> Device:
    return Device(given.devices[0], mountpoint, given.number)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    sys.stderr.flush()
    # As the first daemon, a fork, ends. The interpreter's own end would free each object by itself, which takes seconds
    # where memory holds a million samples, and programs wait meanwhile.
    os._exit(exit_code)
