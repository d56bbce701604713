"""`holdfast limits`, and what other commands say about jobs that wait for room."""

from __future__ import annotations

from holdfast import Done
from tests.cli.conftest import Cli


def test_a_limit_is_set_listed_shown_and_removed(cli: Cli) -> None:
    told = cli.text("limits", "set", "llm", "--kind", "llm.call", "--key", "tenant", "--concurrency", "1")
    assert told.strip() == "limit llm for llm.call by tenant: 1 at once"
    document = cli.json(
        *("limits", "set", "tokens", "--lane", "models", "--rate", "9000", "--per", "1h", "--burst", "100"),
        *("--weight", "tokens", "--key", "tenant+tag:model"),
    )
    assert (document["rate"], document["per"], document["burst"], document["weight"]) == (9000, 3600, 100, "tokens")

    listed = cli.text("limits", "list", columns=160)
    assert "1 at once" in listed
    assert "9000 tokens in 1h, burst 100" in listed
    assert [one["name"] for one in cli.json("limits", "list")["limits"]] == ["llm", "tokens"]

    cli.queue.enqueue("summary", {"tokens": 30}, lane="models", tags={"model": "m"})
    claim = cli.queue.claim(lanes=["models"])
    assert claim is not None
    [use] = cli.json("limits", "show", "default / m")["limits"]
    assert (use["limit"], use["running"], use["left"]) == ("tokens", 1, 70)
    assert "LEFT" in cli.text("limits", "show", "default / m", columns=160)
    cli.queue.settle(claim, Done())

    assert "limit llm is removed" in cli.text("limits", "remove", "llm")
    assert "no limit 'llm'" in cli.refusal("limits", "remove", "llm", code=1)


def test_a_parked_job_names_its_limit_and_doctor_finds_none_left_behind(cli: Cli) -> None:
    cli.queue.limits.set("llm", kinds=["llm.call"], key="tenant", concurrency=1)
    first, second = (cli.queue.enqueue("llm.call").id for _ in range(2))
    assert [claim.job.id for claim in cli.queue.claim_many(limit=2)] == [first]

    shown = cli.text("jobs", "show", second, columns=160)
    assert "limit llm for key default is full: 1 of 1 running" in shown
    assert " still parked" in shown  # the time before it is now, not when it was parked
    [named] = cli.json("jobs", "show", second)["limits"]
    assert (named["limit"], named["key"], named["running"]) == ("llm", "default", 1)
    assert cli.json("jobs", "show", first)["limits"] == []
    assert "every running job is counted, no parked one was left behind" in cli.text("doctor", columns=160)
