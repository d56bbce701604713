"""`holdfast.connect("http://…")`: errors, retries, secrets, and workers that survive the death of their server."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Done, Worker
from holdfast.cli.root import root
from holdfast.client.queue_state import state_of
from holdfast.domain.access import Role
from holdfast.domain.backoff import RetryPolicy
from holdfast.errors import (
    Forbidden,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    Misconfigured,
    NotAuthenticated,
    OutcomeUnknown,
    StoreUnreachable,
    UnknownKind,
    WaitTimeout,
)
from holdfast.remote import connection
from holdfast.remote.errors import error_of
from holdfast.storage.runners import run_sync
from tests.support.serve_process import serving
from tests.support.service import Server, wait_until

SECRET = "hf_mvxgk3tdmfxgg2lb_" + "s" * 43


def connected(server: Server, *roles: Role, **options: object) -> holdfast.Queue:
    client = server.client(*(roles or ("admin",)), **options)  # type: ignore[arg-type]
    return holdfast.connect(f"http://127.0.0.1:{server.port}", token=client.token)


# --- errors and secrets --------------------------------------------------------------------------------------------


def test_problems_are_the_errors_of_the_library(served: Server) -> None:
    with connected(served) as queue:
        with pytest.raises(JobNotFound) as missing:
            queue.get("a/b?c")
        assert (missing.value.job_id, str(missing.value)) == ("a/b?c", "no job 'a/b?c'")
        with pytest.raises(UnknownKind):
            queue.kinds.get("nothing")
        queue.enqueue("a", job_id="one")
        with pytest.raises(holdfast.errors.Conflict) as other:
            queue.enqueue("b", job_id="one")
        assert other.value.job_id == "one"
        claim = queue.claim()
        assert claim is not None
        queue.cancel("one", force=True)
        with pytest.raises(LeaseLost) as lost:
            queue.heartbeat(claim)
        assert (lost.value.job_id, lost.value.epoch) == ("one", 1)
        with pytest.raises(WaitTimeout):
            queue.wait(queue.enqueue("a").id, timeout=0.1)
    with connected(served, payload_bytes_max=10) as queue, pytest.raises(Forbidden) as ceiling:
        queue.enqueue("a", "x" * 20)
    assert (ceiling.value.field, ceiling.value.limit) == ("payload", 10)
    document = {"code": "invalid_input", "status": 422, "detail": "is too large", "field": "payload", "limit": 5}
    refused = error_of(document)
    assert isinstance(refused, InvalidInput)
    assert (refused.field, refused.limit) == ("payload", 5)


@pytest.mark.parametrize("name", [".", "..", "a/..", "%2e"])
def test_names_that_look_like_steps_of_a_path_are_names(served: Server, name: str) -> None:
    with connected(served) as queue:
        queue.enqueue("a", job_id=name)
        queue.enqueue("b", session=name)
        assert queue.get(name).kind == "a"
        assert queue.cancel(name).state == "cancelled"
        assert queue.requeue(name).state == "ready"
        turn = queue.sessions.claim(name)
        assert turn is not None
        queue.sessions.heartbeat(turn)
        queue.sessions.settle(turn, Done())
        assert queue.sessions.get(name).session == name
        claim = queue.claim(kinds=["a"])
        assert claim is not None
        assert queue.progress(claim, percent=5).id == name


def test_a_token_limits_the_client_and_is_never_shown(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with connected(server, "produce", tenant="acme", priority_max=5) as queue:
        token = str(state_of(queue).store.address())
        assert queue.enqueue("a").job.tenant == "acme"
        with pytest.raises(Forbidden) as refused:
            queue.enqueue("a", priority=9)
        assert (refused.value.field, refused.value.limit) == ("priority", 5)
        with pytest.raises(Forbidden) as other:
            queue.claim()
        shown = [
            repr(queue),
            repr(state_of(queue).store),
            state_of(queue).store.description(),
            str(other.value),
            caplog.text,
        ]
        assert not any("hf_" in text for text in shown), token
    url = f"http://127.0.0.1:{server.port}"
    for wrong in (None, SECRET):
        with holdfast.connect(url, token=wrong) as queue, pytest.raises(NotAuthenticated) as unknown:
            queue.get("x")
        assert "hf_mv" not in str(unknown.value)
    with pytest.raises(InvalidInput, match="token") as invalid:
        holdfast.connect(url, token="hf_\nx")
    assert "hf_\n" not in str(invalid.value)


def test_the_command_line_works_over_http(server: Server) -> None:
    token = server.client("admin").token
    environment = {"HOLDFAST_URL": f"http://127.0.0.1:{server.port}", "HOLDFAST_TOKEN": str(token)}
    runner = CliRunner(env=environment)

    assert "enqueued" in runner.invoke(root, ["enqueue", "mail", '{"to": "ada"}']).stdout
    listed = runner.invoke(root, ["jobs", "list", "--json"])
    assert json.loads(listed.stdout)["jobs"][0]["payload"] == {"to": "ada"}
    created = runner.invoke(root, ["token", "create", "ci", "--role", "read"])
    assert (created.exit_code, created.stdout[:3]) == (0, "hf_"), created.stderr
    assert " ci " in runner.invoke(root, ["token", "list"]).stdout
    added = runner.invoke(root, ["webhooks", "add", "https://example.org/", "--json"])
    webhook = json.loads(added.stdout)
    assert webhook["secret"].startswith("whsec_")
    for action in ("test", "rotate", "enable", "replay", "show", "remove"):
        managed = runner.invoke(root, ["webhooks", action, webhook["id"]])
        assert managed.exit_code == 0, (action, managed.stderr)
    assert "no webhook" in runner.invoke(root, ["webhooks", "show", webhook["id"]]).stderr
    for command in (["doctor"], ["migrate"], ["serve"]):
        refused = runner.invoke(root, command)
        assert (refused.exit_code, "needs the store itself" in refused.stderr) == (2, True)
    without = CliRunner(env={**environment, "HOLDFAST_TOKEN": None}).invoke(root, ["stats"])
    assert "set HOLDFAST_TOKEN" in without.stderr


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("http://", {}, "url"),
        ("http://user:password@host", {}, "url"),
        ("https://host/?x=1", {}, "url"),
        ("http://host:x", {}, "url"),
        ("http://host", {"schema": "other"}, "schema"),
        ("http://host", {"durability": "relaxed"}, "durability"),
        ("http://host", {"codec": object()}, "codec"),
        ("http://host", {"migrate": False}, "migrate"),
        ("jobs.db", {"token": "hf_x"}, "token"),
    ],
)
def test_a_wrong_url_or_option_is_named(url: str, options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        holdfast.connect(url, **options)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert "password@" not in str(refused.value)


def test_what_needs_the_store_itself_says_so(server: Server) -> None:
    with connected(server) as queue:
        for call in (
            lambda: queue.transaction().__enter__(),
            lambda: queue.within(None),
            queue.migrate,
            queue.admin.report,
        ):
            with pytest.raises(Misconfigured, match="not available over HTTP"):
                call()


# --- retries -------------------------------------------------------------------------------------------------------


@contextmanager
def cutting(requests: list[bytes]) -> Iterator[str]:
    """Serve a port that reads each request and closes the connection without an answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                requests.append(accepted.recv(65_536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_tag_whose_key_cannot_be_sent_is_refused(server: Server) -> None:
    with connected(server) as queue, pytest.raises(InvalidInput, match="'='") as refused:
        queue.jobs(tags={"a=b": "c"})
    assert refused.value.field == "tags"


def test_a_lost_answer_is_asked_for_again_only_if_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRIES", RetryPolicy(first=0.001, last=0.001, calls=3))
    calls: list[tuple[Callable[[holdfast.Queue], object], int]] = [
        (lambda queue: queue.enqueue("a"), 3),
        (lambda queue: queue.claim(), 3),
        (lambda queue: queue.requeue("x"), 1),
        (lambda queue: queue.admin.requeue_many(["x"]), 1),
    ]
    for call, sent in calls:
        requests: list[bytes] = []
        with cutting(requests) as url, holdfast.connect(url) as queue:
            with pytest.raises(OutcomeUnknown):
                call(queue)
            assert len(requests) == sent
            # The body may follow in a packet of its own.
            assert len({request.partition(b"\r\n\r\n")[2] for request in requests} - {b""}) <= 1
    requests = []
    with cutting(requests) as url, holdfast.connect(url) as queue:
        with pytest.raises(StoreUnreachable):
            queue.get("x")
        assert len(requests) == 3


class Outage(connection.Http):
    """A server that ends the first request after some time, and then refuses connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, error: httpx2.RequestError) -> None:
        super().__init__(httpx2.URL("http://server"))
        self.now = 0.0
        self.requests: list[float] = []
        self._seconds, self._error = seconds, error
        monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def _exchange(self, request: connection.Request) -> connection.Response:
        self.requests.append(request.wait)
        if len(self.requests) > 1:
            raise httpx2.ConnectError("refused")
        self.now += self._seconds
        raise self._error

    async def _pause(self, seconds: float) -> None:
        self.now += seconds

    async def _undo(self, work: object) -> None:
        raise AssertionError


def test_a_call_is_sent_again_for_five_seconds_as_long_as_a_server_takes_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    http = Outage(monkeypatch, 0.0, httpx2.ReadError("reset"))
    with pytest.raises(StoreUnreachable):
        run_sync(http.get("/v1/jobs/a"))
    assert 5 < http.now < 7


def test_a_call_that_waits_is_sent_again_for_the_rest_of_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Outage(monkeypatch, 20.0, httpx2.ReadError("reset"))
    with pytest.raises(OutcomeUnknown):
        run_sync(http.post("/v1/claims", {"wait": 30.0}, wait=30.0))
    assert 25 < http.now < 27
    assert http.requests[0] == 30
    assert 8 < http.requests[1] < 10


def test_a_call_that_waits_in_vain_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Outage(monkeypatch, 50.0, httpx2.ReadTimeout("no answer"))
    with pytest.raises(StoreUnreachable):
        run_sync(http.get("/v1/jobs/a", wait=30.0))
    assert len(http.requests) == 1


def test_a_server_that_does_not_listen_is_unreachable_and_one_that_starts_in_time_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connected(server)
    server.stop()
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 0.1)
    with pytest.raises(StoreUnreachable):
        queue.requeue("x")
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 60.0)
    starting = threading.Timer(0.2, server.start)
    starting.start()
    enqueued = queue.enqueue("a")
    starting.join()
    assert (enqueued.created, queue.get(enqueued.id).state) == (True, "ready")
    queue.close()


def test_an_enqueue_whose_answer_was_lost_is_stored_once_and_created(server: Server) -> None:
    with connected(server) as queue:
        first = queue.enqueue("a", job_id="chosen")
        assert (first.created, queue.enqueue("a", job_id="chosen").created) == (True, False)


# --- waiting -------------------------------------------------------------------------------------------------------


def test_the_server_waits_for_jobs_results_and_output(server: Server) -> None:
    with connected(server) as queue, connected(server) as worker:
        claims: list[holdfast.Claim | None] = []
        waiting = threading.Thread(target=lambda: claims.append(worker.claim(wait=20)))
        waiting.start()
        enqueued = queue.enqueue("a")
        waiting.join()
        [claim] = claims
        assert claim is not None
        worker.emit(claim, "hello")
        chunks = queue.stream(enqueued.id, timeout=20)
        assert next(chunks).text == "hello"
        settling = threading.Timer(0.2, lambda: worker.settle(claim, Done({"ok": True})))
        settling.start()
        assert enqueued.result(timeout=20) == {"ok": True}
        assert list(chunks) == []
        settling.join()


def test_a_cancelled_claim_leaves_its_job_to_others(server: Server) -> None:
    async def scenario() -> None:
        token = server.client("admin").token
        async with holdfast.connect_async(f"http://127.0.0.1:{server.port}", token=token) as queue:
            claiming = asyncio.create_task(queue.claim(wait=30))
            await asyncio.sleep(0.3)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await queue.enqueue("a")
            claim = await queue.claim(wait=20)
            assert claim is not None
            assert claim.job.attempt == 1

    asyncio.run(scenario())


# --- workers -------------------------------------------------------------------------------------------------------


def test_a_worker_runs_tasks_registers_and_publishes_them(server: Server) -> None:
    with connected(server) as queue:

        @queue.task("add")
        def add(left: int, right: int) -> int:
            return left + right

        @queue.task("greet")
        async def greet(context: holdfast.Context, name: str) -> str:
            context.emit("hello ")
            await asyncio.sleep(0)
            return name

        with Worker(queue, worker="remote").running():
            enqueued = add.enqueue(1, 2)
            assert enqueued.result(timeout=20) == 3
            greeted = greet.enqueue("Ada")
            assert greeted.result(timeout=20) == "Ada"
            assert [chunk.text for chunk in queue.output(greeted.id)] == ["hello "]
            wait_until(lambda: [one.worker for one in server.queue.admin.workers()] == ["remote"])
            wait_until(lambda: server.queue.kinds.get("add").published_by == "remote")
        assert server.queue.admin.workers() == []


@pytest.mark.slow("it starts, kills and restarts processes")
def test_a_worker_survives_the_death_of_its_server_and_loses_and_repeats_no_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    count = 60
    runs: dict[int, int] = {}
    with serving(path, "--tokens", "off") as first:
        queue = holdfast.connect(f"http://127.0.0.1:{first.port}")

        @queue.task("count")
        async def run(number: int) -> int:
            runs[number] = runs.get(number, 0) + 1
            await asyncio.sleep(0.02)
            return number

        run_jobs = [run.new(number) for number in range(count)]
        enqueued = queue.enqueue_many(run_jobs)
        with Worker(queue, concurrency=4, lease=60).running():
            wait_until(lambda: len(runs) > 10)
            first.end(signal.SIGKILL)
            with serving(path, "--tokens", "off", "--port", str(first.port)):
                for one in enqueued:
                    assert one.result(timeout=120) == int(one.job.payload["number"])
        queue.close()
    with holdfast.connect(path) as local:
        jobs = [local.get(one.id) for one in enqueued]
        assert {job.state for job in jobs} == {"done"}
        outcomes = [[attempt.outcome for attempt in local.attempts(job.id)] for job in jobs]
        assert all(listed.count("done") == 1 for listed in outcomes), outcomes
        # None ran twice: the worker held its leases over the restart.
        assert set(runs.values()) == {1}
