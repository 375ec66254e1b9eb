"""Public datasets as they unpack, with the true labels and splits, to judge `--classes auto` by.

The trees are modeled after the archives, the pages and the usual loaders of the datasets, with a few files in place of
many. They do not depend on the rules of redoxfs.
"""

from pathlib import Path

from public_trees.public import Public
from public_trees.tables import trees_in

TREES = [tree for path in sorted(Path(__file__).parent.glob("*.txt")) for tree in trees_in(path)]

__all__ = ["TREES", "Public"]
