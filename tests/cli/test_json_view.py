from __future__ import annotations

from dataclasses import fields

from holdfast import json_view
from holdfast.domain.job import JobRow
from tests.cli.conftest import Cli

# Internal fields: secrets, digests, order positions, and the lease clock, which is not wall time.
INTERNAL = {
    "seq",
    "claim_index",
    "fair_key",
    "lease_token",
    "settle_digest",
    "unacknowledged",
    "digest",
    "predecessor",
    "deferred_since_ms",
    "event_count",
    "session_number",
}
# Stored and shown under different names.
RENAMED = {"dedupe_kind", "record_all", "enqueue_seq"}


def test_every_field_of_a_job_is_shown_or_listed_as_internal(cli: Cli) -> None:
    shown = set(json_view.job(cli.queue.enqueue("a").job))

    stored = {field.removesuffix("_json") for field in JobRow._fields}
    failures = {field for field in stored if field.startswith("failure_")}
    assert stored - INTERNAL - RENAMED - failures <= shown
    assert not shown & INTERNAL


def test_timestamps_are_milliseconds_and_bodies_are_decoded(cli: Cli) -> None:
    job = cli.queue.enqueue("a", {"n": 2**70}, headers={"h": "1"}, tags={"t": "2"}, delay=60).job
    shown = json_view.job(job)

    assert shown["due_at_ms"] - shown["enqueued_at_ms"] == 60_000
    assert (shown["payload"], shown["headers"], shown["tags"]) == ({"n": 2**70}, {"h": "1"}, {"t": "2"})
    assert shown["backoff"] == {"base_ms": 60_000, "factor": 2.0, "cap_ms": 3_600_000, "jitter": 0.2}


def test_the_session_entry_of_a_job_is_shown(cli: Cli) -> None:
    job = cli.queue.enqueue("a", session="chat-42", join=True, message_id="m1", messages=[1, 2]).job

    assert json_view.job(job)["entry"] == {
        "session": "chat-42",
        "entry_type": "message",
        "delivery": "checkpoint",
        "join": True,
        "message_id": "m1",
        "messages": 2,
        "enqueue_seq": 1,
    }
    assert json_view.job(cli.queue.enqueue("a").job)["entry"] is None


def test_every_field_of_an_attempt_is_shown(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.claim(worker="w1")
    [attempt] = cli.queue.attempts("one")

    shown = set(json_view.attempt(attempt))

    assert {field.name for field in fields(attempt)} == {name.removesuffix("_ms") for name in shown}
    assert json_view.attempt(attempt)["outcome"] is None


def test_every_field_of_an_event_is_shown(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.cancel("one")
    [event] = cli.queue.events()

    assert {name.removesuffix("_ms") for name in json_view.event(event)} == {field.name for field in fields(event)}


def test_large_numbers_survive_the_command_line(cli: Cli) -> None:
    assert cli.json("enqueue", "a", str(2**70))["job"]["payload"] == 2**70
