"""Workers in separate processes, which a test kills, stops and continues. Run as children of a test."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Context, LeaseLost, Queue, SessionContext
from holdfast.worker.worker import Worker

EFFECTS = "create table if not exists effects (number integer primary key)"


def open_queue(url: str) -> Queue:
    """Return a client of the store under test, with its tasks declared."""
    queue = holdfast.connect(url)

    @queue.task("count")
    def count(context: Context, number: int, seconds: float = 0.0) -> int:
        context.wait_cancelled(seconds)
        context.raise_if_cancelled()
        return number

    @queue.task("effect")
    def effect(context: Context, number: int) -> None:
        with context.transaction() as transaction:
            transaction.execute("insert into effects (number) values (?)", (number,))

    @queue.task("block")
    async def block(number: int, proceed: str) -> int:
        while not Path(proceed).exists():  # noqa: ASYNC240  # the test needs a handler that blocks the event loop
            time.sleep(0.01)  # noqa: ASYNC251
        return number

    return queue


def _stop_when_told(pipe: Connection, worker: Worker) -> None:
    pipe.recv()
    worker.stop()


def work(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """Run a worker until it is killed or stopped."""
    logging.disable()
    queue = open_queue(url)
    worker = Worker(queue, **options)
    threading.Thread(target=_stop_when_told, args=(pipe, worker), daemon=True).start()
    worker.run()
    pipe.send(worker.status().ended)


def work_by_hand(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """Run a worker whose handler reports its start and its stop reason, and returns nevertheless."""
    logging.disable()
    queue = open_queue(url)

    @queue.task("hold")
    def hold(context: Context) -> str:
        pipe.send("started")
        context.wait_cancelled()
        pipe.send(context.stop_reason)
        return f"by {context.worker}"

    worker = Worker(queue, **options)
    threading.Thread(target=_stop_when_told, args=(pipe, worker), daemon=True).start()
    worker.run()
    pipe.send(worker.status().ended)


def hold_the_store(pipe: Connection, path: str) -> None:
    """Hold the write lock of a SQLite file until a line arrives."""
    with holdfast.connect(path).transaction():
        pipe.send("held")
        pipe.recv()


def answer_by_hand(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """Run a worker whose turns report their start and wait for a line before they settle."""
    logging.disable()
    queue = holdfast.connect(url)

    @queue.session_task("chat.message", join=True)
    def answer(context: SessionContext[str], messages: list[str]) -> str:
        pipe.send((messages, context.fencing_token))
        pipe.recv()
        return f"by {context.worker}"

    Worker(queue, **options).run()


LINES = "create table if not exists lines (session text, number integer, token integer)"


def answer_until_killed(_pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """Run a worker whose turns write rows in their own transactions, until it is killed."""
    logging.disable()
    queue = holdfast.connect(url)

    @queue.session_task("chat.message", join=True)
    def answer(context: SessionContext[int], messages: list[int]) -> None:
        messages += context.checkpoint()
        with context.transaction() as transaction:
            for number in messages:
                row = (context.session, number, context.fencing_token)
                transaction.execute("insert into lines values (?, ?, ?)", row)

    Worker(queue, **options).run()


def emit_by_hand(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """Run a worker whose handler emits the lines that arrive, until its lease is lost, which it reports."""
    logging.disable()
    queue = open_queue(url)

    @queue.task("speak")
    def speak(context: Context) -> None:
        while not context.cancelled:
            if pipe.poll(0.01):
                with suppress(LeaseLost):
                    context.emit(pipe.recv())
        pipe.send(context.stop_reason)

    Worker(queue, **options).run()
