"""The log: one line an event, as text or as JSON, with a level that can change while a daemon serves.

A line has its values in the message, or as `key=value` behind it: `log.warning("an open failed", extra={"fields":
{"path": path}})`. Any room logs like that, by Python's own `logging`, and imports nothing for it. In JSON, `event` is
the message without its values, so that a program can count and select by it.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


# A value that needs no quotes: no blank, no quote, no equals sign, nothing that ends a line.
_PLAIN = re.compile(r"[^\s\"'=\\]+")

# A file's name may contain them. Each would begin a line that looks like another event.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def log_to(stream: TextIO, log_format: str = "text", level: str = "info") -> None:
    """Send everything that is logged from now on to `stream`. Also replaces what was chosen before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values that a record has besides its message."""
    return getattr(record, "fields", {})


class TextFormatter(logging.Formatter):
    """`TEXT_FORMAT`, and `key=value` behind it. A traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """Without a traceback."""
        words = [super().formatMessage(record)]
        words += [f"{name}={quoted(str(value))}" for name, value in fields_of(record).items()]
        return _one_line(" ".join(words))


class JsonFormatter(logging.Formatter):
    """An object on a line: time, level, logger, event, message, fields, and for a bug the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """All of a record. Text that is not valid Unicode, as in names of files, is escaped and can be restored."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": str(record.msg),
            "message": record.getMessage(),
        }
        if fields := fields_of(record):
            line["fields"] = dict(fields)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def quoted(text: str) -> str:
    """A value as it stands behind its key: as it is, or in the quotes and escapes of JSON."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
