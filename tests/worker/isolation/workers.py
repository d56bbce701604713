"""Workers with isolated handlers in separate processes. Run as children of a test."""

from __future__ import annotations

import logging
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast import Queue, Worker
from tests.worker.isolation.handlers import tasks


def opened(options: dict[str, Any]) -> Queue:
    """Return a client of the store under test that includes the tasks."""
    queue = holdfast.connect(**options)
    queue.include(tasks, again=True)
    return queue


def work(pipe: Connection, queue_options: dict[str, Any], options: dict[str, Any]) -> None:
    """Run a worker until it is killed or stopped by a signal."""
    logging.disable()
    Worker(opened(queue_options), **options).run()
    pipe.send("ended")
