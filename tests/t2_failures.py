"""Failed opens and reads in the log: each of a few has a line, and a storm has some lines and a count."""

import logging
from functools import partial

import pytest

from redoxfs.node.failures import LINES, WINDOW_S, failures


def test_a_storm_of_failed_opens_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    failed = failures(lambda: now_s[0])

    def fail(count: int) -> list[str]:
        caplog.clear()
        for number in range(count):
            failed.note(partial(dict, path=f"{number}.jpg"))
        return [f"{record.message} {getattr(record, 'fields', {})}" for record in caplog.records]

    with caplog.at_level(logging.WARNING):
        assert fail(3) == [f"an open failed {{'path': '{number}.jpg'}}" for number in range(3)]
        assert len(fail(LINES + 1000)) == LINES - 3
        assert fail(7) == []
        now_s[0] += WINDOW_S
        # 1,003 and 7 had no line.
        assert fail(1) == ["more opens or reads failed {'count': 1010}", "an open failed {'path': '0.jpg'}"]
        assert len(fail(LINES)) == LINES - 1
        caplog.clear()
        failed.tell_left_out()
        failed.tell_left_out()
        assert [record.message for record in caplog.records] == ["more opens or reads failed"]
