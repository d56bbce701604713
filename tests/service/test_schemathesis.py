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


@pytest.mark.slow("it generates requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
@pytest.mark.parametrize(
    ("phases", "examples"),
    [("examples,fuzzing", 2), pytest.param("examples,coverage,fuzzing", 20, marks=pytest.mark.long)],
)
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path, phases: str, examples: int) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    token = server.client("admin").token
    ran = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run"),
            *(
                "--phases",
                phases,
                "--max-examples",
                str(examples),
                "--checks",
                "all",
                "--exclude-checks",
                EXCLUDED_CHECKS,
            ),
            *("--exclude-operation-id", EXCLUDED_OPERATION, "--no-color", "--request-timeout", "20"),
            *("--header", f"Authorization: Bearer {token}", f"http://127.0.0.1:{server.port}/openapi.json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=tmp_path,
    )

    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
