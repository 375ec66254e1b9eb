"""Storms of a thousand seeds: the first 300 on every change, and the rest in scripts/test-long."""

import pytest

A_THOUSAND = pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(300), id="first"), pytest.param(range(300, 1_000), id="rest", marks=pytest.mark.long)],
)
