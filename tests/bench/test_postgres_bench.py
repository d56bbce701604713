"""The PostgreSQL part of the bench runs at a thousandth of its size; the figures themselves are not tested."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import psycopg
import pytest
from bench.__main__ import main
from bench.candidates import Candidate, CandidateFailedError, Session
from bench.charts import draw_all
from bench.child import ChildSession
from bench.docs_writer import BEGIN, END, SUMMARY_BEGIN, SUMMARY_END, write_page
from bench.pickup import Latency
from bench.postgres import load
from bench.postgres.claim_cost import Pinned
from bench.postgres.holdfast_candidates import PostgresSession
from bench.postgres.peer_candidates import absent, candidates
from bench.postgres.server import Arena
from bench.results import NAMES, Results, store
from bench.rounds import POSTGRES_PLANS, Cell, Plan, run_scenarios
from bench.targets import verdicts

from tests.support import postgres_server

pytestmark = pytest.mark.slow("the bench measures every scenario once, on its own server")

PEERS = {"pgqueuer", "procrastinate", "awa-pg", "oban", "graphile-worker", "pg-boss"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("bench")
    # Those that are always there, of which two take part in some scenarios only.
    ours = [option for name in ("holdfast", "pgbench", "statements alone") for option in ("--candidate", name)]
    [results] = main(["--engine", "postgres", *ours, "--rounds", "1", "--scale", "0.001", "--folder", str(folder)])
    return results


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[ChildSession]:
    session = ChildSession([sys.executable, "-m", "tests.bench.memory_peer", getattr(request, "param", "works")])
    yield session
    session.close()


def _results(**fields: object) -> Results:
    return Results("postgres", {}, {}, {}, **fields)  # type: ignore[arg-type]  # each test names what it needs


def test_every_scenario_is_measured_for_holdfast(results: Results) -> None:
    measured = {cell.scenario for cell in results.cells if cell.candidate == "holdfast"}

    assert measured == {plan.scenario for plan in POSTGRES_PLANS}
    assert [one.candidate for one in results.latencies] == ["holdfast"]
    assert results.costs
    assert all(cost.seconds for cost in results.costs)
    assert results.pinned is not None
    assert results.pinned.jobs == 200


def test_a_missing_candidate_is_listed_with_a_reason(results: Results) -> None:
    assert set(results.absent) - {"pgbench"} == PEERS - {one.name for one in candidates()}
    assert all(absent().values())


def test_the_results_are_written_as_json_page_and_charts(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = [
        f"{begin[engine]}\nold {engine}\n{end[engine]}\n"
        for begin, end in ((SUMMARY_BEGIN, SUMMARY_END), (BEGIN, END))
        for engine in NAMES
    ]
    page.write_text("".join(marks), encoding="utf-8")
    kept = tmp_path / "results.json"
    kept.write_text('{"sqlite": "of another day"}', encoding="utf-8")

    store([results], kept)
    write_page(results, page)
    charts = draw_all(results, tmp_path / "images")

    told = json.loads(kept.read_text(encoding="utf-8"))
    assert told["sqlite"] == "of another day"
    assert told["postgres"]["pinned_snapshot"]["jobs"] == 200
    text = page.read_text(encoding="utf-8")
    assert "old sqlite" in text
    assert "old postgres" not in text
    assert all(f"images/{chart.name}" in text for chart in charts)
    assert {ElementTree.parse(chart).getroot().tag for chart in charts} == {"{http://www.w3.org/2000/svg}svg"}


def test_a_page_without_markers_for_the_results_is_refused(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing of the kind", encoding="utf-8")

    with pytest.raises(ValueError, match="the page has no markers"):
        write_page(results, page)

    assert page.read_text(encoding="utf-8") == "nothing of the kind"


def test_the_server_is_durable_and_every_database_is_new() -> None:
    with Arena() as arena:
        assert (arena.execute("show fsync"), arena.execute("show synchronous_commit")) == ("on", "on")
        with arena.fresh() as url, psycopg.connect(url, autocommit=True) as connection:
            connection.execute(b"create table mine (number integer)")
            first = connection.info.dbname
        with arena.fresh() as url, psycopg.connect(url) as connection:
            found = connection.execute(b"select to_regclass('mine')").fetchone()
        databases = arena.execute("select array_agg(datname::text) from pg_database")

    assert found == (None,)
    assert first not in databases


def test_a_peer_is_measured_in_every_scenario(peer: ChildSession) -> None:
    assert peer.ask("warm", 3)["seconds"] > 0
    assert peer.measure("drain", 5) > 0
    assert peer.measure("single", 5) > 0
    assert peer.measure("bulk", 5) > 0


@pytest.mark.parametrize("peer", ["echoes"], indirect=True)
def test_a_peer_is_ready_after_its_own_job_and_returns_the_seconds_of_the_others(peer: ChildSession) -> None:
    peer.request("receive", 2)

    assert peer.answer() == {"ready": True}
    assert len(peer.answer()["taken"]) == 2


@pytest.mark.parametrize("peer", ["repeats"], indirect=True)
def test_a_peer_that_handles_jobs_twice_is_not_measured(peer: ChildSession) -> None:
    with pytest.raises(CandidateFailedError, match="handled 10 of 5 jobs"):
        peer.measure("drain", 5)


@pytest.mark.parametrize("peer", ["dies"], indirect=True)
def test_a_peer_that_dies_is_not_measured(peer: ChildSession) -> None:
    with pytest.raises(CandidateFailedError, match="without an answer"):
        peer.measure("single", 1)


class _FailingSession(Session):
    def measure(self, scenario: str, count: int) -> float:
        raise CandidateFailedError("it broke down")

    def close(self) -> None:
        pass


class _WorkingSession(_FailingSession):
    def measure(self, scenario: str, count: int) -> float:
        return 1.0


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _run(*those: Candidate) -> tuple[list[Cell], dict[str, str]]:
    failures: dict[str, str] = {}
    plans = [Plan("drain", 10, 0), Plan("bulk", 10, 0)]
    cells = run_scenarios(those, plans, _nothing, rounds=2, scale=1.0, log=lambda what: None, failures=failures)
    return cells, failures


def _candidate(name: str, session: type[_FailingSession]) -> Candidate:
    return Candidate(name, "full", "", frozenset({"drain"}), lambda location: session())


def test_a_peer_that_fails_has_no_figure_and_the_others_are_measured() -> None:
    cells, failures = _run(_candidate("sound", _WorkingSession), _candidate("broken", _FailingSession))

    assert [(cell.candidate, cell.rates) for cell in cells] == [("sound", [10.0, 10.0])]
    assert failures == {"broken (full), drain": "it broke down"}


def test_a_failure_of_holdfast_ends_the_run() -> None:
    with pytest.raises(CandidateFailedError, match="it broke down"):
        _run(_candidate("holdfast", _FailingSession))


class _LosingSession(PostgresSession):
    """Holdfast with half of the jobs removed before its processes start."""

    def fill(self, count: int) -> None:
        super().fill(count // 2)


def test_processes_that_do_not_handle_every_job_are_not_measured() -> None:
    session = _LosingSession(postgres_server.database_url())
    try:
        with pytest.raises(CandidateFailedError, match="handled 4 of 8"):
            session.measure("workers-4", 8)
    finally:
        session.close()


def test_a_target_compares_with_the_peer_it_names() -> None:
    rates = {"holdfast": [90.0], "graphile-worker": [60.0], "pgqueuer": [45.0], "awa-pg": [9.0]}
    cells = [Cell("drain", name, "full", values) for name, values in rates.items()]

    [graphile, pgqueuer, awa, *others] = verdicts(_results(cells=cells))

    assert [(one.found, one.met) for one in (graphile, pgqueuer, awa)] == [(1.5, True), (2.0, False), (10.0, True)]
    assert {one.met for one in others} == {None}


def test_a_claim_under_a_pinned_snapshot_may_grow_by_a_third() -> None:
    for after, met in ((1.3, True), (1.4, False)):
        [*_, verdict] = verdicts(_results(pinned=Pinned(200, 1.0, after)))
        assert (verdict.found, verdict.met) == (after, met)


def test_the_slowest_picked_up_jobs_are_compared() -> None:
    latencies = [Latency("holdfast", "full", [1.0, 5.0]), Latency("pgqueuer", "full", [4.0, 8.0])]

    [verdict] = [one for one in verdicts(_results(latencies=latencies)) if one.path == "pick-up p99"]

    assert (verdict.found, verdict.met) == (0.625, False)


def test_a_steady_load_is_measured_without_and_with_an_open_transaction(tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    figures = load.main(["--rate", "200", "--minutes", "0.02", "--tenants", "3", "--plot", str(plot)])

    assert [one.load.pinned for one in figures] == [False, True]
    assert all(one.jobs > 0 and one.p50_ms <= one.p99_ms and one.samples for one in figures)
    # Tables, log and memory, each without and with the transaction.
    assert plot.read_text(encoding="utf-8").count("<polyline") == 6
