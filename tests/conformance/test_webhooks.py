"""Webhooks as the store keeps them: subscriptions, the dispatcher's position, deliveries, endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Conflict, Done, Failed, NewJob, Queue
from holdfast.domain import limits, strict_json, webhooks
from holdfast.domain.job import Job
from holdfast.domain.webhooks import Answer, StoredWebhook
from holdfast.errors import WebhookNotFound
from holdfast.operations import webhooks as operations
from holdfast.storage.runners import SyncRunner
from holdfast.types import Finding
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import nonzero, start
from tests.support.stores import store_of

URL = "https://example.org/hook"


def runner(queue: Queue) -> SyncRunner:
    return SyncRunner(store_of(queue))


def dispatch(queue: Queue, holder: str = "a") -> int:
    """Read the log to its end as a dispatcher does; return how many deliveries were made."""
    made = 0
    while True:
        found = runner(queue).read(operations.collect, holder, None, 100).found
        if found is None or not (found.deliveries or found.more):
            return made
        assert runner(queue).write(operations.dispatch, holder, found) is not None
        made += len(found.deliveries)


def delivered(queue: Queue) -> list[dict[str, Any]]:
    """Return the bodies of all deliveries, in order."""
    jobs = [*queue.jobs(lane=webhooks.LANE, limit=1000)][::-1]
    return [strict_json.decode(job.payload["body"]) for job in jobs]


def finish(queue: Queue, kind: str = "mail", result: Any = None, **options: Any) -> Job:
    job = queue.enqueue(kind, **options).job
    return queue.settle(start(queue, job), Done(result))


def stored(queue: Queue, webhook_id: str) -> StoredWebhook:
    found, _ = runner(queue).read(operations.endpoints, [webhook_id])
    return found[webhook_id]


class TestSubscriptions:
    def test_a_webhook_is_added_listed_and_removed_and_its_secret_shown_once(self, queue: Queue) -> None:
        added = queue.webhooks.add(URL, types=["job.done"], tenant="acme", tags={"a": "1"})

        assert added.secret.startswith("whsec_")
        assert added.secret not in repr(added)
        assert queue.webhooks.list() == queue.webhooks.list(tenant="acme") == [added.webhook]
        assert queue.webhooks.list(tenant="other") == []
        assert queue.webhooks.get(added.webhook.id) == added.webhook
        assert queue.webhooks.remove(added.webhook.id) == added.webhook
        with pytest.raises(WebhookNotFound):
            queue.webhooks.get(added.webhook.id)

    def test_every_option_is_kept(self, queue: Queue) -> None:
        options: dict[str, Any] = {"types": ["job.done", "webhook.disabled"], "kinds": ["a"], "lanes": ["b"]}
        added = queue.webhooks.add(URL, include_results=True, concurrency=3, **options).webhook

        found = queue.webhooks.get(added.id)
        assert (found.types, found.kinds, found.lanes) == (("job.done", "webhook.disabled"), ("a",), ("b",))
        assert (found.include_results, found.concurrency, found.per_job) == (True, 3, False)

    def test_an_endpoint_of_jobs_has_an_id_by_tenant_and_origin(self, queue: Queue) -> None:
        first = queue.webhooks.add("https://example.org", per_job=True, tenant="acme")
        other = queue.webhooks.add("https://example.org", per_job=True, tenant="other")

        assert first.webhook.id.startswith("whj_")
        assert first.webhook.id != other.webhook.id
        with pytest.raises(Conflict, match="rotate"):
            queue.webhooks.add("https://example.org", per_job=True, tenant="acme")
        queue.webhooks.remove(first.webhook.id)
        again = queue.webhooks.add("https://example.org", per_job=True, tenant="acme")
        assert again.webhook.id == first.webhook.id

    def test_a_webhook_is_rotated_and_enabled(self, queue: Queue) -> None:
        secret = "whsec_" + "c2VjcmV0" * 4
        added = queue.webhooks.add(URL, secret=secret)

        assert added.secret == secret
        rotated = queue.webhooks.rotate(added.webhook.id, overlap=60)
        assert rotated.webhook == added.webhook
        assert rotated.secret != secret
        assert queue.webhooks.rotate(added.webhook.id, secret=secret).secret == secret
        assert queue.webhooks.enable(added.webhook.id) == added.webhook

    def test_another_tenants_webhook_is_not_found(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL, tenant="acme").webhook.id
        calls: list[Any] = [
            queue.webhooks.get,
            queue.webhooks.remove,
            queue.webhooks.enable,
            queue.webhooks.rotate,
            queue.webhooks.test,
            queue.webhooks.replay,
            queue.webhooks.deliveries,
        ]

        for call in calls:
            with pytest.raises(WebhookNotFound):
                call(webhook_id, tenant="other")

    def test_a_rotation_keeps_two_secrets_until_the_overlap_has_passed(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        added = queue.webhooks.add(URL)
        rotated = queue.webhooks.rotate(added.webhook.id, overlap=60)

        secrets = stored(queue, added.webhook.id).secrets
        assert [one.text for one in secrets] == [rotated.secret, added.secret]
        assert [one.expires_at_ms is None for one in secrets] == [True, False]

    def test_every_change_is_in_the_audit_log_without_secrets(self, queue: Queue) -> None:
        added = queue.webhooks.add(URL)
        webhook_id = added.webhook.id
        rotated = queue.webhooks.rotate(webhook_id)
        for call in (queue.webhooks.enable, queue.webhooks.test, queue.webhooks.replay, queue.webhooks.remove):
            call(webhook_id)

        log = queue.admin.audit_log()
        actions = ["add", "rotate", "enable", "test", "replay", "remove"]
        assert [one.action for one in reversed(log)] == [f"webhooks.{action}" for action in actions]
        assert added.secret not in repr(log)
        assert rotated.secret not in repr(log)

    def test_every_change_is_recorded_with_the_actor(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL, actor="ada").webhook.id
        webhooks_of = queue.webhooks
        for call in (
            webhooks_of.rotate,
            webhooks_of.enable,
            webhooks_of.test,
            webhooks_of.replay,
            webhooks_of.remove,
        ):
            call(webhook_id, actor="ada")

        assert {one.actor for one in queue.admin.audit_log()} == {"ada"}

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"url": "http://example.org"}, "url"),
            ({"types": []}, "types"),
            ({"types": ["job.exploded"]}, "types[0]"),
            ({"kinds": []}, "kinds"),
            ({"lanes": [""]}, "lanes[0]"),
            ({"tags": {"a": 1}}, "tags.a"),
            ({"concurrency": 0}, "concurrency"),
            ({"secret": "whsec_short"}, "secret"),
            ({"per_job": True}, "url"),
            ({"per_job": True, "types": ["job.done"]}, "types"),
            ({"typo": 1}, "typo"),
        ],
    )
    def test_bad_options_are_refused_before_anything_is_stored(
        self, queue: Queue, options: dict[str, Any], field: str
    ) -> None:
        with refused(queue, field):
            queue.webhooks.add(options.pop("url", URL), **options)

    def test_a_late_lane_is_sent(self, queue: Queue, clock: ManualClock) -> None:
        queue.webhooks.add(URL, types=["job.late"], tenant="acme")
        queue.lanes.set("l", target_age=60)
        late = queue.enqueue("mail", lane="l", tenant="acme")
        clock.advance(61)
        assert queue.claim(lanes=["none"]) is None
        assert dispatch(queue) == 1
        [body] = delivered(queue)
        assert (body["type"], body["data"]["job_id"]) == ("job.late", late.id)


class TestDispatch:
    def test_events_from_the_addition_on_are_delivered_once_each(self, queue: Queue, clock: ManualClock) -> None:
        finish(queue)
        clock.advance(1)
        queue.webhooks.add(URL)
        job = finish(queue, tags={"a": "1"})

        assert dispatch(queue) == 1
        assert dispatch(queue) == 0
        [body] = delivered(queue)
        assert (body["type"], body["data"]["job_id"], body["data"]["tags"]) == ("job.done", job.id, {"a": "1"})
        assert "result" not in body["data"]

    def test_one_delivery_for_each_matching_webhook(self, queue: Queue) -> None:
        first = queue.webhooks.add(URL).webhook
        second = queue.webhooks.add(URL, kinds=["mail"]).webhook
        queue.webhooks.add(URL, kinds=["sms"])
        finish(queue)

        assert dispatch(queue) == 2
        ids = {job.id.split("_", 2)[2] for job in queue.jobs(lane=webhooks.LANE)}
        assert ids == {first.id, second.id}

    def test_many_subscriptions_read_the_log_as_often_as_one(self, queue: Queue) -> None:
        for _ in range(20):
            queue.webhooks.add(URL, kinds=["sms"])
        finish(queue)
        found = runner(queue).read(operations.collect, "a", None, 100).found

        assert found is not None
        assert found.deliveries == []
        assert found.end > (found.before.transaction, found.before.event)

    def test_a_second_dispatcher_waits_until_the_first_has_stopped_or_its_lease_has_expired(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.webhooks.add(URL)
        finish(queue)
        assert dispatch(queue, "a") == 1
        finish(queue)
        assert dispatch(queue, "b") == 0

        clock.advance(operations.LEASE_MS / 1000 + 1)
        assert dispatch(queue, "b") == 1
        finish(queue)
        assert dispatch(queue, "a") == 0
        runner(queue).write(operations.stop_reading, "b")
        assert dispatch(queue, "a") == 1

    def test_a_reading_that_was_overtaken_stores_nothing(self, queue: Queue, clock: ManualClock) -> None:
        queue.webhooks.add(URL)
        finish(queue)
        late = runner(queue).read(operations.collect, "a", None, 100).found
        clock.advance(60)
        assert dispatch(queue, "b") == 1

        assert late is not None
        assert runner(queue).write(operations.dispatch, "a", late) is None
        assert len(delivered(queue)) == 1

    def test_results_are_included_if_asked_for_and_small(self, queue: Queue) -> None:
        queue.webhooks.add(URL, include_results=True)
        finish(queue, result={"answer": 42})
        finish(queue, result="x" * limits.WEBHOOK_RESULT_BYTES_MAX)

        dispatch(queue)
        small, large = (body["data"] for body in delivered(queue))
        assert small["result"] == {"answer": 42}
        assert large["result_omitted"] is True

    def test_a_body_is_under_the_limit_whatever_the_tags(self, queue: Queue) -> None:
        queue.webhooks.add(URL)
        finish(queue, tags={f"tag{number}": "ä" * limits.TAG_VALUE_CHARS_MAX for number in range(limits.TAGS_MAX)})

        dispatch(queue)
        [job] = queue.jobs(lane=webhooks.LANE)
        assert len(job.payload["body"].encode()) < limits.WEBHOOK_BODY_BYTES_MAX
        assert strict_json.decode(job.payload["body"])["data"]["tags_omitted"] is True

    def test_a_disabled_webhook_gets_nothing_and_an_enabled_one_no_earlier_events(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        runner(queue).write(operations.record_answer, webhook_id, Answer(410, "gone"))
        finish(queue)
        assert dispatch(queue) == 0

        clock.advance(1)
        queue.webhooks.enable(webhook_id)
        finish(queue)
        assert dispatch(queue) == 1

    def test_a_finished_delivery_is_not_an_event(self, queue: Queue) -> None:
        queue.webhooks.add(URL)
        finish(queue)
        dispatch(queue)
        before = queue.events().cursor
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Done())

        assert dispatch(queue) == 0
        assert [*queue.events(after=before)] == []


class TestJobUrls:
    def test_every_event_of_the_job_is_delivered_to_its_url(self, queue: Queue) -> None:
        url = "https://example.org/callback?job=7"
        job = queue.enqueue("mail", webhook_url=url).job
        queue.settle(start(queue, job), Done())
        finish(queue)

        assert dispatch(queue) == 3
        assert [body["type"] for body in delivered(queue)] == ["job.enqueued", "job.claimed", "job.done"]
        # The rest of a URL may contain credentials.
        assert {one.payload["url"] for one in queue.jobs(lane=webhooks.LANE)} == {"https://example.org"}
        [endpoint] = queue.webhooks.list()
        assert (endpoint.url, endpoint.tenant, endpoint.per_job) == ("https://example.org", "default", True)

    def test_an_endpoint_added_before_signs_with_its_secret(self, queue: Queue) -> None:
        added = queue.webhooks.add("https://example.org", per_job=True, tenant="acme")
        queue.enqueue("mail", tenant="acme", webhook_url=URL)

        dispatch(queue)
        assert queue.webhooks.list() == [added.webhook]
        with pytest.raises(Conflict, match="rotate"):
            queue.webhooks.add("https://example.org", per_job=True, tenant="acme")

    def test_many_jobs_and_follow_ups_have_urls_too(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("a", webhook_url=URL), {"kind": "b", "webhook_url": URL}, NewJob("c")])
        job = queue.enqueue("d").job
        queue.settle(start(queue, job), Done(follow_ups=[NewJob("e", webhook_url=URL)]))

        dispatch(queue)
        assert [body["data"]["kind"] for body in delivered(queue)] == ["a", "b", "e"]

    def test_the_url_is_part_of_the_request_of_a_chosen_id(self, queue: Queue) -> None:
        first = queue.enqueue("mail", job_id="mine", webhook_url=URL)

        assert queue.enqueue("mail", job_id="mine", webhook_url=URL).job == first.job
        with pytest.raises(Conflict):
            queue.enqueue("mail", job_id="mine", webhook_url=URL + "2")

    def test_events_of_a_job_that_was_deleted_are_still_delivered(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("mail", webhook_url=URL).job
        queue.settle(start(queue, job), Done())
        clock.advance(10)
        assert queue.admin.prune(older_than=1).jobs == 1

        assert dispatch(queue) == 3
        position = runner(queue).read(lambda tx: tx.webhook_position())
        end = (position.transaction, position.event)
        assert runner(queue).write(operations.forget_job_urls, end, "") == (1, None)
        assert runner(queue).write(operations.forget_job_urls, end, "") == (0, None)

    @pytest.mark.validation
    def test_a_bad_url_is_refused(self, queue: Queue) -> None:
        with refused(queue, "webhook_url"):
            queue.enqueue("mail", webhook_url="http://example.org")

    @pytest.mark.validation
    def test_callers_cannot_enqueue_deliveries(self, queue: Queue) -> None:
        with refused(queue, "lane"):
            queue.enqueue("mail", lane=webhooks.LANE)
        with refused(queue, "kind"):
            queue.enqueue(webhooks.KIND)


class TestLists:
    def test_deliveries_are_listed_and_counted_only_in_their_lane(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        queue.webhooks.test(webhook_id)
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Failed("HTTP 500", permanent=True))
        queue.enqueue("mail")

        assert [job.kind for job in queue.jobs()] == ["mail"]
        assert [*queue.jobs(state="failed")] == []
        assert [job.kind for job in queue.jobs(state="failed", lane=webhooks.LANE)] == [webhooks.KIND]
        assert nonzero(queue.counts()) == {"ready": 1}
        assert queue.counts(by="failure_class") == {}
        assert [queue.counts(by=one) for one in ("kind", "lane", "tenant")] == [
            {"mail": 1},
            {"default": 1},
            {"default": 1},
        ]
        assert [one.kind for one in queue.admin.tally()] == ["mail"]
        assert queue.admin.requeue_failed().requeued == []

    def test_deliveries_are_pruned_as_jobs(self, queue: Queue, clock: ManualClock) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        queue.webhooks.test(webhook_id)
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Done())
        clock.advance(61)

        assert queue.admin.prune(older_than=60, dry_run=True).jobs == 1
        assert queue.admin.prune(older_than=60).jobs == 1
        assert queue.webhooks.deliveries(webhook_id) == []


class TestRetention:
    def test_events_that_were_not_read_are_kept_for_a_week(self, queue: Queue, clock: ManualClock) -> None:
        queue.webhooks.add(URL)
        finish(queue)
        clock.advance(3_600)

        assert queue.admin.prune(older_than=60, dry_run=True).events == 0
        assert queue.admin.prune(older_than=60).events == 0
        assert dispatch(queue) == 1
        assert queue.admin.prune(older_than=60, dry_run=True).events == 1
        assert queue.admin.prune(older_than=60).events == 1

    def test_a_gap_is_announced_if_they_were_never_read(self, queue: Queue, clock: ManualClock) -> None:
        queue.webhooks.add(URL)
        finish(queue)
        clock.advance(limits.WEBHOOK_EVENTS_KEPT_MS / 1000 + 60)
        finish(queue)
        queue.admin.prune(older_than=60)

        assert dispatch(queue) == 2
        assert [body["type"] for body in delivered(queue)] == ["webhook.gap", "job.done"]

    def test_without_webhooks_nothing_is_kept(self, queue: Queue, clock: ManualClock) -> None:
        finish(queue)
        clock.advance(3_600)

        assert queue.admin.prune(older_than=60).events == 1


class TestEndpoints:
    def test_410_disables_with_reason_audit_entry_notice_and_finding(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        queue.webhooks.add("https://ops.example.org/", types=["webhook.disabled"])
        runner(queue).write(operations.record_answer, webhook_id, Answer(410, "moved out"))

        one = queue.webhooks.get(webhook_id)
        assert (one.state, one.reason) == ("disabled", "the receiver answered 410 Gone")
        assert one.last_answer == "HTTP 410: moved out"
        assert queue.admin.audit_log()[0].action == "webhooks.disable"
        [notice] = delivered(queue)
        assert (notice["type"], notice["data"]["webhook_id"]) == ("webhook.disabled", webhook_id)
        assert any(webhook_id in finding.detail for finding in queue.admin.report().findings)

    def test_one_process_at_a_time_tries_a_closed_endpoint(self, queue: Queue, clock: ManualClock) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        runner(queue).write(operations.record_answer, webhook_id, Answer(503))

        def begin() -> str:
            return runner(queue).write(operations.begin_probe, webhook_id).action

        assert begin() == "wait"
        clock.advance(6)
        assert [begin(), begin()] == ["probe", "wait"]
        runner(queue).write(operations.record_answer, webhook_id, Answer(200))
        assert begin() == "send"

    def test_a_failed_delivery_is_replayed_with_its_id(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        test = queue.webhooks.test(webhook_id)
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Failed("HTTP 500", permanent=True))

        assert [one.state for one in queue.webhooks.deliveries(webhook_id, state="failed")] == ["failed"]
        assert queue.webhooks.replay(webhook_id).requeued == [test.id]
        [one] = queue.webhooks.deliveries(webhook_id)
        assert (one.id, one.state, one.type) == (test.id, "ready", "webhook.test")

    def test_nothing_is_sent_again_to_a_disabled_webhook(self, queue: Queue) -> None:
        webhook_id = queue.webhooks.add(URL).webhook.id
        queue.webhooks.test(webhook_id)
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Failed("HTTP 410", permanent=True))
        runner(queue).write(operations.record_answer, webhook_id, Answer(410))

        for call in (queue.webhooks.test, queue.webhooks.replay):
            with pytest.raises(Conflict, match="enable"):
                call(webhook_id)
        assert [one.state for one in queue.webhooks.deliveries(webhook_id)] == ["failed"]

    def test_a_sender_is_needed_until_deliveries_of_a_removed_webhook_have_failed(self, queue: Queue) -> None:
        def needed() -> bool:
            return runner(queue).read(operations.collect, "a", None, 100).needed

        webhook_id = queue.webhooks.add(URL).webhook.id
        queue.webhooks.test(webhook_id)
        queue.webhooks.remove(webhook_id)
        queue.enqueue("mail")

        assert needed()
        [claim] = queue.claim_many(lanes=[webhooks.LANE])
        queue.settle(claim, Failed("removed", permanent=True))
        assert not needed()

    def test_doctor_says_that_no_process_sends(self, queue: Queue) -> None:
        def findings() -> list[Finding]:
            return [one for one in queue.admin.report().findings if one.name == "webhooks"]

        assert findings() == []
        queue.webhooks.add(URL)
        assert [one.status for one in findings()] == ["warning"]
        finish(queue)
        dispatch(queue)
        assert [one.status for one in findings()] == ["ok"]

    def test_deliveries_that_no_worker_takes_are_not_reported_as_unserved(self, queue: Queue) -> None:
        queue.webhooks.test(queue.webhooks.add(URL).webhook.id)

        assert queue.admin.unserved() == []
