"""Public datasets as they unpack, with the true labels and splits, to judge `--classes auto` by.

The trees are modeled after the archives, the pages and the usual loaders of the datasets, with a few files in place of
many. They do not depend on the rules of redoxfs.
"""

from public_trees import (
    boxes,
    cells,
    dense,
    driving,
    factory,
    folders,
    imagenet,
    medical,
    objects,
    people,
    sound,
    speech,
    video,
    web,
)
from public_trees.public import Public

FIELDS = (imagenet, objects, web, folders, factory, people, speech, sound, video, medical, cells, boxes, dense, driving)
TREES = [tree for field in FIELDS for tree in field.TREES]

__all__ = ["TREES", "Public"]
