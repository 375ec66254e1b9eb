"""--quick of a benchmark: a small size, which says whether it works, and not how fast anything is."""

import argparse
from typing import Any


def parsed(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """The arguments. With --quick, ``quick`` are the defaults, so what is given beside it counts."""
    if parser.parse_args().quick:
        parser.set_defaults(**quick)
    return parser.parse_args()
