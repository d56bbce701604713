"""The bench runs from end to end at a thousandth of its size; the figures themselves are not tested."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.__main__ import main
from bench.candidates import CandidateFailedError
from bench.charts import Bar, draw, draw_all
from bench.docs_writer import BEGIN, END, SUMMARY_BEGIN, SUMMARY_END, render_results, summary, write_page
from bench.holdfast_candidates import HoldfastSession
from bench.registry import all_candidates
from bench.results import Results, as_json, store
from bench.rounds import SQLITE_PLANS, Cell
from bench.sessions import ENQUEUED, SETTLED, WAYS
from bench.targets import Verdict, verdicts

pytestmark = pytest.mark.slow("the bench measures every scenario once")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--engine", "sqlite", "--rounds", "1", "--scale", "0.001"]
    [results] = main([*arguments, "--folder", str(folder), "--json", str(folder / "results.json")])
    return results


def _rates(**rates: list[float]) -> Results:
    cells = [Cell("one-by-one", name, "full", values) for name, values in rates.items()]
    return Results("sqlite", {}, {}, {}, cells=cells)


def test_every_scenario_is_measured_for_holdfast_and_the_bare_loop(results: Results) -> None:
    measured = {(cell.scenario, cell.candidate, cell.durability) for cell in results.cells}

    for plan in SQLITE_PLANS:
        for candidate in all_candidates("sqlite"):
            if plan.scenario in candidate.scenarios and plan.count(candidate):
                assert (plan.scenario, candidate.name, candidate.durability) in measured
    assert ("disk", "overwrite", "full") in measured


def test_pickup_claims_and_memory_are_measured(results: Results) -> None:
    assert {one.candidate for one in results.latencies} >= {"holdfast", "statements alone"}
    assert all(cost.seconds for cost in results.costs)
    assert results.memory is not None
    assert results.memory.jobs == 1_000
    assert results.calls is not None
    assert set(results.writers) == {"holdfast", "flock", "statements under flock"}


def test_sessions_are_measured(results: Results) -> None:
    assert {cost.filter for cost in results.session_costs} == {way.name for way in WAYS} | {SETTLED, ENQUEUED}
    assert results.crew is not None
    assert results.crew.share > 0


def test_the_results_are_written_as_json_page_and_charts(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = BEGIN["sqlite"], END["sqlite"]
    lead = f"{SUMMARY_BEGIN['sqlite']}\nits summary\n{SUMMARY_END['sqlite']}"
    page.write_text(f"before\n{lead}\n{begin}\nthe last run\n{end}\nafter\n", encoding="utf-8")

    store([results], tmp_path / "results.json")
    write_page(results, page)
    charts = draw_all(results, tmp_path / "images")

    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["sqlite"]["scenarios"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith(f"{end}\nafter\n")
    assert "the last run" not in text
    assert "its summary" not in text
    assert summary(as_json(results)) in text
    assert render_results(results) in text
    assert charts
    assert {ElementTree.parse(chart).getroot().tag for chart in charts} == {"{http://www.w3.org/2000/svg}svg"}


def test_every_candidate_shows_its_settings(results: Results) -> None:
    assert results.settings == {one.label: one.settings for one in all_candidates("sqlite")}
    assert all(results.settings.values())


def test_a_target_compares_the_rounds_one_by_one() -> None:
    found = {one.path: one for one in verdicts(_rates(holdfast=[4.0, 10.0, 9.0], huey=[2.0, 4.0, 5.0]))}

    against_huey = found["one job at a time, FULL"]
    assert (against_huey.found, against_huey.met) == (2.0, True)


def test_a_missed_target_is_reported() -> None:
    found = {one.path: one for one in verdicts(_rates(holdfast=[1.0], huey=[2.0]))}

    against_huey, single = found["one job at a time, FULL"], found["single enqueue, FULL"]
    assert (against_huey.found, against_huey.met) == (0.5, False)
    assert (single.found, single.met) == (None, None)


def test_a_ratio_without_a_target_is_neither_met_nor_missed() -> None:
    cells = [Cell("drain", "holdfast", "full", [9.0]), Cell("drain", "huey", "full", [3.0])]
    found = verdicts(Results("sqlite", {}, {}, {}, cells=cells))

    assert Verdict("drain, FULL", "none; the ratio to huey", 3.0, None) in found


def test_the_length_of_a_bar_is_proportional_to_its_value() -> None:
    chart = ElementTree.fromstring(draw("Bars & more", [Bar("a", 2.0, "two"), Bar("b", 1.0, "one")]))

    bars = [float(one.attrib["width"]) for one in chart.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars[0] == 2 * bars[1]


class _LosingSession(HoldfastSession):
    """Holdfast with a drain that does nothing."""

    def drain(self, batch: int) -> int:
        return 0


def test_a_candidate_that_loses_jobs_is_not_measured(tmp_path: Path) -> None:
    session = _LosingSession("full", tmp_path)
    try:
        with pytest.raises(CandidateFailedError, match="handled 0 of 4"):
            session.measure("drain", 4)
    finally:
        session.close()
