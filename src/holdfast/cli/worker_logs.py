"""Logging of a worker process: lines on standard error, as text or as JSON, which do not disturb the live screen."""

import json
import logging
import sys
from datetime import UTC, datetime

from holdfast.cli import formatting

LEVELS = ("debug", "info", "warning", "error")
# Attributes of every record; the others come from the logging call.
_STANDARD_ATTRIBUTES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: timestamp, level, logger, message, and attributes of the logging call."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        if record.exc_info or record.exc_text:
            document["traceback"] = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return json.dumps(document, default=str)


class _PlainFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return formatting.clean(super().format(record))


class _ErrorStream(logging.Handler):
    """Writes to the current `sys.stderr`, which may be replaced after the handler is created."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # a logging failure must not stop the worker
            self.handleError(record)


def set_up(level: str, *, as_json: bool) -> None:
    """Log records of *level* and above. If the root logger has handlers, set only the level of `holdfast`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("holdfast").setLevel(number)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _ErrorStream()
    handler.setFormatter(JsonFormatter() if as_json else _PlainFormatter())
    root.addHandler(handler)
    root.setLevel(number)
