"""Workers in processes of their own, which a test kills, stops and revives. Run as children of a test."""

from __future__ import annotations

import logging
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast import Context, Queue, SessionContext
from holdfast.worker.worker import Worker

EFFECTS = "create table if not exists effects (number integer primary key)"


def open_queue(url: str) -> Queue:
    """Return a client of the store under test, with its tasks declared."""
    queue = holdfast.connect(url)
    place = "%s" if url.startswith("postgresql:") else "?"

    @queue.task("count")
    def count(context: Context, number: int, seconds: float = 0.0) -> int:
        context.wait_cancelled(seconds)
        context.raise_if_cancelled()
        return number

    @queue.task("effect")
    def effect(context: Context, number: int) -> None:
        with context.transaction() as transaction:
            transaction.execute(f"insert into effects (number) values ({place})", (number,))

    @queue.task("block")
    async def block(number: int, seconds: float) -> int:
        time.sleep(seconds)  # noqa: ASYNC251  # a handler that blocks the loop is what is tried
        return number

    return queue


def _stop_when_told(pipe: Connection, worker: Worker) -> None:
    pipe.recv()
    worker.stop()


def work(pipe: Connection, url: str, words: dict[str, Any]) -> None:
    """Be a worker until killed or told to stop."""
    logging.disable()
    queue = open_queue(url)
    worker = Worker(queue, **words)
    threading.Thread(target=_stop_when_told, args=(pipe, worker), daemon=True).start()
    worker.run()
    pipe.send(worker.status().ended)


def work_by_hand(pipe: Connection, url: str, words: dict[str, Any]) -> None:
    """Be a worker whose handler says when it starts and how it was told to stop, and returns all the same."""
    logging.disable()
    queue = open_queue(url)

    @queue.task("hold")
    def hold(context: Context) -> str:
        pipe.send("started")
        context.wait_cancelled()
        pipe.send(context.stop_reason)
        return f"by {context.worker}"

    worker = Worker(queue, **words)
    threading.Thread(target=_stop_when_told, args=(pipe, worker), daemon=True).start()
    worker.run()
    pipe.send(worker.status().ended)


def hold_the_store(pipe: Connection, path: str) -> None:
    """Keep every other writer out of a SQLite file until told to go on."""
    with holdfast.connect(path).transaction():
        pipe.send("held")
        pipe.recv()


def answer_by_hand(pipe: Connection, url: str, words: dict[str, Any]) -> None:
    """Be a worker whose turns say that they have begun, and wait for a word before they settle."""
    logging.disable()
    queue = holdfast.connect(url)

    @queue.session_task("chat.message", slot="join")
    def answer(context: SessionContext[str], messages: list[str]) -> str:
        pipe.send((messages, context.fencing_token))
        pipe.recv()
        return f"by {context.worker}"

    Worker(queue, **words).run()


LINES = "create table if not exists lines (session text, number integer, token integer)"


def answer_until_killed(_pipe: Connection, url: str, words: dict[str, Any]) -> None:
    """Be a worker whose turns write lines of their own that commit with them, until killed."""
    logging.disable()
    queue = holdfast.connect(url)
    place = "%s" if url.startswith("postgresql:") else "?"

    @queue.session_task("chat.message", slot="join")
    def answer(context: SessionContext[int], messages: list[int]) -> None:
        messages += context.checkpoint()
        with context.transaction() as transaction:
            for number in messages:
                told = (context.session, number, context.fencing_token)
                transaction.execute(f"insert into lines values ({place}, {place}, {place})", told)

    Worker(queue, **words).run()
