"""Requests generated from the OpenAPI document: every answer is documented, and none is a defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import Server

# The store refuses U+0000 in every text, which a schema cannot express briefly.
CONFIG = """
[generation]
allow-x00 = false
deterministic = true
"""
# What the document does not say: options that exclude each other, and times before 1970.
EXCLUDED_CHECKS = "positive_data_acceptance"
# The tool cannot send NDJSON.
EXCLUDED_OPERATION = "create_jobs_bulk"
# Much shorter than the documented maximum, so that waiting requests end.
WAIT_SECONDS = 0.05


WEBHOOK = {"url": "https://example.org/", "id": "wh_mvxgk3tdmfxgg2lb", "secret": "whsec_" + "c2VjcmV0" * 4}


def run(server: Server, folder: Path, config: str, *options: str) -> None:
    """Generate requests, and fail if the tool finds a defect."""
    (folder / "schemathesis.toml").write_text(CONFIG + config)
    token = server.client("admin").token
    program = str(Path(sys.executable).with_name("schemathesis"))
    common = ["--checks", "all", "--exclude-checks", EXCLUDED_CHECKS, "--no-color", "--request-timeout", "120"]
    # A busy machine also generates slowly.
    common += ["--suppress-health-check", "too_slow"]
    ran = subprocess.run(
        [
            *(program, "--config-file", str(folder / "schemathesis.toml"), "run", *common, *options),
            *("--header", f"Authorization: Bearer {token}", f"http://127.0.0.1:{server.port}/openapi.json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=folder,
    )

    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]


@pytest.mark.slow("it generates requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path) -> None:
    selected = ("--exclude-operation-id", EXCLUDED_OPERATION)
    run(server, tmp_path, "", "--phases", "examples,fuzzing", "--max-examples", "2", *selected)


@pytest.mark.long
@pytest.mark.slow("it generates many requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_schemathesis_finds_nothing_on_either_engine(served: Server, tmp_path: Path) -> None:
    selected = ("--exclude-operation-id", EXCLUDED_OPERATION)
    run(served, tmp_path, "", "--phases", "examples,coverage,fuzzing", "--max-examples", "20", *selected)


@pytest.mark.slow("it generates requests")
def test_it_finds_nothing_about_a_webhook_that_exists(server: Server, tmp_path: Path) -> None:
    assert server.client("admin").post("/v1/webhooks", WEBHOOK).status == 201
    selected = ("--include-path-regex", "webhook_id", "--exclude-operation-id", "remove_webhook")
    config = f'[parameters]\n"path.webhook_id" = "{WEBHOOK["id"]}"\n'
    run(server, tmp_path, config, "--phases", "fuzzing", "--max-examples", "5", *selected)

    actions = {one.action for one in server.queue.admin.audit_log()}
    assert actions >= {f"webhooks.{name}" for name in ("enable", "replay", "rotate", "test")}
