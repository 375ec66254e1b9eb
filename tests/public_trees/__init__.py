"""Public datasets as they unpack, with the truth of their labels and splits: what `--classes auto` is judged by.

The trees are modelled after the archives, the pages and the usual loaders of the datasets, with a few files in
place of many. They know nothing of how redoxfs decides.
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
