"""The demo: trains one script on slow storage twice, without and with redoxfs, and compares the times.

The slow storage is slow_store.c over a temporary folder of small images. Its delay is artificial, so the demo shows the
gain on any machine. Both trainings read the same store with the same settings. Afterwards one more epoch checks every
label.

Everything the demo makes is in one temporary folder, and nothing of it is left when the demo ends: no mount, no
process, no file. That holds for a failure and for SIGINT, SIGTERM and SIGHUP as well. Each child runs in a session of
its own, so Ctrl-C in a terminal reaches only this process, which then ends the children in order.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SCRIPTS = Path(__file__).resolve().parent
MEMORY_KIB = 5
"""For each image of each class: about a tenth of all images, as a real dataset does not fit in memory either."""

CLOSING = """
The slowness is artificial: {delay_ms} ms for each open and each read, as storage far away on a network may have.
redoxfs reads many files at once, before the script asks for them. So the script waits less. In the epoch that was
checked, each image came once and with its label. Mounting took {mount_s:.1f} s.
Validation gains less: it reads one class after another, and this little memory holds few images of each class.
More workers speed up the slow directory, too: scripts/demo --workers 8. On a fast local disk redoxfs gains nothing.

Next, with data of your own (`source .venv/bin/activate` makes redoxfs a command):
    redoxfs inspect /data/photos                    # what redoxfs would do with it; changes nothing
    redoxfs pack /data/photos /data/photos-packed   # optional: a copy that takes far fewer reads
    redoxfs mount /data/photos-packed /mnt/photos   # or mount /data/photos itself"""

LOG_LINES = 20
PATIENCE_S = 30
"""Far more than an unmount takes."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(Exception):
    """A failure with a line for the user."""


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


@contextmanager
def child(command: list[str], *, capture: bool = False, end: int = signal.SIGTERM) -> Iterator[subprocess.Popen[str]]:
    """Run a command during the block. If it still runs after the block, its session gets the signal ``end``."""
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE if capture else None, text=True, encoding="utf-8"
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, end)
            process.wait()
        if process.stdout:
            process.stdout.close()


def run(command: list[str], *, end: int = signal.SIGTERM) -> None:
    with child(command, end=end) as process:
        check(process.wait(), command)


def check(status: int, command: list[str]) -> None:
    if status:
        raise DemoError(f"{shlex.join(command)} failed with exit code {status}")


def show(name: str, *arguments: str | Path) -> None:
    print(f"$ {name} {shlex.join(map(str, arguments))}", flush=True)


def redoxfs(*arguments: str | Path) -> None:
    """Show and run a verb of redoxfs."""
    show("redoxfs", *arguments)
    # `redoxfs mount` passes SIGINT on to the daemon that it starts, but not SIGTERM.
    run([sys.executable, "-m", "redoxfs", *map(str, arguments)], end=signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the training script reports for all its epochs."""

    train_s: float
    val_s: float

    @property
    def total_s(self) -> float:
        return self.train_s + self.val_s


def train(folder: Path, options: argparse.Namespace) -> Times:
    """Show and run the training script."""
    arguments = [str(folder), "--workers", str(options.workers), "--epochs", str(options.epochs)]
    show("python", "scripts/demo_train.py", *arguments)
    command = [sys.executable, str(SCRIPTS / "demo_train.py"), *arguments]
    times = None
    with child(command, capture=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if found := re.match(r"in all: training ([\d.]+) s, validation ([\d.]+) s", line):
                times = Times(float(found[1]), float(found[2]))
        check(process.wait(), command)
    if times is None:
        raise DemoError("demo_train.py reported no times")
    return times


def compile_store(folder: Path) -> Path:
    """The program of slow_store.c, built in ``folder``."""
    program = folder / "slow_store"
    try:
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True
        )
        source = SCRIPTS / "slow_store.c"
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source), *flags.stdout.split()], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DemoError(
            f"the slow store cannot be built: {error}; scripts/demo installs what it needs "
            "(gcc, pkg-config and libfuse3-dev)"
        ) from None
    return program


@contextmanager
def slow_store(program: Path, source: Path, mountpoint: Path, delay_ms: int) -> Iterator[None]:
    """``source`` at ``mountpoint``, with ``delay_ms`` in each open and read."""
    command = [str(program), str(source), str(mountpoint), str(delay_ms)]
    try:
        with child(command, capture=True) as server:
            # It prints a line once it is mounted, and nothing if it fails.
            if not (server.stdout and server.stdout.readline()):
                raise DemoError(
                    "the slow store did not mount; it needs /dev/fuse and fusermount3 "
                    "(in Docker: --device /dev/fuse --cap-add SYS_ADMIN)"
                )
            yield
    finally:
        if os.path.ismount(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False)


def unmount(mountpoint: Path) -> None:
    """End the redoxfs mount at ``mountpoint`` if there still is one."""
    for options in ([], ["--lazy"]):
        if os.path.ismount(mountpoint):
            command = [sys.executable, "-m", "redoxfs", "umount", str(mountpoint), *options]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=PATIENCE_S, check=False)


def demo(folder: Path, options: argparse.Namespace) -> None:
    images, slow, fast = (folder / name for name in ("images", "slow", "redoxfs"))
    slow.mkdir()
    fast.mkdir()
    program = compile_store(folder)

    say(f"drawing small images of 10 classes: of each class {options.images} for training, and a fifth for validation")
    run([sys.executable, str(SCRIPTS / "demo_images.py"), str(images), str(options.images)])

    say(f"making them slow to read, on purpose: a filesystem adds {options.delay_ms} ms to each open and each read")
    with slow_store(program, images, slow, options.delay_ms):
        say(f"training on the slow directory itself: an ordinary PyTorch script, {options.workers} DataLoader workers")
        plain = train(slow, options)

        say("mounting redoxfs on the same slow directory, with memory for about a tenth of the images")
        began = time.perf_counter()
        try:
            redoxfs("mount", slow, fast, "--memory", f"{MEMORY_KIB * options.images}KiB")
            mount_s = time.perf_counter() - began

            say("training through redoxfs: the same script with the same settings; only the path differs")
            redirected = train(fast, options)

            say("what redoxfs did during this training")
            redoxfs("status", fast)

            say("checking one more epoch: each image records the name of the file it was drawn for")
            show("python", "scripts/demo_check.py", fast)
            run([sys.executable, str(SCRIPTS / "demo_check.py"), str(fast)])

            say("unmounting")
            redoxfs("umount", fast)
        finally:
            unmount(fast)

    say(f"result (epochs: {options.epochs}, DataLoader workers: {options.workers})")
    print("                            training  with validation")
    print(f"the slow directory itself  {plain.train_s:7.1f} s        {plain.total_s:7.1f} s")
    print(f"through redoxfs            {redirected.train_s:7.1f} s        {redirected.total_s:7.1f} s")
    print(
        f"ratio                      {ratio(plain.train_s, redirected.train_s)}          "
        f"{ratio(plain.total_s, redirected.total_s)}"
    )
    print(CLOSING.format(delay_ms=options.delay_ms, mount_s=mount_s))


def ratio(plain_s: float, redoxfs_s: float) -> str:
    return f"{plain_s / max(redoxfs_s, 0.1):7.1f}"


def print_logs(folder: Path) -> None:
    """The last lines that the daemon logged, to stderr."""
    for log in sorted(folder.glob("state/redoxfs/*.log")):
        print(*log.read_text(errors="replace").splitlines()[-LOG_LINES:], sep="\n", file=sys.stderr)


def remove(folder: Path) -> None:
    """Delete the demo's folder, unless something is still mounted in it."""
    left = [path for path in folder.iterdir() if os.path.ismount(path)]
    if left:
        print(f"demo: still mounted: {left[0]}; to clean up: umount -l {left[0]}; rm -r {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)


def leave(number: int, _frame: FrameType | None) -> None:
    """End with the shell's exit code for a signal. Another signal must not interrupt the cleanup."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def within(least: int, most: int) -> Callable[[str], int]:
    """A type for argparse: an integer within bounds."""

    def parse(text: str) -> int:
        if not least <= (number := int(text)) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least} and {most}")
        return number

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--delay-ms", type=within(0, 10_000), default=10, help="of each open and each read (default: 10)"
    )
    parser.add_argument(
        "--workers", type=within(0, 256), default=2, help="DataLoader workers of the training (default: 2)"
    )
    parser.add_argument("--epochs", type=within(1, 100), default=2, help="of each training (default: 2)")
    parser.add_argument(
        "--images", type=within(10, 5000), default=150, help="training images of each class (default: 150)"
    )
    options = parser.parse_args()

    for number in ENDING:
        signal.signal(number, leave)
    folder = Path(tempfile.mkdtemp(prefix="redoxfs-demo."))
    # Catalogs, logs, and what PyTorch and its workers leave in the temporary folder go away with the demo's.
    homes = {"XDG_CACHE_HOME": folder / "cache", "XDG_STATE_HOME": folder / "state", "TMPDIR": folder}
    os.environ |= {name: str(home) for name, home in homes.items()}
    try:
        demo(folder, options)
    except DemoError as error:
        print_logs(folder)
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        remove(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
