"""Webhooks from end to end: workers and servers send them, and the example receivers verify them."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

import holdfast
from holdfast import Done, Queue, Worker
from holdfast.domain import webhook_signatures
from holdfast.webhooks.sender import ALLOW_VARIABLE
from tests.project.sources import ROOT
from tests.support.job_states import start
from tests.support.receivers import receiver, sender, until
from tests.support.serve_process import ServeProcess

NODE = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed (Debian: apt-get install nodejs)"
)
RECEIVERS = [
    pytest.param([sys.executable, "webhook_receiver.py"], id="python"),
    pytest.param(["node", "webhook_receiver.mjs"], id="node", marks=NODE),
]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with holdfast.connect(str(tmp_path / "jobs.db")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers and servers reach this machine, as an operator would."""
    monkeypatch.setenv(ALLOW_VARIABLE, "127.0.0.0/8")


def finish(queue: Queue) -> str:
    job = queue.enqueue("mail").job
    queue.settle(start(queue, job), Done())
    return job.id


@contextmanager
def example(command: list[str], secret: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run an example receiver; yield its port and the process."""
    command = [command[0], str(ROOT / "examples" / command[1]), "0"]
    environment = {"PATH": os.environ["PATH"], "WEBHOOK_SECRET": secret}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"port (\d+)", process.stdout.readline())
            assert found is not None
            yield int(found[1]), process
        finally:
            process.kill()


@pytest.mark.slow("a receiver starts")
@pytest.mark.parametrize("command", RECEIVERS)
def test_an_example_receiver_without_a_secret_says_how_to_start_it(command: list[str]) -> None:
    started = [command[0], str(ROOT / "examples" / command[1]), "0"]
    environment = {"PATH": os.environ["PATH"]}
    ran = subprocess.run(started, env=environment, capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert line.startswith("usage: WEBHOOK_SECRET=")


@pytest.mark.slow("a receiver starts")
@pytest.mark.parametrize("command", RECEIVERS)
def test_an_example_receiver_accepts_deliveries_once_and_refuses_others(queue: Queue, command: list[str]) -> None:
    secret = "whsec_" + "c2VjcmV0" * 4
    with example(command, secret) as (port, process), sender(queue):
        assert process.stdout is not None
        queue.webhooks.add(f"http://127.0.0.1:{port}/", secret=secret, types=["job.done"])
        wrong = queue.webhooks.add(f"http://127.0.0.1:{port}/").webhook.id
        job_id = finish(queue)
        until(lambda: queue.webhooks.deliveries(wrong)[:1] != [] and queue.webhooks.deliveries(wrong)[0].tries == 1)
        until(lambda: queue.webhooks.deliveries(wrong)[0].problem is not None)

        assert process.stdout.readline() == f"job.done {job_id}\n"
        assert queue.webhooks.deliveries(wrong)[0].problem == "http_401: HTTP 401"
        for headers in ({}, {"webhook-id": "x", "webhook-timestamp": "1", "webhook-signature": "v1,x"}):
            assert post(port, b"{}", headers) == 401


@pytest.mark.slow("a receiver starts")
@pytest.mark.parametrize("command", RECEIVERS)
def test_an_example_receiver_refuses_a_signed_request_that_is_not_recent(command: list[str]) -> None:
    secret, body = "whsec_" + "c2VjcmV0" * 4, b'{"type":"job.done","data":{}}'
    with example(command, secret) as (port, _process):
        for age, status in ((0, 204), (240, 204), (360, 401), (-240, 204), (-360, 401)):
            at = int(time.time()) - age
            signature = webhook_signatures.sign([secret], f"id{age}", at, body)
            headers = {"webhook-id": f"id{age}", "webhook-timestamp": str(at), "webhook-signature": signature}
            assert post(port, body, headers) == status
            assert post(port, body + b" ", headers) == 401


def post(port: int, body: bytes, headers: dict[str, str]) -> int:
    """Return the status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_reference_implementation_verifies_deliveries(queue: Queue) -> None:
    with receiver() as target, sender(queue):
        added = queue.webhooks.add(target.url)
        rotated = queue.webhooks.rotate(added.webhook.id)
        queue.webhooks.test(added.webhook.id)
        [received] = target.wait(1)

    for secret in (added.secret, rotated.secret):
        verified: Any = Verifier(secret).verify(received.body, received.headers)
        assert verified["type"] == "webhook.test"


def test_the_bytes_of_the_documentation_are_those_of_a_delivery(queue: Queue) -> None:
    page = (ROOT / "docs" / "webhook-receivers.md").read_text(encoding="utf-8")
    found = re.search(r"```\nPOST (\S+) HTTP/1.1\n(.*?)\n\n(.*?)\n```", page, re.DOTALL)
    assert found is not None
    headers = dict(line.split(": ", 1) for line in found[2].splitlines())
    body = found[3].encode()
    secret = re.search(r"whsec_[A-Za-z0-9+/]+", page)
    assert secret is not None
    with receiver() as target, sender(queue):
        queue.webhooks.add(target.url, types=["job.done"])
        finish(queue)
        [received] = target.wait(1)

    proof = (headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert webhook_signatures.verify(secret[0], *proof, headers["webhook-signature"])
    assert int(headers["Content-Length"]) == len(body)
    assert received.names == [*headers]
    fixed = ("User-Agent", "Content-Type", "Accept")
    assert [received.headers[name.lower()] for name in fixed] == [headers[name] for name in fixed]
    shown, sent = json.loads(body), json.loads(received.body)
    assert ([*shown], [*shown["data"]]) == ([*sent], [*sent["data"]])
    assert received.body == json.dumps(sent, separators=(",", ":")).encode()


def test_a_worker_sends_webhooks(queue: Queue) -> None:
    @queue.task("mail")
    def mail() -> None:
        pass

    with receiver() as target:
        queue.webhooks.add(target.url)
        with Worker(queue).running():
            job_id = mail.enqueue().id
            [received] = target.wait(1)

    assert json.loads(received.body)["data"]["job_id"] == job_id
    # A worker that stops lets another one read the log at once.
    assert any(one.name == "webhooks" and one.status == "warning" for one in queue.admin.report().findings)


@pytest.mark.slow("a server is killed, and another reads the log after ten seconds")
def test_another_server_takes_over_after_one_was_killed(tmp_path: Path, queue: Queue) -> None:
    with receiver() as target:
        queue.webhooks.add(target.url)
        ids = [finish(queue)]
        first = ServeProcess(tmp_path / "jobs.db")
        target.wait(1)
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        ids.append(finish(queue))
        second = ServeProcess(tmp_path / "jobs.db")
        received = target.wait(2)
        assert second.end(signal.SIGTERM) == 0
        first.close()
        second.close()

    assert [json.loads(one.body)["data"]["job_id"] for one in received] == ids


def test_nothing_is_sent_without_the_extra(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.webhooks.sender.is_installed", lambda: False)

    @queue.task("mail")
    def mail() -> None:
        pass

    with receiver() as target:
        queue.webhooks.add(target.url)
        with Worker(queue).running():
            assert mail.enqueue().result(timeout=30) is None
        [finding] = [one for one in queue.admin.report().findings if one.name == "webhooks"]

    assert target.requests == []
    assert "the extra `webhooks`" in finding.remedy
