"""Requests generated from the OpenAPI document: every answer is documented, and none is a defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Artifact
from holdfast.service.routes import ROUTES
from tests.support.service import Server

# The store refuses U+0000 in every text, which a schema cannot express briefly.
CONFIG = """
[generation]
allow-x00 = false
deterministic = true
[warnings]
fail-on = ["missing_auth"]
"""
# What the document does not say: options that exclude each other, and times before 1970.
EXCLUDED_CHECKS = "positive_data_acceptance"
# The tool cannot send NDJSON. Of the tokens that it lists it would also end the one that it uses, and from then on
# get only refusals; another test has a token for it.
EXCLUDED = ("create_jobs_bulk", "rotate_token", "revoke_token")
OTHERS = [option for name in EXCLUDED for option in ("--exclude-operation-id", name)]
# Much shorter than the documented maximum, so that waiting requests end.
WAIT_SECONDS = 0.05


WEBHOOK = {"url": "https://example.org/", "id": "wh_mvxgk3tdmfxgg2lb", "secret": "whsec_" + "c2VjcmV0" * 4}


def run(server: Server, folder: Path, config: str, *options: str) -> None:
    """Generate requests, and fail if the tool finds a defect."""
    (folder / "schemathesis.toml").write_text(CONFIG + config)
    token = server.client("admin").token
    program = str(Path(sys.executable).with_name("schemathesis"))
    common = ["--checks", "all", "--exclude-checks", EXCLUDED_CHECKS, "--no-color", "--request-timeout", "600"]
    # A busy machine also generates slowly, and answers late if a request concerns ten thousand jobs.
    common += ["--suppress-health-check", "too_slow", "--max-response-time", "600"]
    ran = subprocess.run(
        [
            *(program, "--config-file", str(folder / "schemathesis.toml"), "run", *common, *options),
            *("--header", f"Authorization: Bearer {token}", f"http://127.0.0.1:{server.port}/openapi.json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        # Four minutes on two cores; this is for machines that are busy with other tests.
        timeout=3_600,
        cwd=folder,
    )

    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]


@pytest.mark.slow("it generates requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path, "", "--phases", "examples,fuzzing", "--max-examples", "2", *OTHERS)


@pytest.mark.long
@pytest.mark.slow("it generates many requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_schemathesis_finds_nothing_on_either_engine(served: Server, tmp_path: Path) -> None:
    run(served, tmp_path, "", "--phases", "examples,coverage,fuzzing", "--max-examples", "20", *OTHERS)


def stock(server: Server) -> str:
    """Store one of everything; return the configuration that names it in every path."""
    queue, client = server.queue, server.client("admin")
    queue.enqueue("a", {}, job_id="held")
    claim = queue.claim(worker="w", lease_token="t")
    assert claim is not None
    queue.attach(claim, [Artifact("log.txt", b"log")])
    queue.enqueue("b", {}, session="chat")
    queue.schedules.set("nightly", kind="a", cron="0 3 * * *")
    queue.limits.set("by-tenant", kinds=["a"], key="tenant", concurrency=2)
    upload = queue.uploads.begin().id
    [registration] = [route.body_example for route in ROUTES if route.name == "register_worker"]
    assert client.post("/v1/groups/batch", {"members": [{"kind": "a"}]}).status == 201
    assert client.post("/v1/webhooks", WEBHOOK).status == 201
    assert client.request("PUT", "/v1/workers/w", registration).status == 200
    assert client.post("/v1/kinds/a/retire").status == 200
    token = queue.admin.tokens.create("other", roles=["read"]).token.id
    names = {
        "job_id": "held",
        "name": "log.txt",
        "session": "chat",
        "schedule": "nightly",
        "limit": "by-tenant",
        "upload_id": upload,
        "group": "batch",
        "webhook_id": WEBHOOK["id"],
        "worker": "w",
        "kind": "a",
        "token_id": token,
    }
    return "[parameters]\n" + "".join(f'"path.{name}" = "{value}"\n' for name, value in names.items())


def check_existing(server: Server, folder: Path, *options: str) -> None:
    """Generate requests about things that exist, and fail if the tool finds a defect or changes nothing."""
    config, phases, removals = stock(server), ("--phases", "examples,fuzzing"), "^(remove_|revoke_)"
    about_existing = ("--include-path-regex", "{(?!number)", "--exclude-operation-id-regex", removals)
    run(server, folder, config, *phases, *options, *about_existing)
    # Last, because nothing else can be done with what they have removed.
    run(server, folder, config, *phases, *options, "--include-operation-id-regex", removals)

    actions = {one.action for one in server.queue.admin.audit_log(limit=1_000)}
    changed = {
        "webhooks": ("enable", "replay", "rotate", "test", "remove"),
        "schedules": ("pause", "resume", "run", "set", "remove"),
        "token": ("rotate", "revoke"),
        "kinds": ("retire", "restore"),
        "workers": ("drain", "stop"),
        "groups": ("cancel",),
        "sessions": ("cancel",),
        "jobs": ("cancel", "reprioritize", "requeue"),
        "limits": ("set", "remove"),
        "lanes": ("set",),
    }
    assert actions >= {f"{thing}.{action}" for thing, names in changed.items() for action in names}


@pytest.mark.slow("it generates requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_it_finds_nothing_about_things_that_exist(server: Server, tmp_path: Path) -> None:
    check_existing(server, tmp_path, "--max-examples", "3")


@pytest.mark.long
@pytest.mark.slow("it generates many requests")
@pytest.mark.service_settings(wait_seconds_max=WAIT_SECONDS)
def test_it_finds_nothing_about_things_that_exist_on_either_engine(served: Server, tmp_path: Path) -> None:
    check_existing(served, tmp_path, "--max-examples", "20")
