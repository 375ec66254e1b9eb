"""The values of options: from their text, with a message for one that makes no sense, and back to text.

The functions that read a text are types of argparse: they raise argparse.ArgumentTypeError.
"""

import argparse
import math
import re
from functools import partial
from typing import TYPE_CHECKING

from redoxfs.launch.defaults import MOST_NODES
from redoxfs.launch.errors import UsageError

if TYPE_CHECKING:
    from redoxfs.launch.options import SamplerSpec

# What each kind of sampler takes, and what it needs.
_SAMPLERS = {
    "torch-distributed": ({"seed", "ranks", "drop_last", "no_shuffle", "tree"}, set[str]()),
    "torch-random": ({"seed", "persistent_workers", "tree"}, {"seed"}),
}
_SAMPLER_FLAGS = frozenset({"drop_last", "no_shuffle", "persistent_workers"})


def whole_number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)


# Reading a chunk takes a file descriptor for each of its samples; no chunk is worth more than this. The pool counts the
# samples of a chunk in 16 bits.
chunk_size = partial(whole_number, least=1, most=(1 << 16) - 1)
# Samples are numbered in 32 bits.
files = partial(whole_number, least=1, most=(1 << 31) - 1)
nodes = partial(whole_number, least=1, most=MOST_NODES)
rank = partial(whole_number, least=0, most=MOST_NODES - 1)
window = lines = partial(whole_number, least=1, most=(1 << 31) - 1)
jobs = partial(whole_number, least=1, most=1 << 10)
# The session takes no more.
threads = partial(whole_number, least=0, most=63)
seed = partial(whole_number, least=0, most=(1 << 63) - 1)
depth = partial(whole_number, least=0, most=1 << 12)


def chunk_size_or_auto(text: str) -> int | None:
    return None if text == "auto" else chunk_size(text)


def listen(text: str) -> str:
    from redoxfs.launch.metrics import parse_listen

    try:
        parse_listen(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def job(text: str) -> str:
    # It is a part of a line of the mount table, and often of a file's name.
    if not re.fullmatch(r"[A-Za-z0-9._:-]{0,128}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a job: up to 128 letters, digits and any of . _ : -")
    return text


def programs(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(name and "/" not in name and name.strip() == name for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names of programs, such as cp,tar")
    return names


def seconds(text: str) -> float:
    value = _number(text)
    if not (0 < value <= 86_400):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, up to a day")
    return value


def duration(text: str) -> float:
    """Seconds of "10", "10s", "500ms" or "2m"; 0 is none."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,30})?)(ms|s|m|h)?", text, re.ASCII)
    value = float(found[1]) * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}[found[2] or "s"] if found else math.nan
    if not (value == 0 or 1e-3 <= value <= 86_400):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or a time from 1ms to a day; write it like 10s or 500ms")
    return value


def exchange(text: str) -> float:
    value = _number(text)
    if not (0 <= value <= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def share(text: str) -> float:
    percent = _number(text.removesuffix("%")) if text.endswith("%") else math.nan
    if not (0 < percent <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0% and up to 100%; write it like 10%")
    return percent / 100


def skew(text: str) -> float:
    value = _number(text)
    if not (0 <= value <= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 10")
    return value


def storage_speed(text: str) -> tuple[float, int]:
    from redoxfs.launch.sizes import parse_size

    reads, comma, size = text.partition(",")
    try:
        # No storage takes a quarter of an hour for a read.
        if not comma or not (0.001 <= float(reads) <= 1e9):
            raise ValueError
        return float(reads), parse_size(size, None)
    except (ValueError, UsageError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of reads and of bytes a second; write it like 500,200MB"
        ) from None


def sampler(text: str) -> "SamplerSpec":
    from redoxfs.launch.options import SamplerSpec

    kind, *words = text.split(",")
    if kind not in _SAMPLERS:
        raise argparse.ArgumentTypeError(f"{kind!r} is not a known sampler; known are {', '.join(_SAMPLERS)}")
    taken, needed = _SAMPLERS[kind]
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in taken:
            raise argparse.ArgumentTypeError(f"{kind} does not take {word!r}; it takes {', '.join(sorted(taken))}")
        if name in given:
            raise argparse.ArgumentTypeError(f"{name} is given twice in {text!r}")
        if name in _SAMPLER_FLAGS and equals:
            raise argparse.ArgumentTypeError(f"{name} takes no value, but {word!r} has one")
        if name not in _SAMPLER_FLAGS and not value:
            raise argparse.ArgumentTypeError(f"{name} needs a value: {name}=…")
        given[name] = value
    for name in sorted(needed - given.keys()):
        raise argparse.ArgumentTypeError(f"{kind} needs {name}=…")
    return SamplerSpec(
        kind=kind,
        # PyTorch's own default for a DistributedSampler.
        seed=seed(given.get("seed", "0")),
        ranks=whole_number(given["ranks"], 1, 1 << 20) if "ranks" in given else None,
        shuffle="no_shuffle" not in given,
        drop_last="drop_last" in given,
        persistent_workers="persistent_workers" in given,
        tree=given.get("tree"),
    )


def text_of(value: object) -> str:
    """The text that stands for a value on a command line."""
    from redoxfs.launch.options import SamplerSpec

    if isinstance(value, SamplerSpec):
        words = [value.kind, f"seed={value.seed}"]
        words += [f"ranks={value.ranks}"] if value.ranks is not None else []
        words += [] if value.shuffle else ["no_shuffle"]
        words += ["drop_last"] if value.drop_last else []
        words += ["persistent_workers"] if value.persistent_workers else []
        words += [f"tree={value.tree}"] if value.tree is not None else []
        return ",".join(words)
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    return str(value)


def _number(text: str) -> float:
    """A number, or NaN, which is in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan
