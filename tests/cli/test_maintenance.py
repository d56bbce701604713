from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_prune_deletes_finished_jobs_and_events(cli: Cli, failed_job: str) -> None:
    cli.queue.enqueue("waiting")

    assert cli.text("prune", "--older-than", "0", "--yes") == "deleted 1 job and 1 event\n"
    assert cli.queue.counts() == {"ready": 1}


def test_prune_in_json_counts_deleted_jobs_and_events(cli: Cli, failed_job: str) -> None:
    assert cli.json("prune", "--older-than", "0s", "--yes") == {"jobs": 1, "events": 1}


def test_prune_keeps_younger_jobs_and_other_states(cli: Cli, failed_job: str) -> None:
    assert cli.json("prune", "--older-than", "1h", "--yes") == {"jobs": 0, "events": 0}
    assert cli.json("prune", "--older-than", "0", "--state", "done", "--events-older-than", "1h", "--yes") == {
        "jobs": 0,
        "events": 0,
    }


def test_prune_requires_a_valid_age(cli: Cli) -> None:
    cli.queue.migrate()

    assert "Missing option '--older-than'" in cli.refusal("prune", code=2)
    assert "is not a duration" in cli.refusal("prune", "--older-than", "a week", code=2)
    assert "'7' is not a duration; write a number and its unit" in cli.refusal("prune", "--older-than", "7", code=2)
    assert "'ready' is not one of" in cli.refusal("prune", "--older-than", "1d", "--state", "ready", code=2)


def test_prune_without_a_terminal_requires_yes_and_deletes_nothing(cli: Cli, failed_job: str) -> None:
    output = cli.refusal("prune", "--older-than", "0", code=2)

    assert "there is no terminal to confirm it" in output
    assert "--dry-run, then add --yes" in output
    assert cli.queue.counts() == {"failed": 1}


def test_a_dry_run_of_prune_counts_and_deletes_nothing(cli: Cli, failed_job: str) -> None:
    assert cli.text("prune", "--older-than", "0", "--dry-run") == "would delete 1 job and 1 event\n"
    assert cli.json("prune", "--older-than", "0", "--dry-run", "--yes") == {"jobs": 1, "events": 1}
    assert cli.queue.counts() == {"failed": 1}


def test_doctor_finds_a_fresh_store_healthy(cli: Cli) -> None:
    cli.queue.migrate()

    output = cli.text("doctor")

    assert output.splitlines()[0].split()[:3] == ["STATUS", "WHAT", "FOUND"]
    assert output.splitlines()[-1].startswith("healthy")


def test_doctor_in_json_has_every_finding(cli: Cli) -> None:
    cli.queue.migrate()

    answer = cli.json("doctor")

    assert answer["healthy"] is True
    fields = {frozenset(finding) for finding in answer["findings"]}
    assert fields == {frozenset(("name", "status", "detail", "remedy"))}


@pytest.fixture
def damaged(cli: Cli) -> None:
    """Make the file fail the integrity check: a user's table contains a row that violates its declaration."""
    cli.queue.migrate()
    cli.queue.close()
    with closing(sqlite3.connect(cli.path)) as connection:
        connection.executescript(
            """
            create table orders (customer text);
            insert into orders values (null);
            pragma writable_schema = on;
            update sqlite_schema set sql = 'create table orders (customer text not null)' where name = 'orders';
            """
        )


@pytest.mark.usefixtures("damaged")
def test_doctor_exits_with_1_and_prints_a_remedy_if_there_is_a_problem(cli: Cli) -> None:
    result = cli.run("doctor")

    assert (result.exit_code, result.stderr) == (1, "")
    [problem] = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert "orders.customer" in problem
    assert "restore the file from a backup" in problem
    assert result.stdout.splitlines()[-1].startswith("not healthy")


@pytest.mark.usefixtures("damaged")
def test_doctor_in_json_exits_with_1_if_there_is_a_problem(cli: Cli) -> None:
    result = cli.run("doctor", "--json")

    answer = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, answer["healthy"]) == (1, "", False)
    assert [finding["name"] for finding in answer["findings"] if finding["status"] == "problem"] == ["file"]


def test_doctor_of_a_file_that_is_no_database_is_an_error_with_a_hint(cli: Cli) -> None:
    cli.path.write_bytes(b"this is a text, not a database" * 100)

    assert "the file is not a SQLite database, or is encrypted; check the path" in cli.refusal("doctor", code=2)


def test_migrate_creates_the_store_and_then_has_nothing_to_do(cli: Cli) -> None:
    assert cli.text("migrate").startswith("applied ")
    assert cli.path.exists()
    assert cli.text("migrate") == "the schema is up to date\n"
    assert cli.json("migrate") == {"applied": []}


def test_migrate_in_json_lists_applied_migrations(cli: Cli) -> None:
    assert len(cli.json("migrate")["applied"]) >= 1


def test_migrate_into_a_missing_folder_is_an_error(cli: Cli, tmp_path: Path) -> None:
    result = cli.run("migrate", "--url", str(tmp_path / "no" / "folder.db"), "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["code"] == "invalid_input"
