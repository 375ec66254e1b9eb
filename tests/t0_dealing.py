"""Each test runs once whatever the number of workers, and each worker begins with files of the upper tiers."""

from collections import Counter
from pathlib import Path

from dealing import QUICK, WHOLE, dealt
from hypothesis import given
from hypothesis import strategies as st

FILES = st.sampled_from(
    ["t0_a.py", "t0_b.py", "t1_a.py", "t3_a.py", "t4_a.py", "t4_b.py", "t5_a.py", "t6_a.py", *WHOLE]
)


def file_of(test: tuple[str, int]) -> str:
    return test[0]


@given(st.lists(st.tuples(FILES, st.integers())), st.integers(1, 9))
def test_each_test_comes_once(tests: list[tuple[str, int]], workers: int) -> None:
    assert Counter(dealt(tests, file_of, workers)) == Counter(tests)


def test_each_worker_begins_with_whole_files_of_the_upper_tiers() -> None:
    counts = {"t0_a.py": 40, "t1_a.py": 35, "t4_a.py": 7, "t4_b.py": 5, "t5_a.py": 6, "t6_a.py": 8}
    tests = [(name, number) for name, count in counts.items() for number in range(count)]
    order = dealt(tests, file_of, 3)
    thirds = [order[:33], order[33:67], order[67:]]
    begun = [{name for name, _ in third if not name.startswith(QUICK)} for third in thirds]
    assert begun == [{"t6_a.py"}, {"t5_a.py", "t4_b.py"}, {"t4_a.py"}]
    for third in thirds:
        assert [name.startswith(QUICK) for name, _ in third] == sorted(name.startswith(QUICK) for name, _ in third)


def test_what_takes_long_to_make_is_made_by_one_worker() -> None:
    """Its tests come first, long before another worker has none left."""
    for whole in WHOLE:
        assert (Path(__file__).parent / whole).is_file()
        counts = {"t0_a.py": 40, "t4_a.py": 7, whole: 9}
        order = dealt([(name, number) for name, count in counts.items() for number in range(count)], file_of, 2)
        assert {name for name, _ in order[:9]} == {whole}
        assert {name for name, _ in order[28:35]} == {"t4_a.py"}
