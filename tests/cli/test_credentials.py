"""A password in the URL does not appear in the output of a command, in an error or in a repr."""

from __future__ import annotations

import os
import signal
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli.root import root
from holdfast.client.queue_state import state_of
from holdfast.domain.access import Grants
from holdfast.domain.failures import Failure
from holdfast.domain.fingerprints import failure_print
from holdfast.domain.webhooks import check_webhook
from holdfast.operations import access, webhooks
from holdfast.storage.postgres.migrate import TEST_PREFIX, discard_schema
from tests.cli.test_options import commands
from tests.cli.test_process import OnTerminal
from tests.cli.worker_process import running, write_app
from tests.support.kinds import publish
from tests.support.postgres_server import database_url

SECRET = "s3cr3t"
TOKEN = "mvxgk3tdmfxgg2lb"
WEBHOOK = f"wh_{TOKEN}"
FAILURE = Failure("permanent", "no_address", "no address")
FINGERPRINT = failure_print("a.kind", FAILURE).fingerprint
GROUPS = {
    *(("workers",), ("jobs",), ("failures",), ("lanes",), ("kinds",), ("token",), ("webhooks",), ("groups",)),
    *(("schedules",), ("limits",)),
}
LEAVES = [path for path in commands(root) if path and path not in GROUPS]

# One call of every command that succeeds on the queue of the fixture.
VALID: dict[tuple[str, ...], list[str]] = {
    ("workers", "list"): [],
    ("workers", "drain"): ["--all", "--yes"],
    ("workers", "stop"): ["--all", "--yes"],
    ("enqueue",): ["a.kind", "--lane", "x"],
    ("jobs", "list"): [],
    ("jobs", "show"): ["one"],
    ("jobs", "cancel"): ["one"],
    ("jobs", "requeue"): ["one"],
    ("jobs", "priority"): ["one", "3"],
    ("jobs", "wait"): ["done"],
    ("jobs", "artifact"): ["done", "log.txt"],
    ("jobs", "output"): ["done", "--follow"],
    ("jobs", "why"): ["one"],
    ("failures", "list"): [],
    ("failures", "show"): [FINGERPRINT],
    ("lanes", "list"): [],
    ("lanes", "set"): ["x", "--order", "strict"],
    ("kinds", "list"): [],
    ("kinds", "show"): ["task.kind"],
    ("kinds", "retire"): ["old", "--yes"],
    ("kinds", "restore"): ["old"],
    ("events",): [],
    ("top",): ["--once"],
    ("stats",): [],
    ("prune",): ["--older-than", "1d", "--yes"],
    ("token", "create"): ["ci", "--role", "read"],
    ("token", "list"): [],
    ("token", "rotate"): [TOKEN],
    ("token", "revoke"): [TOKEN],
    ("webhooks", "add"): ["https://example.org/hook"],
    ("webhooks", "list"): [],
    ("webhooks", "show"): [WEBHOOK],
    ("webhooks", "enable"): [WEBHOOK],
    ("webhooks", "rotate"): [WEBHOOK],
    ("webhooks", "test"): [WEBHOOK],
    ("webhooks", "replay"): [WEBHOOK],
    ("webhooks", "remove"): [WEBHOOK],
    ("groups", "list"): [],
    ("groups", "show"): ["import"],
    ("groups", "wait"): ["import"],
    ("groups", "cancel"): ["import"],
    ("limits", "set"): ["llm", "--kind", "a.kind", "--concurrency", "2"],
    ("limits", "list"): [],
    ("limits", "show"): ["acme"],
    ("limits", "remove"): ["llm"],
    ("schedules", "set"): ["sweep", "a.kind", "--every", "1h"],
    ("schedules", "list"): [],
    ("schedules", "preview"): ["nightly"],
    ("schedules", "pause"): ["nightly"],
    ("schedules", "resume"): ["nightly"],
    ("schedules", "run"): ["nightly"],
    ("schedules", "remove"): ["nightly"],
    ("audit",): [],
    ("bench",): ["--seconds", "0.05"],
    ("doctor",): [],
    ("migrate",): [],
    ("completion",): ["bash"],
}
TASKS = holdfast.Tasks()


@TASKS.task("task.kind")
def task() -> None: ...


APPLICATION = """
import holdfast

queue = holdfast.connect({url!r}, schema={schema!r})

@queue.task("task.kind")
def task() -> None: ...
"""
WRONG_URLS = [
    f"postgresql://ada:{SECRET}@127.0.0.1:1/jobs",
    f"postgresql://127.0.0.1:1/jobs?user=ada&password={SECRET}",
    f"postgresql://ada:{SECRET}%zz@db/jobs",
    f"postgresql://ada:x/{SECRET}@db/jobs",
    f"postgresql://ada:{SECRET}/x@db/jobs",
    f"postgresql://ada:x@{SECRET}@db/jobs",
    f"postgresql://ada:{SECRET}@[::1/jobs",
    f"postgresql://ada:x@db/jobs?{SECRET}",
    f"postgresql:/ada:{SECRET}@db/jobs",
    f"postgresql+psycopg://ada:{SECRET}@db/jobs",
    f"redis://ada:{SECRET}@db/0",
    f"host=db password={SECRET}",
]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A queue on a server that accepts any password, with jobs for the calls."""
    schema = f"{TEST_PREFIX}{uuid.uuid4().hex[:16]}"
    plain = database_url()
    separator = "&" if "?" in plain else "?"
    # The password of a client key, which every server ignores.
    with_password = f"{plain}{separator}sslpassword={SECRET}"
    with holdfast.connect(with_password, schema=schema) as queue:
        queue.enqueue("a.kind", job_id="done")
        claim = queue.claim(kinds=["a.kind"])
        assert claim is not None
        queue.settle(claim, holdfast.Done(artifacts=[holdfast.Artifact("log.txt", b"hello")]))
        queue.enqueue("a.kind", job_id="failed")
        claim = queue.claim(kinds=["a.kind"])
        assert claim is not None
        queue.settle(claim, holdfast.Failed(FAILURE.message, reason=FAILURE.reason, permanent=True))
        queue.enqueue("a.kind", job_id="one")
        with queue.group("import"):
            pass
        publish(queue, TASKS)
        queue.schedules.set("nightly", kind="a.kind", cron="0 3 * * *")
        grants = Grants(("read",))
        queue._runner.write(access.create_token, TOKEN, "hash", "ci", grants, None, "ada@host")
        webhook = check_webhook("https://example.org/hook", {})
        queue._runner.write(webhooks.add_webhook, WEBHOOK, webhook, "whsec_c2VjcmV0", "ada@host")
    monkeypatch.setenv("HOLDFAST_SCHEMA", schema)
    yield with_password
    discard_schema(plain, schema)


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(root, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert SECRET not in result.output, (arguments, result.output)
    return result


@pytest.mark.slow("it runs every command twice")
def test_every_command_succeeds_without_showing_the_password(url: str) -> None:
    # These run until they are stopped, or ask a server.
    others = {("demo",), ("worker",), ("serve",), ("gateway",), ("gateway", "check")}
    assert VALID.keys() == set(LEAVES) - others
    for path, arguments in VALID.items():
        # The doctor reports that no worker takes the waiting job.
        expected = 1 if path == ("doctor",) else 0
        assert run(*path, *arguments, "--url", url).exit_code == expected, path
        run(*path, *arguments, "--url", url, "--json")


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["plain", "json"])
def test_a_worker_runs_without_showing_the_password(url: str, tmp_path: Path, form: list[str]) -> None:
    write_app(tmp_path, APPLICATION.format(url=url, schema=os.environ["HOLDFAST_SCHEMA"]))

    with running(tmp_path, *form, "--log-level", "debug") as worker:
        worker.line(lambda line: "holdfast.worker" in line and "takes task.kind" in line)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.finish() == 0

    assert [line for line in worker.lines if SECRET in line] == []


def test_no_command_shows_the_password_of_a_url_that_it_cannot_use() -> None:
    for path, arguments in VALID.items():
        if path == ("completion",):
            continue  # it opens no queue
        for wrong in WRONG_URLS if path == ("stats",) else WRONG_URLS[:2]:
            for form in ([], ["--json"]):
                assert run(*path, *arguments, "--url", wrong, *form).exit_code in {2, 3}, (path, wrong)


def test_no_command_shows_the_password_of_a_url_in_the_wrong_place() -> None:
    for path in [*LEAVES, (), *GROUPS]:
        for wrong in WRONG_URLS[:2]:
            for form in ([], ["--json"]):
                assert run(*path, wrong, wrong, wrong, "--no-such-option", wrong, *form).exit_code == 2, path


def test_the_question_of_prune_shows_the_url_without_the_password(url: str, tmp_path: Path) -> None:
    schema = os.environ["HOLDFAST_SCHEMA"]
    prune = OnTerminal(tmp_path, "prune", "--older-than", "0", HOLDFAST_URL=url, HOLDFAST_SCHEMA=schema)
    prune.read_until("?")
    prune.type("n\n")

    assert prune.finish() == 1
    assert "sslpassword=***" in prune.seen
    assert SECRET not in prune.seen


@pytest.mark.parametrize("wrong", WRONG_URLS)
def test_no_error_and_no_traceback_shows_the_password(wrong: str) -> None:
    with pytest.raises(holdfast.HoldfastError) as caught:
        holdfast.connect(wrong).counts()

    assert SECRET not in repr(caught.value)
    assert SECRET not in str(vars(caught.value))
    output = traceback.format_exception(caught.value)
    assert [line for line in output if SECRET in line and "connect(wrong)" not in line] == []


def test_no_queue_and_no_store_shows_the_password_in_its_repr() -> None:
    url = f"postgresql://ada:{SECRET}@db/jobs?password={SECRET}"
    queue, async_queue = holdfast.connect(url), holdfast.connect_async(url)

    assert repr(queue) == "<Queue on <PostgresStore postgresql://ada:***@db/jobs?password=*** schema=holdfast>>"
    assert repr(async_queue) == repr(queue).replace("<Queue", "<AsyncQueue")
    assert repr(state_of(holdfast.connect("jobs.db")).store).startswith("<SqliteStore ")
