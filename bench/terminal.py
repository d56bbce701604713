"""Print the results of a run on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench import call_cost, writers
from bench.claim_cost import Cost
from bench.isolation import IsolationFigures
from bench.results import NAMES, Results, ratio
from bench.targets import verdicts
from bench.worker import WorkerFigures


def show(results: Results, console: Console) -> None:
    """Print settings, rates, pick-up, claims and targets of one engine."""
    console.rule(NAMES[results.engine])
    console.print(_settings(results))
    if results.cells:
        console.print(_rates(results))
    if results.latencies:
        console.print(_latencies(results))
    if results.costs:
        console.print(_costs("One claim as the store grows", results.costs))
    if results.session_costs:
        console.print(_costs("Sessions as the store grows", results.session_costs))
    if results.calls is not None:
        call_cost.show(results.calls, console)
    if results.writers:
        writers.show(results.writers, console)
    if results.worker is not None:
        console.print(_worker(results.worker))
    if results.isolation is not None:
        console.print(_isolation(results.isolation))
    console.print(_targets(results))
    for name, reason in results.absent.items():
        console.print(f"[bold red]{name} was NOT MEASURED: {reason}[/]")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _settings(results: Results) -> Table:
    table = Table(title="Candidates and their settings", title_justify="left")
    table.add_column("candidate")
    table.add_column("settings")
    for name, settings in results.settings.items():
        table.add_row(name, settings)
    for name, reason in results.absent.items():
        table.add_row(f"[bold red]{name}[/]", f"[bold red]NOT MEASURED: {reason}[/]")
    return table


def _rates(results: Results) -> Table:
    table = _table("Jobs per second (medians)", "scenario", "candidate", "mode", "jobs/s", "spread", "ratio")
    for cell in sorted(results.cells, key=lambda cell: (cell.scenario, cell.durability, -cell.rate)):
        times = ratio(results.cell(cell.scenario, "holdfast", cell.durability), cell)
        spread = f"{min(cell.rates):,.0f} to {max(cell.rates):,.0f}"
        beside = "" if times is None or cell.candidate == "holdfast" else f"{times:.2f}x"
        table.add_row(cell.scenario, cell.candidate, cell.durability, f"{cell.rate:,.0f}", spread, beside)
    return table


def _latencies(results: Results) -> Table:
    table = _table("Pick-up across processes", "candidate", "mode", "p50 ms", "p99 ms")
    for one in sorted(results.latencies, key=lambda one: (one.durability, one.percentile(0.5))):
        p50, p99 = one.percentile(0.5) * 1e3, one.percentile(0.99) * 1e3
        table.add_row(one.candidate, one.durability, f"{p50:.2f}", f"{p99:.2f}")
    return table


def _costs(title: str, costs: list[Cost]) -> Table:
    sizes = sorted(costs[0].seconds)
    table = _table(title, "claim", f"µs at {sizes[0]:,}", *(f"x at {one:,}" for one in sizes[1:]))
    for cost in costs:
        first = cost.seconds[sizes[0]]
        growth = (f"{cost.seconds[size] / first:.2f}" for size in sizes[1:])
        table.add_row(cost.filter, f"{first * 1e6:.0f}", *growth)
    return table


def _worker(found: WorkerFigures) -> Table:
    table = _table("One worker in one process", "handlers", "jobs/s", "compared with", "jobs/s", "ratio")
    for handlers, rate, against, bound in [*found.compared(), *found.limits()]:
        table.add_row(handlers, f"{rate:,.0f}", against, f"{bound:,.0f}", f"{rate / bound:.2f}")
    table.add_row("none: idle", "", "one core", "", f"{found.idle_share:.2%}")
    return table


def _isolation(found: IsolationFigures) -> Table:
    table = _table("Isolated handlers", "", "in a thread", "isolated", "after a crash", "at the start")
    times = (found.plain_ms, found.isolated_ms, found.again_ms, found.start_ms)
    table.add_row("ms for one job", *(f"{one:.2f}" for one in times))
    table.add_row("jobs/s", f"{found.plain_rate:,.0f}", f"{found.isolated_rate:,.0f}", "", "")
    return table


def _targets(results: Results) -> Table:
    table = _table("Targets", "path", "target", "result", "")
    for one in verdicts(results):
        found = "not measured" if one.found is None else f"{one.found:.2f}"
        verdict = "" if one.met is None else "[green]met[/]" if one.met else "[red]missed[/]"
        table.add_row(one.path, one.target, found, verdict)
    return table
