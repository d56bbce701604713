"""Care for the write-ahead log: kept short without holding anybody up for long.

SQLite checkpoints by itself when a commit leaves a thousand pages in the log; that commit is behind the gate. It
starts the log anew only in a moment without readers. Where readers follow each other without a gap, the log would
grow for ever, so that for a log that has become long the readers are waited for, briefly.
"""

from __future__ import annotations

import os
import sqlite3

CHECKPOINT_PAGES = 1_000
LOG_BYTES_LONG = 16 << 20
"""From this length on, readers are waited for so that the log can start anew."""
_PATIENCE_MS = 50


def trim_log(connection: sqlite3.Connection, path: str) -> None:
    """Start the log anew if it has grown long and readers let it; the gate is held and no transaction is open."""
    try:
        size = os.stat(f"{path}-wal").st_size  # noqa: PTH116  # a path object costs more than the call
    except OSError:
        return
    if size < LOG_BYTES_LONG:
        return
    [patience_ms] = connection.execute("pragma busy_timeout").fetchone()
    try:
        connection.execute(f"pragma busy_timeout = {_PATIENCE_MS}")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    except sqlite3.OperationalError:
        # A reader holds it back. The next commit tries again.
        pass
    finally:
        connection.execute(f"pragma busy_timeout = {patience_ms}")
