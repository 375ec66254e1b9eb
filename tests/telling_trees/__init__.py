"""Small datasets whose file names say something, and some whose names say nothing, to judge `--classes auto` by.

Three authors drew them up, without knowledge of the rules of redoxfs. They are test data, kept as they were written.
"""

from telling_trees import first, second, third
from telling_trees.telling import Tree

TREES = [*first.TREES, *second.TREES, *third.TREES]

__all__ = ["TREES", "Tree"]
