"""The main loop of an isolated process: runs one attempt after the other and reports each outcome to the worker.

It is forked from the fork server, which has imported the tasks. Handlers run in its main thread. It does not claim
jobs or renew leases, and settles an attempt only in the handler's own transaction.
"""

import asyncio
import copy
import faulthandler
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.client import connect, decoded_jobs, queue_state
from holdfast.domain import claims, errors, failures, limits, outcomes, output
from holdfast.tasks import definition, handler_state
from holdfast.worker import executors, timers, transactions
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.isolation import codec, log_records, os_limits, task_locator
from holdfast.worker.isolation.channel import Channel, InvalidMessage, Message

# How many chunks of output one message contains.
_CHUNKS = limits.OUTPUT_CHUNKS_WRITTEN
# The shortest time between two progress messages; only the newest progress is sent.
_NOTES_SECONDS = 0.05


class IsolatedHandlerState(handler_state.HandlerState):
    """A state that sends progress and output to the worker, which writes them."""

    __slots__ = ("_flushed", "_holding", "_progress_noted", "_send", "_sending")

    def __init__(
        self, attempt: RunningAttempt, noted_again: threading.Event, send: Callable[[Message], None]
    ) -> None:
        super().__init__(attempt.claim)
        self._progress_noted = noted_again
        self._send = send
        self._sending = threading.RLock()
        self._holding = False
        """Whether output stays here, because the handler's transaction writes it."""
        self._flushed: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def note_progress(self, phase: str | None = None, percent: float | None = None) -> None:
        """Record progress, and wake the thread that sends it."""
        super().note_progress(phase, percent)
        self._progress_noted.set()

    def emit(self, text: str) -> None:
        """Append *text* to the output, and send it."""
        super().emit(text)
        self.send_output()

    def send_output(self, *, rest: bool = False) -> None:
        """Send the emitted text to the worker; with *rest*, also what a transaction was to write."""
        with self._sending:
            self._holding = self._holding and not rest
            while self.output and not self._holding and (write := self.output.pending(_CHUNKS)) is not None:
                self._send({"output": list(write.texts), "key": [self.job.number, self.job.epoch]})
                self.output.answered(write, output.StreamEnd())

    def hold_output(self) -> None:
        """Wait until the worker has written the output, and keep further output for the handler's transaction."""
        with self._sending:
            if self._holding:
                return
            self._holding = True
            if self.output is None:
                return
            self._send({"flush": True, "key": [self.job.number, self.job.epoch]})
            reply = self._flushed.get()
            if reply["flushed"] is None:
                self._holding = False
                raise errors.StoreUnreachable(f"the output of the job could not be written: {reply['why']}")
            self.output.written = reply["flushed"]

    def flushed(self, reply: Message) -> None:
        """Handle the worker's reply to `hold_output`."""
        self._flushed.put(reply)


class IsolatedProcess:
    """Runs the attempts that the worker sends, until the worker closes the channel."""

    def __init__(self, sock: socket.socket, fault_fd: int, locator: task_locator.TaskLocator, setup: Message) -> None:
        self._channel = Channel(sock)
        self._locator = locator
        self._setup = setup
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._current: RunningAttempt | None = None
        self._stop_message: Message | None = None
        """The latest request to stop; it may arrive before its attempt has started."""
        self._lock = threading.Lock()
        self._progress_noted = threading.Event()
        self._notes_thread: threading.Thread | None = None
        self._runner: asyncio.Runner | None = None
        self._queue_state: queue_state.QueueState | None = None
        self._out_of_memory = False
        # After a crash in C, the failure shows the Python frames that faulthandler wrote.
        faulthandler.enable(fault_fd, all_threads=False)

    def serve(self) -> None:
        """Run attempts until the worker closes the channel."""
        # Processes that a handler forks must not keep the socket open after this process has exited.
        os.register_at_fork(after_in_child=self._channel.detach)
        log_records.forward_records(self._channel, self._setup["levels"])
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # Output that a handler printed before a crash must not be lost.
                stream.reconfigure(line_buffering=True)
        threading.Thread(target=self._receive_messages, name="holdfast-isolated", daemon=True).start()
        while (request := self._requests.get()) is not None:
            self._handle_request(request)

    # --- messages --------------------------------------------------------------------------------------------------

    def _receive_messages(self) -> None:
        """Receive messages from the worker, also while a handler runs; exit if the worker is gone."""
        while True:
            try:
                received = self._channel.receive()
            except (OSError, InvalidMessage):
                received = None
            if received is None:
                self._exit()
                return
            message, _ = received
            if "stop" in message:
                self._stop(message)
            elif "flushed" in message:
                self._handle_flushed(message)
            else:
                self._requests.put(message)

    def _exit(self) -> None:
        if self._current is not None:
            os._exit(0)
        self._requests.put(None)

    def _stop(self, message: Message) -> None:
        with self._lock:
            self._stop_message = message
            current = self._current
        _stop_if_current(message, current)

    def _handle_flushed(self, message: Message) -> None:
        current = self._current
        if current is not None and isinstance(current.handler_state, IsolatedHandlerState):
            current.handler_state.flushed(message)

    # --- running ---------------------------------------------------------------------------------------------------

    def _handle_request(self, request: Message) -> None:
        try:
            task = self._locator.find(request["kind"], request["location"])
        except task_locator.NotFound as error:
            self._send({"not_found": str(error)})
            return
        attempt = self._create_attempt(request, task)
        with self._lock:
            self._current = attempt
            stop_message = self._stop_message
        _stop_if_current(stop_message, attempt)
        self._run(attempt)
        self._current = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        self._report(attempt)

    def _create_attempt(self, request: Message, task: definition.TaskDefinition) -> RunningAttempt:
        limit: int | None = request["memory_limit"]
        if limit is not None:
            task = self._with_memory_limit(task, limit)
        claim, known = codec.decode_claim(request), _state_of(task)
        if known is not None and known.codec is not None:
            claim = decoded_jobs.with_codec(claim, known.codec)
        attempt = RunningAttempt(claim, task, timers.REAL_TIMER.monotonic())
        if task.takes_context:
            state = attempt.handler_state = IsolatedHandlerState(attempt, self._progress_noted, self._send)
            state.tasks = task.queue_reference.tasks
            state.open_transaction = partial(self._open_transaction, attempt)
            state.reader = transactions.HandlerReads(attempt.claim.job.id, partial(self._open_store, attempt))
            self._start_notes()
        attempt.wrap_handler(() if known is None else known.middleware)
        return attempt

    def _run(self, attempt: RunningAttempt) -> None:
        if not attempt.task.is_async:
            executors.run_blocking(attempt)
            return
        if self._runner is None:
            # All attempts share one event loop, because objects that a module keeps open may be bound to it.
            self._runner = asyncio.Runner()
        self._runner.run(self._run_async(attempt))

    async def _run_async(self, attempt: RunningAttempt) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this code runs in a task
        await executors.run_async(attempt, task)

    def _report(self, attempt: RunningAttempt) -> None:
        outcome, memory_bytes = attempt.outcome, os_limits.memory_bytes()
        if outcome is not None and isinstance(attempt.handler_state, IsolatedHandlerState):
            attempt.handler_state.send_output(rest=True)
        if outcome is None:
            self._send({"ended": "settled" if attempt.settled else "lost", "memory": memory_bytes})
            return
        if self._out_of_memory and isinstance(outcome, outcomes.Failed) and outcome.reason == "memory_error":
            outcome = replace(outcome, reason=failures.OUT_OF_MEMORY)
        message, blobs = codec.encode_outcome(outcome, attempt.claim.job.tenant)
        self._send({"ended": "outcome", "memory": memory_bytes, "discard": self._out_of_memory, **message}, blobs)

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
        while self._progress_noted.wait():
            self._progress_noted.clear()
            current = self._current
            note = None if current is None else current.handler_state.take_progress()
            if current is not None and note is not None:
                self._send({"note": list(note), "key": list(current.key)})
                time.sleep(_NOTES_SECONDS)

    # --- the store -------------------------------------------------------------------------------------------------

    def _open_transaction(self, attempt: RunningAttempt, seconds: float) -> transactions.SettlingTransaction:
        state = self._open_store(attempt)
        if isinstance(attempt.handler_state, IsolatedHandlerState):
            attempt.handler_state.hold_output()
        return transactions.SettlingTransaction(attempt, state, seconds)

    def _open_store(self, attempt: RunningAttempt) -> queue_state.QueueState:
        """Return the state of a queue on the worker's store, opened in this process."""
        if self._queue_state is None:
            address = self._setup["store"]
            if address is None:
                raise errors.Misconfigured(
                    "an isolated handler cannot open a transaction or read an artifact on this store, because another"
                    " process cannot open it: it is in memory, or has its own clock"
                )
            store = connect.store_at(address)
            claim_options: claims.ClaimOptions = {
                "worker": self._setup["worker"],
                "incarnation": self._setup["incarnation"],
            }
            tasks = attempt.task.queue_reference.tasks
            tasks = definition.TaskTable() if tasks is None else tasks
            self._queue_state = queue_state.QueueState(store, tasks, claim_options)
            if (known := _state_of(attempt.task)) is not None:
                self._queue_state = replace(self._queue_state, middleware=known.middleware, codec=known.codec)
        return self._queue_state

    # --- memory ----------------------------------------------------------------------------------------------------

    def _with_memory_limit(self, task: definition.TaskDefinition, limit_bytes: int) -> definition.TaskDefinition:
        """Return a copy of *task* whose function runs under a memory limit; the report after it does not."""
        limited_task = copy.copy(task)
        limited_task.function = (
            self._limit_async(task, limit_bytes) if task.is_async else self._limit_sync(task, limit_bytes)
        )
        return limited_task

    def _limit_sync(self, task: definition.TaskDefinition, limit_bytes: int) -> Any:
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

    def _limit_async(self, task: definition.TaskDefinition, limit_bytes: int) -> Any:
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


def _state_of(task: definition.TaskDefinition) -> queue_state.QueueState | None:
    """Return the state of the queue of *task*, which the imported modules have created; None if there is none."""
    queue = task.queue_reference.known
    return None if queue is None else queue_state.state_of(queue)


def _stop_if_current(stop_message: Message | None, attempt: RunningAttempt | None) -> None:
    """Stop the attempt if the message refers to it."""
    if stop_message is not None and attempt is not None and list(attempt.key) == stop_message["key"]:
        attempt.stop(stop_message["stop"])
