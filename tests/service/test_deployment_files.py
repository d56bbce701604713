"""The files in examples/deploy fit the commands and metrics of this version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.root import root
from tests.project.sources import ROOT
from tests.support import nginx
from tests.support.service import Client, Server, claim_waits, wait_until

DEPLOY = ROOT / "examples/deploy"
UNIT = (DEPLOY / "holdfast.service").read_text()
SYSTEMD = shutil.which("systemd-analyze")
OPERATORS = (ROOT / "docs/service-operators.md").read_text()


def check_command(arguments: list[str]) -> None:
    """Fail unless the command line is valid; it is not run."""
    result = CliRunner().invoke(root, [*arguments, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed (Debian: apt-get install systemd)")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert SYSTEMD is not None
    holdfast = Path(sys.executable).with_name("holdfast")
    unit = tmp_path / "holdfast.service"
    unit.write_text(UNIT.replace("/opt/holdfast/bin/holdfast", str(holdfast)))
    ran = subprocess.run([SYSTEMD, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60)

    assert (ran.returncode, [line for line in ran.stderr.splitlines() if "holdfast.service" in line]) == (0, [])


def test_the_commands_are_valid() -> None:
    [started] = re.findall(r"^ExecStart=\S+/holdfast (.*)$", UNIT, re.MULTILINE)
    check_command(started.split())
    container = (DEPLOY / "Containerfile").read_text()
    [command] = re.findall(r"^CMD (\[.*\])$", container, re.MULTILINE)
    program, *arguments = json.loads(command)
    assert program == "holdfast"
    check_command(arguments)
    assert "[cli,postgres,server,webhooks]" in container


def test_the_container_gets_every_file_that_the_package_is_built_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    files = {file for line in copied for file in line.split()}
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} == files


def test_the_metric_that_scales_workers_is_served_by_lane(server: Server) -> None:
    text = (DEPLOY / "keda.yaml").read_text()
    [metric] = re.findall(r"holdfast_\w+(?=\{lane=)", text)
    server.queue.enqueue("email.send", lane="mail")

    assert f'{metric}{{kind="email.send",lane="mail"}} 1.0' in server.client("read").get("/metrics").content.decode()


@pytest.mark.skipif(nginx.PROGRAM is None, reason="nginx is not installed: apt-get install nginx-light")
def test_the_service_works_behind_the_documented_proxy(server: Server, tmp_path: Path) -> None:
    [documented] = re.findall(r"^server \{\n(.*?)^\}$", OPERATORS, re.MULTILINE | re.DOTALL)
    settings = re.sub(r"^ *(listen|ssl_\w+|server_name) .*\n", "", documented, flags=re.MULTILINE)
    assert settings.count(":8040") == 1
    token = server.client("admin").token
    with nginx.proxy(tmp_path, settings.replace(":8040", f":{server.port}")) as port:
        client = Client(port, token)
        with client.stream("/v1/events") as stream:
            assert client.post("/v1/jobs", {"kind": "x", "events": "all", "job_id": "a/b"}).status == 201
            assert stream.next()[1]["job_id"] == "a/b"
        assert client.get("/v1/jobs/a%2Fb").json["id"] == "a/b"

        # A claimer that leaves is noticed through the proxy.
        claim = {"worker": "w", "kinds": ["none"], "wait": 60}
        with client.open("POST", "/v1/claims", claim, {"Content-Type": "application/json"}):
            wait_until(lambda: claim_waits(server))
        wait_until(lambda: not claim_waits(server))

        upload = client.post("/v1/uploads").json["id"]
        octets = {"Content-Type": "application/octet-stream", "Content-Length": str(300_000_000)}
        with client.open("PUT", f"/v1/uploads/{upload}/content", b"x" * 100_000, octets) as connection:
            refused = connection.recv(65_536)
        assert b'"code":"body_too_large"' in refused

        form, dashboard = b"token=" + str(token).encode() + b"&next=/", "/dashboard/sign-in"
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"https://127.0.0.1:{port}"}
        assert client.request("POST", dashboard, form, headers).status == 303
        other = {**headers, "Origin": "https://example.org"}
        assert client.request("POST", dashboard, form, other).status == 403
