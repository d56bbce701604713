from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli


def test_enqueue_stores_the_job_and_prints_its_id(cli: Cli) -> None:
    output = cli.text("enqueue", "email.send", '{"to": "ada@example.org"}', "--id", "first")

    assert output == "enqueued first (email.send, ready)\n"
    assert cli.queue.get("first").payload == {"to": "ada@example.org"}


def test_what_a_short_command_has_enqueued_is_counted_in_the_overview(cli: Cli) -> None:
    cli.text("enqueue", "email.send")

    assert sum(minute.arrived for minute in cli.queue.admin.overview().flow) == 1


def test_enqueue_prints_the_decoded_job_as_json(cli: Cli) -> None:
    answer = cli.json("enqueue", "email.send", "[1, 2]")

    assert answer["created"] is True
    assert answer["job"]["payload"] == [1, 2]
    assert cli.queue.get(answer["job"]["id"]).payload == [1, 2]


def test_enqueue_without_a_payload_stores_null(cli: Cli) -> None:
    assert cli.json("enqueue", "tick")["job"]["payload"] is None


def test_every_option_of_enqueue_reaches_the_job(cli: Cli) -> None:
    arguments = {
        "--lane": "bulk",
        "--tenant": "acme",
        "--priority": "-7",
        "--delay": "5m",
        "--deadline": "2h",
        "--affinity": "llama3",
        "--max-attempts": "9",
        "--id": "chosen",
        "--dedupe-key": "once",
        "--dedupe-scope": "tenant",
        "--dedupe-for": "1h",
        "--on-duplicate": "keep",
        "--events": "all",
    }
    repeated = ["--require", "gpu", "--require", "disk", "--header", "trace=a=b", "--tag", "order=42", "--tag", "x="]
    job = cli.json("enqueue", "report", "1", *(word for pair in arguments.items() for word in pair), *repeated)["job"]

    assert (job["lane"], job["tenant"], job["priority"], job["affinity"]) == ("bulk", "acme", -7, "llama3")
    assert job["due_at_ms"] - job["enqueued_at_ms"] == 300_000
    assert job["deadline_at_ms"] - job["enqueued_at_ms"] == 7_200_000
    assert (job["id"], job["max_attempts"], job["state"]) == ("chosen", 9, "scheduled")
    assert (job["dedupe_key"], job["dedupe_scope"], job["events"]) == ("once", "tenant", "all")
    assert job["requires"] == ["disk", "gpu"]
    assert (job["headers"], job["tags"]) == ({"trace": "a=b"}, {"order": "42", "x": ""})


def test_a_key_that_is_kept_finds_a_finished_job(cli: Cli) -> None:
    arguments = ("enqueue", "report", "--dedupe-key", "once", "--dedupe-for", "1h")
    first = cli.json(*arguments)["job"]["id"]
    cli.json("jobs", "cancel", first)

    again = cli.json(*arguments)

    assert (again["created"], again["job"]["id"], again["job"]["state"]) == (False, first, "cancelled")


def test_a_timestamp_keeps_its_time_zone(cli: Cli) -> None:
    job = cli.json("enqueue", "later", "--run-at", "2100-01-01T02:00:00+02:00")["job"]

    assert job["due_at_ms"] == 4_102_444_800_000


def test_the_due_time_of_a_delayed_job_is_printed(cli: Cli) -> None:
    assert "scheduled, due 2100-01-01T00:00:00Z" in cli.text("enqueue", "later", "--run-at", "2100-01-01T00:00:00Z")


def test_a_deadline_may_be_a_timestamp(cli: Cli) -> None:
    job = cli.json("enqueue", "later", "--deadline", "2100-01-01T00:00:00Z")["job"]

    assert job["deadline_at_ms"] == 4_102_444_800_000


@pytest.mark.parametrize("content", ['{"a": "ü"}', "17", '"text"', "null"])
def test_the_payload_may_come_from_standard_input_or_a_file(cli: Cli, tmp_path: Path, content: str) -> None:
    (tmp_path / "payload.json").write_text(content)

    from_stdin = cli.json("enqueue", "a", "-", stdin=content)["job"]["payload"]
    from_file = cli.json("enqueue", "a", f"@{tmp_path}/payload.json")["job"]["payload"]

    assert from_stdin == from_file == json.loads(content)


@pytest.mark.parametrize("typed", ["{to: ada}", "hello", "", "{'to': 'ada'}", "[" * 100_000, '{"a": 1, "a": 2}'])
def test_a_payload_that_is_not_json_is_refused_with_a_hint_on_quoting(cli: Cli, typed: str) -> None:
    output = cli.refusal("enqueue", "a", typed, code=2)

    assert output.startswith("error: the payload is not JSON: ")
    assert """hint: quote it for the shell: '{"to": "ada@example.org"}'""" in output
    assert not cli.path.exists()


def test_a_payload_with_a_number_that_is_not_json_is_refused(cli: Cli) -> None:
    assert "payload: nan is not JSON" in cli.refusal("enqueue", "a", "NaN", code=2)


def test_a_payload_file_that_cannot_be_read_is_named(cli: Cli) -> None:
    assert "cannot read 'nowhere.json': No such file" in cli.refusal("enqueue", "a", "@nowhere.json", code=2)


def test_a_payload_that_is_not_text_is_refused(cli: Cli) -> None:
    assert "standard input is not UTF-8 text" in cli.refusal("enqueue", "a", "-", code=2, stdin=b"\xff\xfe")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--delay", "soon"], "'soon' is not a duration; write a number and its unit"),
        (["--run-at", "tomorrow"], "'tomorrow' is not a timestamp"),
        (["--run-at", "2030-01-31T09:00"], "has no time zone"),
        (["--deadline", "never"], "or a duration with its unit such as 30s"),
        (["--tag", "plain"], "'plain' is not a pair; write NAME=VALUE"),
        (["--tag", "a=1", "--tag", "a=2"], "--tag names the same key twice"),
        (["--priority", "high"], "'high' is not a valid integer"),
        (["--priority", "5000"], "error: --priority: is out of range; it must be from -1000 to 1000\n"),
        (["--delay", "9999w"], "error: --delay: is out of range; it must be from 0 to 31622400 seconds\n"),
        (["--delay", "1s", "--run-at", "2030-01-31T09:00Z"], "error: --run-at: cannot be combined with --delay\n"),
        (["--on-duplicate", "replace"], "error: --on-duplicate: requires a --dedupe-key\n"),
        (["--id", "a\tb"], "error: --id: contains a control character"),
        (["--require", " "], "error: --require: must not be empty\n"),
        (["--max-attempts", "0"], "error: --max-attempts: is out of range; it must be from 1 to 1000\n"),
        (["--tag", "a=\0"], "error: --tag: contains U+0000"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_stored(cli: Cli, arguments: list[str], problem: str) -> None:
    assert problem in cli.refusal("enqueue", "a", *arguments, code=2)
    assert cli.queue.counts() == {}


def test_enqueue_without_a_kind_names_the_missing_argument(cli: Cli) -> None:
    assert "KIND is missing" in cli.refusal("enqueue", code=2)


def test_the_same_id_and_content_is_reported_as_existing(cli: Cli) -> None:
    cli.text("enqueue", "a", "1", "--id", "one")

    assert cli.text("enqueue", "a", "1", "--id", "one") == "exists already: one (a, ready)\n"
    assert cli.json("enqueue", "a", "1", "--id", "one")["created"] is False


def test_the_same_id_with_other_content_is_refused_and_the_job_is_named(cli: Cli) -> None:
    cli.text("enqueue", "a", "1", "--id", "one")

    assert "hint: holdfast jobs show one" in cli.refusal("enqueue", "a", "2", "--id", "one", code=1)


def write_lines(path: Path, *lines: Any) -> str:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_many_enqueues_every_line_and_counts_them(cli: Cli, tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "jobs.jsonl", {"kind": "a", "payload": 1}, "\n", {"kind": "b", "tags": {"x": "y"}}
    )

    assert cli.text("enqueue", "--many", source) == "enqueued 2 jobs\n"
    assert cli.queue.counts(by="kind") == {"a": 1, "b": 1}


def test_many_in_json_prints_the_line_and_id_of_each_job(cli: Cli, tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "jobs.jsonl", {"kind": "a", "job_id": "one"}, "\n", {"kind": "a", "job_id": "two"}
    )

    assert cli.lines("enqueue", "--many", source) == [
        {"line": 1, "id": "one", "created": True},
        {"line": 3, "id": "two", "created": True},
    ]


def test_many_reads_standard_input_and_takes_defaults_from_the_options(cli: Cli) -> None:
    lines = '{"job_id": "one"}\n{"job_id": "two", "kind": "other", "lane": "own"}\n'
    cli.text("enqueue", "standard", "--many", "-", "--lane", "bulk", stdin=lines)

    one, two = cli.queue.get("one"), cli.queue.get("two")
    assert [(one.kind, one.lane), (two.kind, two.lane)] == [("standard", "bulk"), ("other", "own")]


def test_many_converts_text_to_values_that_json_cannot_express(cli: Cli) -> None:
    arguments = {
        "kind": "a",
        "job_id": "one",
        "run_at": "2100-01-01T00:00:00Z",
        "deadline": "2h",
        "backoff": {"base": 1, "factor": 3.0, "cap": 60, "jitter": 0.5},
    }
    cli.text("enqueue", "--many", "-", stdin=json.dumps(arguments))

    job = cli.queue.get("one")
    assert job.due_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert job.deadline_at == job.enqueued_at + timedelta(hours=2)
    assert (job.backoff.factor, job.backoff.jitter) == (3.0, 0.5)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"kind": "a"', "line 2: not JSON: Expecting ',' delimiter (column 13)"),
        ("[1]", "line 2: not an object with the options of a job"),
        ('{"kind": ""}', "line 2: kind: must not be empty"),
        ('{"payload": 1}', "line 2: kind: is missing"),
        ('{"kind": "a", "color": "red"}', "line 2: color: unknown option"),
        ('{"kind": "a", "delay": "soon"}', "line 2: delay: 'soon' is not a duration"),
        ('{"kind": "a", "backoff": {"first": 1}}', "line 2: backoff: valid keys are base, factor, cap and jitter"),
        ('{"kind": "a", "backoff": {"base": -1}}', "line 2: backoff.base: "),
    ],
)
def test_a_refused_line_is_named_and_its_batch_is_not_stored(cli: Cli, line: str, problem: str) -> None:
    output = cli.refusal("enqueue", "--many", "-", code=2, stdin=f'{{"kind": "good"}}\n{line}\n')

    assert problem in output
    assert "hint: nothing was stored" in output
    assert cli.queue.counts() == {}


def test_many_stores_batches_and_names_the_line_to_continue_from(cli: Cli) -> None:
    lines = ['{"kind": "good"}\n'] * 1_000 + ['{"kind": ""}\n']

    output = cli.refusal("enqueue", "--many", "-", code=2, stdin="".join(lines))

    assert "line 1001: kind: must not be empty" in output
    assert "lines up to 1000 are stored" in output
    assert "from line 1001" in output
    assert cli.queue.counts() == {"ready": 1_000}


def test_many_refused_by_the_store_keeps_the_code_of_the_refusal(cli: Cli) -> None:
    cli.queue.enqueue("old")
    cli.queue.kinds.retire("old")

    result = cli.run("enqueue", "--many", "-", "--json", stdin='{"kind": "old"}\n')

    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "kind_retired"


def test_many_excludes_options_of_a_single_job(cli: Cli) -> None:
    assert "exclude each other" in cli.refusal("enqueue", "a", "1", "--many", "-", code=2)
    assert "exclude each other" in cli.refusal("enqueue", "a", "--many", "-", "--id", "x", code=2)


def test_many_names_a_file_that_cannot_be_read(cli: Cli) -> None:
    assert "cannot read 'nowhere.jsonl'" in cli.refusal("enqueue", "--many", "nowhere.jsonl", code=2)
