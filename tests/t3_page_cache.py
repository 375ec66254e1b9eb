"""Which opens go through the page cache."""

import pytest

from redoxfs.fs.page_cache import BETWEEN_PROBES, MOST_BYTES, MOST_READS, WINDOW, PageCache

SMALL = 100_000


def read(page_cache: PageCache, reads: int, files: int) -> list[bool]:
    """Open, read and close files. Returns which of them went through the page cache."""
    shared = []
    for _ in range(files):
        shared.append(page_cache.shares(SMALL))
        page_cache.closed(0 if shared[-1] else reads)
    return shared


@pytest.mark.parametrize("reads", [1, 2, MOST_READS])
def test_files_that_are_read_with_few_reads_bypass_it(reads: int) -> None:
    assert not any(read(PageCache(), reads, 10 * WINDOW))


def test_files_that_are_read_in_pieces_use_it_but_for_probes() -> None:
    page_cache = PageCache()
    assert not any(read(page_cache, MOST_READS + 1, WINDOW))
    assert read(page_cache, MOST_READS + 1, BETWEEN_PROBES * 3) == ([True] * (BETWEEN_PROBES - 1) + [False]) * 3


def test_probes_notice_that_programs_read_otherwise_now() -> None:
    page_cache = PageCache()
    read(page_cache, MOST_READS + 1, WINDOW)
    read(page_cache, 2, WINDOW * BETWEEN_PROBES)
    assert not any(read(page_cache, 2, WINDOW))


def test_files_that_nobody_reads_say_nothing() -> None:
    page_cache = PageCache()
    read(page_cache, 0, WINDOW - 1)
    read(page_cache, MOST_READS + 1, WINDOW - 1)
    assert not page_cache.shares(SMALL)
    page_cache.closed(MOST_READS + 1)
    assert page_cache.shares(SMALL)


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1])
def test_large_and_exact_files_use_it(size: int) -> None:
    assert PageCache().shares(size)


def test_all_files_use_it_if_the_kernel_cannot_map_others() -> None:
    page_cache = PageCache()
    page_cache.cannot_map()
    assert page_cache.shares(SMALL)


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("size", [-1, SMALL, MOST_BYTES + 1])
def test_a_mount_option_settles_it_for_all_files(size: int, bypass: bool) -> None:
    page_cache = PageCache(bypass)
    page_cache.cannot_map()
    read(page_cache, MOST_READS + 1, WINDOW)
    assert page_cache.shares(size) is not bypass


def test_pages_are_shared_by_none_while_a_path_may_be_two_files() -> None:
    choice = PageCache()
    assert choice.shares(1 << 30)
    assert not choice.shares(1 << 30, differs=True)
    assert PageCache(bypass=False).shares(1, differs=True), "asked for"
    old = PageCache()
    old.cannot_map()
    assert old.shares(1, differs=True), "else a shared map would fail"
