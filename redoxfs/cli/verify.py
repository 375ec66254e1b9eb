"""`redoxfs verify`: read a packed dataset and check every byte of it."""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from redoxfs.cli.exits import EXITS
from redoxfs.cli.jobs import end_as_by_ctrl_c, processes
from redoxfs.cli.options.datasets import VerifyOptions
from redoxfs.cli.progress import showing
from redoxfs.launch.errors import SourceUnusableError
from redoxfs.launch.objects import verify_objects
from redoxfs.launch.path_status import PathStatus, path_status
from redoxfs.launch.say import plain, read_or_not, say
from redoxfs.launch.sizes import counted, format_bytes, format_seconds
from redoxfs.launch.source import check_source, holds_packed, open_root
from redoxfs.linux.descriptors import opened

if TYPE_CHECKING:
    from redoxfs.packed.verifying import Verified
    from redoxfs.packed.workers import Done

_DAMAGED = next(exit_.code for exit_ in EXITS if any("DamagedDatasetError" in name for name in exit_.raised_as))


def run(options: VerifyOptions) -> int:
    """Print a line for each problem; returns 0 if there is none."""
    end_as_by_ctrl_c()
    begin = time.monotonic()
    source = path_status(options.source, options.timeout_s)
    check_source(source, "DST")
    jobs = processes(options.jobs)
    with showing("verifying") as show:

        def on_progress(done: "Done", size: int) -> None:
            show(done.files, done.size, size)

        if source.address is None:
            found = _of_folder(source, jobs, on_progress)
        else:
            found = verify_objects(source.address, jobs, options.timeout_s, on_progress)
    with read_or_not(goes_on=bool(found.problems)):
        if options.json:
            print(json.dumps({"ok": not found.problems, **dataclasses.asdict(found)}, indent=2))
        else:
            for problem in found.problems:
                print(plain(problem))
    content = f"{counted(found.files, 'file')} in {counted(found.shards, 'shard')}, {format_bytes(found.size)}"
    state = counted(len(found.problems), "problem") if found.problems else "all as packed"
    say(f"{content}, read in {format_seconds(time.monotonic() - begin)}: {state}")
    if found.not_for_webdataset_count:
        names = list(found.not_for_webdataset)
        if found.not_for_webdataset_count > len(names):
            names.append("…")
        say(
            f"{counted(found.not_for_webdataset_count, 'file')} without exactly one dot in the name; WebDataset would "
            f"merge or miss them: {', '.join(names)}"
        )
    return _DAMAGED if found.problems else 0


def _of_folder(source: PathStatus, jobs: int, on_progress: "Callable[[Done, int], None]") -> "Verified":
    from redoxfs.packed import verify

    with opened(open_root(source)) as root_fd:
        if not holds_packed(source, root_fd):
            raise SourceUnusableError(f"{source.asked}: is not a packed dataset; redoxfs pack makes one")
    return verify(source.path, jobs=jobs, on_progress=on_progress)
