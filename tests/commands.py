"""The commands of redoxfs that the documents show, with the output that a page prints below them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

NOT_RUN = {
    "s3://": "needs a bucket; t7_objects runs a server",
    "--ray": "needs a cluster of Ray; t7_ray",
    "host0": "needs hosts of these names; t5_nodes",
    "a:7420": "needs nodes of these names; t1_doctor",
    "install-helper": "writes to /sbin; t4_mount_helper",
    "/redoxfs/socket": "needs a pod; t4_csi",
    "torchrun": "needs torchrun; t7_torchrun",
    "ssh ": "needs hosts; t7_torchrun",
    "trap ": "the end of a script; t7_torchrun",
    "metrics --listen": "ends with Ctrl-C; t4_telemetry",
    "redoxfs top": "needs a terminal; t4_top",
    "umount --all": "would end mounts of others; t4_umount_all",
    "simulate": "takes minutes; t1_simulate",
    "state load": "needs a mount of the same job; t4_resume",
    "state save": "needs a state that a job made; t4_resume",
    "redoxfs trace": "needs several nodes; t5_nodes",
    "redoxfs nodes": "needs several nodes; t5_nodes",
    "profile opens.log": "needs the log of a day; t4_access_log",
    "imagenet": "needs ImageNet",
    "/*.tar": "needs archives; t4_archives",
    "..000999}.tar": "needs a thousand archives; t4_archives",
    "https://host/": "needs a web server; t1_archive_objects",
    "member:cls": "needs archives with labels; t4_archives",
    "/data/coco": "needs COCO; t6_sampler",
    "--job run-17": "is one of several ranks; t4_ranks",
    "profile /mnt/train": "waits for ten seconds of a job; t4_access_log",
    "cache rm": "names a key of another cache; t4_cache",
    "doctor --left": "looks beyond the test's folder; t1_left",
    "history.json -o": "needs a history that was saved; t1_report",
    "after.json -o": "likewise",
    "/mnt/a /mnt/b": "needs two mounts; t1_report",
}
"""Commands with one of these are not run, each for a reason, and where something like it is run."""

_COMMAND = re.compile(r"^    (?:\$ )?((?:sudo |timeout \S+ )?redoxfs (?!top  |:).*)$")
_PROMPT = re.compile(r"^    \$ (.*)$")
_SHOWN = re.compile(r"^    (?!\$ )(.+)$")


@dataclass(frozen=True, slots=True)
class Shown:
    """A command line of a page, without comment, and the lines below it that are its output."""

    page: str
    line: int
    text: str
    output: tuple[str, ...]

    @property
    def why_not(self) -> str | None:
        """Why it is not run."""
        return next((why for part, why in NOT_RUN.items() if part in self.text), None)

    @property
    def words(self) -> list[str]:
        """The arguments of redoxfs. A shell's end of the line, such as `|| exit`, does not belong to them."""
        words = shlex.split(self.text)
        words = words[words.index("redoxfs") + 1 :]
        ends = [at for at, word in enumerate(words) if word in ("||", "&&", ";", "|")]
        return words[: ends[0]] if ends else words


def commands(page: Path) -> Iterator[Shown]:
    """All of a page, in order."""
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        found = _COMMAND.match(line)
        if found is None:
            continue
        # Two spaces and a hash, or words far to the right, are a comment.
        text = re.split(r"\s+#\s|\s{3,}", found[1])[0].strip()
        output: list[str] = []
        if _PROMPT.match(line):
            for below in lines[number + 1 :]:
                shown = _SHOWN.match(below)
                if shown is None or _COMMAND.match(below):
                    break
                output.append(shown[1])
        yield Shown(page.name, number + 1, text, tuple(output))


def inline(page: Path) -> Iterator[str]:
    """Commands in running text, between backquotes, that have more than a verb."""
    for text in re.findall(r"`(redoxfs [a-z][^`]*)`", page.read_text().replace("\n", " ")):
        if "…" not in text:
            yield re.sub(r"\s+", " ", text)
