"""Another daemon, in the place of one that has died: `python -m redoxfs.launch.successor MOUNTPOINT`.

Only the keeper runs it. It gets all that it needs from the keeper, and looks at no path below the mount, where nobody
answers until it serves itself. MOUNTPOINT is there for people who list processes.
"""

import gc
import logging
import os
import sys
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

log = logging.getLogger("redoxfs.launch.successor")


def main() -> int:
    """Serve until the end; returns the exit code."""
    log_to(sys.stderr)
    try:
        return _serve(inherited())
    except Exception as error:
        if isinstance(error, _plain_errors()):
            log.error("redoxfs: another daemon could not be started: %s", error)  # noqa: TRY400 - its line says all
        else:
            log.exception("redoxfs: another daemon could not be started, or failed")
        if _lacks_threads(error):
            return LATER
    return UNEXPECTED


def _lacks_threads(error: Exception) -> bool:
    """Whether this process could not begin because of a limit of processes."""
    node = sys.modules.get("redoxfs.node")
    return node is not None and isinstance(error, node.NoThreadError)


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


def _serve(given: Inheritance) -> int:
    recipe, dataset = read_recipe(given.held.recipe_fd, given.held.root_fd)
    log_to(sys.stderr, recipe.options.log_format, recipe.options.log_level)
    keeper = Keeper(given, recipe.target, recipe.control_path)
    prepared = succeeding(recipe, dataset, given.held.state_fd, partial(_device, given, recipe.target))
    work = work_of(prepared, recipe.request, socket=recipe.control_path, keeper=lambda: keeper)

    def on_ready() -> None:
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
