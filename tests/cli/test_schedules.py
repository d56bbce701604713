"""`holdfast schedules`."""

from __future__ import annotations

from tests.cli.conftest import Cli

NIGHTLY = ("nightly", "report.write", '{"format": "pdf"}', "--cron", "0 3 * * *", "--zone", "Europe/Berlin")


def test_a_schedule_is_set_listed_paused_run_and_removed(cli: Cli) -> None:
    document = cli.json("schedules", "set", *NIGHTLY, "--overlap", "skip", "--lane", "slow", "--priority", "2")
    one = cli.queue.schedules.get("nightly")

    assert (document["cron"], document["zone"], document["overlap"]) == ("0 3 * * *", "Europe/Berlin", "skip")
    assert (one.payload, one.options) == ({"format": "pdf"}, {"lane": "slow", "priority": 2})
    assert [shown["name"] for shown in cli.json("schedules", "list")["schedules"]] == ["nightly"]
    assert "0 3 * * * (Europe/Berlin)" in cli.text("schedules", "list", columns=160)
    assert "is paused" in cli.text("schedules", "pause", "nightly")
    assert "paused" in cli.text("schedules", "list", columns=160)
    assert "enqueued" in cli.text("schedules", "run", "nightly")
    assert [job.lane for job in cli.queue.jobs()] == ["slow"]
    assert "goes on, next at" in cli.text("schedules", "resume", "nightly")
    assert "is removed" in cli.text("schedules", "remove", "nightly")
    assert "no schedule 'nightly'" in cli.refusal("schedules", "preview", "nightly", code=1)
    assert cli.json("schedules", "list") == {"schedules": []}


def test_preview_shows_times_in_the_zone(cli: Cli) -> None:
    cli.text("schedules", "set", *NIGHTLY)

    lines = cli.text("schedules", "preview", "nightly", "--count", "3").splitlines()
    assert len(lines) == 3
    assert all(line.endswith((" 03:00:00 +0100", " 03:00:00 +0200")) for line in lines)
    assert len(cli.json("schedules", "preview", "nightly")["ticks_ms"]) == 5


def test_an_interval_and_a_tenant(cli: Cli) -> None:
    told = cli.text("schedules", "set", "tidy", "tidy.up", "--every", "15m", "--tenant", "acme")

    assert told.startswith("schedule tidy enqueues tidy.up every 15m")
    assert "enqueues beat every 5s, next" in cli.text("schedules", "set", "beat", "beat", "--every", "5s")
    assert cli.queue.schedules.get("tidy", tenant="acme").every == 900
    assert "no schedule 'tidy'" in cli.refusal("schedules", "pause", "tidy", code=1)


def test_bad_times_are_refused_with_the_field(cli: Cli) -> None:
    cli.queue.migrate()

    assert "cron" in cli.refusal("schedules", "set", "a", "b", "--cron", "99 * * * *", code=2)
    assert "zone" in cli.refusal("schedules", "set", "a", "b", "--cron", "@daily", "--zone", "Mars", code=2)
    assert "cron" in cli.refusal("schedules", "set", "a", "b", code=2)
