"""The program, with every request that reaches it written down: counted.py LOG COMMAND…"""

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
    """The operation ``name``, which writes its name first."""
    operation = getattr(Operations, name)

    def count(self: Operations, *arguments: object) -> Any:
        os.write(log, f"{name}\n".encode())
        return operation(self, *arguments)

    return count


if __name__ == "__main__":
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for opcode in OPCODES:
        setattr(Operations, opcode, counting(opcode, descriptor))
    sys.exit(main(sys.argv[2:]))
