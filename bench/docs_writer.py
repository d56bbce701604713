"""Write the results of a run to docs/performance.md: a summary and all tables, between markers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import call_cost, writers
from bench.call_cost import TARGETS, CallCosts
from bench.candidates import Engine
from bench.charts import chart_names
from bench.claim_cost import Cost
from bench.isolation import IsolationFigures
from bench.postgres.claim_cost import Pinned
from bench.results import Results, as_json, ratio
from bench.summary import summary_rows
from bench.targets import verdicts
from bench.worker import WorkerFigures

BEGIN: dict[Engine, str] = {
    "sqlite": "<!-- results: written by make bench -->",
    "postgres": "<!-- results on PostgreSQL: written by make bench -->",
}
END: dict[Engine, str] = {
    "sqlite": "<!-- end of results -->",
    "postgres": "<!-- end of results on PostgreSQL -->",
}
SUMMARY_BEGIN: dict[Engine, str] = {
    "sqlite": "<!-- summary: written by make bench -->",
    "postgres": "<!-- summary on PostgreSQL: written by make bench -->",
}
SUMMARY_END: dict[Engine, str] = {
    "sqlite": "<!-- end of summary -->",
    "postgres": "<!-- end of summary on PostgreSQL -->",
}
_MODES = {"full": "FULL", "relaxed": "NORMAL"}
_RATES = "Jobs per second, rounded medians. A ratio of Holdfast to the candidate is the median over the rounds."


def write_page(results: Results, page: Path) -> None:
    """Replace the text between the markers of the engine."""
    engine, text = results.engine, page.read_text(encoding="utf-8")
    text = _replace_between(text, SUMMARY_BEGIN[engine], SUMMARY_END[engine], summary(as_json(results)))
    text = _replace_between(text, BEGIN[engine], END[engine], render_results(results))
    page.write_text(text, encoding="utf-8")


def _replace_between(text: str, begin: str, end: str, content: str) -> str:
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no markers {begin} … {end}")
    return f"{before}{begin}\n\n{content}\n{end}{after}"


def summary(stored: Mapping[str, Any]) -> str:
    """Return the summary as Markdown, from the stored results of one engine."""
    return _table(("measurement", "result", "meaning"), summary_rows(stored))


def render_results(results: Results) -> str:
    """Return the results as Markdown."""
    parts = [
        "### The machine\n",
        _table(("item", "value"), sorted(results.machine.items())),
        "### The run\n",
        _table(("item", "value"), ((name, str(value)) for name, value in results.method.items())),
        "### Targets\n",
        _table(("path", "target", "result", ""), _targets(results)),
        f"### Rates\n\n{_RATES}\n",
        _table(("scenario", "mode", "candidate", "jobs/s", "ratio"), _rates(results)),
    ]
    if results.engine == "postgres":
        parts = [*(f"![{name}](images/{name}.svg)\n" for name in chart_names(results)), *parts]
    if results.latencies:
        parts += [
            "### Pick-up across processes\n",
            _table(("mode", "candidate", "p50 ms", "p99 ms"), _latencies(results)),
        ]
    if results.costs:
        sizes = sorted(results.costs[0].seconds)
        head = ("claim", f"µs at {sizes[0]:,}", *(f"ratio at {size:,}" for size in sizes[1:]))
        parts += ["### Claims as the store grows\n", _table(head, _costs(results.costs, sizes))]
    if results.session_costs:
        sizes = sorted(results.session_costs[0].seconds)
        head = ("sessions", f"µs at {sizes[0]:,}", *(f"ratio at {size:,}" for size in sizes[1:]))
        parts += ["### Sessions as the store grows\n", _table(head, _costs(results.session_costs, sizes))]
    if results.pinned is not None:
        parts += [
            "### Claims under a pinned snapshot\n",
            _table(("jobs drained", "µs before", "µs after", "ratio"), [_pinned(results.pinned)]),
        ]
    if results.calls is not None:
        calls = results.calls
        parts += [
            "### Processor time of calls\n",
            _table(("call", "µs", "of the bare loop"), _calls(calls)),
            "### Parts of the processor time, in µs\n",
            _table(call_cost.PARTS_HEAD, calls.parts()),
            "### Pages written to the log\n",
            _table(call_cost.PAGES_HEAD, calls.pages_written()),
        ]
    if results.writers:
        rows = ((name, *times.row()) for name, times in results.writers.items())
        parts += ["### Sixteen writers\n", _table(writers.HEAD, rows)]
    if results.worker is not None:
        parts += [
            "### One worker in one process\n",
            _table(("handlers", "jobs/s", "compared with", "jobs/s", "ratio"), _worker(results.worker)),
        ]
    if results.isolation is not None:
        head = ("one job", "in a thread", "isolated", "after a crash", "at worker start")
        parts += ["### Isolated handlers\n", _table(head, _isolation(results.isolation))]
    missing = ((name, f"**not measured**: {reason}") for name, reason in results.absent.items())
    parts += ["### Settings\n", _table(("candidate", "settings"), [*results.settings.items(), *missing])]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _targets(results: Results) -> Iterable[Sequence[str]]:
    for one in verdicts(results):
        found = "not measured" if one.found is None else f"{one.found:.2f}"
        yield one.path, one.target, found, "" if one.met is None else "met" if one.met else "**missed**"


def _rates(results: Results) -> Iterable[Sequence[str]]:
    for cell in sorted(results.cells, key=lambda cell: (cell.scenario, cell.durability)):
        ours = results.cell(cell.scenario if cell.scenario != "disk" else "single", "holdfast", cell.durability)
        times = ratio(ours, cell)
        beside = "" if times is None or cell.candidate == "holdfast" else f"{times:.2f}x"
        yield cell.scenario, _MODES[cell.durability], cell.candidate, f"{_rounded(cell.rate):,}", beside


def _rounded(rate: float) -> int:
    """Round to two digits, because the measurements are not more precise."""
    return int(float(f"{rate:.2g}"))


def _latencies(results: Results) -> Iterable[Sequence[str]]:
    for one in sorted(results.latencies, key=lambda one: (one.durability, one.percentile(0.5))):
        p50, p99 = one.percentile(0.5) * 1e3, one.percentile(0.99) * 1e3
        yield _MODES[one.durability], one.candidate, f"{p50:.2f}", f"{p99:.2f}"


def _pinned(found: Pinned) -> Sequence[str]:
    before, after = found.before * 1e6, found.after * 1e6
    return f"{found.jobs:,}", f"{before:.0f}", f"{after:.0f}", f"{after / before:.2f}"


def _worker(found: WorkerFigures) -> Iterable[Sequence[str]]:
    for handlers, rate, against, bound in [*found.compared(), *found.limits()]:
        yield handlers, f"{_rounded(rate):,}", against, f"{_rounded(bound):,}", f"{rate / bound:.2f}"
    yield "none: idle", "", "one core", "", f"{found.idle_share:.2%}"


def _calls(found: CallCosts) -> Iterable[Sequence[str]]:
    for target in TARGETS:
        yield target.name, f"{found.microseconds[target.name]:.1f}", found.factor(target.name)
    for name in ("bare single", "bare bulk"):
        yield name, f"{found.microseconds[name]:.1f}", ""
    for name in found.beside():
        yield name, f"{found.microseconds[name]:.1f}", found.factor(name)


def _isolation(found: IsolationFigures) -> Iterable[Sequence[str]]:
    yield (
        "ms from enqueue to done",
        f"{found.plain_ms:.2f}",
        f"{found.isolated_ms:.2f}",
        f"{found.again_ms:.1f}",
        f"{found.start_ms:.0f}",
    )
    yield "jobs/s in eight slots", f"{_rounded(found.plain_rate):,}", f"{_rounded(found.isolated_rate):,}", "", ""


def _costs(costs: Iterable[Cost], sizes: Sequence[int]) -> Iterable[Sequence[str]]:
    for cost in costs:
        first = cost.seconds[sizes[0]]
        yield cost.filter, f"{first * 1e6:.0f}", *(f"{cost.seconds[size] / first:.2f}" for size in sizes[1:])
