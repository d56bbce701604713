"""How many messages calls that are no plain forms wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast import Artifact, Done, errors
from holdfast.client import queue_state
from holdfast.domain.artifacts import UploadRow
from holdfast.storage.contract import StoreTransaction
from tests.support.postgres_schemas import make_empty
from tests.support.postgres_server import Server
from tests.support.wire import Wire

_SCHEMA = "holdfast_faults"
_MANY = 1_000


@pytest.fixture
def queue(server: Server, wire: Wire) -> Iterator[holdfast.Queue]:
    make_empty(server.url, _SCHEMA)
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

    def claim() -> holdfast.Claim:
        [found] = queue.claim_many(limit=1, worker="gateway", exclusive=True, incarnation="1", affinity="large")
        claims.append(found)
        return found

    def settle() -> None:
        queue.settle(claims[-1], Done({}, artifacts=[Artifact("response", b"{}", "application/json")]))

    claims: list[holdfast.Claim] = []
    # Routes, routing and prepared statements are then known.
    enqueue("first")
    claim()
    settle()
    counted = [_round_trips(wire, call) for call in (lambda: enqueue("second"), claim, settle)]
    assert counted == [4, 7, 5]
    [response] = [one for one in queue.artifacts("second") if one.name == "response"]
    assert response.size == 2


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
