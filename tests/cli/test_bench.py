"""`holdfast bench`, on both engines."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from holdfast.cli.root import root
from tests.cli.conftest import Cli
from tests.support.postgres_server import fresh_database

STEPS = 5


def test_every_step_is_measured_and_drawn_and_nothing_is_left(cli: Cli) -> None:
    cli.queue.migrate()
    before = set(cli.path.parent.iterdir())
    found = cli.json("bench", "--seconds", "0.05")["steps"]

    assert len(found) == STEPS
    assert all(one["per_second"] > 0 for one in found)
    lines = cli.text("bench", "--seconds", "0.05", columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("█" in line or "▏" in line or line.endswith(tuple("▎▍▌▋▊▉")) for line in lines) >= 1
    assert set(cli.path.parent.iterdir()) == before
    assert cli.queue.jobs().jobs == ()


def test_a_server_and_a_bad_duration_are_refused(cli: Cli) -> None:
    assert "is not in the range 0.05<=x<=60" in cli.refusal("bench", "--seconds", "0", code=2)
    assert "not a server" in cli.refusal("--url", "http://127.0.0.1:1", "bench", code=2)


@pytest.mark.slow("it creates and drops a schema")
def test_postgresql_is_measured_in_a_schema_that_is_dropped() -> None:
    with fresh_database() as url:
        ran = CliRunner().invoke(root, ["--url", url, "bench", "--seconds", "0.05", "--json"])
        assert ran.exit_code == 0, ran.output
        assert len(json.loads(ran.stdout)["steps"]) == STEPS
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(url) as connection:
            found = connection.execute("select count(*) from pg_namespace where nspname like 'holdfast_bench%'")
            assert found.fetchone() == (0,)
