"""Runs workers in a fresh interpreter and prints which optional modules of the worker each of them has imported."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import holdfast
from holdfast import SessionContext, Tasks, Worker

MODULES = ("holdfast.worker.isolation.dispatcher", "holdfast.worker.session_loop", "holdfast.worker.session_turn")
PATIENCE_SECONDS = 60
tasks = Tasks()


@tasks.task("which")
def which() -> int:
    """Return the process that ran it."""
    return os.getpid()


def main(path: str) -> None:
    """Run a plain job, then the first suspect, then the first session task, each with what was imported for it."""
    found: dict[str, Any] = {"process": os.getpid()}
    with holdfast.connect(path) as queue:
        queue.include(tasks)
        with Worker(queue).running():
            found["plain"] = (queue.wait(which.enqueue().id, timeout=PATIENCE_SECONDS).result, imported())
        suspect = which.enqueue()
        queue.claim(worker="dies", lease=0.05)
        with Worker(queue).running():
            found["suspect"] = (queue.wait(suspect.id, timeout=PATIENCE_SECONDS).result, imported())

            @queue.session_task("chat")
            def chat(context: SessionContext[str], messages: list[str]) -> list[str]:
                return [message.upper() for message in messages]

            found["session"] = (
                queue.wait(chat.enqueue("hello", session="s").id, timeout=PATIENCE_SECONDS).result,
                imported(),
            )
    print(json.dumps(found))


def imported() -> list[str]:
    """Return which of `MODULES` are imported."""
    return [name for name in MODULES if name in sys.modules]
