"""redoxfs with a log of its FUSE requests and full garbage collections: counted.py LOG COMMAND…"""

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from redoxfs.cli import main
from redoxfs.fs.operations import Operations

OPCODES = (
    *("lookup", "getattr", "readlink", "opendir", "readdir", "releasedir", "open", "read", "release"),
    *("flush", "statfs", "access", "getxattr", "listxattr"),
)


def counting(name: str, log: int) -> Callable[..., Any]:
    """The operation ``name``, which first writes its name to the log."""
    operation = getattr(Operations, name)

    def count(self: Operations, *arguments: object) -> Any:
        os.write(log, f"{name}\n".encode())
        return operation(self, *arguments)

    return count


def collecting(log: int) -> Callable[[str, dict[str, int]], None]:
    def count(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            os.write(log, b"collection\n")

    return count


if __name__ == "__main__":
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    gc.callbacks.append(collecting(descriptor))
    for opcode in OPCODES:
        setattr(Operations, opcode, counting(opcode, descriptor))
    sys.exit(main(sys.argv[2:]))
