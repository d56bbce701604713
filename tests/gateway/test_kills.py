"""A gateway that is killed before each statement: nothing is generated before it is stored, nor sent before that."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import holdfast
from tests.support import postgres_schemas
from tests.support.forked_python import ForkedPython
from tests.support.gateway import OpenAnswer, body_of, running_gateway
from tests.support.model_server import ModelServer
from tests.support.postgres_server import database_url
from tests.support.service import TIMEOUT, Client

BODY = body_of("/v1/completions")
ENQUEUE = (
    *("enqueue_header", "jobs_matching", "job_insert", "tags_insert", "upload_insert", "upload_chunk_insert"),
    *("artifact_write", "enqueue_header>commit"),
)
"""The statements of the transaction that stores a request, before each of which the process is killed."""
CLAIM = ("fair_key_write", "fair_key_write>commit", "fair_key_write>commit>committed")
"""The statements of the claim, which is in the same transaction if the worker is idle when the request arrives."""
LATER = (
    "enqueue_header>commit>committed",
    *("jobs_current", "jobs_current>artifact_write", "job_done", "job_done>commit"),
)
"""The statements up to the one that stores the answer."""
LAST = ("job_done>commit>committed", "ended")
"""The moment between the settlement and the answer to the caller."""
POSTGRES = (
    *("enqueue_header", "jobs_matching", "job_insert", "artifact_write", "enqueue_header>commit"),
    *("fair_key_write", "attempt", "jobs_current", "jobs_current>artifact_write", "job_done", "job_done>commit"),
    "ended",
)
"""On several connections, the next commit may be that of another transaction. That a transaction has committed is
known where the attempt begins, and where its end is reported."""


@pytest.mark.slow("a gateway is started and killed")
@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        *(("sqlite", stage) for stage in (*ENQUEUE, *CLAIM, *LATER, *LAST)),
        *(("postgres", stage) for stage in POSTGRES),
    ],
)
def test_a_request_is_stored_before_it_is_sent_and_its_answer_before_it_is_returned(
    engine: str, stage: str, file: Path, upstream: ModelServer
) -> None:
    upstream_url = f"http://127.0.0.1:{upstream.port}"
    schemas = postgres_schemas.migrated_schema() if engine == "postgres" else nullcontext("holdfast")
    with schemas as schema:
        url = database_url() if engine == "postgres" else str(file)
        command = [sys.executable, "-m", "tests.support.gateway_process", url, schema, upstream_url, stage]
        with ForkedPython(command, stdout=-1) as process:
            assert process.stdout is not None
            answer = OpenAnswer(Client(int(process.stdout.readline()), None), "/v1/completions", BODY)
            assert process.wait(TIMEOUT) == -9
            assert answer.cut_off
            answer.leave()
        with holdfast.connect(url, schema=schema) as queue:
            jobs = list(queue.jobs())
            stored = [queue.artifact(job.id, "request").data for job in jobs]
            responses = [queue.artifact(job.id, "response").data for job in jobs if job.state == "done"]
        heard = len(upstream.generations)
        with running_gateway(url, upstream_url, schema=schema) as second:
            retried = second.generate("/v1/completions", headers={"x-stainless-retry-count": "1"})

    expected = Client(upstream.port, None).post("/v1/completions", BODY).content
    assert len(jobs) == (stage not in ENQUEUE) or (stage in CLAIM and not jobs)
    assert stored == [Client(0, None).encoded(BODY, {})[0] for _ in jobs]
    assert heard <= len(jobs)
    assert responses == ([expected] if stage in LAST else [])
    assert (retried.status, retried.content) == (200, expected)
    assert not jobs or retried.headers["Holdfast-Job"] == jobs[0].id
    assert stage not in LAST or len(upstream.generations) == heard + 1
