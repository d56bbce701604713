"""How many messages calls that are no plain forms wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast import Artifact, Done
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
