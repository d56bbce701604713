"""`holdfast webhooks`."""

from __future__ import annotations

import os

import pytest

from holdfast import Failed
from holdfast.client.queue_state import state_of
from holdfast.domain import webhooks
from holdfast.operations import webhooks as operations
from holdfast.storage import runners
from holdfast.webhooks.sender import ALLOW_VARIABLE
from tests.cli.conftest import Cli

URL = "https://example.org/hook"


def test_add_prints_the_id_and_once_the_secret(cli: Cli) -> None:
    document = cli.json("webhooks", "add", URL, "--type", "job.done", "--tag", "a=1")

    assert document["secret"].startswith("whsec_")
    one = cli.queue.webhooks.get(document["id"])
    assert (one.url, one.types, one.tags) == (URL, ("job.done",), {"a": "1"})
    assert document["secret"] not in repr(cli.json("webhooks", "show", one.id))
    assert cli.text("webhooks", "add", URL).startswith("whsec_")


def test_a_webhook_is_listed_tested_shown_replayed_and_removed(cli: Cli) -> None:
    webhook_id = cli.json("webhooks", "add", URL)["id"]
    delivery = cli.json("webhooks", "test", webhook_id)
    [claim] = cli.queue.claim_many(lanes=[webhooks.LANE])
    cli.queue.settle(claim, Failed("HTTP 500: oops", "http_500", permanent=True))

    assert [one["id"] for one in cli.json("webhooks", "list")["webhooks"]] == [webhook_id]
    assert webhook_id in cli.text("webhooks", "list")
    [shown] = cli.json("webhooks", "show", webhook_id)["deliveries"]
    assert (shown["id"], shown["state"], shown["problem"]) == (delivery["id"], "failed", "http_500: HTTP 500: oops")
    assert "http_500" in cli.text("webhooks", "show", webhook_id, columns=160)
    assert cli.json("webhooks", "replay", webhook_id)["requeued"] == [delivery["id"]]
    assert cli.json("webhooks", "rotate", webhook_id, "--overlap", "1h")["secret"].startswith("whsec_")
    assert "is active" in cli.text("webhooks", "enable", webhook_id)
    assert "is removed" in cli.text("webhooks", "remove", webhook_id)
    assert "no webhook" in cli.refusal("webhooks", "show", webhook_id, code=1)


def test_a_refused_receiver_is_not_called_by_the_option_of_the_queue(cli: Cli) -> None:
    cli.queue.migrate()
    refusal = cli.refusal("webhooks", "add", "http://example.org/hook", code=2)

    assert refusal.splitlines()[0] == "error: URL: must use https"
    assert "'holdfast webhooks list' shows the ids" in cli.refusal("webhooks", "show", "wh_none", code=1)


def test_at_80_columns_types_are_whole_and_a_problem_is_shown(cli: Cli) -> None:
    webhook_id = cli.json("webhooks", "add", URL, "--tenant", "acme")["id"]
    cli.json("webhooks", "test", webhook_id)
    [claim] = cli.queue.claim_many(lanes=[webhooks.LANE])
    cli.queue.settle(claim, Failed("HTTP 500", "http_500", permanent=True))
    refused = webhooks.Answer(503, "busy", retry_after_seconds=60.0)
    runners.SyncRunner(state_of(cli.queue).store).write(operations.record_answer, webhook_id, refused)

    listed = cli.text("webhooks", "list", columns=80)
    shown = cli.text("webhooks", "show", webhook_id, columns=80).splitlines()

    assert all(one in listed for one in webhooks.DEFAULT_TYPES)
    assert shown[:2] == [f"{webhook_id} {URL}", "state: closed; the next try is in 1m"]
    assert shown[3] == "last answer that was no success: HTTP 503: busy"
    assert "http_500: HTTP 500" in shown[-1]


def test_the_lists_of_lanes_and_kinds_count_deliveries(cli: Cli) -> None:
    cli.json("webhooks", "test", cli.json("webhooks", "add", URL)["id"])

    lanes, kinds = cli.json("lanes", "list")["lanes"], cli.json("kinds", "list")["kinds"]

    assert {one["name"]: one["jobs"] for one in lanes}[webhooks.LANE] == {"ready": 1}
    assert {one["name"]: one["jobs"] for one in kinds}[webhooks.KIND] == {"ready": 1}


def test_a_job_is_enqueued_with_a_url(cli: Cli) -> None:
    cli.text("enqueue", "mail", "--webhook-url", URL)

    assert [event.name for event in cli.queue.events()] == ["enqueued"]


@pytest.mark.parametrize("command", [("serve",), ("worker", "nowhere:queue")])
def test_a_wrong_list_of_networks_is_refused_at_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)

    assert "--webhook-allow" in cli.refusal(*command, "--webhook-allow", "10.0.0.1/8", code=2)
    assert ALLOW_VARIABLE not in os.environ
