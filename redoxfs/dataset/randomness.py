"""Whether identities look as if they were drawn at random, or say something by themselves (see identities).

- `shared`: do two classes share identities, or differences of them? So do the two sides of a pair.
- `apart`: have many numbers a partner at one distance?
- `counted`: do the integers of a class count, are they times, do they come in bursts, or have digits that are not
  random?

Bounds allow for chance: a dataset has thousands of classes, and none of them may look odd by accident.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct
from redoxfs.dataset.mirrors import MIRRORED_SHARE, SCATTER
from redoxfs.dataset.scene import Against

# The share of a range from which on its numbers run without gaps.
DENSE = 0.9
# Two classes may share this much, or what chance explains.
SHARED_SHARE = 0.01
# Pairs of equal identities that are counted one by one. Of more, a sample by hash is counted.
PAIRS_MAX = 4_000_000
# Of one identity: half its square are pairs. Of more classes that have it, a sample by hash is judged.
GROUPS_OF_KEY_MAX = 2000
# Fewer equal numbers are chance, whatever their share.
TWINS_MIN = 3
# Ids may be denser in some parts of their range than in others.
PARTS_OF_RANGE = 64
# Differences in a row that identify a series. Two classes with such a series in common are offset copies.
WINDOW = 8
# In classes of pairs, at least this share of the numbers has a partner at one distance, though some are lost. So many
# of a class are compared with all of another one. Trees of more classes and larger classes take too long.
OFFSETS_OF, OFFSET_SHARE, OFFSET_CLASSES_MAX, OFFSET_FILES_MAX = 32, 0.25, 8, 10_000
# As many differences on either side of a distance show how many pairs have it by chance.
OFFSETS_AROUND = 50
# Fewer partners are chance. So are less than as many standard deviations.
PARTNERS_MIN = 7
# Of the differences of random numbers, 14 % are below this share of the mean. In bursts most are.
BURST_SHARE = 0.15
BURST_MIN_FILES = 40
# Chi-squared of ten digits is 9 on average, and exceeds this once in 10**7. Real ids are a little uneven.
ODD_CHI = 50
ODD_SHARE = 0.15
# The least mean distance of numbers that a clock may have given, and the chance that random ones are never close.
EVEN_MIN_GAP, EVEN_CHANCE = 20, 1e-6
# So many numbers with a common step are no chance.
STEPS_MIN = 30
# At most these shares of the numbers in a range look like dates, times of a day, and times since 1970: of those up to
# 240,000, a third has minutes and seconds below 60.
DATES_SHARE, CLOCK_SHARE, SECONDS_SHARE = 0.05, 0.4, 0.1
# Steps of 100 ns since the year 1, in 1965 to 2060.
TICKS_MIN, TICKS_MAX = 62 * 10**16, 65 * 10**16


@dataclass(frozen=True, slots=True)
class Told:
    """What names may say: `what` is a clause about the files `entries`, `read` what a script could do with them."""

    entries: tuple[int, ...]
    what: str
    read: str
    against: Against = Against.NOTHING
    instead: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """The identities of n files in classes of two or more, by class."""

    entry: NDArray[np.int64]
    group: NDArray[np.int64]  # the class, 0 … ascending
    key: NDArray[np.uint64]  # equal for equal identities
    value: NDArray[np.int64]  # of an integer; -1 for others


def counted(ids: Identities) -> Told | None:
    """What the integers of a class may say alone: they count, are times, come in bursts, have digits not random."""
    numbers = ids.value >= 0
    entry, group, value = ids.entry[numbers], ids.group[numbers], ids.value[numbers]
    if not len(entry):
        return None
    # Each class has two numbers or more. Its gaps are sorted.
    group = np.unique(group, return_inverse=True)[1]
    order = np.lexsort((value, group))
    entry, group, value = entry[order], group[order], value[order]
    size = np.bincount(group)
    groups, count = len(size), size - 1
    end = np.cumsum(size) - 1
    first = end - count
    low, high = value[first], value[end]
    reach = high - low + 1
    density = size / reach
    inner = group[1:] == group[:-1]
    gaps, gap_group = np.diff(value)[inner], group[1:][inner]
    gaps = gaps[np.lexsort((gaps, gap_group))]

    def named(bad: NDArray[np.bool_], what: str, read: str) -> Told | None:
        found = first[bad]
        return Told((int(entry[found[0]]), int(entry[found[0] + 1])), what, read) if len(found) else None

    # The commonest difference. Of random numbers, a share like the density of the numbers.
    at = np.flatnonzero(np.append(True, (gaps[1:] != gaps[:-1]) | (gap_group[1:] != gap_group[:-1])))
    runs = np.diff(np.append(at, len(gaps)))
    most = np.zeros(groups, np.int64)
    np.maximum.at(most, gap_group[at], runs)
    bound = np.minimum(density + 5 * np.sqrt(density / count) + 0.1, DENSE)
    stepped = (most >= 3) & (most > bound * count)
    row = "are numbered in a row, which may be an order", "use the order of"
    if stepped.any() and not _runs_on(low, high, size):
        return named(stepped, *row)
    # Classes of a few files are judged together.
    expected = (density * count).sum()
    if not stepped.any() and (gaps == 1).sum() > 3 + expected + 5 * np.sqrt(expected) + 0.1 * len(gaps):
        return named(density == density.max(), *row)
    times = _times(value, group, size)
    if times.any():
        return named(times, "have numbers that are all dates or times", "use the numbers of")
    if _leads(value):
        what = "have numbers whose first digit has few values, as a part of the data has"
        return named(size > 1, what, "use the first digit of")
    mean = (high - low) / count
    close = np.bincount(gap_group, weights=gaps < BURST_SHARE * mean[gap_group], minlength=groups)
    burst = (count >= BURST_MIN_FILES) & ~stepped & (close > 0.5 * count)
    if len(gaps) >= BURST_MIN_FILES and close.sum() > 0.4 * len(gaps):
        burst |= close == close.max()
    if _is_even(value) or _has_steps(value, gaps):
        return named(size > 1, "have numbers at even distances, as those of an order or a clock", "use the order of")
    odd = _odd_digits(value, group, reach)
    return named(burst, "have numbers that come in bursts, as times do", "use the numbers of") or named(
        odd, "have numbers whose digits are not random, as measurements do", "use the numbers of"
    )


def _times(value: NDArray[np.int64], group: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The classes whose numbers are all dates, times of a day, or times since 1970."""
    groups = len(size)
    # The number of digits, of which those of 10**17 and more are rounded.
    length = np.floor(np.log10(np.maximum(value, 1) + 0.5)).astype(np.int64) + 1
    longest = np.zeros(groups, np.int64)
    np.maximum.at(longest, group, length)
    # 20210601, 20210601123456, and so on; 01062021; 210601; 123456, which may begin with 0, and with parts of a second.
    day = value // 10 ** np.maximum(length - 8, 0)
    dates = _is_date(day // 10_000, day // 100 % 100, day % 100) & (length >= 8)
    short = (longest == 6)[group]
    width = longest[group]

    def leading(digits: int) -> NDArray[np.int64]:
        """Of numbers that are written with zeros in front."""
        return value // 10 ** np.maximum(width - digits, 0)

    eight, six = leading(8), leading(6)
    day_of_year = leading(7) % 1000
    forms = (
        (DATES_SHARE, dates),
        (DATES_SHARE, _is_date(eight % 10_000, eight // 10_000 % 100, eight // 10**6) & (width >= 8)),
        (DATES_SHARE, _is_date(eight % 10_000, eight // 10**6, eight // 10_000 % 100) & (width >= 8)),
        (DATES_SHARE, _is_date(2000 + value // 10_000, value // 100 % 100, value % 100) & short),
        *((CLOCK_SHARE, _is_clock(value // 10**part) & (longest == 6 + part)[group]) for part in (0, 2, 3, 6)),
        # 1.0 to 2.0 billion seconds since 1970: 2001 to 2033. Also in parts of a second, or with a number behind them.
        (SECONDS_SHARE, (length >= 10) & (value // 10 ** np.maximum(length - 1, 0) == 1)),
        (SECONDS_SHARE, (value >= TICKS_MIN) & (value < TICKS_MAX)),
        # A day or a year, and a number of that day or year.
        (DATES_SHARE, _is_date(2000 + six // 10_000, six // 100 % 100, six % 100) & (width > 8)),
        (DATES_SHARE, _is_year(leading(7) // 1000) & (day_of_year > 0) & (day_of_year <= 366) & (width > 6)),
        (DATES_SHARE, _is_year(leading(4)) & (width > 7)),
        # 0829154530: a day of any year, and a time.
        (DATES_SHARE, _is_date(2000, value // 10**8, value // 10**6 % 100) & _is_clock(value % 10**6) & (width == 10)),
    )
    for share, form in forms:
        whole: NDArray[np.bool_] = np.bincount(group[~form], minlength=groups) == 0
        # Classes of a few files are judged together. Of thousands of classes, none may look odd by accident.
        if not (whole.all() and share ** len(value) < 1e-6):
            whole &= share**size < 1e-9
        if whole.any():
            return whole
    return np.zeros(groups, bool)


def _is_date(year: NDArray[np.int64] | int, month: NDArray[np.int64], day: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (year >= 1900) & (year < 2100) & (month > 0) & (month <= 12) & (day > 0) & (day <= 31)


def _is_year(value: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (value >= 1950) & (value <= 2035)


def _is_clock(value: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (value < 240_000) & (value // 100 % 100 < 60) & (value % 100 < 60)


def _leads(value: NDArray[np.int64]) -> bool:
    """Whether numbers of one length fill the ranges of the first digits 1 to 8 or fewer: a fold before a number."""
    low, high = int(value.min()), int(value.max())
    unit = 10 ** (len(str(low)) - 1)
    first, last = low // unit, high // unit
    # The numbers at both ends are as far from them as random numbers are.
    near = 5 * (high - low) / len(value)
    fills = low - first * unit <= near and (last + 1) * unit - high <= near and near < unit / 4
    return first >= 1 and first < last <= 9 and (first, last) != (1, 9) and unit >= 10 and fills


def _runs_on(low: NDArray[np.int64], high: NDArray[np.int64], size: NDArray[np.int64]) -> bool:
    """Whether one numbering runs through all classes, one after the other, and they are not offset copies."""
    order = np.argsort(low)
    low, high, size = low[order], high[order], size[order]
    together = size.sum() >= DENSE * (high[-1] - low[0] + 1)
    return bool(len(low) > 1 and together and (low[1:] > high[:-1]).all() and len(distinct(size)) > 1)


def _is_even(value: NDArray[np.int64]) -> bool:
    """Whether numbers keep a distance, as times of a camera do. Of random numbers some are close."""
    gaps = np.diff(np.sort(value))
    mean = (value.max() - value.min()) / max(len(gaps), 1)
    is_apart = bool((gaps >= BURST_SHARE * mean).all())
    return is_apart and mean >= EVEN_MIN_GAP and (1 - BURST_SHARE) ** len(gaps) < EVEN_CHANCE


def _has_steps(value: NDArray[np.int64], gaps: NDArray[np.int64]) -> bool:
    """Whether numbers are multiples of a step from the first on, and lie close: every third frame of a video."""
    step = int(np.gcd.reduce(gaps))
    near = len(value) * step > (value.max() - value.min()) / 2
    return step > 1 and len(gaps) > STEPS_MIN and bool(near)


def _odd_digits(value: NDArray[np.int64], group: NDArray[np.int64], reach: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The classes whose numbers end in some digits more often than chance explains; judged together, and one by one.

    A digit is judged if the range of its class is so large that it says nothing about the place in the range.
    """
    groups = len(reach)
    odd = np.zeros(groups, bool)
    for place in range(4):
        wide = reach >= 3 * 10 ** (place + 1)
        taken = wide[group]
        digit = value[taken] // 10**place % 10
        seen = np.bincount(group[taken] * 10 + digit, minlength=groups * 10).reshape(groups, 10)
        together = _is_odd(seen.sum(axis=0, keepdims=True))
        odd |= wide & (_is_odd(seen) | together)
    return odd


def _is_odd(seen: NDArray[np.int64]) -> NDArray[np.bool_]:
    n = seen.sum(axis=1)
    chi = (seen**2).sum(axis=1) * 10 / np.maximum(n, 1) - n
    return (chi > ODD_CHI) & (chi > ODD_SHARE * n)


def shared(ids: Identities) -> Told | None:
    """Two classes that share identities, or a series of differences, as the parts of pairs do."""
    pair = _shared_keys(ids) or _shared_series(ids)
    if pair is None:
        return None
    what = "may be parts of one sample (two directories share numbers, or their differences)"
    return _pair(ids, pair, what)


def _pair(ids: Identities, rows: tuple[int, int], what: str) -> Told:
    one, other = sorted(int(ids.entry[row]) for row in rows)
    return Told((one, other), what, "pair", Against.ANY)


def _runs(
    key: NDArray[np.uint64], group: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.int64], NDArray[np.intp]]:
    """For each key of a group: its first row, the key, the group, and how many rows of the group have it; by key."""
    order = np.lexsort((group, key))
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(key[order]) != 0) | (np.diff(group[order]) != 0)
    begin = np.flatnonzero(begins)
    first = order[begin]
    return first, key[first], group[first], np.diff(begin, append=len(order))


def _pairs(
    key: NDArray[np.uint64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each two groups with equal keys: a row of either with the same key, and how many such pairs of rows."""
    # Not by row: of frames at 30 a second, a third of the differences in a directory have the same key.
    row, key, group, times = _runs(key, group)
    ones, others = [row[:0]], [row[:0]]
    live = np.arange(len(row))
    step = 0
    while len(live):
        step += 1
        live = live[live + step < len(row)]
        live = live[key[live] == key[live + step]]
        ones.append(live)
        others.append(live + step)
    one, other = np.concatenate(ones), np.concatenate(others)
    both = group[one] * (int(group.max(initial=0)) + 1) + group[other]
    _, first, pair = np.unique(both, return_index=True, return_inverse=True)
    shared = np.bincount(pair, weights=times[one] * times[other]).astype(np.int64)
    return row[one[first]], row[other[first]], shared


def _of_few_groups(
    key: NDArray[np.uint64], group: NDArray[np.int64], *, pairs_max: int | None = None
) -> NDArray[np.intp]:
    """All rows, or those of a sample of the groups, if so many groups have a key that their pairs fill the memory.

    A sample of groups has all equal keys of the groups that are in it, so that two of them are judged as before.

    Args:
        pairs_max: of groups, for all keys together.
    """
    _, times = np.unique(_runs(key, group)[1], return_counts=True)
    rate = -(-int(times.max(initial=0)) // GROUPS_OF_KEY_MAX)
    if pairs_max is not None:
        rate = max(rate, math.ceil(math.sqrt((times.astype(float) ** 2).sum() / 2 / pairs_max)))
    if rate <= 1:
        return np.arange(len(key))
    scattered = group.astype(np.uint64) * SCATTER >> np.uint64(40)
    return np.flatnonzero(scattered % np.uint64(rate) == 0)


def _shared_keys(ids: Identities) -> tuple[int, int] | None:
    """Two rows of classes that share more identities than chance explains."""
    key, group, value = ids.key, ids.group, ids.value
    rows = _of_few_groups(key, group)
    _, times = np.unique(key[rows], return_counts=True)
    rate = max(1, int((times.astype(float) ** 2).sum() / 2 // PAIRS_MAX))
    if rate > 1:
        rows = rows[(key[rows] * SCATTER >> np.uint64(40)) % np.uint64(rate) == 0]
    groups = int(group.max()) + 1
    size = np.bincount(group[rows], minlength=groups).astype(float)
    one, other, shared = _pairs(key[rows], group[rows])
    one, other = rows[one], rows[other]
    a, b = group[one], group[other]
    at = np.flatnonzero(np.diff(group, prepend=-1))
    low, high = np.minimum.reduceat(value, at), np.maximum.reduceat(value, at)
    reach = (high - low + 1).astype(float)
    common = np.maximum(np.minimum(high[a], high[b]) - np.maximum(low[a], low[b]) + 1, 0)
    # `rate` counts once: of the equal numbers of two classes, both are in the sample or neither.
    chance = np.where(low[a] >= 0, rate * size[a] * size[b] * common / (reach[a] * reach[b]), 0)
    less = np.minimum(size[a], size[b])
    # Of many pairs of classes, some share a few numbers more than most do.
    by_chance = np.where(low[a] >= 0, 1.25 * chance + 5 * np.sqrt(chance) + 2 + np.log10(groups * groups), 0)
    # In a small range chance explains much, but that is the range of years and of ages.
    tenth = MIRRORED_SHARE * less
    mirrored = (shared >= TWINS_MIN) & (shared >= tenth + (5 * np.sqrt(tenth) if rate > 1 else 0))
    bad = np.flatnonzero(mirrored | (shared > np.maximum(SHARED_SHARE * less, by_chance)))
    total = rate * _shared_by_chance(value[rows], group[rows], groups)
    if not len(bad) and shared.sum() > 1.25 * total + 5 * np.sqrt(total) + 2 + SHARED_SHARE * size.sum():
        bad = np.array([int(np.argmax(shared - chance))])
    if not len(bad):
        return None
    return int(one[bad[0]]), int(other[bad[0]])


def _shared_by_chance(value: NDArray[np.int64], group: NDArray[np.int64], groups: int) -> float:
    """How many equal numbers all pairs of classes have by chance: numbers of every part of the range mix at random."""
    number = value >= 0
    if not number.any():
        return 0.0
    low, reach = value[number].min(), int(np.ptp(value[number])) + 1
    parts = min(PARTS_OF_RANGE, reach)
    # The largest of numbers of 18 digits may round up.
    part = np.minimum((value[number] - low) / reach * parts, parts - 1).astype(np.int64)
    held = np.bincount(group[number] * parts + part, minlength=groups * parts).reshape(groups, parts).astype(float)
    return float(((held.sum(axis=0) ** 2).sum() - (held**2).sum()) / 2 / (reach / parts))


def _shared_series(ids: Identities) -> tuple[int, int] | None:
    """Two rows of classes with a series of differences in common: pairs whose numbers have an offset."""
    rows = np.flatnonzero(ids.value >= 0)
    rows = rows[np.lexsort((ids.value[rows], ids.group[rows]))]
    if len(rows) < 2:
        return None
    group, value = ids.group[rows], ids.value[rows]
    gap = np.append(np.diff(value), 0)
    size = np.bincount(group)
    window = np.minimum(WINDOW, size - 1)[group]
    last = np.cumsum(size)[group] - 1
    whole = (np.arange(len(rows)) + window <= last) & (window >= 3)
    key = window.astype(np.uint64)
    even = np.ones(len(rows), bool)
    for step in range(WINDOW):
        at = np.minimum(np.arange(len(rows)) + step, len(rows) - 1)
        here = step < window
        key = np.where(here, (key + gap[at].astype(np.uint64)) * SCATTER, key)
        even &= ~here | (gap[at] == gap)
    taken = np.flatnonzero(whole & ~even)
    taken = taken[_of_few_groups(key[taken], group[taken], pairs_max=PAIRS_MAX)]
    one, other, shared = _pairs(key[taken], group[taken])
    one, other = taken[one], taken[other]
    windows = np.bincount(group[taken])
    bad = np.flatnonzero(shared >= 0.1 * np.minimum(windows[group[one]], windows[group[other]]))
    return (int(rows[one[bad[0]]]), int(rows[other[bad[0]]])) if len(bad) else None


def apart(ids: Identities) -> Told | None:
    """One class or two, many of whose numbers have partners at one distance.

    `shared` finds the classes of complete pairs, however large. Here partners may be lost.
    """
    rows = np.flatnonzero(ids.value >= 0)
    rows = rows[np.lexsort((ids.value[rows], ids.group[rows]))]
    classes = np.split(rows, np.flatnonzero(np.diff(ids.group[rows])) + 1)
    if len(classes) > OFFSET_CLASSES_MAX:
        return None
    what = "may be parts of one sample (many numbers have another one at the same distance)"
    few = [each for each in classes if PARTNERS_MIN <= len(each) <= OFFSET_FILES_MAX]
    for number, one in enumerate(few):
        some = one[:: -(-len(one) // OFFSETS_OF)]
        for other in few[number:]:
            found = _common_distance(ids.value[some], ids.value[other])
            if found is not None:
                return _pair(ids, (int(some[found[0]]), int(other[found[1]])), what)
    return None


def _common_distance(some: NDArray[np.int64], values: NDArray[np.int64]) -> tuple[int, int] | None:
    """A number of either, at a distance that many of ``some`` have to one of ``values``; or None."""
    distances = values[None, :] - some[:, None]
    known, times = np.unique(distances[distances != 0], return_counts=True)
    for at in np.flatnonzero(times >= max(OFFSET_SHARE * len(some), PARTNERS_MIN)).tolist():
        around = slice(*np.searchsorted(known, (known[at] - OFFSETS_AROUND, known[at] + OFFSETS_AROUND + 1)))
        chance = (int(times[around].sum()) - int(times[at])) / (2 * OFFSETS_AROUND)
        if times[at] > chance + PARTNERS_MIN * (1 + math.sqrt(chance)):
            one, other = np.argwhere(distances == known[at])[0].tolist()
            return one, other
    return None
