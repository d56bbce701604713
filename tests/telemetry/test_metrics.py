"""Metrics as Prometheus reads them: a real scrape of a real worker, with every name from the list."""

from __future__ import annotations

import re
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast import Context, Defer, Misconfigured, Worker, telemetry
from holdfast.telemetry.metric_definitions import METRICS
from holdfast.telemetry.store_metrics import StoreCollector, next_read_at
from holdfast.telemetry.worker_metrics import Metrics
from holdfast.types import RunningJob, WorkerStatus
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.support.clock import ManualClock
from tests.support.stores import Harness
from tests.worker.workers import Outage, running_worker, wait_finished, without_tasks


def scraped(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample of a scrape, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_scrape_of_a_working_worker_tells_all_that_the_list_names(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue, port=0)
    queue.task("mail")(lambda: None)
    enqueued = queue.enqueue("mail", {})
    queue.enqueue("later", delay=60)
    queue.enqueue("unknown", lane="other")
    queue.lanes.set("other", target_age=60)
    queue.limits.set("one", kinds=["limited"], concurrency=1)
    limited = [queue.enqueue("limited").id for _ in range(2)]
    queue.enqueue("after", after=limited)
    queue.claim_many(kinds=["limited"], lease=600)
    with running_worker(queue, metrics=metrics, concurrency=3) as working:
        wait_finished(queue, enqueued.id)
        wait_until(lambda: bool(working.worker.status().ended))
        wait_until(lambda: bool(queue.admin.workers()))
        found = scraped(metrics)

    whose = {("lane", "default"), ("kind", "mail")}
    assert found["holdfast_attempts_total", frozenset({*whose, ("outcome", "done")})] == 1
    assert found["holdfast_jobs_finished_total", frozenset({*whose, ("state", "done")})] == 1
    assert found["holdfast_job_run_seconds_count", frozenset(whose)] == 1
    assert found["holdfast_job_wait_seconds_count", frozenset(whose)] == 1
    assert found["holdfast_jobs_ready", frozenset({("lane", "other"), ("kind", "unknown")})] == 1
    assert found["holdfast_jobs_scheduled", frozenset()] == 1
    assert found["holdfast_jobs_dependent", frozenset()] == 1
    assert found["holdfast_jobs_parked", frozenset()] == 1
    assert found["holdfast_lane_target_age_seconds", frozenset({("lane", "other")})] == 60
    assert found["holdfast_lane_late", frozenset({("lane", "other")})] == 0
    assert found["holdfast_workers", frozenset({("state", "active")})] == 1
    assert found["holdfast_store_up", frozenset()] == 1
    assert found["holdfast_worker_slots", frozenset()] == 3
    bare = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name, _ in found}
    shown = {
        metric.name for metric in METRICS if metric.name != "holdfast_expires_total"
    }  # a label that never occurred
    assert {name.removesuffix("_total") for name in bare} == {name.removesuffix("_total") for name in shown}


def test_waits_and_ages_are_counted_by_the_stores_clock(queue: holdfast.Queue, clock: ManualClock) -> None:
    metrics = telemetry.metrics(queue)
    queue.task("mail")(lambda: None)
    enqueued = queue.enqueue("mail", {}, delay=10)
    queue.enqueue("unknown")
    clock.advance(70)

    with running_worker(queue, metrics=metrics) as working:
        wait_finished(queue, enqueued.id)
        wait_until(lambda: bool(working.worker.status().ended))

    assert sample(metrics, "holdfast_job_wait_seconds_sum", lane="default", kind="mail") == 60
    assert sample(metrics, "holdfast_oldest_ready_age_seconds", lane="default", kind="unknown") == 70


def test_every_outcome_is_counted_and_a_job_that_ended_once(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue)

    errors = iter([Defer(after=0), ValueError(), ValueError()])

    @queue.task("task", backoff=holdfast.Backoff(base=0), max_attempts=2)
    def task() -> None:
        raise next(errors)

    enqueued = task.enqueue()
    with running_worker(queue, metrics=metrics) as working:
        wait_finished(queue, enqueued.id)
        wait_until(lambda: working.worker.status().ended == {"deferred": 1, "retried": 1, "failed": 1})

    whose = {"lane": "default", "kind": "task"}
    assert sample(metrics, "holdfast_attempts_total", **whose, outcome="deferred") == 1
    assert sample(metrics, "holdfast_attempts_total", **whose, outcome="failed") == 2
    assert sample(metrics, "holdfast_jobs_finished_total", **whose, state="failed") == 1
    assert sample(metrics, "holdfast_jobs_finished_total", **whose, state="done") is None


def test_a_job_settled_in_its_handlers_own_transaction_is_counted_as_done(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue)

    @queue.task("task")
    def task(context: Context) -> None:
        with context.transaction():
            pass

    enqueued = task.enqueue()
    with running_worker(queue, metrics=metrics) as working:
        wait_finished(queue, enqueued.id)
        wait_until(lambda: bool(working.worker.status().ended))

    assert sample(metrics, "holdfast_jobs_finished_total", lane="default", kind="task", state="done") == 1


def test_each_entry_of_a_turn_is_counted_and_the_run_once(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue)

    @queue.session_task("chat", join=True)
    def chat(context: holdfast.SessionContext[int], messages: list[int]) -> None: ...

    made = [queue.enqueue("chat", n, session="s", join=True) for n in range(3)]
    without_tasks(queue).enqueue("chat", "no number", session="s", join=True)
    with running_worker(queue, metrics=metrics) as working:
        for one in made:
            wait_finished(queue, one.id)
        wait_until(lambda: bool(working.worker.status().ended))

    whose = {"lane": "default", "kind": "chat"}
    assert sample(metrics, "holdfast_job_wait_seconds_count", **whose) == 4
    assert sample(metrics, "holdfast_job_run_seconds_count", **whose) == 1
    assert sample(metrics, "holdfast_attempts_total", **whose, outcome="done") == 3
    assert sample(metrics, "holdfast_attempts_total", **whose, outcome="failed") == 1
    assert sample(metrics, "holdfast_jobs_finished_total", **whose, state="done") == 3
    assert sample(metrics, "holdfast_jobs_finished_total", **whose, state="failed") == 1


def test_a_expire_is_counted_when_its_job_is_claimed_again(queue: holdfast.Queue, clock: ManualClock) -> None:
    metrics = telemetry.metrics(queue)
    queue.task("mail")(lambda: None)
    enqueued = queue.enqueue("mail", {})
    assert queue.claim(lease=1)
    clock.advance(2)
    assert sample(metrics, "holdfast_jobs_expired") == 1

    with running_worker(queue, metrics=metrics):
        wait_finished(queue, enqueued.id)

    assert sample(metrics, "holdfast_expires_total", lane="default", kind="mail") == 1


def test_a_lost_lease_is_counted_as_lost(durable_harness: Harness) -> None:
    queue = durable_harness.open()
    metrics = telemetry.metrics(queue)
    taken = threading.Event()

    @queue.task("task")
    def task(context: Context) -> None:
        taken.set()
        context.wait_cancelled(30)

    enqueued = task.enqueue()
    with running_worker(queue, metrics=metrics) as working:
        assert taken.wait(PATIENCE_SECONDS)
        queue.cancel(enqueued.id, force=True)
        wait_until(lambda: working.worker.status().ended.get("lost") == 1)

    assert sample(metrics, "holdfast_attempts_total", lane="default", kind="task", outcome="lost") == 1


def test_a_store_that_does_not_answer_is_down_and_says_nothing_else(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()
    metrics = telemetry.metrics(queue)
    queue.enqueue("mail")

    with outage:
        assert sample(metrics, "holdfast_store_up") == 0
        assert sample(metrics, "holdfast_jobs_scheduled") is None


def test_the_store_is_asked_again_only_after_a_while(queue: holdfast.Queue) -> None:
    cached, fresh = CollectorRegistry(), CollectorRegistry()
    cached.register(StoreCollector(queue, cache_seconds=1e6))
    fresh.register(StoreCollector(queue, cache_seconds=-1e6))
    labels = {"lane": "default", "kind": "mail"}
    for registry in (cached, fresh):
        registry.get_sample_value("holdfast_store_up")
    queue.enqueue("mail")

    assert cached.get_sample_value("holdfast_jobs_ready", labels) is None
    wait_until(lambda: fresh.get_sample_value("holdfast_jobs_ready", labels) == 1)


def test_a_store_that_takes_long_to_answer_is_asked_less_often() -> None:
    assert next_read_at(10.0, 10.01, 5) == 15.01
    assert next_read_at(10.0, 12.0, 5) == 112.0


def test_what_a_worker_says_of_itself_is_read_when_it_is_asked_for(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue)
    assert sample(metrics, "holdfast_worker_jobs") == sample(metrics, "holdfast_affinity_switches_total") == 0

    running = (RunningJob("one", "mail", 1, 0.5), RunningJob("two", "mail", 1, None))
    metrics.start(4, lambda: WorkerStatus("w", running, {}, stopping=False, switches=3, load_seconds=1.5))

    assert sample(metrics, "holdfast_worker_jobs") == 2
    assert sample(metrics, "holdfast_affinity_switches_total") == 3
    assert sample(metrics, "holdfast_affinity_load_seconds_total") == 1.5


def test_a_worker_that_loads_counts_its_switches(queue: holdfast.Queue) -> None:
    metrics = telemetry.metrics(queue)
    queue.task("task")(lambda: None)
    enqueued = queue.enqueue_many([{"kind": "task", "payload": {}, "affinity": "ab"[n % 2]} for n in range(6)])

    with running_worker(queue, metrics=metrics, warm=holdfast.WarmResources(load=lambda _affinity: None)):
        for one in enqueued:
            wait_finished(queue, one.id)

    assert sample(metrics, "holdfast_affinity_switches_total") == 1


def test_a_registry_of_ones_own_is_used_and_nothing_is_served(queue: holdfast.Queue) -> None:
    registry = CollectorRegistry()
    metrics = telemetry.metrics(queue, registry=registry)

    assert metrics.port is None
    assert registry.get_sample_value("holdfast_store_up") == 1


def test_a_port_that_is_taken_is_named(queue: holdfast.Queue) -> None:
    queue.task("mail")(lambda: None)
    one = telemetry.metrics(queue, port=0)
    one.start(1, Worker(queue).status)
    try:
        with pytest.raises(Misconfigured, match=rf"cannot be served at 127\.0\.0\.1:{one.port}"):
            Worker(queue, metrics=telemetry.metrics(queue, port=one.port)).run()
    finally:
        one.stop()


@pytest.mark.parametrize("port", [-1, 65_536, "80", True])
def test_a_port_that_is_none_is_refused(queue: holdfast.Queue, port: object) -> None:
    with pytest.raises(holdfast.InvalidInput, match="port"):
        telemetry.metrics(queue, port=port)  # type: ignore[arg-type]


def test_nothing_is_served_once_the_worker_has_stopped(queue: holdfast.Queue) -> None:
    queue.task("mail")(lambda: None)
    metrics = telemetry.metrics(queue, port=0)
    with running_worker(queue, metrics=metrics):
        wait_until(lambda: bool(metrics.port))

    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10)
