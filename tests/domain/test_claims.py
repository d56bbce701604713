"""Claims and settlements as values: read-only, comparable, and the same after pickling."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Claim, Done, Queue
from holdfast.domain.claims import fence_of, row_fence
from holdfast.domain.job import row_of


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with holdfast.connect(str(tmp_path / "jobs.db"), durability="relaxed") as queue:
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3)])
        yield queue


def test_a_claim_is_read_only_and_the_same_as_one_of_its_job(queue: Queue) -> None:
    # The first claim of an opened queue has no plain form.
    for claim in (*queue.claim_many(limit=1), *queue.claim_many(limit=2)):
        same = Claim(claim.job, claim.lease_ms)
        assert (same, hash(same), repr(same)) == (claim, hash(claim), repr(claim))
        assert fence_of(same) == fence_of(claim) == row_fence(row_of(claim.job))
        assert (claim.epoch, claim.lease_token) == (claim.job.epoch, row_of(claim.job).lease_token)
        for name in ("job", "lease_ms", "repeated", "epoch"):
            with pytest.raises(AttributeError):
                setattr(claim, name, None)


def test_claims_and_settlements_can_be_pickled(queue: Queue) -> None:
    claims = queue.claim_many(limit=3)
    settlements = queue.settle_many([(claim, Done(claim.job.payload)) for claim in claims])

    for before, after in zip(claims, pickle.loads(pickle.dumps(claims)), strict=True):
        assert (before, fence_of(before)) == (after, fence_of(after))
    read = pickle.loads(pickle.dumps(settlements))
    assert read == settlements
    assert [one.job.result for one in read] == [0, 1, 2]


def test_a_result_that_outcomes_share_is_that_of_each_job(queue: Queue) -> None:
    shared = {"ok": [1]}
    claims = queue.claim_many(limit=3)
    queue.settle_many([(claims[0], Done(shared)), (claims[1], Done({"ok": [True]})), (claims[2], Done(shared))])

    results = [queue.get(claim.job.id).result for claim in claims]
    assert repr(results) == repr([{"ok": [1]}, {"ok": [True]}, {"ok": [1]}])
