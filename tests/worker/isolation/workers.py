"""Workers with isolated handlers in processes of their own. Run as children of a test."""

from __future__ import annotations

import logging
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast import Queue, Worker
from tests.worker.isolation.handlers import tasks

LEASE_SECONDS = 1.5
"""Longer than elsewhere: starting processes keeps a busy machine busier."""


def opened(words: dict[str, Any]) -> Queue:
    """Return a client of the store under test that knows the tasks."""
    queue = holdfast.connect(**words)
    queue.include(tasks, again=True)
    return queue


def work(pipe: Connection, queue_words: dict[str, Any], words: dict[str, Any]) -> None:
    """Be a worker until killed or told to end by a signal."""
    logging.disable()
    Worker(opened(queue_words), **words).run()
    pipe.send("ended")
