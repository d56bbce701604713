"""Tokens of the HTTP service and the audit log, as the store keeps them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Conflict, Queue
from holdfast.client.queue_state import state_of
from holdfast.domain.access import StoredToken, is_genuine, parse_token
from holdfast.errors import TokenNotFound
from holdfast.operations import access
from holdfast.storage.runners import SyncRunner
from tests.support.clock import ManualClock


def stored(queue: Queue, token_id: str) -> StoredToken:
    found, _ = SyncRunner(state_of(queue).store).read(access.stored_tokens, [token_id, "missing"])
    return found[token_id]


def test_a_token_is_stored_with_its_grants_and_without_its_secret(queue: Queue, clock: ManualClock) -> None:
    created = queue.admin.tokens.create(
        "billing", roles=("produce", "read"), tenant="acme", lanes=["mail"], claim_max=3, expires_in=60
    )

    parsed = parse_token(created.text)
    assert parsed is not None
    assert (parsed[0], is_genuine(stored(queue, created.token.id), parsed[1])) == (created.token.id, True)
    assert queue.admin.tokens.list() == [created.token]
    assert parsed[1] not in repr(stored(queue, created.token.id)) + repr(created)
    assert created.token.expires_at == created.token.created_at + timedelta(seconds=60)


def test_a_rotated_token_expires_after_the_overlap_and_the_new_one_has_its_grants(
    queue: Queue, clock: ManualClock
) -> None:
    old = queue.admin.tokens.create("worker", roles=("work",), kinds=["resize"], expires_in=3_600).token
    clock.advance(100)
    new = queue.admin.tokens.rotate(old.id, overlap=30).token

    assert (new.grants, new.name) == (old.grants, "worker")
    assert new.expires_at == new.created_at + timedelta(hours=1)
    assert stored(queue, old.id).token.expires_at == new.created_at + timedelta(seconds=30)
    clock.advance(31)
    with pytest.raises(Conflict, match="is expired"):
        queue.admin.tokens.rotate(old.id)


def test_an_overlap_never_extends_a_token(queue: Queue) -> None:
    old = queue.admin.tokens.create("worker", roles=("work",), expires_in=10).token
    new = queue.admin.tokens.rotate(old.id, overlap=1_000).token

    assert {one.id: one.expires_at for one in queue.admin.tokens.list()} == {
        old.id: old.expires_at,
        new.id: new.expires_at,
    }


def test_grants_and_ceilings_are_returned_as_they_were_given(queue: Queue) -> None:
    created = queue.admin.tokens.create(
        "billing",
        roles=("produce", "read"),
        tenant="acme",
        lanes=["mail"],
        kinds=["a", "b"],
        priority_max=3,
        payload_bytes_max=10,
        claim_max=1,
        expires_in=60,
    )

    assert queue.admin.tokens.list() == [created.token]
    assert (created.token.grants.lanes, created.token.grants.kinds) == (("mail",), ("a", "b"))
    assert (created.token.grants.priority_max, created.token.grants.tenant) == (3, "acme")
    assert created.text.startswith(f"hf_{created.token.id}_")


def test_a_revoked_token_stays_revoked_since_the_first_time(queue: Queue, clock: ManualClock) -> None:
    token = queue.admin.tokens.create("worker", roles=("work",)).token
    first = queue.admin.tokens.revoke(token.id)
    clock.advance(10)

    assert first.revoked_at is not None
    assert queue.admin.tokens.revoke(token.id) == first
    with pytest.raises(Conflict, match="is revoked"):
        queue.admin.tokens.rotate(token.id)


def test_an_unknown_token_is_not_found(queue: Queue) -> None:
    with pytest.raises(TokenNotFound):
        queue.admin.tokens.revoke("missing")
    with pytest.raises(TokenNotFound):
        queue.admin.tokens.rotate("missing")
    assert queue.admin.audit_log() == []


def test_the_use_of_a_token_is_stored_once_a_minute(queue: Queue, clock: ManualClock) -> None:
    token = queue.admin.tokens.create("worker", roles=("work",)).token
    runner = SyncRunner(state_of(queue).store)
    times = []
    for _ in range(4):
        runner.write(access.touch_token, token.id)
        times.append(stored(queue, token.id).token.last_used_at)
        clock.advance(25)

    assert times == [token.created_at] * 3 + [token.created_at + timedelta(seconds=75)]


def test_changes_of_tokens_are_recorded_with_the_actor(queue: Queue) -> None:
    created = queue.admin.tokens.create("billing", roles=("produce",), actor="ada@host")
    queue.admin.tokens.revoke(created.token.id, actor="bob@host")

    assert [one.actor for one in queue.admin.audit_log()] == ["bob@host", "ada@host"]


def test_changes_of_tokens_are_recorded_without_the_secret(queue: Queue) -> None:
    created = queue.admin.tokens.create("billing", roles=("produce",), tenant="acme")
    rotated = queue.admin.tokens.rotate(created.token.id)
    queue.admin.tokens.revoke(rotated.token.id)

    log = queue.admin.audit_log()
    assert [(one.action, one.target) for one in log] == [
        ("token.revoke", rotated.token.id),
        ("token.rotate", created.token.id),
        ("token.create", created.token.id),
    ]
    assert log[2].detail == {"name": "billing", "roles": ["produce"], "tenant": "acme"}
    assert created.text.split("_", 2)[2] not in repr(log)


def test_the_audit_log_is_read_in_pages_newest_first(queue: Queue) -> None:
    for number in range(5):
        queue.admin.record_action("lanes.set", f"lane-{number}", actor="ada@host", detail={"state": "paused"})

    first = queue.admin.audit_log(limit=3)
    rest = queue.admin.audit_log(limit=3, before=first[-1].number)
    assert [one.target for one in (*first, *rest)] == [f"lane-{number}" for number in (4, 3, 2, 1, 0)]
