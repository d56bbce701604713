"""Charts as SVG: one bar with its value per row, or lines in panels."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from bench.candidates import BASELINES, Durability
from bench.results import Results

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 800, 340, 90, 46, 26, 18
_OURS, _THEIRS, _BASELINE = "#0b6e8a", "#9fb3bd", "#dfe6ea"
_PANEL = 190
_COLORS = ("#0b6e8a", "#c2571a", "#5a7d2a", "#7a4b9c")


class Bar(NamedTuple):
    """One row of a chart."""

    label: str
    value: float
    text: str
    color: str = _THEIRS


def draw(title: str, bars: list[Bar]) -> str:
    """Return the chart as SVG."""
    height = _TOP + _STEP * len(bars) + 12
    longest = max(bar.value for bar in bars)
    rows = "\n".join(_row(index, bar, longest) for index, bar in enumerate(bars))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' font-family="Helvetica, Arial, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="12" y="26" font-size="15" font-weight="bold" fill="#1d2b31">{escape(title)}</text>\n'
        f"{rows}\n</svg>\n"
    )


def _row(index: int, bar: Bar, longest: float) -> str:
    top = _TOP + index * _STEP
    width = max(1.0, bar.value / longest * (_WIDTH - _LEFT - _RIGHT))
    base = top + _BAR - 4
    return (
        f'<text x="{_LEFT - 8}" y="{base}" text-anchor="end" fill="#1d2b31">{escape(bar.label)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{bar.color}"/>'
        f'<text x="{_LEFT + width + 6:.1f}" y="{base}" fill="#1d2b31">{escape(bar.text)}</text>'
    )


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draw all charts and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, chart in _charts(results).items():
        path = folder / f"{name}.svg"
        path.write_text(chart, encoding="utf-8")
        drawn.append(path)
    return drawn


def chart_names(results: Results) -> list[str]:
    """Return the names of the charts for these results."""
    return list(_charts(results))


def _charts(results: Results) -> dict[str, str]:
    drawn = _postgres_charts(results) if results.engine == "postgres" else _sqlite_charts(results)
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _sqlite_charts(results: Results) -> dict[str, str | None]:
    return {
        "bench-single-full": _rates(results, "single", "full", "Single enqueue, FULL (best peer = 1)"),
        "bench-drain-full": _rates(results, "drain", "full", "Drain, FULL (best peer = 1)"),
        "bench-drain-relaxed": _rates(results, "drain", "relaxed", "Drain, NORMAL (best peer = 1)"),
        "bench-one-by-one-full": _rates(results, "one-by-one", "full", "One job at a time, FULL (best peer = 1)"),
        "bench-pickup": _pickup(results),
        "bench-claim-cost": _claim_cost(results),
    }


def _postgres_charts(results: Results) -> dict[str, str | None]:
    return {
        "bench-postgres-single": _rates(results, "single", "full", "Single enqueue, PostgreSQL (best peer = 1)"),
        "bench-postgres-bulk": _rates(results, "bulk", "full", "Bulk enqueue, PostgreSQL (best peer = 1)"),
        "bench-postgres-drain": _rates(results, "drain", "full", "Drain, PostgreSQL (best peer = 1)"),
        "bench-postgres-workers": _workers(results),
        "bench-postgres-pickup": _pickup(results),
        "bench-postgres-claim-cost": _claim_cost(results),
    }


def _rates(results: Results, scenario: str, durability: Durability, title: str) -> str | None:
    peers = results.peers(scenario, durability)
    ours = results.cell(scenario, "holdfast", durability)
    found = (results.cell(scenario, name, durability) for name in BASELINES)
    baselines = [cell for cell in found if cell is not None]
    if not peers or ours is None:
        return None
    unit = peers[0].rate
    rows = [(ours, _OURS), *((peer, _THEIRS) for peer in peers), *((cell, _BASELINE) for cell in baselines)]
    return draw(
        title, [Bar(cell.candidate, cell.rate / unit, f"{cell.rate / unit:.2f}", color) for cell, color in rows]
    )


def _workers(results: Results) -> str | None:
    cells = [results.cell(scenario, "holdfast", "full") for scenario in ("drain", "workers-4", "workers-8")]
    [one, *_] = cells
    if one is None:
        return None
    bars = [
        Bar(f"{processes} process{'es' * (processes > 1)}", rate := cell.rate / one.rate, f"{rate:.2f}", _OURS)
        for processes, cell in zip((1, 4, 8), cells, strict=True)
        if cell is not None
    ]
    return draw("Drain by worker processes of Holdfast, PostgreSQL (one process = 1)", bars)


def _pickup(results: Results) -> str | None:
    if not results.latencies:
        return None
    ranked = sorted(
        results.latencies, key=lambda one: (one.durability, one.candidate != "holdfast", one.percentile(0.5))
    )
    bars = [
        Bar(
            one.candidate if results.engine == "postgres" else f"{one.candidate} ({one.durability})",
            one.percentile(0.5) * 1e3,
            f"{one.percentile(0.5) * 1e3:.2f} ms",
            _OURS if one.candidate == "holdfast" else _THEIRS,
        )
        for one in ranked
    ]
    return draw("Pick-up across processes, median (shorter is better)", bars)


def _claim_cost(results: Results) -> str | None:
    if not results.costs:
        return None
    most, least = max(results.costs[0].seconds), min(results.costs[0].seconds)
    bars = [
        Bar(cost.filter, growth := cost.seconds[most] / cost.seconds[least], f"{growth:.2f}x", _OURS)
        for cost in results.costs
    ]
    return draw(f"A claim at {most:,} ready jobs, against {least:,}", bars)


class Line(NamedTuple):
    """One line of a panel: its name, and its points."""

    label: str
    points: list[tuple[float, float]]


def draw_lines(title: str, panels: dict[str, list[Line]]) -> str:
    """Return one panel for each name, with lines from zero to the highest of their values, as SVG."""
    height = _TOP + _PANEL * len(panels)
    drawn = "\n".join(_panel(index, name, lines) for index, (name, lines) in enumerate(panels.items()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' font-family="Helvetica, Arial, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="12" y="26" font-size="15" font-weight="bold" fill="#1d2b31">{escape(title)}</text>\n'
        f"{drawn}\n</svg>\n"
    )


def _panel(index: int, name: str, lines: list[Line]) -> str:
    top, bottom, left, right = _TOP + index * _PANEL, _TOP + (index + 1) * _PANEL - 30, 70, _WIDTH - 220
    points = [point for line in lines for point in line.points]
    most_x, most_y = (max((point[axis] for point in points), default=0.0) or 1.0 for axis in (0, 1))
    parts = [
        f'<text x="{left}" y="{top + 12}" fill="#1d2b31">{escape(name)}</text>',
        f'<path d="M{left},{top + 18}V{bottom}H{right}" fill="none" stroke="#1d2b31"/>',
        f'<text x="{left - 6}" y="{top + 28}" text-anchor="end" fill="#1d2b31">{most_y:,.0f}</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end" fill="#1d2b31">{most_x:,.0f} jobs</text>',
    ]
    for number, line in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        places = [
            f"{left + x / most_x * (right - left):.1f},{bottom - y / most_y * (bottom - top - 24):.1f}"
            for x, y in line.points
        ]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = f'<text x="{right + 12}" y="{top + 30 + 18 * number}" fill="{color}">{escape(line.label)}</text>'
        parts.append(label)
    return "".join(parts)
