"""Every command of every document is run, in the order of its page, and prints what the page shows.

Paths such as /data/shapes are in a folder of the test, and hold the dataset of the demo. Figures, paths and times
differ, so they are masked: `2,400 samples (6.4 MiB)` and `80 samples (110 KiB)` are the same line. What cannot be run
is listed with its reason in commands.py, and t1_commands compares it with the grammar.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PAGES, ROOT, Shown, commands
from machine import PATIENCE_S, Machine
from patience import completed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiler")]

ROOTS = ("/data", "/mnt", "/nfs", "/local", "/tmp/nodes")
"""Where the documents have datasets, mountpoints and caches."""

NEED_A_MOUNT = ("status", "debug", "umount", "report", "doctor", "stats")
"""Verbs whose example is about a mount that the page has not made before."""

PRINTED_ELSEWHERE = re.compile(
    r"^.{0,3}(?:the daemon is pid|to end (?:it|them):|\[\d\]|resumed:|│ (?:splits|laps|restarts|errors) )"
)
"""Lines about processes, and rows that an epoch in this test need not have."""


class Place:
    """A folder that stands for the roots of the documents, with the demo's dataset wherever a page reads one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.root = machine.folder / "machine"
        self.shapes = self.root / "shapes"
        subprocess.run([sys.executable, ROOT / "scripts/demo_images.py", self.shapes], check=True, timeout=PATIENCE_S)

    def there(self, text: str) -> str:
        """A command or an output of a page, with the paths of the test."""
        for root in ROOTS:
            text = re.sub(rf"(?<![\w/.-]){re.escape(root)}(?=/|\b)", f"{self.root}{root}", text)
        for word, path in (("SOURCE", "/data/set"), ("DST", "/data/set-packed"), ("MOUNTPOINT", "/mnt/set")):
            text = re.sub(rf"\b{word}\b", f"{self.root}{path}", text)
        return text

    def prepare(self, words: list[str]) -> None:
        """Make what the words name and nobody has made: datasets, packed copies, mountpoints, mounts."""
        for number, word in enumerate(words):
            path = Path(word)
            if not path.is_absolute() or path.exists() or words[number - 1] in ("-o", "--cache"):
                continue
            if path.name.endswith("-packed"):
                if words[0] != "pack":
                    self.machine.ok("pack", self.shapes, path)
            elif path.parent.name in ("data", "nfs"):
                path.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", "--reflink=auto", self.shapes, path], check=True)
            else:
                path.mkdir(parents=True)
        target = words[1] if len(words) > 1 else ""
        if words[0] in NEED_A_MOUNT and target not in self.machine.mounts() and f"{self.root}/mnt" in target:
            self.machine.ok("mount", self.shapes, target)
        if words[0] == "mount":
            # Pages show ways to mount, one beside another.
            for mountpoint in set(words) & set(self.machine.mounts()):
                self.machine.ok("umount", mountpoint)

    def run(self, shown: Shown) -> str:
        """Run a command; returns what it prints."""
        words = shlex.split(self.there(shlex.join(shown.words)))
        self.prepare(words)
        if words[:2] == ["cluster", "status"]:
            self.read_at_each_node(Path(words[2]))
        done = completed(self.machine.command(*words), env=self.machine.environment, cwd=self.root)
        # doctor finds this machine as it is.
        assert done.returncode == 0 or words[0] == "doctor", f"{shown.page}:{shown.line}: {done.stderr}"
        if words[0] == "mount" and shown.page == "quick-start.md":
            # As the training that the page shows next.
            for path in [*Path(words[-1] if "--memory" not in words else words[1]).glob("train/*/*")]:
                path.read_bytes()
        return done.stdout + done.stderr

    def read_at_each_node(self, folder: Path) -> None:
        """An epoch of `train`, each node another part of it."""
        nodes = sorted(folder.iterdir())
        paths = [path.relative_to(nodes[0]) for path in nodes[0].glob("train/*/*")]
        for number, path in enumerate(paths):
            (nodes[number % len(nodes)] / path).read_bytes()


def masked(line: str, root: Path) -> str:
    """A line without its figures, and without what follows from where it is."""
    line = line.replace(str(root), "").strip("│ ")
    line = re.sub(r"\b(?:under )?\d[\d,.]*(?: ?(?:[KMGT]?i?B(?:/s)?|us|ms|min|s|h|%))?", "#", line)
    # Directories that have just been made are listed again.
    line = re.sub(r"^(catalog: # files), .*", r"\1", line)
    line = re.sub(r"/\S*/\.local/state/\S*", "LOG", line)
    # Of a table: its columns are as wide as its longest row.
    return re.sub(r"\s*│\s*|\s{2,}", " | ", line).strip()


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=lambda page: page.name)
def test_a_page_can_be_followed_and_shows_what_is_printed(page: Path, machine: Machine) -> None:
    place = Place(machine)
    missing: list[str] = []
    ran = 0
    try:
        for shown in commands(page):
            if shown.why_not is not None:
                continue
            printed = {masked(line, place.root) for line in place.run(shown).splitlines()}
            ran += 1
            missing += [
                f"{shown.page}:{shown.line}: {shown.text}: {line}"
                for line in shown.output
                if not PRINTED_ELSEWHERE.match(line)
                # A word such as MOUNTPOINT may be what a command prints.
                and printed.isdisjoint({masked(place.there(line), place.root), masked(line, place.root)})
            ]
    finally:
        for mountpoint in machine.mounts():
            machine.run("umount", "--lazy", mountpoint)
    assert missing == []
    assert ran or all(shown.why_not for shown in commands(page))
