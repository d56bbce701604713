"""The protocol of remote workers: claim, acknowledge, heartbeat, progress, settle."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast import Claim
from holdfast.domain.access import Grants
from holdfast.service import app
from tests.support.service import Answer, Client, Server, claim_waits, wait_until


def claim_one(client: Client, **options: Any) -> dict[str, Any]:
    """Claim one job and return the claim."""
    answer = client.post("/v1/claims", {"worker": "curl-1", **options})
    assert answer.status == 200, answer
    [claim] = answer.json["claims"]
    return dict(claim)


def proof(claim: dict[str, Any]) -> dict[str, Any]:
    """Return what every further call presents."""
    return {"epoch": claim["epoch"], "lease_token": claim["lease_token"]}


def test_a_worker_claims_acknowledges_reports_and_settles(served: Server) -> None:
    served.queue.enqueue("a", {"n": 1}, job_id="one")
    worker = served.client("work")
    claim = claim_one(worker)
    assert (claim["job"]["id"], claim["job"]["payload"], claim["epoch"]) == ("one", {"n": 1}, 1)

    acknowledged = worker.post("/v1/claims/one/acknowledge", {**proof(claim), "lease": 60})
    assert acknowledged.json["lease_until_ms"] == claim["lease_until_ms"] + 50_000
    assert acknowledged.json["cancel_requested"] is False
    progress = worker.post("/v1/claims/one/progress", {**proof(claim), "phase": "sending", "percent": 50})
    assert (progress.json["phase"], progress.json["percent"]) == ("sending", 50.0)
    served.queue.cancel("one")
    assert worker.post("/v1/claims/one/heartbeat", proof(claim)).json["cancel_requested"] is True
    settled = worker.post(
        "/v1/claims/one/settle",
        {
            **proof(claim),
            "outcome": "done",
            "result": {"sent": True},
            "follow_ups": [{"kind": "b", "payload": 2}],
            "artifacts": [{"name": "log.txt", "data": base64.b64encode(b"hello").decode()}],
        },
    )

    assert (settled.status, settled.json["state"], settled.json["result"]) == (200, "done", {"sent": True})
    assert served.queue.artifact("one", "log.txt").data == b"hello"
    assert [job.kind for job in served.queue.jobs(state="ready")] == ["b"]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"outcome": "failed", "message": "no", "reason": "smtp", "permanent": True}, "failed"),
        ({"outcome": "failed", "message": "no", "retry_after": 60}, "scheduled"),
        ({"outcome": "failed", "message": "no", "backoff": {"base": 60}}, "scheduled"),
        ({"outcome": "deferred", "after": 60}, "scheduled"),
        ({"outcome": "deferred", "until": "2200-01-01T00:00:00Z"}, "scheduled"),
        ({"outcome": "released"}, "ready"),
    ],
)
def test_every_outcome_can_be_settled(server: Server, outcome: dict[str, Any], state: str) -> None:
    server.queue.enqueue("a", job_id="one")
    worker = server.client("work")
    claim = claim_one(worker)

    assert worker.post("/v1/claims/one/settle", {**proof(claim), **outcome}).json["state"] == state


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"outcome": "lost"}, "outcome"),
        ({"outcome": "done", "message": "x"}, "message"),
        ({"outcome": "failed"}, "message"),
        ({"outcome": "failed", "message": "x", "reason": "Bad Reason"}, "reason"),
        ({"outcome": "deferred"}, "after"),
        ({"outcome": "deferred", "until": "soon"}, "until"),
        ({"outcome": "done", "artifacts": [{"name": "../x", "data": ""}]}, "artifacts[0].name"),
        ({"outcome": "done", "artifacts": [{"name": "x", "data": "*"}]}, "artifacts[0].data"),
        ({"outcome": "done", "follow_ups": [{"kind": "a"}, {"kind": "a", "delay": -1}]}, "follow_ups[1].delay"),
        ({"outcome": "done", "follow_ups": [{"payload": 1}]}, "follow_ups[0].kind"),
    ],
)
def test_a_bad_outcome_is_refused_by_field_and_settles_nothing(
    server: Server, body: dict[str, Any], field: str
) -> None:
    server.queue.enqueue("a", job_id="one")
    worker = server.client("work")
    claim = claim_one(worker)
    answer = worker.post("/v1/claims/one/settle", {**proof(claim), **body})

    assert (answer.status, answer.json["field"]) == (422, field), answer
    assert server.queue.get("one").state == "running"


def test_a_claim_that_is_not_acknowledged_is_released_without_using_an_attempt(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", max_attempts=1)
    worker = served.client("work")
    for epoch in (1, 2):
        assert claim_one(worker, ack_ms=5_000)["epoch"] == epoch
        assert worker.post("/v1/claims", {"worker": "other"}).json["claims"] == []
        served.clock.advance(5.1)
    claim = claim_one(worker, ack_ms=5_000)
    assert worker.post("/v1/claims/one/acknowledge", {**proof(claim), "lease": 60}).status == 200
    served.clock.advance(50)

    assert worker.post("/v1/claims/one/heartbeat", proof(claim)).status == 200
    job = served.queue.get("one")
    assert (job.state, job.attempt, job.suspect) == ("running", 1, 0)


def test_the_third_claim_in_a_row_without_acknowledgement_counts(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", max_attempts=1)
    worker = served.client("work")
    for _ in range(3):
        claim_one(worker, ack_ms=1_000)
        served.clock.advance(1.1)
    assert worker.post("/v1/claims", {"worker": "w"}).json["claims"] == []

    assert served.queue.get("one").state == "failed"


def test_every_call_of_a_worker_can_be_sent_again(served: Server) -> None:
    served.queue.enqueue("a", job_id="one")
    served.queue.enqueue("a", job_id="two")
    worker = served.client("work")
    claim = claim_one(worker, lease_token="t1")
    assert claim_one(worker, lease_token="t1") == claim
    other = worker.post("/v1/claims", {"worker": "curl-1", "lease_token": "t1", "kinds": ["z"]})
    assert (other.status, other.code) == (409, "conflict")

    for path, body in (
        ("acknowledge", {}),
        ("heartbeat", {}),
        ("progress", {"phase": "x"}),
        ("settle", {"outcome": "done", "result": 1, "follow_ups": [{"kind": "b"}]}),
    ):
        first, again = (worker.post(f"/v1/claims/one/{path}", {**proof(claim), **body}) for _ in range(2))
        assert (first.status, again.status) == (200, 200)
        assert again.json == first.json, path
    different = worker.post("/v1/claims/one/settle", {**proof(claim), "outcome": "done", "result": 2})
    assert (different.status, different.code) == (409, "lease_lost")
    assert served.queue.counts(by="kind") == {"a": 2, "b": 1}


def test_a_stale_lease_is_refused_and_changes_nothing(served: Server) -> None:
    served.queue.enqueue("a", job_id="one")
    worker = served.client("work")
    stale = claim_one(worker, ack_ms=1_000)
    served.clock.advance(1.1)
    claim_one(worker)
    before = served.queue.get("one")

    wrong = {**proof(stale), "epoch": stale["epoch"] + 1}
    for body in (proof(stale), wrong, {**proof(stale), "epoch": 99}):
        for path, more in (
            ("acknowledge", {}),
            ("heartbeat", {}),
            ("progress", {"phase": "x"}),
            ("settle", {"outcome": "done"}),
        ):
            answer = worker.post(f"/v1/claims/one/{path}", {**body, **more})
            assert (answer.status, answer.code, answer.json["job_id"]) == (409, "lease_lost", "one")
    assert served.queue.get("one") == before


def test_a_claim_settles_finished_jobs_in_the_same_commit(served: Server) -> None:
    for number in range(3):
        served.queue.enqueue("a", job_id=str(number))
    worker = served.client("work")
    first = claim_one(worker)
    settlements = [
        {"job_id": "0", **proof(first), "outcome": "done", "result": 1},
        {"job_id": "1", "epoch": 7, "lease_token": "x", "outcome": "released"},
        {"job_id": "missing", "epoch": 7, "lease_token": "x", "outcome": "released"},
    ]
    request = {"worker": "curl-1", "lease_token": "t2", "settlements": settlements}
    answer = worker.post("/v1/claims", request)
    again = worker.post("/v1/claims", request)

    assert [claim["job"]["id"] for claim in answer.json["claims"]] == ["1"]
    assert again.json["claims"] == answer.json["claims"]
    for sent in (answer, again):
        codes = [one.get("state") or one["error"]["code"] for one in sent.json["settlements"]]
        assert codes == ["done", "lease_lost", "job_not_found"]
    # An invalid outcome settles and claims nothing.
    bad = worker.post("/v1/claims", {**request, "settlements": [{**settlements[0], "outcome": "deferred"}]})
    assert bad.status == 422


# --- long polls ----------------------------------------------------------------------------------------------------


def test_a_waiting_claim_gets_a_job_as_soon_as_it_is_enqueued(served: Server) -> None:
    worker, producer = served.client("work"), served.client("produce")
    with ThreadPoolExecutor(1) as pool:
        # For longer than the client waits.
        waiting = pool.submit(worker.post, "/v1/claims", {"worker": "w", "wait": 60})
        producer.post("/v1/jobs", {"kind": "a", "job_id": "one"})
        answer: Answer = waiting.result()

    assert [claim["job"]["id"] for claim in answer.json["claims"]] == ["one"]
    assert worker.post("/v1/claims", {"worker": "w", "wait": 0.05}).json["claims"] == []


def test_a_claimer_that_has_gone_gets_no_job(served: Server) -> None:
    worker = served.client("work")
    connection = worker.open("POST", "/v1/claims", {"worker": "gone", "wait": 30})
    wait_until(lambda: claim_waits(served))
    connection.close()
    # The server notices it before a job arrives, or while it hands out the job, or the job is released by `ack_ms`.
    served.queue.enqueue("a", job_id="one", max_attempts=1)

    def is_claimed() -> bool:
        if worker.post("/v1/claims", {"worker": "here"}).json["claims"]:
            return True
        served.clock.advance(1)
        return False

    wait_until(is_claimed)
    [job] = served.queue.jobs(state="running")
    assert job.worker == "here"
    assert (job.attempt, job.suspect) == (1, 0)


def test_a_revoked_token_ends_its_long_poll(server: Server) -> None:
    worker = server.client("work")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/claims", {"worker": "w", "wait": 60})
        wait_until(lambda: claim_waits(server))
        server.queue.admin.tokens.revoke(str(worker.token).split("_")[1])
        answer = waiting.result()

    assert (answer.status, answer.code) == (401, "not_authenticated")


@pytest.mark.service_settings(shutdown_seconds=3_600)
def test_a_shutdown_ends_long_polls_at_once(server: Server) -> None:
    worker = server.client("work", "read")
    server.queue.enqueue("a", job_id="one", delay=600)
    with ThreadPoolExecutor(2) as pool:
        claiming = pool.submit(worker.post, "/v1/claims", {"worker": "w", "wait": 60})
        waiting = pool.submit(worker.get, "/v1/jobs/one?wait=60")
        wait_until(lambda: claim_waits(server) and "jobs_finished" in server.harness.faults.seen)
        server.stop()

        assert claiming.result().json["claims"] == []
        assert waiting.result().json["state"] == "scheduled"


class TestKeptClaims:
    """The claims that a server keeps for settlements; what they must not permit."""

    def claim(self, **options: Any) -> Claim:
        queue = holdfast.connect(":memory:")
        queue.enqueue("mail", **options)
        [claim] = queue.claim_many(limit=1)
        queue.close()
        return claim

    def test_a_kept_claim_is_returned_once_and_only_for_its_epoch_and_token(self) -> None:
        held, claim, grants = app.HeldClaims(), self.claim(), Grants(("work",))
        held.keep([claim])
        job_id, epoch, token = claim.job.id, claim.epoch, claim.lease_token
        assert held.take(job_id, epoch + 1, token, None, grants) is None
        assert held.take(job_id, epoch, "other", None, grants) is None
        assert held.take(job_id, epoch, token, None, grants) is claim
        assert held.take(job_id, epoch, token, None, grants) is None

    def test_a_kept_claim_of_another_tenant_lane_or_kind_is_not_found(self) -> None:
        held, claim = app.HeldClaims(), self.claim()
        held.keep([claim])
        proof = claim.job.id, claim.epoch, claim.lease_token
        assert held.take(*proof, "other", Grants(("work",), tenant="other")) is None
        assert held.take(*proof, None, Grants(("work",), lanes=("other",))) is None
        assert held.take(*proof, None, Grants(("work",), kinds=("other",))) is None
        assert held.take(*proof, "default", Grants(("work",), kinds=("mail",))) is claim

    def test_large_jobs_are_not_kept_and_the_number_of_others_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, grants = app.HeldClaims(), Grants(("work",))
        large = self.claim(payload="x" * 5_000)
        held.keep([large])
        assert held.take(large.job.id, large.epoch, large.lease_token, None, grants) is None
        monkeypatch.setattr(app, "_CLAIMS_KEPT_MAX", 1)
        first, second = self.claim(), self.claim()
        held.keep([first, second])
        assert held.take(first.job.id, first.epoch, first.lease_token, None, grants) is None
        assert held.take(second.job.id, second.epoch, second.lease_token, None, grants) is second
