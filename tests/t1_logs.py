"""The log's two formats: one line an event, whatever its values hold, and JSON that can be read back."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.launch.defaults import LOG_LEVELS
from redoxfs.launch.logs import log_to, quoted

log = logging.getLogger("redoxfs.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The handlers and the level of the tests' own logging."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    # The handlers of the tests stay out of it, and open.
    logging.getLogger().handlers[:] = []
    log_to(stream, log_format, level)
    return stream


def test_text_has_values_behind_the_message() -> None:
    stream = logged("text")
    log.warning("an open failed", extra={"fields": {"path": "train/a b.jpg", "error": "EIO", "bytes": 3}})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(' WARNING redoxfs.test: an open failed path="train/a b.jpg" error=EIO bytes=3')


def test_json_has_an_object_on_each_line() -> None:
    stream = logged("json")
    log.warning("%s: %d of %d", "a", 1, 2, extra={"fields": {"path": "a\nb\udcff", "bytes": 3}})
    log.info("an event")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["level"] == "warning"
    assert first["logger"] == "redoxfs.test"
    assert (first["event"], first["message"]) == ("%s: %d of %d", "a: 1 of 2")
    assert first["fields"] == {"path": "a\nb\udcff", "bytes": 3}
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert "fields" not in second


@pytest.mark.parametrize("log_format", ["text", "json"])
@given(name=st.text(max_size=30))
def test_a_name_cannot_begin_a_line_of_its_own(log_format: str, name: str) -> None:
    stream = logged(log_format)
    log.warning("%s: broken", name, extra={"fields": {"path": name}})
    assert len(stream.getvalue().rstrip("\n").splitlines()) == 1


def test_a_bug_has_its_traceback() -> None:
    for log_format in ("text", "json"):
        stream = logged(log_format)
        try:
            raise ZeroDivisionError("a bug")
        except ZeroDivisionError:
            log.exception("a bug in redoxfs")
        if log_format == "json":
            (line,) = stream.getvalue().splitlines()
            assert json.loads(line)["traceback"].endswith("ZeroDivisionError: a bug")
        else:
            assert stream.getvalue().rstrip().endswith("ZeroDivisionError: a bug")


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_level_leaves_out_what_is_below_it(level: str) -> None:
    stream = logged("text", level)
    for each in LOG_LEVELS:
        log.log(logging.getLevelNamesMapping()[each.upper()], each)
    shown = [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert shown == list(LOG_LEVELS[LOG_LEVELS.index(level) :])


@pytest.mark.parametrize(
    ("text", "shown"), [("a/b.jpg", "a/b.jpg"), ("a b", '"a b"'), ("", '""'), ('a"b', '"a\\"b"'), ("a=b", '"a=b"')]
)
def test_a_value_is_quoted_where_that_is_needed(text: str, shown: str) -> None:
    assert quoted(text) == shown
