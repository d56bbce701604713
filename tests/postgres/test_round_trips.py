"""How many messages calls that are no plain forms wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Artifact, Done, errors
from holdfast.client import queue_state
from holdfast.client.connect import queue_on
from holdfast.domain.artifacts import UploadRow
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.postgres.store import PostgresStore
from tests.support import postgres_schemas
from tests.support.clock import ManualClock
from tests.support.postgres_server import Server, database_url
from tests.support.wire import Wire

_SCHEMA = "holdfast_faults"
_MANY = 1_000


@pytest.fixture
def queue(server: Server, wire: Wire) -> Iterator[holdfast.Queue]:
    postgres_schemas.make_empty(server.url, _SCHEMA)
    with holdfast.connect(wire.url, schema=_SCHEMA) as made:
        yield made
    wire.calm()


def _round_trips(wire: Wire, call: Callable[[], object]) -> int:
    counted = wire.at(lambda: None, nth=_MANY)
    call()
    return _MANY - counted.countdown


def test_a_request_with_artifacts_and_an_exclusive_worker_takes_few_round_trips(
    queue: holdfast.Queue, wire: Wire
) -> None:
    def enqueue(job_id: str) -> None:
        content = [Artifact("request", b"{}", "application/json")]
        queue.enqueue("model", {}, job_id=job_id, affinity="large", tags={"model": "large"}, artifacts=content)

    def claim() -> None:
        claims.extend(queue.claim_many(limit=1, **worker))

    def settle() -> None:
        queue.settle(claims[-1], answered)

    def settle_and_claim() -> None:
        queue.settle_and_claim([(claims[-1], answered)], limit=1, **worker)

    claims: list[holdfast.Claim] = []
    worker: Any = {"worker": "gateway", "exclusive": True, "incarnation": "1", "affinity": "large"}
    answered = Done({}, artifacts=[Artifact("response", b"{}", "application/json")])
    # Routes, routing and prepared statements are then known.
    enqueue("first")
    claim()
    settle_and_claim()
    calls = (lambda: enqueue("second"), claim, settle, lambda: enqueue("third"), claim, settle_and_claim)
    assert [_round_trips(wire, call) for call in calls] == [3, 4, 3, 3, 4, 4]
    assert [claim.job.id for claim in claims] == ["first", "second", "third"]
    assert queue.get("third").state == "done"
    [response] = [one for one in queue.artifacts("second") if one.name == "response"]
    assert response.size == 2


def test_rows_read_ahead_are_read_again_once_the_claim_itself_has_made_jobs_ready() -> None:
    clock = ManualClock()
    worker: Any = {"worker": "gateway", "exclusive": True, "incarnation": "1", "affinity": "large"}
    with (
        postgres_schemas.migrated_schema() as schema,
        queue_on(PostgresStore(database_url(), schema=schema, clock=clock)) as queue,
    ):
        queue.enqueue("model", job_id="later", affinity="large", delay=10)
        assert queue.claim_many(limit=1, **worker) == []
        queue.enqueue("model", job_id="lower", affinity="large", priority=-1)
        clock.advance(11)
        claims = queue.claim_many(limit=1, **worker)
    # Before its maintenance, the claim has read that only the other job is ready.
    assert [claim.job.id for claim in claims] == ["later"]


@pytest.mark.slow("twenty runs of a transaction, with pauses")
def test_a_write_that_changes_other_rows_than_expected_is_not_committed(queue: holdfast.Queue) -> None:
    upload = UploadRow("kept", "default", 0, 0, None, None)

    async def change_a_missing_one(tx: StoreTransaction) -> None:
        # Begins: what follows waits for the commit.
        await tx.now()
        await tx.insert_upload(upload)
        await tx.update_upload(upload._replace(id="missing"))

    async def read(tx: StoreTransaction) -> dict[str, UploadRow]:
        return await tx.uploads(["kept"])

    store = queue_state.state_of(queue).store
    with pytest.raises(errors.StoreBusy, match="upload_write changed 0 of 1 rows"):
        store.write(change_a_missing_one)
    assert store.read(read) == {}
