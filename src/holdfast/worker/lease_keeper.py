"""Lease renewal and timeouts, in two threads.

One thread renews the worker's leases over its own store connection. The other checks timeouts and expired leases, so
that these checks never wait for the store. Neither uses the event loop, because handlers may block it.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, TypeAlias

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import errors, limits, output
from holdfast.domain.claims import Claim, LeaseUpdate, Note, Renewal
from holdfast.storage import notifications
from holdfast.storage.store import Store
from holdfast.tasks import output_buffer
from holdfast.worker import retry
from holdfast.worker.attempt import RunningAttempt, emitted
from holdfast.worker.events import AttemptDecided, EventQueue, StoreRecovered
from holdfast.worker.settings import WorkerSettings

log = logging.getLogger("holdfast.worker")

_Held: TypeAlias = tuple[RunningAttempt, Sequence[Claim]]
"""An attempt and its claims."""

# A lease is renewed three times before it expires: two renewals may fail.
_RENEWALS_PER_LEASE = 3
# The shortest time between two writes of text that handlers emit.
_OUTPUT_SECONDS = 0.1
# How often timeouts are checked; a shorter timeout is noticed this late.
_CHECK_SECONDS = 0.25
_CHECK_SECONDS_MIN = 0.005
# Cancel requests that arrive within this time are handled together.
_CANCEL_GATHER_SECONDS = 0.02
# How much later a lease may expire by the store's clock than by this worker's.
_CLOCK_MARGIN_SECONDS = 1.0


class LeaseKeeper:
    """Renews the leases of attempts until they are removed, and enforces timeouts."""

    def __init__(self, settings: WorkerSettings, store: Store, events: EventQueue) -> None:
        self.lease_seconds = settings.lease_seconds
        self.cut_off_at: float | None = None
        """When a lease was last lost because the store did not answer, by the monotonic clock; else None."""
        self._unanswered_since: float | None = None
        """When the first unanswered renewal was sent, by the monotonic clock; None if all were answered."""
        self._calls = WorkerCalls(store)
        self._notifier = store.notifier
        self._events = events
        self._timer = settings.timer
        self._retrying = retry.RetryState("lease renewals", settings.timer, retry.LEASE_RETRIES)
        self._renewal_seconds = settings.lease_seconds / _RENEWALS_PER_LEASE
        self._held: dict[RunningAttempt, None] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._topic = notifications.worker_topic(settings.name)
        self._woken = threading.Event()
        """Wakes the renewal thread: a cancel was requested, a handler emitted text, or the worker stops."""
        self._cancel_requested = self._emitted = False
        self._write_at = 0.0
        """When text may be written next, by the monotonic clock."""
        self._watch_idle = False
        self._attempt_added = threading.Event()
        """Wakes the timeout thread if it waits for an attempt to watch."""
        self._threads = [
            threading.Thread(target=self._renew_leases, name="holdfast-leases", daemon=True),
            threading.Thread(target=self._watch_timeouts, name="holdfast-timeouts", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        self._notifier.add(self._topic, self)
        for thread in self._threads:
            thread.start()

    async def renew_late(self, store: Store, attempts: Sequence[RunningAttempt]) -> None:
        """Renew new leases at once if their claim was answered late.

        A claim that hangs in an outage may be carried out long after it was sent. Counted from then, its lease could
        end before the first renewal, although the store has just granted it.
        """
        sent_at = self._timer.monotonic()
        late_before = sent_at + self.lease_seconds - self._renewal_seconds
        if not any(attempt.lease_ends_at < late_before for attempt in attempts):
            return
        # If this fails or a lease is lost, the attempt ends as it would have without this renewal.
        with suppress(errors.Unavailable):
            for chunk in _chunks(attempts):
                updates = [LeaseUpdate(claim) for _, claims in chunk for claim in claims]
                answers, _ = await AsyncWorkerCalls(store).renew_many(updates)
                remaining = iter(answers)
                for attempt, claims in chunk:
                    if isinstance(_combine(list(islice(remaining, len(claims)))), Renewal):
                        attempt.lease_ends_at = sent_at + self.lease_seconds

    def add(self, attempts: Iterable[RunningAttempt]) -> None:
        """Renew the leases of *attempts* from now on, and write what their handlers emit."""
        attempts = list(attempts)
        if not attempts:
            return
        for attempt in attempts:
            attempt.report_output(self._note_emitted)
        with self._lock:
            self._held.update(dict.fromkeys(attempts))
            resting, self._watch_idle = self._watch_idle, False
        if resting:
            self._attempt_added.set()

    def remove(self, attempts: Iterable[RunningAttempt]) -> None:
        """Stop renewing the leases of *attempts*."""
        with self._lock:
            for attempt in attempts:
                self._held.pop(attempt, None)

    def held(self) -> list[RunningAttempt]:
        """Return the attempts whose leases are renewed."""
        with self._lock:
            return list(self._held)

    def stop(self, seconds: float) -> bool:
        """Stop the threads and wait up to *seconds*; return whether both have ended.

        Leases that are still held expire later. A thread that waits for the store ends when the store answers.
        """
        self._notifier.remove(self._topic, self)
        self._stopping.set()
        self._woken.set()
        self._attempt_added.set()
        until = self._timer.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(until - self._timer.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """Renew at once, because a cancel of a job of this worker was requested. Safe to call from any thread."""
        self._cancel_requested = True
        self._woken.set()

    def _note_emitted(self) -> None:
        self._emitted = True
        self._woken.set()

    # --- renewal thread --------------------------------------------------------------------------------------------

    def _renew_leases(self) -> None:
        renew_at = self._timer.monotonic() + self._renewal_seconds
        while (due := self._wait_until_due(renew_at)) != "stop":
            # An attempt past its timeout is not renewed, even if its settlement fails.
            attempts = [attempt for attempt in self.held() if attempt.stopped not in {"timeout", "lost"}]
            if due == "output":
                self._write_output(attempts)
                continue
            if not attempts:
                self._unanswered_since = None
            pause = self._renew(attempts) if attempts else self._renewal_seconds
            renew_at = self._timer.monotonic() + pause

    def _wait_until_due(self, renew_at: float) -> Literal["renewal", "output", "stop"]:
        """Wait until a renewal is due or `wake` is called, or text can be written, or the worker stops."""
        while not self._stopping.is_set():
            now = self._timer.monotonic()
            # Also if text is always due, because each write takes longer than the pause between two.
            if self._cancel_requested:
                self._stopping.wait(min(max(renew_at - now, 0), _CANCEL_GATHER_SECONDS))
                self._cancel_requested = False
                return "renewal"
            until = min(renew_at, self._write_at) if self._emitted else renew_at
            if until > now and self._timer.wait(self._woken, until):
                self._woken.clear()
                continue
            if renew_at <= self._timer.monotonic():
                return "renewal"
            if self._emitted and self._write_at <= self._timer.monotonic():
                return "output"
        return "stop"

    def _renew(self, attempts: list[RunningAttempt]) -> float:
        """Renew leases; return after how many seconds to renew again."""
        started = self._timer.monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = started
        self._emitted, self._write_at = False, started + _OUTPUT_SECONDS
        try:
            for chunk in _chunks(attempts):
                self._renew_chunk(chunk, started)
            self._unanswered_since = None
        except errors.Unavailable as error:
            return min(self._retrying.failed(error), self._renewal_seconds)
        finally:
            self._look_for_output(attempts)
        if self._retrying.succeeded():
            self._events.put(StoreRecovered())
        return max(0.0, started + self._renewal_seconds - self._timer.monotonic())

    def _renew_chunk(self, held: Sequence[_Held], started: float) -> None:
        """Renew some leases and write the progress and text since the last renewal, in one commit."""
        notes = [attempt.take_progress() for attempt, _ in held]
        attempts = [attempt for attempt, _ in held]
        taken = output_buffer.take_emitted(emitted(_writable(attempts)))
        texts = {claim.job.number: write for claim, _, write in taken}
        # Progress and text of a turn belong to its first entry.
        renewals = [
            LeaseUpdate(
                claims[0], note, started=attempt.started_at is not None, output=texts.get(claims[0].job.number)
            )
            for (attempt, claims), note in zip(held, notes, strict=True)
        ]
        renewals += [LeaseUpdate(claim) for _, claims in held for claim in claims[1:]]
        try:
            answers, ends = self._calls.renew_many(renewals)
        except errors.Unavailable:
            for (attempt, _), note in zip(held, notes, strict=True):
                if note is not None:
                    attempt.handler_state.return_progress(note)
            raise
        remaining = iter(answers[len(held) :])
        for (attempt, claims), answer in zip(held, answers, strict=False):
            self.handle_renewal(attempt, _combine([answer, *islice(remaining, len(claims) - 1)]), started)
        self._note_written(attempts, taken, ends, started)

    # --- output ----------------------------------------------------------------------------------------------------

    def _write_output(self, attempts: Sequence[RunningAttempt]) -> None:
        """Write text that handlers have emitted; if the store does not answer, it stays for the next write."""
        started = self._timer.monotonic()
        self._emitted, self._write_at = False, started + _OUTPUT_SECONDS
        taken = output_buffer.take_emitted(emitted(_writable(attempts)))
        if taken:
            try:
                ends = self._calls.append_output([(claim, write) for claim, _, write in taken])
            except errors.Unavailable as error:
                self._write_at = started + max(self._retrying.failed(error), _OUTPUT_SECONDS)
            else:
                if self._retrying.succeeded():
                    self._events.put(StoreRecovered())
                self._note_written(attempts, taken, ends, started)
        self._look_for_output(attempts)

    def _note_written(
        self,
        attempts: Sequence[RunningAttempt],
        taken: Sequence[tuple[Claim, output_buffer.OutputBuffer, output.OutputWrite]],
        ends: Sequence[output.StreamEnd | errors.HoldfastError],
        started: float,
    ) -> None:
        """Apply the store's answers to text that was written for some of *attempts*, in order."""
        for (_, buffer, write), answer in zip(taken, ends, strict=True):
            buffer.answered(write, answer)
            if isinstance(answer, errors.LeaseLost):
                attempt = next(attempt for attempt in attempts if attempt.output is buffer)
                self.handle_renewal(attempt, answer, started)

    def _look_for_output(self, attempts: Sequence[RunningAttempt]) -> None:
        """Write again soon if text is left: more was emitted, or it did not fit, or a transaction is open."""
        if any(attempt.output for attempt in attempts):
            self._emitted = True

    def handle_renewal(self, attempt: RunningAttempt, answer: Renewal | errors.HoldfastError, started: float) -> None:
        """Apply the store's answer to a renewal that was sent at *started*, by the monotonic clock."""
        if isinstance(answer, Renewal):
            attempt.lease_ends_at = started + self.lease_seconds
            if answer.cancel_requested and attempt.stopped is None:
                attempt.stop("cancel")
                if attempt.loading_since is not None and attempt.release_if_waiting():
                    # No handler runs that could stop by itself.
                    self._events.put(AttemptDecided(attempt))
        elif isinstance(answer, errors.LeaseLost) and not attempt.settled and attempt.lose_lease():
            log.warning("lost the lease of job %s: %s", attempt.claim.job.id, answer)
            self._events.put(AttemptDecided(attempt))

    async def write_phase(self, store: Store, attempts: Sequence[RunningAttempt], phase: str) -> None:
        """Write the phase of attempts at once; if that fails, the next renewal writes it."""
        undecided = [attempt for attempt in attempts if not attempt.decided][: limits.SETTLE_MANY_MAX]
        renewals = [LeaseUpdate(attempt.claim, Note(phase)) for attempt in undecided]
        started = self._timer.monotonic()
        with suppress(errors.HoldfastError):
            answers, _ = await AsyncWorkerCalls(store).renew_many(renewals)
            for attempt, answer in zip(undecided, answers, strict=True):
                self.handle_renewal(attempt, answer, started)

    def note_cut_off_sent(self, sent_at: float) -> None:
        """Record that a claim sent at *sent_at* of the monotonic clock has reported the lost leases to the store."""
        lost_at = self.cut_off_at
        # By the store's clock the leases may expire slightly later than by this worker's.
        if lost_at is not None and sent_at > lost_at + _CLOCK_MARGIN_SECONDS:
            self.cut_off_at = None

    # --- timeout thread --------------------------------------------------------------------------------------------

    def _watch_timeouts(self) -> None:
        while not self._stopping.is_set():
            attempts = self._wait_for_attempts()
            now = self._timer.monotonic()
            for attempt in attempts:
                self._end_overdue(attempt, now)
            # From the time of the look, so that a check is not late if time has passed since.
            self._timer.wait(self._stopping, now + _seconds_to_next_check(attempts, now))

    def _wait_for_attempts(self) -> list[RunningAttempt]:
        """Wait until there are attempts to watch, or the worker stops; return them."""
        with self._lock:
            self._watch_idle = not self._held
            if self._watch_idle:
                self._attempt_added.clear()
        if self._watch_idle and not self._stopping.is_set():
            self._attempt_added.wait()
        return self.held()

    def _end_overdue(self, attempt: RunningAttempt, now: float) -> None:
        """Stop a handler that is past its timeout or whose lease has expired."""
        if attempt.lease_ends_at <= now:
            unanswered = self._unanswered_since
            # If no renewal was sent in time, the process was stopped or blocked, perhaps by the job itself.
            if unanswered is not None and unanswered < attempt.lease_ends_at and not attempt.decided:
                # Before the handler is told, because a claim may follow at once and must report it.
                self.cut_off_at = now
            if attempt.lose_lease():
                log.error("lost the lease of job %s: it could not be renewed in time", attempt.claim.job.id)
                self._events.put(AttemptDecided(attempt))
        elif attempt.timeout_at is not None and attempt.timeout_at <= now and attempt.time_out():
            log.warning("job %s is past its timeout and was stopped", attempt.claim.job.id)
            self._events.put(AttemptDecided(attempt))


def _chunks(attempts: Sequence[RunningAttempt]) -> Iterator[list[_Held]]:
    """Split attempts into chunks whose claims fit into one call."""
    chunk: list[_Held] = []
    size = 0
    for attempt in attempts:
        # Read once: a turn may add claims at any time.
        claims = attempt.claims
        size += len(claims)
        if size > limits.SETTLE_MANY_MAX:
            yield chunk
            chunk, size = [], len(claims)
        chunk.append((attempt, claims))
    yield chunk


def _writable(attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
    """Return the attempts without an open transaction, which writes their text with the settlement."""
    return [attempt for attempt in attempts if attempt.transaction is None or not attempt.transaction.is_open]


def _combine(answers: list[Renewal | errors.HoldfastError]) -> Renewal | errors.HoldfastError:
    """Return one answer for an attempt: a lost or cancelled entry means a lost or cancelled turn."""
    if len(answers) == 1:
        return answers[0]
    renewals = [answer for answer in answers if isinstance(answer, Renewal)]
    if len(renewals) < len(answers):
        return next(answer for answer in answers if not isinstance(answer, Renewal))
    return Renewal(
        min(renewal.lease_until for renewal in renewals), any(renewal.cancel_requested for renewal in renewals)
    )


def _seconds_to_next_check(attempts: Sequence[RunningAttempt], now: float) -> float:
    """Return the seconds until the next timeout or lease expiry, within the check interval."""
    ends = [attempt.lease_ends_at for attempt in attempts if attempt.stopped is None]
    ends += [at for attempt in attempts if attempt.stopped is None and (at := attempt.timeout_at) is not None]
    return max(_CHECK_SECONDS_MIN, min([end - now for end in ends] + [_CHECK_SECONDS]))
