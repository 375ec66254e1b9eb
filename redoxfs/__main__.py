"""`python -m redoxfs` is the command `redoxfs`."""

import sys

from redoxfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
