"""`redoxfs.arrays` answers as numpy and Python do."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in, ranges

KINDS = st.sampled_from([np.int16, np.int32, np.int64, np.uint64, np.float64])
NUMBERS = st.lists(st.integers(0, 9) | st.integers(0, 30000), max_size=20)


@given(KINDS, NUMBERS)
def test_distinct_values_are_those_of_numpy(kind: type, numbers: list[int]) -> None:
    values: NDArray[Any] = np.array(numbers, kind)
    found = distinct(values)
    assert_array_equal(found, np.unique(values), strict=True)
    assert_array_equal(distinct(found), found, strict=True)
    assert_array_equal(values, np.array(numbers, kind))


@given(KINDS, NUMBERS, NUMBERS)
def test_membership_is_that_of_numpy(kind: type, numbers: list[int], others: list[int]) -> None:
    values: NDArray[Any] = np.array(numbers, kind)
    known: NDArray[Any] = np.array(others, kind)
    assert_array_equal(is_in(values, known), np.isin(values, known), strict=True)


@given(st.lists(st.tuples(st.integers(0, 30000), st.integers(0, 5)), max_size=20))
def test_ranges_are_those_of_python(spans: list[tuple[int, int]]) -> None:
    first, lengths = (np.array([span[at] for span in spans], np.int64) for at in range(2))
    expected = [number for begin, length in spans for number in range(begin, begin + length)]
    assert_array_equal(ranges(first, lengths), np.array(expected, np.int64), strict=True)
