"""What a worker's process logs: lines on standard error, for people or as JSON; never in the way of a live screen."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from holdfast.cli.formatting import clean

LEVELS = ("debug", "info", "warning", "error")
# What every record has; all else was added by whoever logged it.
_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: moment, level, logger, message, and whatever was added to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {word: value for word, value in vars(record).items() if word not in _USUAL}
        if record.exc_info or record.exc_text:
            document["traceback"] = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return json.dumps(document, default=str)


class _PlainFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


class _ErrorStream(logging.Handler):
    """Writes to what standard error is at the moment: a live screen puts itself in its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # a record that cannot be written must not end the worker
            self.handleError(record)


def set_up(level: str, *, as_json: bool) -> None:
    """Log from *level* up. A program that has set up its own logging keeps it; only Holdfast's level is set then."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("holdfast").setLevel(number)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _ErrorStream()
    handler.setFormatter(JsonFormatter() if as_json else _PlainFormatter())
    root.addHandler(handler)
    root.setLevel(number)
