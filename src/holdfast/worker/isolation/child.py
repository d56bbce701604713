"""What an isolated process does: it runs one attempt after the other and tells the worker how each of them went.

It is forked from the template, so that its modules are imported. Handlers run in its main thread. It never claims,
keeps no lease and settles nothing, but for an attempt whose own transaction does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import queue
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.client.connect import operations_on, store_at
from holdfast.client.operations import Operations
from holdfast.domain import failures
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.errors import Misconfigured
from holdfast.domain.outcomes import Failed
from holdfast.storage.store import Store
from holdfast.tasks.context import Context
from holdfast.tasks.task import AnyTask
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.executors import TaskExecutor, run_blocking
from holdfast.worker.isolation import codec, os_limits
from holdfast.worker.isolation.channel import Channel, Garbled, Message
from holdfast.worker.isolation.log_records import forward_records
from holdfast.worker.isolation.task_locator import NotFound, TaskLocator
from holdfast.worker.timers import REAL_TIMER
from holdfast.worker.transactions import SettlingTransaction

# Of what a handler notes the newest is sent, so often at most.
_NOTES_SECONDS = 0.05


class IsolatedContext(Context):
    """A context whose notes go to the worker, which writes them with its next heartbeat."""

    __slots__ = ("_noted_again",)

    def __init__(self, attempt: RunningAttempt, noted_again: threading.Event) -> None:
        super().__init__(attempt.claim)
        self._noted_again = noted_again

    def progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Note what the job is doing."""
        super().progress(phase, percent)
        self._noted_again.set()


class IsolatedProcess:
    """Runs what the worker sends, until the worker hangs up."""

    def __init__(self, sock: socket.socket, faults: int, finder: TaskLocator, setup: Message) -> None:
        self._channel = Channel(sock)
        self._finder = finder
        self._setup = setup
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._current: RunningAttempt | None = None
        self._told: Message | None = None
        """The newest word to stop, which may come before its attempt has begun."""
        self._lock = threading.Lock()
        self._noted = threading.Event()
        self._notes_thread: threading.Thread | None = None
        self._runner: asyncio.Runner | None = None
        self._slots: TaskExecutor | None = None
        self._opened: tuple[Operations, Store] | None = None
        self._out_of_memory = False
        # A crash in C leaves the Python frames there that led to it, for the failure to show.
        faulthandler.enable(faults, all_threads=False)

    def serve(self) -> None:
        """Run attempts until the worker hangs up."""
        # What a handler forks must not keep the worker from hearing of this process's end.
        os.register_at_fork(after_in_child=self._channel.abandon)
        forward_records(self._channel, self._setup["levels"])
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # What a handler printed before it crashed is not lost with it.
                stream.reconfigure(line_buffering=True)
        threading.Thread(target=self._listen, name="holdfast-isolated", daemon=True).start()
        while (request := self._requests.get()) is not None:
            self._answer(request)

    # --- listening -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take in what the worker says, also while a handler runs; if that is gone, so is this process."""
        while True:
            try:
                received = self._channel.receive()
            except (OSError, Garbled):
                received = None
            if received is None:
                self._end()
                return
            message, _ = received
            if "stop" in message:
                self._stop(message)
            else:
                self._requests.put(message)

    def _end(self) -> None:
        if self._current is not None:
            os._exit(0)
        self._requests.put(None)

    def _stop(self, message: Message) -> None:
        with self._lock:
            self._told = message
            current = self._current
        _pass_on(message, current)

    # --- running ---------------------------------------------------------------------------------------------------

    def _answer(self, request: Message) -> None:
        try:
            task = self._finder.find(request["kind"], request["place"])
        except NotFound as error:
            self._send({"unfound": str(error)})
            return
        attempt = self._attempt(request, task)
        with self._lock:
            self._current = attempt
            told = self._told
        _pass_on(told, attempt)
        self._run(attempt)
        self._current = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        self._report(attempt)

    def _attempt(self, request: Message, task: AnyTask) -> RunningAttempt:
        limit: int | None = request["memory_limit"]
        if limit is not None:
            task = self._limited(task, limit)
        attempt = RunningAttempt(codec.claim_from(request), task, REAL_TIMER.monotonic())
        if task.takes_context:
            attempt.context = IsolatedContext(attempt, self._noted)
            attempt.context._tasks = task.registry
            attempt.context._open_transaction = partial(self._open_transaction, attempt)
            self._start_notes()
        return attempt

    def _run(self, attempt: RunningAttempt) -> None:
        if not attempt.task.is_async:
            run_blocking(attempt)
            return
        if self._runner is None:
            # One loop for all of them, because what a module keeps open may belong to it.
            self._runner = asyncio.Runner()
        self._runner.run(self._run_async(attempt))

    async def _run_async(self, attempt: RunningAttempt) -> None:
        self._slots = self._slots or TaskExecutor(lambda _attempt: None)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this is one
        await self._slots.run_in(task, attempt)

    def _report(self, attempt: RunningAttempt) -> None:
        outcome, used = attempt.outcome, os_limits.memory_bytes()
        if outcome is None:
            self._send({"ended": "settled" if attempt.settled else "let go", "memory": used})
            return
        if self._out_of_memory and isinstance(outcome, Failed) and outcome.reason == "memory_error":
            outcome = replace(outcome, reason=failures.OUT_OF_MEMORY)
        message, blobs = codec.outcome_to(outcome, attempt.claim.job.tenant)
        self._send({"ended": "outcome", "memory": used, "spent": self._out_of_memory, **message}, blobs)

    def _send(self, message: Message, blobs: list[bytes] | None = None) -> None:
        try:
            self._channel.send(message, blobs or ())
        except OSError:
            os._exit(0)

    # --- progress --------------------------------------------------------------------------------------------------

    def _start_notes(self) -> None:
        if self._notes_thread is None:
            self._notes_thread = threading.Thread(target=self._send_notes, name="holdfast-notes", daemon=True)
            self._notes_thread.start()

    def _send_notes(self) -> None:
        while self._noted.wait():
            self._noted.clear()
            current = self._current
            note = None if current is None else current.context.take_progress()
            if current is not None and note is not None:
                self._send({"note": list(note), "key": list(current.key)})
                time.sleep(_NOTES_SECONDS)

    # --- the store -------------------------------------------------------------------------------------------------

    def _open_transaction(self, attempt: RunningAttempt, seconds: float) -> SettlingTransaction:
        if self._opened is None:
            address = self._setup["store"]
            if address is None:
                raise Misconfigured(
                    "an isolated handler cannot open a transaction on this store, because no other process can open"
                    " it: it is in memory, or has a clock of its own"
                )
            store = store_at(address)
            claimer: ClaimOptions = {"worker": self._setup["worker"], "incarnation": self._setup["incarnation"]}
            operations = operations_on(store, claimer)
            if attempt.task.registry is not None:
                operations = operations.for_tasks(attempt.task.registry)
            self._opened = (operations, store)
        return SettlingTransaction(attempt, *self._opened, seconds)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _limited(self, task: AnyTask, limit_bytes: int) -> AnyTask:
        """Return *task* with a function that is held to so much memory; what comes after it, its report, is not."""
        limited = task.using()
        limited.function = self._awaited(task, limit_bytes) if task.is_async else self._blocking(task, limit_bytes)
        return limited

    def _blocking(self, task: AnyTask, limit_bytes: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            os_limits.limit_memory(limit_bytes)
            try:
                return task.function(*args, **kwargs)
            except MemoryError:
                self._out_of_memory = True
                raise
            finally:
                os_limits.limit_memory(None)

        return call

    def _awaited(self, task: AnyTask, limit_bytes: int) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            os_limits.limit_memory(limit_bytes)
            try:
                return await task.function(*args, **kwargs)
            except MemoryError:
                self._out_of_memory = True
                raise
            finally:
                os_limits.limit_memory(None)

        return call


def _pass_on(told: Message | None, attempt: RunningAttempt | None) -> None:
    """Stop the attempt if it is the one that was meant."""
    if told is not None and attempt is not None and list(attempt.key) == told["key"]:
        attempt.stop(told["stop"])
