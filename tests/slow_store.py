"""The slow store of the demo (scripts/slow_store.c), for tests that need storage with latency, or that hangs."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machine import PATIENCE_S

SLOW_STORE = Path(__file__).parents[1] / "scripts/slow_store.c"


def compiled(folder: Path) -> Path:
    """The program, built in ``folder``."""
    built = folder / "slow_store"
    flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "fuse3"], text=True).split()
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", built, SLOW_STORE, *flags], check=True)
    return built


@contextmanager
def served(
    program: Path, source: Path, at: Path, delay_ms: float = 0, *options: str, names: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """``source`` at ``at``, with a delay in each open and read, and with ``names`` in everything else.

    ``options`` are the program's, such as "at-once=2".

    It ends well even if it was stopped meanwhile.
    """
    command = [str(program), str(source), str(at), str(delay_ms), *options, *(["names"] if names else [])]
    more = ", and of names and attributes" if names else ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            said = server.stdout.readline()
            assert said.startswith(f"{at}: {source}, with {delay_ms:g} ms in each open and read{more}")
            yield server
        finally:
            server.send_signal(signal.SIGCONT)
            server.send_signal(signal.SIGTERM)
            status = server.wait(PATIENCE_S)
    assert status == 0
