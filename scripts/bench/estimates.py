"""The estimate of `redoxfs doctor` against reality: what it says of an epoch, and how long that epoch then takes.

    scripts/bench/estimates.py [--files 8192] [--profiles nas,hdd,none,latency] [--probe-seconds 10] [--json FILE]

For each profile of scripts/bench/throttle.py, `redoxfs doctor` first probes the cold, slow storage. Then the epoch is
read as scripts/bench/epoch.py does, in the four ways that doctor estimates: plain files with 1 and with 8 processes,
and with 8 through redoxfs from the directory and from a packed copy. All but "latency" need root.

How to read the result: "estimated" and "measured" are seconds, and "off" is the first over the second. Doctor
promises no more than the right order: where one way is estimated to be twice as fast as another, it should be faster.
"order" says whether that held. The exit code is 1 if an epoch was not read completely.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import epoch
import mounts
import throttle
from results import options_of, tell
from rich.console import Console

WAYS = {
    "plain_1_s": ("plain", 1, "plain directory, 1 reader"),
    "plain_8_s": ("plain", 8, "plain directory, 8 readers"),
    "directory_s": ("directory", 8, "redoxfs, directory"),
    "packed_s": ("packed", 8, "redoxfs, packed"),
}

CLEAR = 2.0
"""Twice as fast is a difference that an estimate should get right."""


def estimated(work: Path, profile: throttle.Profile, arguments: argparse.Namespace) -> dict[str, Any]:
    """What doctor says of the cold storage: the values of its estimate, and its line about the probe."""
    with epoch.storage(profile, work, arguments.cap_mb << 20) as stored:
        stored.forget()
        words = ["doctor", "--json", "--probe-seconds", str(arguments.probe_seconds), str(stored.source)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "redoxfs", *words],
            stdout=subprocess.PIPE,
            check=False,
            preexec_fn=stored.enter,
        )
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    return {"probe": checks["random reads"]["found"], **checks["estimate"]["values"]}


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True)
    total = epoch.make_dataset(work, arguments.files, console)
    found = []
    told: dict[str, Any] = {"machine": mounts.machine(), "files": arguments.files, "bytes": total}
    for profile in (throttle.PROFILES[name] for name in arguments.profiles.split(",")):
        console.print(f"{profile.name}: doctor …")
        said = estimated(work, profile, arguments)
        rows = []
        for name, (way, readers, title) in WAYS.items():
            console.print(f"{profile.name}: {title} …")
            (measured,) = epoch.measure(work, way, profile, readers, total, arguments)
            rows.append(
                {
                    "profile": profile.name,
                    "way": name,
                    "estimated_s": said[name],
                    "measured_s": measured["seconds"],
                    "off": said[name] / measured["seconds"],
                    "complete": not measured["wrong_labels"] and not measured["not_once"],
                }
            )
        told |= {f"probe_of_{profile.name}": said["probe"], f"order_of_{profile.name}_is_right": _is_ordered(rows)}
        found += rows
    return {**told, "rows": found}


def _is_ordered(rows: list[dict[str, Any]]) -> bool:
    """Whether each way that was estimated to be clearly faster than another was faster."""
    return all(
        fast["measured_s"] < slow["measured_s"]
        for fast, slow in itertools.permutations(rows, 2)
        if fast["estimated_s"] * CLEAR <= slow["estimated_s"]
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=8192)
    parser.add_argument("--profiles", default="nas,hdd,none,latency")
    parser.add_argument("--probe-seconds", type=float, default=10.0)
    parser.add_argument("--memory-mb", type=int, default=256, help="--memory of the mounts, MiB")
    parser.add_argument("--cap-mb", type=int, default=768, help="as of epoch.py, MiB")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--options", nargs="*", default=[], help="further options of redoxfs mount")
    arguments = parser.parse_args()
    with mounts.work_folder(arguments.folder) as work:
        result = run(arguments, work)
    tell(result, arguments.json, *result["rows"][0])
    return 0 if all(row["complete"] for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
