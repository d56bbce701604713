"""`holdfast serve` as a process: the start line, refusals, several servers, kill -9 and SIGTERM."""

from __future__ import annotations

import http.client
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli.root import root
from holdfast.cli.terminal import Terminal
from tests.support.serve_process import serving

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_listening_off_loopback_without_tokens_is_refused(tmp_path: Path, host: str) -> None:
    command = ["--url", str(tmp_path / "jobs.db"), "serve", "--host", host, "--port", "0", "--tokens", "off"]
    result = CliRunner().invoke(root, command)

    assert result.exit_code == 2
    assert "without tokens the service listens on this machine only" in " ".join(result.stderr.split())


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["--url", str(tmp_path / "jobs.db"), "serve", "--host", "192.0.2.1"])

    assert result.exit_code == 2
    assert "cannot listen on 192.0.2.1:8040: Cannot assign requested address; choose another --host or --port" in (
        " ".join(result.stderr.split())
    )


@pytest.mark.slow("it starts processes")
def test_a_server_creates_its_queue_and_ends_within_its_bound_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with serving(path, "--tokens", "off") as server:
        assert server.started == {"event": "started", "url": f"http://127.0.0.1:{server.port}", "tokens": False}
        assert server.client().post("/v1/jobs", {"kind": "a", "job_id": "one"}).status == 201
        with server.client().stream("/v1/events") as stream:
            waiting = server.client().open("POST", "/v1/claims", {"worker": "w", "lanes": ["empty"], "wait": 60})
            assert server.end(signal.SIGTERM) == 0
            assert list(stream) == []
            assert b'"claims":[]' in waiting.recv(65_536)
            waiting.close()
        assert "Traceback" not in server.errors.read_text()
    with holdfast.connect(path) as queue:
        assert queue.get("one").state == "ready"


def test_the_start_line_names_the_file_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal()
    terminal.given_url = "jobs.db"
    assert terminal.described_url == str(tmp_path / "jobs.db")
    terminal.given_url = "postgresql://ada:secret@db.example.org/jobs"
    assert terminal.described_url == "postgresql://ada:***@db.example.org/jobs"


@pytest.mark.slow("it starts processes")
def test_two_servers_serve_one_store_and_one_of_them_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with holdfast.connect(path) as queue:
        token = queue.admin.tokens.create("test", roles=["admin"]).text
    with serving(path) as first, serving(path) as second:
        with second.client(token).stream("/v1/events") as stream:
            assert first.client(token).post("/v1/jobs", {"kind": "a", "job_id": "one"}).status == 201
            [claim] = second.client(token).post("/v1/claims", {"worker": "w", "lease_token": "t"}).json["claims"]
            # Output and uploads begin at one server and continue at the other.
            lease = {"epoch": claim["epoch"], "lease_token": "t"}
            upload = first.client(token).post("/v1/uploads").json["id"]
            chunk = first.client(token).request("PUT", f"/v1/uploads/{upload}/chunks/0", b"x", BYTES)
            assert chunk.json["chunks"] == 1
            with second.client(token).stream("/v1/jobs/one/output") as output:
                emitted = first.client(token).post("/v1/claims/one/output", {**lease, "text": "hello", "part": 0})
                assert emitted.json == {"number": 1}
                assert output.next()[1]["text"] == "hello"
            first.end(signal.SIGKILL)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                first.client(token).get("/healthz")
            again = second.client(token).post("/v1/claims/one/output", {**lease, "text": "hello", "part": 0})
            assert again.json == {"number": 1}
            digest = second.client(token).post(f"/v1/uploads/{upload}/finish").json["digest"]
            artifact = {"name": "x", "upload_id": upload, "digest": digest}
            ended = {**lease, "outcome": "done", "artifacts": [artifact]}
            assert second.client(token).post("/v1/claims/one/settle", ended).status == 200
            assert second.client(token).get("/v1/jobs/one/artifacts/x").content == b"x"
            assert stream.next()[1]["name"] == "done"
        assert second.client(None).get("/v1/jobs").status == 401
        log = second.errors.read_text()
    assert "POST /v1/claims/one/settle 200" in log
    assert token.split("_", 2)[2] not in log


@pytest.mark.slow("it starts a process and opens 300 connections")
def test_a_server_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            server = stack.enter_context(serving(tmp_path / "jobs.db", "--tokens", "off"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(300):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_server_takes_no_more_connections_than_the_system_allows_files() -> None:
    program = (
        "import resource; from holdfast.service import server;"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (128, 150)); print(server.allow_connections(2_000))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout == "50\n"
    assert "at most 50 connections instead of 2000: the system allows 150 open files" in ran.stderr
