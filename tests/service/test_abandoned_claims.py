"""Claims over HTTP whose caller was cancelled or interrupted before it had the answer: no lease remains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast.client.queue_state import state_of
from holdfast.remote.store import HttpStore
from tests.support.service import Server

SECONDS = 60.0


def connected(server: Server) -> holdfast.Queue:
    return holdfast.connect(f"http://127.0.0.1:{server.port}", token=server.client("admin").token)


def store_of(queue: holdfast.Queue | holdfast.AsyncQueue) -> HttpStore:
    store = state_of(queue).store
    assert isinstance(store, HttpStore)
    return store


def strike_at(client: Any, ending: str, act: Callable[[], object]) -> None:
    """Call *act* once the response of the first request to a path with this end has arrived."""
    left = [ending]

    def arrived(response: httpx2.Response) -> None:
        if left and response.request.url.path.endswith(left[0]):
            left.clear()
            act()

    async def arrived_async(response: httpx2.Response) -> None:
        arrived(response)
        await asyncio.sleep(0)

    client.event_hooks = {"response": [arrived if isinstance(client, httpx2.Client) else arrived_async]}


def interrupt() -> None:
    raise KeyboardInterrupt


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("/heartbeats", lambda queue: queue.claim(lease=600)),
    ("/heartbeats", lambda queue: queue.claim_many(lease=600, wait=30)),
    ("/heartbeats", lambda queue: queue.settle_and_claim([], lease=600)),
    ("/heartbeat", lambda queue: queue.sessions.claim("s", lease=600)),
    ("/heartbeat", lambda queue: queue.sessions.claim_next(lease=600)),
    ("/open", lambda queue: queue.sessions.open("s", worker="w", lease=600)),
]


def assert_free(queue: holdfast.Queue) -> None:
    """Check that no job is running or has used an attempt, and that the session has no owner."""
    assert {(job.state, job.attempt) for job in queue.jobs().jobs} == {("ready", 0)}
    queue.sessions.close(queue.sessions.open("s", worker="other"))


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_a_cancelled_call_leaves_no_lease(served: Server, path: str, call: Callable[[Any], Awaitable[Any]]) -> None:
    token = served.client("admin").token

    async def main() -> None:
        async with holdfast.connect_async(f"http://127.0.0.1:{served.port}", token=token) as queue:
            client = store_of(queue)._async_http()._client
            task = asyncio.ensure_future(call(queue))
            strike_at(client, path, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, SECONDS)

    with connected(served) as queue:
        queue.enqueue("work")
        queue.enqueue("say", session="s")
        asyncio.run(main())
        assert_free(queue)


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_an_interrupted_call_leaves_no_lease(served: Server, path: str, call: Callable[[Any], Any]) -> None:
    with connected(served) as queue:
        queue.enqueue("work")
        queue.enqueue("say", session="s")
        strike_at(store_of(queue)._http()._client, path, interrupt)
        with pytest.raises(KeyboardInterrupt):
            call(queue)
        assert_free(queue)


def test_a_turn_of_an_owner_is_released_too(served: Server) -> None:
    with connected(served) as queue:
        queue.enqueue("say", session="s")
        lease = queue.sessions.open("s", worker="w", lease=600)
        strike_at(store_of(queue)._http()._client, "/turns", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.sessions.claim("s", worker="w", session_lease=lease)
        turn = queue.sessions.claim("s", worker="w", session_lease=lease)
        assert turn is not None
        assert turn.entries[0].attempt == 1


def test_claims_under_a_token_that_the_caller_chose_stay_with_an_earlier_call(served: Server) -> None:
    with connected(served) as queue:
        queue.enqueue("work")
        lease = queue.sessions.open("s", worker="w", lease_token="l")
        client = store_of(queue)._http()._client
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("/heartbeats", lambda: queue.claim(worker="w", lease_token="t")),
            ("/open", lambda: queue.sessions.open("s", worker="w", lease_token="l")),
        ]
        for path, call in calls:
            strike_at(client, path, interrupt)
            with pytest.raises(KeyboardInterrupt):
                call()
        claim = queue.claim(worker="w", lease_token="t")
        assert claim is not None
        assert claim.epoch == 1
        assert queue.sessions.renew(lease).generation == lease.generation
