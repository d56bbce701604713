"""The sender: reads the event log for all webhooks, claims deliveries and sends them.

It runs beside a worker or a server. Any number of senders may run: one of them reads the log, all send.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from holdfast.client import ids, queue_state
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import errors, limits, strict_json, webhook_signatures, webhook_urls, webhooks
from holdfast.domain.claims import Claim
from holdfast.domain.job import columns_of
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released
from holdfast.operations import webhooks as operations
from holdfast.storage import contract, randomness, runners
from holdfast.storage.store import Store
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.webhooks.connections import Connections

log = logging.getLogger("holdfast.webhooks")

ALLOW_VARIABLE: Final = "HOLDFAST_WEBHOOK_ALLOW"
_HEADERS: Final = {"User-Agent": f"Holdfast/{__version__}", "Content-Type": "application/json", "Accept": "*/*"}
_PAGE: Final = 500
_HELD_MAX: Final = 512
_CLAIM_MAX: Final = 250
_SETTLE_MAX: Final = 200
_LEASE_SECONDS: Final = 30.0
# A delivery that has waited this long in this process is given back: its lease must last for the try.
_WAIT_SECONDS_MAX: Final = 10.0
# How many deliveries wait in this process for one slow endpoint, as a multiple of its concurrency.
_WAITING_FACTOR: Final = 4
_SECONDS_ASSUMED: Final = 0.25
_READ_SECONDS: Final = 0.2
_IDLE_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 2.0
_FORGET_SECONDS: Final = 60.0
_TRY_SECONDS: Final = limits.WEBHOOK_TIMEOUT_MS / 1000 + 1.0
# How often places at endpoints are looked after, and when they are renewed.
_PLACES_SECONDS: Final = 1.0
_PLACES_RENEWED_SECONDS: Final = 25.0
# How long deliveries that are being sent may take when the process stops.
_STOP_SECONDS: Final = 3.0


class SendingEndpoint:
    """The deliveries of one endpoint that this process holds, and its places there."""

    def __init__(self, stored: webhooks.StoredWebhook) -> None:
        self.stored = stored
        self.sending = 0
        self.waiting: deque[tuple[Claim, float]] = deque()
        self.places = 0
        """How many deliveries this process may make at once."""
        self.until = 0.0
        """When the places end."""
        self.used_at = time.monotonic()
        self._seconds = _SECONDS_ASSUMED

    @property
    def load(self) -> int:
        """How many deliveries are being sent or wait."""
        return self.sending + len(self.waiting)

    def wanted(self, more: int, now: float) -> int | None:
        """Return how many places to ask for, with some more deliveries; None if those it has suffice."""
        needed = min(self.load + more, self.stored.webhook.concurrency)
        if self.places >= needed and self.until - now > _PLACES_RENEWED_SECONDS:
            return None
        # Twice as many as needed, so that a growing number is written a few times only.
        return min(2 * needed, self.stored.webhook.concurrency)

    def grant(self, stored: webhooks.StoredWebhook, holder: str, asked_at: float) -> None:
        """Use the places that the store has granted."""
        self.stored, self.places = stored, webhooks.places_of(stored, holder)
        self.used_at = time.monotonic()
        self.until = asked_at + webhooks.PLACES_MS / 1000

    @property
    def may_send(self) -> bool:
        """Whether a place is free, for as long as a try takes."""
        return self.sending < self.places and self.until - time.monotonic() > _TRY_SECONDS

    def answered(self, seconds: float) -> None:
        """Remember how long the receiver takes, as an average in which new answers count more."""
        self._seconds += (seconds - self._seconds) / 8

    @property
    def waiting_max(self) -> int:
        """How many deliveries may wait in this process: those that a fast receiver gets within a second, or a few."""
        concurrency = self.stored.webhook.concurrency
        return max(_WAITING_FACTOR * concurrency, int(concurrency / self._seconds))


class StoreFailures:
    """Logs the first failure of the store, and that it answers again: an outage is two lines, however long it is."""

    def __init__(self) -> None:
        self._failing = False

    def failed(self, what: str, error: errors.HoldfastError) -> None:
        """Record that *what* could not be done."""
        if not self._failing:
            log.warning("%s, and webhooks are retried until the store answers: %s", what, error)
        self._failing = True

    def succeeded(self) -> None:
        """Record that the store answers."""
        if self._failing:
            log.warning("the store answers again, and webhooks are sent")
        self._failing = False


class WebhookSender:
    """Sends the deliveries of a store until it is stopped."""

    def __init__(self, store: Store, connect: Callable[[], Connections]) -> None:
        # Without the middleware and the codec of the program's queue: deliveries are not its jobs.
        self._queue = AsyncQueue(queue_state.QueueState(store))
        self._runner = runners.AsyncRunner(store)
        self._connect = connect
        self._connections: Connections | None = None
        self._failures = StoreFailures()
        self._reads = False
        self._stopping = False
        self._holder = uuid.uuid4().hex
        self._worker = f"webhooks-{ids.worker_name()}"
        self._active = asyncio.Event()
        self._outcomes: asyncio.Queue[tuple[Claim, Outcome]] = asyncio.Queue()
        self._slots = asyncio.Semaphore(_HELD_MAX)
        self._endpoints: dict[str, SendingEndpoint] = {}
        self._placing = asyncio.Lock()
        """Held while places at endpoints are read and written."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[str, Claim] = {}
        self._forget_at = 0.0
        self._forget_after = ""

    async def run(self) -> None:
        """Read the log and send deliveries until this task is cancelled; then give back what is not sent."""
        loops = [asyncio.create_task(loop()) for loop in (self._read, self._claim, self._settle, self._keep_places)]
        try:
            await asyncio.gather(*loops)
        finally:
            await self._stop(loops)

    async def _stop(self, loops: Sequence[asyncio.Task[None]]) -> None:
        self._stopping = True
        for task in loops:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*loops, *self._tasks, return_exceptions=True)
        outcomes: dict[str, tuple[Claim, Outcome]] = {key: (one, Released()) for key, one in self._held.items()}
        while not self._outcomes.empty():
            claim, outcome = self._outcomes.get_nowait()
            outcomes[claim.job.id] = (claim, outcome)
        with suppress(errors.HoldfastError):
            if outcomes:
                await self._queue.settle_many([*outcomes.values()])
            if self._endpoints:
                await self._runner.write(operations.take_places, self._holder, (), dict.fromkeys(self._endpoints, 0))
            if self._reads:
                await self._runner.write(operations.stop_reading, self._holder)
        if self._connections is not None:
            await self._connections.close()

    # --- reading the log -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        after: contract.EventPosition | None = None
        while True:
            try:
                after, pause = await self._read_page(after)
                self._failures.succeeded()
            except errors.HoldfastError as error:
                self._failures.failed("the event log could not be read", error)
                after, pause = None, _RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _read_page(self, after: contract.EventPosition | None) -> tuple[contract.EventPosition | None, float]:
        """Read a page of the log; return how far it was read, and the seconds until the next page."""
        reading = await self._runner.read(operations.collect, self._holder, after, _PAGE)
        if not reading.needed:
            if not self._held:
                self._active.clear()
            return None, _IDLE_SECONDS
        self._active.set()
        found = reading.found
        if found is None:
            return None, _IDLE_SECONDS / 2
        if found.due:
            self._reads = await self._runner.write(operations.dispatch, self._holder, found) is not None
            if not self._reads:
                return None, _IDLE_SECONDS / 2
        if not found.more and time.monotonic() > self._forget_at:
            _, after_job = await self._runner.write(operations.forget_job_urls, found.end, self._forget_after)
            self._forget_after = after_job or ""
            self._forget_at = time.monotonic() + (_FORGET_SECONDS if after_job is None else _IDLE_SECONDS)
        return found.end, 0.0 if found.more else _READ_SECONDS

    # --- deliveries ------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        starting: asyncio.Task[None] | None = None
        while True:
            await self._active.wait()
            await self._slots.acquire()
            # Slots are returned when outcomes are stored, so that claims never exceed what can be held.
            free = 1
            while free < _CLAIM_MAX and not self._slots.locked():
                await self._slots.acquire()
                free += 1
            claims: list[Claim] = []
            try:
                claims = await self._queue.claim_many(
                    limit=free,
                    lanes=[webhooks.LANE],
                    kinds=[webhooks.KIND],
                    worker=self._worker,
                    incarnation=self._holder,
                    lease=_LEASE_SECONDS,
                    wait=1.0,
                )
                self._held |= {claim.job.id: claim for claim in claims}
            except errors.HoldfastError as error:
                self._failures.failed("deliveries could not be claimed", error)
                await asyncio.sleep(_RETRY_SECONDS)
            for _ in range(free - len(claims)):
                self._slots.release()
            if claims:
                # One after the other, in order, but while the next are claimed.
                if starting is not None:
                    await asyncio.wait([starting])
                starting = self._in_background(self._start(claims))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self, claims: Sequence[Claim]) -> None:
        """Decide about claimed deliveries: send, wait for the endpoint, or give back."""
        try:
            found, now_ms = await self._find_endpoints(Counter(map(_webhook_id, claims)))
        except errors.HoldfastError as error:
            self._failures.failed("the endpoints of deliveries could not be read", error)
            for claim in claims:
                self._end(claim, Released())
            await asyncio.sleep(_RETRY_SECONDS)
            return
        for claim in claims:
            webhook_id = _webhook_id(claim)
            stored = found.get(webhook_id)
            admission = webhooks.admit(stored, now_ms)
            if admission.action == "probe":
                admission = await self._begin_probe(webhook_id)
            if stored is None or admission.action == "drop":
                self._end(claim, Failed("the webhook is disabled or was removed", "no_webhook", permanent=True))
                continue
            endpoint = self._endpoints.get(webhook_id)
            if admission.action == "wait" or endpoint is None or not endpoint.places:
                # Without a place, other processes send as much as the endpoint takes.
                self._end(claim, Deferred(after=_spread(admission.seconds or 1.0)))
                continue
            endpoint.stored = stored
            endpoint.waiting.append((claim, time.monotonic()))
            self._send_next(endpoint)
            while len(endpoint.waiting) > endpoint.waiting_max:
                # A slow receiver must not occupy this process: others take their turn.
                late, _ = endpoint.waiting.pop()
                self._end(late, Deferred(after=_spread(1.0)))

    async def _find_endpoints(self, counts: Mapping[str, int]) -> tuple[dict[str, webhooks.StoredWebhook], int]:
        """Read the endpoints of some deliveries each, and take places for them if those of this process are few."""
        async with self._placing:
            now = time.monotonic()
            wanted: dict[str, int] = {}
            for webhook_id, count in counts.items():
                known = self._endpoints.get(webhook_id)
                places = 2 * count if known is None else known.wanted(count, now)
                if places is not None:
                    wanted[webhook_id] = places
            if not wanted:
                return await self._runner.read(operations.endpoints, list(counts))
            found, now_ms = await self._runner.write(operations.take_places, self._holder, list(counts), wanted)
            for webhook_id in wanted.keys() & found.keys():
                stored = found[webhook_id]
                endpoint = self._endpoints.setdefault(webhook_id, SendingEndpoint(stored))
                endpoint.grant(stored, self._holder, now)
            return found, now_ms

    async def _keep_places(self) -> None:
        while True:
            await asyncio.sleep(_PLACES_SECONDS)
            try:
                async with self._placing:
                    await self._renew_places(time.monotonic())
            except errors.HoldfastError as error:
                self._failures.failed("places at endpoints could not be renewed", error)

    async def _renew_places(self, now: float) -> None:
        """Renew the places at endpoints that are used, and return the others."""
        wanted: dict[str, int] = {}
        for webhook_id, one in self._endpoints.items():
            if not one.load and now - one.used_at > _PLACES_SECONDS:
                wanted[webhook_id] = 0
            elif one.load and one.until - now <= _PLACES_RENEWED_SECONDS:
                wanted[webhook_id] = min(one.load, one.stored.webhook.concurrency)
        if not wanted:
            return
        found, _ = await self._runner.write(operations.take_places, self._holder, (), wanted)
        for webhook_id, places in wanted.items():
            endpoint = self._endpoints[webhook_id]
            if not places or webhook_id not in found:
                endpoint.places = 0
            else:
                endpoint.grant(found[webhook_id], self._holder, now)
            self._send_next(endpoint)
            if not endpoint.places:
                self._defer_waiting(endpoint)
            if not endpoint.load:
                del self._endpoints[webhook_id]

    def _defer_waiting(self, endpoint: SendingEndpoint) -> None:
        while endpoint.waiting:
            # They ask again when they are claimed the next time.
            self._end(endpoint.waiting.popleft()[0], Deferred(after=_spread(1.0)))

    async def _begin_probe(self, webhook_id: str) -> webhooks.Admission:
        try:
            return await self._runner.write(operations.begin_probe, webhook_id)
        except errors.HoldfastError as error:
            self._failures.failed(f"webhook {webhook_id} could not be tried", error)
            return webhooks.Admission("wait", _RETRY_SECONDS)

    def _send_next(self, endpoint: SendingEndpoint) -> None:
        """Send waiting deliveries as far as the places at the endpoint permit."""
        if self._stopping:
            # What waits is given back.
            return
        endpoint.used_at = time.monotonic()
        while endpoint.waiting and endpoint.may_send:
            claim, since = endpoint.waiting.popleft()
            if time.monotonic() - since > _WAIT_SECONDS_MAX:
                self._end(claim, Deferred(after=_spread(1.0)))
                continue
            endpoint.sending += 1
            self._in_background(self._send(endpoint, claim))

    async def _send(self, endpoint: SendingEndpoint, claim: Claim) -> None:
        started = time.monotonic()
        try:
            try:
                answer = await self._post(endpoint.stored, claim)
            except Exception as error:  # whatever it is, the delivery must not be held indefinitely
                log.exception("delivery %s could not be sent", claim.job.id)
                answer = webhooks.Answer(None, f"{type(error).__name__}: {error}", refused=True)
            endpoint.answered(time.monotonic() - started)
            self._end(claim, _outcome(claim, answer))
            await self._record(endpoint, answer)
        except errors.HoldfastError as error:
            self._failures.failed(f"the answer of webhook {endpoint.stored.id} could not be stored", error)
        finally:
            endpoint.sending -= 1
            self._send_next(endpoint)

    async def _post(self, stored: webhooks.StoredWebhook, claim: Claim) -> webhooks.Answer:
        # As stored: the attribute shows only the origin of the URL.
        payload = strict_json.decode(columns_of(claim.job).payload_json)
        url = _parse_url(payload.get("url", stored.webhook.url))
        body = payload["body"].encode()
        # The receiver compares the time with its own clock: not the store's.
        now = time.time()
        secrets = webhook_signatures.valid_secrets(stored.secrets, round(now * 1000))
        headers = {
            **_HEADERS,
            "webhook-id": claim.job.id,
            "webhook-timestamp": str(int(now)),
            "webhook-signature": webhook_signatures.sign(secrets, claim.job.id, int(now), body),
        }
        if self._connections is None:
            self._connections = self._connect()
        return await self._connections.post(url, headers, body)

    async def _record(self, endpoint: SendingEndpoint, answer: webhooks.Answer) -> None:
        """Store what the answer means for the endpoint, unless nothing has changed."""
        if webhooks.after_answer(endpoint.stored, answer, round(time.time() * 1000)) is None:
            return
        stored = await self._runner.write(operations.record_answer, endpoint.stored.id, answer)
        if stored is None:
            return
        endpoint.stored = stored
        if stored.webhook.state != "active" or stored.webhook.closed_until is not None:
            self._defer_waiting(endpoint)

    def _end(self, claim: Claim, outcome: Outcome) -> None:
        self._outcomes.put_nowait((claim, outcome))

    async def _settle(self) -> None:
        while True:
            batch = [await self._outcomes.get()]
            while len(batch) < _SETTLE_MAX and not self._outcomes.empty():
                batch.append(self._outcomes.get_nowait())
            try:
                await self._queue.settle_many(batch)
            except errors.HoldfastError as error:
                # The leases expire, and the deliveries are sent again.
                self._failures.failed(f"outcomes of {len(batch)} deliveries could not be stored", error)
            for claim, _ in batch:
                self._held.pop(claim.job.id, None)
                self._slots.release()


@lru_cache(1_000)
def _parse_url(url: str) -> webhook_urls.WebhookUrl:
    return webhook_urls.parse_url(url, "url")


def _webhook_id(claim: Claim) -> str:
    return claim.job.tenant.removeprefix(webhooks.delivery_tenant(""))


def _spread(seconds: float) -> float:
    """Return a pause of at least *seconds*, spread so that deliveries do not all come back at once."""
    return seconds + randomness.RANDOM.random() * max(1.0, seconds / 10)


def _outcome(claim: Claim, answer: webhooks.Answer) -> Outcome:
    """Return the outcome of a delivery by the receiver's answer."""
    match webhooks.verdict(answer):
        case "success":
            result: dict[str, strict_json.Json] = {"status": answer.status}
            return Done(result | {"answer": answer.text} if answer.text else result)
        case "gone":
            return Failed(answer.describe(), "gone", permanent=True)
        case _:
            reason = "address_refused" if answer.refused else "no_answer"
            pause = webhooks.retry_seconds(claim.job.attempt, randomness.RANDOM.random())
            return Failed(
                answer.describe(),
                reason if answer.status is None else f"http_{answer.status}",
                retry_after=max(pause, answer.retry_after_seconds or 0.0),
            )


def is_installed() -> bool:
    """Return whether the extra `holdfast[webhooks]` is installed."""
    return find_spec("httptools") is not None


@asynccontextmanager
async def sending(store: Store) -> AsyncIterator[None]:
    """Send webhooks during the block, if the extra is installed and the store is not behind a server.

    Raises `InvalidInput` if the allow-list of addresses is not valid.
    """
    allowed = webhook_urls.parse_networks(os.environ.get(ALLOW_VARIABLE, ""), ALLOW_VARIABLE)
    if store.translate is not None or not is_installed():
        yield
        return

    def connect() -> Connections:
        # Imported late: most stores have no webhooks.
        from holdfast.webhooks.connections import Connections  # noqa: PLC0415

        return Connections(allowed)

    task = asyncio.create_task(_send_always(store, connect))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=2 * _STOP_SECONDS)


async def _send_always(store: Store, connect: Callable[[], Connections]) -> None:
    while True:
        try:
            await WebhookSender(store, connect).run()
        except Exception:
            log.exception("sending webhooks failed; it starts again")
            await asyncio.sleep(_RETRY_SECONDS)
