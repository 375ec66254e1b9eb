"""The demo as a user runs it, but shorter: it compares two trainings, checks labels, and leaves nothing behind."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import PATIENCE_S

from redoxfs.linux.mount_table import read_mounts

pytestmark = pytest.mark.usefixtures("compiler")

DEMO = Path(__file__).parents[1] / "scripts/demo_run.py"

QUICK = ("--images", "20", "--epochs", "2", "--delay-ms", "1")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo makes its folder. The path is short, as DataLoader workers make sockets there."""
    for library in ("PIL", "torch"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; scripts/setup installs it")
    with tempfile.TemporaryDirectory(prefix="redoxfs-test-") as folder:
        yield Path(folder)


def start(temporary: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DEMO, *options],
        env=os.environ | {"TMPDIR": str(temporary)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_in(folder: Path) -> list[str]:
    """The files and mounts in a folder, and the processes that were given a path in it."""
    left = [str(path) for path in folder.iterdir()]
    left += [mount.mountpoint for mount in read_mounts() if mount.mountpoint.startswith(str(folder))]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command:
            left.append(command.decode(errors="replace"))
    return left


@pytest.mark.long
def test_the_demo_compares_two_trainings_and_checks_labels(temporary: Path) -> None:
    demo = start(temporary, *QUICK)
    output, errors = demo.communicate(timeout=5 * PATIENCE_S)
    assert demo.returncode == 0, errors
    assert "240 of 240 samples were returned exactly once" in output
    assert "240 of 240 labels are right" in output
    for row in (
        r"the slow directory itself( +\d+\.\d s){2}",
        r"through redoxfs( +\d+\.\d s){2}",
        r"ratio( +\d+\.\d){2}",
    ):
        assert re.search(f"^{row}$", output, re.MULTILINE), output
    assert "The slowness is artificial: 1 ms for each open and each read" in output
    assert left_in(temporary) == []


@pytest.mark.long
@pytest.mark.parametrize(("number", "folder"), [(signal.SIGINT, "redoxfs"), (signal.SIGTERM, "slow")])
def test_a_signal_ends_the_demo_and_leaves_nothing(temporary: Path, number: signal.Signals, folder: str) -> None:
    """While the training script and its workers read either mount."""
    demo = start(temporary, *QUICK)
    assert demo.stdout
    reads_folder = False
    for line in demo.stdout:
        if line.startswith("$ python scripts/demo_train.py"):
            reads_folder = f"/{folder} " in line
        elif reads_folder and line.startswith("epoch 1:"):
            break
    assert left_in(temporary) != []
    demo.send_signal(number)
    demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + number
    assert left_in(temporary) == []


def test_the_demo_reports_a_slow_store_that_cannot_be_built(temporary: Path) -> None:
    demo = start(temporary, PATH="/nowhere")
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 1
    assert errors.startswith("demo: the slow store cannot be built: ")
    assert errors.count("\n") == 1
    assert left_in(temporary) == []
