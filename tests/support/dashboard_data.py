"""A busy queue for the pages of the dashboard: every state, workers, schedules, sessions, webhooks, hostile text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import holdfast
from holdfast import Claim, Done, Failed, NewJob, Queue
from holdfast.client.connect import queue_on
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain.results import WorkerInfo
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import ManualClock

HOSTILE: Final = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\N{RIGHT-TO-LEFT OVERRIDE}{{7*7}}"
TRACEBACK: Final = """Traceback (most recent call last):
  File "/app/shop/invoices.py", line 42, in render
    total = sum(line.amount for line in lines)
  File "/usr/lib/python3.11/site-packages/decimal_tools/core.py", line 9, in total
    raise InvalidOperation("not a number")
decimal.InvalidOperation: not a number
"""
LANES: Final = ("mail", "images", "billing", "models")


def fill(queue: Queue, *, hostile: bool = False) -> dict[str, str]:
    """Fill an empty queue and return the ids of some jobs by state."""
    found: dict[str, str] = {}
    for number in range(24):
        lane, kind = (("mail", "email.send"), ("images", "image.resize"), ("billing", "invoice.render"))[number % 3]
        queue.enqueue(kind, {"number": number}, lane=lane, tenant=("acme", "globex")[number % 2])
    for number, claim in enumerate(_claims(queue, ("mail", "images", "billing"), "worker-1", 18)):
        if number % 3 == 2:
            message = f"line {number} of the invoice is not a number"
            failure = Failed(message, reason="invalid_operation", traceback=TRACEBACK, permanent=True)
            found["failed"] = queue.settle(claim, failure).id
        else:
            found["done"] = queue.settle(claim, Done({"sent": True, "big": 2**60})).id
    retried = queue.enqueue("image.resize", {"url": "https://example.org/a.png"}, lane="images", priority=5)
    [claim] = _claims(queue, ("images",), "worker-2", 1)
    queue.settle(claim, Failed("connection reset", reason="connection_reset"))
    found["scheduled"] = retried.id
    found["running"] = _running(queue)
    found["ready"] = queue.enqueue("model.answer", {"prompt": "hello"}, lane="models", affinity="llama-70b").id
    found["cancelled"] = queue.cancel(queue.enqueue("email.send", {"to": "x"}, lane="mail").id).id
    first = queue.enqueue("report.make", {"month": "2026-11"}, tags={"team": "sales"})
    found["dependent"] = queue.enqueue("report.send", None, after=[first.id]).id
    queue.enqueue("chat.message", "hello", session="chat-42")
    queue.enqueue("chat.message", "are you there?", session="chat/with slash & more")
    queue.schedules.set("nightly", kind="report.make", cron="0 3 * * *", zone="Europe/Berlin")
    queue.schedules.set("every-minute", kind="email.send", every=60, lane="mail")
    queue.schedules.pause("every-minute")
    queue.limits.set("invoices", kinds=["invoice.render"], key="tenant", concurrency=2)
    queue.lanes.set("billing", state="paused")
    queue.lanes.set("mail", target_age=120)
    found["webhook"] = queue.webhooks.add("https://hooks.example.org/holdfast").webhook.id
    with queue.group("import-7") as group:
        for number in range(3):
            found["member"] = group.enqueue("email.send", {"number": number}, lane="mail")
    _workers(queue)
    queue.admin.record_action("lanes.set", "billing", detail={"state": "paused"})
    if hostile:
        found["hostile"] = _hostile(queue)
    return found


def _claims(queue: Queue, lanes: tuple[str, ...], worker: str, limit: int) -> list[Claim]:
    return queue.claim_many(lanes=list(lanes), worker=worker, limit=limit, lease=600)


def _running(queue: Queue) -> str:
    """Return a job that is running, with output and progress."""
    job = queue.enqueue("model.answer", {"prompt": "Write a poem."}, lane="models", affinity="llama-8b", priority=9)
    [claim] = _claims(queue, ("models",), "gpu-1", 1)
    queue.progress(claim, phase="generating", percent=40)
    queue.emit(claim, "The queue is long,\nthe night is deep.\n")
    return job.id


def _workers(queue: Queue) -> None:
    report(queue, "worker-1", lanes=("mail", "images", "billing"))
    loaded: dict[str, Any] = {
        "loaded": ("llama-8b", "whisper"),
        "switches": 3,
        "switches_saved": 41,
        "hold_left": 240.0,
    }
    report(queue, "gpu-1", lanes=("models",), **loaded)


def report(queue: Queue, name: str, **fields: Any) -> None:
    """Report a worker of this name to the store."""
    common: dict[str, Any] = {
        "host": "host-1.example.org",
        "process": 4242,
        "version": holdfast.__version__,
        "state": "active",
        "concurrency": 4,
        "running": 1,
        "kinds": (),
        "capabilities": (),
        "loaded": (),
    }
    WorkerCalls(state_of(queue).store).beat(WorkerInfo(name, f"{name}-a", **{**common, **fields}))


def _hostile(queue: Queue) -> str:
    """Return a failed job with hostile text in every field that takes text."""
    options: dict[str, Any] = {"tags": {"team": HOSTILE}, "headers": {"note": HOSTILE}, "dedupe_key": HOSTILE}
    job = queue.enqueue(NewJob(HOSTILE, {"text": HOSTILE}, lane=HOSTILE, tenant=HOSTILE, **options))
    claim = queue.claim(lanes=[HOSTILE], worker=HOSTILE, lease=600)
    assert claim is not None
    queue.emit(claim, HOSTILE)
    queue.settle(claim, Failed(HOSTILE, traceback=HOSTILE, permanent=True))
    queue.enqueue(HOSTILE, HOSTILE, lane=HOSTILE, session=HOSTILE, tenant=HOSTILE)
    queue.schedules.set("<script>alert(1)<\\script>", kind=HOSTILE, payload=HOSTILE, every=3600, tenant=HOSTILE)
    with queue.group("<script>alert(1)<\\script>", tenant=HOSTILE) as group:
        group.enqueue(HOSTILE, HOSTILE, lane=HOSTILE)
    queue.admin.record_action(HOSTILE, HOSTILE, detail={HOSTILE: HOSTILE})
    queue.admin.tokens.create(HOSTILE, roles=["read"], tenant=HOSTILE)
    return job.id


def fill_an_hour(path: str) -> dict[str, str]:
    """Fill a new SQLite file with an hour of work that ends now: most of it done, then a failure that rises."""
    began = datetime.now(UTC) - timedelta(minutes=60)
    clock = ManualClock(began)
    for minute in range(60):
        store = SqliteStore(path, clock=clock)
        with queue_on(store) as queue:
            _one_minute(queue, store, clock, minute)
    with holdfast.connect(path) as queue:
        return fill(queue)


def _one_minute(queue: Queue, store: SqliteStore, clock: ManualClock, minute: int) -> None:
    arrivals = 14 + minute % 7 + (10 if minute > 44 else 0)
    jobs = [
        {"kind": kind, "lane": lane, "tenant": ("acme", "globex", "initech")[number % 3], "payload": {"n": number}}
        for number in range(arrivals)
        for kind, lane in [(("email.send", "mail"), ("image.resize", "images"), ("report.make", "mail"))[number % 3]]
    ]
    queue.enqueue_many(jobs)
    clock.advance(2)
    claims = queue.claim_many(lanes=["mail", "images"], worker="worker-1", limit=16 + minute % 5, lease=600)
    clock.advance(5)
    for number, claim in enumerate(claims):
        # What was counted is written at once, not every ten seconds.
        store.rollups.due_at = 0.0
        if claim.job.kind == "image.resize" and minute > 40 and number % 2:
            failure = Failed(f"cannot read image {number}", reason="bad_image", traceback=TRACEBACK, permanent=True)
            queue.settle(claim, failure)
        else:
            queue.settle(claim, Done({"ok": True}))
    clock.advance(53)
