"""The example workers in shell and Node finish every job once, although the server is killed under them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

import pytest

import holdfast
from holdfast import Queue
from tests.project.sources import ROOT
from tests.support.postgres_server import fresh_database
from tests.support.serve_process import ServeProcess
from tests.support.service import TIMEOUT, wait_until
from tests.support.stores import DURABLE_ENGINES

EXAMPLES = ROOT / "examples"
JOBS = 10
# The server is killed each time that this many jobs are done.
KILLS = (2, 7)


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test if a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    reason = f"{', '.join(missing)} is not installed (Debian: apt-get install curl jq nodejs)"
    return pytest.mark.skipif(bool(missing), reason=reason)


@contextmanager
def working(
    command: list[str], server: ServeProcess, token: str, output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker for a block, as the leader of its process group."""
    known = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    environment = {**known, "HOLDFAST_URL": server.started["url"], "HOLDFAST_TOKEN": token}
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stop(worker: subprocess.Popen[bytes]) -> None:
    """Stop a worker politely."""
    worker.terminate()
    assert worker.wait(TIMEOUT) == 0


def done(queue: Queue) -> int:
    """Return the number of jobs that are done."""
    return queue.counts().get("done", 0)


@pytest.mark.slow("it starts a server three times")
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
@pytest.mark.parametrize(
    ("command", "kind", "payload", "result"),
    [
        pytest.param(
            [str(EXAMPLES / "worker.sh"), "text.upper", "jq", "-r", ".text | ascii_upcase"],
            "text.upper",
            {"text": "hello"},
            "HELLO\n",
            marks=needs("curl", "jq"),
            id="shell",
        ),
        pytest.param(
            ["node", str(EXAMPLES / "worker.mjs")],
            "text.upper",
            {"text": "hello"},
            {"text": "HELLO"},
            marks=needs("node"),
            id="node",
        ),
    ],
)
def test_a_worker_settles_every_job_once_although_its_server_is_killed(
    tmp_path: Path, engine: str, command: list[str], kind: str, payload: dict[str, str], result: object
) -> None:
    log = tmp_path / "serve.log"
    stores = fresh_database() if engine == "postgres" else nullcontext(str(tmp_path / "jobs.db"))
    with stores as url, holdfast.connect(url) as queue:
        token = queue.admin.tokens.create("worker", roles=["work"]).text
        server = ServeProcess(url, log=log)
        try:
            with working(command, server, token) as worker:
                for reached in KILLS:
                    queue.enqueue_many(
                        [{"kind": kind, "payload": payload, "events": "all"} for _ in range(JOBS // len(KILLS))]
                    )
                    wait_until(lambda reached=reached: done(queue) >= reached)  # type: ignore[misc]
                    server.end(signal.SIGKILL)
                    server.close()
                    server = ServeProcess(url, port=server.port, log=log)
                wait_until(lambda: done(queue) == JOBS)
                # A killed server may have stored a settlement without an answer, which the worker sends again.
                queue.enqueue(kind, payload, events="all")
                wait_until(lambda: done(queue) == JOBS + 1)
                stop(worker)
        finally:
            server.close()
        jobs = list(queue.jobs())
        events = [event for event in queue.events(limit=1_000) if event.name == "done"]
        output = {job.id: "".join(chunk.text for chunk in queue.output(job.id)) for job in jobs}

        assert [job.result for job in jobs] == [result] * len(jobs)
        assert len(jobs) >= JOBS
        assert sorted(event.job_id for event in events) == sorted(job.id for job in jobs)
        if command[0] == "node":
            assert all(text.startswith("5 characters\n") for text in output.values())


@needs("curl", "jq")
@pytest.mark.slow("it starts a server")
def test_the_shell_worker_reports_a_command_that_fails_and_stops_one_that_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    script = 'read payload; case $payload in *fail*) echo "no luck" >&2; exit 3 ;; *) exec sleep 60 ;; esac'
    with holdfast.connect(path) as queue:
        token = queue.admin.tokens.create("worker", roles=["work"]).text
        server = ServeProcess(path)
        try:
            with working([str(EXAMPLES / "worker.sh"), "a", "sh", "-c", script], server, token) as worker:
                failing = queue.enqueue("a", {"fail": True}, max_attempts=1)
                job = queue.wait(failing.id, timeout=TIMEOUT)
                assert job.failure is not None
                assert job.failure.message == "exit code 3: no luck\n"
                slow = queue.enqueue("a", {})
                wait_until(lambda: queue.get(slow.id).state == "running")
                queue.cancel(slow.id)
                assert queue.wait(slow.id, timeout=TIMEOUT).state == "cancelled"
                stop(worker)
        finally:
            server.close()


@needs("curl", "jq")
@pytest.mark.slow("it starts a server")
def test_a_signal_ends_the_long_poll_of_the_shell_worker_and_leaves_the_next_job_to_others(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with holdfast.connect(path) as queue, socket.create_server(("127.0.0.1", 0)) as silent:
        token = queue.admin.tokens.create("worker", roles=["work"]).text
        server = ServeProcess(path)
        command = [str(EXAMPLES / "worker.sh"), "a", "cat"]
        try:
            with working(command, server, token) as worker:
                wait_until(lambda: waits_for_a_job(worker.pid))
                stop(worker)
            job = queue.enqueue("a")
            claim = queue.claim(worker="other", wait=TIMEOUT)
            assert claim is not None
            assert (claim.job.id, claim.job.attempt, claim.epoch) == (job.id, 1, 1)
        finally:
            server.close()
        # Nor does it wait for a service that never answers.
        server.started["url"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with working(command, server, token) as worker:
            wait_until(lambda: waits_for_a_job(worker.pid))
            stop(worker)


@needs("curl", "jq")
@pytest.mark.slow("it starts a server")
def test_ctrl_c_ends_the_shell_worker_without_printing_a_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    printed = tmp_path / "printed"
    with holdfast.connect(path) as queue:
        token = queue.admin.tokens.create("worker", roles=["work"]).text
        server = ServeProcess(path)
        command = [str(EXAMPLES / "worker.sh"), "a", "cat"]
        try:
            # A terminal sends SIGINT to all processes of the command, also to the curl that waits for a job.
            with printed.open("wb") as output, working(command, server, token, output) as worker:
                assert queue.enqueue("a", {"card": "secret"}).result(timeout=TIMEOUT)
                wait_until(lambda: waits_for_a_job(worker.pid))
                os.killpg(worker.pid, signal.SIGINT)
                assert worker.wait(TIMEOUT) == 0
        finally:
            server.close()

    assert printed.read_text() == ""


def waits_for_a_job(process: int) -> bool:
    """Return whether the shell worker has a curl that sends a claim."""
    found = subprocess.run(["pgrep", "-g", str(process), "-f", "v1/claims "], capture_output=True, check=False)
    return found.returncode == 0


@pytest.mark.slow("it starts a server")
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(
            [str(EXAMPLES / "worker.sh"), "a", "cat"], '"not_authenticated"', marks=needs("curl", "jq"), id="shell"
        ),
        pytest.param(
            ["node", str(EXAMPLES / "worker.mjs")],
            "not_authenticated: the token is not known",
            marks=needs("node"),
            id="node",
        ),
    ],
)
def test_a_worker_with_a_wrong_token_says_so_and_exits_with_1(tmp_path: Path, command: list[str], shown: str) -> None:
    printed = tmp_path / "printed"
    server = ServeProcess(tmp_path / "jobs.db")
    try:
        with printed.open("wb") as output, working(command, server, "hf_wrong", output) as worker:
            assert worker.wait(TIMEOUT) == 1
    finally:
        server.close()

    assert shown in printed.read_text()
    assert printed.read_text().count("\n") <= 1


@pytest.mark.parametrize(("arguments", "missing"), [([], "KIND"), (["a"], "COMMAND")])
def test_the_shell_worker_names_a_missing_argument(arguments: list[str], missing: str) -> None:
    ran = subprocess.run([EXAMPLES / "worker.sh", *arguments], capture_output=True, text=True, check=False)

    assert ran.returncode != 0
    assert f"the {missing} is missing" in ran.stderr
