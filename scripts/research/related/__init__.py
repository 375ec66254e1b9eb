"""Simulates how other systems access training data, and compares storage, network, memory and shuffle quality.

Each system is a generator of epochs (`System`) in about a page, and cites the section or the file that it follows.

``epoch``        the setting, and what is counted
``caches``       the requested order, exactly: page cache, CoorDL, locality-aware loading, NoPFS
``shuffles``     other shuffles: DIESEL+, DeepIO, partial shuffle, WebDataset, MosaicML Streaming
``substitutes``  other samples than those asked for: Quiver, SHADE
``redox``        slot and pool, the real policies
``comparison``   all of them as rows
``page``         the page of the evaluation
"""

from related.comparison import SYSTEMS, Row, compare, report
from related.epoch import Epoch, Setting

__all__ = ["SYSTEMS", "Epoch", "Row", "Setting", "compare", "report"]
