"""Log records of isolated processes, which the worker's loggers handle as if its process had created them."""

import logging
from typing import Any, Final

from holdfast.worker.isolation.channel import Channel, Message

# The attributes of every record; callers add others with `extra`.
_STANDARD_FIELDS: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_COPIED_FIELDS: Final = (
    "name",
    "levelno",
    "levelname",
    "pathname",
    "filename",
    "module",
    "lineno",
    "funcName",
    "created",
)
_PLAIN: Final = (str, int, float, bool, type(None))


def levels() -> Message:
    """Return the log levels of this process."""
    return {"": logging.getLogger().level, "holdfast": logging.getLogger("holdfast").level}


def forward_records(channel: Channel, levels: Message) -> None:
    """Send log records to the worker, unless the imported modules have configured logging."""
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_Forward(channel))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class _Forward(logging.Handler):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send({"record": _to_fields(record)})
        except OSError:
            # The worker is gone, or a handler has forked this process.
            pass
        except Exception:  # a failure to send a record must not fail the job
            self.handleError(record)


def _to_fields(record: logging.LogRecord) -> Message:
    fields: dict[str, Any] = {name: getattr(record, name) for name in _COPIED_FIELDS}
    fields["msg"] = record.getMessage()
    fields["process"] = record.process
    fields["processName"] = "isolated"
    fields["threadName"] = record.threadName
    if record.exc_info:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    added = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return fields | {name: value if isinstance(value, _PLAIN) else str(value) for name, value in added.items()}


def handle(message: Message) -> None:
    """Pass a record of an isolated process to this process's loggers."""
    record = logging.makeLogRecord(message["record"])
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
