"""Bad arguments of every other call: each is refused by name before a statement is executed.

Refusals before the first statement are tested on one engine; values at the limits are stored by each engine.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import pytest

from holdfast import Artifact, Claim, Deferred, Done, Failed, InvalidInput, NewJob, Queue, Released
from tests.support.assertions import all_refused
from tests.support.claims import claim_one
from tests.support.stores import statements_of

MEBIBYTE = 1 << 20
NAIVE = datetime(2030, 1, 1)  # intentionally without a time zone
AWARE = datetime(2030, 1, 1, tzinfo=UTC)


def held(queue: Queue) -> Claim:
    queue.enqueue("held", job_id="held", events="all")
    return claim_one(queue)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_OUTCOMES: list[tuple[Any, str]] = [
    (None, "outcome"),
    ("done", "outcome"),
    (Done, "outcome"),
    ({"result": 1}, "outcome"),
    (Done(float("nan")), "result"),
    (Done({"a": "\0"}), "result.a"),
    (Done({1: 2}), "result"),
    (Done(nested(65)), "result"),
    (Done("x" * (MEBIBYTE - 1)), "result"),
    (Done(follow_ups=[NewJob("")]), "follow_ups[0].kind"),
    (Done(follow_ups=[NewJob("a"), NewJob("a", b"x")]), "follow_ups[1].payload"),
    (Done(follow_ups=[NewJob("a")] * 10_001), "follow_ups"),
    (Done(follow_ups=None), "follow_ups"),  # type: ignore[arg-type]
    (Failed(5), "message"),  # type: ignore[arg-type]
    (Failed("x", reason="Two Words"), "reason"),
    (Failed("x", reason="x" * 65), "reason"),
    (Failed("x", permanent="yes"), "permanent"),  # type: ignore[arg-type]
    (Failed("x", retry_after=-1), "retry_after"),
    (Failed("x", retry_after=float("inf")), "retry_after"),
    (Failed("x", backoff=2), "backoff"),  # type: ignore[arg-type]
    (Failed("x", traceback=5), "traceback"),  # type: ignore[arg-type]
    (Deferred(), "after"),
    (Deferred(after=1, until=AWARE), "after"),
    (Deferred(after=-1), "after"),
    (Deferred(until=NAIVE), "until"),
]
BAD_ARTIFACTS: dict[str, tuple[Any, str]] = {
    "parent": ([Artifact("../x", b"")], "artifacts[0].name"),
    "absolute": ([Artifact("/etc/passwd", b"")], "artifacts[0].name"),
    "folder": ([Artifact("a/b", b"")], "artifacts[0].name"),
    "backslash": ([Artifact("..\\x", b"")], "artifacts[0].name"),
    "drive": ([Artifact("C:\\x", b"")], "artifacts[0].name"),
    "dot": ([Artifact(".", b"")], "artifacts[0].name"),
    "dot-dot": ([Artifact("..", b"")], "artifacts[0].name"),
    "nul": ([Artifact("a\0.txt", b"")], "artifacts[0].name"),
    "newline": ([Artifact("a\r\nb", b"")], "artifacts[0].name"),
    "empty": ([Artifact("", b"")], "artifacts[0].name"),
    "too-long": ([Artifact("x" * 201, b"")], "artifacts[0].name"),
    "surrogate": ([Artifact("\ud800", b"")], "artifacts[0].name"),
    "twice": ([Artifact("a", b"1"), Artifact("a", b"2")], "artifacts[1].name"),
    "too-large": ([Artifact("a", bytes(16 * MEBIBYTE + 1))], "artifacts[0].data"),
    "text": ([Artifact("a", "text")], "artifacts[0].data"),  # type: ignore[arg-type]
    "bytearray": ([Artifact("a", bytearray(1))], "artifacts[0].data"),  # type: ignore[arg-type]
    "media-type": ([Artifact("a", b"", "text/html\nx")], "artifacts[0].media_type"),
    "too-many": ([Artifact(str(number), b"") for number in range(101)], "artifacts"),
    "no-artifact": ([b"x"], "artifacts[0]"),
    "none": (None, "artifacts"),
}


class TestAttempts:
    @pytest.mark.validation
    def test_a_bad_outcome_is_refused_and_the_job_still_runs(self, queue: Queue) -> None:
        claim = held(queue)
        all_refused(
            queue, ((outcome, field, partial(queue.settle, claim, outcome)) for outcome, field in BAD_OUTCOMES)
        )
        assert queue.settle(claim, Released()).state == "ready"

    @pytest.mark.validation
    def test_in_a_batch_the_call_is_refused_and_the_item_named(self, queue: Queue) -> None:
        claim = held(queue)
        queue.enqueue("other")
        other = claim_one(queue)
        all_refused(
            queue,
            (
                (outcome, f"settlements[1].{field}", partial(queue.settle_many, [(other, Done()), (claim, outcome)]))
                for outcome, field in BAD_OUTCOMES
            ),
        )

    @pytest.mark.validation
    def test_a_bad_artifact_is_refused_at_settle_and_at_attach(self, queue: Queue) -> None:
        claim = held(queue)
        for name, (artifacts, field) in BAD_ARTIFACTS.items():
            settle = partial(queue.settle, claim, Done(artifacts=artifacts))
            all_refused(queue, [(name, field, settle), (name, field, partial(queue.attach, claim, artifacts))])
        assert queue.artifacts("held") == []

    def test_the_largest_artifact_is_kept(self, queue: Queue) -> None:
        data = bytes(16 * MEBIBYTE)
        queue.settle(held(queue), Done(artifacts=[Artifact("big", data)]))
        assert queue.artifact("held", "big").data == data

    @pytest.mark.validation
    def test_an_argument_that_is_no_claim_is_refused(self, queue: Queue) -> None:
        held(queue)
        bad: list[Any] = [None, "held", 5, {"job": "held"}]
        for claim in bad:
            writes = (
                partial(queue.settle, claim, Done()),
                partial(queue.heartbeat, claim),
                partial(queue.progress, claim, percent=5),
                partial(queue.attach, claim, []),
            )
            all_refused(queue, (((claim, write), "claim", write) for write in writes))

    @pytest.mark.validation
    @pytest.mark.parametrize("pair", [None, 5, (), "ab"])
    def test_a_batch_without_pairs_is_refused(self, queue: Queue, pair: Any) -> None:
        before = list(statements_of(queue))
        with pytest.raises(InvalidInput):
            queue.settle_many([pair])
        assert statements_of(queue) == before

    @pytest.mark.validation
    def test_bad_progress_is_refused(self, queue: Queue) -> None:
        bad: list[tuple[dict[str, Any], str]] = [
            ({"percent": -1}, "percent"),
            ({"percent": 100.5}, "percent"),
            ({"percent": float("nan")}, "percent"),
            ({"percent": True}, "percent"),
            ({"phase": ""}, "phase"),
            ({"phase": "a\0"}, "phase"),
            ({"phase": "x" * 201}, "phase"),
        ]
        claim = held(queue)
        all_refused(queue, ((options, field, partial(queue.progress, claim, **options)) for options, field in bad))

    @pytest.mark.validation
    def test_a_bad_lease_is_refused(self, queue: Queue) -> None:
        claim = held(queue)
        bad: list[Any] = [0, -1, 0.009, 86_401, float("nan"), True, "30"]
        for lease in bad:
            heartbeat = partial(queue.heartbeat, claim, lease=lease)
            all_refused(queue, [(lease, "lease", heartbeat), (lease, "lease", partial(queue.claim, lease=lease))])


BAD_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": 1_001}, "limit"),
    ({"limit": True}, "limit"),
    ({"limit": 1.0}, "limit"),
    ({"lanes": "default"}, "lanes"),
    ({"lanes": [""]}, "lanes[0]"),
    ({"lanes": None}, "lanes"),
    ({"lanes": [str(number) for number in range(101)]}, "lanes"),
    ({"kinds": "work"}, "kinds"),
    ({"kinds": ["a", "\0"]}, "kinds[1]"),
    ({"kinds": 5}, "kinds"),
    ({"capabilities": "gpu"}, "capabilities"),
    ({"capabilities": [1]}, "capabilities[0]"),
    ({"tenant": ""}, "tenant"),
    ({"affinity": ""}, "affinity[0]"),
    ({"affinity": 5}, "affinity"),
    ({"hold_left": -1}, "hold_left"),
    ({"drain": "newest"}, "drain"),
    ({"drain": "listed"}, "drain"),
    ({"worker": ""}, "worker"),
    ({"worker": None}, "worker"),
    ({"incarnation": "a\n"}, "incarnation"),
    ({"exclusive": 1}, "exclusive"),
    ({"lease_token": ""}, "lease_token"),
    ({"lease_token": "x" * 201}, "lease_token"),
    ({"kind": "work"}, "kind"),
]


class TestClaims:
    @pytest.mark.validation
    def test_a_bad_option_is_refused_and_nothing_is_leased(self, queue: Queue) -> None:
        queue.enqueue("work")
        all_refused(queue, ((options, field, partial(queue.claim_many, **options)) for options, field in BAD_CLAIMS))


Call: TypeAlias = Callable[[Queue], object]
BAD_CALLS: dict[str, tuple[Call, str]] = {
    "get-empty": (lambda queue: queue.get(""), "job_id"),
    "get-none": (lambda queue: queue.get(None), "job_id"),  # type: ignore[arg-type]
    "get-nul": (lambda queue: queue.get("a\0"), "job_id"),
    "get-tenant": (lambda queue: queue.get("a", tenant=""), "tenant"),
    "wait-timeout": (lambda queue: queue.wait("a", timeout=-1), "timeout"),
    "wait-nan": (lambda queue: queue.wait("a", timeout=float("nan")), "timeout"),
    "jobs-state": (lambda queue: queue.jobs(state="lost"), "state"),  # type: ignore[arg-type]
    "jobs-limit": (lambda queue: queue.jobs(limit=0), "limit"),
    "jobs-page": (lambda queue: queue.jobs(limit=1_001), "limit"),
    "jobs-kind": (lambda queue: queue.jobs(kind=""), "kind"),
    "jobs-failure": (lambda queue: queue.jobs(failure_class="odd"), "failure_class"),  # type: ignore[arg-type]
    "jobs-cursor-type": (lambda queue: queue.jobs(after=5), "after"),  # type: ignore[arg-type]
    "events-limit": (lambda queue: queue.events(limit=True), "limit"),
    "events-cursor-nul": (lambda queue: queue.events(after="\0"), "after"),
    "counts-by": (lambda queue: queue.counts(by="color"), "by"),  # type: ignore[arg-type]
    "cancel-nothing": (lambda queue: queue.cancel(), "job_id"),  # type: ignore[call-overload]
    "cancel-both": (lambda queue: queue.cancel("a", root="a"), "root"),  # type: ignore[call-overload]
    "cancel-force": (lambda queue: queue.cancel("a", force=1), "force"),  # type: ignore[call-overload]
    "requeue-many": (lambda queue: queue.admin.requeue_many("a"), "job_ids"),
    "requeue-many-item": (lambda queue: queue.admin.requeue_many(["a", ""]), "job_ids[1]"),
    "requeue-failed": (lambda queue: queue.admin.requeue_failed(transient_only=1), "transient_only"),  # type: ignore[arg-type]
    "reprioritize": (lambda queue: queue.reprioritize("a", 1_001), "priority"),
    "retire": (lambda queue: queue.kinds.retire(""), "kind"),
    "restore": (lambda queue: queue.kinds.restore("\n"), "kind"),
    "prune": (lambda queue: queue.admin.prune(older_than=-1), "older_than"),
    "prune-states": (lambda queue: queue.admin.prune(older_than=1, states=["ready"]), "states[0]"),
    "prune-events": (lambda queue: queue.admin.prune(older_than=1, events_older_than=-1), "events_older_than"),
    "lane-name": (lambda queue: queue.lanes.set("", state="paused"), "lane"),
    "lane-state": (lambda queue: queue.lanes.set("a", state="closed"), "state"),  # type: ignore[arg-type]
    "lane-order": (lambda queue: queue.lanes.set("a", order="odd"), "order"),  # type: ignore[arg-type]
    "lane-events": (lambda queue: queue.lanes.set("a", events="none"), "events"),  # type: ignore[arg-type]
    "artifact-name": (lambda queue: queue.artifact("a", ""), "name"),
    "attempts-id": (lambda queue: queue.attempts("x" * 201), "job_id"),
}


class TestOtherCalls:
    @pytest.mark.validation
    def test_a_bad_argument_is_refused_by_name(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        all_refused(queue, ((name, field, partial(call, queue)) for name, (call, field) in BAD_CALLS.items()))
