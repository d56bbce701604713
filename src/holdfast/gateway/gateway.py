"""`Gateway`: the parts of one gateway process, and what happens to a request between its arrival and its job."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.client import ids
from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.middleware import EndedAttempt
from holdfast.domain import errors, limits, strict_json
from holdfast.domain.artifacts import Artifact, UploadedArtifact
from holdfast.domain.backoff import Backoff
from holdfast.domain.job import FINISHED, WAITING, Job
from holdfast.domain.new_job import NewJob
from holdfast.gateway import (
    attempts,
    backlog,
    catalog,
    exchanges as exchange_module,
    metrics,
    model_requests,
    settings as all_settings,
)
from holdfast.gateway.catalog import Model
from holdfast.gateway.erasure import Eraser
from holdfast.gateway.exchanges import CallerKind, Exchange, Exchanges
from holdfast.gateway.http_client import Upstream, UpstreamFailedError
from holdfast.gateway.model_requests import ModelRequest
from holdfast.gateway.settings import GatewaySettings
from holdfast.service.combining import Combiner
from holdfast.service.waiters import JobWaiter
from holdfast.tasks.context import Context
from holdfast.worker.status import WorkerStatus
from holdfast.worker.warm_resources import WarmResources
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.gateway")

LOCAL, REMOTE = "model.local", "model.remote"
"""The kinds of jobs: for models that the server has to load, and for those that run elsewhere."""
LANES: Final = {LOCAL: "models", REMOTE: "models.remote"}
_BACKOFF_SECONDS_MAX: Final = 30.0
# Larger bodies are not kept in memory while they wait.
_KEPT_BYTES_MAX: Final = 1 << 20
_TOGETHER_BYTES_MAX: Final = 256 << 10
_DIRECT_BYTES_MAX: Final = limits.ARTIFACTS_DIRECT_BYTES_MAX // 2
_WATCH_SECONDS: Final = 3_600.0
# How often a model server that does not run yet is asked what it is.
_DETECT_SECONDS: Final = 0.5
_WATCH_AFTER_SECONDS: Final = 1.0
# How long streams may run on after the request to stop; the server cuts connections two seconds later.
_STREAM_END_SECONDS: Final = 8.0
_LOAD_SECONDS: Final = 3_600.0
_TAG_CHARS_MAX: Final = 200


class QueueFullError(Exception):
    """As many requests wait as may."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class JobAdmission:
    """How a request becomes a job."""

    tenant: str = "default"
    priority: int = 0
    caller_kind: CallerKind = "waiting"
    headers: dict[str, str] | None = None
    query: str = ""
    """The query of the request, which is sent on."""
    job_id: str | None = None
    webhook_url: str | None = None


class Gateway:
    """One gateway: its queue, its model server, its workers, and the exchanges between callers and attempts."""

    def __init__(self, queue: AsyncQueue, settlements: attempts.Settlements, settings: GatewaySettings) -> None:
        self.queue = queue
        self.settings = settings
        self.upstream = Upstream(settings.upstream, settings.upstream_key)
        self.catalog = catalog.Catalog(self.upstream, settings.upstream_type)
        self._fallbacks = [catalog.Catalog(Upstream(url, settings.fallback_key)) for url in settings.fallbacks]
        self.exchanges = Exchanges(settings.grace, self._cancel_soon, self._forgotten)
        self._eraser = Eraser(queue, settings.content_retention)
        self.durations = backlog.Durations()
        self.attempts = attempts.Attempts(queue, self._targets, self.exchanges)
        self.closing = False
        self.counts: Counter[str] = Counter()
        """How many jobs ended, by their end."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        """The tokens of answers, by model and direction."""
        self._loads: dict[str, tuple[str, dict[str, Any]]] = {}
        """The model and the options of each affinity."""
        self._keep_alives: dict[str, Any] = {}
        """The `keep_alive` that a caller asked for last, by affinity; sent when its work is done."""
        self._waiter: JobWaiter | None = None
        self._workers: list[Worker] = []
        self._producers: dict[str, AsyncQueue] = {}
        """The queues of the workers, by kind: a request that finds its worker idle is stored and claimed at once."""
        self._arrivals: Combiner[NewJob, AsyncEnqueued[Any]] = Combiner(self._store)
        self._running: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._backoff = Backoff(base=settings.backoff, cap=_BACKOFF_SECONDS_MAX, jitter=0.2)
        settlements.report = self._attempt_ended

    # --- start and end ---------------------------------------------------------------------------------------------

    async def start(self, waiter: JobWaiter, failed: Callable[[BaseException], None]) -> None:
        """Find the jobs of an earlier process and start the workers; *failed* is called if one ends by an error."""
        self._waiter = waiter
        await self.catalog.refresh()
        self._declare_tasks()
        await self._recover()
        self.spawn(self._eraser.run())
        self.spawn(self._erase_earlier())
        if self.catalog.type == "auto" and not self._fallbacks:
            self.spawn(self._start_workers_later(failed))
        else:
            self._start_workers(failed)

    def _start_workers(self, failed: Callable[[BaseException], None]) -> None:
        self._workers = [self._local_worker(), self._remote_worker()]
        self._producers = {kind: worker.local_queue for kind, worker in zip(LANES, self._workers, strict=True)}
        for worker in self._workers:
            running = asyncio.create_task(worker.serve())
            running.add_done_callback(lambda task: self._worker_ended(task, failed))
            self._running.append(running)

    async def _start_workers_later(self, failed: Callable[[BaseException], None]) -> None:
        """Start the workers once the model server answers: what it is decides how many requests it gets at once."""
        while self.catalog.type == "auto":
            await asyncio.sleep(_DETECT_SECONDS)
            with contextlib.suppress(UpstreamFailedError):
                self.catalog.type = await catalog.detect_type(self.upstream)
        await self.catalog.refresh()
        if not self.closing:
            self._start_workers(failed)

    def _worker_ended(self, task: asyncio.Task[None], failed: Callable[[BaseException], None]) -> None:
        if not self.closing and not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a worker of the gateway has ended: %s", error)
            failed(error)

    def _declare_tasks(self) -> None:
        for kind, lane in LANES.items():

            async def run(context: Context, request: dict[str, Any], tokens: int = 1) -> dict[str, Any]:  # noqa: ARG001
                # Limits by key read the tokens.
                return await self.attempts.run(context, request)

            options: Any = {"lane": lane, "max_attempts": self.settings.max_attempts, "backoff": self._backoff}
            # An attempt runs no code of its job, which therefore did not end an earlier process.
            self.queue.task(kind, timeout=self.settings.timeout, isolate="never", **options)(run)

    def _local_worker(self) -> Worker:
        warm = WarmResources(load=self._load, capacity=self.settings.models, max_hold=self.settings.residence)
        return Worker(
            self.queue,
            kinds=[LOCAL],
            lanes=[LANES[LOCAL]],
            concurrency=self.concurrency,
            warm=warm,
            retention=self.settings.retention,
            worker="gateway",
            exclusive=True,
        )

    def _remote_worker(self) -> Worker:
        return Worker(
            self.queue,
            kinds=[REMOTE],
            lanes=[LANES[REMOTE]],
            concurrency=all_settings.REMOTE_CONCURRENCY,
            worker="gateway-remote",
            exclusive=True,
        )

    @property
    def concurrency(self) -> int:
        """How many requests the model server gets at once."""
        if self.settings.concurrency is not None:
            return self.settings.concurrency
        return all_settings.OPENAI_CONCURRENCY if self.catalog.type == "openai" else all_settings.OLLAMA_CONCURRENCY

    async def _recover(self) -> None:
        """Register the unfinished jobs of an earlier process, and those that ended within the grace."""
        for kind in LANES:
            for job in await self._all_jobs(kind, (*WAITING, "running")):
                self._recover_one(job)
            for job in (await self.queue.jobs(kind=kind, state="done", limit=limits.PAGE_MAX)).jobs:
                age = time.time() - (job.finished_at.timestamp() if job.finished_at is not None else 0.0)
                if age > self.settings.grace:
                    break
                if (exchange := self._recover_one(job)) is not None:
                    await attempts.stored_answer(self.queue, exchange, job)

    async def _erase_earlier(self) -> None:
        """Note the finished jobs whose content an earlier process did not erase."""
        for kind in LANES:
            for job in await self._all_jobs(kind, FINISHED):
                if self.exchanges.get(job.id) is None:
                    payload: Any = job.payload
                    self._eraser.add_finished(job, stored=payload["request"]["store"])

    async def _all_jobs(self, kind: str, states: tuple[Any, ...]) -> list[Job]:
        found: list[Job] = []
        after: str | None = None
        while True:
            page = await self.queue.jobs(kind=kind, state=states, after=after, limit=limits.PAGE_MAX)
            found += page.jobs
            after = page.cursor
            if after is None:
                return list(reversed(found))

    def _recover_one(self, job: Job) -> Exchange | None:
        payload = job.payload.get("request") if isinstance(job.payload, dict) else None
        if not isinstance(payload, dict):
            return None
        exchange = attempts.recovered(self.exchanges, payload, job.tenant)
        self.exchanges.recover(exchange, job)
        if job.affinity is not None:
            self._loads[job.affinity] = (exchange.request.model, dict(exchange.request.options))
        if not job.finished:
            self._watch(exchange)
        return exchange

    def begin_closing(self) -> None:
        """Refuse new requests, let waiting callers go, and let the workers finish what runs."""
        if self.closing:
            return
        self.closing = True
        self.exchanges.end_readers(waiting_only=True)
        # Streams that still run then end in their dialect, before the server cuts their connections.
        asyncio.get_running_loop().call_later(_STREAM_END_SECONDS, self.exchanges.end_readers)
        for worker in self._workers:
            worker.stop()

    async def close(self) -> None:
        """Stop the workers and all tasks."""
        self.begin_closing()
        self.exchanges.close()
        for worker in self._workers:
            # Handlers have had the time that the server gives requests.
            worker.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for one in (self.catalog, *self._fallbacks):
            await one.close()

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside the requests."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- model servers ---------------------------------------------------------------------------------------------

    async def find_model(self, name: str) -> Model | None:
        """Return the model with this name; None if no model server lists it.

        One that only another model server has runs elsewhere.
        """
        found = await self.catalog.find(name) if name else None
        if found is None and not self.catalog.known:
            # The model server was never reached: the request waits for it.
            return Model(name, model_requests.name_digest(name))
        if found is None and name:
            elsewhere = [model for one in self._fallbacks if (model := await one.find(name)) is not None]
            found = elsewhere[0]._replace(remote=True) if elsewhere else None
        return found

    async def _targets(self, model: str) -> AsyncIterator[Upstream]:
        """Yield the model servers that have a model, in the order in which they are tried; closed ones come last."""
        is_closed = self.attempts.closures.is_closed
        last: list[Upstream] = []
        if lacking := self.catalog.lacks(model):
            pass
        elif is_closed(self.upstream, model):
            last.append(self.upstream)
        else:
            yield self.upstream
        for one in self._fallbacks:
            if await one.find(model) is None:
                continue
            lacking = False
            if is_closed(one.upstream, model):
                last.append(one.upstream)
            else:
                yield one.upstream
        for target in [self.upstream] if lacking else last:
            yield target

    # --- admission -------------------------------------------------------------------------------------------------

    def check_room(self, tenant: str) -> None:
        """Raise `QueueFullError` if as many requests wait as may, in all or of this tenant."""
        waiting = [one for one in self.exchanges.unfinished() if not one.running]
        own = sum(one.join_key[0] == tenant for one in waiting)
        full = len(waiting) >= self.settings.queue_max
        if not full and own < self.settings.queue_max_per_tenant:
            return
        # One of those that wait must have ended before there is room.
        seconds = self.durations.run(None) / self.concurrency
        what = f"{len(waiting)} requests wait" if full else f"{own} of your requests wait"
        raise QueueFullError(f"{what}; try again later", backlog.retry_after(seconds))

    async def enqueue(self, request: ModelRequest, model: Model | None, admission: JobAdmission) -> Exchange:
        """Store a request as a job and return its exchange, or that of the job with the same idempotency key."""
        job_id = admission.job_id or ids.job_id()
        known = self.exchanges.get(job_id)
        if known is not None:
            self._check_same(known, request)
            return known
        kind = REMOTE if model is not None and model.remote else LOCAL
        affinity = self._affinity(request, model)
        exchange = self.exchanges.make(request, admission.tenant, admission.caller_kind)
        payload = exchange_module.payload_of(request, admission.headers or {}, admission.caller_kind)
        payload["query"] = admission.query
        options: Any = {} if admission.webhook_url is None else {"webhook_url": admission.webhook_url}
        content = await self._request_artifact(request, admission.tenant)
        job = NewJob(
            kind,
            {"request": payload, "tokens": request.tokens},
            job_id=job_id,
            lane=LANES[kind],
            tenant=admission.tenant,
            priority=admission.priority,
            affinity=affinity,
            max_attempts=self.settings.max_attempts,
            backoff=self._backoff,
            tags={"model": request.model[:_TAG_CHARS_MAX], "path": request.path},
            artifacts=[content],
            **options,
        )
        # Known before it is stored: the worker may start it before the call returns.
        self.exchanges.add(exchange, job_id, admission.priority, affinity)
        try:
            # The others do not wait for the bytes of a large request.
            is_large = len(request.content) > _TOGETHER_BYTES_MAX
            enqueued = await self._arrivals.call(job, job_id if is_large else kind)
        except BaseException:
            self.exchanges.forget(exchange)
            raise
        if len(request.content) > _KEPT_BYTES_MAX:
            exchange.request = replace(request, content=b"")
        if not enqueued.created and enqueued.job.finished:
            await attempts.stored_answer(self.queue, exchange, enqueued.job)
        else:
            self._watch(exchange)
        return exchange

    async def _store(self, jobs: Sequence[NewJob]) -> list[AsyncEnqueued[Any]]:
        """Store requests of one kind that have arrived together."""
        if len(jobs) > 1:
            return await self.queue.enqueue_many(jobs)
        return [await self._producers.get(jobs[0].kind, self.queue).enqueue(jobs[0])]

    def _affinity(self, request: ModelRequest, model: Model | None) -> str | None:
        if model is None or model.remote or self.catalog.type == "openai":
            return None
        affinity = model_requests.affinity_of(model.digest, request.options)
        self._loads[affinity] = (request.model, dict(request.options))
        if request.keep_alive is not None and not request.loads_only:
            self._keep_alives[affinity] = request.keep_alive
        return affinity

    async def _request_artifact(self, request: ModelRequest, tenant: str) -> Artifact | UploadedArtifact:
        if len(request.content) <= _DIRECT_BYTES_MAX:
            return Artifact(attempts.REQUEST, request.content, "application/json")
        upload = await self.queue.uploads.send(request.content, tenant=tenant)
        return upload.artifact(attempts.REQUEST, "application/json")

    @staticmethod
    def _check_same(exchange: Exchange, request: ModelRequest) -> None:
        if exchange.join_key[1:] != (request.path, request.digest):
            raise errors.Conflict(f"job {exchange.job_id!r} exists with different content", job_id=exchange.job_id)

    def postpone_unload(self, request: ModelRequest, model: Model) -> bool:
        """Return whether work waits for a model; its `keep_alive` is then sent when that work is done."""
        prefix = model.digest[:16]
        found = False
        for exchange in self.exchanges.unfinished():
            if exchange.affinity is not None and exchange.affinity.startswith(prefix):
                self._keep_alives[exchange.affinity] = request.keep_alive
                found = True
        return found

    # --- the course of jobs ----------------------------------------------------------------------------------------

    def _watch(self, exchange: Exchange) -> None:
        """Notice an end without an attempt: a waiting job that is cancelled by an operator."""

        async def watch() -> None:
            # Most requests end sooner, and cost no query.
            await asyncio.sleep(_WATCH_AFTER_SECONDS)
            while exchange.ended is None and self._waiter is not None:
                job = await self._waiter.wait(exchange.job_id, _WATCH_SECONDS)
                if job is not None:
                    self._job_ended(exchange, job)

        self.spawn(watch())

    def _attempt_ended(self, attempt: EndedAttempt) -> None:
        exchange = self.exchanges.get(attempt.claim.job.id)
        if exchange is None:
            return
        job = attempt.jobs[0] if attempt.jobs else None
        if job is not None and job.state == "done" and exchange.epoch != attempt.claim.epoch:
            return  # late: this exchange repeats the answer of a finished job, which is read from the store
        exchange.running = False
        if job is not None and job.finished:
            if job.state == "done" and attempt.seconds is not None:
                self.durations.note_run(exchange.affinity, attempt.seconds)
                self.durations.note_run(None, attempt.seconds)
            self._count_tokens(exchange.request.model, job.result)
            self._job_ended(exchange, job)
        else:
            exchange.interrupt()

    def _count_tokens(self, model: str, result: Any) -> None:
        usage = result["usage"] if isinstance(result, dict) else {}
        for direction, name in metrics.DIRECTIONS.items():
            if name in usage:
                self.tokens[model, direction] += usage[name]

    def _job_ended(self, exchange: Exchange, job: Job) -> None:
        if exchange.ended is not None:
            return
        attempts.finish(exchange, job)
        self.counts[job.state] += 1
        self.exchanges.ended(exchange)
        if exchange.request.store and (seconds := self._eraser.seconds_for(job.tenant)) is not None:
            self._eraser.add(job.id, seconds)
        affinity = exchange.affinity
        if affinity in self._keep_alives and not any(one.affinity == affinity for one in self.exchanges.unfinished()):
            self.spawn(self._send_keep_alive(affinity or "", self._keep_alives.pop(affinity)))

    async def _send_keep_alive(self, affinity: str, keep_alive: Any) -> None:
        name, options = self._loads[affinity]
        content = model_requests.load_content(name, options, keep_alive)
        try:
            await self.upstream.fetch("POST", "/api/generate", _JSON_HEADERS, content, seconds=_LOAD_SECONDS)
        except UpstreamFailedError as error:
            log.warning("keep_alive of %s could not be sent: %s", name, error)

    def _forgotten(self, exchange: Exchange) -> None:
        """Erase the content of a job whose caller allows to keep it no longer than it needs it."""
        if exchange.ended is not None and not exchange.request.store:
            self._eraser.add(exchange.job_id, 0.0)

    def _cancel_soon(self, exchange: Exchange) -> None:
        self.spawn(self._cancel(exchange))

    async def _cancel(self, exchange: Exchange) -> None:
        try:
            job = await self.queue.cancel(exchange.job_id)
        except (errors.Conflict, errors.JobNotFound):
            return
        log.info("job %s is cancelled: its caller has left", exchange.job_id)
        if job.finished:
            self._job_ended(exchange, job)

    async def _load(self, affinity: str) -> None:
        """Load a model with the options of its requests, by an empty request: the hook of the worker.

        An error is left to the requests themselves, whose callers get it as the model server gives it.
        """
        found = self._loads.get(affinity)
        if found is None:
            return
        name, options = found
        started = time.monotonic()
        content = model_requests.load_content(name, options, self.settings.keep_alive)
        try:
            await self.upstream.fetch("POST", "/api/generate", _JSON_HEADERS, content, seconds=_LOAD_SECONDS)
        except UpstreamFailedError as error:
            log.warning("%s could not be loaded: %s", name, error)
        else:
            self.durations.note_load(affinity, time.monotonic() - started)

    # --- status ----------------------------------------------------------------------------------------------------

    def place(self, exchange: Exchange) -> backlog.Place | None:
        """Return where a waiting request is in the queue; None if it does not wait."""
        if exchange.running or exchange.ended is not None:
            return None
        unfinished = self.exchanges.unfinished()
        running = sum(one.running for one in unfinished)
        waiting = [one.waiting for one in unfinished if not one.running]
        return backlog.place_of(
            exchange.job_id, waiting, self.status().loaded, running, self.concurrency, self.durations
        )

    def status(self) -> WorkerStatus:
        """Return the status of the worker for models that are loaded here."""
        return self._workers[0].status() if self._workers else WorkerStatus("gateway", (), {}, stopping=False)

    def model_name(self, affinity: str) -> str:
        """Return the model of an affinity and its options, for people."""
        digest, _, options = affinity.partition(" ")
        name = self.catalog.name_of(digest) or self._loads.get(affinity, (digest, {}))[0]
        return f"{name} {options}".strip()


_JSON_HEADERS: Final = (("Content-Type", "application/json"),)


def keyed_job_id(tenant: str, path: str, key: str) -> str:
    """Return the id of the job of an idempotency key."""
    digest = hashlib.blake2b(strict_json.canonical([tenant, path, key]), digest_size=16).hexdigest()
    return f"idem-{digest}"
