"""Log records of isolated processes: the worker's own loggers handle them, as if its process had made them."""

from __future__ import annotations

import logging
from typing import Any, Final

from holdfast.worker.isolation.channel import Channel, Message

# What every record has; all else was added by whoever logged it.
_USUAL: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_KEPT: Final = ("name", "levelno", "levelname", "pathname", "filename", "module", "lineno", "funcName", "created")
_PLAIN: Final = (str, int, float, bool, type(None))


def levels() -> Message:
    """Return from which levels this process logs."""
    return {"": logging.getLogger().level, "holdfast": logging.getLogger("holdfast").level}


def forward_records(channel: Channel, levels: Message) -> None:
    """Send records to the worker, unless the imported modules have set up logging of their own."""
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
            self._channel.send({"record": _shown(record)})
        except OSError:
            # The worker is gone, or this is a process that a handler forked.
            pass
        except Exception:  # a record that cannot be sent must not fail the job
            self.handleError(record)


def _shown(record: logging.LogRecord) -> Message:
    shown: dict[str, Any] = {name: getattr(record, name) for name in _KEPT}
    shown["msg"] = record.getMessage()
    shown["process"] = record.process
    shown["processName"] = "isolated"
    shown["threadName"] = record.threadName
    if record.exc_info:
        shown["exc_text"] = logging.Formatter().formatException(record.exc_info)
    added = {name: value for name, value in vars(record).items() if name not in _USUAL}
    return shown | {name: value if isinstance(value, _PLAIN) else str(value) for name, value in added.items()}


def handle(message: Message) -> None:
    """Let this process's loggers handle a record of another."""
    record = logging.makeLogRecord(message["record"])
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
