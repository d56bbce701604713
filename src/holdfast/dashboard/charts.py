"""Geometry of charts, drawn as SVG by the templates: the time line of a job, and bars per minute."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from holdfast.domain.job import Attempt, Job
from holdfast.domain.overview import FlowMinute

WIDTH: Final = 1000
_FOLDED: Final = 70
"""The width of a stretch that is folded."""
_NARROWEST: Final = 4
_ATTEMPTS_DRAWN: Final = 40


class Span(NamedTuple):
    """A part of a time line."""

    x: float
    width: float
    name: Literal["waiting", "running", "done", "failed", "deferred", "released", "expired", "cancelled"]
    seconds: float
    label: str
    folded: bool = False


class TimeLine(NamedTuple):
    """The story of a job on a time scale; long waits are folded, with their length written."""

    spans: tuple[Span, ...]
    seconds: float
    left_out: int
    """Earlier attempts that are not drawn."""


def time_line(job: Job, attempts: Sequence[Attempt], now: datetime) -> TimeLine:
    """Return the time line of a job until its end or now."""
    shown = list(attempts[-_ATTEMPTS_DRAWN:])
    end = max(job.finished_at or now, job.enqueued_at)
    at = shown[0].started_at if len(shown) < len(attempts) else job.enqueued_at
    begin = at
    stretches: list[tuple[str, float, str]] = []
    for one in shown:
        if one.started_at > at:
            stretches.append(("waiting", (one.started_at - at).total_seconds(), ""))
        ended = one.ended_at or end
        seconds = max(0.0, (ended - one.started_at).total_seconds())
        stretches.append((one.outcome or "running", seconds, f"attempt {one.number} on {one.worker}"))
        at = max(at, ended)
    if end > at and not job.finished:
        stretches.append(("waiting", (end - at).total_seconds(), ""))
    return TimeLine(placed(stretches), max(0.0, (end - begin).total_seconds()), len(attempts) - len(shown))


def placed(stretches: Sequence[tuple[str, float, str]]) -> tuple[Span, ...]:
    """Return stretches of a name, a duration and a label as parts of the width."""
    total = sum(seconds for _, seconds, _ in stretches) or 1.0
    active = sum(seconds for name, seconds, _ in stretches if name != "waiting")
    # A wait is folded if the attempts beside it could not be seen otherwise.
    folded = [name == "waiting" and 0 < active < total / 8 and seconds > total / 4 for name, seconds, _ in stretches]
    free = WIDTH - _FOLDED * sum(folded) - _NARROWEST * (len(stretches) - sum(folded))
    shown = sum(seconds for (_, seconds, _), fold in zip(stretches, folded, strict=True) if not fold) or 1.0
    spans: list[Span] = []
    x = 0.0
    for (name, seconds, label), fold in zip(stretches, folded, strict=True):
        width = float(_FOLDED) if fold else _NARROWEST + free * seconds / shown
        spans.append(Span(round(x, 1), round(width, 1), name, seconds, label, fold))  # type: ignore[arg-type]
        x += width
    return tuple(spans)


# --- flow ----------------------------------------------------------------------------------------------------------

FLOW_HEIGHT: Final = 84
_FLOW_TOP: Final = 8
AGE_BOTTOM: Final = 141
AGE_HEIGHT: Final = 34


class FlowBar(NamedTuple):
    """What ended within one minute: parts from the bottom up."""

    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]
    """Name, top and height of each part."""
    title: str


class FlowChart(NamedTuple):
    """Ended jobs as bars, and arrivals as a line: a growing backlog is the gap between them."""

    bars: tuple[FlowBar, ...]
    arrivals: str
    """The points of the line."""
    most: int
    """The number of jobs at the top."""
    arrived: int
    done: int
    failed: int
    ages: tuple[FlowBar, ...]
    """How long the jobs that ended within each minute had waited; in the last minute also the oldest ready job."""
    oldest_seconds: float
    """The waiting time of the tallest of these."""


def flow_chart(minutes: Sequence[FlowMinute], oldest_age_seconds: float = 0.0) -> FlowChart:
    """Return the chart of some minutes, oldest first."""
    ended = [one.done + one.failed + one.cancelled for one in minutes]
    most = max([1, *ended, *(one.arrived for one in minutes)])
    scale, step = (FLOW_HEIGHT - _FLOW_TOP) / most, WIDTH / max(1, len(minutes))
    bars, points = [], []
    for index, one in enumerate(minutes):
        x, top = index * step, float(FLOW_HEIGHT)
        parts = []
        for name, count in (("done", one.done), ("cancelled", one.cancelled), ("failed", one.failed)):
            height = count * scale
            top -= height
            if count:
                parts.append((name, round(top, 1), round(height, 1)))
        title = f"{one.at:%H:%M}: {one.arrived:,} arrived, {one.done:,} done, {one.failed:,} failed"
        bars.append(FlowBar(round(x + step * 0.1, 1), round(step * 0.8, 1), tuple(parts), title))
        points.append(f"{x + step / 2:.1f},{FLOW_HEIGHT - one.arrived * scale:.1f}")
    arrived, done, failed = (sum(getattr(one, name) for one in minutes) for name in ("arrived", "done", "failed"))
    ages, oldest_seconds = _ages(minutes, oldest_age_seconds, step)
    return FlowChart(tuple(bars), " ".join(points), most, arrived, done, failed, ages, oldest_seconds)


def _ages(minutes: Sequence[FlowMinute], oldest_age_seconds: float, step: float) -> tuple[tuple[FlowBar, ...], float]:
    waited = [one.waited_seconds or 0.0 for one in minutes]
    if waited:
        waited[-1] = max(waited[-1], oldest_age_seconds)
    longest = max(waited, default=0.0)
    bars = []
    for index, (one, seconds) in enumerate(zip(minutes, waited, strict=True)):
        if seconds:
            height = max(1.0, AGE_HEIGHT * seconds / longest)
            part = ("waited", round(AGE_BOTTOM - height, 1), round(height, 1))
            title = f"{one.at:%H:%M}: waited for {seconds:,.1f} s"
            bars.append(FlowBar(round(index * step + step * 0.1, 1), round(step * 0.8, 1), (part,), title))
    return tuple(bars), longest
