"""The plugin in an inner run of pytest: a new queue for each test, on each selected engine."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points

import psycopg
import pytest

import holdfast
from holdfast.storage.postgres.migrate import discard_schema
from tests.project.sources import ROOT
from tests.support.postgres_server import database_url

pytest_plugins = ["pytester"]

TESTS = """
    import holdfast
    from holdfast.testing import assert_enqueued, drain


    def test_one(holdfast_queue, holdfast_engine):
        assert holdfast_queue.counts() == {}
        holdfast_queue.enqueue("mail", delay=60)
        print("engine", holdfast_engine)


    def test_other(holdfast_queue, holdfast_clock):
        assert holdfast_queue.counts() == {}
        holdfast_queue.task("mail")(lambda: "sent")
        holdfast_queue.enqueue("mail", {}, delay=60)
        assert_enqueued(holdfast_queue, "mail", delay=60)
        assert drain(holdfast_queue, clock=holdfast_clock).counts == {"done": 1}


    def test_without_a_queue():
        pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("HOLDFAST_TEST_POSTGRES", raising=False)
    pytester.makepyfile(TESTS)
    return pytester


NAMED = ("-p", "holdfast.testing.plugin")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    # The plugins of other packages would be imported by every inner run.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_inprocess(*NAMED, "-W", "error", "-v", *options)


def test_an_installed_holdfast_brings_it_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["entry-points"]["pytest11"] == {"holdfast": "holdfast.testing.plugin"}


@pytest.mark.slow("pytest starts in a process of its own, which finds the plugin by itself")
def test_by_default_each_test_has_a_file_of_its_own(inner: pytest.Pytester) -> None:
    # If Holdfast is only on the path, pytest must be given the plugin; if it is installed, pytest finds it.
    named = () if entry_points(group="pytest11", name="holdfast") else NAMED
    ran = inner.runpytest_subprocess(*named, "-p", "no:schemathesis", "-W", "error", "-v")

    ran.assert_outcomes(passed=3)
    ran.stdout.fnmatch_lines(["*::test_one PASSED*"])
    ran.stdout.no_fnmatch_line("*= holdfast =*")


def test_every_engine_that_is_configured_is_used(inner: pytest.Pytester) -> None:
    inner.makeini(f"[pytest]\nholdfast_engines = sqlite postgres\nholdfast_postgres = {database_url()}\n")

    ran = run(inner)

    ran.assert_outcomes(passed=5)
    ran.stdout.fnmatch_lines(["*test_one?sqlite? PASSED*", "*test_one?postgres? PASSED*"])


def test_the_command_line_and_the_environment_choose_as_well(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_POSTGRES", database_url())

    run(inner, "--holdfast-engines=postgres").assert_outcomes(passed=3)


def test_nothing_is_left_on_the_server(inner: pytest.Pytester) -> None:
    run(inner, "--holdfast-engines=postgres", f"--holdfast-postgres={database_url()}").assert_outcomes(passed=3)

    with psycopg.connect(database_url()) as connection:
        left = connection.execute("select nspname from pg_namespace where nspname like 'holdfast_test_%'").fetchall()
    assert left == []


def test_without_a_server_its_tests_are_skipped_loudly(inner: pytest.Pytester) -> None:
    ran = run(inner, "--holdfast-engines=sqlite,postgres")

    ran.assert_outcomes(passed=3, skipped=2)
    ran.stdout.fnmatch_lines(["=* holdfast =*", "2 tests did not run on PostgreSQL. *--holdfast-postgres*"])


def test_a_server_that_does_not_answer_fails_its_tests(inner: pytest.Pytester) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"

    ran = run(inner, "--holdfast-engines=postgres", f"--holdfast-postgres={url}")

    ran.assert_outcomes(passed=1, failed=2, errors=2)


@pytest.mark.parametrize("engines", ["mysql", ""])
def test_an_engine_that_does_not_exist_is_refused(inner: pytest.Pytester, engines: str) -> None:
    ran = run(inner, f"--holdfast-engines={engines}")

    assert ran.ret != 0
    ran.stdout.fnmatch_lines(["*is not one of sqlite, postgres*"])


def test_a_programs_own_queue_is_redirected_and_the_awaited_one_is_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        app="""
        import holdfast

        queue = holdfast.connect("production.db")

        @queue.task("mail")
        def send(to: str) -> str:
            return to
        """,
        test_app="""
        import asyncio
        from pathlib import Path

        import pytest

        import app
        from holdfast.testing import assert_enqueued, drain, drain_async


        @pytest.fixture(autouse=True)
        def own_store(holdfast_redirect):
            holdfast_redirect(app.queue)


        def test_it(holdfast_async_queue, holdfast_queue):
            app.send.enqueue("ada")
            assert_enqueued(holdfast_queue, app.send, payload={"to": "ada"})
            assert asyncio.run(holdfast_async_queue.counts()) == {"ready": 1}
            assert [ran.job.result for ran in drain(app.queue)] == ["ada"]
            assert not Path("production.db").exists()


        def test_it_again():
            assert app.queue.counts() == {}
        """,
    )
    options = ("--holdfast-engines=sqlite,postgres", f"--holdfast-postgres={database_url()}")

    run(pytester, *options).assert_outcomes(passed=4)


def test_only_schemas_of_tests_are_dropped() -> None:
    with pytest.raises(holdfast.InvalidInput, match="not a test schema"):
        discard_schema(database_url(), "holdfast")
